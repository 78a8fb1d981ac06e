/* Opening a model directory: backend, weights, context, and what sampling needs to know. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/api_internal.h"
#include "api/plan.h"

enum {
    MAX_CHUNK = 65536,
    MAX_SEQUENCES = 4096,
    MAX_THREADS = 1024,
    MAX_GPU = 1023,
    MAX_OUT = 32,
    MAX_GPU_LAYERS = 1000
};

di_engine_options di_engine_options_defaults(void) {
    return (di_engine_options){.backend = "auto",
                               .numerics = DI_DEFAULT_NUMERICS,
                               .n_threads = 0,
                               .context = 0,
                               .n_sequences = 1,
                               .chunk = 256,
                               .max_batch = 0,
                               .prefix_cache = true,
                               .replay = "exact",
                               .window_cache = UINT64_C(256) << 20,
                               .spec = NULL,
                               .spec_sampling = "coupled",
                               .steps_ahead = 1,
                               .penalties = true,
                               .memory = 0,
                               .gpu_device = 0,
                               .gpu_memory = 0,
                               .gpu_layers = -1,
                               .progress = NULL,
                               .user = NULL};
}

static di_status check_range(const char *name, int64_t value, int64_t min, int64_t max,
                             di_error *error) {
    if (value >= min && value <= max) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "%s: %" PRId64 " is out of range, %" PRId64 " to %" PRId64 " are accepted", name,
                   value, min, max);
}

static di_status check_options(const di_engine_options *o, di_error *error) {
    if (!o->backend || !o->numerics) {
        return di_fail(error, DI_ERR_USAGE, "%s is NULL; begin with di_engine_options_defaults()",
                       o->backend ? "numerics" : "backend");
    }
    DI_TRY(check_range("n_threads", o->n_threads, 0, MAX_THREADS, error));
    DI_TRY(check_range("context", o->context, 0, INT32_MAX, error));
    DI_TRY(check_range("max_batch", o->max_batch, 0, MAX_SEQUENCES, error));
    if (o->max_batch == 0) {
        DI_TRY(check_range("n_sequences", o->n_sequences, 1, MAX_SEQUENCES, error));
    }
    DI_TRY(check_range("steps_ahead", o->steps_ahead, -1, 1, error));
    DI_TRY(check_range("gpu_device", o->gpu_device, 0, MAX_GPU, error));
    DI_TRY(check_range("gpu_layers", o->gpu_layers, -1, MAX_GPU_LAYERS, error));
    DI_TRY(di_device_check(o, error));
    return check_range("chunk", o->chunk, 1, MAX_CHUNK, error);
}

static di_status load_config(const char *directory, di_config *config, di_error *error) {
    struct stat st;
    if (stat(directory, &st) != 0) {
        return di_fail_errno(error, errno, "cannot open the model directory %s", directory);
    }
    if (!S_ISDIR(st.st_mode)) {
        return di_fail(error, DI_ERR_USAGE,
                       "%s is no directory; a model is the directory that holds config.json",
                       directory);
    }
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/config.json", directory);
    if (n < 0 || n >= (int)sizeof path) {
        return di_fail(error, DI_ERR_USAGE, "the path of the model directory is too long");
    }
    return di_config_load(path, config, error);
}

static di_status check_context(const di_config *config, const di_engine_options *o,
                               di_error *error) {
    if (o->context <= config->max_position_embeddings) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "a context of %" PRId64
                   " tokens was asked for, the model takes at most %" PRId64,
                   o->context, config->max_position_embeddings);
}

static di_status sequence_options(const di_config *config, const di_engine_options *o,
                                  di_context_options *out, di_error *error) {
    *out = di_context_options_defaults(config);
    out->n_slots = o->n_sequences;
    out->max_rows = o->chunk;
    out->max_out = o->chunk < MAX_OUT ? o->chunk : MAX_OUT;
    out->penalties = o->penalties;
    DI_TRY(check_context(config, o, error));
    if (o->context > 0) out->max_context = o->context;
    return DI_OK;
}

di_status di_engine_plan_context(const di_config *config, const di_engine_options *options,
                                 di_context_options *out, di_error *error) {
    di_core_options core;
    DI_TRY(di_device_check(options, error));
    DI_TRY(check_context(config, options, error));
    DI_TRY(di_engine_core_options(options, config, &core, error));
    *out = di_core_context_options(config, &core);
    int64_t pages = (out->max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS * out->n_slots;
    if (pages > out->n_pages) out->n_pages = 0; /* all the same, but more than a pool counts */
    return DI_OK;
}

static bool load_progress(void *user, int64_t done, int64_t total) {
    const di_engine *engine = user;
    return engine->options.progress(engine->options.user, DI_PHASE_LOAD, done, total);
}

/* Counted once: there are 96,085 tensors in the release, and callers ask for every token. */
static void fill_info(di_engine *engine) {
    const di_config *config = di_model_config(engine->model);
    const di_checkpoint *checkpoint = di_model_checkpoint(engine->model);
    engine->info = (di_engine_info){
        .backend = engine->backend->name,
        .numerics = engine->backend->numerics == DI_NUMERICS_FLOAT ? "float" : "release",
        .vocab_size = config->vocab_size,
        .n_layers = config->num_hidden_layers,
        .n_streams = config->hc_mult,
        .hidden_size = config->hidden_size,
        .bos_token = config->bos_token_id,
        .eos_token = config->eos_token_id,
        .gpu_layers = engine->backend->device ? engine->device_layers : 0,
        .context = engine->info.context,
        .context_model = config->max_position_embeddings,
        .state_bytes = engine->info.state_bytes,
        .releases_layers = engine->memory.release_layers,
        .why = engine->why[0] ? engine->why : NULL,
    };
    for (int64_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        engine->info.weight_bytes += di_checkpoint_at(checkpoint, i)->bytes;
    }
}

static di_status take_host_memory(di_engine *engine, int32_t vocab_size, di_error *error) {
    size_t chunk = (size_t)engine->options.chunk;
    engine->mask = calloc(((size_t)vocab_size + 31) / 32, sizeof *engine->mask);
    engine->rows = calloc(chunk, sizeof *engine->rows);
    engine->out_rows = calloc(chunk, sizeof *engine->out_rows);
    engine->taken = calloc((size_t)engine->options.n_sequences + 1, sizeof *engine->taken);
    if (engine->mask && engine->rows && engine->out_rows && engine->taken) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, "out of memory: engine");
}

/* With the backend that is there. */
static di_status open_model(di_engine *engine, const char *directory, const di_config *config,
                            di_error *error) {
    di_context_options context;
    di_engine_options *o = &engine->options;
    DI_TRY(sequence_options(config, o, &context, error));
    di_model_options model = di_model_options_defaults();
    model.progress = o->progress ? load_progress : NULL;
    model.user = engine;
    if (o->max_batch > 0) return di_engine_open_core(engine, directory, config, &model, error);
    DI_TRY(di_engine_share_layers(engine, config, &context, error));
    uint64_t host = 0;
    if (engine->host) host = di_context_plan_host(config, engine->backend, engine->host, &context);
    DI_TRY(di_engine_divide_memory(directory, config, engine->backend, engine->device_layers, o,
                                   &context, host, &engine->memory, error));
    model.host = engine->host;
    model.device_layers = engine->device_layers;
    context.max_bytes = engine->memory.max_bytes;
    model.release_layers = engine->memory.release_layers;
    engine->info.context = context.max_context;
    engine->info.state_bytes = di_context_plan(config, engine->backend, &context).total;
    DI_TRY(di_model_open(directory, engine->backend, &model, &engine->model, error));
    return di_context_create(engine->model, &context, &engine->context, error);
}

static void close_model(di_engine *engine) {
    di_engine_close_core(engine);
    di_context_destroy(engine->context);
    di_model_close(engine->model);
    if (engine->backend) engine->backend->destroy(engine->backend);
    if (engine->host) engine->host->destroy(engine->host);
    engine->core = NULL;
    engine->context = NULL;
    engine->model = NULL;
    engine->backend = NULL;
    engine->host = NULL;
}

static void say_why_gpu(di_engine *engine) {
    const uint64_t mib = 1 << 20;
    char layers[160];
    di_layers_text(engine->device_layers, di_model_config(engine->model)->num_hidden_layers,
                   engine->memory.experts, layers, sizeof layers);
    snprintf(engine->why, sizeof engine->why,
             "%s: weights %" PRIu64 " MiB and state %" PRIu64 " MiB of %" PRIu64
             " MiB that may be taken%s%s",
             engine->backend->device, engine->memory.weights / mib, engine->info.state_bytes / mib,
             engine->backend->device_memory / mib, layers[0] ? "; " : "", layers);
}

/* The GPU, if there is one that this build can use and the model fits it; else the CPU. What is
 * wrong with the model or the options is so on either. */
static di_status open_auto(di_engine *engine, const char *directory, const di_config *config,
                           di_error *error) {
    di_status status = di_device_create(&engine->options, "cuda", config, &engine->backend, error);
    bool usable = status == DI_OK;
    if (usable) status = open_model(engine, directory, config, error);
    if (status == DI_OK) {
        say_why_gpu(engine);
        return DI_OK;
    }
    if (usable && status != DI_ERR_MEMORY && status != DI_ERR_UNSUPPORTED) return status;
    snprintf(engine->why, sizeof engine->why, "%s", di_device_reason(error));
    close_model(engine);
    DI_TRY(di_device_create(&engine->options, "cpu", config, &engine->backend, error));
    return open_model(engine, directory, config, error);
}

static di_status open_chosen(di_engine *engine, const char *directory, di_error *error) {
    di_config config;
    const char *name = engine->options.backend;
    DI_TRY(load_config(directory, &config, error));
    if (strcmp(name, "auto") == 0) return open_auto(engine, directory, &config, error);
    di_status status = di_device_create(&engine->options, name, &config, &engine->backend, error);
    if (status != DI_OK) return strcmp(name, "cuda") == 0 ? di_device_refuse(error) : status;
    status = open_model(engine, directory, &config, error);
    if (status == DI_OK && engine->host) say_why_gpu(engine); /* nobody asked for just this */
    return status;
}

di_status di_engine_open(const char *directory, const di_engine_options *options, di_engine **out,
                         di_error *error) {
    *out = NULL;
    DI_TRY(check_options(options, error));
    di_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return di_fail(error, DI_ERR_MEMORY, "out of memory: engine");
    engine->options = *options;
    if (options->max_batch > 0) engine->options.n_sequences = 0;
    engine->sampling = di_sampling_defaults();
    di_status status;
    DI_TRY_DONE(open_chosen(engine, directory, error));
    int32_t vocab_size = di_model_config(engine->model)->vocab_size;
    DI_TRY_DONE(take_host_memory(engine, vocab_size, error));
    di_sampling_mask(di_model_tokenizer(engine->model), vocab_size, engine->mask);
    if (engine->core) di_core_set_mask(engine->core, engine->mask);
    DI_TRY_DONE(di_sampling_load(directory, &engine->sampling, error));
    fill_info(engine);
done:
    if (status != DI_OK) {
        di_engine_close(engine);
        return status;
    }
    *out = engine;
    return DI_OK;
}

void di_engine_close(di_engine *engine) {
    if (!engine) return;
    close_model(engine);
    free(engine->mask);
    free(engine->rows);
    free(engine->out_rows);
    free(engine->taken);
    free(engine->biases);
    free(engine);
}

di_engine_info di_engine_get_info(const di_engine *engine) { return engine->info; }

const di_tokenizer *di_engine_tokenizer(const di_engine *engine) {
    return di_model_tokenizer(engine->model);
}

di_sampling di_engine_sampling(const di_engine *engine) { return engine->sampling; }

di_status di_engine_report(const di_engine *engine, di_phase phase, int64_t done, int64_t total,
                           di_error *error) {
    const di_engine_options *o = &engine->options;
    if (!o->progress || o->progress(o->user, phase, done, total)) return DI_OK;
    return di_fail(error, DI_ERR_CANCELLED, "stopped after %" PRId64 " of %" PRId64 " tokens", done,
                   total);
}
