#include "support/live_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/network.h"

typedef struct reader {
    di_context *context;
    live_state *to; /* bytes NULL: only counts */
} reader;

static void read_bytes(const reader *r, di_ptr from, uint64_t at, uint64_t bytes) {
    di_backend *backend = r->context->backend;
    if (r->to->bytes) {
        backend->download(backend->stream, r->to->bytes + r->to->n, di_ptr_at(from, at), bytes);
    }
    r->to->n += bytes;
}

static int64_t not_negative(int64_t x) { return x > 0 ? x : 0; }

static void read_windows(const reader *r, int32_t slot, int64_t length, int32_t margin,
                         bool drafts) {
    const di_context *context = r->context;
    const di_config *c = &context->model->config;
    uint64_t d = (uint64_t)c->head_dim, layers = (uint64_t)c->num_hidden_layers;
    if (drafts) layers += (uint64_t)c->num_nextn_predict_layers;
    int64_t first = not_negative(length - margin - (c->sliding_window - 1));
    for (uint64_t layer = 0; layer < layers; layer++) {
        uint64_t ring = layer * (uint64_t)context->options.n_slots + (uint64_t)slot;
        for (int64_t p = first; p < length; p++) {
            uint64_t row =
                ring * (uint64_t)context->ring_slots + (uint64_t)(p % context->ring_slots);
            read_bytes(r, context->at.window_codes, row * d, d);
            read_bytes(r, context->at.window_scales, row * (d / 32), d / 32);
        }
    }
}

static void read_rings(const reader *r, int32_t slot, int64_t length, int32_t margin) {
    const di_context *context = r->context;
    const di_config *c = &context->model->config;
    uint64_t row = 2 * (uint64_t)c->head_dim * context->backend->f_bytes;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        int32_t ratio = c->roles[i].ratio;
        if (!c->roles[i].is_kv_source || ratio == 1) continue;
        for (int64_t p = not_negative(length - margin) / ratio * ratio; p < length; p++) {
            int64_t place = (int64_t)slot * context->compress_slots + p % context->compress_slots;
            read_bytes(r, context->compress_ring[i], (uint64_t)place * row, row);
        }
    }
}

static void read_history(const reader *r, int32_t slot, int64_t length, int32_t margin) {
    const di_context *context = r->context;
    int32_t n = context->history_slots, reach = context->model->config.engram_max_ngram_size - 1;
    for (int64_t p = not_negative(length - margin - reach); p < length; p++) {
        read_bytes(r, context->at.history, (uint64_t)(slot * n + p % n) * 4, 4);
    }
}

static void read_entries(const reader *r, int32_t slot, int64_t length) {
    const di_context *context = r->context;
    const di_config *c = &context->model->config;
    const int32_t *pages = context->page_of + (int64_t)slot * context->pages_per_slot;
    uint64_t d = (uint64_t)c->head_dim, di = (uint64_t)c->index_head_dim;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        if (!c->roles[i].is_kv_source) continue;
        const struct di_page_part *part = &context->page_part[i];
        int64_t per_page = DI_PAGE_TOKENS / c->roles[i].ratio;
        for (int64_t j = 0; j < length / c->roles[i].ratio; j++) {
            uint64_t page = (uint64_t)pages[j / per_page] * context->page_bytes;
            uint64_t place = (uint64_t)(j % per_page);
            di_ptr pool = di_ptr_at(context->at.page_pool, page);
            read_bytes(r, pool, part->codes + place * d / 2, d / 2);
            read_bytes(r, pool, part->scales + place * d / 16, d / 16);
            read_bytes(r, pool, part->key_codes + place * di / 2, di / 2);
            read_bytes(r, pool, part->key_scales + place * di / 32, di / 32);
        }
    }
}

live_state live_state_read(di_context *context, int32_t slot, int64_t length, int32_t margin,
                           bool drafts) {
    live_state state = {0};
    di_error error;
    di_context_catch_up(context);
    for (int pass = 0; pass < 2; pass++) {
        const reader r = {context, &state};
        if (pass == 1) state.bytes = malloc(state.n + 1);
        if (pass == 1) assert_non_null(state.bytes);
        state.n = 0;
        read_windows(&r, slot, length, margin, drafts);
        state.windows = state.n;
        read_rings(&r, slot, length, margin);
        state.rings = state.n;
        read_history(&r, slot, length, margin);
        state.history = state.n;
        read_entries(&r, slot, length);
        state.pages = state.n;
    }
    if (di_context_wait(context, &error) != DI_OK) fail_msg("%s", error.message);
    return state;
}

void live_state_free(live_state *state) {
    free(state->bytes);
    *state = (live_state){0};
}

void live_state_expect_same(const live_state *got, const live_state *want, const char *what) {
    assert_int_equal(got->n, want->n);
    for (uint64_t i = 0; i < want->n; i++) {
        if (got->bytes[i] == want->bytes[i]) continue;
        const char *part = i < want->windows   ? "windows"
                           : i < want->rings   ? "raw rows of open groups"
                           : i < want->history ? "history"
                                               : "pages";
        fail_msg("%s: %s differ at byte %llu of %llu", what, part, (unsigned long long)i,
                 (unsigned long long)want->n);
    }
}

uint8_t *live_state_page(di_context *context, int32_t page) {
    di_error error;
    uint8_t *bytes = malloc(context->page_bytes);
    assert_non_null(bytes);
    context->backend->download(context->backend->stream, bytes,
                               di_ptr_at(context->at.page_pool,
                                         (uint64_t)page * context->page_bytes),
                               context->page_bytes);
    if (di_context_wait(context, &error) != DI_OK) fail_msg("%s", error.message);
    return bytes;
}
