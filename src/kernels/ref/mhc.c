/* Twins: hyper-connections (model.md 3.5): mixing coefficients, collapse, expand. */
#include <math.h>

#include "kernels/ref/ref.h"

static void normalise_rows(double *comb, int32_t hc, double eps) {
    for (int32_t i = 0; i < hc; i++) {
        double sum = 0;
        for (int32_t k = 0; k < hc; k++) sum += comb[i * hc + k];
        for (int32_t k = 0; k < hc; k++) comb[i * hc + k] /= sum + eps;
    }
}

static void normalise_columns(double *comb, int32_t hc, double eps) {
    for (int32_t k = 0; k < hc; k++) {
        double sum = 0;
        for (int32_t i = 0; i < hc; i++) sum += comb[i * hc + k];
        for (int32_t i = 0; i < hc; i++) comb[i * hc + k] /= sum + eps;
    }
}

/* Sinkhorn: a row softmax + eps, then columns, then (iters - 1) times rows and columns. */
static void sinkhorn(double *comb, int32_t hc, int32_t iters, double eps) {
    for (int32_t i = 0; i < hc; i++) {
        double *row = comb + i * hc, top = -INFINITY, sum = 0;
        for (int32_t k = 0; k < hc; k++) top = fmax(top, row[k]);
        for (int32_t k = 0; k < hc; k++) sum += row[k] = exp(row[k] - top);
        for (int32_t k = 0; k < hc; k++) row[k] = row[k] / sum + eps;
    }
    normalise_columns(comb, hc, eps);
    for (int32_t i = 1; i < iters; i++) {
        normalise_rows(comb, hc, eps);
        normalise_columns(comb, hc, eps);
    }
}

/* m [(2 + hc) hc] -> pre, post [hc], comb [hc][hc] of one row. */
static void coefficients(const di_stream *s, const di_mix_args *args, const double *m, double *pre,
                         double *post, double *comb) {
    int32_t hc = args->hc;
    double scale[3];
    for (int32_t i = 0; i < 3; i++) scale[i] = ref_value(s, &args->scale, i);
    for (int32_t j = 0; j < hc; j++) {
        double a = m[j] * scale[0] + ref_value(s, &args->base, j);
        double b = m[hc + j] * scale[1] + ref_value(s, &args->base, hc + j);
        pre[j] = ref_f(s, ref_sigmoid(a) + args->hc_eps);
        post[j] = ref_f(s, 2 * ref_sigmoid(b));
    }
    for (int32_t i = 0; i < hc * hc; i++) {
        comb[i] = m[2 * hc + i] * scale[2] + ref_value(s, &args->base, 2 * hc + i);
    }
    sinkhorn(comb, hc, args->iters, args->hc_eps);
    for (int32_t i = 0; i < hc * hc; i++) comb[i] = ref_f(s, comb[i]);
}

void ref_mix(di_stream *s, const di_mix_args *args) {
    ref_begin(s);
    int32_t hc = args->hc, n_mix = (2 + hc) * hc;
    int64_t width = (int64_t)hc * args->width;
    REF_REQUIRE(hc >= 1 && hc <= DI_OPS_MAX_HC && args->iters >= 1 && args->fn.n == n_mix);
    double *fn = ref_take(s, width), *m = ref_take(s, (int64_t)args->n_rows * n_mix);
    for (int32_t n = 0; n < n_mix; n++) {
        ref_matrix_row(s, &args->fn, n, fn);
        for (int64_t t = 0; t < args->n_rows; t++) {
            const double *v = ref_doubles(s, args->streams) + t * width;
            double dot = 0;
            for (int64_t d = 0; d < width; d++) dot += fn[d] * v[d];
            m[t * n_mix + n] = dot;
        }
    }
    for (int64_t t = 0; t < args->n_rows; t++) {
        const double *v = ref_doubles(s, args->streams) + t * width;
        double root = sqrt(ref_mean_square(v, width) + args->rms_eps);
        for (int32_t n = 0; n < n_mix; n++) m[t * n_mix + n] /= root;
        coefficients(s, args, m + t * n_mix, ref_doubles(s, args->pre) + t * hc,
                     ref_doubles(s, args->post) + t * hc, ref_doubles(s, args->comb) + t * hc * hc);
    }
}

void ref_collapse_row(const di_stream *s, const double *streams, const double *pre, int32_t hc,
                      int64_t width, double *out) {
    for (int64_t d = 0; d < width; d++) {
        double sum = 0;
        for (int32_t j = 0; j < hc; j++) sum += pre[j] * streams[j * width + d];
        out[d] = ref_a(s, sum);
    }
}

void ref_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    ref_begin(s);
    int64_t width = args->width;
    double *x = ref_take(s, width);
    for (int64_t t = 0; t < args->n_rows; t++) {
        ref_collapse_row(s, ref_doubles(s, args->streams) + t * args->hc * width,
                         ref_doubles(s, args->pre) + t * args->hc, args->hc, width, x);
        if (!ref_none(args->collapsed)) {
            memcpy(ref_doubles(s, args->collapsed) + t * width, x, (size_t)width * sizeof *x);
        }
        ref_norm_row(s, x, width, args->eps, &args->norm, ref_doubles(s, args->out) + t * width);
    }
}

void ref_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    int64_t width = args->width;
    int32_t hc = args->hc;
    REF_REQUIRE(hc >= 1 && hc <= DI_OPS_MAX_HC);
    for (int64_t t = 0; t < args->n_rows; t++) {
        double *streams = ref_doubles(s, args->streams) + t * hc * width;
        const double *y = ref_doubles(s, args->y) + t * width;
        const double *post = ref_doubles(s, args->post) + t * hc;
        const double *comb = ref_doubles(s, args->comb) + t * hc * hc;
        for (int64_t d = 0; d < width; d++) {
            double before[DI_OPS_MAX_HC];
            for (int32_t i = 0; i < hc; i++) before[i] = streams[i * width + d];
            for (int32_t k = 0; k < hc; k++) {
                double sum = 0;
                for (int32_t i = 0; i < hc; i++) sum += comb[i * hc + k] * before[i];
                streams[k * width + d] = ref_a(s, post[k] * y[d] + sum);
            }
        }
    }
}

void ref_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    int64_t width = args->width;
    for (int64_t t = 0; t < args->n_rows; t++) {
        const double *streams = ref_doubles(s, args->streams) + t * args->hc * width;
        double *out = ref_doubles(s, args->out) + t * args->out_stride;
        for (int64_t d = 0; d < width; d++) {
            double sum = 0;
            for (int32_t j = 0; j < args->hc; j++) sum += streams[j * width + d];
            out[d] = ref_a(s, sum / args->hc);
        }
    }
}
