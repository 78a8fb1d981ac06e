/* synth: random checkpoints in the release's format, seeded and reproducible to the byte.
 *
 * Values are scaled so that the network is alive: attention is peaked, routing and selection pick
 * real subsets, the clamp and the gates bite (see synth.c). Every value is a function of
 * (seed, tensor name, element index), so a slice of a larger config has the same values in the
 * tensors and rows that it shares.
 */
#ifndef DI_MODEL_SYNTH_H
#define DI_MODEL_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/config.h"

typedef struct di_synth_options {
    const char *config_json; /* text of the config to write, with all overrides applied */
    size_t config_size;
    const char *tokenizer_dir; /* take tokenizer.json along, or NULL: write a token map */
    uint64_t seed;
    int32_t n_shards;
    bool sparse; /* files of full size without written data: all zero bytes, a few MB on disk */
    void (*progress)(void *user, uint64_t done, uint64_t total); /* bytes; may be NULL */
    void *user;
} di_synth_options;

/* Creates `directory` (must not hold a model yet) and writes config.json, shards with index, and
 * tokenizer.json or token_map.json. Interrupted or failed: what was written is removed. */
di_status di_synth_write(const char *directory, const di_synth_options *options, di_error *error);

/* Overwrites bytes [offset, offset + n) of a tensor in the files of a sparse checkpoint. */
di_status di_synth_plant(const char *directory, const char *tensor, uint64_t offset,
                         const void *bytes, uint64_t n, di_error *error);

#endif
