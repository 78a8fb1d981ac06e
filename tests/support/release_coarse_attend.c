/* Coarse operations that read caches: selection and attention. Stored keys are dequantised values;
 * they are turned back into the codes that they came from.
 */
#include "support/release_coarse.h"
#include "support/release_coarse_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "kernels/quantize.h"

/* Codes that decode to exactly these values, which came from such codes. */
static void encode_q8(const float *x, int64_t n, uint8_t *codes, uint8_t *scales) {
    for (int64_t b = 0; b < n / 32; b++) {
        scales[b] = di_quantize_q8(x + b * 32, codes + b * 32);
        for (int64_t i = b * 32; i < (b + 1) * 32; i++) {
            assert_true(di_e4m3_decode(codes[i]) * di_e8m0_decode(scales[b]) == x[i]);
        }
    }
}

static void encode_q4i(const float *x, int64_t n, uint8_t *codes, uint8_t *scales) {
    for (int64_t b = 0; b < n / 32; b++) {
        scales[b] = di_quantize_q4i(x + b * 32, codes + b * 16);
        for (int64_t i = b * 32; i < (b + 1) * 32; i++) {
            int code = codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
            assert_true(di_e2m1_decode((uint8_t)code) * di_e8m0_decode(scales[b]) == x[i]);
        }
    }
}

/* Whether 16 values have codes at this scale. */
static bool encode_16(const float *x, float scale, uint8_t *codes) {
    memset(codes, 0, 8);
    for (int i = 0; i < 16; i++) {
        int code = 0;
        while (code < 16 && di_e2m1_decode((uint8_t)code) * scale != x[i]) code++;
        if (code == 16) return false;
        codes[i / 2] |= (uint8_t)(code << (i % 2 ? 4 : 0));
    }
    return true;
}

static void encode_q4c(const float *x, int64_t n, uint8_t *codes, uint8_t *scales) {
    for (int64_t b = 0; b < n / 16; b++) {
        uint8_t scale = 1;
        while (scale < 127 && !encode_16(x + b * 16, di_e4m3_decode(scale), codes + b * 8)) scale++;
        assert_true(scale < 127);
        scales[b] = scale;
    }
}

/* ---- Selection ---- */

/* The k best of n stored scores among the candidates, ascending, -1 behind them. */
static void best_entries(const float *scores, const uint8_t *candidates, int32_t n, int32_t k,
                         int32_t *out) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t better = 0;
        bool out_of_it = candidates != NULL && candidates[i] == 0;
        if (out_of_it || scores[i] == -INFINITY) continue;
        for (int32_t j = 0; j < n; j++) {
            if (candidates != NULL && candidates[j] == 0) continue;
            better += scores[j] > scores[i] || (scores[j] == scores[i] && j < i);
        }
        if (better < k) out[count++] = i;
    }
    while (count < k) out[count++] = -1;
}

/* Masks of entries to lists of blocks, ascending, -1 behind them. */
static int32_t *block_lists(const di_tensor *mask, int32_t top, int32_t size) {
    int32_t rows = (int32_t)mask->shape[0], n = (int32_t)mask->shape[1];
    int32_t *blocks = rc_host_memory(rows * top, sizeof *blocks);
    for (int32_t t = 0; t < rows; t++) {
        int32_t count = 0;
        for (int32_t b = 0; b * size < n && count < top; b++) {
            if (mask->data[t * n + b * size] != 0) blocks[t * top + count++] = b;
        }
        while (count < top) blocks[t * top + count++] = -1;
    }
    return blocks;
}

static void compare_lists(const rr *r, const char *kind, di_ptr got, const int32_t *want,
                          int32_t rows, int32_t width) {
    char name[64];
    int32_t *lists = rc_host_memory(rows * width, sizeof *lists);
    uint8_t *same = rc_host_memory(2 * rows, 1), *all = same + rows;
    device_get(r->dev, got, lists, (uint64_t)(rows * width) * 4);
    for (int32_t t = 0; t < rows; t++) {
        all[t] = 1;
        same[t] = memcmp(lists + t * width, want + t * width, (size_t)width * 4) == 0;
    }
    snprintf(name, sizeof name, "%s.%s", r->op.scope, kind);
    release_compare_fused(r->score, name, kind, all, same, 0, RC_FUSED_SHARE, rows);
    free(lists);
    free(same);
}

/* With every top_k, so that the picks show the order of all scores. */
void rc_run_index_select(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *keys = rc_part_of(r, "index_scores", "in.keys");
    const di_tensor *scores = rc_part_of(r, "index_scores", "out");
    int32_t n_keys = (int32_t)keys->shape[0], top = c->candidate_topk_blocks;
    int32_t size = c->candidate_block_size;
    di_batch batch = rc_batch_of(r, "index_q_rope", false);
    di_pages pages = rc_one_page(r, batch.n_slots);
    uint8_t *codes = rc_host_memory(release_count(keys), 1),
            *scales = codes + release_count(keys) / 2;
    encode_q4i(release_floats(keys), release_count(keys), codes, scales);
    di_backend *b = r->dev->backend;
    b->upload(r->stream, rc_page_part(&pages, pages.key_codes), codes,
              (uint64_t)release_count(keys) / 2);
    b->upload(r->stream, rc_page_part(&pages, pages.key_scales), scales,
              (uint64_t)release_count(keys) / 32);
    free(codes);
    bool source = rc_has(r, "candidates", "out"), use = rc_has(r, "topk", "in.candidates");
    const di_tensor *mask = use ? rc_part_of(r, "topk", "in.candidates") : NULL;
    int32_t *blocks = source ? block_lists(rc_part_of(r, "candidates", "out"), top, size)
                      : use  ? block_lists(mask, top, size)
                             : NULL;
    int32_t rows = batch.n_rows, *want = rc_host_memory(rows * n_keys, sizeof *want);
    di_index_select_args args = {.batch = batch,
                                 .n_heads = c->index_n_heads,
                                 .candidate_mode = source ? DI_CANDIDATES_SOURCE
                                                   : use  ? DI_CANDIDATES_USE
                                                          : DI_CANDIDATES_NONE,
                                 .top_blocks = top,
                                 .block_size = size,
                                 .rope = rr_rope_of(r, true),
                                 .qr = rc_put_a(r, "index_wq_b", "in"),
                                 .u = rc_put_a(r, "index_weights", "in"),
                                 .wq_b = rr_matrix_of(r, "attn.indexer.wq_b.weight"),
                                 .weights_proj =
                                     rr_matrix_of(r, "attn.indexer.weights_proj.weight"),
                                 .pages = pages,
                                 .candidates =
                                     source ? device_take(r->dev, (uint64_t)(rows * top) * 4)
                                     : use  ? device_put(r->dev, blocks, (uint64_t)(rows * top) * 4)
                                            : DI_NONE,
                                 .picks = device_take(r->dev, (uint64_t)(rows * n_keys) * 4)};
    for (args.top_k = 1; args.top_k <= n_keys; args.top_k++) {
        r->ops->index_select(r->stream, &args);
        for (int32_t t = 0; t < rows; t++) {
            best_entries(release_floats(scores) + t * n_keys,
                         mask == NULL ? NULL : mask->data + t * n_keys, n_keys, args.top_k,
                         want + t * args.top_k);
        }
        compare_lists(r, "index_select.picks", args.picks, want, rows, args.top_k);
    }
    if (source) compare_lists(r, "index_select.candidates", args.candidates, blocks, rows, top);
    free(blocks);
    free(want);
}

/* ---- Attention ---- */

typedef struct window_rows {     /* stored keys as codes: window rows, then entries */
    int32_t n, n_entries, first; /* first: position of the first window row */
    uint8_t *codes, *scales, *entry_codes, *entry_scales;
} window_rows;

static window_rows encode_keys(const rr *r, int32_t n_window, int32_t first) {
    const di_tensor *keys = rr_part(r, "in.keys");
    int64_t d = keys->shape[1], n = keys->shape[0] - n_window;
    window_rows w = {n_window,
                     (int32_t)n,
                     first,
                     rc_host_memory(n_window * d, 1),
                     rc_host_memory(n_window * d / 32, 1),
                     rc_host_memory(n * d / 2, 1),
                     rc_host_memory(n * d / 16, 1)};
    encode_q8(release_floats(keys), n_window * d, w.codes, w.scales);
    encode_q4c(release_floats(keys) + n_window * d, n * d, w.entry_codes, w.entry_scales);
    return w;
}

static void free_keys(window_rows *w) {
    free(w->codes);
    free(w->scales);
    free(w->entry_codes);
    free(w->entry_scales);
}

/* Bytes of the rows' own window keys, `width` bytes a key. */
static di_ptr put_step(const rr *r, const window_rows *w, const uint8_t *keys, int64_t width,
                       const int32_t *positions, int32_t n) {
    uint8_t *own = rc_host_memory(n * width, 1);
    for (int32_t t = 0; t < n; t++) {
        memcpy(own + t * width, keys + (positions[t] - w->first) * width, (size_t)width);
    }
    di_ptr out = device_put(r->dev, own, (uint64_t)(n * width));
    free(own);
    return out;
}

/* Rings that hold the keys before each sequence's length and 0xA7 elsewhere. */
static di_ptr put_rings(const rr *r, const window_rows *w, const uint8_t *keys, int64_t width,
                        const int32_t *length, int32_t n_slots) {
    uint8_t *rings = rc_host_memory(n_slots * RC_RING * width, 1);
    memset(rings, 0xA7, (size_t)(n_slots * RC_RING * width));
    for (int32_t s = 0; s < n_slots; s++) {
        for (int32_t p = w->first; p < length[s]; p++) {
            memcpy(rings + (s * RC_RING + p % RC_RING) * width, keys + (p - w->first) * width,
                   (size_t)width);
        }
    }
    di_ptr out = device_put(r->dev, rings, (uint64_t)(n_slots * RC_RING * width));
    free(rings);
    return out;
}

/* The picks behind the window part of the stored lists. */
static di_ptr put_picks(const rr *r, int32_t window, int32_t n_window, int32_t *top_k) {
    const di_tensor *slots = rr_part(r, "in.slots");
    int32_t rows = (int32_t)slots->shape[0], width = (int32_t)slots->shape[1];
    int32_t *lists = release_ints(slots), k = width - window;
    *top_k = k;
    if (k <= 0) {
        free(lists);
        return DI_NONE;
    }
    int32_t *picks = rc_host_memory(rows * k, sizeof *picks);
    for (int32_t i = 0; i < rows * k; i++) {
        int32_t key = lists[i / k * width + window + i % k];
        picks[i] = key < 0 ? -1 : key - n_window;
    }
    di_ptr out = device_put(r->dev, picks, (uint64_t)(rows * k) * 4);
    free(lists);
    free(picks);
    return out;
}

void rc_run_attend(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t *positions = release_ints(rc_part_of(r, "o_rope", "in.positions"));
    bool drafts = r->layer < 0;
    int32_t rows = (int32_t)rr_part(r, "in.q")->shape[0], window = c->sliding_window,
            d = c->head_dim;
    int32_t n_window = drafts ? window + rows : RC_PROMPT;
    window_rows w = encode_keys(r, n_window, drafts ? RC_PROMPT - window : 0);
    di_batch batch = rc_batch_at(r, positions, rows, drafts);
    di_pages pages = {0};
    if (w.n_entries > 0) {
        pages = rc_one_page(r, batch.n_slots);
        di_backend *b = r->dev->backend;
        b->upload(r->stream, rc_page_part(&pages, 0), w.entry_codes,
                  (uint64_t)(w.n_entries * d / 2));
        b->upload(r->stream, rc_page_part(&pages, pages.scales), w.entry_scales,
                  (uint64_t)(w.n_entries * d / 16));
    }
    di_attend_args args = {.batch = batch,
                           .n_heads = c->num_attention_heads,
                           .head_dim = d,
                           .window = window,
                           .rope = rr_rope_of(r, rr_compressed_layer(r)),
                           .q = rr_put_a(r, "in.q"),
                           .kv_codes = put_step(r, &w, w.codes, d, positions, rows),
                           .kv_scales = put_step(r, &w, w.scales, d / 32, positions, rows),
                           .ring = {put_rings(r, &w, w.codes, d, positions, batch.n_slots),
                                    put_rings(r, &w, w.scales, d / 32, positions, batch.n_slots),
                                    RC_RING},
                           .pages = pages,
                           .sink = rr_vector_of(r, "attn.attn_sink"),
                           .out = device_take_a(r->dev, release_count(rr_part(r, "in.q"))),
                           .block = drafts && r->planted != RELEASE_BLOCK_CAUSAL ? rows : 0};
    if (r->planted == RELEASE_WINDOW_SHORT) args.window--;
    if (!drafts) args.picks = put_picks(r, window, n_window, &args.top_k);
    r->ops->attend(r->stream, &args);
    rc_compare_a(r, "o_rope", args.out);
    free_keys(&w);
    free(positions);
}
