/* Checkpoint: a model directory as the release ships it, mapped and checked, nothing read that is
 * not needed. config.json, *.safetensors (one file, or shards with model.safetensors.index.json).
 *
 * Opening checks the header of every shard (lengths, offsets, overlaps, duplicates) and every
 * tensor against the contract that follows from config.json. Tensor bytes are never touched then.
 * 64-bit sizes everywhere: one table of the release has 98 GB.
 */
#ifndef DI_MODEL_CHECKPOINT_H
#define DI_MODEL_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/dtype.h"
#include "model/config.h"

/* ---- The contract: every tensor that a config implies ---- */

/* For accounts of bytes. */
typedef enum di_tensor_kind {
    DI_KIND_EMBED,
    DI_KIND_HEAD,
    DI_KIND_ATTENTION, /* norms and mHC included */
    DI_KIND_COMPRESSOR,
    DI_KIND_INDEXER,
    DI_KIND_EXPERTS, /* routed */
    DI_KIND_SHARED,  /* router and shared expert */
    DI_KIND_ENGRAM,
    DI_KIND_DSPARK,
    DI_KIND_VISION,
    DI_N_KINDS
} di_tensor_kind;

typedef struct di_tensor_spec {
    char name[96];
    di_dtype dtype;
    int32_t n_dims;
    int64_t shape[4];
    di_tensor_kind kind;
    int32_t layer; /* a backbone layer, num_hidden_layers + stage of a draft layer, or -1 */
    bool required; /* vision tensors are not needed for text and may be absent */
} di_tensor_spec;

/* Bytes of the tensor in its file. */
static inline uint64_t di_tensor_spec_bytes(const di_tensor_spec *spec) {
    uint64_t bytes = di_dtype_bytes(spec->dtype);
    for (int32_t i = 0; i < spec->n_dims; i++) bytes *= (uint64_t)spec->shape[i];
    return bytes;
}

/* Calls visit for every tensor, scales included, in checkpoint order (global, layers, mtp, vision);
 * stops at and returns the first status that is not DI_OK. The released config gives 96,085 tensors
 * and 510,286,023,000 bytes. */
typedef di_status (*di_tensor_visit)(void *user, const di_tensor_spec *spec, di_error *error);
di_status di_contract_each(const di_config *config, di_tensor_visit visit, void *user,
                           di_error *error);

/* ---- The files ---- */

typedef struct di_tensor {
    const char *name; /* NUL-terminated */
    di_dtype dtype;
    int32_t n_dims;
    int64_t shape[4];
    const uint8_t *data; /* mapped, read-only; not necessarily aligned */
    uint64_t bytes;
    int32_t shard;
} di_tensor;

typedef struct di_safetensors di_safetensors;

/* One file on its own (also for test vectors). Every rule of the header is checked: known dtypes,
 * at most 4 dimensions, sizes that fit shape and dtype, no overlap, no gap, nothing missing or left
 * over at the end of the file. `shard` of its tensors is 0. Tensors are in the header's order. */
di_status di_safetensors_open(const char *path, di_safetensors **out, di_error *error);
void di_safetensors_close(di_safetensors *file);
int64_t di_safetensors_count(const di_safetensors *file);
const di_tensor *di_safetensors_at(const di_safetensors *file, int64_t i);
const di_tensor *di_safetensors_find(const di_safetensors *file, const char *name); /* or NULL */
/* Where the bytes of one of its tensors begin in the file. */
uint64_t di_safetensors_offset(const di_safetensors *file, const di_tensor *tensor);

typedef struct di_checkpoint di_checkpoint;

/* Opens `directory`; its config.json is parsed already, and `config` must outlive the checkpoint.
 * With model.safetensors.index.json the shards are those that it names; without, there is one file,
 * model.safetensors. Missing tensor or scale, wrong shape or dtype, a tensor in two shards, an
 * index that names an absent file or another place: each its own message. Tensors that the contract
 * does not know are ignored. */
di_status di_checkpoint_open(const char *directory, const di_config *config, di_checkpoint **out,
                             di_error *error);
void di_checkpoint_close(di_checkpoint *checkpoint);
const di_tensor *di_checkpoint_find(const di_checkpoint *checkpoint, const char *name);
int64_t di_checkpoint_count(const di_checkpoint *checkpoint);
const di_tensor *di_checkpoint_at(const di_checkpoint *checkpoint, int64_t i);
int32_t di_checkpoint_n_shards(const di_checkpoint *checkpoint);
const char *di_checkpoint_shard_path(const di_checkpoint *checkpoint, int32_t shard);

/* Reads all E8M0 scales of the tensors whose spec says so and fails on a byte 255 (NaN), naming
 * tensor and index. Scales of routed experts and Engram tables are left out when `deep` is false:
 * they are most of the bytes (model.h says which are checked when). */
di_status di_checkpoint_check_scales(const di_checkpoint *checkpoint, bool deep, di_error *error);

/* Says that single rows of the tensor are read, here and there: the system then reads no more than
 * the pages that are touched. It still maps what its cache holds together with such a page, up to
 * DI_ROW_REACH bytes (64 KiB on older Linux; since 6.18 a whole large folio, 316 KiB measured). */
enum { DI_ROW_REACH = 2 << 20 };
void di_tensor_read_by_rows(const di_tensor *tensor);

/* Tells the system that the bytes are not needed soon, so that resident memory stays bounded. */
void di_tensor_release(const di_tensor *tensor);

#endif
