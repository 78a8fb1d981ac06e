/* Twins: products with stored matrices. */
#include "kernels/ref/ref.h"

const double *ref_product_input(di_stream *s, const double *x, int64_t n_rows, int64_t width,
                                bool quantize) {
    if (!quantize || s->numerics != DI_NUMERICS_RELEASE) return x;
    REF_REQUIRE(width % 32 == 0);
    double *out = ref_take(s, n_rows * width);
    for (int64_t b = 0; b < n_rows * width / 32; b++) {
        uint8_t codes[32], scale;
        ref_quantize_vector(s, DI_Q8, x + b * 32, 32, codes, &scale);
        ref_dequantize_vector(DI_Q8, codes, &scale, 32, out + b * 32);
    }
    return out;
}

static double dot(const double *x, const double *w, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < k; i++) sum += x[i] * w[i];
    return sum;
}

/* The release's order: 32 products of codes are exact, and float32 adds them in increasing K. */
static double dot_by_blocks(const double *x, const double *w, int64_t k) {
    float sum = 0;
    for (int64_t i = 0; i < k; i += 32) sum += (float)dot(x + i, w + i, k - i < 32 ? k - i : 32);
    return (double)sum;
}

void ref_product(di_stream *s, const di_matrix *w, const double *x, const ref_product_shape *shape,
                 double *out) {
    uint64_t used = s->work_used;
    double *row = ref_take(s, w->k);
    for (int64_t n = 0; n < shape->n; n++) {
        ref_matrix_row(s, w, shape->first + n, row);
        for (int64_t t = 0; t < shape->n_rows; t++) {
            const double *in = x + t * shape->x_stride;
            double y = shape->blocks ? dot_by_blocks(in, row, w->k) : dot(in, row, w->k);
            out[t * shape->out_stride + n] = shape->to_f ? ref_f(s, y) : ref_a(s, y);
        }
    }
    s->work_used = used;
}

void ref_linear_rows(di_stream *s, const di_matrix *w, const double *x, int64_t n_rows,
                     bool quantize, bool to_f, double *out) {
    uint64_t used = s->work_used;
    bool blocks = quantize && s->numerics == DI_NUMERICS_RELEASE;
    const double *in = ref_product_input(s, x, n_rows, w->k, quantize);
    ref_product(s, w, in, &(ref_product_shape){n_rows, w->k, w->n, 0, w->n, blocks, to_f}, out);
    s->work_used = used;
}

void ref_linear_groups(di_stream *s, const di_matrix *w, int32_t groups, const double *x,
                       int64_t n_rows, bool quantize, bool to_f, double *out) {
    uint64_t used = s->work_used;
    int64_t k = w->k, n = w->n / groups;
    bool blocks = quantize && s->numerics == DI_NUMERICS_RELEASE;
    REF_REQUIRE(w->n % groups == 0);
    const double *in = ref_product_input(s, x, n_rows, groups * k, quantize);
    for (int64_t g = 0; g < groups; g++) {
        ref_product_shape shape = {n_rows, groups * k, w->n, g * n, n, blocks, to_f};
        ref_product(s, w, in + g * k, &shape, out + g * n);
    }
    s->work_used = used;
}

void ref_linear(di_stream *s, const di_linear_args *args) {
    ref_begin(s);
    ref_linear_groups(s, &args->w, args->groups > 1 ? args->groups : 1, ref_doubles(s, args->x),
                      args->n_rows, args->quantize, args->to_f, ref_doubles(s, args->out));
}

void ref_rms_norm(di_stream *s, const di_rms_norm_args *args) {
    int64_t width = args->width;
    for (int64_t t = 0; t < args->n_rows; t++) {
        ref_norm_row(s, ref_doubles(s, args->x) + t * width, width, args->eps, &args->weight,
                     ref_doubles(s, args->out) + t * width);
    }
}

void ref_quantize(di_stream *s, const di_quantize_args *args) {
    int64_t width = args->width, code_bytes = args->kind == DI_Q8 ? width : width / 2;
    int64_t scale_bytes = width / (args->kind == DI_Q4C ? 16 : 32);
    for (int64_t t = 0; t < args->n_rows; t++) {
        ref_quantize_vector(s, args->kind, ref_doubles(s, args->x) + t * width, width,
                            ref_bytes(s, args->codes) + t * code_bytes,
                            ref_bytes(s, args->scales) + t * scale_bytes);
    }
}

void ref_to_f32(di_stream *s, const di_to_f32_args *args) {
    const double *src = ref_doubles(s, args->src); /* A and F are double alike */
    float *out = ref_at(s, args->out);
    for (int64_t i = 0; i < args->n; i++) out[i] = (float)src[i];
}
