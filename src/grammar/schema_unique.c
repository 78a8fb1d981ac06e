/* uniqueItems, where the items are a few constants: the states are the sets of those already written. */
#include <string.h>

#include "grammar/schema_internal.h"

enum { MAX_VALUES = 8 };

typedef struct values {
    schema *s;
    const char *texts[MAX_VALUES]; /* as JSON, in the arena */
    int n;
    bool ok; /* every value is a constant, and they are not too many */
} values;

static void add_value(values *v, const char *text) {
    for (int i = 0; i < v->n; i++) {
        if (strcmp(v->texts[i], text) == 0) return;
    }
    if (v->n == MAX_VALUES) {
        v->ok = false;
        return;
    }
    v->texts[v->n++] = text;
}

static void add_string(values *v, char_text t) {
    di_buffer quoted = DI_BUFFER_EMPTY;
    di_json_write_string(&quoted, t.text, t.size);
    const char *text =
        quoted.failed ? NULL : di_arena_strndup(&v->s->c->arena, quoted.data, quoted.size);
    di_buffer_free(&quoted);
    if (text) {
        add_value(v, text);
    } else {
        compiler__fail(v->s->c, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    }
}

static void collect(values *v, const shape *a) {
    if (a->null) add_value(v, "null");
    if (a->yes) add_value(v, "true");
    if (a->no) add_value(v, "false");
    for (const number_alt *k = a->numbers; k && v->ok; k = k->next) {
        v->ok = k->lo && k->hi && schema__compare(k->lo, k->hi) == 0;
        if (v->ok) add_value(v, schema__decimal_text(v->s, k->lo));
    }
    for (const string_alt *k = a->strings; k && v->ok; k = k->next) {
        v->ok = k->has_literals;
        for (size_t i = 0; i < k->n_literals && v->ok; i++) add_string(v, k->literals[i]);
    }
    if (a->arrays || a->objects) v->ok = false;
}

int32_t schema__emit_unique(schema *s, const array_alt *a, int32_t close) {
    program *p = &s->c->p;
    values v = {.s = s, .ok = a->n_prefix == 0 && a->rest != ANY};
    const shape *item = v.ok ? schema__shape(s, a->rest) : NULL;
    if (item) collect(&v, item);
    if (!v.ok) {
        schema__fail(s, DI_ERR_UNSUPPORTED, s->at, "uniqueItems",
                     "is supported for one item, and for items that are at most 8 constants");
        return PROGRAM_FAIL;
    }
    /* next[set]: an item that is not in the set, and all that follow; from the full set down. */
    int32_t next[1 << MAX_VALUES];
    for (int set = (1 << v.n) - 1; set >= 0; set--) {
        int count = __builtin_popcount((unsigned)set);
        next[set] = PROGRAM_FAIL;
        if (a->max >= 0 && count >= a->max) continue;
        for (int i = 0; i < v.n; i++) {
            if (set >> i & 1) continue;
            int32_t end = count + 1 >= a->min ? close : PROGRAM_FAIL;
            int32_t more = json__comma(&s->rules, next[set | 1 << i]);
            int32_t behind = program__split(p, more, end);
            int32_t one = program__literal(p, v.texts[i], strlen(v.texts[i]), behind);
            next[set] = program__split(p, one, next[set]);
        }
    }
    return next[0];
}
