/* kernelcheck: rows of a step, history, embedding, Engram. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"

static void positions(const kc_layout *layout, int32_t *live) {
    for (int32_t t = 0, slot; t < layout->total; t++) live[t] = kc_position(layout, t, &slot);
}

static kc_batch rows_of(check *c, const kc_layout *l, int32_t vocab) {
    return kc_rows(c, l->n_slots, l->length, l->n_rows, l->valid, vocab);
}

static kc_pair of_batch(const kc_batch *b, uint64_t offset) {
    kc_pair p;
    for (int i = 0; i < 2; i++) memcpy(&p.p[i], (const char *)&b->b[i] + offset, sizeof p.p[i]);
    return p;
}
#define BATCH_PTR(b, field) of_batch(b, offsetof(di_batch, field))

/* Rows before the ends of their slots, on both sides against the definition. */
static void check_scattered_rows(check *c) {
    kc_scatter s = kc_random_scatter(c, 1000, kc_pick(c, 1, 40, 0), 500);
    int32_t pos[64], token[64], next[4];
    for (int i = 0; i < 2; i++) {
        const di_batch *b = &s.batch.b[i];
        device_get(&c->dev[i], b->pos, pos, (uint64_t)s.n * 4);
        device_get(&c->dev[i], b->token, token, (uint64_t)s.n * 4);
        device_get(&c->dev[i], b->next_token, next, (uint64_t)s.layout.n_slots * 4);
        for (int32_t t = 0; t < s.n; t++) {
            int32_t want = s.live[t], id = next[s.rows[t].slot];
            if (want < 0 ? pos[t] >= 0 : pos[t] != want || token[t] != id) {
                kc_fail(c, "side %d: row %d at offset %d: pos %d, token %d; want %d, %d", i, t,
                        s.rows[t].offset, pos[t], token[t], want, id);
            }
        }
    }
}

void kc_check_step_begin(check *c) {
    kc_layout layout = kc_random_layout(c, 1000, 1000);
    int32_t live[64], got[64], slot;
    kc_batch b = rows_of(c, &layout, 500); /* runs it */
    positions(&layout, live);
    kc_compare_bytes(c, "pos", BATCH_PTR(&b, pos), layout.total, 4, NULL);
    kc_compare_bytes(c, "first", BATCH_PTR(&b, first), layout.total, 4, NULL);
    kc_compare_bytes(c, "token", BATCH_PTR(&b, token), layout.total, 4, live);
    device_get(&c->dev[0], b.b[0].pos, got, (uint64_t)layout.total * 4);
    for (int32_t t = 0; t < layout.total; t++) { /* the twin against the layout itself */
        if (got[t] != kc_position(&layout, t, &slot)) kc_fail(c, "twin: pos[%d] = %d", t, got[t]);
    }
    if (!c->bench) check_scattered_rows(c);
}

void kc_check_step_end(check *c) {
    kc_layout layout = kc_random_layout(c, 1000, 1000);
    int32_t slots = kc_pick(c, 1, 15, 15), fresh[4 * 15], valid[4];
    for (int i = 0; i < 60; i++) fresh[i] = -7;
    kc_batch b = rows_of(c, &layout, 500);
    kc_pair history = kc_ints(c, fresh, layout.n_slots * slots);
    for (int32_t s = 0; s < layout.n_slots; s++) { /* as accept leaves them */
        valid[s] = kc_bits(c) % 3 ? kc_pick(c, 0, 10, 10) : INT32_MAX;
    }
    for (int i = 0; i < 2; i++) {
        di_backend *backend = c->dev[i].backend;
        backend->upload(backend->stream, b.b[i].n_valid, valid, (uint64_t)layout.n_slots * 4);
    }
    KC_RUN(c, step_end, b.b[i], history.p[i], slots);
    kc_compare_bytes(c, "history", history, layout.n_slots, slots * 4, NULL);
    kc_compare_bytes(c, "n_valid", BATCH_PTR(&b, n_valid), layout.n_slots, 4, NULL);
    kc_compare_bytes(c, "length", BATCH_PTR(&b, length), layout.n_slots, 4, NULL);
}

void kc_check_rewind(check *c) {
    int32_t n = kc_pick(c, 1, 9, 9), length[9], count[9];
    for (int32_t s = 0; s < n; s++) {
        length[s] = kc_pick(c, 12, 5000, 50);
        count[s] = kc_pick(c, 0, 12, 3);
    }
    kc_pair lengths = kc_ints(c, length, n), counts = kc_ints(c, count, n);
    KC_RUN(c, rewind, n, lengths.p[i], counts.p[i]);
    kc_compare_bytes(c, "length", lengths, 1, n * 4, NULL);
}

void kc_check_embed(check *c) {
    kc_layout layout = kc_random_layout(c, 100, 100);
    int32_t live[64], vocab = kc_pick(c, 3, 60, 1000), hc = kc_pick(c, 1, 8, 4);
    int32_t width = kc_pick(c, 1, 200, 5120);
    kc_batch b = rows_of(c, &layout, vocab);
    kc_matrix embed = kc_table(c, DI_BF16, vocab, width, 1);
    int64_t rows = layout.total;
    kc_pair streams = kc_take_a(c, rows * hc * width), pre = kc_take_f(c, rows * hc);
    positions(&layout, live);
    KC_RUN(c, embed, b.b[i], embed.m[i], hc, streams.p[i], pre.p[i]);
    kc_compare_a(c, "streams", streams, rows, (int64_t)hc * width, 1e-30, live);
    kc_compare_f(c, "pre", pre, rows, hc, 1e-30, live);
    kc_work(c, (double)hc * width * 4 + width * 2, 0);
}

void kc_check_engram_hash(check *c) {
    kc_layout layout = kc_random_layout(c, 40, 1000);
    int32_t vocab = 50, slots = kc_pick(c, 8, 15, 15), layers = kc_pick(c, 1, 3, 2), live[64];
    int32_t ngram = kc_pick(c, 1, 8, 4), heads = kc_pick(c, 1, 8, 8), history[4 * 15], map[50];
    int32_t columns = (ngram - 1) * heads;
    int64_t numbers[3 * 8 * 8 * 2], multipliers[3 * 8];
    if (columns == 0) ngram = 2, columns = heads;
    for (int i = 0; i < 60; i++) history[i] = (int32_t)(kc_bits(c) % (uint64_t)vocab);
    for (int i = 0; i < 50; i++) map[i] = (int32_t)(kc_bits(c) % 99092);
    for (int i = 0; i < layers * ngram; i++)
        multipliers[i] = (int64_t)(kc_bits(c) % 93078876567783) | 1;
    for (int i = 0; i < layers * columns; i++) {
        numbers[i] = 3 + (int64_t)(kc_bits(c) % 16000000);
        numbers[layers * columns + i] = (int64_t)(kc_bits(c) % 384000000);
    }
    kc_batch b = rows_of(c, &layout, vocab);
    kc_pair past = kc_ints(c, history, layout.n_slots * slots), classes = kc_ints(c, map, vocab);
    kc_pair m = kc_put(c, multipliers, (uint64_t)(layers * ngram) * 8);
    kc_pair primes = kc_put(c, numbers, (uint64_t)(layers * columns) * 8);
    kc_pair offsets = kc_put(c, numbers + layers * columns, (uint64_t)(layers * columns) * 8);
    kc_pair out = kc_take(c, (uint64_t)(layers * layout.total * columns) * 8);
    positions(&layout, live);
    KC_RUN(c, engram_hash, b.b[i], past.p[i], slots, classes.p[i], 17, layers, ngram, heads, m.p[i],
           primes.p[i], offsets.p[i], out.p[i]);
    for (int32_t l = 0; l < layers; l++) {
        kc_compare_bytes(c, "table_rows", kc_at(out, (uint64_t)(l * layout.total * columns) * 8),
                         layout.total, columns * 8, live);
    }
}

void kc_check_engram_rows(check *c) {
    int32_t rows = kc_pick(c, 1, 9, 1), columns = kc_pick(c, 1, 24, 24), live[9];
    int32_t width = kc_pick_step(c, 32, 256, 32, 256), table = c->bench ? 100000 : 40;
    int64_t *wanted = calloc((size_t)rows * (size_t)columns, 8), n = (int64_t)table * width;
    uint8_t *codes = malloc((size_t)n), *scales = malloc((size_t)n / 32);
    if (wanted == NULL || codes == NULL || scales == NULL) abort();
    for (int32_t i = 0; i < rows * columns; i++)
        wanted[i] = (int64_t)(kc_bits(c) % (uint64_t)table);
    for (int32_t t = 0; t < rows; t++) live[t] = kc_bits(c) % 4 == 0 && !c->bench ? -1 : 5;
    kc_quantized(c, DI_Q8, n, codes, scales);
    scales[0] = 1; /* the smallest scale, a large one */
    scales[n / 32 - 1] = 230;
    for (int32_t i = 0; i < columns; i++) {
        if (live[0] < 0) wanted[i] = INT64_MAX; /* a dead row names no table row */
    }
    kc_pair pos =
        c->round % 2 && live[0] >= 0 ? (kc_pair){{DI_NONE, DI_NONE}} : kc_ints(c, live, rows);
    kc_pair at = kc_put(c, wanted, (uint64_t)(rows * columns) * 8);
    kc_pair code = kc_put(c, codes, (uint64_t)n), scale = kc_put(c, scales, (uint64_t)n / 32);
    kc_pair out = kc_take_a(c, (int64_t)rows * columns * width);
    KC_RUN(c, engram_rows, rows, columns, width, pos.p[i], at.p[i], code.p[i], scale.p[i],
           out.p[i]);
    kc_compare_a(c, "out", out, rows, (int64_t)columns * width, 1e-30, live);
    kc_work(c, (double)columns * width * 5, 0);
    free(wanted);
    free(codes);
    free(scales);
}

void kc_check_engram_gate(check *c) {
    int32_t rows = kc_pick(c, 1, 12, 1), hc = kc_pick(c, 1, 8, 4), width = kc_pick(c, 1, 300, 5120);
    kc_style style = kc_style_of(c);
    if (!c->bench && c->round % 2) width = (width + 31) / 32 * 32;
    double eps = c->round % 4 == 3 ? 1e-6 : 1e-20;
    kc_pair kv =
        kc_random_a(c, (int64_t)rows * (hc + 1) * width, style == KC_HUGE ? KC_NORMAL : style, 1);
    kc_matrix q = kc_table(c, DI_BF16, hc, width, 1), k = kc_table(c, DI_BF16, hc, width, 1);
    float *x = kc_values(c, (int64_t)rows * hc * width, style, 1, true);
    kc_pair streams, again, gate = kc_take_f(c, rows * hc), none = {{DI_NONE, DI_NONE}};
    for (int i = 0; i < 2; i++) {
        streams.p[i] = device_put_a(&c->dev[i], x, (int64_t)rows * hc * width);
        again.p[i] = device_put_a(&c->dev[i], x, (int64_t)rows * hc * width);
    }
    if (style == KC_TINY || style == KC_ZEROS) eps = 1e-6; /* or 1 / 0 */
    KC_RUN(c, engram_gate, rows, hc, width, eps, kv.p[i], q.m[i], k.m[i], streams.p[i], gate.p[i]);
    kc_compare_a(c, "streams", streams, (int64_t)rows * hc, width, DI_BOUND_SUM, NULL);
    kc_compare_f(c, "gate", gate, rows, hc, DI_BOUND_SUM, NULL);
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, again, (int64_t)r * hc * width);
    kc_pair one_kv = kc_at_a(c, kv, (int64_t)r * (hc + 1) * width);
    if (!c->bench) {
        KC_RUN(c, engram_gate, 1, hc, width, eps, one_kv.p[i], q.m[i], k.m[i], one.p[i], none.p[i]);
        kc_same_a(c, "streams", one, kc_at_a(c, streams, (int64_t)r * hc * width),
                  (int64_t)hc * width);
    }
    kc_work(c, (double)hc * width * 4 * 3, (double)hc * width * 10);
    free(x);
}
