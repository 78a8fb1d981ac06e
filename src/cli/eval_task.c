/* Task files: a line of JSON to the ids of a prompt and what its answer should be. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/eval_set.h"
#include "cli/input.h"
#include "cli/json_prompt.h"
#include "cli/lines.h"

enum { MOST_TOKENS = 1 << 30 };

typedef struct reader {
    di_eval_set *set;
    const di_tokenizer *tokenizer;
    const di_eval_limits *limits;
    const di_json *line;
} reader;

/* NULL: not there, or null. */
static const di_json *get(const di_json *object, const char *key) {
    const di_json *value = di_json_get(object, key);
    return value && value->type != DI_JSON_NULL ? value : NULL;
}

/* A misspelled field would quietly change what is measured. */
static di_status check_fields(const di_json *line, di_error *error) {
    static const char *const known[] = {"id",     "task",       "messages",   "tools",
                                        "prompt", "mode",       "answer",     "reasoning_effort",
                                        "judge",  "tool_calls", "completion", "max_tokens"};
    if (line->type != DI_JSON_OBJECT) return di_fail(error, DI_ERR_INVALID, "no JSON object");
    for (const di_json *field = line->first; field; field = field->next) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known && !found; i++) {
            found = strcmp(field->key, known[i]) == 0 && strlen(field->key) == field->key_length;
        }
        if (!found) return di_fail(error, DI_ERR_INVALID, "%.80s: no such field", field->key);
    }
    return DI_OK;
}

/* ---- The prompt ---- */

/* effort: the text that the options point to. */
static di_status read_mode(const di_json *line, di_prompt_options *out, char effort[24],
                           di_error *error) {
    const di_json *mode = get(line, "mode"), *given = get(line, "reasoning_effort");
    int64_t number;
    out->thinking = !mode || di_json_is_string(mode, "thinking");
    if (!out->thinking && !di_json_is_string(mode, "chat")) {
        return di_fail(error, DI_ERR_INVALID, "mode: it is neither \"chat\" nor \"thinking\"");
    }
    if (!given) return DI_OK;
    if (di_json_int64(given, &number)) {
        snprintf(effort, 24, "%" PRId64, number);
        out->effort = effort;
    } else if (given->type == DI_JSON_STRING && strlen(given->text) == given->length) {
        out->effort = given->text;
    } else {
        return di_fail(error, DI_ERR_INVALID, "reasoning_effort: a number or a name is needed");
    }
    return DI_OK;
}

static di_status encode_messages(const reader *r, const di_json *messages, di_eval_item *item,
                                 di_error *error) {
    di_prompt_options options = di_prompt_options_defaults();
    char effort[24];
    DI_TRY(read_mode(r->line, &options, effort, error));
    return di_prompt_from_json(r->tokenizer, messages, get(r->line, "tools"), &options, &item->ids,
                               &item->thinking, error);
}

/* A prompt that is rendered already, markers spelled out; nothing is put before it. */
static di_status encode_prompt(const reader *r, const di_json *prompt, di_ids *out,
                               di_error *error) {
    if (prompt->type != DI_JSON_STRING || prompt->length == 0) {
        return di_fail(error, DI_ERR_INVALID, "prompt: a string, not empty, is needed");
    }
    return di_tokenizer_encode(r->tokenizer, prompt->text, prompt->length, true, out, error);
}

static di_status compare_prompts(const di_ids *a, const di_ids *b, di_error *error) {
    size_t n = 0;
    while (n < a->size && n < b->size && a->data[n] == b->data[n]) n++;
    if (n == a->size && n == b->size) return DI_OK;
    return di_fail(error, DI_ERR_INVALID,
                   "prompt: it is not what messages come to, from token %zu on; leave out one", n);
}

/* messages, or prompt; where both are given they must be the same. */
static di_status read_prompt(const reader *r, di_eval_item *item, di_error *error) {
    const di_json *messages = get(r->line, "messages"), *prompt = get(r->line, "prompt");
    if (messages) DI_TRY(encode_messages(r, messages, item, error));
    if (!prompt) {
        return messages ? DI_OK : di_fail(error, DI_ERR_INVALID, "messages or prompt is needed");
    }
    di_ids ids = {0};
    di_status status = encode_prompt(r, prompt, &ids, error);
    if (status == DI_OK && messages) status = compare_prompts(&item->ids, &ids, error);
    if (status == DI_OK && !messages) {
        item->ids = ids;
        int32_t think = di_tokenizer_added_id(r->tokenizer, "<think>");
        item->thinking = think >= 0 && ids.data[ids.size - 1] == think;
    } else {
        di_ids_free(&ids);
    }
    return status;
}

/* ---- The answer ---- */

static di_status read_judge(const di_json *line, di_eval_want *want, di_error *error) {
    const di_json *judge = get(line, "judge");
    want->judge = want->calls ? DI_JUDGE_CALLS : DI_JUDGE_EXACT;
    if (!judge) return DI_OK;
    if (judge->type == DI_JSON_STRING && di_judge_find(judge->text, judge->length, &want->judge)) {
        return DI_OK;
    }
    return di_fail(error, DI_ERR_INVALID,
                   "judge: it is none of exact, contains, number, json and calls");
}

static di_status read_want(const reader *r, di_eval_item *item, di_error *error) {
    di_eval_want *want = &item->want;
    const di_json *completion = get(r->line, "completion");
    const di_json *max_tokens = get(r->line, "max_tokens");
    want->answer = get(r->line, "answer");
    want->calls = get(r->line, "tool_calls");
    if (completion && completion->type != DI_JSON_STRING) {
        return di_fail(error, DI_ERR_INVALID, "completion: a string is needed");
    }
    want->completion = completion ? completion->text : NULL;
    want->completion_size = completion ? completion->length : 0;
    item->max_tokens = r->limits->max_tokens;
    if (max_tokens && (!di_json_int64(max_tokens, &item->max_tokens) || item->max_tokens < 1 ||
                       item->max_tokens > MOST_TOKENS)) {
        return di_fail(error, DI_ERR_INVALID, "max_tokens: a whole number from 1 to %d is needed",
                       MOST_TOKENS);
    }
    DI_TRY(read_judge(r->line, want, error));
    return di_judge_check(want, error);
}

/* ---- Lines ---- */

static di_status read_line(reader *r, const char *text, size_t size, di_eval_item *item,
                           di_error *error) {
    DI_TRY(di_json_parse(text, size, "JSON", &r->set->arena, &r->line, error));
    DI_TRY(check_fields(r->line, error));
    DI_TRY(read_prompt(r, item, error));
    return read_want(r, item, error);
}

static const di_eval_group *group_of(const reader *r) {
    return &r->set->groups[r->set->n_groups - 1];
}

/* What is wrong with the line is complained about; what is wrong with the machine is a failure. */
static di_status add_line(reader *r, int64_t number, const char *text, size_t size,
                          di_error *error) {
    di_error why;
    di_eval_item item = {.line = number}, *place;
    di_status status = read_line(r, text, size, &item, &why);
    if (status == DI_OK) status = di_eval_add_item(r->set, &place, &why);
    if (status == DI_OK) {
        item.group = place->group;
        *place = item;
        return DI_OK;
    }
    di_ids_free(&item.ids);
    if (status == DI_ERR_MEMORY) {
        *error = why;
        return status;
    }
    di_eval_complain(r->set, group_of(r), number, why.message);
    return DI_OK;
}

static di_status read_lines(reader *r, const di_buffer *input, di_error *error) {
    di_lines lines = {.data = input->data, .size = input->size};
    const char *text;
    size_t size;
    int64_t n = 0;
    while ((r->limits->lines == 0 || n < r->limits->lines) && di_lines_next(&lines, &text, &size)) {
        n++;
        DI_TRY(add_line(r, lines.number, text, size, error));
    }
    if (n == 0) di_eval_complain(r->set, group_of(r), 1, "the file holds no tasks");
    return DI_OK;
}

di_status di_eval_read_tasks(di_eval_set *set, const char *path, const di_tokenizer *tokenizer,
                             const di_eval_limits *limits, di_error *error) {
    di_buffer input = DI_BUFFER_EMPTY;
    reader r = {set, tokenizer, limits, NULL};
    di_status status = di_input_file(path, &input, error);
    if (status == DI_OK) status = di_eval_add_group(set, path, false, error);
    if (status == DI_OK) status = read_lines(&r, &input, error);
    di_buffer_free(&input);
    return status;
}
