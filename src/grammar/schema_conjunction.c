/* Conjunctions: made, found again, and their shapes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema_internal.h"

static const di_json none_json = {.type = DI_JSON_FALSE};

/* ---- Where a schema stands ---- */

/* *n_seen: values looked at on the way. */
static bool write_path(di_buffer *out, const di_json *from, const di_json *to, int64_t *n_seen) {
    if (from == to) return true;
    size_t i = 0;
    ++*n_seen;
    for (const di_json *k = from->first; k; k = k->next, i++) {
        size_t before = out->size;
        di_buffer_putc(out, '/');
        if (from->type == DI_JSON_ARRAY) di_buffer_printf(out, "%zu", i);
        for (size_t b = 0; from->type == DI_JSON_OBJECT && b < k->key_length; b++) {
            if (k->key[b] == '~') {
                di_buffer_puts(out, "~0");
            } else if (k->key[b] == '/') {
                di_buffer_puts(out, "~1");
            } else {
                di_buffer_putc(out, k->key[b]);
            }
        }
        if (write_path(out, k, to, n_seen)) return true;
        if (!out->failed) out->size = before;
    }
    return false;
}

const char *schema__pointer(schema *s, const di_json *at, const char *keyword) {
    di_buffer out = DI_BUFFER_EMPTY;
    int64_t n_seen = 0;
    if (at) write_path(&out, s->root, at, &n_seen);
    compiler__spend(s->c, n_seen * 4); /* that a key is written for each is not seldom */
    if (keyword) di_buffer_printf(&out, "/%s", keyword);
    const char *text = di_arena_strndup(&s->c->arena, out.data ? out.data : "", out.size);
    di_buffer_free(&out);
    return text && *text ? text : "/";
}

void schema__fail(schema *s, di_status status, const di_json *at, const char *keyword,
                  const char *reason) {
    if (s->c->status != DI_OK) return;
    compiler__fail(s->c, status, "%s: %s", schema__pointer(s, at, keyword), reason);
}

/* ---- Making ---- */

bool schema__init(schema *s, compiler *c, const di_grammar_options *options, const di_json *root) {
    di_grammar_options o = options ? *options : di_grammar_options_defaults();
    *s = (schema){.c = c, .closed = o.closed, .root = root, .at = root};
    json__init(&s->rules, c, o.space);
    /* ANY has no parts; NONE has the one that nothing satisfies. */
    part none = {PART_SCHEMA, &none_json};
    return schema__conjunction(s, NULL, 0) == ANY && schema__conjunction(s, &none, 1) == NONE;
}

static bool same_part(const part *x, const part *y) {
    return x->json == y->json && x->kind == y->kind;
}

static uint32_t hash_parts(const part *parts, int32_t n) {
    uint64_t h = 0x9e3779b97f4a7c15;
    for (int32_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(uintptr_t)parts[i].json ^ (uint64_t)parts[i].kind << 60) *
            0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    return (uint32_t)h;
}

static void put(schema *s, int32_t id) {
    const conjunction *k = &s->conjunctions[id];
    uint32_t slot = hash_parts(k->parts, k->n) & (uint32_t)s->table_mask;
    while (s->table[slot] >= 0) slot = (slot + 1) & (uint32_t)s->table_mask;
    s->table[slot] = id;
}

static bool make_room(schema *s) {
    if (s->n < s->capacity) return true;
    if (s->n >= SCHEMA_MAX_CONJUNCTIONS) {
        schema__fail(s, DI_ERR_LIMIT, s->at, NULL,
                     "the schema is too complicated: more than 20000 combinations of schemas");
        return false;
    }
    int32_t wanted = s->capacity ? s->capacity * 2 : 64;
    conjunction *larger = compiler__alloc(s->c, (size_t)wanted, sizeof *larger);
    int32_t *table = compiler__alloc(s->c, (size_t)wanted * 4, sizeof *table);
    if (!larger || !table) return false;
    if (s->n) memcpy(larger, s->conjunctions, (size_t)s->n * sizeof *larger);
    memset(table, 0xff, (size_t)wanted * 4 * sizeof *table);
    s->conjunctions = larger;
    s->capacity = wanted;
    s->table = table;
    s->table_mask = wanted * 4 - 1;
    for (int32_t i = 0; i < s->n; i++) put(s, i);
    return true;
}

/* `true` and `{}` say nothing, a `false` says all. */
static bool says_nothing(const part *p) {
    return p->kind == PART_SCHEMA &&
           (p->json->type == DI_JSON_TRUE || (p->json->type == DI_JSON_OBJECT && !p->json->first));
}

int32_t schema__conjunction(schema *s, const part *parts, int32_t n) {
    part *kept_parts = compiler__alloc(s->c, (size_t)n + 1, sizeof *kept_parts);
    if (!kept_parts) return NONE;
    int32_t kept = 0;
    bool none = false;
    for (int32_t i = 0; i < n && !none; i++) {
        bool known = says_nothing(&parts[i]);
        for (int32_t k = 0; k < kept && !known; k++) known = same_part(&kept_parts[k], &parts[i]);
        if (!known) kept_parts[kept++] = parts[i];
        none = parts[i].kind == PART_SCHEMA && parts[i].json->type == DI_JSON_FALSE;
    }
    if (none) kept_parts[0] = (part){PART_SCHEMA, &none_json};
    n = none ? 1 : kept;
    if (!make_room(s)) return NONE;
    for (uint32_t slot = hash_parts(kept_parts, n) & (uint32_t)s->table_mask; s->table[slot] >= 0;
         slot = (slot + 1) & (uint32_t)s->table_mask) {
        const conjunction *k = &s->conjunctions[s->table[slot]];
        bool same = k->n == n;
        for (int32_t i = 0; i < n && same; i++) same = same_part(&k->parts[i], &kept_parts[i]);
        if (same) return s->table[slot];
    }
    s->conjunctions[s->n] = (conjunction){kept_parts, n, -1, NULL, false, 0};
    put(s, s->n);
    return s->n++;
}

int32_t schema__one(schema *s, part_kind kind, const di_json *json) {
    part p = {kind, json};
    return schema__conjunction(s, &p, 1);
}

int32_t schema__both(schema *s, int32_t a, int32_t b) {
    if (a == b || b == ANY) return a;
    if (a == ANY) return b;
    if (a == NONE || b == NONE) return NONE;
    const conjunction *x = &s->conjunctions[a], *y = &s->conjunctions[b];
    part *parts = compiler__alloc(s->c, (size_t)x->n + (size_t)y->n, sizeof *parts);
    if (!parts) return NONE;
    memcpy(parts, x->parts, (size_t)x->n * sizeof *parts);
    memcpy(parts + x->n, y->parts, (size_t)y->n * sizeof *parts);
    return schema__conjunction(s, parts, x->n + y->n);
}

/* ---- Shapes ---- */

const shape *schema__shape(schema *s, int32_t id) {
    if (s->c->status != DI_OK) return NULL;
    if (s->conjunctions[id].shape) return s->conjunctions[id].shape;
    if (s->conjunctions[id].reading) {
        s->looped = true;
        schema__fail(s, DI_ERR_INVALID, s->at, NULL, "a $ref leads back to itself");
        return NULL;
    }
    if (s->depth >= SCHEMA_MAX_DEPTH) { /* what is read recurses: a chain of references would too */
        schema__fail(s, DI_ERR_LIMIT, s->at, NULL, "references and combinations nest too deep");
        return NULL;
    }
    s->depth++;
    s->conjunctions[id].reading = true;
    const shape *all = schema__any(s);
    for (int32_t i = 0; i < s->conjunctions[id].n && all; i++) {
        part p = s->conjunctions[id].parts[i]; /* the table may move while reading */
        const shape *one = schema__read(s, &p);
        all = one ? schema__and(s, all, one) : NULL;
    }
    s->depth--;
    s->conjunctions[id].reading = false;
    s->conjunctions[id].shape = all;
    return all;
}

static bool array_is_empty(schema *s, const array_alt *a, int look) {
    if (a->max >= 0 && a->min > a->max) return true;
    for (int32_t i = 0; i < a->n_prefix && i < a->min; i++) {
        if (schema__is_empty(s, a->prefix[i], look - 1)) return true;
    }
    return a->min > a->n_prefix && schema__is_empty(s, a->rest, look - 1);
}

static bool object_is_empty(schema *s, const object_alt *a, int look) {
    int64_t n_required = 0, n_possible = 0;
    for (int32_t i = 0; i < a->n_properties; i++) {
        n_required += a->properties[i].required;
        n_possible += a->properties[i].value != NONE;
        if (a->properties[i].required && schema__is_empty(s, a->properties[i].value, look - 1)) {
            return true;
        }
    }
    if (a->max >= 0 && (n_required > a->max || a->min > a->max)) return true;
    return a->n_classes == 0 && a->min > n_possible;
}

bool schema__shape_is_empty(schema *s, const shape *a, int look) {
    if (a->null || a->yes || a->no || a->numbers || a->strings) return false;
    for (const array_alt *k = a->arrays; k; k = k->next) {
        if (!array_is_empty(s, k, look)) return false;
    }
    for (const object_alt *k = a->objects; k; k = k->next) {
        if (!object_is_empty(s, k, look)) return false;
    }
    return true;
}

/* Looking down, a schema may be met whose own shape is waiting for the answer: below a property that is
 * ordinary recursion and no failure, only nothing that could be told. */
const shape *schema__try_shape(schema *s, int32_t id) {
    if (s->c->status != DI_OK) return NULL;
    s->looped = false;
    const shape *a = schema__shape(s, id);
    if (!a && s->looped) {
        s->c->status = DI_OK;
        s->looped = false;
    }
    return a;
}

bool schema__is_empty(schema *s, int32_t id, int look) {
    if (id == ANY || id == NONE) return id == NONE;
    if (look <= 0 || s->conjunctions[id].reading) return false;
    const shape *a = schema__try_shape(s, id);
    return a && schema__shape_is_empty(s, a, look);
}
