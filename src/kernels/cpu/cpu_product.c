/* Products of whole matrices: inputs made ready, tiles of weight rows spread over the team. */
#include <string.h>

#include "kernels/cpu/cpu.h"

int64_t cpu_product_work(const di_matrix *w, int64_t n, int64_t m) {
    return n * w->k * (m + 4) / 40;
}

float **cpu_rows(di_stream *s, float *base, int64_t stride, int32_t m) {
    float **rows = cpu_take(s, (uint64_t)m * sizeof *rows);
    for (int32_t r = 0; r < m; r++) rows[r] = base + r * stride;
    return rows;
}

typedef struct input_job {
    const float *x;
    float *out;
    int32_t groups, k;
    int64_t stride; /* of a group in out */
    bool quantize, fp4;
} input_job;

static void make_inputs(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                        int64_t end) {
    const input_job *job = user;
    (void)scratch;
    for (int64_t i = begin * job->groups; i < end * job->groups; i++) {
        const float *x = job->x + i * job->k;
        float *out = job->out + i * job->stride;
        if (job->quantize) {
            s->k->quantize_q8(x, job->k, NULL, NULL, out);
            x = out;
        }
        if (job->fp4) {
            s->k->fp4_order(x, job->k, out);
        } else if (!job->quantize) {
            memcpy(out, x, (size_t)job->k * sizeof *out);
            for (int64_t j = job->k; j < job->stride; j++) out[j] = 0;
        }
    }
}

const float *const *cpu_inputs(di_stream *s, const float *x, int32_t m, int32_t groups,
                               const di_matrix *w, bool quantize) {
    int32_t k = w->k;
    int64_t stride = cpu_input_width(w->dtype, k);
    const float **rows = cpu_take(s, (uint64_t)m * sizeof *rows);
    const float *base = x;
    bool fp4 = w->dtype == DI_FP4_PAIR;
    quantize = quantize && s->release;
    if (quantize || fp4 || stride != k) {
        CPU_REQUIRE(!quantize || k % 32 == 0);
        float *copy = cpu_take(s, (uint64_t)m * (uint64_t)groups * (uint64_t)stride * sizeof *copy);
        input_job job = {x, copy, groups, k, stride, quantize, fp4};
        cpu_parallel(s, m, 1, (int64_t)m * groups * k / 4, make_inputs, &job);
        base = copy;
    }
    for (int32_t r = 0; r < m; r++) rows[r] = base + r * groups * stride;
    return rows;
}

typedef struct product_job {
    const cpu_product *products;
    int32_t n, height; /* height: weight rows of a task, divides CPU_TILE_N */
    int32_t parts;     /* of the x rows: a task takes one */
} product_job;

static int64_t tiles_of(const cpu_product *p, int32_t height) {
    return (p->n_end + height - 1) / height - p->n_begin / height;
}

/* Task i of one product: a tile and a part of the rows. */
static void run_tile(di_stream *s, cpu_scratch *scratch, const product_job *job,
                     const cpu_product *p, int64_t i) {
    int32_t height = job->height, part = (int32_t)(i % job->parts);
    int32_t first = (int32_t)(p->n_begin / height + i / job->parts) * height, last = first + height;
    if (first < p->n_begin) first = p->n_begin;
    if (last > p->n_end) last = p->n_end;
    int32_t n = last - first, row = p->m * part / job->parts;
    int32_t m = p->m * (part + 1) / job->parts - row;
    s->k->product(&p->w, first, n, p->x + row, p->x_at, m, scratch->acc, scratch);
    s->k->store_tile(scratch->acc, m, n, p->round, p->out + row, first - p->n_begin);
}

static void run_tiles(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin, int64_t end) {
    const product_job *job = user;
    int64_t base = 0;
    for (int32_t i = 0; i < job->n && base < end; i++) {
        const cpu_product *p = &job->products[i];
        int64_t tasks = tiles_of(p, job->height) * job->parts;
        for (int64_t t = begin > base ? begin - base : 0; t < tasks && base + t < end; t++)
            run_tile(s, scratch, job, p, t);
        base += tasks;
    }
}

void cpu_products(di_stream *s, const cpu_product *products, int32_t n) {
    product_job job = {products, n, CPU_TILE_N, 1};
    int64_t work = 0, tiles = 0;
    int32_t least = INT32_MAX; /* rows */
    for (int32_t i = 0; i < n; i++) {
        if (products[i].m == 0) return;
        CPU_REQUIRE(cpu_rows_fit(s, products[i].m));
        if (products[i].m < least) least = products[i].m;
        work += cpu_product_work(&products[i].w, products[i].n_end - products[i].n_begin,
                                 products[i].m);
    }
    for (;; job.height /= 2) { /* small matrices: lower tiles, so that every core has some */
        tiles = 0;
        for (int32_t i = 0; i < n; i++) tiles += tiles_of(&products[i], job.height);
        if (tiles >= (job.height > 8 ? 4 : 2) * s->n_members || job.height == 4) break;
    }
    /* Matrices too small for that: parts of the rows, of at least eight. */
    while (tiles * job.parts < 2 * s->n_members && least / (job.parts + 1) >= 8) job.parts++;
    tiles *= job.parts;
    cpu_parallel(s, tiles, tiles / (8 * s->n_members), work, run_tiles, &job);
}

void cpu_product_rows(di_stream *s, const di_matrix *w, const float *const *x, float *out,
                      int32_t m, bool round) {
    cpu_product p = {*w, 0, w->n, x, 0, cpu_rows(s, out, w->n, m), m, round};
    cpu_products(s, &p, 1);
}

void cpu_op_linear(di_stream *s, const di_linear_args *args) {
    cpu_begin(s);
    if (args->n_rows == 0) return;
    int32_t groups = args->groups, k = args->w.k, n = args->w.n;
    bool round = s->release && !args->to_f;
    int64_t stride = cpu_input_width(args->w.dtype, k);
    const float *const *x =
        cpu_inputs(s, cpu_at(args->x), args->n_rows, groups, &args->w, args->quantize);
    float *out = cpu_at(args->out);
    cpu_product *products = cpu_take(s, (uint64_t)groups * sizeof *products);
    for (int32_t g = 0; g < groups; g++) {
        int32_t first = n / groups * g;
        products[g] = (cpu_product){args->w,
                                    first,
                                    first + n / groups,
                                    x,
                                    g * stride,
                                    cpu_rows(s, out + first, n, args->n_rows),
                                    args->n_rows,
                                    round};
    }
    cpu_products(s, products, groups);
}
