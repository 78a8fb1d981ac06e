/* The stored operations of a golden_release.safetensors, and the rule that engines are held to.
 *
 * A stored operation is `p33/release.<scope>.<op>.<part>`, parts `in...` and `out...`. The rule
 * ("release numerics, operation by operation"): BF16 outputs are BF16 values, whatever type holds
 * them; at least 99.5 % of them equal, all tensors of a kind pooled, the rest one BF16 step off, or
 * off by at most 1e-6 of the row's largest value where terms cancel; FP32 outputs are float32
 * values within 1e-5 of the tensor's largest; integers equal, but for codes marked as near ties
 * (1).
 */
#ifndef DI_TESTS_SUPPORT_RELEASE_VECTORS_H
#define DI_TESTS_SUPPORT_RELEASE_VECTORS_H

#include "model/checkpoint.h"
#include "model/config.h"

typedef struct release_file {
    di_config config;
    di_checkpoint *checkpoint;
    di_safetensors *vectors; /* golden_release.safetensors */
    di_safetensors *golden;  /* golden.safetensors: rotary frequencies, Engram's constants */
} release_file;

/* directory relative to the source tree: tests/data/golden/tiny-a. Fails the test. */
void release_open(release_file *file, const char *directory);
void release_close(release_file *file);

typedef struct release_op {
    char scope[16], op[32];
} release_op;

enum { RELEASE_MAX_OPS = 512 };
/* All stored operations, each once; returns how many. */
int release_list(const release_file *file, release_op *out);
/* How many tensors `out...` they have, marks of near ties left out. */
int64_t release_count_outputs(const release_file *file);
int64_t release_count_outputs_of(const release_file *file, const release_op *op);

/* A part, or NULL when this operation has none of that name. */
const di_tensor *release_find(const release_file *file, const release_op *op, const char *part);
const di_tensor *release_part(const release_file *file, const release_op *op, const char *part);
int64_t release_count(const di_tensor *tensor);
const float *release_floats(const di_tensor *tensor);
/* Any stored integer type, widened; the caller frees. */
int32_t *release_ints(const di_tensor *tensor);

/* ---- The rule ---- */

typedef struct release_kind {
    char name[64];
    int64_t size, equal;
    double share; /* that must be equal */
} release_kind;

typedef struct release_score {
    release_kind kinds[128]; /* BF16 outputs by "op.part", and codes of fused quantisers */
    int n_kinds;
    int64_t outputs, failures; /* tensors compared; complaints */
    char first[256];           /* the first complaint */
    double worst_f32;
} release_score;

/* rows of `width` values; `name` says where, `kind` is what is pooled. */
void release_compare_bf16(release_score *score, const char *name, const char *kind,
                          const float *want, const double *got, int64_t rows, int64_t width);
void release_compare_f32(release_score *score, const char *name, const float *want,
                         const double *got, int64_t n);
/* near NULL: no marks. */
void release_compare_codes(release_score *score, const char *name, const uint8_t *want,
                           const uint8_t *got, const uint8_t *near, int64_t n);
/* Codes whose quantiser is fused with what makes its input, of which a value may be one BF16 step
 * off: `share` of a kind equal, the rest one code off. sign: the bit of a code that is its sign, 0
 * where there is none. */
void release_compare_fused(release_score *score, const char *name, const char *kind,
                           const uint8_t *want, const uint8_t *got, int sign, double share,
                           int64_t n);
void release_compare_ints(release_score *score, const char *name, const int32_t *want,
                          const int32_t *got, int64_t n);
/* Adds the complaints about pooled shares; returns all complaints. */
int64_t release_finish(release_score *score);

#endif
