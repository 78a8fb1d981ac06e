#include "model/inspect.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

const char *di_tensor_kind_name(di_tensor_kind kind) {
    static const char *const names[DI_N_KINDS] = {"embed",   "head",    "attention", "compressor",
                                                  "indexer", "experts", "shared",    "engram",
                                                  "dspark",  "vision"};
    return names[kind];
}

typedef struct walk {
    const di_config *config;
    const di_checkpoint *checkpoint;
    di_inspect *out;
    uint64_t known; /* tensors of the contract that the files hold */
} walk;

/* How much of a tensor one token of text meets: rows of a table, picked experts, or all. */
static uint64_t active_part(const di_config *c, const di_tensor_spec *spec, uint64_t whole) {
    if (spec->kind == DI_KIND_VISION || spec->kind == DI_KIND_DSPARK) return 0;
    if (spec->kind == DI_KIND_EMBED) return whole / (uint64_t)c->vocab_size;
    if (strstr(spec->name, ".engram.embed.")) {
        uint64_t columns = (uint64_t)(c->engram_max_ngram_size - 1) * (uint64_t)c->engram_n_heads;
        return whole / (uint64_t)spec->shape[0] * columns;
    }
    if (spec->kind == DI_KIND_EXPERTS) {
        /* the picked ones of n equal experts, counted on the first of them */
        bool first = strstr(spec->name, ".ffn.experts.0.") != NULL;
        return first ? whole * (uint64_t)c->num_experts_per_tok : 0;
    }
    return whole;
}

static di_status add_spec(void *user, const di_tensor_spec *spec, di_error *error) {
    walk *w = user;
    di_inspect *out = w->out;
    (void)error;
    if (w->checkpoint && !di_checkpoint_find(w->checkpoint, spec->name)) {
        out->missing++; /* opening has refused what must not be missing */
        return DI_OK;
    }
    w->known++;
    uint64_t bytes = di_tensor_spec_bytes(spec);
    uint64_t values = spec->dtype == DI_F8_E8M0    ? 0
                      : spec->dtype == DI_FP4_PAIR ? 2 * bytes
                                                   : bytes / di_dtype_bytes(spec->dtype);
    di_inspect_kind *kind = &out->kinds[spec->kind];
    kind->tensors++;
    kind->bytes += bytes;
    kind->values += values;
    out->active_values += active_part(w->config, spec, values);
    out->decode_bytes += active_part(w->config, spec, bytes);
    if (spec->layer >= 0) out->layer_bytes[spec->layer] += bytes;
    return DI_OK;
}

static di_status add_files(walk *w, di_error *error) {
    di_inspect *out = w->out;
    uint64_t bytes = 0;
    out->has_files = true;
    out->n_shards = di_checkpoint_n_shards(w->checkpoint);
    for (int32_t i = 0; i < out->n_shards; i++) {
        struct stat st;
        const char *path = di_checkpoint_shard_path(w->checkpoint, i);
        if (stat(path, &st) != 0) return di_fail_errno(error, errno, "cannot stat %s", path);
        out->file_bytes += (uint64_t)st.st_size;
    }
    for (int64_t i = 0; i < di_checkpoint_count(w->checkpoint); i++) {
        bytes += di_checkpoint_at(w->checkpoint, i)->bytes;
    }
    out->unknown = (uint64_t)di_checkpoint_count(w->checkpoint) - w->known;
    out->unknown_bytes = bytes - out->bytes;
    return DI_OK;
}

di_status di_inspect_make(const di_config *config, const di_checkpoint *checkpoint, di_inspect *out,
                          di_error *error) {
    walk w = {.config = config, .checkpoint = checkpoint, .out = out};
    memset(out, 0, sizeof *out);
    DI_TRY(di_contract_each(config, add_spec, &w, error));
    for (int i = 0; i < DI_N_KINDS; i++) {
        out->tensors += out->kinds[i].tensors;
        out->bytes += out->kinds[i].bytes;
        out->values += out->kinds[i].values;
    }
    DI_TRY(di_model_released_bytes(config, 0, false, &out->released_bytes, error));
    out->resident_bytes = out->bytes - out->kinds[DI_KIND_VISION].bytes;
    return checkpoint ? add_files(&w, error) : DI_OK;
}

di_status di_inspect_state(const di_config *config, const di_backend *backend,
                           const di_context_options *context, di_context_bytes *out,
                           di_error *error) {
    if (context->max_context < 1 || context->max_context > config->max_position_embeddings) {
        return di_fail(error, DI_ERR_USAGE,
                       "a context of %" PRId64 " tokens: the model takes 1 to %" PRId64,
                       context->max_context, config->max_position_embeddings);
    }
    *out = di_context_plan(config, backend, context);
    if (out->total < UINT64_MAX) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY,
                   "the bytes of %d sequences of %" PRId64 " tokens cannot be counted",
                   context->n_slots, context->max_context);
}
