/* The CPU backend's inside: its stream, workspace, kernel family, and what its files share.
 *
 * A and F are float. Operations run when they are called, on the team; nothing is enqueued. The
 * files cpu_ops_*.c hold the operations (portable C: shapes, lists, phases), the files *_avx2.c the
 * loops over values, reached through `cpu_kernels`, which cpu_kernels_init fills by what the CPU
 * has.
 *
 * Row invariance. Every product output is a sum over blocks of CPU_TILE_K of K from the start of
 * K; inside a block eight lanes take every eighth value with FMA and are reduced in one fixed way.
 * All paths (one row, many rows, any tile edge, any thread) do exactly this, so that their bits
 * agree. Other sums of a row are made by one function whatever the number of rows.
 */
#ifndef DI_KERNELS_CPU_CPU_H
#define DI_KERNELS_CPU_CPU_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "kernels/backend.h"

enum {
    CPU_TILE_N = 32,               /* weight rows of a task: the height of a FP8 scale tile */
    CPU_TILE_K = 512,              /* K values decoded at a time; the block of every product sum */
    CPU_TILE_LD = CPU_TILE_K + 16, /* decoded rows 2 KB apart would share L1 sets */
    CPU_FEW_ROWS = 8,              /* x rows of a product whose weights are decoded in registers */
    CPU_BLOCK = 64,                /* attention list slots at a time (ops.h) */
    CPU_KEY_PAD = 16,              /* the same for decoded keys */
    CPU_SMALL_WORK = 2048          /* fork only for as many units (about 1 ns each, often 2) */
};

/* Instruction sets, for di_cpu_options.cpu_mask. */
enum { DI_CPU_AVX2 = 1 };

typedef struct cpu_scratch cpu_scratch;

/* Where a quantised row lies. */
typedef struct cpu_coded {
    const uint8_t *codes, *scales;
} cpu_coded;

/* The hot loops. All pointers may be unaligned. x rows of a product must be as cpu_inputs makes
 * them: zeros behind k up to a multiple of 8 (64 for FP4), and in fp4_order for FP4. */
typedef struct cpu_kernels {
    /* acc[r * CPU_TILE_N + j] = W[n0 + j] . x[r], j < n <= CPU_TILE_N, rows n0.. of one scale tile.
     */
    void (*product)(const di_matrix *w, int32_t n0, int32_t n, const float *const *x, int64_t x_at,
                    int32_t m, float *acc, cpu_scratch *scratch);
    /* out[r][at + j] = [a](acc[r * CPU_TILE_N + j]), j < n */
    void (*store_tile)(const float *acc, int32_t m, int32_t n, bool round, float *const *out,
                       int64_t at);
    /* The order in which products read x against FP4 weights; fills up to a multiple of 64 with
     * zeros. k a multiple of 32; may be in place. */
    void (*fp4_order)(const float *x, int64_t k, float *out);
    /* out[r * ldo + j] = a[r] . b[j] over k, in the order of `product`; a, b rows of floats. */
    void (*dots)(const float *a, int64_t lda, int32_t m, const float *b, int64_t ldb, int32_t n,
                 int32_t k, float *out, int64_t ldo);

    void (*round_bf16)(float *x, int64_t n);
    void (*bf16_to_f32)(const void *in, float *out, int64_t n);
    /* E4M3 codes and an E8M0 scale per 32 -> floats; n a multiple of 32 */
    void (*decode_q8)(const uint8_t *codes, const uint8_t *scales, int64_t n, float *out);
    /* m rows of n values, row i to out + i * ld: as above; e2m1 pairs with an E8M0 scale per 32; e2m1
     * pairs with an E4M3 scale per 16 */
    void (*decode_rows_q8)(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld);
    void (*decode_rows_q4i)(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld);
    void (*decode_rows_q4c)(const cpu_coded *rows, int32_t m, int64_t n, float *out, int64_t ld);
    /* Quantisers of model.md 3.1; values may be NULL: q * s as floats. codes may be NULL. */
    void (*quantize_q8)(const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *values);
    void (*quantize_q4i)(const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *values);
    void (*quantize_q4c)(const float *x, int64_t n, uint8_t *codes, uint8_t *scales, float *values);

    float (*sum_squares)(const float *x, int64_t n);
    /* out = [a](w * (x * inverse)) */
    void (*scale_norm)(const float *x, const float *w, float inverse, int64_t n, bool round,
                       float *out);
    /* out = [a](sum_j c[j] streams[j * width + i]) for i in [begin, end) */
    void (*collapse)(const float *streams, const float *c, int32_t hc, int64_t width, int64_t begin,
                     int64_t end, bool round, float *out);
    /* streams[k] = [a](post[k] y + sum_i comb[i][k] streams[i]), in place, same range */
    void (*expand)(float *streams, const float *y, const float *post, const float *comb, int32_t hc,
                   int64_t width, int64_t begin, int64_t end, bool round);
    /* sum_i h q k key, for one stream of the Engram gate; and h += gate * value */
    float (*gate_dot)(const float *h, const float *q, const float *k, const float *key, int64_t n);
    void (*add_scaled)(float *h, float gate, const float *value, int64_t n, bool round);
    /* out = [a](weight * silu(min([a](g), limit)) * clamp([a](u), +-limit)); limit 0: none */
    void (*swiglu)(const float *g, const float *u, float weight, float limit, int64_t n, bool round,
                   float *out);
    void (*combine)(const float *rows, const float *shared, int32_t k, int64_t width, int64_t begin,
                    int64_t end, bool round, float *out);
    /* out = [a](per channel sum_i softmax_i(g[i]) c[i]), i < ratio rows by pointer */
    void (*pool)(const float *const *c, const float *const *g, int32_t ratio, int64_t n, bool round,
                 float *out);
    /* Sinkhorn of n times 4 x 4 logits, in place */
    void (*comb4)(float *comb, int64_t n, int32_t iters, float eps);

    /* One block of attention for m heads. s [m][CPU_BLOCK] raw dots in, probabilities out;
     * slots >= n and empty ones (bit clear in `live`) get 0. top, sum [m]; shrink [m] out. */
    void (*softmax_block)(float *s, int32_t m, uint64_t live, float scale, bool round, float *top,
                          float *sum, float *shrink);
    /* o[h] = o[h] * shrink[h] + sum_n p[h][n] keys[n] */
    void (*values_block)(const float *p, int32_t m, const float *keys, int64_t ldk, int32_t n,
                         int32_t d, const float *shrink, float *o);
    void (*attend_end)(float *o, int32_t m, int32_t d, const float *top, const float *sum,
                       const float *sink, bool round, float *out);
    /* out[e] = [a](sum_h [a](relu([a](dots[h][e])) w[h])), e < n, dots with row stride ld */
    void (*score)(const float *dots, int64_t ld, const float *w, int32_t heads, int32_t n,
                  bool round, float *out);

    /* Keys in the order of the scores: equal scores (also -0 and 0) have equal keys; 0 for -inf and
     * NaN. Returns how many are not 0. */
    int32_t (*sort_keys)(const float *scores, int64_t n, uint32_t *keys);
    /* Largest value of x; *bad: a NaN is among them. */
    float (*max)(const float *x, int64_t n, bool *bad);
    /* sum exp(x - top) in double, terms below e^-55 left out; x <= top */
    double (*sum_exp_double)(const double *x, double top, int64_t n);
    /* sum exp(x - top), in double over fixed lanes */
    double (*sum_exp)(const float *x, float top, int64_t n);

    float (*peak_read)(const float *x, int64_t n); /* peak.h */
    float (*peak_fma)(int64_t iterations);         /* 192 operations each */
} cpu_kernels;

/* What one team member needs for itself. */
struct cpu_scratch {
    float *tile;         /* [CPU_TILE_N][CPU_TILE_LD] decoded weights */
    float *scaled;       /* [CPU_FEW_ROWS][max_k] x times scales */
    float *acc, *acc2;   /* [max_rows][CPU_TILE_N] */
    float *keys;         /* [CPU_BLOCK][max(head_dim, index_dim) + CPU_KEY_PAD] */
    float *probs;        /* [max(n_heads, index_heads)][CPU_BLOCK] */
    cpu_coded *coded;    /* [CPU_BLOCK] */
    float *angles;       /* [max(head_dim, index_dim)] cos and sin of one position */
    float *o;            /* [n_heads][head_dim] */
    float *state;        /* [3][n_heads]: top, sum, shrink */
    float *scores;       /* [max_entries] */
    float *best;         /* [max_entries], best entry of each block */
    uint32_t *sort_keys; /* [max_entries] */
    int32_t *list;       /* [max_entries], the candidate entries of a row */
    double *x;           /* [vocab] sampling */
    double *q;           /* [vocab] the draft's, of rejection */
    int32_t *ids;        /* [vocab] */
};

struct di_stream {
    const cpu_kernels *k;
    di_team *team;
    int32_t n_members;
    bool release;
    di_limits limits;
    cpu_scratch *scratch; /* [n_members] */
    uint8_t *shared;      /* workspace of the operation that runs, given out by cpu_take */
    uint64_t shared_size, shared_used;
    uint64_t marks;
};

/* ---- cpu_backend.c ---- */

/* False when this CPU (or the mask) lacks every set we have kernels for. */
bool cpu_kernels_init(cpu_kernels *kernels, uint32_t cpu_mask);
void cpu_kernels_init_avx2(cpu_kernels *kernels);

static inline void *cpu_at(di_ptr p) { return (void *)(uintptr_t)p.address; }

/* ---- cpu_work.c: workspace and parallel loops ---- */

/* Bytes of the shared workspace and of one member's scratch for these limits. */
uint64_t cpu_shared_bytes(const di_limits *limits);
uint64_t cpu_scratch_bytes(const di_limits *limits);
/* Lays a member's scratch out in `memory` (cpu_scratch_bytes, 64-byte aligned). */
void cpu_scratch_layout(const di_limits *limits, uint8_t *memory, cpu_scratch *out);

/* Every operation starts with cpu_begin; then takes 64-byte aligned pieces of the workspace. */
static inline void cpu_begin(di_stream *s) { s->shared_used = 0; }
void *cpu_take(di_stream *s, uint64_t bytes);

/* body(s, scratch, user, begin, end) over [0, n) in pieces of `grain`, each exactly once, in any
 * order on any member. `work`: the size of all of it in units of about 1 ns; small work stays here.
 */
typedef void (*cpu_body)(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end);
void cpu_parallel(di_stream *s, int64_t n, int64_t grain, int64_t work, cpu_body body, void *user);

/* ---- cpu_product.c ---- */

/* One product of a phase: rows n_begin .. n_end - 1 of w (matrix row i goes to out[r][i -
 * n_begin]). */
typedef struct cpu_product {
    di_matrix w;
    int32_t n_begin, n_end;
    const float *const *x; /* [m] row pointers */
    int64_t x_at;          /* first value of every row */
    float *const *out;     /* [m] */
    int32_t m;
    bool round; /* to bf16 */
} cpu_product;
/* All of them, in one fork. */
void cpu_products(di_stream *s, const cpu_product *products, int32_t n);
/* Whether a member's acc has room for m rows. */
static inline bool cpu_rows_fit(const di_stream *s, int32_t m) {
    return m <= s->limits.max_rows || m <= s->limits.max_out;
}
/* Approximate cost of a product in cpu_parallel's units. */
int64_t cpu_product_work(const di_matrix *w, int64_t n, int64_t m);

/* Pointers to rows at base + r * stride, from the workspace. */
float **cpu_rows(di_stream *s, float *base, int64_t stride, int32_t m);
/* Values of a product's input row, with filling. */
static inline int64_t cpu_input_width(di_dtype dtype, int64_t k) {
    return dtype == DI_FP4_PAIR ? (k + 63) / 64 * 64 : (k + 7) / 8 * 8;
}
/* Rows that products with matrices like w may read: x itself, or a copy that is quantised (release
 * and `quantize`), padded or in FP4 order. x is [m][groups * k]; group g starts at
 * g * cpu_input_width. */
const float *const *cpu_inputs(di_stream *s, const float *x, int32_t m, int32_t groups,
                               const di_matrix *w, bool quantize);
/* out[r] = [a](w x[r]) for one matrix */
void cpu_product_rows(di_stream *s, const di_matrix *w, const float *const *x, float *out,
                      int32_t m, bool round);

/* Stops the program: an operation was called with more than prepare() was told of. */
_Noreturn void cpu_broken(const char *condition, const char *file, int line);
#define CPU_REQUIRE(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) cpu_broken(#condition, __FILE__, __LINE__);                              \
    } while (0)

/* ---- cpu_rows.c: small parts shared by operations ---- */

/* v as floats: the stored one when it is F32 and aligned, else a copy in the workspace. */
const float *cpu_vector(di_stream *s, di_vector v);
void cpu_norm_row(const di_stream *s, const float *x, const float *w, int64_t n, double eps,
                  float *out);
/* cos and sin of one position: angles[0 .. dims / 2 - 1] cos, then sin. */
void cpu_angles(di_rope rope, int32_t position, bool inverse, float *angles);
/* Rotates the last `dims` of one vector. */
void cpu_rotate(const di_stream *s, float *x, int32_t width, int32_t dims, const float *angles);

/* ---- cpu_select.c ---- */

/* Indices of the k best of n scores, ascending; ties go to the lower index, -inf and NaN are never
 * taken. Returns how many. keys: [n] scratch. */
int32_t cpu_best(const di_stream *s, const float *scores, int32_t n, int32_t k, uint32_t *keys,
                 int32_t *out);
/* Published blocks of one row (di_candidates_args). */
void cpu_candidate_blocks(const di_stream *s, cpu_scratch *scratch, const float *scores, int32_t n,
                          int32_t visible, int32_t top_blocks, int32_t block_size, int32_t *out);

/* ---- pages ---- */

/* Where entry j of a sequence lies. */
typedef struct cpu_entry {
    uint8_t *codes, *scales, *key_codes, *key_scales;
} cpu_entry;
static inline cpu_entry cpu_page_entry(const di_pages *p, int32_t slot, int64_t j) {
    const int32_t *table = (const int32_t *)cpu_at(p->table) + (int64_t)slot * p->table_stride;
    int bits = 6 - __builtin_ctz((unsigned)p->ratio); /* of a place: the ratio divides 64 */
    int64_t place = j & ((INT64_C(1) << bits) - 1);
    uint8_t *page = (uint8_t *)cpu_at(p->pool) + (uint64_t)table[j >> bits] * p->page_bytes;
    return (cpu_entry){page + p->codes + place * (p->d / 2), page + p->scales + place * (p->d / 16),
                       page + p->key_codes + place * (p->di / 2),
                       page + p->key_scales + place * (p->di / 32)};
}

/* The operations, one declaration each (cpu_ops_*.c). */
#define CPU_OP_DECLARE(name) void cpu_op_##name(di_stream *s, const di_##name##_args *args);
DI_EACH_OP(CPU_OP_DECLARE)
#undef CPU_OP_DECLARE

#endif
