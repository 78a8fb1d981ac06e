#include "support/grammar_schemas.h"

#include "support/grammar_support.h"

enum { MAX_DEPTH = 4, N_DEFS = 3 };

typedef struct maker {
    uint64_t state;
    di_buffer *out;
} maker;

static uint32_t pick(maker *m, uint32_t below) { return grammar_random(&m->state, below); }
static bool maybe(maker *m, uint32_t percent) { return pick(m, 100) < percent; }

static const char *const names[] = {"a",    "b",     "name", "n\\u00e4me", "x y",   "q\\\"q",
                                    "日本", "items", "id",   "value_1",    "a-b-c", "type"};
static const char *const words[] = {"\"red\"",    "\"green\"", "\"\"",         "\"a\\nb\"",
                                    "\"日本語\"", "\"é\"",     "\"say \\\"\"", "\"red flag\""};
static const char *const patterns[] =
    {"^[a-z]{2,5}$",      "[0-9]+", "^(foo|bar)-[0-9]{1,3}$",           "a.c",
     "^\\\\S+$",          "[^ -~]", "^[A-Z][a-z]*( [A-Z][a-z]*){0,2}$", "^$|^x",
     "^[^\\\"\\\\\\\\]*$"};
static const char *const formats[] = {"date",     "time",     "date-time",     "uuid",
                                      "email",    "hostname", "ipv4",          "ipv6",
                                      "duration", "uri",      "uri-reference", "json-pointer",
                                      "byte"};

static void value(maker *m, int depth);

static void a_string(maker *m) {
    di_buffer_puts(m->out, "{\"type\": \"string\"");
    if (maybe(m, 25)) {
        di_buffer_printf(m->out, ", \"pattern\": \"%s\"", patterns[pick(m, 9)]);
    } else if (maybe(m, 20)) {
        di_buffer_printf(m->out, ", \"format\": \"%s\"", formats[pick(m, 13)]);
    }
    uint32_t min = pick(m, 6);
    if (maybe(m, 25)) di_buffer_printf(m->out, ", \"minLength\": %u", min);
    if (maybe(m, 45)) di_buffer_printf(m->out, ", \"maxLength\": %u", min + pick(m, 12));
    di_buffer_putc(m->out, '}');
}

static void a_number(maker *m) {
    static const char *const multiples[] = {"2", "3", "7", "0.5", "0.25", "10"};
    bool integer = maybe(m, 50);
    int lo = (int)pick(m, 300) - 150, hi = lo + (int)pick(m, 400);
    di_buffer_printf(m->out, "{\"type\": \"%s\"", integer ? "integer" : "number");
    const char *half = integer || maybe(m, 50) ? "" : ".5";
    if (maybe(m, 50)) {
        di_buffer_printf(m->out, ", \"%s\": %d%s", maybe(m, 30) ? "exclusiveMinimum" : "minimum",
                         lo, half);
    }
    if (maybe(m, 50)) {
        di_buffer_printf(m->out, ", \"%s\": %d%s", maybe(m, 30) ? "exclusiveMaximum" : "maximum",
                         hi, half);
    }
    if (maybe(m, 20)) {
        di_buffer_printf(m->out, ", \"multipleOf\": %s", multiples[pick(m, integer ? 3 : 6)]);
    }
    di_buffer_putc(m->out, '}');
}

static void an_enum(maker *m) {
    di_buffer_puts(m->out, "{\"enum\": [");
    uint32_t n = 1 + pick(m, 4);
    for (uint32_t i = 0; i < n; i++) {
        if (i) di_buffer_puts(m->out, ", ");
        switch (pick(m, 6)) {
        case 0: di_buffer_printf(m->out, "%d", (int)pick(m, 20) - 10); break;
        case 1: di_buffer_puts(m->out, maybe(m, 50) ? "null" : "true"); break;
        case 2: di_buffer_puts(m->out, maybe(m, 50) ? "[1, \"a\"]" : "{\"a\": 1.5}"); break;
        default: di_buffer_puts(m->out, words[(pick(m, 2) + 2 * i) % 8]); break;
        }
    }
    di_buffer_puts(m->out, "]}");
}

static void an_array(maker *m, int depth) {
    di_buffer_puts(m->out, "{\"type\": \"array\"");
    if (maybe(m, 25)) {
        di_buffer_puts(m->out, ", \"prefixItems\": [");
        uint32_t n = 1 + pick(m, 3);
        for (uint32_t i = 0; i < n; i++) {
            if (i) di_buffer_puts(m->out, ", ");
            value(m, depth + 1);
        }
        di_buffer_putc(m->out, ']');
    }
    if (maybe(m, 75)) {
        di_buffer_puts(m->out, ", \"items\": ");
        value(m, depth + 1);
    }
    uint32_t min = pick(m, 3);
    if (maybe(m, 35)) di_buffer_printf(m->out, ", \"minItems\": %u", min);
    if (maybe(m, 50)) di_buffer_printf(m->out, ", \"maxItems\": %u", min + pick(m, 3));
    di_buffer_putc(m->out, '}');
}

static void properties(maker *m, int depth) {
    uint32_t first = pick(m, 12), n = 1 + pick(m, 4);
    di_buffer_puts(m->out, ", \"properties\": {");
    for (uint32_t i = 0; i < n; i++) {
        if (i) di_buffer_puts(m->out, ", ");
        di_buffer_printf(m->out, "\"%s\": ", names[(first + i) % 12]);
        value(m, depth + 1);
    }
    di_buffer_putc(m->out, '}');
    if (maybe(m, 50)) {
        di_buffer_puts(m->out, ", \"required\": [");
        uint32_t k = pick(m, n + 1);
        for (uint32_t i = 0; i < k; i++) {
            di_buffer_printf(m->out, "%s\"%s\"", i ? ", " : "", names[(first + i) % 12]);
        }
        if (maybe(m, 10)) di_buffer_printf(m->out, "%s\"extra\"", k ? ", " : "");
        di_buffer_putc(m->out, ']');
    }
    if (maybe(m, 10)) {
        di_buffer_printf(m->out, ", \"dependentRequired\": {\"%s\": [\"%s\"]}", names[first],
                         names[(first + 1) % 12]);
    }
}

static void an_object(maker *m, int depth) {
    di_buffer_puts(m->out, "{\"type\": \"object\"");
    if (maybe(m, 85)) properties(m, depth);
    if (maybe(m, 12)) {
        di_buffer_puts(m->out, ", \"patternProperties\": {\"^[a-c]\": ");
        value(m, depth + 1);
        di_buffer_puts(m->out, "}");
    }
    if (maybe(m, 60)) {
        di_buffer_puts(m->out, ", \"additionalProperties\": false");
    } else if (maybe(m, 50)) {
        di_buffer_puts(m->out, ", \"additionalProperties\": ");
        value(m, depth + 1);
    }
    if (maybe(m, 8)) di_buffer_puts(m->out, ", \"propertyNames\": {\"maxLength\": 6}");
    if (maybe(m, 8)) di_buffer_printf(m->out, ", \"minProperties\": %u", pick(m, 2));
    if (maybe(m, 10)) di_buffer_printf(m->out, ", \"maxProperties\": %u", 1 + pick(m, 4));
    di_buffer_putc(m->out, '}');
}

static void several(maker *m, const char *keyword, int depth) {
    uint32_t n = 2 + pick(m, 2);
    di_buffer_printf(m->out, "{\"%s\": [", keyword);
    for (uint32_t i = 0; i < n; i++) {
        if (i) di_buffer_puts(m->out, ", ");
        value(m, depth + 1);
    }
    di_buffer_puts(m->out, "]}");
}

/* Objects told apart by a constant, as programs write unions. */
static void tagged(maker *m, int depth) {
    di_buffer_puts(m->out, "{\"oneOf\": [");
    for (uint32_t i = 0; i < 3; i++) {
        di_buffer_printf(m->out,
                         "%s{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": %s}, "
                         "\"v\": ",
                         i ? ", " : "", words[i]);
        value(m, depth + 1);
        di_buffer_puts(m->out, "}, \"required\": [\"kind\"], \"additionalProperties\": false}");
    }
    di_buffer_puts(m->out, "]}");
}

static void narrowed(maker *m) {
    switch (pick(m, 5)) {
    case 4:
        di_buffer_printf(m->out,
                         "{\"type\": \"array\", \"items\": {\"enum\": [%s, 1, null]}, "
                         "\"uniqueItems\": true, \"minItems\": %u}",
                         words[pick(m, 8)], pick(m, 3));
        break;
    case 0:
        di_buffer_puts(m->out, "{\"type\": \"string\", \"not\": {\"enum\": [\"red\", \"\"]}}");
        break;
    case 1: di_buffer_puts(m->out, "{\"type\": \"integer\", \"not\": {\"minimum\": 3}}"); break;
    case 2:
        di_buffer_puts(m->out, "{\"if\": {\"type\": \"string\"}, \"then\": {\"maxLength\": 3}, "
                               "\"else\": {\"type\": [\"integer\", \"null\"]}}");
        break;
    default:
        di_buffer_puts(m->out, "{\"allOf\": [{\"type\": \"string\", \"pattern\": \"^[a-f]*$\"}, "
                               "{\"pattern\": \"b.*b\"}, {\"maxLength\": 7}]}");
        break;
    }
}

static void value(maker *m, int depth) {
    uint32_t kind = pick(m, depth >= MAX_DEPTH ? 55 : 110);
    if (kind < 16) {
        a_string(m);
    } else if (kind < 32) {
        a_number(m);
    } else if (kind < 38) {
        an_enum(m);
    } else if (kind < 43) {
        di_buffer_puts(m->out, "{\"type\": \"boolean\"}");
    } else if (kind < 46) {
        di_buffer_puts(m->out, "{\"type\": [\"string\", \"null\"], \"maxLength\": 4}");
    } else if (kind < 50) {
        narrowed(m);
    } else if (kind < 55) {
        di_buffer_printf(m->out, "{\"$ref\": \"#/$defs/d%u\"}", pick(m, N_DEFS));
    } else if (kind < 72) {
        an_array(m, depth);
    } else if (kind < 94) {
        an_object(m, depth);
    } else if (kind < 99) {
        several(m, "anyOf", depth);
    } else if (kind < 101) {
        several(m, "oneOf", depth);
    } else if (kind < 104) {
        several(m, "allOf", depth);
    } else {
        tagged(m, depth);
    }
}

void grammar_random_schema(uint64_t seed, di_buffer *out) {
    maker m = {seed * 2 + 1, out};
    for (int i = 0; i < 4; i++) pick(&m, 2);
    di_buffer inner = DI_BUFFER_EMPTY;
    m.out = &inner;
    if (maybe(&m, 70)) {
        an_object(&m, 0);
    } else {
        value(&m, 0);
    }
    m.out = out;
    di_buffer_puts(out, "{\"$defs\": {");
    for (int i = 0; i < N_DEFS; i++) {
        di_buffer_printf(out, "%s\"d%d\": ", i ? ", " : "", i);
        if (maybe(&m, 50)) {
            an_object(&m, 2);
        } else {
            a_string(&m);
        }
    }
    di_buffer_puts(out, "}, ");
    di_buffer_append(out, inner.data + 1, inner.size - 1); /* without its brace */
    di_buffer_free(&inner);
}
