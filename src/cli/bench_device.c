/* What computes in a bench: one backend for all of its engines, and its ceilings. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/plan.h"
#include "cli/bench.h"
#include "cli/engine_args.h"
#include "kernels/cpu/peak.h"
#include "kernels/cuda/peak.h"

/* As di_engine_open chooses, for the least that a scenario may open: one request of 64 tokens. Floors
 * are those of a GPU that has all layers, also where it shares them. */
static di_status choose(di_bench *b, di_error *error) {
    di_engine_options o = di_engine_options_defaults();
    di_context_options context;
    di_gpu_plan gpu;
    char why[400], layers[160];
    di_args_machine(b->args, &o);
    o.max_batch = 1;
    o.context = 64;
    DI_TRY(di_engine_plan_context(&b->config, &o, &context, error));
    di_status status = di_engine_plan_gpu(&b->config, &o, &context, &gpu, error);
    if (status == DI_OK && gpu.fits) {
        di_layers_text(gpu.layers, b->config.num_hidden_layers, gpu.host_experts, layers,
                       sizeof layers);
        snprintf(why, sizeof why, "%s%s%s", gpu.device, layers[0] ? ": " : "", layers);
    } else if (status == DI_OK) {
        snprintf(why, sizeof why, "%s: weights of %" PRIu64 " MiB do not fit %" PRIu64 " MiB",
                 gpu.device, gpu.weights >> 20, gpu.memory >> 20);
    } else {
        snprintf(why, sizeof why, "%.300s", di_device_reason(error));
    }
    b->backend = status == DI_OK && gpu.fits ? "cuda" : "cpu";
    di_say_backend(b->backend, why, b->quiet);
    return DI_OK;
}

/* Where a peak cannot be measured, ratios to it are left out; a GPU that cannot be had is told
 * before anything else is done. */
static di_status measure(di_bench *b, bool floors, di_error *error) {
    di_error ignored;
    b->peak = (di_bench_peak){NAN, NAN};
    if (strcmp(b->backend, "cuda") == 0) {
        di_cuda_peak peak;
        int32_t device = (int32_t)di_args_int(b->args, DI_OPT_GPU_DEVICE);
        if (di_cuda_peak_measure(device, &peak, error) != DI_OK) return di_device_refuse(error);
        b->peak = (di_bench_peak){peak.copy_bytes_per_s, peak.flop_per_s};
        snprintf(b->gpu, sizeof b->gpu, "%s", peak.device);
        return DI_OK;
    }
    if (!floors) return DI_OK; /* a core for the better part of a second */
    di_cpu_peak peak;
    int32_t threads = (int32_t)di_args_int(b->args, DI_OPT_THREADS);
    if (di_cpu_peak_measure(threads, &peak, &ignored) == DI_OK) {
        b->peak = (di_bench_peak){peak.read_bytes_per_s, peak.flop_per_s};
    }
    return DI_OK;
}

di_status di_bench_device(di_bench *b, bool floors, di_error *error) {
    b->backend = di_args_text(b->args, DI_OPT_BACKEND);
    if (strcmp(b->backend, "auto") == 0) DI_TRY(choose(b, error));
    di_bench_note(b, "measuring the machine");
    di_status status = measure(b, floors, error);
    di_bench_note_end(b);
    return status;
}
