/* kernelcheck: holds a backend to the scalar twins, operation by operation, and times it.
 *
 * Every case runs on both sides with the same inputs: side 0 is the twin, side 1 the backend under
 * test. A case builds pairs of device pointers, runs with KC_RUN and compares. In bench mode the
 * same functions run one large shape and KC_RUN measures.
 */
#ifndef DI_TESTS_KERNELCHECK_H
#define DI_TESTS_KERNELCHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "support/device.h"

typedef struct kc_pair {
    di_ptr p[2];
} kc_pair;
typedef struct kc_matrix {
    di_matrix m[2];
} kc_matrix;
typedef struct kc_vector {
    di_vector v[2];
} kc_vector;
typedef struct kc_batch {
    di_batch b[2];
} kc_batch;

typedef struct check {
    device dev[2];
    bool release, bench;
    bool far;     /* scales of FP8 and FP4 weights about those that CUDA calls far, and beyond */
    bool one_nan; /* the next of them have one scale that is NaN, and the rows that it is in are */
    uint64_t random;
    int round; /* number of the case, from 0: cases vary with it */
    const char *op;

    int64_t values, equal, failures; /* A values compared under `release`, equal ones; complaints */
    int64_t rows, tipped;            /* rows of composed operations under `release` */
    int64_t codes, codes_off;        /* bytes that come from values which are only close */
    double worst;                    /* largest error, as a share of the bound */
    double cancel; /* `release`: what may be off where terms cancel, of the row\'s largest value */

    int32_t rotated; /* values at a row's end that are rounded, rotated in pairs, rounded again */

    double seconds[2], bytes, flops; /* bench: of one call */
    double began, call_began, best;
} check;

/* ---- Running ---- */

void kc_start(check *c, const char *op);
bool kc_again(check *c, const char *op, int side);

/* Runs one operation on both sides; `i` is the side inside the arguments. */
#define KC_RUN(c, name, ...) KC_RUN_WITH(c, name, ((di_##name##_args){__VA_ARGS__}))
/* The same, with the arguments as one value. */
#define KC_RUN_WITH(c, name, value)                                                                \
    for (int i = 0; i < 2; i++) {                                                                  \
        const di_##name##_args kc_args_ = value;                                                   \
        kc_start(c, #name);                                                                        \
        do {                                                                                       \
            (c)->dev[i].backend->ops->name((c)->dev[i].backend->stream, &kc_args_);                \
        } while (kc_again(c, #name, i));                                                           \
    }

/* Frees the case's memory and checks the bytes around it. */
void kc_end_case(check *c);
/* Bytes and floating-point operations of one call, for the report. */
void kc_work(check *c, double bytes, double flops);

/* ---- Random inputs ---- */

uint64_t kc_bits(check *c);
double kc_uniform(check *c);
float kc_normal(check *c);
/* lo..hi, both possible; `big` in bench mode. */
int32_t kc_pick(check *c, int32_t lo, int32_t hi, int32_t big);
/* The same for a multiple of `step`. */
int32_t kc_pick_step(check *c, int32_t lo, int32_t hi, int32_t step, int32_t big);

/* Some rounds have rows for the widest tiles, of 128 columns, and for several of them; the others at most
 * `most`. */
enum { KC_MANY_ROWS = 300, KC_MOST_ROWS = 2200 /* of any round */ };
enum { KC_CROWD_ROWS = 320, KC_MOST_HEADS = 130 }; /* of attention, which has no more rows */
bool kc_has_many(const check *c);
int32_t kc_some_rows(check *c, int32_t most);

typedef enum kc_style { KC_NORMAL, KC_OUTLIERS, KC_TINY, KC_ZEROS, KC_HUGE, KC_N_STYLES } kc_style;
/* One after the other with the rounds. */
kc_style kc_style_of(const check *c);
/* n values times scale; on A's grid when `release` and `a`. The caller frees. */
float *kc_values(check *c, int64_t n, kc_style style, double scale, bool a);

kc_pair kc_put(check *c, const void *host, uint64_t size);
kc_pair kc_ints(check *c, const int32_t *values, int64_t n);
kc_pair kc_random_a(check *c, int64_t n, kc_style style, double scale);
kc_pair kc_random_f(check *c, int64_t n, double scale);
kc_pair kc_uniform_f(check *c, int64_t n, double low, double high);
kc_pair kc_take(check *c, uint64_t size);
kc_pair kc_take_a(check *c, int64_t n);
kc_pair kc_take_f(check *c, int64_t n);
kc_pair kc_at(kc_pair p, uint64_t bytes);
kc_pair kc_at_a(const check *c, kc_pair p, int64_t n);
kc_pair kc_at_f(const check *c, kc_pair p, int64_t n);

/* Weights lie unaligned in every other round, but where they are packed. Values of about `scale`.
 * Matrices for products, the second for products of so many groups; tables, whose rows are read. */
kc_matrix kc_weights(check *c, di_dtype dtype, int32_t n, int32_t k, double scale);
kc_matrix kc_grouped_weights(check *c, di_dtype dtype, int32_t groups, int32_t n, int32_t k,
                             double scale);
kc_matrix kc_table(check *c, di_dtype dtype, int32_t n, int32_t k, double scale);
kc_vector kc_weight_vector(check *c, di_dtype dtype, int32_t n, double middle, double spread);
/* Bytes that decode to normal values: E4M3 with E8M0 per 32, or E2M1 pairs with either scale. */
void kc_quantized(check *c, di_quantizer kind, int64_t n, uint8_t *codes, uint8_t *scales);
kc_pair kc_frequencies(check *c, int32_t dims);

/* Rows of several slots: n_rows[s] rows after length[s] tokens, of which valid[s] are live. */
kc_batch kc_rows(check *c, int32_t n_slots, const int32_t *length, const int32_t *n_rows,
                 const int32_t *valid, int32_t vocab);
/* A few slots with random lengths up to max_length and some dead rows; rows in all at most 40. */
typedef struct kc_layout {
    int32_t n_slots, length[4], n_rows[4], valid[4], total;
} kc_layout;
kc_layout kc_random_layout(check *c, int32_t max_length, int32_t bench_length);
/* Position of a row, -1 when dead. */
int32_t kc_position(const kc_layout *layout, int32_t row, int32_t *slot);

/* Rows that only go into windows: most before the ends of their slots, in any order, those of several
 * slots between each other, some dead; no two of a slot take the same place of a ring of ring_slots. */
typedef struct kc_scatter {
    kc_layout layout;    /* slots and lengths; rows: how many each has */
    int32_t n, live[64]; /* positions of the rows, -1 when dead */
    di_row rows[64];
    kc_batch batch;
} kc_scatter;
kc_scatter kc_random_scatter(check *c, int32_t max_length, int32_t ring_slots, int32_t vocab);

/* ---- Comparing ---- */

/* Rows [n_rows][width] of A. Rows with live[t] < 0 (host positions; NULL: all live) are left out.
 */
void kc_compare_a(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                  double bound, const int32_t *live);
/* The same for operations with a quantiser or a selection inside: under `release` a tipped rounding
 * there moves a whole row, so some rows may be off by up to 15 % of their largest value. */
void kc_compare_a_tipped(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                         double bound, const int32_t *live);
void kc_compare_f(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                  double bound, const int32_t *live);
void kc_compare_bytes(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                      const int32_t *live);
/* Bytes of which a share may differ, all rounds pooled, because they come from values that are only
 * close. */
void kc_compare_codes(check *c, kc_pair p, int64_t n_rows, int64_t width, const int32_t *live);
/* The same for n bytes of memory of which the operation writes some: only those count. */
void kc_compare_written(check *c, kc_pair p, kc_pair before, int64_t n);
/* The backend's bits alone: a and b must be the same. */
void kc_same(check *c, const char *what, kc_pair a, kc_pair b, uint64_t bytes);
void kc_same_a(check *c, const char *what, kc_pair a, kc_pair b, int64_t n);
void kc_same_f(check *c, const char *what, kc_pair a, kc_pair b, int64_t n);
void kc_fail(check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- The checks, one an operation ---- */

#define KC_DECLARE(name) void kc_check_##name(check *c);
DI_EACH_OP(KC_DECLARE)
#undef KC_DECLARE

/* What this machine can do, for the report: GB/s of reading memory, GFLOP/s of float FMA. */
void kc_machine(int32_t n_threads, double *gb_per_s, double *gflop_per_s);
double kc_now(void); /* seconds */

#endif
