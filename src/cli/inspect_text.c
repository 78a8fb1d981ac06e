/* inspect for a person: tables, and sizes in the unit of --memory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "cli/inspect_report.h"

/* ---- Layers that read the same caches, together ---- */

static bool same_role(const di_config *c, int32_t a, int32_t b) {
    const struct di_layer_role *x = &c->roles[a], *y = &c->roles[b];
    return x->ratio == y->ratio && x->kv_source == y->kv_source &&
           x->index_source == y->index_source;
}

static int32_t group_end(const di_config *c, int32_t first) {
    int32_t end = first + 1;
    while (end < c->num_hidden_layers && same_role(c, first, end)) end++;
    return end;
}

static void add_note(di_buffer *out, int32_t layer, const char *what) {
    di_buffer_printf(out, "%s%d %s", out->size ? ", " : "", (int)layer, what);
}

static void describe_group(const di_config *c, int32_t first, int32_t end, di_buffer *out) {
    di_buffer_clear(out);
    for (int32_t i = first; i < end; i++) {
        const struct di_layer_role *role = &c->roles[i];
        if (role->engram >= 0) add_note(out, i, "Engram");
        if (role->is_candidate_source) add_note(out, i, "candidate source");
        if (role->uses_candidates) add_note(out, i, "with candidates");
        if (role->dspark_target >= 0) add_note(out, i, "DSpark target");
    }
}

/* ---- Numbers ---- */

/* 1234567 as "1,234,567". */
static const char *grouped(uint64_t value, char out[32]) {
    char digits[24];
    int n = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

/* "12.3 GiB": what --memory takes, and rounded up, so that what is read here is enough there. */
static const char *sized(uint64_t bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    while (value > 1023 && unit < 6) {
        value /= 1024;
        unit++;
    }
    if (unit == 0 || value > 99.9) {
        snprintf(out, 32, "%.0f %s", ceil(value), units[unit]);
    } else {
        snprintf(out, 32, "%.1f %s", ceil(value * 10) / 10, units[unit]);
    }
    return out;
}

/* ---- The parts ---- */

static void print_head(const di_inspect_subject *s, di_buffer *out) {
    const di_config *c = &s->config;
    const di_inspect *f = &s->found;
    char a[32], b[32], d[32];
    di_buffer_printf(out,
                     "%s: %d layers and %d draft layers, width %d, %d experts of which %d work, "
                     "vocabulary %s\n",
                     s->name, (int)c->num_hidden_layers, (int)c->num_nextn_predict_layers,
                     (int)c->hidden_size, (int)c->n_routed_experts, (int)c->num_experts_per_tok,
                     grouped((uint64_t)c->vocab_size, a));
    di_buffer_printf(out, "%s tensors, %s bytes", grouped(f->tensors, a), grouped(f->bytes, b));
    if (f->has_files) {
        di_buffer_printf(out, " in %d file%s of %s\n", (int)f->n_shards,
                         f->n_shards == 1 ? "" : "s", sized(f->file_bytes, d));
    } else {
        di_buffer_puts(out, " (from the config; no weights here)\n");
    }
    if (f->missing)
        di_buffer_printf(out, "%s vision tensors are not there\n", grouped(f->missing, a));
    if (f->unknown) {
        di_buffer_printf(out, "%s more tensors of %s that the model does not use\n",
                         grouped(f->unknown, a), sized(f->unknown_bytes, b));
    }
    di_buffer_printf(out, "%s values, %s of them active for a token; decoding one reads %s\n",
                     grouped(f->values, a), grouped(f->active_values, b),
                     sized(f->decode_bytes, d));
}

static void print_kinds(const di_inspect_subject *s, di_buffer *out) {
    char a[32], b[32];
    di_buffer_printf(out, "\n%-12s %10s %18s %7s\n", "kind", "tensors", "bytes", "share");
    for (int i = 0; i < DI_N_KINDS; i++) {
        const di_inspect_kind *k = &s->found.kinds[i];
        if (k->tensors == 0) continue;
        di_buffer_printf(out, "%-12s %10s %18s %5.1f %%\n", di_tensor_kind_name((di_tensor_kind)i),
                         grouped(k->tensors, a), grouped(k->bytes, b),
                         100.0 * (double)k->bytes / (double)s->found.bytes);
    }
}

static void print_source(int32_t source, int32_t first, int32_t end, di_buffer *out) {
    char text[32] = "-";
    if (source >= 0) {
        snprintf(text, sizeof text, source >= first && source < end ? "%d (own)" : "%d",
                 (int)source);
    }
    di_buffer_printf(out, " %-10s", text);
}

static void print_layers(const di_inspect_subject *s, di_buffer *out) {
    const di_config *c = &s->config;
    di_buffer notes = DI_BUFFER_EMPTY;
    char size[32], range[32];
    di_buffer_printf(out, "\n%-8s %5s %-10s %-10s %9s  %s\n", "layers", "ratio", "cache of",
                     "top-k of", "bytes", "");
    for (int32_t first = 0, end; first < c->num_hidden_layers; first = end) {
        end = group_end(c, first);
        uint64_t bytes = 0;
        for (int32_t i = first; i < end; i++) bytes += s->found.layer_bytes[i];
        const struct di_layer_role *role = &c->roles[first];
        snprintf(range, sizeof range, end - first > 1 ? "%d-%d" : "%d", (int)first, (int)(end - 1));
        di_buffer_printf(out, "%-8s %5d", range, (int)role->ratio);
        print_source(role->kv_source, first, end, out);
        print_source(role->index_source, first, end, out);
        describe_group(c, first, end, &notes);
        di_buffer_printf(out, " %9s  %s\n", sized(bytes, size), notes.size ? notes.data : "");
    }
    if (notes.failed) out->failed = true;
    di_buffer_free(&notes);
    if (c->num_nextn_predict_layers == 0) return;
    snprintf(range, sizeof range, c->num_nextn_predict_layers > 1 ? "mtp.0-%d" : "mtp.0",
             (int)c->num_nextn_predict_layers - 1);
    di_buffer_printf(out, "%-8s %5d", range, 0);
    print_source(-1, 0, 0, out);
    print_source(-1, 0, 0, out);
    di_buffer_printf(out, " %9s  DSpark drafts of %d tokens\n",
                     sized(s->found.kinds[DI_KIND_DSPARK].bytes, size), (int)c->dspark_block_size);
}

int64_t di_inspect_pool_pages(const di_inspect_subject *s) {
    const di_context_options *o = &s->context;
    if (o->n_pages > 0) return o->n_pages;
    return (o->max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS * o->n_slots;
}

static void print_need(const di_inspect_subject *s, di_buffer *out) {
    const di_context_bytes *b = &s->state;
    const struct {
        const char *what;
        uint64_t bytes;
    } rows[] = {{"pages", b->pages},
                {"windows", b->windows},
                {"compressor rings", b->rings},
                {"counts", b->counts},
                {"logits", b->logits},
                {"activations", b->activations},
                {"workspace", b->workspace}};
    char a[32], d[32];
    int64_t page = di_config_page_bytes(&s->config);
    di_buffer_printf(out, "\n%.10g bytes a token (a page of %d tokens: %s)\n",
                     (double)page / DI_PAGE_TOKENS, (int)DI_PAGE_TOKENS,
                     grouped((uint64_t)page, d));
    di_buffer_printf(out,
                     "memory for %d sequence%s of %s tokens, in steps of %d rows%s (%s, %s):\n",
                     (int)s->context.n_slots, s->context.n_slots == 1 ? "" : "s",
                     grouped((uint64_t)s->context.max_context, a), (int)s->context.max_rows,
                     s->context.drafts ? " with drafts" : "", s->backend, s->numerics);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_buffer_printf(out, "  %-18s %9s\n", rows[i].what, sized(rows[i].bytes, a));
    }
    di_buffer_printf(out, "  %-18s %9s\n", "state in all", sized(b->total, a));
    di_buffer_printf(out, "  %-18s %9s, or %s at a time with layers read again\n", "weights",
                     sized(s->found.resident_bytes, a), sized(s->found.released_bytes, d));
}

static void print_gpu(const di_inspect_subject *s, di_buffer *out) {
    const di_gpu_plan *g = &s->gpu;
    char a[32], b[32], d[32], e[32], layers[160];
    if (s->no_gpu[0]) di_buffer_printf(out, "  no GPU: %s\n", s->no_gpu);
    if (!s->has_gpu) return;
    di_buffer_printf(out, "%s:\n", g->device);
    di_buffer_printf(out, "  weights %s and state %s of %s that may be taken: %s\n",
                     sized(g->weights, a), sized(g->state.total, b), sized(g->memory, d),
                     g->fits ? "it fits" : "it does not fit");
    di_layers_text(g->layers, s->config.num_hidden_layers, g->host_experts, layers, sizeof layers);
    if (layers[0]) di_buffer_printf(out, "  %s\n", layers);
    if (g->host_tables > 0) {
        di_buffer_printf(out, "  Engram tables of %s stay in host memory\n",
                         sized(g->host_tables, e));
    }
}

void di_inspect_text(const di_inspect_subject *s, di_buffer *out) {
    print_head(s, out);
    print_kinds(s, out);
    print_layers(s, out);
    print_need(s, out);
    print_gpu(s, out);
}
