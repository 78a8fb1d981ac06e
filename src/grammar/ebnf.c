/* GBNF, the grammar form of llama.cpp:
 *
 *     root ::= "a" item{1,3} [^\n]* ( "x" | "y" )? .   # comment
 *     item ::= ...
 *
 * A rule ends where the next begins, so alternatives may stand on lines of their own. Literals and
 * classes have \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH. The text is read into trees first, since
 * programs are built from the end.
 */
#include <string.h>

#include "base/utf8.h"
#include "grammar/grammar_internal.h"
#include "grammar/regex.h"

enum { EBNF_MAX_DEPTH = 200, EBNF_MAX_COUNT = 1000000, EBNF_COPIES = 16 };

typedef enum item_kind {
    ITEM_TEXT,
    ITEM_SET,
    ITEM_RULE,
    ITEM_SEQUENCE,
    ITEM_CHOICE,
    ITEM_REPEAT
} item_kind;

typedef struct item {
    item_kind kind;
    const char *text; /* TEXT */
    size_t size;
    char_set set;
    int32_t rule; /* RULE */
    int32_t min, max;
    struct item *first, *sibling; /* a sequence's children: from the last to the first */
} item;

typedef struct rule {
    const char *name;
    size_t size; /* of the name */
    item *body;  /* NULL: used, not defined yet */
    int32_t number;
    struct rule *next;
} rule;

typedef struct ebnf {
    compiler *c;
    const char *text;
    size_t size, at;
    rule *rules;
    int depth;
} ebnf;

static void wrong(ebnf *e, di_status status, const char *reason) {
    size_t line = 1;
    for (size_t i = 0; i < e->at && i < e->size; i++) line += e->text[i] == '\n';
    compiler__fail(e->c, status, "grammar, line %zu: %s", line, reason);
}

/* ---- Words ---- */

static int peek(const ebnf *e) { return e->at < e->size ? (unsigned char)e->text[e->at] : -1; }

static void skip_blanks(ebnf *e) {
    while (e->at < e->size) {
        int c = peek(e);
        if (c == '#') {
            while (e->at < e->size && peek(e) != '\n') e->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
            e->at++;
        } else {
            return;
        }
    }
}

static bool take(ebnf *e, const char *literal) {
    size_t n = strlen(literal);
    if (e->size - e->at < n || memcmp(e->text + e->at, literal, n) != 0) return false;
    e->at += n;
    return true;
}

static bool in_name(int c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static size_t name_length(const ebnf *e) {
    size_t n = 0;
    while (e->at + n < e->size && in_name((unsigned char)e->text[e->at + n])) n++;
    return n;
}

/* A name and "::=" stand here. */
static bool at_definition(const ebnf *e) {
    ebnf look = *e;
    look.at += name_length(e);
    if (look.at == e->at) return false;
    skip_blanks(&look);
    return take(&look, "::=");
}

static rule *rule_named(ebnf *e, const char *name, size_t size) {
    for (rule *r = e->rules; r; r = r->next) {
        if (!compiler__spend(e->c, 1)) return NULL;
        if (r->size == size && memcmp(r->name, name, size) == 0) return r;
    }
    rule *r = compiler__alloc(e->c, 1, sizeof *r);
    char *copy = r ? di_arena_strndup(&e->c->arena, name, size) : NULL;
    if (!copy) return NULL;
    *r = (rule){copy, size, NULL, program__rule(&e->c->p, copy), e->rules};
    e->rules = r;
    return r;
}

static item *new_item(ebnf *e, item_kind kind) {
    item *i = compiler__alloc(e->c, 1, sizeof *i);
    if (i) i->kind = kind;
    return i;
}

/* ---- Reading ---- */

/* Behind the opening quote. */
static item *take_text(ebnf *e) {
    item *i = new_item(e, ITEM_TEXT);
    char *bytes = compiler__alloc(e->c, e->size - e->at + 4, 1);
    if (!i || !bytes) return NULL;
    i->text = bytes;
    while (e->c->status == DI_OK && !take(e, "\"")) {
        uint32_t code = 0;
        if (peek(e) < 0 || peek(e) == '\n') {
            wrong(e, DI_ERR_INVALID, "a literal is not closed");
            return NULL;
        }
        if (take(e, "\\")) {
            code = regex__read_escape(e->c, e->text, e->size, &e->at, "grammar");
        } else {
            size_t n = di_utf8_decode(e->text + e->at, e->size - e->at, &code);
            if (n == 0) wrong(e, DI_ERR_INVALID, "not valid UTF-8");
            e->at += n;
        }
        if (e->c->status == DI_OK) i->size += di_utf8_encode(code, bytes + i->size);
    }
    return i;
}

static item *parse_choice(ebnf *e, bool nested);

static item *take_atom(ebnf *e) {
    if (take(e, "\"")) return take_text(e);
    if (take(e, "(")) {
        if (++e->depth > EBNF_MAX_DEPTH) wrong(e, DI_ERR_LIMIT, "parentheses nest too deep");
        item *inner = parse_choice(e, true);
        e->depth--;
        skip_blanks(e);
        if (e->c->status == DI_OK && !take(e, ")")) {
            wrong(e, DI_ERR_INVALID, "a parenthesis is not closed");
        }
        return inner;
    }
    if (take(e, "[")) {
        item *i = new_item(e, ITEM_SET);
        if (i) e->at = regex__read_class(e->c, e->text, e->size, e->at, &i->set, "grammar");
        return i;
    }
    if (take(e, ".")) {
        item *i = new_item(e, ITEM_SET);
        if (i) chars__add(e->c, &i->set, 0, CHARS_LAST);
        return i;
    }
    size_t n = name_length(e);
    if (n == 0) {
        wrong(e, DI_ERR_INVALID,
              peek(e) == '/' || peek(e) == '<' || peek(e) == '!'
                  ? "only literals, classes, '.', rule names and parentheses are supported "
                    "(no /regex/, <token> or negation)"
                  : "a literal, a class, a rule's name or a parenthesis is expected");
        return NULL;
    }
    item *i = new_item(e, ITEM_RULE);
    rule *r = i ? rule_named(e, e->text + e->at, n) : NULL;
    if (!r) return NULL;
    i->rule = r->number;
    e->at += n;
    return i;
}

static int32_t take_number(ebnf *e) {
    int32_t n = 0;
    if (peek(e) < '0' || peek(e) > '9') wrong(e, DI_ERR_INVALID, "a repetition needs a number");
    while (peek(e) >= '0' && peek(e) <= '9') {
        n = n * 10 + (peek(e) - '0');
        if (n > EBNF_MAX_COUNT) {
            wrong(e, DI_ERR_LIMIT, "a repetition of more than 1000000 times");
            return 0;
        }
        e->at++;
    }
    return n;
}

/* Behind "{". */
static void take_counts(ebnf *e, int32_t *min, int32_t *max) {
    skip_blanks(e);
    *min = peek(e) == ',' ? 0 : take_number(e);
    *max = *min;
    skip_blanks(e);
    if (take(e, ",")) {
        skip_blanks(e);
        *max = peek(e) == '}' ? PROGRAM_FOREVER : take_number(e);
        skip_blanks(e);
    }
    if (e->c->status == DI_OK && (!take(e, "}") || *max < *min)) {
        wrong(e, DI_ERR_INVALID, "a repetition must be {n}, {n,} or {n,m} with n <= m");
    }
}

static item *take_repeated(ebnf *e) {
    item *i = take_atom(e);
    while (i && e->c->status == DI_OK) {
        int32_t min, max;
        if (take(e, "*")) {
            min = 0, max = PROGRAM_FOREVER;
        } else if (take(e, "+")) {
            min = 1, max = PROGRAM_FOREVER;
        } else if (take(e, "?")) {
            min = 0, max = 1;
        } else if (take(e, "{")) {
            take_counts(e, &min, &max);
        } else {
            return i;
        }
        if (++e->depth > EBNF_MAX_DEPTH * 2) wrong(e, DI_ERR_LIMIT, "repetitions nest too deep");
        item *outer = new_item(e, ITEM_REPEAT);
        if (!outer) return NULL;
        outer->first = i;
        outer->min = min;
        outer->max = max;
        i = outer;
    }
    return i;
}

static item *parse_sequence(ebnf *e, bool nested) {
    item *s = new_item(e, ITEM_SEQUENCE);
    int depth = e->depth;
    while (s && e->c->status == DI_OK) {
        skip_blanks(e);
        if (peek(e) < 0 || peek(e) == '|' || (peek(e) == ')' && nested)) break;
        if (!nested && at_definition(e)) break;
        item *i = take_repeated(e);
        e->depth = depth;
        if (!i) return NULL;
        i->sibling = s->first;
        s->first = i;
    }
    return s;
}

static item *parse_choice(ebnf *e, bool nested) {
    item *all = new_item(e, ITEM_CHOICE), **last = all ? &all->first : NULL;
    do {
        item *i = all ? parse_sequence(e, nested) : NULL;
        if (!i) return NULL;
        *last = i;
        last = &i->sibling;
        skip_blanks(e);
    } while (take(e, "|"));
    return all;
}

static void parse_rules(ebnf *e) {
    for (skip_blanks(e); e->c->status == DI_OK && e->at < e->size; skip_blanks(e)) {
        size_t n = name_length(e);
        if (!at_definition(e)) {
            wrong(e, DI_ERR_INVALID,
                  "expected NAME ::= ... (GBNF; other forms, such as Lark's, are not supported)");
            return;
        }
        rule *r = rule_named(e, e->text + e->at, n);
        if (!r) return;
        if (r->body) {
            wrong(e, DI_ERR_INVALID, "a rule is defined twice");
            return;
        }
        e->at += n;
        skip_blanks(e);
        take(e, "::=");
        r->body = parse_choice(e, false);
    }
}

/* ---- Building ---- */

static int32_t build(ebnf *e, const item *i, int32_t next);

static int32_t build_repeat(ebnf *e, const item *i, int32_t next) {
    program *p = &e->c->p;
    if (i->max == PROGRAM_FOREVER && i->min <= 1) {
        int32_t loop = program__open(p);
        int32_t body = build(e, i->first, loop);
        program__close(p, loop, body, next);
        return i->min ? body : loop;
    }
    bool small = i->first->kind == ITEM_SET || i->first->kind == ITEM_TEXT ||
                 i->first->kind == ITEM_RULE || i->max == 1;
    if (small && i->max <= EBNF_COPIES) {
        int32_t at = next;
        for (int32_t k = i->min; k < i->max; k++) {
            at = program__split(p, build(e, i->first, at), next);
        }
        for (int32_t k = 0; k < i->min; k++) at = build(e, i->first, at);
        return at;
    }
    int32_t body = program__rule(p, "a repetition");
    program__define(p, body, build(e, i->first, PROGRAM_ACCEPT));
    return program__repeat(p, body, i->min, i->max, next);
}

static int32_t build(ebnf *e, const item *i, int32_t next) {
    program *p = &e->c->p;
    int32_t at = next;
    if (!compiler__spend(e->c, 1)) return PROGRAM_FAIL;
    switch (i->kind) {
    case ITEM_TEXT: return program__literal(p, i->text, i->size, next);
    case ITEM_SET: return chars__emit_set(e->c, &i->set, CHAR_RAW, next);
    case ITEM_RULE: return program__call(p, i->rule, next);
    case ITEM_REPEAT: return build_repeat(e, i, next);
    case ITEM_SEQUENCE:
        for (const item *k = i->first; k; k = k->sibling) at = build(e, k, at);
        return at;
    case ITEM_CHOICE:
        at = PROGRAM_FAIL;
        for (const item *k = i->first; k; k = k->sibling) {
            at = program__split(p, build(e, k, next), at);
        }
        return at;
    }
    return at;
}

static void build_rules(ebnf *e) {
    for (const rule *r = e->rules; r && e->c->status == DI_OK; r = r->next) {
        if (r->body) {
            program__define(&e->c->p, r->number, build(e, r->body, PROGRAM_ACCEPT));
        } else if (strcmp(r->name, "root") == 0) {
            compiler__fail(e->c, DI_ERR_INVALID, "grammar: there is no rule 'root'");
        } else {
            compiler__fail(e->c, DI_ERR_INVALID, "grammar: the rule '%s' is used, but not defined",
                           r->name);
        }
    }
}

int32_t ebnf__emit(compiler *c, const char *text, size_t size, int32_t next) {
    ebnf e = {.c = c, .text = text, .size = size};
    const rule *root = rule_named(&e, "root", 4);
    parse_rules(&e);
    if (c->status == DI_OK) build_rules(&e);
    return c->status == DI_OK ? program__call(&c->p, root->number, next) : PROGRAM_FAIL;
}

di_status di_grammar_compile_ebnf(const di_vocabulary *vocabulary, const char *text, size_t size,
                                  di_grammar **out, di_error *error) {
    compiler c;
    compiler__init(&c, error);
    (void)ebnf__emit(&c, text, size, PROGRAM_ACCEPT); /* "root" is the first rule: the answer */
    return grammar__finish(vocabulary, &c, out);
}
