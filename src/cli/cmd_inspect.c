/* inspect: what is in a checkpoint, and what a machine needs to run it. */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/lossy.h"
#include "model/inspect.h"

enum { CHUNK_ROWS = 256 }; /* the default of --chunk */

typedef struct subject {
    const char *name;
    di_config config;
    di_checkpoint *checkpoint; /* NULL: from the config alone */
    di_inspect found;
    di_context_bytes state;
    int64_t context;
    int32_t batch;
} subject;

/* ---- Finding out ---- */

/* Weights of any kind: even one shard means that the directory is meant as a checkpoint. */
static bool has_weights(const char *directory) {
    static const char part[] = ".safetensors"; /* also in the name of the index */
    bool found = false;
    DIR *folder = opendir(directory);
    if (!folder) return true; /* opening the checkpoint will say why */
    for (struct dirent *entry; !found && (entry = readdir(folder)) != NULL;) {
        found = strstr(entry->d_name, part) != NULL;
    }
    closedir(folder);
    return found;
}

/* A model directory, a config.json (also one alone in a directory), or a name from the tree. */
static di_status open_subject(subject *s, di_error *error) {
    struct stat st;
    char path[4096];
    size_t size;
    const char *json;
    if (stat(s->name, &st) != 0 && (json = di_config_builtin(s->name, &size)) != NULL) {
        return di_config_parse(json, size, s->name, &s->config, error);
    }
    if (stat(s->name, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return di_config_load(s->name, &s->config, error);
    }
    if (snprintf(path, sizeof path, "%s/config.json", s->name) >= (int)sizeof path) {
        return di_fail(error, DI_ERR_USAGE, "the path of the model is too long");
    }
    DI_TRY(di_config_load(path, &s->config, error));
    if (!has_weights(s->name)) return DI_OK;
    DI_TRY(di_checkpoint_open(s->name, &s->config, &s->checkpoint, error));
    return di_checkpoint_check_scales(s->checkpoint, false, error);
}

/* What the engine would take: the fast path's workspaces where this machine has it. */
static di_status plan_state(subject *s, di_error *error) {
    di_backend *backend;
    const di_numerics numerics =
        strcmp(DI_DEFAULT_NUMERICS, "float") == 0 ? DI_NUMERICS_FLOAT : DI_NUMERICS_RELEASE;
    di_cpu_options cpu = {.n_threads = 0, .spin = 0, .cpu_mask = ~0u};
    di_status status = di_backend_create_cpu(numerics, &cpu, &backend, error);
    if (status != DI_OK) DI_TRY(di_backend_create_ref(numerics, &backend, error));
    status =
        di_inspect_state(&s->config, backend, s->context, s->batch, CHUNK_ROWS, &s->state, error);
    backend->destroy(backend);
    return status;
}

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

/* ---- Text ---- */

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

static void print_head(const subject *s, di_buffer *out) {
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

static void print_kinds(const subject *s, di_buffer *out) {
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

static void print_layers(const subject *s, di_buffer *out) {
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

static void print_need(const subject *s, di_buffer *out) {
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
    di_buffer_printf(out, "memory for %d sequence%s of %s tokens:\n", (int)s->batch,
                     s->batch == 1 ? "" : "s", grouped((uint64_t)s->context, a));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_buffer_printf(out, "  %-18s %9s\n", rows[i].what, sized(rows[i].bytes, a));
    }
    di_buffer_printf(out, "  %-18s %9s\n", "state in all", sized(b->total, a));
    di_buffer_printf(out, "  %-18s %9s, or %s at a time with layers read again\n", "weights",
                     sized(s->found.resident_bytes, a), sized(s->found.released_bytes, d));
}

/* ---- JSON ---- */

static void json_kinds(const subject *s, di_buffer *out) {
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

static void json_layers(const subject *s, di_buffer *out) {
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

static void json_need(const subject *s, di_buffer *out) {
    const di_context_bytes *b = &s->state;
    int64_t page = di_config_page_bytes(&s->config);
    di_buffer_printf(out,
                     ", \"token_bytes\": %.10g, \"page_bytes\": %" PRId64 ", \"context\": %" PRId64
                     ", \"batch\": %d, \"state\": {\"pages\": %" PRIu64 ", \"windows\": %" PRIu64
                     ", \"rings\": %" PRIu64 ", \"counts\": %" PRIu64 ", \"logits\": %" PRIu64
                     ", \"activations\": %" PRIu64 ", \"workspace\": %" PRIu64
                     ", \"total\": %" PRIu64 "}",
                     (double)page / DI_PAGE_TOKENS, page, s->context, (int)s->batch, b->pages,
                     b->windows, b->rings, b->counts, b->logits, b->activations, b->workspace,
                     b->total);
    di_buffer_printf(out, ", \"resident_bytes\": %" PRIu64 ", \"released_bytes\": %" PRIu64,
                     s->found.resident_bytes, s->found.released_bytes);
}

static void print_json(const subject *s, di_buffer *out) {
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
    di_buffer_puts(out, "}\n");
}

/* ---- The verb ---- */

static di_status print(const di_args *args, const subject *s, di_error *error) {
    di_buffer out = DI_BUFFER_EMPTY;
    if (di_args_flag(args, DI_OPT_JSON)) {
        print_json(s, &out);
    } else {
        print_head(s, &out);
        print_kinds(s, &out);
        print_layers(s, &out);
        print_need(s, &out);
    }
    di_status status = DI_OK;
    if (out.failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory printing");
    } else {
        fwrite(out.data, 1, out.size, stdout);
    }
    di_buffer_free(&out);
    return status;
}

di_status di_cmd_inspect(const di_args *args, di_error *error) {
    subject s = {.name = args->positional[0], .batch = (int32_t)di_args_int(args, DI_OPT_BATCH)};
    di_status status = open_subject(&s, error);
    if (status == DI_OK) {
        int64_t most = s.config.max_position_embeddings;
        s.context = di_args_given(args, DI_OPT_CONTEXT) ? di_args_int(args, DI_OPT_CONTEXT)
                    : most < 32768                      ? most
                                                        : 32768;
        status = di_inspect_make(&s.config, s.checkpoint, &s.found, error);
    }
    if (status == DI_OK) status = plan_state(&s, error);
    if (status == DI_OK) status = print(args, &s, error);
    di_checkpoint_close(s.checkpoint);
    return status;
}
