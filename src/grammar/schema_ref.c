/* References: inside the document, by JSON pointer or by $anchor. Within one document a dynamic reference
 * leads where a plain one does. */
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "grammar/schema_internal.h"

/* %XX undone; false when malformed. */
static bool unescape(const char *from, size_t size, char *to, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < size; i++) {
        if (from[i] != '%') {
            to[(*n)++] = from[i];
            continue;
        }
        int high = i + 2 < size ? di_hex_digit(from[i + 1]) : -1;
        int low = i + 2 < size ? di_hex_digit(from[i + 2]) : -1;
        if (high < 0 || low < 0) return false;
        to[(*n)++] = (char)(high * 16 + low);
        i += 2;
    }
    return true;
}

/* The member or item that a segment of a pointer names, ~0 and ~1 undone in place. */
static const di_json *child(const di_json *from, char *segment, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        char c = segment[i];
        if (c == '~' && i + 1 < size) c = segment[++i] == '1' ? '/' : '~';
        segment[n++] = c;
    }
    size_t index = 0;
    for (const di_json *k = from->first; k; k = k->next, index++) {
        if (from->type == DI_JSON_OBJECT && k->key_length == n && memcmp(k->key, segment, n) == 0) {
            return k;
        }
        char number[24];
        if (from->type != DI_JSON_ARRAY) continue;
        int length = snprintf(number, sizeof number, "%zu", index);
        if ((size_t)length == n && memcmp(number, segment, n) == 0) return k;
    }
    return NULL;
}

static const di_json *by_pointer(const di_json *from, char *pointer, size_t size) {
    size_t at = 0;
    while (from && at < size) {
        size_t end = ++at; /* over the slash */
        while (end < size && pointer[end] != '/') end++;
        from = child(from, pointer + at, end - at);
        at = end;
    }
    return from;
}

static bool is_one_of(const di_json *item, const char *const *keys) {
    for (; *keys; keys++) {
        if (item->key_length == strlen(*keys) && memcmp(item->key, *keys, item->key_length) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_name(const di_json *at, const char *keyword, const char *name, size_t size) {
    const di_json *anchor = di_json_get(at, keyword);
    return anchor && anchor->type == DI_JSON_STRING && anchor->length == size &&
           memcmp(anchor->text, name, size) == 0;
}

/* The schema with this anchor among schemas in `from`: a schema, a list of them, or an object that has
 * them as its members. Values are none, and what has an $id of its own is another document. */
static const di_json *by_anchor(const schema *s, const di_json *from, bool members,
                                const char *name, size_t size) {
    static const char *const values[] = {"enum", "const", "default", "example", "examples", NULL};
    static const char *const schemas[] = {"properties",  "patternProperties", "$defs",
                                          "definitions", "dependencies",      "dependentSchemas",
                                          NULL};
    bool is_schema = from->type == DI_JSON_OBJECT && !members;
    if (is_schema && from != s->root && di_json_get(from, "$id")) return NULL;
    if (is_schema &&
        (has_name(from, "$anchor", name, size) || has_name(from, "$dynamicAnchor", name, size))) {
        return from;
    }
    for (const di_json *k = from->first; k; k = k->next) {
        if (is_schema && is_one_of(k, values)) continue;
        const di_json *found = by_anchor(s, k, is_schema && is_one_of(k, schemas), name, size);
        if (found) return found;
    }
    return NULL;
}

/* The document's own name in front of "#" taken off. False: it leads out of the document. */
static bool take_base(const schema *s, const char **text, size_t *size) {
    const di_json *id = di_json_get(s->root, "$id");
    if (id && id->type == DI_JSON_STRING && *size >= id->length && id->length > 0 &&
        memcmp(*text, id->text, id->length) == 0 &&
        (*size == id->length || (*text)[id->length] == '#')) {
        *text += id->length;
        *size -= id->length;
    }
    return *size == 0 || **text == '#';
}

const di_json *schema__find(schema *s, const di_json *ref) {
    const char *text = ref->text;
    size_t size = ref->length, n = 0;
    if (ref->type != DI_JSON_STRING || !take_base(s, &text, &size)) return NULL;
    char *name = compiler__alloc(s->c, size + 1, 1);
    if (!name) return NULL;
    if (size > 0) text++, size--;
    if (!unescape(text, size, name, &n)) return NULL;
    return n == 0 || *name == '/' ? by_pointer(s->root, name, n)
                                  : by_anchor(s, s->root, false, name, n);
}

const di_json *schema__resolve(schema *s, const di_json *ref) {
    const char *text = ref->text;
    size_t size = ref->length;
    if (ref->type != DI_JSON_STRING) {
        schema__fail(s, DI_ERR_INVALID, ref, NULL, "must be a string");
        return NULL;
    }
    const di_json *found = schema__find(s, ref);
    if (found) return found;
    if (take_base(s, &text, &size)) {
        schema__fail(s, DI_ERR_INVALID, ref, NULL, "leads nowhere");
    } else {
        schema__fail(s, DI_ERR_UNSUPPORTED, ref, NULL,
                     "only references inside the document (\"#...\") are supported");
    }
    return NULL;
}
