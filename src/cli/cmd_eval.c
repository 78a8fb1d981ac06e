/* eval: accuracy over task files, perplexity of a text, and what settings change of both. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/eval_report.h"
#include "cli/terminal.h"

/* Of a text's row when prompts are read before: replay needs a prompt to work on. */
enum { WARM_ROW_PROMPT = DI_EVAL_ROW_TOKENS / 2 };

typedef struct eval {
    const di_args *args;
    const char *model;
    const char *compare; /* NULL: nothing is compared */
    bool quiet;
    di_tokenizer *tokenizer;
    di_eval_limits limits;
    di_eval_set set;
    size_t shown; /* bytes of the set's complaints that were printed */
    di_eval_settings settings;
    di_eval_run *runs; /* [settings.n] */
    size_t n_begun;
    di_batch_progress progress;
} eval;

/* ---- What is evaluated ---- */

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory: names of files");
}

static bool ends_with(const char *name, const char *ending) {
    size_t size = strlen(name), end = strlen(ending);
    return size > end && strcmp(name + size - end, ending) == 0;
}

static int is_task_file(const struct dirent *entry) {
    return entry->d_name[0] != '.' && ends_with(entry->d_name, ".jsonl");
}

static int is_text_file(const struct dirent *entry) {
    return entry->d_name[0] != '.' && ends_with(entry->d_name, ".txt");
}

static di_status read_file(eval *e, const char *path, bool text, di_error *error) {
    if (text) return di_eval_read_text(&e->set, path, e->tokenizer, &e->limits, error);
    return di_eval_read_tasks(&e->set, path, e->tokenizer, &e->limits, error);
}

/* MODEL/eval/NAME */
static di_status read_beside_model(eval *e, const char *name, bool text, di_error *error) {
    di_buffer path = DI_BUFFER_EMPTY;
    di_buffer_printf(&path, "%s/eval/%s", e->model, name);
    di_status status = path.failed ? no_memory(error) : read_file(e, path.data, text, error);
    di_buffer_free(&path);
    return status;
}

static di_status read_folder(eval *e, bool text, di_error *error) {
    struct dirent **entries = NULL;
    di_buffer path = DI_BUFFER_EMPTY;
    di_buffer_printf(&path, "%s/eval", e->model);
    if (path.failed) return no_memory(error);
    int n = scandir(path.data, &entries, text ? is_text_file : is_task_file, alphasort);
    di_buffer_free(&path);
    if (n < 0 && errno == ENOMEM) return no_memory(error);
    di_status status = DI_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        if (status == DI_OK) {
            status = read_beside_model(e, name, text, error);
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* One of --tasks: a path, or the name of a file beside the model. */
static di_status read_named(eval *e, const char *name, size_t size, di_error *error) {
    di_buffer path = DI_BUFFER_EMPTY;
    di_buffer_append(&path, name, size);
    if (!path.failed && !strchr(path.data, '/') && !ends_with(path.data, ".jsonl")) {
        di_buffer_clear(&path);
        di_buffer_printf(&path, "%s/eval/%.*s.jsonl", e->model, (int)size, name);
    }
    di_status status;
    if (path.failed) {
        status = no_memory(error);
    } else if (access(path.data, F_OK) != 0) {
        status =
            di_fail(error, DI_ERR_USAGE, "--tasks: '%.*s' is neither a file nor a task in %s/eval",
                    size > 60 ? 60 : (int)size, name, e->model);
    } else {
        status = read_file(e, path.data, false, error);
    }
    di_buffer_free(&path);
    return status;
}

static di_status read_tasks(eval *e, const char *list, di_error *error) {
    for (const char *at = list; *(at += strspn(at, ","));) {
        size_t size = strcspn(at, ",");
        DI_TRY(read_named(e, at, size, error));
        at += size;
    }
    return DI_OK;
}

/* Without --tasks and --text, everything beside the model; with one of them, that. */
static di_status read_set(eval *e, di_error *error) {
    const char *tasks = di_args_text(e->args, DI_OPT_TASKS);
    const char *text = di_args_text(e->args, DI_OPT_TEXT);
    e->limits.lines = di_args_int(e->args, DI_OPT_LIMIT);
    e->limits.max_tokens = di_args_int(e->args, DI_OPT_MAX_TOKENS);
    if (e->limits.max_tokens == 0) e->limits.max_tokens = DI_EVAL_MAX_TOKENS;
    e->limits.row_prompt = e->compare ? WARM_ROW_PROMPT : 0;
    DI_TRY(di_tokenizer_open(e->model, &e->tokenizer, error));
    if (tasks) DI_TRY(read_tasks(e, tasks, error));
    if (!tasks && !text) DI_TRY(read_folder(e, false, error));
    if (text) DI_TRY(read_file(e, text, true, error));
    if (!tasks && !text) DI_TRY(read_folder(e, true, error));
    if (e->set.n_groups > 0) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "nothing to evaluate: %s/eval has no .jsonl and no .txt; give --tasks or --text",
                   e->model);
}

/* ---- Running ---- */

static void show_complaints(eval *e) {
    if (e->set.complaints.size == e->shown) return;
    di_batch_progress_end(&e->progress);
    for (const char *at = e->set.complaints.data + e->shown, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        fprintf(stderr, "deepinfer eval: %.*s\n", (int)(end - at), at);
    }
    e->shown = e->set.complaints.size;
}

static di_status run_settings(eval *e, di_error *error) {
    di_eval_pass pass = {.set = &e->set,
                         .model = e->model,
                         .temperature = (float)di_args_real(e->args, DI_OPT_TEMPERATURE),
                         .seed = di_args_unsigned(e->args, DI_OPT_SEED),
                         .warm = e->compare != NULL,
                         .progress = &e->progress};
    e->runs = calloc(e->settings.n, sizeof *e->runs);
    if (!e->runs) return di_fail(error, DI_ERR_MEMORY, "out of memory: runs");
    e->progress.quiet = e->quiet;
    e->progress.what = "items";
    di_batch_progress_begin(&e->progress, (int64_t)(e->set.n_items * e->settings.n), 0);
    for (size_t i = 0; i < e->settings.n; i++) {
        di_eval_run *run = &e->runs[e->n_begun++];
        run->setting = &e->settings.items[i];
        if (e->compare && !e->quiet) fprintf(stderr, "setting: %s\n", run->setting->name);
        di_status status = di_eval_run_all(run, &pass, error);
        di_batch_progress_end(&e->progress);
        show_complaints(e);
        pass.n_before += (int64_t)run->n_done;
        pass.n_tokens_before += run->n_tokens;
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* Of what was done, also when it was stopped or failed. */
static di_status print_report(const eval *e, bool partial, di_error *error) {
    di_eval_report report = {.model = e->model,
                             .args = e->args,
                             .max_tokens = e->limits.max_tokens,
                             .set = &e->set,
                             .runs = e->runs,
                             .n_runs = e->n_begun,
                             .compared = e->compare != NULL,
                             .partial = partial,
                             .row_prompt = e->limits.row_prompt};
    di_buffer text = DI_BUFFER_EMPTY;
    di_status status = di_args_flag(e->args, DI_OPT_JSON)
                           ? di_eval_write_json(&report, &text, error)
                           : di_eval_write_tables(&report, &text, error);
    if (status == DI_OK && fwrite(text.data, 1, text.size, stdout) != text.size) {
        status = di_fail_errno(error, errno, "cannot write to stdout");
    }
    di_buffer_free(&text);
    return status;
}

static di_status evaluate(eval *e, di_error *error) {
    DI_TRY(di_eval_settings_read(e->args, e->compare, &e->settings, error));
    DI_TRY(read_set(e, error));
    show_complaints(e);
    di_status status = DI_OK;
    if (e->set.n_items > 0) status = run_settings(e, error);
    di_error ignored;
    bool any = e->n_begun > 0 && e->runs[0].n_done > 0;
    /* A program is told also that nothing was done, unless that is because it could not be. */
    bool told =
        di_args_flag(e->args, DI_OPT_JSON) && (status == DI_OK || status == DI_ERR_CANCELLED);
    if (any || told) {
        di_status printed = print_report(e, status != DI_OK, status == DI_OK ? error : &ignored);
        if (status == DI_OK) status = printed;
    }
    if (status != DI_OK || e->set.n_refused == 0) return status;
    return di_fail(error, DI_ERR_INVALID, "items were left out (%lld), see above",
                   (long long)e->set.n_refused);
}

di_status di_cmd_eval(const di_args *args, di_error *error) {
    eval e = {.args = args,
              .model = args->positional[0],
              .compare = di_args_text(args, DI_OPT_COMPARE),
              .quiet = di_args_flag(args, DI_OPT_QUIET)};
    di_interrupt_catch(false);
    di_status status = evaluate(&e, error);
    for (size_t i = 0; i < e.n_begun; i++) di_eval_run_free(&e.runs[i]);
    free(e.runs);
    di_eval_settings_free(&e.settings);
    di_eval_set_free(&e.set);
    di_tokenizer_destroy(e.tokenizer);
    return status;
}
