/* What all families of twins use: workspace, stored weights, norms, quantised vectors, best-of. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/quantize.h"
#include "kernels/ref/ref.h"

_Noreturn void ref_broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: a twin was called wrongly: %s\n", file, line, condition);
    abort();
}

static void *take_bytes(di_stream *s, int64_t n, uint64_t size) {
    REF_REQUIRE(n >= 0);
    uint64_t bytes = ((uint64_t)n * size + 63) / 64 * 64;
    REF_REQUIRE(bytes <= s->work_bytes - s->work_used);
    void *memory = s->work + s->work_used;
    s->work_used += bytes;
    return memory;
}

double *ref_take(di_stream *s, int64_t n) { return take_bytes(s, n, sizeof(double)); }

int32_t *ref_take_ints(di_stream *s, int64_t n) { return take_bytes(s, n, sizeof(int32_t)); }

/* An upper bound over all operations; the largest takes of each stand in one line. */
uint64_t ref_workspace_bytes(const di_limits *m) {
    uint64_t rows = (uint64_t)(m->max_rows > m->max_out ? m->max_rows : m->max_out);
    uint64_t heads = (uint64_t)m->n_heads * (uint64_t)m->head_dim;
    uint64_t queries = (uint64_t)m->index_heads * (uint64_t)m->index_dim;
    uint64_t streams = (uint64_t)m->hc * (uint64_t)m->width;
    uint64_t k = (uint64_t)m->max_k;
    if (k < heads) k = heads;
    if (k < streams) k = streams;
    uint64_t experts = 3 * (uint64_t)m->width + 4 * (uint64_t)m->inner + 8;
    uint64_t attention = 5 * (uint64_t)m->head_dim + (uint64_t)m->q_rank + (uint64_t)m->o_low;
    uint64_t index = queries + 2 * (uint64_t)m->index_heads + 3 * (uint64_t)m->index_dim;
    uint64_t per_row =
        2 * k + experts + attention + index + (uint64_t)m->n_experts + DI_OPS_MAX_BLOCK + 2;
    uint64_t entries =
        4 * (uint64_t)m->max_entries + 4 * (uint64_t)m->top_blocks + 4 * (uint64_t)m->index_top_k;
    uint64_t once = 4 * k + 2 * heads + (REF_BLOCK + 8) * ((uint64_t)m->head_dim + 8) +
                    3 * (uint64_t)m->vocab + 4 * (uint64_t)m->n_experts + 4096;
    return 8 * (rows * per_row + entries + once) + 64 * 64;
}

double ref_value(const di_stream *s, const di_vector *v, int64_t i) {
    const uint8_t *data = ref_bytes(s, v->data);
    if (v->dtype == DI_BF16) {
        uint16_t word;
        memcpy(&word, data + 2 * i, 2);
        return (double)di_bf16_decode(word);
    }
    REF_REQUIRE(v->dtype == DI_F32);
    float value;
    memcpy(&value, data + 4 * i, 4);
    return (double)value;
}

void ref_matrix_row(const di_stream *s, const di_matrix *m, int64_t n, double *out) {
    REF_REQUIRE(n >= 0 && n < m->n);
    int64_t k = m->k;
    const uint8_t *data = ref_bytes(s, m->data), *scale = ref_bytes(s, m->scale);
    if (m->dtype == DI_F32 || m->dtype == DI_BF16) {
        di_vector row = {m->dtype, m->k,
                         di_ptr_at(m->data, (uint64_t)(n * k) * di_dtype_bytes(m->dtype))};
        for (int64_t i = 0; i < k; i++) out[i] = ref_value(s, &row, i);
    } else if (m->dtype == DI_F8_E4M3) { /* tiles of 32x32 */
        scale += n / 32 * ((k + 31) / 32);
        for (int64_t i = 0; i < k; i++) {
            out[i] =
                (double)di_e4m3_decode(data[n * k + i]) * (double)di_e8m0_decode(scale[i / 32]);
        }
    } else { /* rows of 32 */
        REF_REQUIRE(m->dtype == DI_FP4_PAIR && k % 32 == 0);
        ref_dequantize_vector(DI_Q4I, data + n * (k / 2), scale + n * (k / 32), k, out);
    }
}

double ref_sigmoid(double x) {
    double e = exp(-fabs(x));
    return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

double ref_mean_square(const double *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sum / (double)n;
}

void ref_norm_row(const di_stream *s, const double *x, int64_t n, double eps,
                  const di_vector *weight, double *out) {
    REF_REQUIRE(weight->n == n);
    double root = sqrt(ref_mean_square(x, n) + eps);
    for (int64_t i = 0; i < n; i++) out[i] = ref_a(s, x[i] / root * ref_value(s, weight, i));
}

void ref_quantize_vector(const di_stream *s, di_quantizer kind, const double *x, int64_t width,
                         uint8_t *codes, uint8_t *scales) {
    int block = kind == DI_Q4C ? DI_Q4C_BLOCK : DI_Q8_BLOCK;
    REF_REQUIRE(width % block == 0);
    for (int64_t b = 0; b < width / block; b++) {
        float values[DI_Q8_BLOCK]; /* quantisers look at float32 */
        for (int i = 0; i < block; i++) values[i] = (float)x[b * block + i];
        if (kind == DI_Q8) {
            scales[b] = di_quantize_q8(values, codes + b * block);
        } else if (kind == DI_Q4I) {
            scales[b] = di_quantize_q4i(values, codes + b * block / 2);
        } else {
            scales[b] = di_quantize_q4c(values, codes + b * block / 2);
        }
    }
    if (s->rounded) s->rounded(s->rounded_user, kind, x, width, codes, scales);
}

void ref_dequantize_vector(di_quantizer kind, const uint8_t *codes, const uint8_t *scales,
                           int64_t width, double *out) {
    for (int64_t i = 0; i < width; i++) {
        if (kind == DI_Q8) {
            out[i] = (double)di_e4m3_decode(codes[i]) * (double)di_e8m0_decode(scales[i / 32]);
        } else {
            double q = (double)di_e2m1_decode((uint8_t)(codes[i / 2] >> (i % 2 ? 4 : 0)));
            out[i] = q * (double)(kind == DI_Q4I ? di_e8m0_decode(scales[i / 32])
                                                 : di_e4m3_decode(scales[i / 16]));
        }
    }
}

int32_t ref_best(const double *x, int32_t n, int32_t k, bool all, double *best, int32_t *out) {
    int32_t count = 0; /* best[0..count) descending; equal values in the order of their index */
    for (int32_t i = 0; i < n; i++) {
        double value = isnan(x[i]) ? -INFINITY : x[i];
        if (!all && !(value > -INFINITY)) continue;
        int32_t at = count;
        while (at > 0 && value > best[at - 1]) at--;
        if (at >= k) continue;
        int32_t last = count < k ? count++ : k - 1;
        memmove(best + at + 1, best + at, (size_t)(last - at) * sizeof *best);
        memmove(out + at + 1, out + at, (size_t)(last - at) * sizeof *out);
        best[at] = value;
        out[at] = i;
    }
    return count;
}

void ref_sort_ascending(int32_t *x, int32_t n) { /* insertion: lists are short or nearly sorted */
    for (int32_t i = 1; i < n; i++) {
        int32_t value = x[i], at = i;
        for (; at > 0 && x[at - 1] > value; at--) x[at] = x[at - 1];
        x[at] = value;
    }
}

ref_entry ref_page_entry(const di_stream *s, const di_pages *pages, int32_t slot, int64_t entry) {
    int64_t per_page = 64 / pages->ratio, page = entry / per_page, place = entry % per_page;
    REF_REQUIRE(page < pages->table_stride);
    int32_t number = ref_ints(s, pages->table)[(int64_t)slot * pages->table_stride + page];
    REF_REQUIRE(number >= 0);
    uint8_t *base = ref_bytes(s, pages->pool) + (uint64_t)number * pages->page_bytes;
    return (ref_entry){
        base + pages->codes + place * (pages->d / 2),
        base + pages->scales + place * (pages->d / 16),
        base + pages->key_codes + place * (pages->di / 2),
        base + pages->key_scales + place * (pages->di / 32),
    };
}
