/* kernelcheck: random inputs, pairs of memory, comparisons. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernelcheck.h"
#include "kernels/quantize.h"

double kc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(int64_t n, size_t size) {
    void *p = calloc((size_t)(n > 0 ? n : 1), size);
    if (p == NULL) abort();
    return p;
}

void kc_fail(check *c, const char *format, ...) {
    if (c->failures++ >= 3) return; /* the first few say enough */
    va_list args;
    va_start(args, format);
    printf("  FAILED %s (%s, round %d): ", c->op, c->release ? "release" : "float", c->round);
    vprintf(format, args);
    printf("\n");
    va_end(args);
}

/* ---- Running ---- */

void kc_start(check *c, const char *op) {
    if (!c->bench || strcmp(op, c->op) != 0) return;
    c->began = c->call_began = kc_now();
    c->best = INFINITY;
}

/* The best of many calls: on a machine that others use as well, means say nothing. */
bool kc_again(check *c, const char *op, int side) {
    di_error error;
    if (!c->bench || strcmp(op, c->op) != 0) return false;
    if (di_backend_sync(c->dev[side].backend, &error) != DI_OK) abort();
    double now = kc_now();
    if (now - c->call_began < c->best) c->best = now - c->call_began;
    c->seconds[side] = c->best;
    c->call_began = kc_now();
    return now - c->began < (side == 0 ? 0.02 : 0.15);
}

void kc_end_case(check *c) {
    for (int i = 0; i < 2; i++) {
        if (device_reset(&c->dev[i]) > 0) {
            kc_fail(c, "%s wrote beside its outputs", c->dev[i].backend->name);
        }
    }
}

void kc_work(check *c, double bytes, double flops) {
    c->bytes = bytes;
    c->flops = flops;
}

/* ---- Random inputs ---- */

uint64_t kc_bits(check *c) { /* splitmix64 */
    uint64_t z = c->random += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double kc_uniform(check *c) { return (double)(kc_bits(c) >> 11) * 0x1p-53; }

float kc_normal(check *c) {
    double u = 1 - kc_uniform(c), v = kc_uniform(c);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

int32_t kc_pick(check *c, int32_t lo, int32_t hi, int32_t big) {
    if (c->bench) return big;
    return lo + (int32_t)(kc_bits(c) % (uint64_t)(hi - lo + 1));
}

bool kc_has_many(const check *c) { return !c->bench && c->round % 16 >= 12; }
int32_t kc_some_rows(check *c, int32_t most) {
    return kc_has_many(c) ? kc_pick(c, 65, KC_MANY_ROWS, 1) : kc_pick(c, 1, most, 1);
}

int32_t kc_pick_step(check *c, int32_t lo, int32_t hi, int32_t step, int32_t big) {
    return c->bench ? big : step * kc_pick(c, lo / step, hi / step, 0);
}

kc_style kc_style_of(const check *c) {
    return c->bench ? KC_NORMAL : (kc_style)(c->round % KC_N_STYLES);
}

float *kc_values(check *c, int64_t n, kc_style style, double scale, bool a) {
    float *x = memory(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        float value = kc_normal(c) * (float)scale;
        if (style == KC_OUTLIERS && kc_bits(c) % 50 == 0) value *= 300;
        if (style == KC_TINY) value *= i % 3 == 0 ? 1e-39f : 1e-20f;
        if (style == KC_ZEROS && kc_bits(c) % 4 != 0) value = i % 2 ? 0.0f : -0.0f;
        if (style == KC_HUGE) value *= 1e12f;
        x[i] = a && c->release ? di_bf16_round(value) : value;
    }
    return x;
}

kc_pair kc_put(check *c, const void *host, uint64_t size) {
    kc_pair p;
    for (int i = 0; i < 2; i++) p.p[i] = device_put(&c->dev[i], host, size);
    return p;
}

kc_pair kc_ints(check *c, const int32_t *values, int64_t n) {
    return kc_put(c, values, (uint64_t)n * 4);
}

kc_pair kc_random_a(check *c, int64_t n, kc_style style, double scale) {
    kc_pair p;
    float *x = kc_values(c, n, style, scale, true);
    for (int i = 0; i < 2; i++) p.p[i] = device_put_a(&c->dev[i], x, n);
    free(x);
    return p;
}

static kc_pair put_f(check *c, float *x, int64_t n) {
    kc_pair p;
    for (int i = 0; i < 2; i++) p.p[i] = device_put_f(&c->dev[i], x, n);
    free(x);
    return p;
}

kc_pair kc_random_f(check *c, int64_t n, double scale) {
    return put_f(c, kc_values(c, n, KC_NORMAL, scale, false), n);
}

kc_pair kc_uniform_f(check *c, int64_t n, double low, double high) {
    float *x = memory(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(low + (high - low) * kc_uniform(c));
    return put_f(c, x, n);
}

kc_pair kc_take(check *c, uint64_t size) {
    return (kc_pair){{device_take(&c->dev[0], size), device_take(&c->dev[1], size)}};
}
kc_pair kc_take_a(check *c, int64_t n) {
    return (kc_pair){{device_take_a(&c->dev[0], n), device_take_a(&c->dev[1], n)}};
}
kc_pair kc_take_f(check *c, int64_t n) {
    return (kc_pair){{device_take_f(&c->dev[0], n), device_take_f(&c->dev[1], n)}};
}

kc_pair kc_at(kc_pair p, uint64_t bytes) {
    return (kc_pair){{di_ptr_at(p.p[0], bytes), di_ptr_at(p.p[1], bytes)}};
}
kc_pair kc_at_a(const check *c, kc_pair p, int64_t n) {
    for (int i = 0; i < 2; i++) p.p[i].address += (uint64_t)n * c->dev[i].backend->a_bytes;
    return p;
}
kc_pair kc_at_f(const check *c, kc_pair p, int64_t n) {
    for (int i = 0; i < 2; i++) p.p[i].address += (uint64_t)n * c->dev[i].backend->f_bytes;
    return p;
}

/* ---- Weights ---- */

static uint64_t weight_shift(const check *c) { return c->bench ? 0 : (uint64_t)(c->round % 2 * 3); }

static kc_pair put_unaligned(check *c, const void *host, uint64_t size) {
    for (int i = 0; i < 2; i++) c->dev[i].shift = weight_shift(c);
    kc_pair p = kc_put(c, host, size);
    for (int i = 0; i < 2; i++) c->dev[i].shift = 0;
    return p;
}

static uint8_t *plain_values(check *c, di_dtype dtype, int64_t n, double middle, double spread) {
    uint64_t bytes = di_dtype_bytes(dtype);
    uint8_t *host = memory(n, bytes);
    for (int64_t i = 0; i < n; i++) {
        float value = (float)(middle + spread * (double)kc_normal(c));
        uint16_t half = di_bf16_encode(value);
        memcpy(host + (uint64_t)i * bytes, dtype == DI_BF16 ? (void *)&half : &value, bytes);
    }
    return host;
}

static uint8_t *random_codes(check *c, int64_t n, bool fp8) {
    uint8_t *codes = memory(n, 1);
    for (int64_t i = 0; i < n; i++) {
        codes[i] = (uint8_t)kc_bits(c);
        if (!fp8)
            continue; /* any code but NaN; below the normal ones seldom, or an eighth of them */
        if (!c->far || codes[i] % 8 != 0)
            codes[i] = di_e4m3_encode(kc_normal(c) * 64);
        else
            codes[i] = (uint8_t)(kc_bits(c) & 0x87);
    }
    return codes;
}

/* The least scale of which kernels/cuda/mma_weights.cuh (mma_far) takes two multiplications. */
static int least_far(bool fp8) { return fp8 ? 135 : 129; }

/* Far ones and others, so close to each other that the sums have both. Every third round they are
 * from afar, and some are the least. */
static uint8_t far_scale(check *c, bool fp8) {
    int bits = (int)(kc_bits(c) % 3072);
    if (c->round % 3 != 2 || kc_style_of(c) == KC_HUGE)
        return (uint8_t)(least_far(fp8) - 3 + bits % 6);
    return (uint8_t)(bits % 32 == 0 ? 0 : 110 + bits % 48);
}

static uint8_t *random_scales(check *c, int64_t n, bool fp8, double scale) {
    uint8_t *scales = memory(n, 1);
    int exponent = ilogb(scale);
    for (int64_t i = 0; i < n; i++) {
        scales[i] = (uint8_t)(127 + exponent - (fp8 ? 6 : 1) + (int)(kc_bits(c) % 3) - 1);
        if (c->far) scales[i] = far_scale(c, fp8);
    }
    if (c->one_nan) scales[kc_bits(c) % (uint64_t)n] = 255;
    c->one_nan = false;
    return scales;
}

/* groups 0: a table. */
static kc_matrix random_matrix(check *c, di_dtype dtype, int32_t n, int32_t k, int32_t groups,
                               double scale) {
    bool fp8 = dtype == DI_F8_E4M3;
    di_host_matrix host = {dtype, n, k, groups, NULL, NULL};
    uint8_t *data, *scales = NULL;
    kc_matrix m;
    if (fp8 || dtype == DI_FP4_PAIR) {
        data = random_codes(c, (int64_t)di_host_matrix_bytes(&host), fp8);
        scales = random_scales(c, (int64_t)di_host_matrix_scale_bytes(&host), fp8, scale);
    } else {
        data = plain_values(c, dtype, (int64_t)n * k, 0, scale);
    }
    host.data = data, host.scale = scales;
    for (int i = 0; i < 2; i++) {
        device *dev = &c->dev[i];
        dev->shift = weight_shift(c);
        m.m[i] = groups > 0 ? device_matrix(dev, &host) : device_table(dev, &host);
        dev->shift = 0;
    }
    free(data);
    free(scales);
    return m;
}

kc_matrix kc_weights(check *c, di_dtype dtype, int32_t n, int32_t k, double scale) {
    return random_matrix(c, dtype, n, k, 1, scale);
}

kc_matrix kc_grouped_weights(check *c, di_dtype dtype, int32_t groups, int32_t n, int32_t k,
                             double scale) {
    return random_matrix(c, dtype, n, k, groups, scale);
}

kc_matrix kc_table(check *c, di_dtype dtype, int32_t n, int32_t k, double scale) {
    return random_matrix(c, dtype, n, k, 0, scale);
}

kc_vector kc_weight_vector(check *c, di_dtype dtype, int32_t n, double middle, double spread) {
    uint8_t *host = plain_values(c, dtype, n, middle, spread);
    kc_pair data = put_unaligned(c, host, (uint64_t)n * di_dtype_bytes(dtype));
    free(host);
    return (kc_vector){{{dtype, n, data.p[0]}, {dtype, n, data.p[1]}}};
}

void kc_quantized(check *c, di_quantizer kind, int64_t n, uint8_t *codes, uint8_t *scales) {
    int block = kind == DI_Q4C ? 16 : 32;
    for (int64_t b = 0; b < n / block; b++) {
        float x[32];
        for (int i = 0; i < block; i++) x[i] = kc_normal(c);
        if (kind == DI_Q8) scales[b] = di_quantize_q8(x, codes + b * block);
        if (kind == DI_Q4I) scales[b] = di_quantize_q4i(x, codes + b * block / 2);
        if (kind == DI_Q4C) scales[b] = di_quantize_q4c(x, codes + b * block / 2);
    }
}

kc_pair kc_frequencies(check *c, int32_t dims) {
    float freq[512];
    for (int32_t i = 0; i < dims / 2; i++) freq[i] = (float)pow(10000, -2.0 * i / dims);
    return put_unaligned(c, freq, (uint64_t)dims * 2);
}

/* ---- Batches ---- */

kc_layout kc_random_layout(check *c, int32_t max_length, int32_t bench_length) {
    kc_layout out = {.n_slots = kc_pick(c, 1, 4, 1)};
    for (int32_t s = 0; s < out.n_slots; s++) {
        out.length[s] =
            c->round % 3 == 0 && !c->bench ? 0 : kc_pick(c, 0, max_length, bench_length);
        out.n_rows[s] = kc_pick(c, s == 0, 10, 1); /* a slot may have no rows in a step */
        out.valid[s] = out.n_rows[s];
        if (!c->bench && kc_bits(c) % 3 == 0) out.valid[s] = kc_pick(c, 0, out.n_rows[s], 0);
        out.total += out.n_rows[s];
    }
    return out;
}

int32_t kc_position(const kc_layout *layout, int32_t row, int32_t *slot) {
    for (int32_t s = 0; s < layout->n_slots; s++) {
        if (row < layout->n_rows[s]) {
            *slot = s;
            return row < layout->valid[s] ? layout->length[s] + row : -1;
        }
        row -= layout->n_rows[s];
    }
    abort();
}

/* Rows and what they refer to; step_begin has run. */
static kc_batch begin_rows(check *c, int32_t n_slots, const int32_t *length, const int32_t *valid,
                           const int32_t *next, const di_row *rows, int32_t n) {
    kc_pair row = kc_put(c, rows, (uint64_t)n * sizeof *rows), len = kc_ints(c, length, n_slots);
    kc_pair live = kc_ints(c, valid, n_slots), token = kc_ints(c, next, n_slots);
    kc_pair pos = kc_take(c, (uint64_t)n * 4), first = kc_take(c, (uint64_t)n * 4);
    kc_pair ids = kc_take(c, (uint64_t)n * 4);
    kc_batch out;
    for (int i = 0; i < 2; i++) {
        out.b[i] = (di_batch){n,          n_slots,  row.p[i],   len.p[i], live.p[i],
                              token.p[i], pos.p[i], first.p[i], ids.p[i], DI_NONE};
    }
    KC_RUN(c, step_begin, out.b[i]);
    return out;
}

static int32_t any_id(check *c, int32_t vocab) { return (int32_t)(kc_bits(c) % (uint64_t)vocab); }

kc_batch kc_rows(check *c, int32_t n_slots, const int32_t *length, const int32_t *n_rows,
                 const int32_t *valid, int32_t vocab) {
    di_row rows[64];
    int32_t n = 0, next[4];
    for (int32_t s = 0; s < n_slots; s++) {
        next[s] = any_id(c, vocab);
        for (int32_t t = 0; t < n_rows[s]; t++) {
            int32_t token = any_id(c, vocab);
            rows[n++] = (di_row){t == 0 && kc_bits(c) % 2 ? DI_TOKEN_NEXT : token, s, t};
        }
    }
    return begin_rows(c, n_slots, length, valid, next, rows, n);
}

/* Consecutive positions of slot s, as many as a ring has places, from somewhere before its end. Where
 * the slot has fewer tokens than that, the first of them stand below 0. */
static void scatter_slot(check *c, kc_scatter *out, int32_t s, int32_t most) {
    int32_t n = kc_pick(c, s == 0, most, 0), offset = -kc_pick(c, 1, most + 3, 0);
    out->layout.n_rows[s] = n;
    for (int32_t t = 0; t < n; t++, offset++) {
        di_row row = {DI_TOKEN_NEXT, s, offset};
        if (kc_bits(c) % 5 == 0) row.offset = DI_OFFSET_DEAD;
        out->rows[out->n++] = row;
    }
}

kc_scatter kc_random_scatter(check *c, int32_t max_length, int32_t ring_slots, int32_t vocab) {
    kc_scatter out = {.layout.n_slots = kc_pick(c, 1, 4, 0)};
    int32_t valid[4], next[4], n_slots = out.layout.n_slots;
    for (int32_t s = 0; s < n_slots; s++) {
        next[s] = any_id(c, vocab);
        out.layout.length[s] = kc_pick(c, 0, kc_bits(c) % 3 == 0 ? 6 : max_length, 0);
        valid[s] = kc_bits(c) % 2 ? INT32_MAX : 1;
        scatter_slot(c, &out, s, ring_slots < 16 ? ring_slots : 16);
    }
    for (int32_t t = out.n - 1; t > 0; t--) {
        int32_t other = (int32_t)(kc_bits(c) % (uint64_t)(t + 1));
        di_row row = out.rows[t];
        out.rows[t] = out.rows[other];
        out.rows[other] = row;
    }
    for (int32_t t = 0; t < out.n; t++) {
        const di_row *row = &out.rows[t];
        int32_t pos = out.layout.length[row->slot] + row->offset;
        out.live[t] = row->offset < valid[row->slot] && pos >= 0 ? pos : -1;
    }
    out.batch = begin_rows(c, n_slots, out.layout.length, valid, next, out.rows, out.n);
    return out;
}

/* ---- Comparing ---- */

static void worse(check *c, double error, double bound) {
    if (error / bound > c->worst) c->worst = error / bound;
}

/* Both sides' rows as double; the caller frees out[0], which holds both. */
static void read_both(check *c, kc_pair p, int64_t n, bool f, double **out) {
    out[0] = memory(2 * n, sizeof(double));
    out[1] = out[0] + n;
    for (int i = 0; i < 2; i++) {
        (f ? device_get_f : device_get_a)(&c->dev[i], p.p[i], out[i], n);
    }
}

static double largest(const double *x, int64_t n) {
    double top = 0;
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i])) top = fmax(top, fabs(x[i]));
    }
    return top;
}

static int32_t order(double value) {
    int32_t word = di_bf16_encode((float)value);
    return word & 0x8000 ? -(word & 0x7FFF) : word;
}

/* Under `release` an A is a BF16 value and an F a float32, whatever type holds it. */
static bool rounded_a(double value) {
    return !isfinite(value) || (double)di_bf16_round((float)value) == value;
}
static bool rounded_f(double value) { return !isfinite(value) || (double)(float)value == value; }

/* NaN is right only where scales may be NaN; infinities must agree. */
static bool same_kind(const check *c, double want, double got) {
    if (c->far && isnan(want)) return isnan(got);
    return isfinite(want) ? isfinite(got) : want == got;
}

/* `release`: how far value d of a row of n may be off beside one step. Of a pair that is rotated both
 * values were rounded: a step of each is at most 2^-7 of it, so together 2^-7 of the pair's norm,
 * which rotation keeps; rounding what comes out adds a step of that. */
static double slack(const check *c, const double *want, int64_t d, int64_t n, double top) {
    double cancelled = c->cancel * top;
    if (d < n - c->rotated) return cancelled;
    int64_t even = d - (d - (n - c->rotated)) % 2;
    return fmax(cancelled, 0x1p-7 * (hypot(want[even], want[even + 1]) + fabs(want[d])));
}

/* One row by the strict rule; returns the first element that breaks it, or -1. */
static int64_t row_error(check *c, const double *want, const double *got, int64_t n, double bound,
                         bool count) {
    double top = largest(want, n), scale = bound * fmax(1, top);
    int64_t bad = -1;
    for (int64_t d = 0; d < n; d++) {
        double off = fabs(want[d] - got[d]);
        bool fine = same_kind(c, want[d], got[d]);
        if (fine && isfinite(want[d])) {
            if (c->release) {
                int32_t steps = abs(order(want[d]) - order(got[d]));
                if (count) c->values++, c->equal += steps == 0;
                fine = (steps <= 1 || off <= slack(c, want, d, n, top)) && rounded_a(got[d]);
            } else {
                if (count) worse(c, off, scale);
                fine = off <= scale;
            }
        }
        if (!fine && bad < 0) bad = d;
    }
    return bad;
}

void kc_compare_a(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                  double bound, const int32_t *live) {
    double *x[2];
    if (c->bench) return;
    read_both(c, p, n_rows * width, false, x);
    for (int64_t t = 0; t < n_rows; t++) {
        if (live != NULL && live[t] < 0) continue;
        const double *want = x[0] + t * width, *got = x[1] + t * width;
        int64_t bad = row_error(c, want, got, width, bound, true);
        if (bad >= 0) {
            kc_fail(c, "%s[%lld][%lld] = %.9g, the twin %.9g (%lld x %lld)", what, (long long)t,
                    (long long)bad, got[bad], want[bad], (long long)n_rows, (long long)width);
        }
    }
    free(x[0]);
}

void kc_compare_a_tipped(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                         double bound, const int32_t *live) {
    double *x[2];
    if (c->bench) return;
    read_both(c, p, n_rows * width, false, x);
    for (int64_t t = 0; t < n_rows; t++) {
        if (live != NULL && live[t] < 0) continue;
        const double *want = x[0] + t * width, *got = x[1] + t * width;
        double top = largest(want, width);
        int64_t bad = row_error(c, want, got, width, bound, false);
        c->rows++;
        if (bad < 0) {
            if (!c->release) row_error(c, want, got, width, bound, true);
            continue;
        }
        c->tipped++;
        for (int64_t d = 0; d < width; d++) {
            if (c->release && same_kind(c, want[d], got[d]) && rounded_a(got[d]) &&
                fabs(want[d] - got[d]) <= 0.15 * top) {
                continue;
            }
            kc_fail(c, "%s[%lld][%lld] = %.9g, the twin %.9g", what, (long long)t, (long long)d,
                    got[d], want[d]);
            break;
        }
    }
    free(x[0]);
}

void kc_compare_f(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                  double bound, const int32_t *live) {
    double *x[2];
    if (c->bench) return;
    read_both(c, p, n_rows * width, true, x);
    double top = largest(x[0], n_rows * width);
    for (int64_t i = 0; i < n_rows * width; i++) {
        if (live != NULL && live[i / width] < 0) continue;
        double row = largest(x[0] + i / width * width, width), off = fabs(x[0][i] - x[1][i]);
        double allowed = c->release ? 1e-5 * top : bound * fmax(1, row);
        bool fine = same_kind(c, x[0][i], x[1][i]) && (!c->release || rounded_f(x[1][i]));
        if (fine && (!isfinite(off) || off <= allowed)) {
            if (allowed > 0 && isfinite(off)) worse(c, off, allowed);
            continue;
        }
        kc_fail(c, "%s[%lld][%lld] = %.9g, the twin %.9g", what, (long long)(i / width),
                (long long)(i % width), x[1][i], x[0][i]);
    }
    free(x[0]);
}

/* Rows of bytes from both sides. */
static uint8_t *bytes_of(check *c, kc_pair p, int64_t n) {
    uint8_t *x = memory(2 * n, 1);
    for (int i = 0; i < 2; i++) device_get(&c->dev[i], p.p[i], x + i * n, (uint64_t)n);
    return x;
}

void kc_compare_bytes(check *c, const char *what, kc_pair p, int64_t n_rows, int64_t width,
                      const int32_t *live) {
    int64_t n = n_rows * width;
    if (c->bench) return;
    uint8_t *x = bytes_of(c, p, n);
    for (int64_t i = 0; i < n; i++) {
        if ((live != NULL && live[i / width] < 0) || x[i] == x[n + i]) continue;
        kc_fail(c, "%s[%lld] byte %lld = %d, the twin %d", what, (long long)(i / width),
                (long long)(i % width), x[n + i], x[i]);
    }
    free(x);
}

void kc_compare_codes(check *c, kc_pair p, int64_t n_rows, int64_t width, const int32_t *live) {
    int64_t n = n_rows * width;
    if (c->bench) return;
    uint8_t *x = bytes_of(c, p, n);
    for (int64_t i = 0; i < n; i++) {
        if (live != NULL && live[i / width] < 0) continue;
        c->codes++;
        c->codes_off += x[i] != x[n + i];
    }
    free(x);
}

void kc_compare_written(check *c, kc_pair p, kc_pair before, int64_t n) {
    if (c->bench) return;
    uint8_t *x = bytes_of(c, p, n), *old = bytes_of(c, before, n);
    for (int64_t i = 0; i < n; i++) {
        c->codes += x[i] != old[i] || x[n + i] != old[n + i];
        c->codes_off += x[i] != x[n + i];
    }
    free(x);
    free(old);
}

void kc_same(check *c, const char *what, kc_pair a, kc_pair b, uint64_t bytes) {
    if (c->bench) return;
    uint8_t *x = memory(2 * (int64_t)bytes, 1);
    device_get(&c->dev[1], a.p[1], x, bytes);
    device_get(&c->dev[1], b.p[1], x + bytes, bytes);
    for (uint64_t i = 0; i < bytes; i++) {
        if (x[i] == x[bytes + i]) continue;
        kc_fail(c, "%s: not the same bits with other rows in the step (byte %llu of %llu)", what,
                (unsigned long long)i, (unsigned long long)bytes);
        break;
    }
    free(x);
}

void kc_same_a(check *c, const char *what, kc_pair a, kc_pair b, int64_t n) {
    kc_same(c, what, a, b, (uint64_t)n * c->dev[1].backend->a_bytes);
}

void kc_same_f(check *c, const char *what, kc_pair a, kc_pair b, int64_t n) {
    kc_same(c, what, a, b, (uint64_t)n * c->dev[1].backend->f_bytes);
}
