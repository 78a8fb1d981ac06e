/* How the allowed memory is divided between weights and state.
 *
 * Weights are mapped, so they take memory only as they are read. When all of them fit beside the
 * state, they may stay; when they do not, each layer is given back after its use, and then the
 * largest layer, the head and what single rows of Engram tables and the embedding map are what can
 * be resident at a time (di_model_released_bytes). The state is taken and written at start, so that
 * nothing grows later. What is left over goes to the buffers of a score, which always has room for
 * one row.
 *
 * A device with memory of its own has a bound of its own, for weights and state; what is bounded here
 * is then the rest, with the Engram tables that stay in host memory, and the experts of layers that
 * the CPU computes.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_internal.h"

typedef struct directory_bytes {
    uint64_t weights, tokenizer; /* of the files */
} directory_bytes;

static di_status measure_directory(const char *directory, directory_bytes *out, di_error *error) {
    *out = (directory_bytes){0, 0};
    DIR *folder = opendir(directory);
    if (!folder) {
        return di_fail_errno(error, errno, "cannot read the model directory %s", directory);
    }
    static const char suffix[] = ".safetensors";
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        struct stat st;
        if (fstatat(dirfd(folder), entry->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode)) continue;
        size_t n = strlen(entry->d_name);
        if (strcmp(entry->d_name, "tokenizer.json") == 0) out->tokenizer = (uint64_t)st.st_size;
        if (n >= sizeof suffix && strcmp(entry->d_name + n - (sizeof suffix - 1), suffix) == 0) {
            out->weights += (uint64_t)st.st_size;
        }
    }
    closedir(folder);
    return DI_OK;
}

static di_status count_tensor(void *user, const di_tensor_spec *spec, di_error *error) {
    (void)spec, (void)error;
    ++*(uint64_t *)user;
    return DI_OK;
}

/* The program itself, its tokenizer while that is read, and the headers of the files: 14 MiB with a
 * tokenizer of 0.15 MiB, 45 MiB with the release's 6.1 MiB, 0.8 KiB a tensor (measured). */
static di_status program_bytes(const di_config *config, const directory_bytes *directory,
                               uint64_t *out, di_error *error) {
    uint64_t n = 0;
    DI_TRY(di_contract_each(config, count_tensor, &n, error));
    *out = (UINT64_C(13) << 20) + 6 * directory->tokenizer + (n << 10);
    return DI_OK;
}

static uint64_t machine_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

static uint64_t mib(uint64_t bytes) { return (bytes >> 20) + ((bytes & 0xFFFFF) != 0); }

/* Memory of the device's own holds weights and state, and nothing is given back. */
static di_status divide_device(const di_config *config, const di_backend *backend,
                               const di_context_options *context, int32_t layers,
                               const di_placement *place, di_memory_plan *plan, di_error *error) {
    uint64_t state = di_context_plan(config, backend, context).total;
    uint64_t allowed = backend->device_memory;
    if (place->device_bytes > allowed || state > allowed - place->device_bytes) {
        return di_fail(
            error, DI_ERR_MEMORY,
            "the model does not fit %s: %" PRIu64 " MiB are needed (weights %" PRIu64
            " MiB, a context of %" PRId64 " tokens %" PRIu64 " MiB), %" PRIu64
            " MiB may be taken; allow more, %sask for a smaller context or chunk, or take "
            "the cpu backend",
            backend->device, mib(place->device_bytes) + mib(state), mib(place->device_bytes),
            context->max_context, mib(state), allowed >> 20,
            layers > 0 ? "fewer gpu layers, " : "");
    }
    if (place->host_bytes > machine_bytes()) {
        return di_fail(error, DI_ERR_MEMORY,
                       "%s reads the Engram tables, %" PRIu64
                       " MiB, in host memory, and this machine has %" PRIu64
                       " MiB; the cpu backend reads them from their files",
                       backend->device, mib(place->host_bytes), machine_bytes() >> 20);
    }
    plan->weights = place->device_bytes;
    plan->experts = place->expert_bytes;
    plan->max_bytes = allowed - place->device_bytes;
    return DI_OK;
}

static di_status too_little(const di_engine_options *options, const di_context_options *context,
                            uint64_t program, uint64_t host, uint64_t weights, uint64_t state,
                            di_error *error) {
    char buffers[80] = "";
    if (host) {
        snprintf(buffers, sizeof buffers, "window cache and buffers %" PRIu64 " MiB, ", mib(host));
    }
    return di_fail(error, DI_ERR_MEMORY,
                   "not enough memory: %" PRIu64 " MiB are needed (program and tokenizer %" PRIu64
                   " MiB, %sweights %" PRIu64 " MiB at a time, a context of %" PRId64
                   " tokens %" PRIu64 " MiB), %" PRIu64
                   " MiB are allowed; allow more, or ask for a smaller context%s chunk",
                   mib(program + host + weights + state), mib(program), buffers, mib(weights),
                   context->max_context, mib(state), options->memory >> 20,
                   host ? ", window cache or" : " or");
}

di_status di_engine_divide_memory(const char *path, const di_config *config,
                                  const di_backend *backend, int32_t device_layers,
                                  const di_engine_options *options,
                                  const di_context_options *context, uint64_t host,
                                  di_memory_plan *plan, di_error *error) {
    directory_bytes directory;
    di_placement place = {0};
    bool own = backend->device != NULL; /* memory */
    uint64_t score_row = di_score_row_bytes(config, backend), state = score_row, program, weights;
    DI_TRY(measure_directory(path, &directory, error));
    *plan = (di_memory_plan){.score_rows = context->max_out};
    if (own) {
        DI_TRY(di_model_place_layers(config, backend, device_layers, &place, error));
        DI_TRY(divide_device(config, backend, context, device_layers, &place, plan, error));
    } else {
        state += di_context_plan(config, backend, context).total;
    }
    if (options->memory == 0) {
        plan->release_layers = !own && directory.weights > machine_bytes();
        return DI_OK;
    }
    DI_TRY(program_bytes(config, &directory, &program, error));
    /* On their way to the device, weights are read one matrix at a time. */
    weights = directory.weights;
    if (own) weights = place.host_bytes + place.largest_bytes + place.expert_bytes;
    plan->release_layers = !own && program + host + state + weights > options->memory;
    if (plan->release_layers) {
        DI_TRY(
            di_model_released_bytes(config, context->max_rows, context->drafts, &weights, error));
    }
    uint64_t need = program + host + state + weights;
    if (need > options->memory) {
        return too_little(options, context, program, host, weights, state, error);
    }
    if (!own) plan->max_bytes = options->memory - program - host - weights - score_row;
    uint64_t more_rows = (options->memory - need) / score_row;
    if (more_rows < (uint64_t)context->max_out) plan->score_rows = (int32_t)more_rows + 1;
    if (plan->score_rows > context->max_out) plan->score_rows = context->max_out;
    return DI_OK;
}
