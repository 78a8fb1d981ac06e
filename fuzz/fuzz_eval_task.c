/* Task files of eval: any bytes. A line is an item that can be run and judged, or one complaint of
 * one line; nothing is both, and nothing is lost. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files whole: the program is not a library. */
#include "cli/eval_judge.c"
#include "cli/eval_set.c"
#include "cli/eval_task.c"
#include "cli/input.c"
#include "cli/json_prompt.c"
#include "cli/lines.c"
#include "cli/terminal.c"
#include "require.h"

enum { USUAL_TOKENS = 77 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static di_tokenizer *tokenizer;

static void open_tokenizer_once(void) {
    di_error error;
    if (tokenizer) return;
    REQUIRE(di_tokenizer_open(DI_SOURCE_DIR "/models/demo", &tokenizer, &error) == DI_OK);
}

static bool judged(const di_eval_want *want, const char *text, size_t size) {
    di_answer answer = {.seed = 0};
    di_error error;
    bool right = false;
    if (size > 0) di_buffer_append(&answer.text, text, size);
    REQUIRE(di_judge_answer(want, &answer, &right, &error) == DI_OK);
    di_buffer_free(&answer.text);
    return right;
}

/* What is wanted is right, but for a number, whose text can be another way to write it. */
static void check_judge(const di_eval_want *want, const uint8_t *data, size_t size) {
    (void)judged(want, (const char *)data, size);
    if (want->judge == DI_JUDGE_CALLS) {
        REQUIRE(judged(want, "", 0) == (want->calls->length == 0));
        return;
    }
    const di_json *text = has_alternatives(want->answer) ? want->answer->first : want->answer;
    if (text->type != DI_JSON_STRING) return;
    bool right = judged(want, text->text, text->length);
    REQUIRE(right || want->judge == DI_JUDGE_NUMBER);
}

static void check_item(const di_eval_item *item, const uint8_t *data, size_t size) {
    di_error error;
    char *text;
    size_t text_size;
    REQUIRE(item->group == 0 && item->line >= 1 && !item->refused);
    REQUIRE(item->ids.size > 0 && item->n_given == 0);
    REQUIRE(item->max_tokens >= 1 && item->max_tokens <= MOST_TOKENS);
    /* It refuses ids that are not in the vocabulary. */
    REQUIRE(di_tokenizer_text(tokenizer, item->ids.data, item->ids.size, false, &text, &text_size,
                              &error) == DI_OK);
    di_free(text);
    REQUIRE(di_judge_check(&item->want, &error) == DI_OK);
    REQUIRE(item->want.completion || item->want.completion_size == 0);
    check_judge(&item->want, data, size);
}

static int64_t count_lines(const char *data, size_t size) {
    di_lines lines = {.data = data, .size = size};
    const char *text;
    int64_t n = 0;
    while (di_lines_next(&lines, &text, &size)) n++;
    return n;
}

/* As many lines as complaints, each beginning with the file's name, and no control characters. */
static void check_complaints(const di_eval_set *set) {
    int64_t n = 0;
    const char *at = set->complaints.data;
    for (size_t i = 0; i < set->complaints.size; i++) {
        if (i == 0 || at[i - 1] == '\n')
            REQUIRE(strncmp(at + i, "some/tasks.jsonl: line ", 23) == 0);
        REQUIRE((unsigned char)at[i] >= 0x20 || at[i] == '\n');
        n += at[i] == '\n';
    }
    REQUIRE(n == set->n_refused);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const di_eval_limits limits = {.max_tokens = USUAL_TOKENS};
    static const char path[] = "some/tasks.jsonl";
    di_eval_set set = {.n_items = 0};
    di_buffer input = DI_BUFFER_EMPTY;
    di_error error;
    open_tokenizer_once();
    if (size > 0) di_buffer_append(&input, (const char *)data, size);
    reader r = {&set, tokenizer, &limits, NULL};
    REQUIRE(di_eval_add_group(&set, path, false, &error) == DI_OK);
    REQUIRE(read_lines(&r, &input, &error) == DI_OK);
    int64_t n = input.size > 0 ? count_lines(input.data, input.size) : 0;
    REQUIRE((int64_t)set.n_items + set.n_refused == (n > 0 ? n : 1));
    REQUIRE(set.groups[0].n_items == set.n_items);
    for (size_t i = 0; i < set.n_items; i++) check_item(&set.items[i], data, size);
    check_complaints(&set);
    di_eval_set_free(&set);
    di_buffer_free(&input);
    return 0;
}
