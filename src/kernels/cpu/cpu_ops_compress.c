/* Latents of a KV source: pooled groups, index keys, pages, and the ring of raw rows. */
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef struct compress_job {
    const di_compress_args *args;
    const float *c, *g;   /* [n_rows][d]; g NULL at ratio 1 */
    const int32_t *which; /* [n_groups]: the row that completes the group */
    const float *norm, *k_norm;
    float *latent, *key; /* [n_groups][d], [n_groups][di] */
} compress_job;

/* c, or g when `gate`, of a position of row t's sequence: from the step or from the ring. */
static const float *raw_row(const compress_job *job, int64_t t, int32_t position, bool gate) {
    const di_compress_args *a = job->args;
    const di_batch *b = &a->batch;
    int64_t d = a->pages.d;
    int32_t slot = ((const di_row *)cpu_at(b->rows))[t].slot;
    int32_t length = ((const int32_t *)cpu_at(b->length))[slot];
    if (position >= length) {
        int64_t row = ((const int32_t *)cpu_at(b->first))[t] + (position - length);
        return (gate ? job->g : job->c) + row * d;
    }
    int64_t place = (int64_t)slot * a->ring_slots + position % a->ring_slots;
    return (const float *)cpu_at(a->ring) + (place * 2 + (gate ? 1 : 0)) * d;
}

static void pool_groups(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                        int64_t end) {
    const compress_job *job = user;
    const di_compress_args *a = job->args;
    int32_t ratio = a->pages.ratio;
    int64_t d = a->pages.d;
    (void)scratch;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = job->which[i];
        float *latent = job->latent + i * d;
        if (ratio > 1) {
            const float *c[DI_OPS_MAX_RATIO], *g[DI_OPS_MAX_RATIO];
            int32_t from = ((const int32_t *)cpu_at(a->batch.pos))[t] + 1 - ratio;
            for (int32_t j = 0; j < ratio; j++) {
                c[j] = raw_row(job, t, from + j, false);
                g[j] = raw_row(job, t, from + j, true);
            }
            s->k->pool(c, g, ratio, d, s->release, latent);
            cpu_norm_row(s, latent, job->norm, d, a->eps, latent);
        } else {
            cpu_norm_row(s, job->c + t * d, job->norm, d, a->eps, latent);
        }
    }
}

static void store_groups(di_stream *s, cpu_scratch *scratch, void *user, int64_t begin,
                         int64_t end) {
    const compress_job *job = user;
    const di_compress_args *a = job->args;
    const di_pages *p = &a->pages;
    const int32_t *pos = cpu_at(a->batch.pos);
    float *angles = scratch->angles;
    for (int64_t i = begin; i < end; i++) {
        int64_t t = job->which[i];
        int32_t at = pos[t] + 1 - p->ratio;
        int32_t slot = ((const di_row *)cpu_at(a->batch.rows))[t].slot;
        if (a->closed.address && at < ((const int32_t *)cpu_at(a->closed))[slot]) continue;
        cpu_entry entry = cpu_page_entry(p, slot, at / p->ratio);
        cpu_angles(a->rope, at, false, angles);
        if (a->wk.n > 0) {
            float *key = job->key + i * p->di;
            cpu_norm_row(s, key, job->k_norm, p->di, a->eps, key);
            cpu_rotate(s, key, p->di, a->rope.dims, angles);
            s->k->quantize_q4i(key, p->di, entry.key_codes, entry.key_scales, NULL);
        }
        float *latent = job->latent + i * p->d;
        cpu_rotate(s, latent, p->d, a->rope.dims, angles);
        s->k->quantize_q4c(latent, p->d, entry.codes, entry.scales, NULL);
    }
}

/* After the groups have read it. In order of rows, so that the newest of a place stays. */
static void store_ring(const compress_job *job) {
    const di_compress_args *a = job->args;
    const di_row *rows = cpu_at(a->batch.rows);
    const int32_t *pos = cpu_at(a->batch.pos);
    int64_t d = a->pages.d;
    for (int64_t t = 0; t < a->batch.n_rows; t++) {
        if (pos[t] < 0) continue;
        int64_t place = (int64_t)rows[t].slot * a->ring_slots + pos[t] % a->ring_slots;
        float *out = (float *)cpu_at(a->ring) + place * 2 * d;
        memcpy(out, job->c + t * d, (size_t)d * sizeof *out);
        memcpy(out + d, job->g + t * d, (size_t)d * sizeof *out);
    }
}

void cpu_op_compress(di_stream *s, const di_compress_args *args) {
    cpu_begin(s);
    const di_pages *p = &args->pages;
    const int32_t *pos = cpu_at(args->batch.pos);
    int32_t rows = args->batch.n_rows, d = p->d, groups = 0, ratio = p->ratio;
    if (rows == 0) return;
    CPU_REQUIRE(ratio >= 1 && ratio <= DI_OPS_MAX_RATIO);
    int32_t *which = cpu_take(s, (uint64_t)rows * sizeof *which);
    for (int32_t t = 0; t < rows; t++)
        if (pos[t] >= 0 && (pos[t] + 1) % ratio == 0) which[groups++] = t;
    float *c = cpu_take(s, (uint64_t)rows * (uint64_t)d * sizeof *c), *g = NULL;
    const float *const *u = cpu_inputs(s, cpu_at(args->u), rows, 1, &args->wkv, false);
    cpu_product products[2] = {{args->wkv, 0, d, u, 0, cpu_rows(s, c, d, rows), rows, false}};
    if (ratio == 1) {
        products[0].round = s->release;
    } else {
        g = cpu_take(s, (uint64_t)rows * (uint64_t)d * sizeof *g);
        products[1] = (cpu_product){args->wgate, 0, d, u, 0, cpu_rows(s, g, d, rows), rows, false};
    }
    cpu_products(s, products, ratio == 1 ? 1 : 2);
    compress_job job = {args, c, g, which, cpu_vector(s, args->norm), NULL, NULL, NULL};
    if (groups > 0) {
        job.latent = cpu_take(s, (uint64_t)groups * (uint64_t)d * sizeof *job.latent);
        cpu_parallel(s, groups, 1, (int64_t)groups * d, pool_groups, &job);
        if (args->wk.n > 0) {
            job.k_norm = cpu_vector(s, args->k_norm);
            job.key = cpu_take(s, (uint64_t)groups * (uint64_t)p->di * sizeof *job.key);
            const float *const *latents = cpu_inputs(s, job.latent, groups, 1, &args->wk, false);
            cpu_product_rows(s, &args->wk, latents, job.key, groups, s->release);
        }
        cpu_parallel(s, groups, 1, (int64_t)groups * (d + p->di + 20 * args->rope.dims),
                     store_groups, &job);
    }
    if (ratio > 1) store_ring(&job);
}
