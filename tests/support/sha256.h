/* base/sha256.h in hexadecimal, for tests that hold a text by its hash. */
#ifndef DI_TESTS_SHA256_H
#define DI_TESTS_SHA256_H

#include <stddef.h>

/* 64 hexadecimal digits and a NUL. */
void test_sha256(const void *bytes, size_t size, char hex[65]);

#endif
