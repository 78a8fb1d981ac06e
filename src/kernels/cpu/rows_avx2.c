/* Loops over one row with AVX2: norms, streams, gates, sums of exponentials. */
#include "kernels/cpu/simd_avx2.h"

static void round_bf16(float *x, int64_t n) {
    for (int64_t i = 0; i < n; i += 8) store_n(x + i, n - i, to_bf16(load_n(x + i, n - i)));
}

static void bf16_to_f32(const void *in, float *out, int64_t n) {
    const uint8_t *at = in;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(at + 2 * i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < n; i++) {
        uint16_t word;
        memcpy(&word, at + 2 * i, 2);
        uint32_t bits = (uint32_t)word << 16;
        memcpy(out + i, &bits, 4);
    }
}

/* 32 lanes over the row, then one fixed reduction. */
static float sum_squares(const float *x, int64_t n) {
    __m256 a[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                   _mm256_setzero_ps()};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; j++) {
            __m256 v = _mm256_loadu_ps(x + i + 8 * j);
            a[j] = _mm256_fmadd_ps(v, v, a[j]);
        }
    for (; i < n; i += 8) {
        __m256 v = load_n(x + i, n - i);
        a[0] = _mm256_fmadd_ps(v, v, a[0]);
    }
    return reduce1(_mm256_add_ps(_mm256_add_ps(a[0], a[1]), _mm256_add_ps(a[2], a[3])));
}

static void scale_norm(const float *x, const float *w, float inverse, int64_t n, bool round,
                       float *out) {
    __m256 s = _mm256_set1_ps(inverse);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_mul_ps(load_n(w + i, n - i), _mm256_mul_ps(load_n(x + i, n - i), s));
        store_n(out + i, n - i, to_a(v, round));
    }
}

static void collapse(const float *streams, const float *c, int32_t hc, int64_t width, int64_t begin,
                     int64_t end, bool round, float *out) {
    for (int64_t i = begin; i < end; i += 8) {
        __m256 sum = _mm256_mul_ps(_mm256_set1_ps(c[0]), load_n(streams + i, end - i));
        for (int32_t j = 1; j < hc; j++)
            sum = _mm256_fmadd_ps(_mm256_set1_ps(c[j]), load_n(streams + j * width + i, end - i),
                                  sum);
        store_n(out + i, end - i, to_a(sum, round));
    }
}

/* Four streams, the release's number, in registers. */
static void expand4(float *streams, const float *y, const float *post, const float *comb,
                    int64_t width, int64_t begin, int64_t end, bool round) {
    for (int64_t i = begin; i < end; i += 8) {
        int64_t n = end - i;
        __m256 in[4], v = load_n(y + i, n);
        for (int j = 0; j < 4; j++) in[j] = load_n(streams + j * width + i, n);
        for (int k = 0; k < 4; k++) {
            __m256 sum = _mm256_mul_ps(_mm256_set1_ps(post[k]), v);
            for (int j = 0; j < 4; j++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(comb[4 * j + k]), in[j], sum);
            store_n(streams + k * width + i, n, to_a(sum, round));
        }
    }
}

static void expand(float *streams, const float *y, const float *post, const float *comb, int32_t hc,
                   int64_t width, int64_t begin, int64_t end, bool round) {
    if (hc == 4) {
        expand4(streams, y, post, comb, width, begin, end, round);
        return;
    }
    __m256 in[DI_OPS_MAX_HC];
    for (int64_t i = begin; i < end; i += 8) {
        int64_t n = end - i;
        for (int32_t j = 0; j < hc; j++) in[j] = load_n(streams + j * width + i, n);
        for (int32_t k = 0; k < hc; k++) {
            __m256 sum = _mm256_mul_ps(_mm256_set1_ps(post[k]), load_n(y + i, n));
            for (int32_t j = 0; j < hc; j++)
                sum = _mm256_fmadd_ps(_mm256_set1_ps(comb[hc * j + k]), in[j], sum);
            store_n(streams + k * width + i, n, to_a(sum, round));
        }
    }
}

static float gate_dot(const float *h, const float *q, const float *k, const float *key, int64_t n) {
    __m256 a = _mm256_setzero_ps(), b = a;
    for (int64_t i = 0; i < n; i += 16) {
        __m256 w = _mm256_mul_ps(load_n(q + i, n - i), load_n(k + i, n - i));
        a = _mm256_fmadd_ps(_mm256_mul_ps(load_n(h + i, n - i), w), load_n(key + i, n - i), a);
        int64_t i2 = i + 8, left = n - i2;
        if (left <= 0) break;
        w = _mm256_mul_ps(load_n(q + i2, left), load_n(k + i2, left));
        b = _mm256_fmadd_ps(_mm256_mul_ps(load_n(h + i2, left), w), load_n(key + i2, left), b);
    }
    return reduce1(_mm256_add_ps(a, b));
}

static void add_scaled(float *h, float gate, const float *value, int64_t n, bool round) {
    __m256 g = _mm256_set1_ps(gate);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_fmadd_ps(g, load_n(value + i, n - i), load_n(h + i, n - i));
        store_n(h + i, n - i, to_a(v, round));
    }
}

static void swiglu(const float *g, const float *u, float weight, float limit, int64_t n, bool round,
                   float *out) {
    __m256 top = _mm256_set1_ps(limit > 0 ? limit : INFINITY), one = _mm256_set1_ps(1.0f);
    __m256 bottom = _mm256_sub_ps(_mm256_setzero_ps(), top), w = _mm256_set1_ps(weight);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 a = _mm256_min_ps(to_a(load_n(g + i, n - i), round), top);
        __m256 b = to_a(load_n(u + i, n - i), round);
        b = _mm256_min_ps(_mm256_max_ps(b, bottom), top);
        __m256 e = exp8(_mm256_sub_ps(_mm256_setzero_ps(), a));
        __m256 silu = _mm256_div_ps(a, _mm256_add_ps(one, e));
        store_n(out + i, n - i, to_a(_mm256_mul_ps(_mm256_mul_ps(w, silu), b), round));
    }
}

static void combine(const float *rows, const float *shared, int32_t k, int64_t width, int64_t begin,
                    int64_t end, bool round, float *out) {
    for (int64_t i = begin; i < end; i += 8) {
        __m256 sum = _mm256_setzero_ps();
        for (int32_t j = 0; j < k; j++)
            sum = _mm256_add_ps(sum, load_n(rows + j * width + i, end - i));
        sum = _mm256_add_ps(sum, load_n(shared + i, end - i));
        store_n(out + i, end - i, to_a(sum, round));
    }
}

static void pool(const float *const *c, const float *const *g, int32_t ratio, int64_t n, bool round,
                 float *out) {
    for (int64_t i = 0; i < n; i += 8) {
        __m256 top = load_n(g[0] + i, n - i);
        for (int32_t j = 1; j < ratio; j++) top = _mm256_max_ps(top, load_n(g[j] + i, n - i));
        __m256 sum = _mm256_setzero_ps(), total = sum;
        for (int32_t j = 0; j < ratio; j++) {
            __m256 p = exp8(_mm256_sub_ps(load_n(g[j] + i, n - i), top));
            total = _mm256_add_ps(total, p);
            sum = _mm256_fmadd_ps(p, load_n(c[j] + i, n - i), sum);
        }
        store_n(out + i, n - i, to_a(_mm256_div_ps(sum, total), round));
    }
}

/* Two 4 x 4 matrices, one in each half. */
CPU_INLINE void transpose4(__m256 r[4]) {
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1]));
    __m256d b = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    __m256d c = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1]));
    __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    r[0] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
    r[1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    r[2] = _mm256_castpd_ps(_mm256_unpacklo_pd(c, d));
    r[3] = _mm256_castpd_ps(_mm256_unpackhi_pd(c, d));
}

/* Sinkhorn of 4 x 4: normalising the rows is normalising the columns of the transpose, and sums
 * down columns need no shuffles. A chain of waits, so two matrices go side by side. */
static void comb4(float *comb, int64_t n, int32_t iters, float eps) {
    const __m256 small = _mm256_set1_ps(eps), one = _mm256_set1_ps(1.0f);
    for (int64_t t = 0; t < n; t += 2) {
        float *first = comb + 16 * t, *second = t + 1 < n ? first + 16 : first;
        __m256 r[4];
        for (int i = 0; i < 4; i++)
            r[i] = _mm256_set_m128(_mm_loadu_ps(second + 4 * i), _mm_loadu_ps(first + 4 * i));
        transpose4(r);
        __m256 top = _mm256_max_ps(_mm256_max_ps(r[0], r[1]), _mm256_max_ps(r[2], r[3]));
        for (int i = 0; i < 4; i++) r[i] = exp8(_mm256_sub_ps(r[i], top));
        for (int32_t step = 0; step < 2 * iters; step++) {
            __m256 sum = _mm256_add_ps(_mm256_add_ps(r[0], r[1]), _mm256_add_ps(r[2], r[3]));
            if (step > 0) sum = _mm256_add_ps(sum, small);
            __m256 share = _mm256_div_ps(one, sum);
            for (int i = 0; i < 4; i++) {
                r[i] = _mm256_mul_ps(r[i], share);
                if (step == 0) r[i] = _mm256_add_ps(r[i], small);
            }
            transpose4(r);
        }
        transpose4(r); /* an even number of steps ends transposed */
        for (int i = 0; i < 4; i++) {
            _mm_storeu_ps(second + 4 * i, _mm256_extractf128_ps(r[i], 1));
            _mm_storeu_ps(first + 4 * i, _mm256_castps256_ps128(r[i]));
        }
    }
}

static int32_t sort_keys(const float *scores, int64_t n, uint32_t *keys) {
    const __m256i top = _mm256_set1_epi32((int)0x80000000u);
    __m256i count = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_add_ps(load_n(scores + i, n - i), _mm256_setzero_ps()); /* -0 to 0 */
        __m256i bits = _mm256_castps_si256(v);
        /* negative: all bits turned; else the sign bit set */
        __m256i key = _mm256_xor_si256(bits, _mm256_or_si256(_mm256_srai_epi32(bits, 31), top));
        __m256 taken = _mm256_cmp_ps(v, _mm256_set1_ps(-INFINITY), _CMP_GT_OQ);
        __m256i valid = _mm256_castps_si256(taken);
        if (n - i < 8) valid = _mm256_and_si256(valid, tail_mask(n - i));
        count = _mm256_sub_epi32(count, valid);
        key = _mm256_and_si256(key, valid);
        if (n - i >= 8)
            _mm256_storeu_si256((__m256i *)(keys + i), key);
        else
            _mm256_maskstore_epi32((int *)(keys + i), tail_mask(n - i), key);
    }
    int32_t lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)lanes, count);
    for (int j = 0; j < 8; j++) sum += lanes[j];
    return sum;
}

static float max_of(const float *x, int64_t n, bool *bad) {
    __m256 top = _mm256_set1_ps(-INFINITY), nan = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        top = _mm256_max_ps(v, top);
    }
    float best = reduce_max(top);
    bool found = _mm256_movemask_ps(nan) != 0;
    for (; i < n; i++) {
        found = found || isnan(x[i]);
        if (x[i] > best) best = x[i];
    }
    *bad = found;
    return best;
}

static double sum_exp(const float *x, float top, int64_t n) {
    __m256d low = _mm256_setzero_pd(), high = low;
    __m256 t = _mm256_set1_ps(top);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 e = exp8(_mm256_sub_ps(load_n(x + i, n - i), t));
        if (n - i < 8) e = _mm256_and_ps(e, _mm256_castsi256_ps(tail_mask(n - i)));
        low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
        high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(low, high));
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

/* exp to the last bit or two: 2^n times the Taylor sum of degree 13 on |r| <= ln 2 / 2. */
static double sum_exp_double(const double *x, double top, int64_t n) {
    static const double inverse_factorials[12] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800,
                                                  1.0 / 3628800,    1.0 / 362880,    1.0 / 40320,
                                                  1.0 / 5040,       1.0 / 720,       1.0 / 120,
                                                  1.0 / 24,         1.0 / 6,         0.5};
    const __m256d least = _mm256_set1_pd(-55), one = _mm256_set1_pd(1);
    __m256d sum = _mm256_setzero_pd();
    for (int64_t i = 0; i < n; i += 4) {
        double rest[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        if (n - i < 4) memcpy(rest, x + i, (size_t)(n - i) * sizeof *rest);
        __m256d v = _mm256_sub_pd(_mm256_loadu_pd(n - i < 4 ? rest : x + i), _mm256_set1_pd(top));
        __m256d counts = _mm256_cmp_pd(v, least, _CMP_GT_OQ);
        if (_mm256_movemask_pd(counts) == 0) continue;
        v = _mm256_max_pd(v, least);
        __m256d k = _mm256_round_pd(_mm256_mul_pd(v, _mm256_set1_pd(1.4426950408889634)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m256d r = _mm256_fnmadd_pd(k, _mm256_set1_pd(0x1.62e42fefap-1), v);
        r = _mm256_fnmadd_pd(k, _mm256_set1_pd(0x1.cf79abc9e3b3ap-40), r);
        __m256d p = _mm256_set1_pd(inverse_factorials[0]);
        for (int j = 1; j < 12; j++)
            p = _mm256_fmadd_pd(p, r, _mm256_set1_pd(inverse_factorials[j]));
        p = _mm256_add_pd(_mm256_fmadd_pd(_mm256_mul_pd(p, r), r, r), one);
        __m256i power = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(k));
        power = _mm256_slli_epi64(_mm256_add_epi64(power, _mm256_set1_epi64x(1023)), 52);
        p = _mm256_mul_pd(p, _mm256_castsi256_pd(power));
        sum = _mm256_add_pd(sum, _mm256_and_pd(p, counts));
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, sum);
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

void cpu_rows_init_avx2(cpu_kernels *kernels) {
    kernels->round_bf16 = round_bf16;
    kernels->bf16_to_f32 = bf16_to_f32;
    kernels->sum_squares = sum_squares;
    kernels->scale_norm = scale_norm;
    kernels->collapse = collapse;
    kernels->expand = expand;
    kernels->gate_dot = gate_dot;
    kernels->add_scaled = add_scaled;
    kernels->swiglu = swiglu;
    kernels->combine = combine;
    kernels->pool = pool;
    kernels->comb4 = comb4;
    kernels->sort_keys = sort_keys;
    kernels->max = max_of;
    kernels->sum_exp = sum_exp;
    kernels->sum_exp_double = sum_exp_double;
}
