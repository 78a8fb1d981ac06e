/* Which layers are whole on a GPU. Of the others the routed experts stay in host memory, where the CPU
 * computes them: they are nearly all of a layer's bytes, of which a token reads a few, while all else,
 * and the state of sequences, stays on the GPU.
 */
#include <inttypes.h>
#include <stdio.h>

#include "api/api_internal.h"
#include "api/plan.h"

static di_status fits(const di_config *config, const di_backend *device,
                      const di_context_options *context, int32_t layers, bool *out,
                      di_error *error) {
    di_placement place;
    DI_TRY(di_model_place_layers(config, device, layers, &place, error));
    uint64_t state = di_context_plan(config, device, context).total, all = device->device_memory;
    *out = place.device_bytes <= all && state <= all - place.device_bytes;
    return DI_OK;
}

di_status di_device_layers(const di_engine_options *options, const di_config *config,
                           const di_backend *device, const di_context_options *context,
                           int32_t *out, di_error *error) {
    int32_t low = 0, high = config->num_hidden_layers;
    di_context_options least = *context;
    bool yes;
    *out = high;
    if (options->gpu_layers >= 0) {
        if (options->gpu_layers < high) *out = options->gpu_layers;
        return DI_OK;
    }
    if (least.n_pages > 0) /* shared: one context's are the least (requests.c) */
        least.n_pages = (int32_t)((least.max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS);
    DI_TRY(fits(config, device, &least, high, &yes, error));
    if (yes) return DI_OK;
    while (low + 1 < high) { /* high does not fit; low does, or is 0 */
        int32_t middle = low + (high - low) / 2;
        DI_TRY(fits(config, device, context, middle, &yes, error));
        *(yes ? &low : &high) = middle;
    }
    *out = low;
    return DI_OK;
}

/* The host computes at once, on whichever thread the device's stream calls. */
di_status di_engine_share_layers(di_engine *engine, const di_config *config,
                                 const di_context_options *context, di_error *error) {
    const di_engine_options *o = &engine->options;
    engine->device_layers = config->num_hidden_layers;
    if (!engine->backend->device) return DI_OK;
    DI_TRY(di_device_layers(o, config, engine->backend, context, &engine->device_layers, error));
    if (engine->device_layers == config->num_hidden_layers) return DI_OK;
    const di_cpu_options cpu = {.n_threads = o->n_threads, .spin = -1, .cpu_mask = ~UINT32_C(0)};
    return di_backend_create_cpu(engine->backend->numerics, &cpu, &engine->host, error);
}

static void range(int32_t from, int32_t to, char *out, size_t size) {
    if (to - from == 1) {
        snprintf(out, size, "layer %d", from);
    } else {
        snprintf(out, size, "layers %d to %d", from, to - 1);
    }
}

void di_layers_text(int32_t device_layers, int32_t n_layers, uint64_t expert_bytes, char *out,
                    size_t size) {
    char whole[48] = "no layer", rest[48];
    out[0] = '\0';
    if (device_layers >= n_layers) return;
    if (device_layers > 0) range(0, device_layers, whole, sizeof whole);
    range(device_layers, n_layers, rest, sizeof rest);
    snprintf(out, size, "%s whole, the experts of %s, %" PRIu64 " MiB, on the CPU", whole, rest,
             expert_bytes >> 20);
}
