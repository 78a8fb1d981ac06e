/* SipHash-2-4 (Aumasson, Bernstein, "SipHash: a fast short-input PRF", 2012): for hash tables whose
 * keys come from strangers. Without the 128-bit secret nobody can choose keys that collide.
 */
#ifndef DI_BASE_SIPHASH_H
#define DI_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/* Draws the secret; 0, or -1 where the system has none to give. */
int di_siphash_seed(uint64_t key[2]);

uint64_t di_siphash(const uint64_t key[2], const void *data, size_t size);

#endif
