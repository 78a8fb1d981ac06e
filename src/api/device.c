/* Which backend an engine computes with, and what a GPU would have to take. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "api/plan.h"
#include "kernels/queue.h"

static di_status read_numerics(const di_engine_options *o, di_numerics *out, di_error *error) {
    *out = strcmp(o->numerics, "release") == 0 ? DI_NUMERICS_RELEASE : DI_NUMERICS_FLOAT;
    if (*out == DI_NUMERICS_RELEASE || strcmp(o->numerics, "float") == 0) return DI_OK;
    return di_fail(error, DI_ERR_USAGE, "numerics '%.40s' is unknown; there are float and release",
                   o->numerics);
}

static di_status check_layers(const di_engine_options *o, di_error *error) {
    bool gpu = strcmp(o->backend, "auto") == 0 || strcmp(o->backend, "cuda") == 0;
    if (o->gpu_layers < 0 || gpu) return DI_OK;
    return di_fail(
        error, DI_ERR_USAGE,
        "gpu_layers (--gpu-layers) says how a GPU shares a model with the CPU; the backend %s has no GPU",
        o->backend);
}

di_status di_device_check(const di_engine_options *o, di_error *error) {
    static const char *const names[] = {"auto", "cpu", "cuda", "ref"};
    di_numerics numerics;
    DI_TRY(read_numerics(o, &numerics, error));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(o->backend, names[i]) == 0) return check_layers(o, error);
    }
    return di_fail(error, DI_ERR_USAGE,
                   "backend '%.40s' is unknown; there are auto, cpu, cuda and ref", o->backend);
}

static di_status create_cuda(const di_engine_options *o, const di_config *config,
                             di_numerics numerics, di_backend **out, di_error *error) {
    di_placement place;
    DI_TRY(di_model_place(config, NULL, &place, error));
    const di_cuda_options cuda = {.device = o->gpu_device,
                                  .memory = o->gpu_memory,
                                  .host_from = place.host_from};
    return di_backend_create_cuda(numerics, &cuda, out, error);
}

/* Requests run behind a queue, so that this thread builds the next step while one is computed; a
 * GPU's own stream is one. */
di_status di_device_create(const di_engine_options *o, const char *name, const di_config *config,
                           di_backend **out, di_error *error) {
    di_numerics numerics;
    di_backend *device;
    *out = NULL;
    DI_TRY(read_numerics(o, &numerics, error));
    if (strcmp(name, "cuda") == 0) return create_cuda(o, config, numerics, out, error);
    if (strcmp(name, "ref") == 0) {
        DI_TRY(di_backend_create_ref(numerics, &device, error));
    } else {
        di_cpu_options cpu = {.n_threads = o->n_threads, .spin = -1, .cpu_mask = ~UINT32_C(0)};
        DI_TRY(di_backend_create_cpu(numerics, &cpu, &device, error));
    }
    if (o->max_batch > 0) return di_backend_create_queue(device, out, error);
    *out = device;
    return DI_OK;
}

const char *di_device_reason(const di_error *error) {
    static const char prefix[] = "cuda backend: ";
    bool named = strncmp(error->message, prefix, sizeof prefix - 1) == 0;
    return error->message + (named ? sizeof prefix - 1 : 0);
}

di_status di_device_refuse(di_error *error) {
    char reason[sizeof error->message];
    if (error->status != DI_ERR_UNSUPPORTED) return error->status;
    snprintf(reason, sizeof reason, "%s", error->message);
    return di_fail(error, DI_ERR_UNSUPPORTED, "%.900s; the backends auto and cpu do without one",
                   reason);
}

di_status di_engine_plan_gpu(const di_config *config, const di_engine_options *options,
                             const di_context_options *context, di_gpu_plan *out, di_error *error) {
    di_backend *backend;
    di_placement place;
    *out = (di_gpu_plan){0};
    DI_TRY(di_device_create(options, "cuda", config, &backend, error));
    di_status status = di_device_layers(options, config, backend, context, &out->layers, error);
    if (status == DI_OK)
        status = di_model_place_layers(config, backend, out->layers, &place, error);
    if (status != DI_OK) {
        backend->destroy(backend);
        return status;
    }
    snprintf(out->device, sizeof out->device, "%s", backend->device);
    out->memory = backend->device_memory;
    out->weights = place.device_bytes;
    out->host_tables = place.host_bytes;
    out->host_experts = place.expert_bytes;
    out->state = di_context_plan(config, backend, context);
    uint64_t left = out->memory > out->weights ? out->memory - out->weights : 0;
    out->fits = out->state.total <= left;
    backend->destroy(backend);
    return DI_OK;
}
