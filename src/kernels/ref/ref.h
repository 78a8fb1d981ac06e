/* The scalar twins: what every operation of ops.h means, in plain loops and double.
 *
 * Never optimised: they are the definition that kernelcheck holds every backend to. One file a
 * family; a coarse operation is made of the same functions as its parts, so each formula stands
 * once. This header is for the files of this folder and for test backends built on the twins.
 *
 * Memory: device memory is reached through ref_at() alone. Scratch comes from a workspace taken by
 * prepare(); ref_begin() at the head of an operation makes it all free again.
 */
#ifndef DI_KERNELS_REF_H
#define DI_KERNELS_REF_H

#include <stdint.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/formats.h"

/* One vector that was rounded to codes and scales, which the callee may change. */
typedef void (*ref_rounded_fn)(void *user, di_quantizer kind, const double *x, int64_t width,
                               uint8_t *codes, uint8_t *scales);

struct di_stream {
    di_numerics numerics;
    uint64_t delta;   /* added to every di_ptr; 0 where device addresses are host addresses */
    uint8_t *work;    /* owned by the backend */
    di_limits limits; /* what `work` is large enough for */
    uint64_t work_bytes, work_used;
    ref_rounded_fn rounded; /* for tests that look at what is rounded; else NULL */
    void *rounded_user;
};

/* Always on, in release builds too: a twin that was called wrongly proves nothing. */
#define REF_REQUIRE(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) ref_broken(#condition, __FILE__, __LINE__);                              \
    } while (0)
_Noreturn void ref_broken(const char *condition, const char *file, int line);

extern const di_ops ref_ops;
#define REF_DECLARE(name) void ref_##name(di_stream *s, const di_##name##_args *args);
DI_EACH_OP(REF_DECLARE)
#undef REF_DECLARE

uint64_t ref_workspace_bytes(const di_limits *limits);

/* ---- Memory ---- */

static inline void *ref_at(const di_stream *s, di_ptr p) {
    return (void *)(uintptr_t)(p.address + s->delta);
}
static inline double *ref_doubles(const di_stream *s, di_ptr p) { return ref_at(s, p); }
static inline int32_t *ref_ints(const di_stream *s, di_ptr p) { return ref_at(s, p); }
static inline uint8_t *ref_bytes(const di_stream *s, di_ptr p) { return ref_at(s, p); }
static inline bool ref_none(di_ptr p) { return p.address == 0; }

static inline void ref_begin(di_stream *s) { s->work_used = 0; }
double *ref_take(di_stream *s, int64_t n); /* n doubles of workspace */
int32_t *ref_take_ints(di_stream *s, int64_t n);

/* ---- Rounding: the identity under `float` ---- */

static inline double ref_a(const di_stream *s, double x) {
    return s->numerics == DI_NUMERICS_RELEASE ? (double)di_bf16_round((float)x) : x;
}
static inline double ref_f(const di_stream *s, double x) {
    return s->numerics == DI_NUMERICS_RELEASE ? (double)(float)x : x;
}

/* ---- Weights, unaligned in memory ---- */

double ref_value(const di_stream *s, const di_vector *v, int64_t i);
/* Row n, dequantised: out [k]. */
void ref_matrix_row(const di_stream *s, const di_matrix *m, int64_t n, double *out);

/* ---- Functions shared by the families; all on host pointers of doubles ---- */

double ref_sigmoid(double x);
double ref_mean_square(const double *x, int64_t n);
/* out = a(w * x / sqrt(mean(x^2) + eps)); may be in place. */
void ref_norm_row(const di_stream *s, const double *x, int64_t n, double eps,
                  const di_vector *weight, double *out);

/* What an input of n rows is for a product: itself, or dequantised q8 in the workspace. */
const double *ref_product_input(di_stream *s, const double *x, int64_t n_rows, int64_t width,
                                bool quantize);
/* out[t * out_stride + i] = w[first + i] . x[t * x_stride ..] for i < n; `blocks`: x came from q8
 * and the sums are the release's, 32 channels exact, then float32. to_f: rounded by f, else by a.
 */
typedef struct ref_product_shape {
    int64_t n_rows, x_stride, out_stride, first, n;
    bool blocks, to_f;
} ref_product_shape;
void ref_product(di_stream *s, const di_matrix *w, const double *x, const ref_product_shape *shape,
                 double *out);
/* The usual case: contiguous rows, quantised input if `quantize`. */
void ref_linear_rows(di_stream *s, const di_matrix *w, const double *x, int64_t n_rows,
                     bool quantize, bool to_f, double *out);
/* Block g of w's rows times the g-th K values of x, see di_linear_args. */
void ref_linear_groups(di_stream *s, const di_matrix *w, int32_t groups, const double *x,
                       int64_t n_rows, bool quantize, bool to_f, double *out);

/* RoPE on the last rope->dims of one vector, in place. */
void ref_rope_vector(const di_stream *s, const di_rope *rope, int32_t position, bool inverse,
                     double *x, int64_t width);

/* Quantises one vector of `width` values. */
void ref_quantize_vector(const di_stream *s, di_quantizer kind, const double *x, int64_t width,
                         uint8_t *codes, uint8_t *scales);
void ref_dequantize_vector(di_quantizer kind, const uint8_t *codes, const uint8_t *scales,
                           int64_t width, double *out);

/* out[0..returned) = indices of the best at most k values, best first, the lower index first where
 * they tie; -inf is never taken, a NaN counts as -inf unless `all`. best: k doubles of scratch. */
int32_t ref_best(const double *x, int32_t n, int32_t k, bool all, double *best, int32_t *out);
void ref_sort_ascending(int32_t *x, int32_t n);

/* ---- Pages ---- */

typedef struct ref_entry {
    uint8_t *codes, *scales, *key_codes, *key_scales;
} ref_entry;
ref_entry ref_page_entry(const di_stream *s, const di_pages *pages, int32_t slot, int64_t entry);

/* ---- Parts that coarse operations are made of ---- */

/* scores of one query row [heads][dim] against one key [dim]. */
double ref_index_score(const di_stream *s, const double *q, const double *key,
                       const double *weights, int32_t heads, int32_t dim);
void ref_index_weights_rows(di_stream *s, const di_matrix *proj, int32_t index_dim, const double *u,
                            int64_t n_rows, double *out);
/* Published blocks of one row, ascending, -1 fills. Takes workspace. */
void ref_candidate_blocks(di_stream *s, const double *scores, int32_t n_keys, int32_t visible,
                          int32_t top_blocks, int32_t block_size, int32_t *out);
/* The selection of one row: candidates NULL or [top_blocks]. Takes workspace; changes nothing. */
void ref_pick_entries(di_stream *s, const double *scores, int32_t n_keys, int32_t top_k,
                      const int32_t *candidates, int32_t top_blocks, int32_t block_size,
                      int32_t *out);

/* Attention of one row over a list given in blocks of at most 64 slots. */
enum { REF_BLOCK = 64 };
typedef struct ref_attention {
    int32_t n_heads, dim;
    double *top, *total, *values; /* [heads], [heads], [heads][dim] */
} ref_attention;
ref_attention ref_attention_take(di_stream *s, int32_t n_heads, int32_t dim);
void ref_attention_start(ref_attention *at);
/* keys [n][dim]; live[i] false: slot i is empty. */
void ref_attention_block(const di_stream *s, ref_attention *at, const double *q, const double *keys,
                         const bool *live, int32_t n);
void ref_attention_end(const di_stream *s, ref_attention *at, const di_vector *sink, double *out);

/* Per channel: softmax over `ratio` gates, weighted sum. Row i at kv[i], gate[i]. */
void ref_pool_group(const di_stream *s, const double *const *kv, const double *const *gate,
                    int32_t ratio, int64_t width, double *out);

/* Of out row i: how it is sampled; its logits after all processors, with -inf where not kept (at
 * temperature 0 all but the most likely id). False: no distribution. x [vocab]; takes workspace. */
static inline const di_sample_params *ref_params(const di_stream *s, const di_sample_args *args,
                                                 int64_t i) {
    const di_sample_params *params = ref_at(s, args->params);
    return params + (ref_none(args->param_of) ? i : ref_ints(s, args->param_of)[i]);
}
bool ref_process(di_stream *s, const di_sample_args *args, int64_t i, const double *logits,
                 double *x);
double ref_log_softmax(const double *logits, int32_t n, int32_t id);

double ref_swiglu_value(const di_stream *s, double gate, double up, double limit, double weight);

void ref_collapse_row(const di_stream *s, const double *streams, const double *pre, int32_t hc,
                      int64_t width, double *out);

#endif
