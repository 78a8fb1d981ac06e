/* CRC-32C (Castagnoli, as in RFC 3720): finds damage to payloads in memory, on disks and on wires.
 * Not a defence against people; names are for that (sha256.h). Any thread.
 */
#ifndef DI_BASE_CRC32C_H
#define DI_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what `crc` stands for followed by `size` bytes; crc 0 stands for nothing. */
uint32_t di_crc32c(uint32_t crc, const void *data, size_t size);

/* The same without special instructions: the twin, for tests. */
uint32_t di_crc32c_portable(uint32_t crc, const void *data, size_t size);

#endif
