/* Reading regular expressions. */
#include <string.h>

#include "base/hex.h"
#include "base/utf8.h"
#include "grammar/regex.h"
#include "grammar/regex_tree.h"
#include "text/unicode_class.h"

typedef struct parser {
    compiler *c;
    const char *text, *what;
    size_t size, at;
    int depth;
} parser;

#define refuse(p, ...) refuse_at(p, DI_ERR_UNSUPPORTED, __VA_ARGS__)
#define wrong(p, ...) refuse_at(p, DI_ERR_INVALID, __VA_ARGS__)

/* WHAT: REASON (at byte N) */
static void refuse_at(parser *p, di_status status, const char *reason) {
    compiler__fail(p->c, status, "%s: %s, at byte %zu of the expression", p->what, reason, p->at);
}

static regex_tree *new_tree(parser *p, tree_kind kind) {
    regex_tree *t = compiler__alloc(p->c, 1, sizeof *t);
    if (t) t->kind = kind;
    return t;
}

static int peek(const parser *p) { return p->at < p->size ? (unsigned char)p->text[p->at] : -1; }

static bool take(parser *p, const char *literal) {
    size_t n = strlen(literal);
    if (p->size - p->at < n || memcmp(p->text + p->at, literal, n) != 0) return false;
    p->at += n;
    return true;
}

/* ---- Characters and classes ---- */

static uint32_t take_code(parser *p) {
    uint32_t code = 0;
    size_t n = p->at < p->size ? di_utf8_decode(p->text + p->at, p->size - p->at, &code) : 0;
    if (n == 0) {
        wrong(p, "the expression is not valid UTF-8");
        return 0;
    }
    p->at += n;
    return code;
}

/* Exactly n hexadecimal digits. */
static uint32_t take_hex(parser *p, int n) {
    uint32_t code = 0;
    for (int i = 0; i < n; i++) {
        int digit = di_hex_digit(peek(p));
        if (digit < 0) {
            wrong(p, "an escape needs more hexadecimal digits");
            return 0;
        }
        code = code * 16 + (uint32_t)digit;
        p->at++;
    }
    return code;
}

/* Behind \u. */
static uint32_t take_unicode(parser *p) {
    uint32_t code = 0;
    if (take(p, "{")) {
        do {
            int digit = di_hex_digit(peek(p));
            code = code * 16 + (uint32_t)digit;
            if (digit < 0 || code > CHARS_LAST) {
                wrong(p, "\\u{...} needs a code point");
                return 0;
            }
            p->at++;
        } while (peek(p) != '}');
        p->at++;
    } else {
        code = take_hex(p, 4);
        if (code >= 0xd800 && code < 0xdc00 && take(p, "\\u")) {
            uint32_t low = take_hex(p, 4);
            if (low >= 0xdc00 && low < 0xe000)
                return 0x10000 + ((code - 0xd800) << 10) + low - 0xdc00;
        }
    }
    if (code >= 0xd800 && code < 0xe000) wrong(p, "half a surrogate pair is no character");
    return code;
}

/* Behind \U: eight digits, as GBNF and Python write. */
static uint32_t take_long(parser *p) {
    uint32_t code = take_hex(p, 8);
    if (code <= CHARS_LAST && (code < 0xd800 || code >= 0xe000)) return code;
    wrong(p, "\\U needs a code point");
    return 0;
}

static void add_digits(compiler *c, char_set *set) { chars__add(c, set, '0', '9'); }

static void add_word(compiler *c, char_set *set) {
    add_digits(c, set);
    chars__add(c, set, 'A', 'Z');
    chars__add(c, set, '_', '_');
    chars__add(c, set, 'a', 'z');
}

/* ECMAScript's \s. */
static void add_space(compiler *c, char_set *set) {
    static const char_range ranges[] = {{0x9, 0xd},       {0x20, 0x20},     {0xa0, 0xa0},
                                        {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                        {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                        {0xfeff, 0xfeff}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        chars__add(c, set, ranges[i].lo, ranges[i].hi);
    }
}

static void add_class_bits(compiler *c, char_set *set, int bits) {
    uint32_t from = 0;
    bool inside = false;
    for (uint32_t code = 0; code <= CHARS_LAST + 1; code++) {
        bool in = code <= CHARS_LAST && (di_unicode_class(code) & bits);
        if (in && !inside) from = code;
        if (!in && inside) chars__add(c, set, from, code - 1);
        inside = in;
    }
    compiler__spend(c, CHARS_LAST / 8);
}

/* Behind \p or \P. */
static void add_property(parser *p, char_set *set) {
    static const struct {
        const char *name;
        int bits;
    } known[] = {
        {"{L}", DI_UNICODE_LETTER}, {"{Letter}", DI_UNICODE_LETTER},
        {"{M}", DI_UNICODE_MARK},   {"{Mark}", DI_UNICODE_MARK},
        {"{N}", DI_UNICODE_NUMBER}, {"{Number}", DI_UNICODE_NUMBER},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!take(p, known[i].name)) continue;
        add_class_bits(p->c, set, known[i].bits);
        return;
    }
    refuse(p, "of the Unicode properties only \\p{L}, \\p{M} and \\p{N} are supported");
}

static void add_set(compiler *c, char_set *to, const char_set *from) {
    for (int32_t i = 0; i < from->n; i++) chars__add(c, to, from->ranges[i].lo, from->ranges[i].hi);
}

/* Behind a backslash, an escape that is a class: adds it. */
static bool take_class_escape(parser *p, char_set *set) {
    char_set inner = {0};
    int c = peek(p);
    switch (c | 0x20) {
    case 'd': add_digits(p->c, &inner); break;
    case 'w': add_word(p->c, &inner); break;
    case 's': add_space(p->c, &inner); break;
    case 'p': break;
    default: return false;
    }
    p->at++;
    if ((c | 0x20) == 'p') add_property(p, &inner);
    chars__normalize(&inner);
    if (!(c & 0x20)) inner = chars__complement(p->c, &inner);
    add_set(p->c, set, &inner);
    return true;
}

/* Behind a backslash: one character. */
static uint32_t take_char_escape(parser *p, bool in_class) {
    int c = peek(p);
    if (c < 0) {
        wrong(p, "a backslash stands at the end");
        return 0;
    }
    if (c >= 0x80) return take_code(p);
    p->at++;
    switch (c) {
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    case 'f': return '\f';
    case 'v': return '\v';
    case 'x': return take_hex(p, 2);
    case 'u': return take_unicode(p);
    case 'U': return take_long(p);
    case 'b':
        if (in_class) return '\b';
        refuse(p, "\\b (a word's edge) is not supported");
        return 0;
    case 'c':
        c = peek(p);
        if ((c | 0x20) < 'a' || (c | 0x20) > 'z') {
            wrong(p, "\\c needs a letter");
            return 0; /* perhaps at the end: there is nothing to step over */
        }
        p->at++;
        return (uint32_t)c & 31;
    case '0':
        if (peek(p) < '0' || peek(p) > '9') return 0;
        refuse(p, "octal escapes are not supported");
        return 0;
    default: break;
    }
    bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    if (c >= '1' && c <= '9') refuse(p, "backreferences are not supported");
    if (letter) refuse(p, "an escape of this letter is not supported");
    return (uint32_t)c;
}

/* An end of a range, or a class: *is_class. */
static uint32_t take_class_atom(parser *p, char_set *set, bool *is_class) {
    *is_class = false;
    if (!take(p, "\\")) return take_code(p);
    *is_class = take_class_escape(p, set);
    return *is_class ? 0 : take_char_escape(p, true);
}

/* Behind "[", to behind "]". */
static void take_class(parser *p, char_set *set) {
    bool negated = take(p, "^");
    while (p->c->status == DI_OK && !take(p, "]")) {
        bool is_class, is_end_class = false;
        if (peek(p) < 0) {
            wrong(p, "a class is not closed");
            return;
        }
        uint32_t lo = take_class_atom(p, set, &is_class), hi = lo;
        /* Behind a class a hyphen is itself: [\w-.] is common. */
        bool range =
            !is_class && peek(p) == '-' && p->at + 1 < p->size && p->text[p->at + 1] != ']';
        if (range) {
            p->at++;
            hi = take_class_atom(p, set, &is_end_class);
            if (is_end_class || hi < lo) {
                wrong(p, "a range of characters is the wrong way round");
                return;
            }
        }
        if (!is_class) chars__add(p->c, set, lo, hi);
    }
    chars__normalize(set);
    if (negated) *set = chars__complement(p->c, set);
}

uint32_t regex__read_escape(compiler *c, const char *text, size_t size, size_t *at,
                            const char *what) {
    parser p = {.c = c, .text = text, .what = what, .size = size, .at = *at};
    uint32_t code = take_char_escape(&p, true);
    *at = p.at;
    return code;
}

size_t regex__read_class(compiler *c, const char *text, size_t size, size_t at, char_set *set,
                         const char *what) {
    parser p = {.c = c, .text = text, .what = what, .size = size, .at = at};
    take_class(&p, set);
    return p.at;
}

/* ---- Atoms ---- */

static regex_tree *parse_choice(parser *p);

/* Behind "(". */
static regex_tree *take_group(parser *p) {
    if (take(p, "?")) {
        if (take(p, "=") || take(p, "!") || take(p, "<=") || take(p, "<!")) {
            refuse(p, "lookahead and lookbehind are not supported");
        } else if (take(p, ">")) {
            refuse(p, "atomic groups are not supported");
        } else if (take(p, "<") || take(p, "P<")) {
            while (peek(p) >= 0 && peek(p) != '>') p->at++;
            if (!take(p, ">")) wrong(p, "a group's name is not closed");
        } else if (!take(p, ":")) {
            refuse(p, "this kind of group (inline flags, conditions, named references) is not "
                      "supported");
        }
    }
    if (++p->depth > REGEX_MAX_DEPTH) refuse_at(p, DI_ERR_LIMIT, "groups nest too deep");
    regex_tree *inner = parse_choice(p);
    p->depth--;
    if (p->c->status == DI_OK && !take(p, ")")) wrong(p, "a group is not closed");
    return inner;
}

static void add_dot(compiler *c, char_set *set) {
    char_set ends = {0};
    chars__add(c, &ends, '\n', '\n');
    chars__add(c, &ends, '\r', '\r');
    chars__add(c, &ends, 0x2028, 0x2029);
    chars__normalize(&ends);
    *set = chars__complement(c, &ends);
}

static regex_tree *take_atom(parser *p) {
    int c = peek(p);
    if (c == '(') {
        p->at++;
        return take_group(p);
    }
    tree_kind kind = c == '^' ? TREE_BEGIN : c == '$' ? TREE_END : TREE_SET;
    regex_tree *t = new_tree(p, kind);
    if (!t) return NULL;
    if (c == '*' || c == '+' || c == '?') {
        wrong(p, "nothing to repeat");
    } else if (kind != TREE_SET) {
        p->at++;
    } else if (take(p, "[")) {
        take_class(p, &t->set);
    } else if (take(p, ".")) {
        add_dot(p->c, &t->set);
    } else if (take(p, "\\")) {
        if (peek(p) == 'B' || peek(p) == 'A' || peek(p) == 'Z' || peek(p) == 'z' ||
            peek(p) == 'G') {
            refuse(p, "of the assertions only ^ and $ are supported");
        } else if (peek(p) == 'k') {
            refuse(p, "backreferences are not supported");
        } else if (!take_class_escape(p, &t->set)) {
            uint32_t code = take_char_escape(p, false);
            chars__add(p->c, &t->set, code, code);
        }
    } else {
        uint32_t code = take_code(p);
        chars__add(p->c, &t->set, code, code);
    }
    chars__normalize(&t->set);
    return t;
}

/* ---- Repetition ---- */

/* A decimal at *at, at most REGEX_MAX_COUNT + 1; -1 when there is none. */
static int32_t number_at(const parser *p, size_t *at) {
    size_t from = *at;
    int32_t n = 0;
    for (; *at < p->size && p->text[*at] >= '0' && p->text[*at] <= '9'; ++*at) {
        n = n * 10 + (p->text[*at] - '0');
        if (n > REGEX_MAX_COUNT) n = REGEX_MAX_COUNT + 1;
    }
    return *at > from ? n : -1;
}

/* {n}, {n,}, {n,m}; anything else beginning with a brace is text, but for {,m}: that is text in some
 * languages, {0,m} in others and an error in ECMAScript, so nobody can tell what is meant. */
static bool take_counts(parser *p, int32_t *min, int32_t *max) {
    size_t at = p->at + 1, behind = p->at + 2;
    *min = number_at(p, &at);
    *max = *min;
    if (*min < 0) {
        bool open = at < p->size && p->text[at] == ',' && number_at(p, &behind) >= 0 &&
                    behind < p->size && p->text[behind] == '}';
        if (open) refuse(p, "{,n} is not supported: write {0,n}");
        return false;
    }
    if (at < p->size && p->text[at] == ',') {
        at++;
        *max = number_at(p, &at);
    }
    if (at >= p->size || p->text[at] != '}') return false;
    p->at = at + 1;
    if (*min > REGEX_MAX_COUNT || *max > REGEX_MAX_COUNT) {
        refuse_at(p, DI_ERR_LIMIT, "a repetition of more than 10000 times");
    }
    if (*max >= 0 && *max < *min) wrong(p, "a repetition's bounds are the wrong way round");
    return true;
}

static regex_tree *take_repeated(parser *p) {
    regex_tree *t = take_atom(p);
    while (t && p->c->status == DI_OK) {
        int32_t min = 0, max = -1;
        int c = peek(p);
        if (c == '*' || c == '+' || c == '?') {
            p->at++;
            min = c == '+';
            max = c == '?' ? 1 : -1;
        } else if (c != '{' || !take_counts(p, &min, &max)) {
            return t;
        }
        if (peek(p) == '+') refuse(p, "possessive repetition is not supported");
        take(p, "?");
        regex_tree *outer = new_tree(p, TREE_REPEAT);
        if (!outer) return NULL;
        outer->first = t;
        outer->min = min;
        outer->max = max;
        t = outer;
        c = peek(p);
        if (c == '*' || c == '+' || c == '?') wrong(p, "a repetition of a repetition");
    }
    return t;
}

static regex_tree *parse_sequence(parser *p) {
    regex_tree *t = new_tree(p, TREE_SEQUENCE);
    while (t && p->c->status == DI_OK && peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        regex_tree *item = take_repeated(p);
        if (!item) return NULL;
        item->sibling = t->first;
        t->first = item;
    }
    return t;
}

static regex_tree *parse_choice(parser *p) {
    regex_tree *first = parse_sequence(p);
    if (!first || peek(p) != '|') return first;
    regex_tree *t = new_tree(p, TREE_CHOICE), *last = first;
    while (t && p->c->status == DI_OK && take(p, "|")) {
        last->sibling = parse_sequence(p);
        last = last->sibling;
        if (!last) return NULL;
    }
    if (t) t->first = first;
    return t;
}

const regex_tree *regex__tree(compiler *c, const char *text, size_t size, const char *what) {
    parser p = {.c = c, .text = text, .what = what, .size = size};
    regex_tree *t = parse_choice(&p);
    if (c->status == DI_OK && p.at < size) wrong(&p, "a parenthesis was not opened");
    return c->status == DI_OK ? t : NULL;
}
