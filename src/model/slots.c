/* Slots as others move them about: which pages they use, and their windows saved to host memory and
 * brought back. A snapshot is a header, the window rings of all layers, the compressor rings, the
 * token history, and one page, in this order.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/network.h"

typedef struct snapshot_header {
    int64_t length, cut_from, floor_lower, floor_upper, closed;
    int32_t margin, unused;
} snapshot_header;

/* ---- Pages ---- */

di_status di_context_set_pages(di_context *context, int32_t slot, int32_t first,
                               const int32_t *pages, int32_t n, di_error *error) {
    const di_context_options *o = &context->options;
    if (o->n_pages == 0) {
        return di_fail(error, DI_ERR_USAGE, "this context shares no pages (n_pages is 0)");
    }
    if (slot < 0 || slot >= o->n_slots || first < 0 || n < 0 ||
        n > context->pages_per_slot - first) {
        return di_fail(error, DI_ERR_USAGE, "pages %d to %d of slot %d: out of range", first,
                       first + n, slot);
    }
    for (int32_t i = 0; i < n; i++) {
        if (pages[i] < 0 || pages[i] >= o->n_pages) {
            return di_fail(error, DI_ERR_USAGE, "page %d of slot %d: number %d, the pool has %d",
                           first + i, slot, pages[i], o->n_pages);
        }
    }
    size_t at = (size_t)slot * (size_t)context->pages_per_slot + (size_t)first;
    memcpy(context->page_of + at, pages, (size_t)n * sizeof *pages);
    di_backend *backend = context->backend;
    if (n > 0) {
        backend->upload(backend->stream, di_ptr_at(context->at.page_table, at * 4), pages,
                        (uint64_t)n * 4);
    }
    return DI_OK;
}

static di_ptr page_at(const di_context *context, int32_t page) {
    return di_ptr_at(context->at.page_pool, (uint64_t)page * context->page_bytes);
}

static void page_require(const di_context *context, int32_t page) {
    const di_context_options *o = &context->options;
    int64_t n = o->n_pages ? o->n_pages : (int64_t)o->n_slots * context->pages_per_slot;
    if (page >= 0 && page < n) return;
    fprintf(stderr,
            "di_context_copy_page: page %d, the pool has %" PRId64 "; this is a bug of the "
            "caller\n",
            page, n);
    abort();
}

void di_context_copy_page(di_context *context, int32_t to, int32_t from) {
    di_backend *backend = context->backend;
    page_require(context, to);
    page_require(context, from);
    if (to == from) return;
    backend->copy(backend->stream, page_at(context, to), page_at(context, from),
                  context->page_bytes);
}

/* ---- Snapshots ---- */

/* The regions of device memory that belong to a slot, in the order of a snapshot. */
typedef void (*visit_region)(di_context *context, di_ptr device, uint8_t *host, uint64_t bytes);

static uint64_t each_region(di_context *context, int32_t slot, uint8_t *host, visit_region visit) {
    const di_config *c = &context->model->config;
    uint64_t s = (uint64_t)slot, slots = (uint64_t)context->options.n_slots, at = 0;
    uint64_t ring = (uint64_t)context->ring_slots, d = (uint64_t)c->head_dim;
    uint64_t layers = (uint64_t)c->num_hidden_layers;
    if (context->options.drafts) layers += (uint64_t)c->num_nextn_predict_layers;
    for (uint64_t layer = 0; layer < layers; layer++) {
        uint64_t row = (layer * slots + s) * ring;
        if (visit) {
            visit(context, di_ptr_at(context->at.window_codes, row * d), host + at, ring * d);
            visit(context, di_ptr_at(context->at.window_scales, row * (d / 32)),
                  host + at + ring * d, ring * (d / 32));
        }
        at += ring * d + ring * (d / 32);
    }
    uint64_t raw = (uint64_t)context->compress_slots * 2 * d * context->backend->f_bytes;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        if (!c->roles[i].is_kv_source || c->roles[i].ratio == 1) continue;
        if (visit) visit(context, di_ptr_at(context->compress_ring[i], s * raw), host + at, raw);
        at += raw;
    }
    uint64_t history = (uint64_t)context->history_slots * 4;
    if (visit) visit(context, di_ptr_at(context->at.history, s * history), host + at, history);
    return at + history;
}

uint64_t di_context_snapshot_bytes(const di_context *context) {
    di_context *same = (di_context *)(uintptr_t)context; /* only counts */
    return sizeof(snapshot_header) + each_region(same, 0, NULL, NULL) + context->page_bytes;
}

static void download(di_context *context, di_ptr device, uint8_t *host, uint64_t bytes) {
    context->backend->download(context->backend->stream, host, device, bytes);
}

static void upload(di_context *context, di_ptr device, uint8_t *host, uint64_t bytes) {
    context->backend->upload(context->backend->stream, device, host, bytes);
}

/* The page that holds the tokens behind the last full page, or -1. */
static int32_t unfinished_page(const di_context *context, int32_t slot) {
    int64_t length = context->length[slot];
    if (length % DI_PAGE_TOKENS == 0) return -1;
    return context->page_of[(int64_t)slot * context->pages_per_slot + length / DI_PAGE_TOKENS];
}

void di_context_save(di_context *context, int32_t slot, void *host) {
    di_slot_require_settled(context, slot, __func__);
    di_context_catch_up(context);
    const snapshot_header header = {context->length[slot],
                                    context->cut_from[slot],
                                    context->floor_lower[slot],
                                    context->floor_upper[slot],
                                    context->closed[slot],
                                    context->margin[slot],
                                    0};
    uint8_t *to = (uint8_t *)host + sizeof header;
    memcpy(host, &header, sizeof header);
    to += each_region(context, slot, to, download);
    int32_t page = unfinished_page(context, slot);
    if (page >= 0) download(context, page_at(context, page), to, context->page_bytes);
}

void di_context_restore(di_context *context, int32_t slot, const void *host) {
    snapshot_header header;
    di_slot_require(context, slot, __func__);
    memcpy(&header, host, sizeof header);
    uint8_t *from = (uint8_t *)(uintptr_t)host + sizeof header; /* only read */
    di_context_reset(context, slot);
    context->length[slot] = header.length;
    context->margin[slot] = header.margin;
    context->cut_from[slot] = header.cut_from;
    di_context_put_length(context, slot);
    di_context_put_floors(context, slot, header.floor_lower, header.floor_upper, header.closed);
    from += each_region(context, slot, from, upload);
    int32_t page = unfinished_page(context, slot);
    if (page >= 0) upload(context, page_at(context, page), from, context->page_bytes);
}

di_status di_context_wait(di_context *context, di_error *error) {
    return di_backend_sync(context->backend, error);
}
