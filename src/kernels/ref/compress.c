/* Twins: the compressor of a KV source (model.md 3.7): latents, index keys, pages, the raw ring. */
#include <math.h>

#include "kernels/ref/ref.h"

void ref_pool_group(const di_stream *s, const double *const *kv, const double *const *gate,
                    int32_t ratio, int64_t width, double *out) {
    for (int64_t d = 0; d < width; d++) {
        double top = -INFINITY, total = 0, sum = 0, share[DI_OPS_MAX_RATIO];
        for (int32_t i = 0; i < ratio; i++) top = fmax(top, gate[i][d]);
        for (int32_t i = 0; i < ratio; i++) total += share[i] = exp(gate[i][d] - top);
        for (int32_t i = 0; i < ratio; i++) sum += kv[i][d] * share[i] / total;
        out[d] = ref_a(s, sum);
    }
}

void ref_pool(di_stream *s, const di_pool_args *args) {
    int64_t width = args->width;
    REF_REQUIRE(args->ratio >= 1 && args->ratio <= DI_OPS_MAX_RATIO);
    for (int64_t g = 0; g < args->n_groups; g++) {
        const double *kv[DI_OPS_MAX_RATIO], *gate[DI_OPS_MAX_RATIO];
        for (int32_t i = 0; i < args->ratio; i++) {
            kv[i] = ref_doubles(s, args->kv) + (g * args->ratio + i) * width;
            gate[i] = ref_doubles(s, args->gate) + (g * args->ratio + i) * width;
        }
        ref_pool_group(s, kv, gate, args->ratio, width, ref_doubles(s, args->out) + g * width);
    }
}

/* What stands for one row's projections, c and g, for a position of row t's sequence: the step's
 * own, or those in the ring. */
static const double *raw_row(const di_stream *s, const di_compress_args *args, const double *c,
                             const double *g, int64_t t, int32_t position, bool gate) {
    const di_batch *b = &args->batch;
    int64_t d = args->pages.d;
    int32_t slot = ((const di_row *)ref_at(s, b->rows))[t].slot;
    int32_t length = ref_ints(s, b->length)[slot];
    if (position >= length) {
        int64_t row = ref_ints(s, b->first)[t] + (position - length);
        return (gate ? g : c) + row * d;
    }
    int64_t place = (int64_t)slot * args->ring_slots + position % args->ring_slots;
    return ref_doubles(s, args->ring) + (place * 2 + (gate ? 1 : 0)) * d;
}

/* The pooled latents of all groups that a row of the step completes, by row; others untouched. */
static void pooled_rows(di_stream *s, const di_compress_args *args, const double *c,
                        const double *g, double *latent) {
    int32_t ratio = args->pages.ratio;
    int64_t d = args->pages.d;
    for (int64_t t = 0; t < args->batch.n_rows; t++) {
        const double *kv[DI_OPS_MAX_RATIO], *gate[DI_OPS_MAX_RATIO];
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos < 0 || (pos + 1) % ratio != 0) continue;
        for (int32_t i = 0; i < ratio; i++) {
            kv[i] = raw_row(s, args, c, g, t, pos + 1 - ratio + i, false);
            gate[i] = raw_row(s, args, c, g, t, pos + 1 - ratio + i, true);
        }
        ref_pool_group(s, kv, gate, ratio, d, latent + t * d);
    }
}

static void ring_store(const di_stream *s, const di_compress_args *args, const double *c,
                       const double *g) {
    const di_row *rows = ref_at(s, args->batch.rows);
    int64_t d = args->pages.d;
    for (int64_t t = 0; t < args->batch.n_rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos < 0) continue;
        int64_t place = (int64_t)rows[t].slot * args->ring_slots + pos % args->ring_slots;
        double *out = ref_doubles(s, args->ring) + place * 2 * d;
        memcpy(out, c + t * d, (size_t)d * sizeof *out);
        memcpy(out + d, g + t * d, (size_t)d * sizeof *out);
    }
}

/* From the unrotated latent of an entry at position j r: the index key, then the latent itself. */
static void store_entry(const di_stream *s, const di_compress_args *args, int64_t t, double *latent,
                        double *key) {
    const di_pages *pages = &args->pages;
    int32_t pos = ref_ints(s, args->batch.pos)[t], at = pos + 1 - pages->ratio;
    int32_t slot = ((const di_row *)ref_at(s, args->batch.rows))[t].slot;
    if (!ref_none(args->closed) && at < ref_ints(s, args->closed)[slot]) return;
    ref_entry entry = ref_page_entry(s, pages, slot, at / pages->ratio);
    if (args->wk.n > 0) {
        ref_norm_row(s, key, pages->di, args->eps, &args->k_norm, key);
        ref_rope_vector(s, &args->rope, at, false, key, pages->di);
        ref_quantize_vector(s, DI_Q4I, key, pages->di, entry.key_codes, entry.key_scales);
    }
    ref_rope_vector(s, &args->rope, at, false, latent, pages->d);
    ref_quantize_vector(s, DI_Q4C, latent, pages->d, entry.codes, entry.scales);
}

void ref_compress(di_stream *s, const di_compress_args *args) {
    ref_begin(s);
    const di_pages *pages = &args->pages;
    int64_t rows = args->batch.n_rows, d = pages->d, di = pages->di;
    int32_t ratio = pages->ratio;
    const double *u = ref_doubles(s, args->u);
    double *latent = ref_take(s, rows * d), *key = ref_take(s, rows * di);
    REF_REQUIRE(ratio >= 1 && ratio <= DI_OPS_MAX_RATIO && args->wkv.n == d);
    memset(latent, 0, (size_t)(rows * d) * sizeof *latent);
    if (ratio == 1) {
        ref_linear_rows(s, &args->wkv, u, rows, false, false, latent);
    } else {
        double *c = ref_take(s, rows * d), *g = ref_take(s, rows * d);
        ref_linear_rows(s, &args->wkv, u, rows, false, true, c);
        ref_linear_rows(s, &args->wgate, u, rows, false, true, g);
        pooled_rows(s, args, c, g, latent);
        ring_store(s, args, c, g);
    }
    for (int64_t t = 0; t < rows; t++) {
        ref_norm_row(s, latent + t * d, d, args->eps, &args->norm, latent + t * d);
    }
    if (args->wk.n > 0) ref_linear_rows(s, &args->wk, latent, rows, false, false, key);
    for (int64_t t = 0; t < rows; t++) {
        int32_t pos = ref_ints(s, args->batch.pos)[t];
        if (pos >= 0 && (pos + 1) % ratio == 0) {
            store_entry(s, args, t, latent + t * d, key + t * di);
        }
    }
}
