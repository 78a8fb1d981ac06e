/* SHA-256 (FIPS 180-4) of bytes in memory.
 *
 * For names that must resist forged collisions: pages of a shared cache, models. It cannot fail,
 * allocates nothing and keeps no state, so any thread may call it. About a byte a nanosecond where
 * the CPU has SHA instructions.
 */
#ifndef DI_BASE_SHA256_H
#define DI_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { DI_SHA256_BYTES = 32 };

void di_sha256(const void *data, size_t size, uint8_t digest[DI_SHA256_BYTES]);

#endif
