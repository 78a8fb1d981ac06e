/* Opening a model: config, checkpoint, Engram constants, weights, small tables on the device. */
#include "model/model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/network.h"
#include "model/rope.h"

/* Checkpoints with at most this many bytes of scales have all of them checked when they open. */
static const uint64_t deep_check_bytes = (uint64_t)256 << 20;

di_model_options di_model_options_defaults(void) { return (di_model_options){0}; }

static di_status join(char *path, size_t size, const char *directory, const char *name,
                      di_error *error) {
    if ((size_t)snprintf(path, size, "%s/%s", directory, name) >= size) {
        return di_fail(error, DI_ERR_USAGE, "path too long: %s/%s", directory, name);
    }
    return DI_OK;
}

/* Without Engram, whose map needs a class for every id, a tokenizer may have fewer ids. */
static di_status check_tokenizer(const di_model *model, const char *path, di_error *error) {
    int32_t size = di_tokenizer_size(model->tokenizer);
    if (size <= model->config.vocab_size) return DI_OK;
    return di_fail(error, DI_ERR_INVALID,
                   "%s has %d ids, but config.json says vocab_size %d; the tokenizer belongs to "
                   "another model",
                   path, size, model->config.vocab_size);
}

/* The tokenizer of the directory and, with Engram, the token map: from tokenizer.json, else from
 * token_map.json. */
static di_status load_token_map(di_model *model, const char *directory, di_error *error) {
    const di_config *config = &model->config;
    char tokenizer[4096], map[4096];
    DI_TRY(join(tokenizer, sizeof tokenizer, directory, "tokenizer.json", error));
    DI_TRY(join(map, sizeof map, directory, "token_map.json", error));
    if (access(tokenizer, F_OK) == 0) {
        DI_TRY(di_tokenizer_load(tokenizer, &model->tokenizer, error));
        if (config->n_engram_layers == 0) return check_tokenizer(model, tokenizer, error);
        return di_engram_map_from_tokenizer(config, model->tokenizer, tokenizer, &model->engram,
                                            error);
    }
    if (config->n_engram_layers == 0) return DI_OK;
    if (access(map, F_OK) == 0) return di_engram_map_from_file(config, map, &model->engram, error);
    return di_fail(
        error, DI_ERR_INVALID,
        "%s has neither tokenizer.json nor token_map.json; Engram layers need one of them",
        directory);
}

/* A small constant table on the device. */
static di_status upload_table(di_model *model, const void *data, uint64_t bytes, const char *what,
                              di_ptr *out, di_error *error) {
    di_backend *backend = model->backend;
    DI_TRY(backend->alloc(backend, bytes, what, out, error));
    backend->upload(backend->stream, *out, data, bytes);
    return DI_OK;
}

static di_status upload_engram(di_model *model, di_error *error) {
    const di_config *c = &model->config;
    const di_engram *e = &model->engram;
    if (c->n_engram_layers == 0) return DI_OK;
    int64_t packed[3][DI_MAX_ENGRAM_LAYERS * DI_MAX_ENGRAM_COLUMNS];
    size_t columns = (size_t)e->n_columns, n = (size_t)c->n_engram_layers;
    size_t ngram = (size_t)c->engram_max_ngram_size;
    for (size_t i = 0; i < n; i++) {
        memcpy(packed[0] + i * ngram, e->multipliers[i], ngram * sizeof(int64_t));
        memcpy(packed[1] + i * columns, e->primes[i], columns * sizeof(int64_t));
        memcpy(packed[2] + i * columns, e->offsets[i], columns * sizeof(int64_t));
    }
    DI_TRY(upload_table(model, e->token_map, (uint64_t)c->vocab_size * sizeof(int32_t),
                        "Engram token map", &model->token_map, error));
    DI_TRY(upload_table(model, packed[0], n * ngram * sizeof(int64_t), "Engram multipliers",
                        &model->multipliers, error));
    DI_TRY(upload_table(model, packed[1], n * columns * sizeof(int64_t), "Engram primes",
                        &model->primes, error));
    return upload_table(model, packed[2], n * columns * sizeof(int64_t), "Engram offsets",
                        &model->hash_offsets, error);
}

static di_status upload_frequencies(di_model *model, di_error *error) {
    int32_t half = model->config.qk_rope_head_dim / 2;
    float *freq = malloc((size_t)half * sizeof *freq);
    if (!freq) return di_fail(error, DI_ERR_MEMORY, "out of memory: rotary frequencies");
    uint64_t bytes = (uint64_t)half * sizeof *freq;
    di_rope_frequencies(&model->config, false, freq);
    di_status status =
        upload_table(model, freq, bytes, "rotary frequencies", &model->freq_main, error);
    if (status == DI_OK) {
        di_rope_frequencies(&model->config, true, freq);
        status =
            upload_table(model, freq, bytes, "rotary frequencies", &model->freq_compress, error);
    }
    free(freq);
    return status;
}

static uint64_t scale_bytes(const di_checkpoint *checkpoint) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        const di_tensor *tensor = di_checkpoint_at(checkpoint, i);
        if (tensor->dtype == DI_F8_E8M0) bytes += tensor->bytes;
    }
    return bytes;
}

static di_status open_files(di_model *model, const char *directory, di_error *error) {
    char path[4096];
    DI_TRY(join(path, sizeof path, directory, "config.json", error));
    if (access(directory, R_OK | X_OK) != 0) {
        return di_fail_errno(error, errno, "cannot read the model directory %s", directory);
    }
    DI_TRY(di_config_load(path, &model->config, error));
    DI_TRY(di_checkpoint_open(directory, &model->config, &model->checkpoint, error));
    bool deep = scale_bytes(model->checkpoint) <= deep_check_bytes;
    DI_TRY(di_checkpoint_check_scales(model->checkpoint, deep, error));
    DI_TRY(di_engram_derive(&model->config, &model->engram, error));
    return load_token_map(model, directory, error);
}

di_status di_model_open(const char *directory, di_backend *backend, const di_model_options *options,
                        di_model **out, di_error *error) {
    *out = NULL;
    di_model *model = calloc(1, sizeof *model);
    if (!model) return di_fail(error, DI_ERR_MEMORY, "out of memory: model");
    model->backend = backend;
    model->release_layers = options->release_layers;
    model->host = options->host;
    di_status status;
    DI_TRY_DONE(open_files(model, directory, error));
    model->device_layers = model->host ? options->device_layers : model->config.num_hidden_layers;
    if (model->host) DI_TRY_DONE(di_host_check(backend, model->host, error));
    DI_TRY_DONE(di_weights_bind(model, options, error));
    if (model->release_layers) DI_TRY_DONE(di_ranges_collect(model, error));
    DI_TRY_DONE(upload_frequencies(model, error));
    status = upload_engram(model, error);
done:
    if (status != DI_OK) {
        di_model_close(model);
        return status;
    }
    *out = model;
    return DI_OK;
}

void di_model_close(di_model *model) {
    if (!model) return;
    di_backend *backend = model->backend;
    di_ptr tables[] = {model->freq_main,   model->freq_compress, model->token_map,
                       model->multipliers, model->primes,        model->hash_offsets};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) backend->free(backend, tables[i]);
    int32_t n_blocks = model->config.num_hidden_layers + model->config.num_nextn_predict_layers;
    for (int32_t i = 0; model->blocks && i < n_blocks; i++) {
        di_backend *owner = di_on_host(model, i) ? model->host : backend;
        owner->free(owner, model->blocks[i].moe.experts);
    }
    free(model->blocks);
    di_ranges_free(model);
    di_engram_free(&model->engram);
    di_tokenizer_destroy(model->tokenizer);
    di_checkpoint_close(model->checkpoint);
    free(model);
}

const di_config *di_model_config(const di_model *model) { return &model->config; }

const di_checkpoint *di_model_checkpoint(const di_model *model) { return model->checkpoint; }

const di_tokenizer *di_model_tokenizer(const di_model *model) { return model->tokenizer; }
