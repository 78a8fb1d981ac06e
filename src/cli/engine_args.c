#include "cli/engine_args.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void di_args_machine(const di_args *args, di_engine_options *out) {
    out->backend = di_args_text(args, DI_OPT_BACKEND);
    out->numerics = di_args_text(args, DI_OPT_NUMERICS);
    out->n_threads = (int32_t)di_args_int(args, DI_OPT_THREADS);
    out->gpu_device = (int32_t)di_args_int(args, DI_OPT_GPU_DEVICE);
    out->gpu_memory = di_args_unsigned(args, DI_OPT_GPU_MEMORY);
    if (di_args_given(args, DI_OPT_GPU_LAYERS))
        out->gpu_layers = (int32_t)di_args_int(args, DI_OPT_GPU_LAYERS);
    out->chunk = (int32_t)di_args_int(args, DI_OPT_CHUNK);
    if (di_args_given(args, DI_OPT_CONTEXT)) out->context = di_args_int(args, DI_OPT_CONTEXT);
    if (di_args_given(args, DI_OPT_SPEC)) out->spec = di_args_text(args, DI_OPT_SPEC);
}

static int32_t max_batch(const di_args *args) {
    bool many = di_option_is_taken(args->verb, &di_options[DI_OPT_MAX_BATCH]);
    return many ? (int32_t)di_args_int(args, DI_OPT_MAX_BATCH) : 1;
}

/* One answer finds nothing in a cache; a conversation goes on from its last few turns, which take
 * some 4 MB each at the released size, and little of a memory that is small. */
static uint64_t window_cache(const di_args *args, uint64_t memory) {
    const uint64_t turns = UINT64_C(32) << 20;
    uint64_t asked = di_args_unsigned(args, DI_OPT_WINDOW_CACHE);
    if (di_args_given(args, DI_OPT_WINDOW_CACHE)) return asked;
    if (args->verb->id == DI_VERB_RUN) return 0;
    if (args->verb->id != DI_VERB_CHAT) return asked;
    return memory > 0 && memory / 16 < turns ? memory / 16 : turns;
}

void di_args_engine_options(const di_args *args, di_progress *progress, di_engine_options *out) {
    di_engine_options options = di_engine_options_defaults();
    di_args_machine(args, &options);
    options.memory = di_args_unsigned(args, DI_OPT_MEMORY);
    if (args->verb->id != DI_VERB_SCORE) {
        options.max_batch = max_batch(args);
        options.spec_sampling = di_args_text(args, DI_OPT_SPEC_SAMPLING);
        options.profile_steps = di_args_flag(args, DI_OPT_PROFILE_STEPS);
        options.replay = di_args_text(args, DI_OPT_REPLAY);
        options.prefix_cache = strcmp(di_args_text(args, DI_OPT_PREFIX_CACHE), "on") == 0;
        options.window_cache = window_cache(args, options.memory);
        /* On the CPU a single answer gains nothing by steps ahead (measured), and the one that runs
         * past its end would be waited for, at the end and after Ctrl-C. */
        if (args->verb->id == DI_VERB_RUN || args->verb->id == DI_VERB_CHAT)
            options.steps_ahead = -1;
    }
    options.progress = di_progress_report;
    options.user = progress;
    progress->quiet = di_args_flag(args, DI_OPT_QUIET);
    *out = options;
}

/* Once, however many engines there are, as long as it is the same. */
void di_say_backend(const char *backend, const char *why, bool quiet) {
    static char said[512];
    char line[sizeof said];
    if (!why || quiet) return;
    snprintf(line, sizeof line, "backend: %s (%s)", backend, why);
    if (strcmp(line, said) == 0) return;
    memcpy(said, line, sizeof said);
    fprintf(stderr, "%s\n", line);
}

di_status di_args_open_engine(const di_args *args, const char *directory, di_progress *progress,
                              di_engine **out, di_error *error) {
    di_engine_options options;
    di_args_engine_options(args, progress, &options);
    if (options.profile_steps && di_args_given(args, DI_OPT_SPEC) &&
        strcmp(options.spec, "scheduled") != 0) {
        return di_fail(
            error, DI_ERR_USAGE,
            "--profile-steps measures what --spec scheduled needs; with --spec %s nobody "
            "reads it",
            options.spec);
    }
    di_status status = di_engine_open(directory, &options, out, error);
    di_progress_end(progress);
    if (status != DI_OK) return status;
    di_engine_info info = di_engine_get_info(*out);
    di_say_backend(info.backend, info.why, progress->quiet);
    return DI_OK;
}

di_status di_engine_need_tokenizer(const di_engine *engine, const char *directory,
                                   const di_tokenizer **out, di_error *error) {
    *out = di_engine_tokenizer(engine);
    if (*out) return DI_OK;
    return di_fail(
        error, DI_ERR_INVALID,
        "%s has no tokenizer.json, so it can read no text; 'score --ids' takes token ids",
        directory);
}

/* "ID=X" */
static di_status read_bias(const char *text, di_token_bias *out, di_error *error) {
    char *end;
    errno = 0;
    bool digit = *text >= '0' && *text <= '9';
    long token = digit ? strtol(text, &end, 10) : -1;
    static const di_option value_option = {.name = "logit-bias",
                                           .type = DI_TYPE_REAL,
                                           .value = "X",
                                           .min = -1000,
                                           .max = 1000};
    if (token < 0 || token > INT32_MAX || errno != 0 || *end != '=') {
        return di_fail(error, DI_ERR_USAGE,
                       "--logit-bias: '%.60s' is not ID=X, a token id and a number", text);
    }
    di_value value = {0};
    DI_TRY(di_option_read(&value_option, "--logit-bias", end + 1, &value, error));
    *out = (di_token_bias){(int32_t)token, (float)value.real};
    return DI_OK;
}

static di_status read_biases(const di_args *args, di_sampling *out, di_error *error) {
    int n;
    const char *const *items = di_args_list(args, DI_OPT_LOGIT_BIAS, &n);
    if (n == 0) return DI_OK;
    di_token_bias *biases = malloc((size_t)n * sizeof *biases);
    if (!biases) return di_fail(error, DI_ERR_MEMORY, "out of memory: logit biases");
    out->biases = biases;
    out->n_biases = n;
    for (int i = 0; i < n; i++) DI_TRY(read_bias(items[i], &biases[i], error));
    return DI_OK;
}

static void override(const di_args *args, di_option_id id, float *value) {
    if (di_args_given(args, id)) *value = (float)di_args_real(args, id);
}

di_status di_args_sampling(const di_args *args, const di_engine *engine, di_sampling *out,
                           di_error *error) {
    *out = di_engine_sampling(engine);
    override(args, DI_OPT_TEMPERATURE, &out->temperature);
    override(args, DI_OPT_TOP_P, &out->top_p);
    override(args, DI_OPT_MIN_P, &out->min_p);
    override(args, DI_OPT_REPETITION_PENALTY, &out->repetition_penalty);
    override(args, DI_OPT_PRESENCE_PENALTY, &out->presence_penalty);
    override(args, DI_OPT_FREQUENCY_PENALTY, &out->frequency_penalty);
    if (di_args_given(args, DI_OPT_TOP_K)) out->top_k = (int32_t)di_args_int(args, DI_OPT_TOP_K);
    if (di_args_given(args, DI_OPT_SEED)) {
        out->seed = di_args_unsigned(args, DI_OPT_SEED);
    } else {
        uint32_t drawn; /* short enough to be typed again */
        if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn) {
            return di_fail_errno(error, errno, "cannot draw a seed; give one with --seed");
        }
        out->seed = drawn;
    }
    di_status status = read_biases(args, out, error);
    if (status == DI_OK) {
        status = di_sampling_check(out, di_engine_get_info(engine).vocab_size, error);
    }
    if (status != DI_OK) di_args_free_sampling(out);
    return status;
}

void di_args_free_sampling(di_sampling *sampling) {
    free((void *)(uintptr_t)sampling->biases);
    sampling->biases = NULL;
    sampling->n_biases = 0;
}
