/* kernelcheck: what steps over pages are made of. */
#include "kernelcheck_scene.h"

#include <stdlib.h>
#include <string.h>

kc_scene kc_scene_of(check *c, kc_layout layout) {
    kc_scene s = {.layout = layout};
    kc_layout *l = &s.layout;
    l->total = 0;
    for (int32_t slot = 0; slot < l->n_slots; slot++) l->total += l->n_rows[slot];
    s.rows = l->total;
    s.batch = kc_rows(c, l->n_slots, l->length, l->n_rows, l->valid, 300);
    for (int32_t t = 0, slot; t < s.rows; t++) s.live[t] = kc_position(l, t, &slot);
    return s;
}

kc_scene kc_random_scene(check *c, int32_t max_length, int32_t bench_length) {
    return kc_scene_of(c, kc_random_layout(c, max_length, bench_length));
}

kc_pair kc_put_quantized(check *c, di_quantizer kind, int64_t n, kc_pair *scales) {
    int64_t bytes = kind == DI_Q8 ? n : n / 2, count = n / (kind == DI_Q4C ? 16 : 32);
    uint8_t *codes = malloc((size_t)bytes + 1), *scale = malloc((size_t)count + 1);
    if (codes == NULL || scale == NULL) abort();
    kc_quantized(c, kind, n, codes, scale);
    kc_pair p = kc_put(c, codes, (uint64_t)bytes);
    *scales = kc_put(c, scale, (uint64_t)count);
    free(codes);
    free(scale);
    return p;
}

/* Index keys of n values, a multiple of 64, whose codes are uniform: for long lists, of which
 * normal values took most of the time. */
static void quick_keys(check *c, int64_t n, uint8_t *codes, uint8_t *scales) {
    for (int64_t i = 0; i < n / 2; i += 8) {
        uint64_t bits = kc_bits(c);
        memcpy(codes + i, &bits, sizeof bits);
    }
    for (int64_t i = 0; i < n / 32; i++) scales[i] = (uint8_t)(125 + kc_bits(c) % 3);
}

bool kc_has_whole_pages(const check *c) { return c->bench || c->round % 2 == 1; }

kc_pages kc_random_pages(check *c, int32_t n_slots, int32_t tokens, int32_t ratio, int32_t d,
                         int32_t di, bool whole) {
    int32_t per_slot = tokens / 64 + 1, n = n_slots * per_slot + 1, entries = 64 / ratio,
            table[4096];
    uint32_t lead = c->bench ? 0 : 32 * (uint32_t)(c->round % 3); /* another source stands before */
    uint32_t codes = lead, scales = codes + (uint32_t)(entries * d / 2);
    uint32_t keys = scales + (uint32_t)(entries * d / 16);
    uint32_t key_scales = keys + (uint32_t)(entries * di / 2);
    uint64_t page = key_scales + (uint64_t)(entries * di / 32) + (whole ? 0 : 7);
    if (n > 4096) abort();
    uint8_t *pool = malloc((size_t)(page * (uint64_t)n));
    if (pool == NULL) abort();
    memset(pool, 0x5B, (size_t)(page * (uint64_t)n));
    for (int32_t p = 0; p < n; p++) {
        uint8_t *at = pool + page * (uint64_t)p;
        kc_quantized(c, DI_Q4C, (int64_t)entries * d, at + codes, at + scales);
        if (tokens > 9000)
            quick_keys(c, (int64_t)entries * di, at + keys, at + key_scales);
        else
            kc_quantized(c, DI_Q4I, (int64_t)entries * di, at + keys, at + key_scales);
        table[p] = p;
    }
    for (int32_t p = n - 1; p > 0; p--) { /* a page's place is no page's number */
        int32_t q = (int32_t)(kc_bits(c) % (uint64_t)(p + 1)), swap = table[p];
        table[p] = table[q];
        table[q] = swap;
    }
    kc_pages out = {.pool = kc_put(c, pool, page * (uint64_t)n), .bytes = page * (uint64_t)n};
    kc_pair numbers = kc_ints(c, table, n_slots * per_slot);
    for (int i = 0; i < 2; i++) {
        out.side[i] = (di_pages){out.pool.p[i], page,   numbers.p[i], per_slot,  ratio, d, di,
                                 codes,         scales, keys,         key_scales};
    }
    free(pool);
    return out;
}

kc_pair kc_random_picks(check *c, const kc_scene *s, int32_t ratio, int32_t top_k) {
    int32_t *picks = calloc((size_t)(s->rows * top_k) + 1, 4);
    if (picks == NULL) abort();
    for (int32_t t = 0; t < s->rows; t++) {
        int32_t visible = s->live[t] < 0 ? 0 : (s->live[t] + 1) / ratio, n = 0;
        int32_t wanted = t == 0 ? top_k : kc_pick(c, 0, top_k, top_k);
        for (int32_t j = 0; j < visible && n < wanted; j++) {
            if (kc_bits(c) % (uint64_t)visible < (uint64_t)wanted) picks[t * top_k + n++] = j;
        }
        while (n < top_k) picks[t * top_k + n++] = -1;
        if (s->live[t] < 0) picks[t * top_k] = 1 << 30; /* a dead row's may hold anything */
    }
    kc_pair p = kc_ints(c, picks, s->rows * top_k);
    free(picks);
    return p;
}

kc_pair kc_repeated(check *c, kc_pair once, uint64_t bytes, int32_t times) {
    uint8_t *all = calloc((size_t)times, (size_t)bytes + 1);
    if (all == NULL) abort();
    for (int32_t i = 0; i < times; i++)
        memcpy(all + bytes * (uint64_t)i, (const void *)(uintptr_t)once.p[0].address,
               (size_t)bytes);
    kc_pair out = kc_put(c, all, bytes * (uint64_t)times);
    free(all);
    return out;
}
kc_pair kc_pair_of(di_ptr a, di_ptr b) { return (kc_pair){{a, b}}; }

int32_t kc_crowd_batch(check *c, const di_batch few[2], int32_t rows, di_batch out[2]) {
    const int32_t times = KC_CROWD_ROWS / rows;
    const uint64_t ints = (uint64_t)rows * 4;
    kc_pair each = kc_repeated(c, kc_pair_of(few[0].rows, few[1].rows),
                               sizeof(di_row) * (uint64_t)rows, times);
    kc_pair pos = kc_repeated(c, kc_pair_of(few[0].pos, few[1].pos), ints, times);
    kc_pair first = kc_repeated(c, kc_pair_of(few[0].first, few[1].first), ints, times);
    for (int i = 0; i < 2; i++) {
        out[i] = few[i];
        out[i].n_rows = rows * times, out[i].rows = each.p[i];
        out[i].pos = pos.p[i], out[i].first = first.p[i];
    }
    return times;
}
