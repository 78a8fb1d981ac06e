/* What operations do with one row, and the operations that are only that: norms, RoPE, quantisers.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

const float *cpu_vector(di_stream *s, di_vector v) {
    if (v.dtype == DI_F32 && v.data.address % sizeof(float) == 0) return cpu_at(v.data);
    float *out = cpu_take(s, (uint64_t)v.n * sizeof *out);
    if (v.dtype == DI_F32)
        memcpy(out, cpu_at(v.data), (size_t)v.n * sizeof *out);
    else
        s->k->bf16_to_f32(cpu_at(v.data), out, v.n);
    return out;
}

void cpu_norm_row(const di_stream *s, const float *x, const float *w, int64_t n, double eps,
                  float *out) {
    double mean = (double)s->k->sum_squares(x, n) / (double)n;
    s->k->scale_norm(x, w, (float)(1 / sqrt(mean + eps)), n, s->release, out);
}

void cpu_angles(di_rope rope, int32_t position, bool inverse, float *angles) {
    int32_t half = rope.dims / 2;
    const uint8_t *freq = cpu_at(rope.freq);
    for (int32_t i = 0; i < half; i++) {
        float f;
        memcpy(&f, freq + sizeof f * (size_t)i, sizeof f);
        float angle = (float)position * f;
        double sine, cosine;
        sincos((double)angle, &sine, &cosine);
        angles[i] = (float)cosine;
        angles[half + i] = (float)(inverse ? -sine : sine);
    }
}

void cpu_rotate(const di_stream *s, float *x, int32_t width, int32_t dims, const float *angles) {
    float *tail = x + width - dims;
    int32_t half = dims / 2;
    for (int32_t i = 0; i < half; i++) {
        float a = tail[2 * i], b = tail[2 * i + 1], c = angles[i], n = angles[half + i];
        tail[2 * i] = a * c - b * n;
        tail[2 * i + 1] = a * n + b * c;
    }
    if (s->release) s->k->round_bf16(tail, dims);
}

/* ---- operations on rows ---- */

typedef struct row_job {
    const void *args;
    const float *w, *w2;
} row_job;

static void norm_rows(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const row_job *job = user;
    const di_rms_norm_args *a = job->args;
    (void)scratch;
    for (int64_t t = begin; t < end; t++)
        cpu_norm_row(s, (float *)cpu_at(a->x) + t * a->width, job->w, a->width, a->eps,
                     (float *)cpu_at(a->out) + t * a->width);
}

void cpu_op_rms_norm(di_stream *s, const di_rms_norm_args *args) {
    cpu_begin(s);
    row_job job = {args, cpu_vector(s, args->weight), NULL};
    cpu_parallel(s, args->n_rows, 1, (int64_t)args->n_rows * args->width / 4, norm_rows, &job);
}

void cpu_op_rope(di_stream *s, const di_rope_args *args) {
    cpu_begin(s);
    float *angles = cpu_take(s, (uint64_t)args->rope.dims * sizeof *angles);
    const int32_t *positions = cpu_at(args->positions);
    for (int64_t t = 0; t < args->n_rows; t++) {
        cpu_angles(args->rope, positions[t], args->inverse, angles);
        for (int64_t h = 0; h < args->n_heads; h++)
            cpu_rotate(s, (float *)cpu_at(args->x) + (t * args->n_heads + h) * args->width,
                       args->width, args->rope.dims, angles);
    }
}

void cpu_op_quantize(di_stream *s, const di_quantize_args *args) {
    int64_t width = args->width, per_code = args->kind == DI_Q8 ? 1 : 2;
    int64_t per_scale = args->kind == DI_Q4C ? 16 : 32;
    for (int64_t t = 0; t < args->n_rows; t++) {
        const float *x = (const float *)cpu_at(args->x) + t * width;
        uint8_t *codes = (uint8_t *)cpu_at(args->codes) + t * width / per_code;
        uint8_t *scales = (uint8_t *)cpu_at(args->scales) + t * width / per_scale;
        if (args->kind == DI_Q8)
            s->k->quantize_q8(x, width, codes, scales, NULL);
        else if (args->kind == DI_Q4I)
            s->k->quantize_q4i(x, width, codes, scales, NULL);
        else
            s->k->quantize_q4c(x, width, codes, scales, NULL);
    }
}

void cpu_op_pool(di_stream *s, const di_pool_args *args) {
    int64_t width = args->width, ratio = args->ratio;
    const float *c[DI_OPS_MAX_RATIO], *g[DI_OPS_MAX_RATIO];
    CPU_REQUIRE(ratio <= DI_OPS_MAX_RATIO);
    for (int64_t i = 0; i < args->n_groups; i++) {
        for (int64_t j = 0; j < ratio; j++) {
            c[j] = (const float *)cpu_at(args->kv) + (i * ratio + j) * width;
            g[j] = (const float *)cpu_at(args->gate) + (i * ratio + j) * width;
        }
        s->k->pool(c, g, args->ratio, width, s->release, (float *)cpu_at(args->out) + i * width);
    }
}

void cpu_op_swiglu(di_stream *s, const di_swiglu_args *args) {
    const float *weight = cpu_at(args->weight);
    for (int64_t t = 0; t < args->n_rows; t++) {
        int64_t at = t * args->width;
        s->k->swiglu((const float *)cpu_at(args->gate) + at, (const float *)cpu_at(args->up) + at,
                     weight ? weight[t] : 1.0f, (float)args->limit, args->width, s->release,
                     (float *)cpu_at(args->out) + at);
    }
}

typedef struct combine_job {
    const di_combine_args *args;
    int64_t piece; /* channels of a task */
} combine_job;

static void combine_pieces(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                           int64_t end) {
    const combine_job *job = user;
    const di_combine_args *a = job->args;
    (void)scratch;
    int64_t width = a->width, pieces = (width + job->piece - 1) / job->piece;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = i / pieces, from = i % pieces * job->piece, to = from + job->piece;
        s->k->combine((const float *)cpu_at(a->rows) + t * a->top_k * width,
                      (const float *)cpu_at(a->shared) + t * width, a->top_k, width, from,
                      to < width ? to : width, s->release, (float *)cpu_at(a->out) + t * width);
    }
}

void cpu_op_combine(di_stream *s, const di_combine_args *args) {
    combine_job job = {args, 1024};
    int64_t pieces = ((int64_t)args->width + job.piece - 1) / job.piece;
    cpu_parallel(s, args->n_rows * pieces, 1,
                 (int64_t)args->n_rows * args->width * (args->top_k + 2) / 8, combine_pieces, &job);
}

void cpu_op_to_f32(di_stream *s, const di_to_f32_args *args) {
    (void)s;
    if (args->n > 0) memmove(cpu_at(args->out), cpu_at(args->src), (size_t)args->n * sizeof(float));
}
