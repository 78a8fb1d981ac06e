/* The reader: one pass, recursive descent limited by DI_JSON_MAX_DEPTH, into an arena tree. */
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hex.h"
#include "base/utf8.h"

typedef struct parser {
    const char *begin, *at, *end;
    const char *what;
    di_arena *arena;
    di_error *error;
    di_buffer text; /* the string being decoded; reused */
    uint32_t line;  /* of `at`: between tokens alone a line can end */
    bool last;      /* of members with the same key the last counts */
} parser;

static di_status fail_at(parser *p, const char *where, const char *reason) {
    size_t line = 1, column = 1;
    for (const char *c = p->begin; c < where; c++) {
        column = *c == '\n' ? 1 : column + 1;
        line += *c == '\n';
    }
    return di_fail(p->error, DI_ERR_INVALID, "%s: line %zu, column %zu: %s", p->what, line, column,
                   reason);
}

static di_status fail_memory(parser *p) {
    return di_fail(p->error, DI_ERR_MEMORY, "%s: out of memory while parsing JSON", p->what);
}

static void skip_blank(parser *p) {
    while (p->at < p->end &&
           (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) {
        p->line += *p->at++ == '\n';
    }
}

static int hex4(const char *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int digit = di_hex_digit(at[i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX at p->at (behind the u), with its low half when it is a high surrogate. */
static di_status parse_unicode_escape(parser *p, const char *where) {
    if (p->end - p->at < 4) return fail_at(p, where, "incomplete \\u escape");
    int code = hex4(p->at);
    if (code < 0) return fail_at(p, where, "\\u needs four hexadecimal digits");
    p->at += 4;
    if (code >= 0xD800 && code < 0xDC00) {
        int low = p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u' ? hex4(p->at + 2) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return fail_at(p, where, "lone surrogate in \\u escape");
        p->at += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
        return fail_at(p, where, "lone surrogate in \\u escape");
    }
    char bytes[4];
    di_buffer_append(&p->text, bytes, di_utf8_encode((uint32_t)code, bytes));
    return DI_OK;
}

static di_status parse_escape(parser *p) {
    const char *where = p->at++;
    if (p->at == p->end) return fail_at(p, where, "unterminated string");
    char c = *p->at++;
    switch (c) {
    case '"':
    case '\\':
    case '/': di_buffer_putc(&p->text, c); return DI_OK;
    case 'b': di_buffer_putc(&p->text, '\b'); return DI_OK;
    case 'f': di_buffer_putc(&p->text, '\f'); return DI_OK;
    case 'n': di_buffer_putc(&p->text, '\n'); return DI_OK;
    case 'r': di_buffer_putc(&p->text, '\r'); return DI_OK;
    case 't': di_buffer_putc(&p->text, '\t'); return DI_OK;
    case 'u': return parse_unicode_escape(p, where);
    default: return fail_at(p, where, "unknown escape in string");
    }
}

/* A string whose opening quote is at p->at; the decoded copy goes to the arena. */
static di_status parse_string(parser *p, const char **text, size_t *length) {
    const char *open = p->at++;
    di_buffer_clear(&p->text);
    for (;;) {
        const char *run = p->at;
        while (p->at < p->end && *p->at != '"' && *p->at != '\\' && (unsigned char)*p->at >= 0x20) {
            p->at++;
        }
        size_t bad = di_utf8_valid_prefix(run, (size_t)(p->at - run));
        if (bad != (size_t)(p->at - run)) return fail_at(p, run + bad, "invalid UTF-8 in string");
        di_buffer_append(&p->text, run, (size_t)(p->at - run));
        if (p->at == p->end) return fail_at(p, open, "unterminated string");
        if (*p->at == '"') break;
        if (*p->at != '\\') return fail_at(p, p->at, "control character in string");
        DI_TRY(parse_escape(p));
    }
    p->at++;
    *length = p->text.size;
    *text = p->text.failed
                ? NULL
                : di_arena_strndup(p->arena, p->text.data ? p->text.data : "", p->text.size);
    return *text ? DI_OK : fail_memory(p);
}

static size_t skip_digits(parser *p) {
    const char *from = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return (size_t)(p->at - from);
}

static di_status parse_number(parser *p, di_json *value) {
    const char *from = p->at;
    if (*p->at == '-') p->at++;
    const char *integer = p->at;
    size_t digits = skip_digits(p);
    if (digits == 0) return fail_at(p, from, "expected a value");
    if (digits > 1 && *integer == '0') return fail_at(p, from, "number with a leading zero");
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        if (skip_digits(p) == 0) return fail_at(p, from, "number without digits after the point");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        if (skip_digits(p) == 0) return fail_at(p, from, "number without digits in its exponent");
    }
    value->type = DI_JSON_NUMBER;
    value->length = (size_t)(p->at - from);
    value->text = di_arena_strndup(p->arena, from, value->length);
    return value->text ? DI_OK : fail_memory(p);
}

static di_status parse_value(parser *p, di_json *value, int depth);

static di_status parse_word(parser *p, di_json *value) {
    static const struct {
        const char *word;
        di_json_type type;
    } words[] = {{"null", DI_JSON_NULL}, {"false", DI_JSON_FALSE}, {"true", DI_JSON_TRUE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);
        if ((size_t)(p->end - p->at) >= n && memcmp(p->at, words[i].word, n) == 0) {
            value->type = words[i].type;
            p->at += n;
            return DI_OK;
        }
    }
    return fail_at(p, p->at, "expected a value");
}

/* The keys of an object, with their places in the text. Duplicates are found by sorting, when the
 * object ends: n log n comparisons whatever the keys are, where a hash without a secret would let a
 * hostile object take n * n. */
typedef struct named {
    di_json *item;
    const char *where;
} named;

typedef struct key_list {
    named *keys;
    size_t n, capacity;
} key_list;

static bool add_key(key_list *list, di_json *item, const char *where) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        named *more = realloc(list->keys, capacity * sizeof *more);
        if (!more) return false;
        list->keys = more;
        list->capacity = capacity;
    }
    list->keys[list->n++] = (named){item, where};
    return true;
}

static int compare_text(const di_json *a, const di_json *b) {
    if (a->key_length != b->key_length) return a->key_length < b->key_length ? -1 : 1;
    return memcmp(a->key, b->key, a->key_length);
}

/* Equal keys in the order of the text. */
static int compare_keys(const void *x, const void *y) {
    const named *a = x, *b = y;
    int order = compare_text(a->item, b->item);
    return order != 0 ? order : (a->where > b->where) - (a->where < b->where);
}

/* The first place in the text where a key stands again, or NULL. Sorts the list. */
static const char *find_duplicate(key_list *list) {
    const char *first = NULL;
    if (list->n > 1) qsort(list->keys, list->n, sizeof *list->keys, compare_keys);
    for (size_t i = 1; i < list->n; i++) {
        const named *k = &list->keys[i];
        if (compare_text(k[-1].item, k->item) == 0 && (!first || k->where < first)) {
            first = k->where;
        }
    }
    return first;
}

static int compare_places(const void *x, const void *y) {
    const named *a = x, *b = y;
    return (a->where > b->where) - (a->where < b->where);
}

/* Leaves of members with the same key the last; the list is sorted by find_duplicate. */
static void keep_last(di_json *object, key_list *list) {
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        bool again =
            i + 1 < list->n && compare_text(list->keys[i].item, list->keys[i + 1].item) == 0;
        if (!again) list->keys[n++] = list->keys[i];
    }
    qsort(list->keys, n, sizeof *list->keys, compare_places);
    di_json **tail = &object->first;
    for (size_t i = 0; i < n; i++) {
        *tail = list->keys[i].item;
        tail = &(*tail)->next;
    }
    *tail = NULL;
    object->length = n;
}

static di_status parse_key(parser *p, di_json *item, key_list *keys) {
    skip_blank(p);
    const char *where = p->at;
    if (p->at == p->end || *p->at != '"') return fail_at(p, where, "expected a key in quotes");
    DI_TRY(parse_string(p, &item->key, &item->key_length));
    if (!add_key(keys, item, where)) return fail_memory(p);
    skip_blank(p);
    if (p->at == p->end || *p->at != ':') return fail_at(p, p->at, "expected ':' after the key");
    p->at++;
    return DI_OK;
}

static di_status parse_items(parser *p, di_json *value, key_list *keys, int depth) {
    const char *open = p->at++;
    char close = *open == '{' ? '}' : ']';
    value->type = *open == '{' ? DI_JSON_OBJECT : DI_JSON_ARRAY;
    if (depth >= DI_JSON_MAX_DEPTH) return fail_at(p, open, "nested too deeply");
    skip_blank(p);
    if (p->at < p->end && *p->at == close) {
        p->at++;
        return DI_OK;
    }
    for (di_json **tail = &value->first;; tail = &(*tail)->next) {
        di_json *item = di_arena_calloc(p->arena, 1, sizeof *item);
        if (!item) return fail_memory(p);
        if (close == '}') DI_TRY(parse_key(p, item, keys));
        DI_TRY(parse_value(p, item, depth + 1));
        *tail = item;
        value->length++;
        skip_blank(p);
        if (p->at == p->end) return fail_at(p, open, "unterminated array or object");
        char c = *p->at++;
        if (c == close) return DI_OK;
        if (c != ',') return fail_at(p, p->at - 1, "expected ',' or the closing bracket");
    }
}

static di_status parse_value(parser *p, di_json *value, int depth) {
    skip_blank(p);
    if (p->at == p->end) return fail_at(p, p->at, "unexpected end, expected a value");
    value->line = p->line;
    char c = *p->at;
    if (c == '"') {
        value->type = DI_JSON_STRING;
        return parse_string(p, &value->text, &value->length);
    }
    if (c == '{' || c == '[') {
        key_list keys = {NULL, 0, 0};
        di_status status = parse_items(p, value, &keys, depth);
        const char *again = status == DI_OK ? find_duplicate(&keys) : NULL;
        if (again && p->last) {
            keep_last(value, &keys);
            again = NULL;
        }
        free(keys.keys);
        return again ? fail_at(p, again, "duplicate key in object") : status;
    }
    return c == '-' || (c >= '0' && c <= '9') ? parse_number(p, value) : parse_word(p, value);
}

static di_status parse(const char *text, size_t size, const char *what, bool last, di_arena *arena,
                       const di_json **out, di_error *error) {
    parser p = {text, text, text + size, what, arena, error, DI_BUFFER_EMPTY, 1, last};
    di_json *root = di_arena_calloc(arena, 1, sizeof *root);
    di_status status = root ? parse_value(&p, root, 0) : fail_memory(&p);
    if (status == DI_OK) {
        skip_blank(&p);
        if (p.at != p.end) status = fail_at(&p, p.at, "text behind the end of the JSON value");
    }
    di_buffer_free(&p.text);
    *out = status == DI_OK ? root : NULL;
    return status;
}

di_status di_json_parse(const char *text, size_t size, const char *what, di_arena *arena,
                        const di_json **out, di_error *error) {
    return parse(text, size, what, false, arena, out, error);
}

di_status di_json_parse_last(const char *text, size_t size, const char *what, di_arena *arena,
                             const di_json **out, di_error *error) {
    return parse(text, size, what, true, arena, out, error);
}

const di_json *di_json_get(const di_json *object, const char *key) {
    if (!object || object->type != DI_JSON_OBJECT) return NULL;
    size_t length = strlen(key);
    for (const di_json *item = object->first; item; item = item->next) {
        if (item->key_length == length && memcmp(item->key, key, length) == 0) return item;
    }
    return NULL;
}

bool di_json_double(const di_json *value, double *out) {
    if (!value || value->type != DI_JSON_NUMBER) return false;
    double number = strtod(value->text, NULL);
    if (!isfinite(number)) return false;
    *out = number;
    return true;
}

bool di_json_int64(const di_json *value, int64_t *out) {
    if (!value || value->type != DI_JSON_NUMBER) return false;
    if (!strpbrk(value->text, ".eE")) {
        errno = 0;
        long long number = strtoll(value->text, NULL, 10);
        if (errno) return false;
        *out = number;
        return true;
    }
    double number;
    if (!di_json_double(value, &number)) return false;
    if (number != floor(number) || fabs(number) > 9007199254740992.0) return false; /* 2^53 */
    *out = (int64_t)number;
    return true;
}

bool di_json_bool(const di_json *value, bool *out) {
    if (!value || (value->type != DI_JSON_TRUE && value->type != DI_JSON_FALSE)) return false;
    *out = value->type == DI_JSON_TRUE;
    return true;
}

bool di_json_is_string(const di_json *value, const char *text) {
    return value && value->type == DI_JSON_STRING && value->length == strlen(text) &&
           memcmp(value->text, text, value->length) == 0;
}
