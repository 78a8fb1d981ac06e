/* What the files of this folder share: the engine and its sequences. */
#ifndef DI_API_API_INTERNAL_H
#define DI_API_API_INTERNAL_H

#include "base/error.h"
#include "engine/engine.h"
#include "kernels/backend.h"
#include "model/model.h"

/* How the allowed memory is divided. */
typedef struct di_memory_plan {
    bool release_layers; /* weights are given back after each layer's use */
    uint64_t max_bytes;  /* what the context may take; 0: no bound */
    uint64_t weights;    /* in memory of the device's own; 0 where it has none */
    uint64_t experts;    /* of layers that the host computes */
    int32_t score_rows;  /* rows of a score's step, whose buffers come on top */
} di_memory_plan;

struct di_engine {
    di_engine_options options;
    di_backend *backend;
    di_backend *host;      /* computes the experts of layers from device_layers on; NULL: none do */
    int32_t device_layers; /* where the device has memory of its own */
    di_model *model;
    di_context *context;               /* of the sequences; NULL with max_batch */
    di_core *core;                     /* of the requests; NULL without max_batch */
    double host_seconds;               /* see di_engine_stats */
    struct di_request_record *records; /* of open requests */
    di_sampling sampling;              /* the model's defaults */
    uint32_t *mask;                    /* ceil(V / 32) words: ids that may be sampled */
    di_row *rows;                      /* [chunk]: the rows of the step in preparation */
    int32_t *out_rows;                 /* [chunk] */
    bool *taken;                       /* [n_sequences] */
    di_logit_bias *biases;             /* room for as many as a call has brought so far */
    int32_t bias_capacity;
    di_memory_plan memory;
    di_engine_info info;
    char why[400]; /* info.why */
};

struct di_sequence {
    di_engine *engine;
    int32_t slot;
    di_ids ids;      /* the first di_context_length(slot) of them are computed */
    size_t n_prompt; /* ids before this are prompt, the others answer */
    /* Counts for penalties on the device: sampled tokens are counted by the step that samples them,
     * prompt ids when a penalty first asks for them. */
    bool prompt_counted;
    bool counts_foreign; /* they hold tokens that are not, or not any more, in this answer */
};

/* Tokens of the sequence that are computed. */
static inline size_t di_sequence_done(const di_sequence *sequence) {
    return (size_t)di_context_length(sequence->engine->context, sequence->slot);
}

/* n >= 1 ids of the vocabulary that fit the context. */
di_status di_sequence_check(const di_engine *engine, const int32_t *ids, size_t n, di_error *error);
/* Rows for ids [done, done + n) of a sequence, in engine->rows. */
void di_sequence_rows(di_sequence *sequence, int32_t n);
/* After a prompt that was not read to its end: all that is computed is prompt, and nothing else. */
void di_sequence_cut(di_sequence *sequence);
/* Empty, on the device too. */
void di_sequence_clear(di_sequence *sequence);

/* false from the progress callback as DI_ERR_CANCELLED. */
di_status di_engine_report(const di_engine *engine, di_phase phase, int64_t done, int64_t total,
                           di_error *error);

/* The words of the mask over a vocabulary of `vocab_size` ids; `words` has (vocab_size + 31) / 32.
 * tokenizer NULL: every id may be sampled. */
void di_sampling_mask(const di_tokenizer *tokenizer, int32_t vocab_size, uint32_t *words);
/* What generation_config.json of the directory says about *sampling; no such file: nothing. */
di_status di_sampling_load(const char *directory, di_sampling *sampling, di_error *error);
/* For one row of a step; biases are those of engine->biases from 0. */
di_sample_params di_sampling_params(const di_sampling *sampling, int32_t slot);
bool di_sampling_has_penalties(const di_sampling *sampling);

/* What the options ask of the core; the pool has the pages of all contexts. */
di_status di_engine_core_options(const di_engine_options *options, const di_config *config,
                                 di_core_options *out, di_error *error);

/* Whether backend and numerics are names that there are. */
di_status di_device_check(const di_engine_options *options, di_error *error);
/* The backend of that name, "cpu", "cuda" or "ref", with what the options say about it. */
di_status di_device_create(const di_engine_options *options, const char *name,
                           const di_config *config, di_backend **out, di_error *error);

/* engine_layers.c. How many layers are whole on a device with memory of its own: as many as the
 * options say; else all, where they fit with one context's pages; else the most that fit beside
 * this context. */
di_status di_device_layers(const di_engine_options *options, const di_config *config,
                           const di_backend *device, const di_context_options *context,
                           int32_t *out, di_error *error);
/* Sets engine->device_layers, and engine->host where it is needed. */
di_status di_engine_share_layers(di_engine *engine, const di_config *config,
                                 const di_context_options *context, di_error *error);

/* Opens the model and what serves requests. */
di_status di_engine_open_core(di_engine *engine, const char *directory, const di_config *config,
                              const di_model_options *model, di_error *error);

/* Drops open requests and closes the core. */
void di_engine_close_core(di_engine *engine);

/* Bytes of a score's buffers for each row of its step. */
uint64_t di_score_row_bytes(const di_config *config, const di_backend *backend);

/* Divides options->memory, and the device's where it has memory of its own, with device_layers of
 * the layers; host: bytes that are taken beside the context and the weights. It is DI_ERR_MEMORY with
 * needed and allowed bytes when it is too little. */
di_status di_engine_divide_memory(const char *path, const di_config *config,
                                  const di_backend *backend, int32_t device_layers,
                                  const di_engine_options *options,
                                  const di_context_options *context, uint64_t host,
                                  di_memory_plan *plan, di_error *error);

#endif
