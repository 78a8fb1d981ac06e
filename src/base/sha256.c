/* libcrypto's SHA-256 through its oldest interface: the context lies on the stack, so that nothing
 * is allocated and nothing can fail, and a page's name costs its blocks and nothing else. OpenSSL 3
 * calls that interface deprecated; its successor allocates and looks algorithms up by name.
 */
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

#include <openssl/sha.h>

_Static_assert(DI_SHA256_BYTES == SHA256_DIGEST_LENGTH, "a digest has 32 bytes");

void di_sha256(const void *data, size_t size, uint8_t digest[DI_SHA256_BYTES]) {
    SHA256_CTX context;
    SHA256_Init(&context);
    SHA256_Update(&context, data, size);
    SHA256_Final(digest, &context);
}
