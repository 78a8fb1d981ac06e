/* From the config of a model to the config of a slice of it.
 *
 * The document is kept as it is, member by member, but for the fields that change: those are
 * collected as JSON texts by name (edits) and put in while the document is written again.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "model/engram.h"
#include "model/synth.h"
#include "text/tokenizer.h"

enum { MAX_EDITS = 64 };

typedef struct edit {
    const char *name;
    bool top;         /* a member of the document, else of text_config */
    const char *text; /* JSON; NULL: the member is left out */
    bool used;
} edit;

typedef struct slicer {
    di_arena arena;
    edit edits[MAX_EDITS];
    int n_edits;
    di_config from; /* the full model */
    const di_synth_overrides *o;
    const char *what;
    di_error *error;
} slicer;

di_synth_overrides di_synth_overrides_none(void) {
    return (di_synth_overrides){.draft_layers = -1};
}

/* ---- Edits ---- */

/* The last edit of a field wins. `text` is copied; NULL removes the field. */
static di_status set_text(slicer *s, const char *name, bool top, const char *text, size_t n) {
    int i = 0;
    while (i < s->n_edits && (s->edits[i].top != top || strcmp(s->edits[i].name, name) != 0)) i++;
    if (i == MAX_EDITS) {
        return di_fail(s->error, DI_ERR_LIMIT, "more than %d fields to change", (int)MAX_EDITS);
    }
    edit *e = &s->edits[i];
    e->top = top;
    e->used = false;
    e->name = di_arena_strndup(&s->arena, name, strlen(name));
    e->text = text ? di_arena_strndup(&s->arena, text, n) : NULL;
    if (!e->name || (text && !e->text)) {
        return di_fail(s->error, DI_ERR_MEMORY, "out of memory changing %s", s->what);
    }
    if (i == s->n_edits) s->n_edits++;
    return DI_OK;
}

static di_status set_number(slicer *s, const char *name, bool top, int64_t value) {
    char text[32];
    int n = snprintf(text, sizeof text, "%" PRId64, value);
    return set_text(s, name, top, text, (size_t)n);
}

static di_status set_list(slicer *s, const char *name, const int64_t *values, int32_t n) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_putc(&text, '[');
    for (int32_t i = 0; i < n; i++) {
        di_buffer_printf(&text, "%s%" PRId64, i ? ", " : "", values[i]);
    }
    di_buffer_putc(&text, ']');
    di_status status = text.failed
                           ? di_fail(s->error, DI_ERR_MEMORY, "out of memory changing %s", s->what)
                           : set_text(s, name, false, text.data, text.size);
    di_buffer_free(&text);
    return status;
}

/* "key=value": the value is JSON, or a string when it is none. */
static di_status set_pair(slicer *s, const di_json *document, const char *pair) {
    const char *equals = strchr(pair, '=');
    if (!equals || equals == pair) {
        return di_fail(s->error, DI_ERR_USAGE, "%.100s: expected KEY=VALUE", pair);
    }
    char key[96];
    int n = snprintf(key, sizeof key, "%.*s", (int)(equals - pair), pair);
    const di_json *text_config = di_json_get(document, "text_config");
    bool top = !di_json_get(text_config, key) && di_json_get(document, key);
    if (n >= (int)sizeof key || (!top && !di_json_get(text_config, key))) {
        return di_fail(s->error, DI_ERR_USAGE, "%.100s: %s has no field of that name", pair,
                       s->what);
    }
    const di_json *value;
    di_error ignored;
    const char *given = equals + 1;
    if (di_json_parse(given, strlen(given), key, &s->arena, &value, &ignored) == DI_OK) {
        return set_text(s, key, top, given, strlen(given));
    }
    di_buffer quoted = DI_BUFFER_EMPTY;
    di_json_write_string(&quoted, given, strlen(given));
    di_status status = quoted.failed
                           ? di_fail(s->error, DI_ERR_MEMORY, "out of memory changing %s", s->what)
                           : set_text(s, key, top, quoted.data, quoted.size);
    di_buffer_free(&quoted);
    return status;
}

/* ---- Writing the document again ---- */

static void write_indent(di_buffer *out, int depth) {
    di_buffer_putc(out, '\n');
    for (int i = 0; i < depth; i++) di_buffer_puts(out, "  ");
}

static edit *find_edit(slicer *s, bool top, const di_json *member) {
    for (int i = 0; i < s->n_edits; i++) {
        edit *e = &s->edits[i];
        if (e->top == top && strlen(e->name) == member->key_length &&
            memcmp(e->name, member->key, member->key_length) == 0) {
            return e;
        }
    }
    return NULL;
}

static void write_key(di_buffer *out, const char **separator, int depth, const char *key,
                      size_t key_length) {
    di_buffer_puts(out, *separator);
    *separator = ",";
    write_indent(out, depth + 1);
    di_json_write_string(out, key, key_length);
    di_buffer_puts(out, ": ");
}

/* A value on one line, numbers as they were written: 1e999 in a field nobody reads stays valid. */
static void write_value(di_buffer *out, const di_json *value) {
    if (value->type == DI_JSON_NUMBER) {
        di_buffer_append(out, value->text, value->length);
    } else if (value->type == DI_JSON_ARRAY || value->type == DI_JSON_OBJECT) {
        bool object = value->type == DI_JSON_OBJECT;
        di_buffer_putc(out, object ? '{' : '[');
        for (const di_json *item = value->first; item; item = item->next) {
            if (item != value->first) di_buffer_puts(out, ", ");
            if (object) di_json_write_string(out, item->key, item->key_length);
            if (object) di_buffer_puts(out, ": ");
            write_value(out, item);
        }
        di_buffer_putc(out, object ? '}' : ']');
    } else {
        di_json_write(out, value);
    }
}

/* Objects over several lines, everything else on one. Depth 0 is the document; it and text_config
 * take edits. A field that is not there yet goes to the end. */
static void write_object(slicer *s, const di_json *object, bool editable, int depth,
                         di_buffer *out) {
    const char *separator = "{";
    for (const di_json *m = object->first; m; m = m->next) {
        edit *e = editable ? find_edit(s, depth == 0, m) : NULL;
        if (e) e->used = true;
        if (e && !e->text) continue;
        write_key(out, &separator, depth, m->key, m->key_length);
        if (e) {
            di_buffer_puts(out, e->text);
        } else if (m->type == DI_JSON_OBJECT && m->first) {
            bool is_text = m->key_length == 11 && memcmp(m->key, "text_config", 11) == 0;
            write_object(s, m, depth == 0 && is_text, depth + 1, out);
        } else {
            write_value(out, m);
        }
    }
    for (int i = 0; editable && i < s->n_edits; i++) {
        const edit *e = &s->edits[i];
        if (e->used || !e->text || e->top != (depth == 0)) continue;
        write_key(out, &separator, depth, e->name, strlen(e->name));
        di_buffer_puts(out, e->text);
    }
    if (*separator == '{') di_buffer_putc(out, '{');
    write_indent(out, depth);
    di_buffer_putc(out, '}');
}

/* ---- Layers ---- */

static int32_t layer_of(const di_synth_overrides *o, int32_t i) {
    return o->layers ? o->layers[i] : i;
}

static di_status check_layers(const slicer *s) {
    const di_synth_overrides *o = s->o;
    int32_t all = s->from.num_hidden_layers;
    if (o->n_layers < 0 || o->n_layers > all) {
        return di_fail(s->error, DI_ERR_USAGE, "%d layers: %s has 1 to %d to choose from",
                       (int)o->n_layers, s->what, (int)all);
    }
    for (int32_t i = 0; o->layers && i < o->n_layers; i++) {
        if (o->layers[i] >= 0 && o->layers[i] < all &&
            (i == 0 || o->layers[i] > o->layers[i - 1])) {
            continue;
        }
        return di_fail(s->error, DI_ERR_USAGE,
                       "layer %d: expected ascending layers of %s, which has 0 to %d",
                       (int)o->layers[i], s->what, (int)(all - 1));
    }
    return DI_OK;
}

/* The sources of the slice: what was a source stays one; the first layer whose source was cut away
 * takes its place. */
static di_status slice_sources(slicer *s) {
    const di_synth_overrides *o = s->o;
    int64_t kv[DI_MAX_LAYERS], index[DI_MAX_LAYERS];
    int32_t n_kv = 0, n_index = 0, last_kv = -1, last_index = -1, candidate = -1;
    for (int32_t i = 0; i < o->n_layers; i++) {
        int32_t layer = layer_of(o, i);
        const struct di_layer_role *role = &s->from.roles[layer];
        if (layer == s->from.candidate_source_layer_id) candidate = i;
        if (role->ratio == 0) continue;
        bool new_kv = role->kv_source != last_kv;
        if (new_kv) kv[n_kv++] = i;
        if (new_kv || role->index_source != last_index) index[n_index++] = i;
        last_kv = role->kv_source;
        last_index = role->index_source;
    }
    DI_TRY(set_list(s, "kv_source_layer_ids", kv, n_kv));
    DI_TRY(set_list(s, "index_source_layer_ids", index, n_index));
    return set_number(s, "candidate_source_layer_id", false, candidate);
}

static di_status slice_engram(slicer *s) {
    const di_config *c = &s->from;
    int64_t layers[DI_MAX_ENGRAM_LAYERS], rows[DI_MAX_ENGRAM_LAYERS];
    int32_t n = 0;
    for (int32_t i = 0; i < s->o->n_layers; i++) {
        int32_t table = c->roles[layer_of(s->o, i)].engram;
        if (table < 0) continue;
        layers[n] = i;
        rows[n++] = c->engram_num_embeddings[table]; /* set_rows derives them again */
    }
    DI_TRY(set_list(s, "engram_layer_ids", layers, n));
    return set_list(s, "engram_num_embeddings", rows, n);
}

/* Targets that are all kept stay; otherwise the last layers, as many as there were. */
static di_status slice_targets(slicer *s) {
    const di_config *c = &s->from;
    int64_t targets[DI_MAX_LAYERS];
    int32_t kept = 0, n = c->n_dspark_targets;
    if (n == 0) return DI_OK;
    for (int32_t i = 0; i < s->o->n_layers; i++) {
        if (c->roles[layer_of(s->o, i)].dspark_target >= 0) targets[kept++] = i;
    }
    if (kept < n) {
        if (n > s->o->n_layers) n = s->o->n_layers;
        for (int32_t i = 0; i < n; i++) targets[i] = s->o->n_layers - n + i;
    }
    return set_list(s, "dspark_target_layer_ids", targets, n);
}

static di_status slice_layers(slicer *s) {
    const di_config *c = &s->from;
    const di_synth_overrides *o = s->o;
    bool cut = o->n_layers > 0;
    int32_t layers = cut ? o->n_layers : c->num_hidden_layers, n = 0;
    int32_t drafts = o->draft_layers >= 0 ? o->draft_layers : c->num_nextn_predict_layers;
    if (!cut && o->draft_layers < 0) return DI_OK;
    if (drafts > c->num_nextn_predict_layers) {
        return di_fail(s->error, DI_ERR_USAGE, "%d draft layers: %s has %d", (int)drafts, s->what,
                       (int)c->num_nextn_predict_layers);
    }
    int64_t ratios[DI_MAX_LAYERS];
    for (int32_t i = 0; i < layers; i++) ratios[n++] = c->compress_ratios[cut ? layer_of(o, i) : i];
    for (int32_t i = 0; i < drafts; i++) ratios[n++] = 0;
    DI_TRY(set_number(s, "num_hidden_layers", false, layers));
    DI_TRY(set_number(s, "num_nextn_predict_layers", false, drafts));
    DI_TRY(set_list(s, "compress_ratios", ratios, n));
    if (!cut) return DI_OK;
    DI_TRY(slice_sources(s));
    if (c->n_engram_layers > 0) DI_TRY(slice_engram(s));
    return slice_targets(s);
}

static di_status slice_experts(slicer *s) {
    const di_config *c = &s->from;
    int32_t n = s->o->experts;
    if (n == 0) return DI_OK;
    DI_TRY(set_number(s, "n_routed_experts", false, n));
    if (c->num_experts_per_tok > n) DI_TRY(set_number(s, "num_experts_per_tok", false, n));
    if (c->num_nextn_predict_layers == 0 || c->dspark_n_routed_experts <= n) return DI_OK;
    DI_TRY(set_number(s, "dspark_n_routed_experts", false, n));
    if (c->dspark_num_experts_per_tok <= n) return DI_OK;
    return set_number(s, "dspark_num_experts_per_tok", false, n);
}

/* ---- Vocabulary ---- */

/* An id that no longer exists goes to the token of that name, else to `fallback`; -1 removes it. */
static di_status move_id(slicer *s, const di_tokenizer *t, const char *field, bool top, int32_t id,
                         const char *content, int32_t fallback) {
    int32_t size = di_tokenizer_size(t);
    int32_t found = content ? di_tokenizer_added_id(t, content) : -1;
    if (found < 0) found = id < size ? id : fallback;
    if (found == id) return DI_OK;
    return found < 0 ? set_text(s, field, top, NULL, 0) : set_number(s, field, top, found);
}

static di_status fit_vocabulary(slicer *s, const di_tokenizer *t) {
    const di_config *c = &s->from;
    int32_t size = di_tokenizer_size(t), last = size - 1, classes = 0;
    DI_TRY(set_number(s, "vocab_size", false, size));
    DI_TRY(move_id(s, t, "bos_token_id", true, c->bos_token_id, "<｜begin▁of▁sentence｜>", -1));
    DI_TRY(move_id(s, t, "eos_token_id", true, c->eos_token_id, "<｜end▁of▁sentence｜>", -1));
    DI_TRY(move_id(s, t, "pad_token_id", true, c->pad_token_id, "<｜▁pad▁｜>", -1));
    DI_TRY(move_id(s, t, "image_token_id", true, c->image_token_id, "<｜deepseek_image｜>", -1));
    if (c->num_nextn_predict_layers > 0) {
        DI_TRY(move_id(s, t, "dspark_noise_token_id", false, c->dspark_noise_token_id, NULL, last));
    }
    if (c->n_engram_layers == 0) return DI_OK;
    DI_TRY(
        move_id(s, t, "engram_pad_token_id", false, c->engram_pad_token_id, "<｜▁pad▁｜>", last));
    int32_t *map = malloc((size_t)size * sizeof *map);
    if (!map) return di_fail(s->error, DI_ERR_MEMORY, "out of memory: token map");
    di_status status = di_tokenizer_engram_map(t, map, &classes, s->error);
    free(map);
    if (status != DI_OK) return status;
    return set_number(s, "engram_compressed_vocab_size", false, classes);
}

static di_status slice_vocabulary(slicer *s) {
    if (!s->o->tokenizer) return DI_OK;
    char path[4096];
    di_tokenizer *tokenizer;
    if (snprintf(path, sizeof path, "%s/tokenizer.json", s->o->tokenizer) >= (int)sizeof path) {
        return di_fail(s->error, DI_ERR_USAGE, "the tokenizer's path is too long");
    }
    DI_TRY(di_tokenizer_load(path, &tokenizer, s->error));
    di_status status = fit_vocabulary(s, tokenizer);
    di_tokenizer_destroy(tokenizer);
    return status;
}

/* ---- Putting it together ---- */

static di_status rewrite(slicer *s, const di_json *document, di_buffer *out) {
    for (int i = 0; i < s->n_edits; i++) s->edits[i].used = false;
    write_object(s, document, true, 0, out);
    di_buffer_putc(out, '\n');
    if (out->failed) {
        return di_fail(s->error, DI_ERR_MEMORY, "out of memory changing %s", s->what);
    }
    return DI_OK;
}

/* Table sizes are sums of primes, which depend on everything else about Engram: they are derived
 * from the config as it is by now, and put in last. */
static di_status set_rows(slicer *s, const di_json *document, di_buffer *out, size_t start) {
    di_config c;
    int64_t rows[DI_MAX_ENGRAM_LAYERS];
    DI_TRY(di_config_parse(out->data + start, out->size - start, s->what, &c, s->error));
    if (c.n_engram_layers == 0) return DI_OK;
    di_engram_table_rows(&c, rows);
    if (memcmp(rows, c.engram_num_embeddings, (size_t)c.n_engram_layers * sizeof *rows) == 0) {
        return DI_OK;
    }
    DI_TRY(set_list(s, "engram_num_embeddings", rows, c.n_engram_layers));
    out->size = start;
    DI_TRY(rewrite(s, document, out));
    return di_config_parse(out->data + start, out->size - start, s->what, &c, s->error);
}

static di_status collect_edits(slicer *s, const di_json *document) {
    const di_config *c = &s->from;
    DI_TRY(check_layers(s));
    for (int i = 0; i < s->o->n_set; i++) DI_TRY(set_pair(s, document, s->o->set[i]));
    DI_TRY(slice_layers(s));
    DI_TRY(slice_experts(s));
    DI_TRY(slice_vocabulary(s));
    if (s->o->no_vision) DI_TRY(set_text(s, "vision_config", true, NULL, 0));
    if (s->o->engram_rows == 0 || c->n_engram_layers == 0) return DI_OK;
    int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
    int64_t bucket = s->o->engram_rows / columns;
    return set_number(s, "engram_vocab_size", false, bucket < 2 ? 2 : bucket);
}

static di_status slice(const char *json, size_t size, const char *what,
                       const di_synth_overrides *overrides, di_buffer *out, di_error *error) {
    slicer s = {.arena = DI_ARENA_EMPTY, .o = overrides, .what = what, .error = error};
    const di_json *document;
    size_t start = out->size;
    DI_TRY(di_config_parse(json, size, what, &s.from, error));
    di_status status = di_json_parse(json, size, what, &s.arena, &document, error);
    if (status == DI_OK) status = collect_edits(&s, document);
    if (status == DI_OK) status = rewrite(&s, document, out);
    if (status == DI_OK) status = set_rows(&s, document, out, start);
    di_arena_free(&s.arena);
    return status;
}

di_status di_synth_config(const char *json, size_t size, const char *what,
                          const di_synth_overrides *overrides, di_buffer *out, di_error *error) {
    if (overrides->n_set == 0) return slice(json, size, what, overrides, out, error);
    di_synth_overrides first = di_synth_overrides_none(), rest = *overrides;
    di_buffer between = DI_BUFFER_EMPTY;
    first.set = overrides->set;
    first.n_set = overrides->n_set;
    rest.n_set = 0;
    di_status status = slice(json, size, what, &first, &between, error);
    if (status == DI_OK) status = slice(between.data, between.size, what, &rest, out, error);
    di_buffer_free(&between);
    return status;
}
