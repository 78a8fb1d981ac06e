/* Coarse operations against stored ones: the table at the end says which begins with what.
 *
 * The stored rows are a sample of one prompt's positions. Where an operation may see a row alone,
 * each row is a sequence of its own whose length is its position; all of them share one page, since
 * the prompt is shorter than that. What a sequence has in its caches is written from stored values.
 */
#include "support/release_coarse.h"

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
#include "support/release_run.h"

enum { PROMPT = 33, RING = 64 }; /* tokens of the stored prompt; window rows of a sequence here */

/* Codes and selections behind a fused quantiser. The stored vectors ask for 99.5 %; a rounding left
 * out before a 4-bit quantiser moves fewer codes than that, and float32 sums move none. */
static const double FUSED_SHARE = 0.999;

/* The same scope's operation of another name. */
static rr at(const rr *r, const char *op) {
    rr copy = *r;
    snprintf(copy.op.op, sizeof copy.op.op, "%s", op);
    return copy;
}
static bool has(const rr *r, const char *op, const char *part) {
    rr other = at(r, op);
    return release_find(r->file, &other.op, part) != NULL;
}
static const di_tensor *part_of(const rr *r, const char *op, const char *part) {
    rr other = at(r, op);
    return rr_part(&other, part);
}
static di_ptr put_a(const rr *r, const char *op, const char *part) {
    rr other = at(r, op);
    return rr_put_a(&other, part);
}
static di_ptr put_f(const rr *r, const char *op, const char *part) {
    rr other = at(r, op);
    return rr_put_f(&other, part);
}
static void compare_a(const rr *r, const char *op, di_ptr got) {
    rr other = at(r, op);
    rr_compare_a(&other, "out", got);
}
static void compare_f(const rr *r, const char *op, di_ptr got) {
    rr other = at(r, op);
    rr_compare_f(&other, "out", got);
}

static void *host_memory(int64_t n, size_t size) {
    void *p = calloc((size_t)n + 1, size);
    assert_non_null(p);
    return p;
}

/* ---- Rows of a step, pages, codes ---- */

/* Rows at these positions: each a sequence of its own, or all of one from the first position on. */
static di_batch batch_at(const rr *r, const int32_t *positions, int32_t n, bool together) {
    int32_t n_slots = together ? 1 : n;
    di_row *rows = host_memory(n, sizeof *rows);
    int32_t *valid = host_memory(n, sizeof *valid);
    for (int32_t t = 0; t < n; t++) {
        rows[t] = (di_row){0, together ? 0 : t, together ? t : 0};
        valid[t] = together ? n : 1;
    }
    uint64_t ints = (uint64_t)n_slots * 4;
    di_batch batch = {n,
                      n_slots,
                      device_put(r->dev, rows, (uint64_t)n * sizeof *rows),
                      device_put(r->dev, positions, ints),
                      device_put(r->dev, valid, ints),
                      device_put(r->dev, valid, ints),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      device_take(r->dev, (uint64_t)n * 4),
                      DI_NONE};
    r->ops->step_begin(r->stream, &(di_step_begin_args){batch});
    free(rows);
    free(valid);
    return batch;
}

static di_batch batch_of(const rr *r, const char *op, bool together) {
    const di_tensor *t = part_of(r, op, "in.positions");
    int32_t *positions = release_ints(t);
    di_batch batch = batch_at(r, positions, (int32_t)release_count(t), together);
    free(positions);
    return batch;
}

/* One page that is every sequence's first, laid out as its parts follow each other. */
static di_pages one_page(const rr *r, int32_t n_slots) {
    const di_config *c = &r->file->config;
    int32_t ratio = c->roles[r->layer].ratio, d = c->head_dim, di = c->index_head_dim;
    uint32_t n = (uint32_t)(64 / ratio), width = (uint32_t)d, key = (uint32_t)di;
    uint32_t scales = n * width / 2, keys = scales + n * width / 16,
             key_scales = keys + n * key / 2;
    uint64_t bytes = key_scales + n * key / 32;
    int32_t *table = host_memory(n_slots, sizeof *table);
    di_pages pages = {device_take(r->dev, bytes),
                      bytes,
                      device_put(r->dev, table, (uint64_t)n_slots * 4),
                      1,
                      ratio,
                      d,
                      di,
                      0,
                      scales,
                      keys,
                      key_scales};
    free(table);
    return pages;
}

static di_ptr page_part(const di_pages *p, uint32_t offset) { return di_ptr_at(p->pool, offset); }

/* n codes on the device, two a byte if `pairs`, against a stored part of one code a byte. */
static void compare_codes(const rr *r, const char *op, const char *part, di_ptr got, bool pairs,
                          int sign) {
    char name[96], kind[64];
    rr other = at(r, op);
    const di_tensor *want = rr_part(&other, part);
    int64_t n = release_count(want), n_bytes = pairs ? n / 2 : n;
    uint8_t *bytes = host_memory(2 * n, 1), *codes = bytes + n;
    device_get(r->dev, got, bytes, (uint64_t)n_bytes);
    for (int64_t i = 0; i < n; i++) {
        codes[i] = pairs ? bytes[i / 2] >> (i % 2 ? 4 : 0) & 15 : bytes[i];
    }
    rr_names_of(&other, part, name, kind);
    release_compare_fused(r->score, name, kind, want->data, codes, sign, FUSED_SHARE, n);
    free(bytes);
}

/* Codes and scales of window rows. */
static void compare_q8(const rr *r, const char *op, di_ptr codes, di_ptr scales) {
    compare_codes(r, op, "out.codes", codes, false, 0x80);
    compare_codes(r, op, "out.scales", scales, false, 0);
}

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

/* ---- Queries, window keys, compressor ---- */

static void run_qkv(const rr *r) {
    const di_config *c = &r->file->config;
    di_batch batch = batch_of(r, "q_rope", false);
    di_matrix wq_a = rr_matrix_of(r, "attn.wq_a.weight");
    int32_t rows = batch.n_rows, heads = c->num_attention_heads, d = c->head_dim;
    di_ptr qr = device_take_a(r->dev, rows * wq_a.n);
    di_ptr q = device_take_a(r->dev, (int64_t)rows * heads * d);
    di_ptr codes = device_take(r->dev, (uint64_t)(rows * d));
    di_ptr scales = device_take(r->dev, (uint64_t)(rows * d / 32));
    r->ops->qkv(r->stream,
                &(di_qkv_args){batch, heads, d, c->rms_norm_eps,
                               rr_rope_of(r, rr_compressed_layer(r)), put_a(r, "wq_a", "in"), wq_a,
                               rr_matrix_of(r, "attn.wq_b.weight"),
                               rr_matrix_of(r, "attn.wkv.weight"),
                               rr_vector_of(r, "attn.q_norm.weight"),
                               rr_vector_of(r, "attn.kv_norm.weight"), qr, q, codes, scales});
    compare_a(r, "q_norm", qr);
    compare_a(r, "q_rope", q);
    compare_q8(r, "kv_quant", codes, scales);
}

static void run_window_kv(const rr *r) {
    const di_config *c = &r->file->config;
    di_batch batch = batch_of(r, "ring_kv_rope", false);
    int32_t rows = batch.n_rows, d = c->head_dim;
    di_ptr codes = device_take(r->dev, (uint64_t)(rows * d));
    di_ptr scales = device_take(r->dev, (uint64_t)(rows * d / 32));
    r->ops->window_kv(r->stream,
                      &(di_window_kv_args){batch, d, c->rms_norm_eps, rr_rope_of(r, false),
                                           put_a(r, "ring_wkv", "in"),
                                           rr_matrix_of(r, "attn.wkv.weight"),
                                           rr_vector_of(r, "attn.kv_norm.weight"), codes, scales});
    compare_q8(r, "ring_kv_quant", codes, scales);
}

/* The ring holds c and g of every row, one after the other. */
static void compare_ring(const rr *r, di_ptr ring, int64_t d) {
    static const char *const ops[2] = {"compressor_wkv32", "compressor_wgate"};
    for (int gate = 0; gate < 2; gate++) {
        di_ptr raw = device_take_f(r->dev, PROMPT * d);
        uint64_t bytes = (uint64_t)d * r->dev->backend->f_bytes;
        for (uint64_t t = 0; t < PROMPT; t++) {
            r->dev->backend->copy(r->stream, di_ptr_at(raw, t * bytes),
                                  di_ptr_at(ring, (2 * t + (uint64_t)gate) * bytes), bytes);
        }
        compare_f(r, ops[gate], raw);
    }
}

/* The whole prompt in one step. */
static void run_compress(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t zero = 0, d = c->head_dim;
    bool pooled = c->roles[r->layer].ratio > 1, keys = has(r, "index_wk", "in");
    const char *first = pooled ? "compressor_wkv32" : "compressor_wkv";
    assert_int_equal(part_of(r, first, "in")->shape[0], PROMPT);
    di_pages pages = one_page(r, 1);
    di_compress_args args = {.batch = batch_at(r, &zero, PROMPT, true),
                             .eps = c->rms_norm_eps,
                             .rope = rr_rope_of(r, true),
                             .u = put_a(r, first, "in"),
                             .wkv = rr_matrix_of(r, "attn.compressor.wkv.weight"),
                             .norm = rr_vector_of(r, "attn.compressor.norm.weight"),
                             .ring_slots = RING,
                             .pages = pages};
    if (pooled) {
        args.wgate = rr_matrix_of(r, "attn.compressor.wgate.weight");
        args.ring = device_take_f(r->dev, RING * 2 * d);
    }
    if (keys) {
        args.wk = rr_matrix_of(r, "attn.indexer.wk.weight");
        args.k_norm = rr_vector_of(r, "attn.indexer.k_norm.weight");
    }
    r->ops->compress(r->stream, &args);
    compare_codes(r, "compressor_quant", "out.codes", page_part(&pages, 0), true, 8);
    compare_codes(r, "compressor_quant", "out.scales", page_part(&pages, pages.scales), false, 0);
    if (keys) {
        di_ptr codes = page_part(&pages, pages.key_codes);
        compare_codes(r, "index_k_quant", "out.codes", codes, true, 8);
        compare_codes(r, "index_k_quant", "out.scales", page_part(&pages, pages.key_scales), false,
                      0);
    }
    if (pooled) compare_ring(r, args.ring, d);
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
    int32_t *blocks = host_memory(rows * top, sizeof *blocks);
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
    int32_t *lists = host_memory(rows * width, sizeof *lists);
    uint8_t *same = host_memory(2 * rows, 1), *all = same + rows;
    device_get(r->dev, got, lists, (uint64_t)(rows * width) * 4);
    for (int32_t t = 0; t < rows; t++) {
        all[t] = 1;
        same[t] = memcmp(lists + t * width, want + t * width, (size_t)width * 4) == 0;
    }
    snprintf(name, sizeof name, "%s.%s", r->op.scope, kind);
    release_compare_fused(r->score, name, kind, all, same, 0, FUSED_SHARE, rows);
    free(lists);
    free(same);
}

/* With every top_k, so that the picks show the order of all scores. */
static void run_index_select(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *keys = part_of(r, "index_scores", "in.keys");
    const di_tensor *scores = part_of(r, "index_scores", "out");
    int32_t n_keys = (int32_t)keys->shape[0], top = c->candidate_topk_blocks;
    int32_t size = c->candidate_block_size;
    di_batch batch = batch_of(r, "index_q_rope", false);
    di_pages pages = one_page(r, batch.n_slots);
    uint8_t *codes = host_memory(release_count(keys), 1), *scales = codes + release_count(keys) / 2;
    encode_q4i(release_floats(keys), release_count(keys), codes, scales);
    di_backend *b = r->dev->backend;
    b->upload(r->stream, page_part(&pages, pages.key_codes), codes,
              (uint64_t)release_count(keys) / 2);
    b->upload(r->stream, page_part(&pages, pages.key_scales), scales,
              (uint64_t)release_count(keys) / 32);
    free(codes);
    bool source = has(r, "candidates", "out"), use = has(r, "topk", "in.candidates");
    const di_tensor *mask = use ? part_of(r, "topk", "in.candidates") : NULL;
    int32_t *blocks = source ? block_lists(part_of(r, "candidates", "out"), top, size)
                      : use  ? block_lists(mask, top, size)
                             : NULL;
    int32_t rows = batch.n_rows, *want = host_memory(rows * n_keys, sizeof *want);
    di_index_select_args args = {.batch = batch,
                                 .n_heads = c->index_n_heads,
                                 .candidate_mode = source ? DI_CANDIDATES_SOURCE
                                                   : use  ? DI_CANDIDATES_USE
                                                          : DI_CANDIDATES_NONE,
                                 .top_blocks = top,
                                 .block_size = size,
                                 .rope = rr_rope_of(r, true),
                                 .qr = put_a(r, "index_wq_b", "in"),
                                 .u = put_a(r, "index_weights", "in"),
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
                     host_memory(n_window * d, 1),
                     host_memory(n_window * d / 32, 1),
                     host_memory(n * d / 2, 1),
                     host_memory(n * d / 16, 1)};
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
    uint8_t *own = host_memory(n * width, 1);
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
    uint8_t *rings = host_memory(n_slots * RING * width, 1);
    memset(rings, 0xA7, (size_t)(n_slots * RING * width));
    for (int32_t s = 0; s < n_slots; s++) {
        for (int32_t p = w->first; p < length[s]; p++) {
            memcpy(rings + (s * RING + p % RING) * width, keys + (p - w->first) * width,
                   (size_t)width);
        }
    }
    di_ptr out = device_put(r->dev, rings, (uint64_t)(n_slots * RING * width));
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
    int32_t *picks = host_memory(rows * k, sizeof *picks);
    for (int32_t i = 0; i < rows * k; i++) {
        int32_t key = lists[i / k * width + window + i % k];
        picks[i] = key < 0 ? -1 : key - n_window;
    }
    di_ptr out = device_put(r->dev, picks, (uint64_t)(rows * k) * 4);
    free(lists);
    free(picks);
    return out;
}

static void run_attend(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t *positions = release_ints(part_of(r, "o_rope", "in.positions"));
    bool drafts = r->layer < 0;
    int32_t rows = (int32_t)rr_part(r, "in.q")->shape[0], window = c->sliding_window,
            d = c->head_dim;
    int32_t n_window = drafts ? window + rows : PROMPT;
    window_rows w = encode_keys(r, n_window, drafts ? PROMPT - window : 0);
    di_batch batch = batch_at(r, positions, rows, drafts);
    di_pages pages = {0};
    if (w.n_entries > 0) {
        pages = one_page(r, batch.n_slots);
        di_backend *b = r->dev->backend;
        b->upload(r->stream, page_part(&pages, 0), w.entry_codes, (uint64_t)(w.n_entries * d / 2));
        b->upload(r->stream, page_part(&pages, pages.scales), w.entry_scales,
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
                                    RING},
                           .pages = pages,
                           .sink = rr_vector_of(r, "attn.attn_sink"),
                           .out = device_take_a(r->dev, release_count(rr_part(r, "in.q"))),
                           .block = drafts ? rows : 0};
    if (!drafts) args.picks = put_picks(r, window, n_window, &args.top_k);
    r->ops->attend(r->stream, &args);
    compare_a(r, "o_rope", args.out);
    free_keys(&w);
    free(positions);
}

static void run_attn_out(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->attn_out(r->stream, &(di_attn_out_args){rows, c->o_groups, rr_put_a(r, "in"),
                                                    rr_matrix_of(r, "attn.wo_a.weight"),
                                                    rr_matrix_of(r, "attn.wo_b.weight"), out});
    compare_a(r, "wo_b", out);
}

/* ---- Sublayers, experts, head ---- */

static void run_sublayer_in(const rr *r) {
    const di_config *c = &r->file->config;
    bool ffn = strcmp(r->op.op, "ffn_collapse") == 0;
    const char *norm = ffn ? "ffn_norm" : "attn_norm";
    int32_t rows = (int32_t)rr_part(r, "in.pre")->shape[0], width = c->hidden_size;
    di_ptr out = device_take_a(r->dev, rows * width);
    r->ops->sublayer_in(r->stream,
                        &(di_sublayer_in_args){rows, c->hc_mult, width, c->rms_norm_eps,
                                               rr_put_a(r, "in.streams"), rr_put_f(r, "in.pre"),
                                               rr_vector_of(r, ffn ? "ffn_norm.weight"
                                                                   : "attn_norm.weight"),
                                               DI_NONE, out});
    compare_a(r, norm, out);
}

/* The rows that one expert got, each with this one pick. */
static void run_experts(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t n = r->layer < 0 ? c->dspark_n_routed_experts : c->n_routed_experts;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0],
            *which = release_ints(rr_part(r, "in.expert"));
    static const char *const names[3] = {"w1", "w3", "w2"};
    di_matrix w[3];
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "ffn.experts.%d.%s.weight", which[0], names[i]);
        w[i] = rr_matrix_of(r, name);
    }
    di_expert *experts = host_memory(n, sizeof *experts);
    int32_t *picks = host_memory(rows, sizeof *picks);
    for (int32_t t = 0; t < rows; t++) picks[t] = which[0];
    experts[which[0]] =
        (di_expert){w[0].data, w[0].scale, w[1].data, w[1].scale, w[2].data, w[2].scale};
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->experts(r->stream,
                    &(di_experts_args){rows, 1, n, c->swiglu_limit, DI_NONE, rr_put_a(r, "in"),
                                       device_put(r->dev, picks, (uint64_t)rows * 4),
                                       put_f(r, "expert_h", "in.weights"), w[0].dtype, w[0].k,
                                       w[0].n,
                                       device_put(r->dev, experts, (uint64_t)n * sizeof *experts),
                                       out});
    compare_a(r, "expert_w2", out);
    free(which);
    free(picks);
    free(experts);
}

static void run_shared_expert(const rr *r) {
    const di_config *c = &r->file->config;
    int32_t rows = (int32_t)rr_part(r, "in")->shape[0];
    di_ptr out = device_take_a(r->dev, rows * c->hidden_size);
    r->ops->shared_expert(r->stream,
                          &(di_shared_expert_args){rows, c->swiglu_limit, rr_put_a(r, "in"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w1.weight"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w3.weight"),
                                                   rr_matrix_of(r, "ffn.shared_experts.w2.weight"),
                                                   out});
    compare_a(r, "shared_w2", out);
}

static void run_head(const rr *r) {
    const di_config *c = &r->file->config;
    bool draft = strcmp(r->op.op, "draft_collapse") == 0;
    int32_t rows = (int32_t)rr_part(r, "in.pre")->shape[0];
    int32_t *which = host_memory(rows, sizeof *which);
    for (int32_t t = 0; t < rows; t++) which[t] = t;
    di_ptr normed = device_take_a(r->dev, rows * c->hidden_size);
    di_ptr logits = device_take_f(r->dev, (int64_t)rows * c->vocab_size);
    r->ops->head(r->stream, &(di_head_args){rows, c->hc_mult, c->hidden_size, c->rms_norm_eps,
                                            device_put(r->dev, which, (uint64_t)rows * 4),
                                            rr_put_a(r, "in.streams"), rr_put_f(r, "in.pre"),
                                            rr_vector_of(r, draft ? "norm.weight" : "/norm.weight"),
                                            rr_matrix_of(r, "/head.weight"), normed, logits});
    compare_a(r, draft ? "draft_norm" : "final_norm", normed);
    compare_f(r, draft ? "base_logits" : "logits", logits);
    free(which);
}

static void run_markov(const rr *r) {
    const di_config *c = &r->file->config;
    const di_tensor *base = rr_part(r, "in");
    int32_t rows = (int32_t)base->shape[0], vocab = (int32_t)base->shape[1];
    di_ptr logits = device_take_f(r->dev, (int64_t)rows * vocab);
    di_ptr confidence = device_take_f(r->dev, rows);
    r->ops->markov(r->stream, &(di_markov_args){rows, vocab, c->hidden_size, 1, 1,
                                                rr_put_ints(r, rr_part(r, "in.previous")),
                                                rr_matrix_of(r, "markov_head.embed.weight"),
                                                rr_matrix_of(r, "markov_head.head.weight"),
                                                rr_matrix_of(r, "confidence_head.proj.weight"),
                                                rr_put_f(r, "in"), put_a(r, "confidence", "in"),
                                                logits, confidence});
    compare_f(r, "markov", logits);
    compare_f(r, "confidence", confidence);
}

/* ---- The table ---- */

static const struct {
    const char *first; /* stored operation it begins with */
    void (*run)(const rr *r);
} entries[] = {
    {"attn_collapse", run_sublayer_in},
    {"ffn_collapse", run_sublayer_in},
    {"wq_a", run_qkv},
    {"ring_wkv", run_window_kv},
    {"compressor_wkv", run_compress},
    {"compressor_wkv32", run_compress},
    {"index_scores", run_index_select},
    {"attend", run_attend},
    {"wo_a", run_attn_out},
    {"expert_w1", run_experts},
    {"shared_w1", run_shared_expert},
    {"final_collapse", run_head},
    {"draft_collapse", run_head},
    {"markov", run_markov},
};

int release_run_coarse(const release_file *file, const release_op *op, device *dev,
                       release_score *score) {
    int n = 0;
    rr r = rr_open(file, op, dev, score);
    if (strcmp(op->scope, "synthetic") == 0) return 0; /* lists without a sequence */
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].first, op->op) != 0) continue;
        entries[i].run(&r);
        n++;
    }
    return n;
}
