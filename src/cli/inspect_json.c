/* inspect for programs: one object. */
#include <inttypes.h>
#include <string.h>

#include "base/lossy.h"
#include "cli/inspect_report.h"

static void json_kinds(const di_inspect_subject *s, di_buffer *out) {
    di_buffer_puts(out, ", \"kinds\": {");
    for (int i = 0; i < DI_N_KINDS; i++) {
        const di_inspect_kind *k = &s->found.kinds[i];
        di_buffer_printf(out,
                         "%s\"%s\": {\"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64
                         ", \"values\": %" PRIu64 "}",
                         i ? ", " : "", di_tensor_kind_name((di_tensor_kind)i), k->tensors,
                         k->bytes, k->values);
    }
    di_buffer_puts(out, "}");
}

static void json_layers(const di_inspect_subject *s, di_buffer *out) {
    di_buffer_puts(out, ", \"layers\": [");
    for (int32_t i = 0; i < s->config.num_hidden_layers; i++) {
        const struct di_layer_role *r = &s->config.roles[i];
        di_buffer_printf(
            out,
            "%s{\"layer\": %d, \"ratio\": %d, \"kv_source\": %d, \"index_source\": %d, "
            "\"candidate_source\": %s, \"uses_candidates\": %s, \"engram\": %s, "
            "\"dspark_target\": %s, \"bytes\": %" PRIu64 "}",
            i ? ", " : "", (int)i, (int)r->ratio, (int)r->kv_source, (int)r->index_source,
            r->is_candidate_source ? "true" : "false", r->uses_candidates ? "true" : "false",
            r->engram >= 0 ? "true" : "false", r->dspark_target >= 0 ? "true" : "false",
            s->found.layer_bytes[i]);
    }
    di_buffer_puts(out, "]");
}

static void json_need(const di_inspect_subject *s, di_buffer *out) {
    const di_context_bytes *b = &s->state;
    int64_t page = di_config_page_bytes(&s->config);
    uint64_t pages = (uint64_t)di_inspect_pool_pages(s);
    di_buffer_printf(out,
                     ", \"backend\": \"%s\", \"numerics\": \"%s\", \"token_bytes\": %.10g, "
                     "\"page_bytes\": %" PRId64 ", \"context\": %" PRId64
                     ", \"batch\": %d, \"rows\": %d, \"drafts\": %s",
                     s->backend, s->numerics, (double)page / DI_PAGE_TOKENS, page,
                     s->context.max_context, (int)s->context.n_slots, (int)s->context.max_rows,
                     s->context.drafts ? "true" : "false");
    di_buffer_printf(out, ", \"pool\": {\"pages\": %" PRIu64 ", \"bytes\": %" PRIu64 "}", pages,
                     pages * (uint64_t)page);
    di_buffer_printf(out,
                     ", \"state\": {\"pages\": %" PRIu64 ", \"windows\": %" PRIu64
                     ", \"rings\": %" PRIu64 ", \"counts\": %" PRIu64 ", \"logits\": %" PRIu64
                     ", \"activations\": %" PRIu64 ", \"workspace\": %" PRIu64
                     ", \"total\": %" PRIu64 "}",
                     b->pages, b->windows, b->rings, b->counts, b->logits, b->activations,
                     b->workspace, b->total);
    di_buffer_printf(out, ", \"resident_bytes\": %" PRIu64 ", \"released_bytes\": %" PRIu64,
                     s->found.resident_bytes, s->found.released_bytes);
}

/* null: no GPU was asked for, or there is none, for "no_gpu". */
static void json_gpu(const di_inspect_subject *s, di_buffer *out) {
    const di_gpu_plan *g = &s->gpu;
    di_buffer_puts(out, ", \"gpu\": ");
    if (!s->has_gpu) {
        di_buffer_puts(out, "null, \"no_gpu\": ");
        if (!s->no_gpu[0]) di_buffer_puts(out, "null");
        if (s->no_gpu[0]) di_lossy_write(out, s->no_gpu, strlen(s->no_gpu));
        return;
    }
    di_buffer_puts(out, "{\"device\": ");
    di_lossy_write(out, g->device, strlen(g->device));
    di_buffer_printf(out,
                     ", \"memory\": %" PRIu64 ", \"weights\": %" PRIu64 ", \"state\": %" PRIu64
                     ", \"host_tables\": %" PRIu64 ", \"layers\": %d, \"host_experts\": %" PRIu64
                     ", \"fits\": %s}",
                     g->memory, g->weights, g->state.total, g->host_tables, (int)g->layers,
                     g->host_experts, g->fits ? "true" : "false");
}

void di_inspect_json(const di_inspect_subject *s, di_buffer *out) {
    const di_inspect *f = &s->found;
    di_buffer_puts(out, "{\"model\": ");
    di_lossy_write(out, s->name, strlen(s->name));
    di_buffer_printf(out,
                     ", \"tensors\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"values\": %" PRIu64
                     ", \"active_values\": %" PRIu64 ", \"decode_bytes\": %" PRIu64,
                     f->tensors, f->bytes, f->values, f->active_values, f->decode_bytes);
    if (f->has_files) {
        di_buffer_printf(out,
                         ", \"files\": %d, \"file_bytes\": %" PRIu64 ", \"missing\": %" PRIu64
                         ", \"unknown\": %" PRIu64 ", \"unknown_bytes\": %" PRIu64,
                         (int)f->n_shards, f->file_bytes, f->missing, f->unknown, f->unknown_bytes);
    }
    json_kinds(s, out);
    json_layers(s, out);
    json_need(s, out);
    json_gpu(s, out);
    di_buffer_puts(out, "}\n");
}
