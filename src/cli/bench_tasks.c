#include "cli/bench_tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "cli/input.h"
#include "cli/lines.h"

enum { PASSAGE = 256, BETWEEN = 512 };

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* The file, and the name without folder and ending. */
static di_status find(const di_bench *b, const char *given, size_t size, di_bench_task *task,
                      char path[4096], di_error *error) {
    static const char *const ends[] = {NULL, ".jsonl", ".txt"};
    bool found = false;
    for (int i = 0; i < 3 && !found; i++) {
        int n = ends[i] ? snprintf(path, 4096, "%s/eval/%.*s%s", b->directory, (int)size, given,
                                   ends[i])
                        : snprintf(path, 4096, "%.*s", (int)size, given);
        found = n > 0 && n < 4096 && access(path, F_OK) == 0;
    }
    if (!found) {
        return di_fail(error, DI_ERR_USAGE,
                       "--tasks: '%.*s' is neither a file nor a task in %s/eval",
                       size > 60 ? 60 : (int)size, given, b->directory);
    }
    const char *slash = strrchr(path, '/');
    snprintf(task->name, sizeof task->name, "%.79s", slash ? slash + 1 : path);
    task->text = ends_with(path, ".txt");
    char *dot = strrchr(task->name, '.');
    if (dot) *dot = '\0';
    return DI_OK;
}

static di_status add(di_bench_task *task, di_ids *ids, di_error *error) {
    di_ids *grown = realloc(task->prompts, (size_t)(task->n + 1) * sizeof *grown);
    if (!grown) {
        di_ids_free(ids);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: prompts");
    }
    task->prompts = grown;
    task->prompts[task->n++] = *ids;
    if ((int64_t)ids->size > task->longest) task->longest = (int64_t)ids->size;
    return DI_OK;
}

static di_status add_line(di_bench_task *task, const di_tokenizer *tokenizer, const char *text,
                          size_t size, const char *path, int64_t number, di_error *error) {
    char what[200];
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *line;
    di_ids ids = {0};
    snprintf(what, sizeof what, "line %lld of %.150s", (long long)number, path);
    di_status status = di_json_parse(text, size, what, &arena, &line, error);
    if (status == DI_OK) {
        const di_json *prompt = di_json_get(line, "prompt");
        if (!prompt || prompt->type != DI_JSON_STRING || prompt->length == 0) {
            status =
                di_fail(error, DI_ERR_INVALID, "%s: prompt: a text, not empty, is needed", what);
        } else {
            status =
                di_tokenizer_encode(tokenizer, prompt->text, prompt->length, true, &ids, error);
        }
    }
    di_arena_free(&arena);
    if (status == DI_OK) return add(task, &ids, error);
    di_ids_free(&ids);
    return status;
}

static di_status add_lines(di_bench_task *task, const di_tokenizer *tokenizer, const di_buffer *in,
                           const char *path, int64_t limit, di_error *error) {
    di_lines lines = {.data = in->data, .size = in->size};
    const char *text;
    size_t size;
    while (task->n < limit && di_lines_next(&lines, &text, &size)) {
        DI_TRY(add_line(task, tokenizer, text, size, path, lines.number, error));
    }
    return DI_OK;
}

static di_status add_passages(const di_bench *b, di_bench_task *task, const di_tokenizer *tokenizer,
                              const di_buffer *in, int64_t limit, di_error *error) {
    di_ids all = {0};
    di_status status = di_tokenizer_encode(tokenizer, in->data, in->size, false, &all, error);
    int32_t bos = b->config.bos_token_id;
    for (size_t at = 0; at + PASSAGE <= all.size && task->n < limit && status == DI_OK;
         at += BETWEEN) {
        di_ids ids = {0};
        if (bos >= 0) status = di_ids_append(&ids, &bos, 1, error);
        if (status == DI_OK) status = di_ids_append(&ids, all.data + at, PASSAGE, error);
        if (status == DI_OK) {
            status = add(task, &ids, error);
        } else {
            di_ids_free(&ids);
        }
    }
    di_ids_free(&all);
    return status;
}

di_status di_bench_task_read(const di_bench *b, const di_tokenizer *tokenizer, const char *given,
                             size_t size, int64_t limit, di_bench_task *task, di_error *error) {
    char path[4096];
    di_buffer in = DI_BUFFER_EMPTY;
    *task = (di_bench_task){0};
    DI_TRY(find(b, given, size, task, path, error));
    di_status status = di_input_file(path, &in, error);
    if (status == DI_OK) {
        status = task->text ? add_passages(b, task, tokenizer, &in, limit, error)
                            : add_lines(task, tokenizer, &in, path, limit, error);
    }
    di_buffer_free(&in);
    if (status == DI_OK && task->n == 0) {
        return di_fail(error, DI_ERR_INVALID, "%s holds no prompts", path);
    }
    return status;
}

void di_bench_task_free(di_bench_task *task) {
    for (int64_t i = 0; i < task->n; i++) di_ids_free(&task->prompts[i]);
    free(task->prompts);
    *task = (di_bench_task){0};
}
