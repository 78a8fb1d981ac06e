#include "support/follower.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/quantize.h"
#include "kernels/ref/ref.h"
#include "model/network.h"

/* ---- What a value may be rounded to ---- */

static int64_t block_of(di_quantizer kind) { return kind == DI_Q4C ? DI_Q4C_BLOCK : DI_Q8_BLOCK; }
static int64_t code_bytes(di_quantizer kind, int64_t n) { return kind == DI_Q8 ? n : n / 2; }

static double scale_value(di_quantizer kind, uint8_t scale) {
    return (double)(kind == DI_Q4C ? di_e4m3_decode(scale) : di_e8m0_decode(scale));
}

static double code_value(di_quantizer kind, const uint8_t *codes, int64_t i) {
    if (kind == DI_Q8) return (double)di_e4m3_decode(codes[i]);
    return (double)di_e2m1_decode((uint8_t)(codes[i / 2] >> (i % 2 ? 4 : 0)));
}

static double rounded(di_quantizer kind, double x, double scale) {
    float over = (float)x / (float)scale;
    return (double)(kind == DI_Q8 ? di_e4m3_decode(di_e4m3_encode(over))
                                  : di_e2m1_decode(di_e2m1_encode(over)));
}

/* The scale of a block that is `factor` times this one. */
static double scale_of(di_quantizer kind, const double *x, double factor) {
    float values[DI_Q8_BLOCK];
    uint8_t codes[DI_Q8_BLOCK];
    for (int64_t i = 0; i < block_of(kind); i++) values[i] = (float)(factor * x[i]);
    return scale_value(kind, kind == DI_Q8    ? di_quantize_q8(values, codes)
                             : kind == DI_Q4I ? di_quantize_q4i(values, codes)
                                              : di_quantize_q4c(values, codes));
}

/* A NaN is no value between others. */
static bool is_between(double value, double low, double high) {
    return value >= low && value <= high;
}

/* Whether codes and their scale are what a block within the noise of x is rounded to. */
static bool may_be(di_quantizer kind, const double *x, const uint8_t *codes, uint8_t scale_code) {
    double scale = scale_value(kind, scale_code), noise = 0;
    bool may = is_between(scale, scale_of(kind, x, 1 - FOLLOWER_NOISE),
                          scale_of(kind, x, 1 + FOLLOWER_NOISE));
    for (int64_t i = 0; i < block_of(kind); i++) noise = fmax(noise, FOLLOWER_NOISE * fabs(x[i]));
    for (int64_t i = 0; i < block_of(kind) && may; i++) {
        may = is_between(code_value(kind, codes, i), rounded(kind, x[i] - noise, scale),
                         rounded(kind, x[i] + noise, scale));
    }
    return may;
}

/* ---- The twins, as they round ---- */

/* Where the leader's bytes are for codes and scales that the twins have written. False: these are
 * in no cache. */
static bool find(const follower *f, di_quantizer kind, const uint8_t *codes, const uint8_t *scales,
                 const uint8_t **its_codes, const uint8_t **its_scales) {
    const di_context *c = f->twins.context;
    const uint8_t *pool = (const uint8_t *)(uintptr_t)c->at.page_pool.address;
    if (kind == DI_Q8) { /* a row of the step, which window_store will put where the leader's is */
        const uint8_t *rows = (const uint8_t *)(uintptr_t)c->at.kv_codes.address;
        int64_t d = f->twins.config->head_dim, ring = c->ring_slots;
        int64_t position = f->first + (codes - rows) / d;
        int64_t place = f->layer * ring + position % ring;
        *its_codes = f->codes + place * d;
        *its_scales = f->scales + place * (d / DI_Q8_BLOCK);
        return true;
    }
    uint64_t at = (uint64_t)(codes - pool), size = (uint64_t)c->pages_per_slot * c->page_bytes;
    if (codes < pool || at >= size) return false; /* queries of the indexer */
    *its_codes = f->pool + at;
    *its_scales = f->pool + (scales - pool);
    return true;
}

static void follow(void *user, di_quantizer kind, const double *x, int64_t width, uint8_t *codes,
                   uint8_t *scales) {
    follower *f = user;
    const uint8_t *its_codes, *its_scales;
    if (f->layer < 0 || !find(f, kind, codes, scales, &its_codes, &its_scales)) return;
    int64_t block = block_of(kind), bytes = code_bytes(kind, block);
    for (int64_t b = 0; b < width / block; b++) {
        uint8_t *mine = codes + b * bytes;
        const uint8_t *its = its_codes + b * bytes;
        if (!may_be(kind, x + b * block, its, its_scales[b])) {
            f->n_wrong++;
            continue;
        }
        double scale = scale_value(kind, scales[b]), its_scale = scale_value(kind, its_scales[b]);
        for (int64_t i = 0; i < block; i++) {
            f->n_taken += scale * code_value(kind, mine, i) != its_scale * code_value(kind, its, i);
        }
        memcpy(mine, its, (size_t)bytes);
        scales[b] = its_scales[b];
    }
}

/* attn_input comes before anything is rounded in a layer, streams after all of it. */
static void note_layer(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                       int64_t n_rows, int64_t width) {
    follower *f = user;
    (void)data, (void)type, (void)n_rows, (void)width;
    if (strcmp(name, "attn_input") == 0) f->layer = layer;
    if (strcmp(name, "streams") == 0) f->layer = -1;
}

/* ---- Steps ---- */

typedef struct cache_bytes {
    uint64_t pool, codes, scales;
} cache_bytes;

static cache_bytes sizes(const follower *f) {
    const di_context *c = f->twins.context;
    uint64_t d = (uint64_t)f->twins.config->head_dim;
    uint64_t rows = (uint64_t)f->twins.config->num_hidden_layers * (uint64_t)c->ring_slots;
    return (cache_bytes){(uint64_t)c->pages_per_slot * c->page_bytes, rows * d,
                         rows * (d / DI_Q8_BLOCK)};
}

void follower_open(follower *f, const char *directory, const test_model *leader) {
    *f = (follower){.leader = leader, .layer = -1};
    test_model_open(&f->twins, directory,
                    &(test_model_options){TEST_REF, DI_NUMERICS_FLOAT, 1,
                                          leader->context->options});
    const di_context *mine = f->twins.context, *its = leader->context;
    assert_int_equal(mine->options.n_slots, 1);
    assert_int_equal(mine->options.n_pages, 0);
    assert_int_equal(mine->ring_slots, its->ring_slots);
    assert_int_equal(mine->page_bytes, its->page_bytes);
    assert_memory_equal(mine->page_of, its->page_of,
                        (size_t)mine->pages_per_slot * sizeof *mine->page_of);
    cache_bytes n = sizes(f);
    f->pool = malloc(n.pool);
    f->codes = malloc(n.codes);
    f->scales = malloc(n.scales);
    assert_true(f->pool && f->codes && f->scales);
    f->twins.backend->stream->rounded = follow;
    f->twins.backend->stream->rounded_user = f;
    di_context_set_tap(f->twins.context, note_layer, f);
}

void follower_close(follower *f) {
    test_model_close(&f->twins);
    free(f->pool);
    free(f->codes);
    free(f->scales);
}

void follower_restart(follower *f) {
    di_context_reset(f->twins.context, 0);
    f->n_taken = f->n_wrong = 0;
}

float *follower_feed(follower *f, const int32_t *ids, int32_t n) {
    const di_context *its = f->leader->context;
    di_backend *backend = f->leader->backend;
    di_error error;
    cache_bytes bytes = sizes(f);
    f->first = di_context_length(f->twins.context, 0);
    assert_int_equal(di_context_length(its, 0), f->first + n);
    assert_true(n <= its->ring_slots); /* of the rows of a step none has left the window */
    backend->download(backend->stream, f->pool, its->at.page_pool, bytes.pool);
    backend->download(backend->stream, f->codes, its->at.window_codes, bytes.codes);
    backend->download(backend->stream, f->scales, its->at.window_scales, bytes.scales);
    assert_int_equal(di_backend_sync(backend, &error), DI_OK);
    return test_feed_all(&f->twins, 0, ids, n);
}
