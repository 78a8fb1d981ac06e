/* What an engine would take, before there is one: for `inspect`. */
#ifndef DI_API_PLAN_H
#define DI_API_PLAN_H

#include "deepinfer.h"
#include "model/model.h"

/* The context that di_engine_open makes of these options, max_batch >= 1, for a model of this config,
 * where memory is not bounded. DI_ERR_USAGE for what it refuses in them. */
di_status di_engine_plan_context(const di_config *config, const di_engine_options *options,
                                 di_context_options *out, di_error *error);

/* What "cuda" would take for a context. */
typedef struct di_gpu_plan {
    char device[160];       /* "GPU 0 (NVIDIA H200)" */
    uint64_t memory;        /* of its memory that may be taken */
    uint64_t weights;       /* copied into it */
    uint64_t host_tables;   /* Engram tables that stay in host memory, pinned */
    int32_t layers;         /* that are whole on it; of the others the CPU computes the experts */
    uint64_t host_experts;  /* of these, in host memory */
    di_context_bytes state; /* in device memory */
    bool fits;              /* weights and state into what may be taken */
} di_gpu_plan;

/* Of options: backend is not looked at; gpu_device, gpu_memory, gpu_layers,
 * numerics are. It fails with the
 * reason where there is no such GPU (DI_ERR_UNSUPPORTED). */
di_status di_engine_plan_gpu(const di_config *config, const di_engine_options *options,
                             const di_context_options *context, di_gpu_plan *out, di_error *error);

/* "layers 0 to 19 whole, the experts of layers 20 to 39, 1234 MiB, on the CPU"; fits 160 bytes. Nothing
 * where all layers are whole. */
void di_layers_text(int32_t device_layers, int32_t n_layers, uint64_t expert_bytes, char *out,
                    size_t size);

/* Of a failure to get a GPU: the message without the name of the backend. */
const char *di_device_reason(const di_error *error);
/* The same where it was asked for by name: says what to do. Returns error->status. */
di_status di_device_refuse(di_error *error);

#endif
