/* Where the tensors of a synthetic checkpoint go: internal to synth. */
#ifndef DI_MODEL_SYNTH_PLAN_H
#define DI_MODEL_SYNTH_PLAN_H

#include <stdint.h>

#include "base/buffer.h"
#include "model/checkpoint.h"

typedef struct synth_entry {
    di_tensor_spec spec;
    uint64_t bytes, offset; /* in the shard's tensor bytes */
    int32_t shard;
} synth_entry;

typedef struct synth_plan {
    synth_entry *entries; /* shard by shard, in the order of their bytes */
    int64_t n;
    int32_t n_shards;
    uint64_t total; /* bytes of all tensors */
} synth_plan;

/* n_shards 0: one for every 10.7 GB (48 for the release). */
di_status synth__plan_make(const di_config *config, int32_t n_shards, synth_plan *plan,
                           di_error *error);
void synth__plan_free(synth_plan *plan);

/* "model.safetensors", or "model-00002-of-00048.safetensors". */
void synth__plan_file(const synth_plan *plan, int32_t shard, char out[64]);

/* First entry of a shard; of n_shards the end. */
int64_t synth__plan_first(const synth_plan *plan, int32_t shard);

/* Length, header and padding: the file up to its tensor bytes. */
void synth__plan_header(const synth_plan *plan, int32_t shard, di_buffer *out);
/* The text of model.safetensors.index.json. */
void synth__plan_index(const synth_plan *plan, di_buffer *out);
/* The text of token_map.json. */
void synth__token_map(const di_config *config, di_buffer *out);

#endif
