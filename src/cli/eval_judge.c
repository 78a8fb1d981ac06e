#include "cli/eval_judge.h"

#include <string.h>

#include "base/error.h"

typedef struct span {
    const char *data;
    size_t size;
} span;

static const char *const names[DI_N_JUDGES] = {
    [DI_JUDGE_EXACT] = "exact", [DI_JUDGE_CONTAINS] = "contains", [DI_JUDGE_NUMBER] = "number",
    [DI_JUDGE_JSON] = "json",   [DI_JUDGE_CALLS] = "calls",
};

const char *di_judge_name(di_judge judge) { return names[judge]; }

bool di_judge_find(const char *name, size_t size, di_judge *out) {
    for (int i = 0; i < DI_N_JUDGES; i++) {
        if (strlen(names[i]) != size || memcmp(names[i], name, size) != 0) continue;
        *out = (di_judge)i;
        return true;
    }
    return false;
}

/* ---- JSON values ---- */

static bool same_bytes(const char *a, size_t a_size, const char *b, size_t b_size) {
    return a_size == b_size && (a_size == 0 || memcmp(a, b, a_size) == 0);
}

static bool same_number(const di_json *a, const di_json *b) {
    int64_t i, j;
    double x, y;
    if (di_json_int64(a, &i) && di_json_int64(b, &j)) return i == j;
    if (di_json_double(a, &x) && di_json_double(b, &y)) return x == y;
    return same_bytes(a->text, a->length, b->text, b->length);
}

static const di_json *member(const di_json *object, const di_json *like) {
    for (const di_json *m = object->first; m; m = m->next) {
        if (same_bytes(m->key, m->key_length, like->key, like->key_length)) return m;
    }
    return NULL;
}

static bool same_object(const di_json *a, const di_json *b) {
    if (a->length != b->length) return false;
    for (const di_json *m = a->first; m; m = m->next) { /* keys are unique: json.h */
        const di_json *other = member(b, m);
        if (!other || !di_judge_same_json(m, other)) return false;
    }
    return true;
}

static bool same_array(const di_json *a, const di_json *b) {
    if (a->length != b->length) return false;
    const di_json *other = b->first;
    for (const di_json *item = a->first; item; item = item->next, other = other->next) {
        if (!di_judge_same_json(item, other)) return false;
    }
    return true;
}

/* As deep as di_json_parse lets it be. */
bool di_judge_same_json(const di_json *a, const di_json *b) {
    if (a->type != b->type) return false;
    switch (a->type) {
    case DI_JSON_NULL:
    case DI_JSON_FALSE:
    case DI_JSON_TRUE: return true;
    case DI_JSON_NUMBER: return same_number(a, b);
    case DI_JSON_STRING: return same_bytes(a->text, a->length, b->text, b->length);
    case DI_JSON_ARRAY: return same_array(a, b);
    case DI_JSON_OBJECT: return same_object(a, b);
    }
    return false;
}

/* NULL when it is no JSON. Out of memory counts as that, too: the tree is small. */
static const di_json *parsed(span t, di_arena *arena) {
    const di_json *value;
    di_error ignored;
    if (di_json_parse(t.data, t.size, "", arena, &value, &ignored) != DI_OK) return NULL;
    return value;
}

/* ---- Texts ---- */

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static span trimmed(const char *data, size_t size) {
    if (!data) return (span){"", 0};
    while (size > 0 && is_space(data[size - 1])) size--;
    while (size > 0 && is_space(*data)) data++, size--;
    return (span){data, size};
}

static span of_json(const di_json *string) { return trimmed(string->text, string->length); }

static bool contains(span whole, span part) {
    if (part.size == 0) return true;
    return memmem(whole.data, whole.size, part.data, part.size) != NULL;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The last number as JSON would write it, a sign before it only where no word or digit ends; size 0:
 * there is none. A point that no digit follows ends a sentence. */
static span last_number(span t) {
    size_t end = t.size;
    while (end > 0 && !is_digit(t.data[end - 1])) end--;
    size_t begin = end;
    while (begin > 0 && is_digit(t.data[begin - 1])) begin--;
    if (begin > 1 && t.data[begin - 1] == '.' && is_digit(t.data[begin - 2])) {
        begin--;
        while (begin > 0 && is_digit(t.data[begin - 1])) begin--;
    }
    if (begin > 0 && end > begin && t.data[begin - 1] == '-' &&
        (begin == 1 || is_space(t.data[begin - 2]) || t.data[begin - 2] == '(')) {
        begin--;
    }
    return (span){t.data + begin, end - begin};
}

/* Leading zeros are fine in an answer and not in JSON. */
static span without_zeros(span t, char *out, size_t capacity) {
    size_t at = 0, n = 0;
    if (at < t.size && t.data[at] == '-') out[n++] = t.data[at++];
    while (at + 1 < t.size && t.data[at] == '0' && is_digit(t.data[at + 1])) at++;
    while (at < t.size && n < capacity) out[n++] = t.data[at++];
    return (span){out, at == t.size ? n : 0};
}

static bool number_fits(const di_json *want, span answer, di_arena *arena) {
    char digits[400]; /* longer than any double */
    const di_json *value = parsed(without_zeros(last_number(answer), digits, sizeof digits), arena);
    if (value && want->type == DI_JSON_STRING) want = parsed(of_json(want), arena);
    return value && want && want->type == DI_JSON_NUMBER && same_number(want, value);
}

/* ---- One wanted answer ---- */

/* A string is JSON written down, as an answer is; any other value is itself. */
static bool json_fits(const di_json *want, span answer, di_arena *arena) {
    const di_json *value = parsed(answer, arena);
    if (value && want->type == DI_JSON_STRING) want = parsed(of_json(want), arena);
    return value && want && di_judge_same_json(want, value);
}

static bool fits(di_judge judge, const di_json *want, span answer, di_arena *arena) {
    span wanted;
    switch (judge) {
    case DI_JUDGE_EXACT:
        wanted = of_json(want);
        return same_bytes(wanted.data, wanted.size, answer.data, answer.size);
    case DI_JUDGE_CONTAINS: return contains(answer, of_json(want));
    case DI_JUDGE_NUMBER: return number_fits(want, answer, arena);
    case DI_JUDGE_JSON: return json_fits(want, answer, arena);
    case DI_JUDGE_CALLS:
    case DI_N_JUDGES: break;
    }
    return false;
}

/* A list of strings holds alternatives (for DI_JUDGE_JSON texts of JSON); any other is a value. */
static bool has_alternatives(const di_json *answer) {
    if (answer->type != DI_JSON_ARRAY || answer->length == 0) return false;
    for (const di_json *item = answer->first; item; item = item->next) {
        if (item->type != DI_JSON_STRING) return false;
    }
    return true;
}

static bool text_fits(const di_eval_want *want, span answer, di_arena *arena) {
    if (!has_alternatives(want->answer)) return fits(want->judge, want->answer, answer, arena);
    for (const di_json *item = want->answer->first; item; item = item->next) {
        if (fits(want->judge, item, answer, arena)) return true;
    }
    return false;
}

/* ---- Calls ---- */

/* A call as {"name", "arguments"}, or inside of "function" as in the API. */
static const di_json *function_of(const di_json *call) {
    const di_json *function = di_json_get(call, "function");
    return function ? function : call;
}

static bool call_fits(const di_json *want, const di_answer_call *call, di_arena *arena) {
    const di_json *function = function_of(want), *name = di_json_get(function, "name");
    const di_json *arguments = di_json_get(function, "arguments");
    if (!same_bytes(name->text, name->length, call->name.data, call->name.size)) return false;
    if (arguments->type == DI_JSON_STRING) arguments = parsed(of_json(arguments), arena);
    const di_json *given = parsed(trimmed(call->arguments.data, call->arguments.size), arena);
    return arguments && given && di_judge_same_json(arguments, given);
}

static bool calls_fit(const di_json *want, const di_answer *answer, di_arena *arena) {
    if (want->length != (size_t)answer->n_calls) return false;
    int i = 0;
    for (const di_json *call = want->first; call; call = call->next, i++) {
        if (!call_fits(call, &answer->calls[i], arena)) return false;
    }
    return true;
}

static di_status check_calls(const di_json *calls, di_error *error) {
    if (!calls || calls->type != DI_JSON_ARRAY) {
        return di_fail(error, DI_ERR_INVALID, "tool_calls: a list is needed");
    }
    di_arena arena = DI_ARENA_EMPTY;
    bool good = true;
    for (const di_json *call = calls->first; call && good; call = call->next) {
        const di_json *name = di_json_get(function_of(call), "name");
        const di_json *arguments = di_json_get(function_of(call), "arguments");
        if (arguments && arguments->type == DI_JSON_STRING) {
            arguments = parsed(of_json(arguments), &arena);
        }
        good =
            name && name->type == DI_JSON_STRING && arguments && arguments->type == DI_JSON_OBJECT;
    }
    di_arena_free(&arena);
    if (good) return DI_OK;
    return di_fail(error, DI_ERR_INVALID,
                   "tool_calls: each needs a name and arguments, an object or its JSON text");
}

/* ---- The door ---- */

/* A value, or a string that is one written down; of type number when it must be. */
static bool is_value(const di_json *answer, bool number) {
    di_arena arena = DI_ARENA_EMPTY;
    if (answer->type == DI_JSON_STRING) answer = parsed(of_json(answer), &arena);
    bool good = answer && (!number || answer->type == DI_JSON_NUMBER);
    di_arena_free(&arena);
    return good;
}

static bool all_values(const di_json *answer, bool number) {
    if (!has_alternatives(answer)) return is_value(answer, number);
    for (const di_json *item = answer->first; item; item = item->next) {
        if (!is_value(item, number)) return false;
    }
    return true;
}

di_status di_judge_check(const di_eval_want *want, di_error *error) {
    if (want->judge == DI_JUDGE_CALLS) return check_calls(want->calls, error);
    if (!want->answer) return di_fail(error, DI_ERR_INVALID, "answer: it is missing");
    bool number = want->judge == DI_JUDGE_NUMBER;
    if (number || want->judge == DI_JUDGE_JSON) {
        if (all_values(want->answer, number)) return DI_OK;
        return di_fail(error, DI_ERR_INVALID, "answer: it is no %s, which judge %s needs",
                       number ? "number" : "JSON", names[want->judge]);
    }
    if (want->answer->type == DI_JSON_STRING || has_alternatives(want->answer)) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "answer: a string or a list of strings is needed");
}

di_status di_judge_answer(const di_eval_want *want, const di_answer *answer, bool *right,
                          di_error *error) {
    if (answer->failed) return di_fail(error, DI_ERR_MEMORY, "out of memory: answer");
    di_arena arena = DI_ARENA_EMPTY;
    if (want->judge == DI_JUDGE_CALLS) {
        *right = calls_fit(want->calls, answer, &arena);
    } else {
        /* An answer that is a call is no text, whatever stands beside it. */
        *right = answer->n_calls == 0 &&
                 text_fits(want, trimmed(answer->text.data, answer->text.size), &arena);
    }
    di_arena_free(&arena);
    return DI_OK;
}
