/* The residual streams: mixing coefficients (mHC), collapse, expand, mean; and the head. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* model.md 3.5, for any number of streams; four have a vector form. */
static void sinkhorn(float *c, int32_t hc, int32_t iters, float eps) {
    for (int32_t step = 0; step < 2 * iters; step++) {
        bool rows = step % 2 == 0;
        int32_t along = rows ? 1 : hc, across = rows ? hc : 1;
        for (int32_t i = 0; i < hc; i++) {
            float *line = c + i * across, sum = step == 0 ? 0 : eps, top = line[0];
            if (step == 0) {
                for (int32_t k = 1; k < hc; k++) top = fmaxf(top, line[k * along]);
                for (int32_t k = 0; k < hc; k++) line[k * along] = expf(line[k * along] - top);
            }
            for (int32_t k = 0; k < hc; k++) sum += line[k * along];
            for (int32_t k = 0; k < hc; k++)
                line[k * along] = line[k * along] / sum + (step == 0 ? eps : 0);
        }
    }
}

typedef struct mix_job {
    const di_mix_args *args;
    const float *raw, *base, *scale; /* raw [n_rows][(2 + hc) hc]: fn . v */
} mix_job;

static void mix_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const mix_job *job = user;
    const di_mix_args *a = job->args;
    const int32_t hc = a->hc;
    const float *base = job->base, *scale = job->scale, eps = (float)a->hc_eps;
    const int64_t n = (int64_t)hc * a->width;
    (void)scratch;
    for (int64_t t = begin; t < end; t++) {
        const float *v = (const float *)cpu_at(a->streams) + t * n,
                    *raw = job->raw + t * (2 + hc) * hc;
        float *pre = (float *)cpu_at(a->pre) + t * hc, *post = (float *)cpu_at(a->post) + t * hc;
        float *comb = (float *)cpu_at(a->comb) + t * hc * hc;
        double mean = (double)s->k->sum_squares(v, n) / (double)n;
        float norm = (float)(1 / sqrt(mean + a->rms_eps));
        for (int32_t j = 0; j < hc; j++) {
            pre[j] = sigmoid(raw[j] * norm * scale[0] + base[j]) + eps;
            post[j] = 2 * sigmoid(raw[hc + j] * norm * scale[1] + base[hc + j]);
        }
        for (int32_t j = 0; j < hc * hc; j++)
            comb[j] = raw[2 * hc + j] * norm * scale[2] + base[2 * hc + j];
        if (hc != 4) sinkhorn(comb, hc, a->iters, eps);
    }
    if (hc == 4) s->k->comb4((float *)cpu_at(a->comb) + begin * 16, end - begin, a->iters, eps);
}

void cpu_op_mix(di_stream *s, const di_mix_args *args) {
    cpu_begin(s);
    if (args->n_rows == 0) return;
    int32_t rows = args->n_rows, n = (2 + args->hc) * args->hc;
    float *raw = cpu_take(s, (uint64_t)rows * (uint64_t)n * sizeof *raw);
    const float *const *x = cpu_inputs(s, cpu_at(args->streams), rows, 1, &args->fn, false);
    cpu_product_rows(s, &args->fn, x, raw, rows, false);
    mix_job job = {args, raw, cpu_vector(s, args->base), cpu_vector(s, args->scale)};
    cpu_parallel(s, rows, 4, (int64_t)rows * (args->fn.k / 8 + 500), mix_rows, &job);
}

typedef struct sublayer_job {
    const di_sublayer_in_args *args;
    const float *norm;
} sublayer_job;

static void sublayer_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                          int64_t end) {
    const sublayer_job *job = user;
    const di_sublayer_in_args *a = job->args;
    int64_t d = a->width;
    (void)scratch;
    for (int64_t t = begin; t < end; t++) {
        float *out = (float *)cpu_at(a->out) + t * d, *collapsed = cpu_at(a->collapsed);
        float *x = collapsed ? collapsed + t * d : out;
        s->k->collapse((const float *)cpu_at(a->streams) + t * a->hc * d,
                       (const float *)cpu_at(a->pre) + t * a->hc, a->hc, d, 0, d, s->release, x);
        cpu_norm_row(s, x, job->norm, d, a->eps, out);
    }
}

void cpu_op_sublayer_in(di_stream *s, const di_sublayer_in_args *args) {
    cpu_begin(s);
    sublayer_job job = {args, cpu_vector(s, args->norm)};
    cpu_parallel(s, args->n_rows, 1, (int64_t)args->n_rows * args->width * (args->hc + 3) / 8,
                 sublayer_rows, &job);
}

enum { PIECE = 1024 }; /* channels of a task */

static void expand_pieces(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                          int64_t end) {
    const di_sublayer_out_args *a = user;
    int64_t d = a->width, hc = a->hc, pieces = (d + PIECE - 1) / PIECE;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / pieces, from = i % pieces * PIECE, to = from + PIECE < d ? from + PIECE : d;
        s->k->expand((float *)cpu_at(a->streams) + t * hc * d, (const float *)cpu_at(a->y) + t * d,
                     (const float *)cpu_at(a->post) + t * hc,
                     (const float *)cpu_at(a->comb) + t * hc * hc, a->hc, d, from, to, s->release);
    }
}

void cpu_op_sublayer_out(di_stream *s, const di_sublayer_out_args *args) {
    di_sublayer_out_args a = *args;
    int64_t pieces = ((int64_t)a.width + PIECE - 1) / PIECE;
    CPU_REQUIRE(a.hc <= DI_OPS_MAX_HC);
    cpu_parallel(s, a.n_rows * pieces, 1, (int64_t)a.n_rows * a.width * a.hc / 4, expand_pieces,
                 &a);
}

void cpu_op_stream_mean(di_stream *s, const di_stream_mean_args *args) {
    int64_t d = args->width, hc = args->hc;
    float share[DI_OPS_MAX_HC];
    CPU_REQUIRE(hc <= DI_OPS_MAX_HC);
    for (int64_t j = 0; j < hc; j++) share[j] = 1.0f / (float)hc;
    for (int64_t t = 0; t < args->n_rows; t++) {
        const float *streams = (const float *)cpu_at(args->streams) + t * hc * d;
        float *out = (float *)cpu_at(args->out) + t * args->out_stride;
        s->k->collapse(streams, share, args->hc, d, 0, d, s->release, out);
    }
}

typedef struct head_job {
    const di_head_args *args;
    const float *norm;
    float *x;
} head_job;

static void head_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const head_job *job = user;
    const di_head_args *a = job->args;
    int64_t d = a->width;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = ((const int32_t *)cpu_at(a->which))[i];
        float *x = job->x + i * d;
        s->k->collapse((const float *)cpu_at(a->streams) + t * a->hc * d,
                       (const float *)cpu_at(a->pre) + t * a->hc, a->hc, d, 0, d, s->release, x);
        cpu_norm_row(s, x, job->norm, d, a->eps, x);
    }
}

void cpu_op_head(di_stream *s, const di_head_args *args) {
    cpu_begin(s);
    if (args->n_out == 0) return;
    int64_t d = args->width, rows = args->n_out;
    float *x = cpu_at(args->normed);
    if (!x) x = cpu_take(s, (uint64_t)(rows * d) * sizeof *x);
    head_job job = {args, cpu_vector(s, args->norm), x};
    cpu_parallel(s, rows, 1, rows * d, head_rows, &job);
    const float *const *inputs = cpu_inputs(s, x, args->n_out, 1, &args->head, false);
    cpu_product_rows(s, &args->head, inputs, cpu_at(args->logits), args->n_out, false);
}
