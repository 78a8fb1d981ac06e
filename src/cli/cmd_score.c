/* score: log-probabilities, one JSON object a token, and on request all logits and residual streams
 * as .npy files.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/engine_args.h"
#include "cli/input.h"
#include "cli/npy.h"
#include "cli/terminal.h"

typedef struct score {
    const di_args *args;
    di_progress progress;
    di_buffer input;
    di_engine *engine;
    di_engine_info info;
    const di_tokenizer *tokenizer; /* NULL: ids only */
    di_sequence *sequence;
    di_ids ids;
    di_npy logits, streams;
    di_buffer line;
    double sum; /* of log-probabilities */
} score;

/* ---- What is scored ---- */

static di_status text_ids(score *s, di_error *error) {
    DI_TRY(di_engine_need_tokenizer(s->engine, s->args->positional[0], &s->tokenizer, error));
    if (s->input.size == 0) return di_fail(error, DI_ERR_USAGE, "the text is empty");
    di_ids text = {0};
    di_status status = di_tokenizer_encode(s->tokenizer, s->input.data, s->input.size,
                                           di_args_flag(s->args, DI_OPT_MATCH_ADDED), &text, error);
    int32_t bos = s->info.bos_token;
    if (status == DI_OK && bos >= 0 && text.data[0] != bos) {
        status = di_ids_append(&s->ids, &bos, 1, error);
    }
    if (status == DI_OK) status = di_ids_append(&s->ids, text.data, text.size, error);
    di_ids_free(&text);
    return status;
}

static di_status read_input(score *s, di_error *error) {
    const char *file = di_args_text(s->args, DI_OPT_IDS);
    const char *argument = s->args->n_positional > 1 ? s->args->positional[1] : NULL;
    if (!file) return di_input_text(argument, "the text", &s->input, error);
    if (argument) {
        return di_fail(error, DI_ERR_USAGE, "give either a text or --ids, not both");
    }
    DI_TRY(di_input_file(file, &s->input, error));
    const char *what = strcmp(file, "-") == 0 ? "stdin" : file;
    DI_TRY(di_input_ids(s->input.data, s->input.size, what, &s->ids, error));
    if (s->ids.size == 0) return di_fail(error, DI_ERR_USAGE, "%s holds no token ids", what);
    return DI_OK;
}

/* ---- What comes out ---- */

/* "token": its text, or null where its bytes are no text by themselves, and then "bytes". */
static void write_token(score *s, int32_t id) {
    size_t size = 0;
    const char *bytes = s->tokenizer ? di_tokenizer_bytes(s->tokenizer, id, &size) : NULL;
    if (!bytes) return;
    if (di_utf8_valid_prefix(bytes, size) == size) {
        di_buffer_puts(&s->line, ", \"token\": ");
        di_json_write_string(&s->line, bytes, size);
        return;
    }
    di_buffer_puts(&s->line, ", \"token\": null, \"bytes\": [");
    for (size_t i = 0; i < size; i++) {
        di_buffer_printf(&s->line, "%s%u", i ? ", " : "", (unsigned)(unsigned char)bytes[i]);
    }
    di_buffer_putc(&s->line, ']');
}

static di_status on_logprobs(void *user, int64_t first, int64_t n, const float *logprobs,
                             di_error *error) {
    score *s = user;
    /* On a terminal the lines would begin behind the bar. */
    if (di_terminal_is(stdout)) di_progress_end(&s->progress);
    for (int64_t i = 0; i < n; i++) {
        int64_t position = first + i;
        di_buffer_clear(&s->line);
        di_buffer_printf(&s->line, "{\"position\": %" PRId64 ", \"id\": %d", position,
                         s->ids.data[position]);
        write_token(s, s->ids.data[position]);
        if (isfinite(logprobs[i])) {
            di_buffer_printf(&s->line, ", \"logprob\": %.9g}\n", (double)logprobs[i]);
        } else {
            di_buffer_puts(&s->line, ", \"logprob\": null}\n");
        }
        if (s->line.failed) return di_fail(error, DI_ERR_MEMORY, "out of memory printing");
        if (fwrite(s->line.data, 1, s->line.size, stdout) != s->line.size) {
            return di_fail_errno(error, errno, "cannot write to stdout");
        }
        if (position > 0) s->sum += (double)logprobs[i];
    }
    return DI_OK;
}

static di_status on_logits(void *user, int64_t first, int64_t n, const float *logits,
                           di_error *error) {
    score *s = user;
    uint64_t vocab = (uint64_t)s->info.vocab_size;
    return di_npy_write(&s->logits, (uint64_t)first * vocab, logits, (uint64_t)n * vocab, error);
}

static di_status on_streams(void *user, int32_t layer, int64_t first, int64_t n,
                            const float *streams, di_error *error) {
    score *s = user;
    uint64_t row = (uint64_t)s->info.n_streams * (uint64_t)s->info.hidden_size;
    uint64_t at = ((uint64_t)layer * s->ids.size + (uint64_t)first) * row;
    return di_npy_write(&s->streams, at, streams, (uint64_t)n * row, error);
}

/* ---- Files ---- */

/* The place a path names, also when nothing is there yet: true and `out` [PATH_MAX] when its folder
 * exists. */
static bool place_of(const char *path, char *out) {
    char folder[PATH_MAX];
    if (realpath(path, out)) return true;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    int n = snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
                     slash ? path : ".");
    if (n < 0 || n >= (int)sizeof folder || !realpath(folder, out)) return false;
    size_t used = strlen(out);
    return snprintf(out + used, PATH_MAX - used, "/%s", name) < (int)(PATH_MAX - used);
}

/* No two of the files that are read and written may be one: the second would replace the first. */
static di_status check_places(const di_args *args, di_error *error) {
    static const struct {
        di_option_id id;
        const char *name;
    } files[] = {{DI_OPT_IDS, "--ids"}, {DI_OPT_LOGITS, "--logits"}, {DI_OPT_STREAMS, "--streams"}};
    char places[3][PATH_MAX];
    bool known[3];
    for (int i = 0; i < 3; i++) {
        const char *path = di_args_text(args, files[i].id);
        known[i] = path && strcmp(path, "-") != 0 && place_of(path, places[i]);
        for (int j = 0; j < i; j++) {
            if (!known[i] || !known[j] || strcmp(places[i], places[j]) != 0) continue;
            return di_fail(error, DI_ERR_USAGE,
                           "%s and %s name the same file, %s; give each its own", files[j].name,
                           files[i].name, path);
        }
    }
    return DI_OK;
}

static di_status create_files(score *s, const char *logits, const char *streams, di_error *error) {
    int64_t n = (int64_t)s->ids.size;
    if (logits) {
        int64_t shape[] = {n, s->info.vocab_size};
        DI_TRY(di_npy_create(&s->logits, logits, shape, 2, error));
    }
    if (streams) {
        int64_t shape[] = {s->info.n_layers, n, s->info.n_streams, s->info.hidden_size};
        DI_TRY(di_npy_create(&s->streams, streams, shape, 4, error));
    }
    return DI_OK;
}

static void print_summary(const score *s, double seconds) {
    size_t n = s->ids.size;
    fprintf(stderr, "%zu tokens in %.2f s (%.1f tokens/s)", n, seconds,
            seconds > 0 ? (double)n / seconds : 0);
    if (n > 1) {
        fprintf(stderr, "; log-probability %.6g, %.6g a token, perplexity %.6g", s->sum,
                s->sum / (double)(n - 1), exp(-s->sum / (double)(n - 1)));
    }
    fputc('\n', stderr);
}

static di_status run_score(score *s, di_error *error) {
    const char *logits = di_args_text(s->args, DI_OPT_LOGITS);
    const char *streams = di_args_text(s->args, DI_OPT_STREAMS);
    di_score_sink sink = {.user = s,
                          .logprobs = on_logprobs,
                          .logits = logits ? on_logits : NULL,
                          .streams = streams ? on_streams : NULL};
    DI_TRY(di_sequence_create(s->engine, &s->sequence, error));
    DI_TRY(create_files(s, logits, streams, error));
    double begin = di_seconds();
    DI_TRY(di_sequence_score(s->sequence, s->ids.data, s->ids.size, &sink, error));
    double seconds = di_seconds() - begin;
    if (logits) DI_TRY(di_npy_commit(&s->logits, error));
    if (streams) DI_TRY(di_npy_commit(&s->streams, error));
    fflush(stdout);
    if (!di_args_flag(s->args, DI_OPT_QUIET)) print_summary(s, seconds);
    return DI_OK;
}

di_status di_cmd_score(const di_args *args, di_error *error) {
    score s = {.args = args};
    di_status status;
    di_interrupt_catch(false);
    DI_TRY_DONE(check_places(args, error));
    DI_TRY_DONE(read_input(&s, error));
    DI_TRY_DONE(di_args_open_engine(args, args->positional[0], &s.progress, &s.engine, error));
    s.info = di_engine_get_info(s.engine);
    s.tokenizer = di_engine_tokenizer(s.engine);
    if (!di_args_text(args, DI_OPT_IDS)) DI_TRY_DONE(text_ids(&s, error));
    status = run_score(&s, error);
done:
    di_progress_end(&s.progress);
    di_npy_abandon(&s.logits);
    di_npy_abandon(&s.streams);
    di_sequence_destroy(s.sequence);
    di_engine_close(s.engine);
    di_ids_free(&s.ids);
    di_buffer_free(&s.input);
    di_buffer_free(&s.line);
    return status;
}
