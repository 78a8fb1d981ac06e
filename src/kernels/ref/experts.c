/* Twins: router, routed and shared experts (model.md 4). */
#include <math.h>

#include "kernels/ref/ref.h"

static void scores_of(di_score scoring, const double *z, int32_t n, double *out) {
    double top = -INFINITY, total = 0;
    for (int32_t e = 0; e < n; e++) top = fmax(top, z[e]);
    for (int32_t e = 0; e < n; e++) {
        if (scoring == DI_SCORING_SOFTMAX) {
            total += out[e] = exp(z[e] - top);
        } else if (scoring == DI_SCORING_SIGMOID) {
            out[e] = ref_sigmoid(z[e]);
        } else { /* softplus(z) = max(z, 0) + log(1 + exp(-|z|)) */
            out[e] = sqrt(fmax(z[e], 0) + log1p(exp(-fabs(z[e]))));
        }
    }
    for (int32_t e = 0; scoring == DI_SCORING_SOFTMAX && e < n; e++) out[e] /= total;
}

static void route_row(di_stream *s, const di_route_args *args, double *z, double *best,
                      int32_t *picks, double *weights) {
    int32_t n = args->gate.n, k = args->top_k;
    double sum = 0;
    double *scores = best + n; /* behind the scratch of ref_best */
    for (int32_t e = 0; e < n; e++) z[e] = ref_f(s, z[e] / args->temperature);
    scores_of(args->scoring, z, n, scores);
    for (int32_t e = 0; e < n; e++) {
        scores[e] = ref_f(s, scores[e]);
        z[e] = ref_f(s, scores[e] + ref_value(s, &args->bias, e)); /* decides who, not how much */
    }
    REF_REQUIRE(ref_best(z, n, k, true, best, picks) == k);
    for (int32_t i = 0; i < k; i++) sum += scores[picks[i]];
    for (int32_t i = 0; i < k; i++) {
        double w = scores[picks[i]];
        if (args->normalize && k > 1) w /= sum + 1e-20;
        weights[i] = ref_f(s, w * args->scale);
    }
}

void ref_route(di_stream *s, const di_route_args *args) {
    ref_begin(s);
    int64_t n = args->gate.n, rows = args->n_rows, k = args->gate.k;
    REF_REQUIRE(args->top_k >= 1 && args->top_k <= n);
    double *z = ref_take(s, rows * n), *best = ref_take(s, 2 * n), *row = ref_take(s, k);
    for (int64_t e = 0; e < n; e++) { /* not rounded before the division by the temperature */
        ref_matrix_row(s, &args->gate, e, row);
        for (int64_t t = 0; t < rows; t++) {
            const double *u = ref_doubles(s, args->u) + t * k;
            double dot = 0;
            for (int64_t i = 0; i < k; i++) dot += u[i] * row[i];
            z[t * n + e] = dot;
        }
    }
    for (int64_t t = 0; t < rows; t++) {
        route_row(s, args, z + t * n, best, ref_ints(s, args->picks) + t * args->top_k,
                  ref_doubles(s, args->weights) + t * args->top_k);
        if (!ref_none(args->scores)) {
            memcpy(ref_doubles(s, args->scores) + t * n, best + n, (size_t)n * sizeof *best);
        }
    }
}

double ref_swiglu_value(const di_stream *s, double gate, double up, double limit, double weight) {
    if (limit > 0) {
        gate = fmin(gate, limit);
        up = fmin(fmax(up, -limit), limit);
    }
    return ref_a(s, weight * (gate * ref_sigmoid(gate) * up));
}

void ref_swiglu(di_stream *s, const di_swiglu_args *args) {
    int64_t width = args->width;
    for (int64_t t = 0; t < args->n_rows; t++) {
        double weight = ref_none(args->weight) ? 1 : ref_doubles(s, args->weight)[t];
        for (int64_t i = t * width; i < (t + 1) * width; i++) {
            ref_doubles(s, args->out)[i] =
                ref_swiglu_value(s, ref_doubles(s, args->gate)[i], ref_doubles(s, args->up)[i],
                                 args->limit, weight);
        }
    }
}

/* One expert: x [n][D] -> out [n][D]. weights NULL: all 1. Takes workspace and gives it back. */
static void expert_rows(di_stream *s, const di_matrix *w1, const di_matrix *w3, const di_matrix *w2,
                        double limit, const double *x, const double *weights, int64_t n,
                        double *out) {
    uint64_t used = s->work_used;
    int64_t inner = w1->n;
    double *gate = ref_take(s, n * inner), *up = ref_take(s, n * inner);
    ref_linear_rows(s, w1, x, n, true, false, gate);
    ref_linear_rows(s, w3, x, n, true, false, up);
    for (int64_t i = 0; i < n * inner; i++) {
        double weight = weights == NULL ? 1 : weights[i / inner];
        gate[i] = ref_swiglu_value(s, gate[i], up[i], limit, weight);
    }
    ref_linear_rows(s, w2, gate, n, true, false, out);
    s->work_used = used;
}

/* Which of row t's picks is expert e, or -1. */
static int32_t pick_of(const int32_t *picks, int32_t top_k, int32_t e) {
    for (int32_t i = 0; i < top_k; i++) {
        if (picks[i] == e) return i;
    }
    return -1;
}

static int32_t picks_below(const int32_t *picks, int32_t top_k, int32_t e) {
    int32_t n = 0;
    for (int32_t i = 0; i < top_k; i++) n += picks[i] < e;
    return n;
}

static void run_expert(di_stream *s, const di_experts_args *args, int32_t e, double *x, double *y,
                       double *weights) {
    int64_t width = args->width, n = 0, k = args->top_k;
    const di_expert *at = (const di_expert *)ref_at(s, args->experts) + e;
    const int32_t *picks = ref_ints(s, args->picks);
    for (int pass = 0; pass < 2; pass++) { /* gather and run, then scatter */
        n = 0;
        for (int64_t t = 0; t < args->n_rows; t++) {
            if (!ref_none(args->pos) && ref_ints(s, args->pos)[t] < 0) continue;
            int32_t i = pick_of(picks + t * k, args->top_k, e);
            if (i < 0) continue;
            const double *u = ref_doubles(s, args->u) + t * width;
            int64_t place = t * k + picks_below(picks + t * k, args->top_k, e);
            double *out = ref_doubles(s, args->rows) + place * width;
            weights[n] = ref_doubles(s, args->weights)[t * k + i];
            memcpy(pass == 0 ? x + n * width : out, pass == 0 ? u : y + n * width,
                   (size_t)width * sizeof *x);
            n++;
        }
        if (pass > 0 || n == 0) continue;
        di_matrix w1 = {args->dtype, args->inner, args->width, at->w1, at->w1_scale};
        di_matrix w3 = {args->dtype, args->inner, args->width, at->w3, at->w3_scale};
        di_matrix w2 = {args->dtype, args->width, args->inner, at->w2, at->w2_scale};
        expert_rows(s, &w1, &w3, &w2, args->limit, x, weights, n, y);
    }
}

void ref_experts(di_stream *s, const di_experts_args *args) {
    ref_begin(s);
    int64_t width = args->width, rows = args->n_rows;
    double *x = ref_take(s, rows * width), *y = ref_take(s, rows * width);
    double *weights = ref_take(s, rows);
    for (int64_t t = 0; t < rows; t++) {
        if (!ref_none(args->pos) && ref_ints(s, args->pos)[t] < 0) continue;
        for (int64_t i = 0; i < args->top_k; i++) {
            int32_t e = ref_ints(s, args->picks)[t * args->top_k + i];
            REF_REQUIRE(e >= 0 && e < args->n_experts);
        }
    }
    for (int32_t e = 0; e < args->n_experts; e++) run_expert(s, args, e, x, y, weights);
}

void ref_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    ref_begin(s);
    expert_rows(s, &args->w1, &args->w3, &args->w2, args->limit, ref_doubles(s, args->u), NULL,
                args->n_rows, ref_doubles(s, args->out));
}

void ref_combine(di_stream *s, const di_combine_args *args) {
    int64_t width = args->width, k = args->top_k;
    for (int64_t t = 0; t < args->n_rows; t++) {
        for (int64_t d = 0; d < width; d++) {
            double y = 0;
            for (int64_t i = 0; i < k; i++) {
                y = ref_f(s, y + ref_doubles(s, args->rows)[(t * k + i) * width + d]);
            }
            y = ref_f(s, y + ref_doubles(s, args->shared)[t * width + d]);
            ref_doubles(s, args->out)[t * width + d] = ref_a(s, y);
        }
    }
}
