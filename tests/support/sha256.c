#include "support/sha256.h"

#include <stdint.h>
#include <stdio.h>

#include "base/sha256.h"

void test_sha256(const void *bytes, size_t size, char hex[65]) {
    uint8_t digest[DI_SHA256_BYTES];
    di_sha256(bytes, size, digest);
    for (int i = 0; i < DI_SHA256_BYTES; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}
