/* inspect: what is in a checkpoint, and what a machine needs to run it.
 *
 * Everything follows from the contract, so a config alone is enough; with the files, their count
 * and what else they hold are added. No tensor is read.
 */
#ifndef DI_MODEL_INSPECT_H
#define DI_MODEL_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/backend.h"
#include "model/checkpoint.h"
#include "model/config.h"
#include "model/model.h"

typedef struct di_inspect_kind {
    uint64_t tensors, bytes;
    uint64_t values; /* weights, scales not counted; two in a byte of FP4 */
} di_inspect_kind;

typedef struct di_inspect {
    uint64_t tensors, bytes, values; /* of the contract; with files, of what they hold of it */
    di_inspect_kind kinds[DI_N_KINDS];
    uint64_t layer_bytes[DI_MAX_LAYERS]; /* backbone layers, then draft layers; tables included */
    uint64_t active_values; /* that one token of text meets: picked experts, hit table rows */
    uint64_t decode_bytes;  /* of weights and scales that one token alone makes a machine read */
    /* Weights that can be resident at a time: all but vision; or, with layers given back after
     * their use, the largest layer without its table, and the head. */
    uint64_t resident_bytes, released_bytes;

    bool has_files;
    int32_t n_shards;
    uint64_t file_bytes;             /* headers included */
    uint64_t missing;                /* tensors that may be absent (vision), and are */
    uint64_t unknown, unknown_bytes; /* tensors that the contract does not know */
} di_inspect;

/* checkpoint NULL: from the config alone. */
di_status di_inspect_make(const di_config *config, const di_checkpoint *checkpoint, di_inspect *out,
                          di_error *error);

/* What a backend takes for a context with these options: what di_context_create would take, to the
 * byte. DI_ERR_USAGE when the model does not take so many tokens, DI_ERR_MEMORY when the bytes do not
 * fit 64 bits. */
di_status di_inspect_state(const di_config *config, const di_backend *backend,
                           const di_context_options *context, di_context_bytes *out,
                           di_error *error);

/* "embed", "experts", ...: for output. */
const char *di_tensor_kind_name(di_tensor_kind kind);

#endif
