/* batch: a file of requests, many at a time, into a file of results. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/sha256.h"
#include "cli/batch_job.h"
#include "cli/batch_progress.h"
#include "cli/cli.h"
#include "cli/engine_args.h"
#include "cli/input.h"
#include "cli/lines.h"
#include "cli/terminal.h"

typedef struct batch {
    const di_args *args;
    const char *model;
    di_progress loading;
    di_batch_progress progress;
    di_buffer input;
    di_lines lines; /* of the input */
    di_batch_file file;
    di_batch_set seen; /* custom_ids of the input so far */
    di_engine *engine;
    const di_tokenizer *tokenizer;
    di_request_env env;
    uint64_t seed;
    di_batch_job *jobs; /* submitted; those with n_open 0 wait to be written */
    int32_t n_jobs;
    int64_t n_total, n_before, n_done, n_refused, n_tokens; /* n_done: by this run, refused too */
    di_buffer line;                                         /* scratch */
} batch;

/* ---- Lines of the input ---- */

static void rewind_input(batch *b) {
    b->lines = (di_lines){.data = b->input.data, .size = b->input.size};
}

static di_status read_input(batch *b, const char *path, di_error *error) {
    const char *text;
    size_t size;
    DI_TRY(di_input_file(path, &b->input, error));
    rewind_input(b);
    while (di_lines_next(&b->lines, &text, &size)) b->n_total++;
    rewind_input(b);
    if (b->n_total > 0) return DI_OK;
    return di_fail(error, DI_ERR_INVALID, "%s holds no requests: it is empty", path);
}

/* ---- Results ---- */

static di_status write_line(batch *b, di_error *error) {
    if (b->line.failed) return di_fail(error, DI_ERR_MEMORY, "out of memory: a result");
    di_status status = di_batch_file_append(&b->file, b->line.data, b->line.size, error);
    di_buffer_clear(&b->line);
    b->n_done += status == DI_OK;
    return status;
}

/* What is wrong with one request is its result; what is wrong with the machine ends the run, and the
 * request is run again by the next one. */
static di_status refuse(batch *b, const di_batch_key *key, const di_batch_line *line,
                        const di_error *why, di_error *error) {
    if (why->status == DI_ERR_MEMORY || why->status == DI_ERR_IO) {
        *error = *why;
        return why->status;
    }
    di_batch_write_error(key, line ? line->custom_id : NULL, line ? line->custom_id_size : 0, why,
                         &b->line);
    b->n_refused++;
    return write_line(b, error);
}

static void unlink_job(batch *b, di_batch_job *job) {
    if (job->after) job->after->before = job->before;
    if (job->before) {
        job->before->after = job->after;
    } else {
        b->jobs = job->after;
    }
    b->n_jobs--;
}

static di_status finish_job(batch *b, di_batch_job *job, di_error *error) {
    if (job->failure.status != DI_OK) {
        return refuse(b, &job->key, &job->line, &job->failure, error);
    }
    for (int32_t i = 0; i < job->line.request.n_choices; i++) {
        b->n_tokens += (int64_t)job->choices[i].answer.ids.size;
    }
    di_batch_write_result(job, b->tokenizer, b->model, &b->line);
    return write_line(b, error);
}

static di_status write_finished(batch *b, di_error *error) {
    for (di_batch_job *job = b->jobs, *after; job; job = after) {
        after = job->after;
        if (job->n_open > 0) continue;
        unlink_job(b, job);
        di_status status = finish_job(b, job, error);
        di_batch_job_destroy(job);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* ---- Starting requests ---- */

/* Of a request that names none: the same for the same --seed and custom_id, in any run. Short, so
 * that every reader of JSON keeps it. */
static uint64_t seed_of(uint64_t seed, const di_batch_key *key) {
    uint8_t bytes[8 + sizeof key->bytes], digest[DI_SHA256_BYTES];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(seed >> 8 * i);
    memcpy(bytes + 8, key->bytes, sizeof key->bytes);
    di_sha256(bytes, sizeof bytes, digest);
    return (uint64_t)digest[0] << 24 | (uint64_t)digest[1] << 16 | (uint64_t)digest[2] << 8 |
           digest[3];
}

static di_status submit(batch *b, di_batch_job *job, di_error *error) {
    DI_TRY(di_batch_line_read(&job->line, &b->env, error));
    if (!job->line.request.has_seed) job->line.request.sampling.seed = seed_of(b->seed, &job->key);
    DI_TRY(di_batch_job_prepare(job, b->engine, error));
    return di_batch_job_submit(job, b->engine, error);
}

/* The key under which the line's result stands; *named: it has a custom_id of its own. */
static di_status identify(batch *b, di_batch_job *job, const char *text, size_t size,
                          int64_t number, bool *named, di_error *error) {
    char what[40];
    snprintf(what, sizeof what, "line %" PRId64 " of the input", number);
    *named = false;
    job->key = di_batch_key_of_line(number);
    DI_TRY(di_batch_line_open(&job->line, text, size, what, error));
    di_batch_key key = di_batch_key_of_id(job->line.custom_id, job->line.custom_id_size);
    if (di_batch_set_has(&b->seen, &key)) {
        return di_fail(error, DI_ERR_INVALID, "%s: custom_id: '%.200s' stands in a line before",
                       what, job->line.custom_id);
    }
    DI_TRY(di_batch_set_add(&b->seen, &key, error));
    job->key = key;
    *named = true;
    return DI_OK;
}

static di_status start(batch *b, const char *text, size_t size, int64_t number, di_error *error) {
    di_error why;
    bool named;
    di_batch_job *job = calloc(1, sizeof *job);
    if (!job) return di_fail(error, DI_ERR_MEMORY, "out of memory: request");
    di_status status = identify(b, job, text, size, number, &named, &why);
    if (di_batch_set_has(&b->file.done, &job->key)) {
        b->n_before++;
        di_batch_job_destroy(job);
        return DI_OK;
    }
    if (status == DI_OK) status = submit(b, job, &why);
    if (status != DI_OK) {
        status = refuse(b, &job->key, named ? &job->line : NULL, &why, error);
        di_batch_job_destroy(job);
        return status;
    }
    job->after = b->jobs;
    if (job->after) job->after->before = job;
    b->jobs = job;
    b->n_jobs++;
    return DI_OK;
}

/* Some wait beside those that run, so that a place is never empty; each choice that waits takes the
 * memory of its longest answer, and a request has up to 128 of them. */
static di_status fill(batch *b, di_error *error) {
    int64_t most = 2 * di_args_int(b->args, DI_OPT_MAX_BATCH) + 8;
    int64_t open = 0;
    const char *text;
    size_t size;
    for (const di_batch_job *job = b->jobs; job; job = job->after) open += job->n_open;
    while (open < most && !di_interrupt_seen() && di_lines_next(&b->lines, &text, &size)) {
        const di_batch_job *before = b->jobs;
        DI_TRY(start(b, text, size, b->lines.number, error));
        if (b->jobs != before) open += b->jobs->n_open;
    }
    return DI_OK;
}

/* ---- The run ---- */

static di_status run_all(batch *b, di_error *error) {
    bool busy = true;
    di_batch_progress_begin(&b->progress, b->n_total, 0);
    while (!di_interrupt_seen()) {
        DI_TRY(fill(b, error));
        b->progress.before = b->n_before;
        if (b->n_jobs == 0) return DI_OK;
        DI_TRY(di_engine_step(b->engine, &busy, error));
        DI_TRY(write_finished(b, error));
        di_batch_progress_show(&b->progress, b->n_before + b->n_done, b->n_tokens);
    }
    return di_fail(error, DI_ERR_CANCELLED,
                   "interrupted; %" PRId64 " of %" PRId64
                   " requests are done, the same command goes on",
                   b->n_before + b->n_done, b->n_total);
}

static void print_summary(const batch *b) {
    double seconds = di_seconds() - b->progress.begin;
    fprintf(stderr,
            "%" PRId64 " requests, %" PRId64 " of them refused, in %.2f s (%.1f requests/s, "
            "%.0f tokens/s)",
            b->n_done, b->n_refused, seconds, (double)b->n_done / seconds,
            (double)b->n_tokens / seconds);
    if (b->n_before > 0) fprintf(stderr, "; %" PRId64 " were done before", b->n_before);
    fprintf(stderr, "; seed %" PRIu64 "\n", b->seed);
}

static di_status choose_seed(batch *b, di_error *error) {
    if (di_args_given(b->args, DI_OPT_SEED)) {
        b->seed = di_args_unsigned(b->args, DI_OPT_SEED);
        return DI_OK;
    }
    uint32_t drawn;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) {
        return di_fail(error, DI_ERR_IO, "cannot draw a seed; give one with --seed");
    }
    b->seed = drawn;
    return DI_OK;
}

static di_status open_all(batch *b, di_error *error) {
    const char *in = di_args_text(b->args, DI_OPT_INPUT);
    const char *out = di_args_text(b->args, DI_OPT_OUTPUT);
    if (!in || !out) {
        return di_fail(error, DI_ERR_USAGE, "--%s is needed; 'deepinfer help batch' has an example",
                       in ? "output" : "input");
    }
    if (strcmp(out, "-") == 0) {
        return di_fail(
            error, DI_ERR_USAGE,
            "--output -: results go to a file, so that an interrupted run can go on; give "
            "its name (./- for one that is called so)");
    }
    DI_TRY(choose_seed(b, error));
    DI_TRY(read_input(b, in, error));
    DI_TRY(di_batch_file_open(&b->file, out, in, error));
    DI_TRY(di_args_open_engine(b->args, b->model, &b->loading, &b->engine, error));
    DI_TRY(di_engine_need_tokenizer(b->engine, b->model, &b->tokenizer, error));
    b->env = di_request_env_of(b->engine);
    return DI_OK;
}

di_status di_cmd_batch(const di_args *args, di_error *error) {
    batch b = {.args = args, .model = args->positional[0], .file = {.fd = -1}};
    b.progress.quiet = di_args_flag(args, DI_OPT_QUIET);
    di_interrupt_catch(false);
    di_status status = open_all(&b, error);
    if (status == DI_OK) {
        status = run_all(&b, error);
        di_batch_progress_end(&b.progress);
        if (status == DI_OK && !b.progress.quiet) print_summary(&b);
    }
    di_engine_close(b.engine); /* before the jobs that it calls back to */
    for (di_batch_job *job = b.jobs, *after; job; job = after) {
        after = job->after;
        di_batch_job_destroy(job);
    }
    di_batch_file_close(&b.file);
    di_batch_set_free(&b.seen);
    di_buffer_free(&b.input);
    di_buffer_free(&b.line);
    return status;
}
