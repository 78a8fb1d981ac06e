#include "model/engram.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"

static bool is_prime(int64_t n) {
    if (n < 2 || n % 2 == 0) return n == 2;
    for (int64_t d = 3; d <= n / d; d += 2) {
        if (n % d == 0) return false;
    }
    return true;
}

static bool is_used(const di_engram *engram, int32_t n_layers, int64_t prime) {
    for (int32_t layer = 0; layer < n_layers; layer++) {
        for (int32_t column = 0; column < engram->n_columns; column++) {
            if (engram->primes[layer][column] == prime) return true;
        }
    }
    return false;
}

/* For each layer, for each n-gram size, from engram_vocab_size - 1 upwards: for each head the next
 * prime that no head of any size or layer has yet. */
static void derive_primes(const di_config *config, di_engram *engram) {
    memset(engram->primes, 0, sizeof engram->primes);
    for (int32_t layer = 0; layer < config->n_engram_layers; layer++) {
        int64_t offset = 0, candidate = 0;
        for (int32_t column = 0; column < engram->n_columns; column++) {
            if (column % config->engram_n_heads == 0) candidate = config->engram_vocab_size - 1;
            do {
                candidate++;
            } while (!is_prime(candidate) || is_used(engram, config->n_engram_layers, candidate));
            engram->primes[layer][column] = candidate;
            engram->offsets[layer][column] = offset;
            offset += candidate;
        }
    }
}

static int64_t table_rows(const di_engram *engram, int32_t layer) {
    int32_t last = engram->n_columns - 1;
    return engram->offsets[layer][last] + engram->primes[layer][last];
}

void di_engram_table_rows(const di_config *config, int64_t rows[DI_MAX_ENGRAM_LAYERS]) {
    di_engram engram;
    engram.n_columns = (config->engram_max_ngram_size - 1) * config->engram_n_heads;
    derive_primes(config, &engram);
    for (int32_t i = 0; i < config->n_engram_layers; i++) rows[i] = table_rows(&engram, i);
}

di_status di_engram_derive(const di_config *config, di_engram *out, di_error *error) {
    *out = (di_engram){0};
    if (config->n_engram_layers == 0) return DI_OK;
    out->n_columns = (config->engram_max_ngram_size - 1) * config->engram_n_heads;
    derive_primes(config, out);
    int64_t bound = INT64_MAX / config->engram_compressed_vocab_size / 2;
    for (int32_t i = 0; i < config->n_engram_layers; i++) {
        int64_t rows = table_rows(out, i);
        if (rows != config->engram_num_embeddings[i]) {
            return di_fail(error, DI_ERR_INVALID,
                           "config.json: engram_num_embeddings[%d] is %" PRId64
                           ", but engram_vocab_size %" PRId64 " gives %" PRId64 " rows",
                           i, config->engram_num_embeddings[i], config->engram_vocab_size, rows);
        }
        int64_t *m = out->multipliers[i];
        di_numpy_integers(10007u * (uint32_t)config->engram_layer_ids[i], (uint64_t)bound,
                          config->engram_max_ngram_size, m);
        for (int32_t k = 0; k < config->engram_max_ngram_size; k++) m[k] = 2 * m[k] + 1;
    }
    return DI_OK;
}

static di_status check_classes(const di_config *config, const char *what, int64_t n_classes,
                               di_engram *engram, di_error *error) {
    if (n_classes != config->engram_compressed_vocab_size) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: its Engram map has %" PRId64 " classes, config.json says %" PRId64
                       " (engram_compressed_vocab_size); the tokenizer belongs to another model",
                       what, n_classes, config->engram_compressed_vocab_size);
    }
    engram->pad_class = engram->token_map[config->engram_pad_token_id];
    return DI_OK;
}

static di_status allocate_map(const di_config *config, di_engram *engram, di_error *error) {
    engram->token_map = malloc((size_t)config->vocab_size * sizeof *engram->token_map);
    return engram->token_map ? DI_OK : di_fail(error, DI_ERR_MEMORY, "out of memory: token map");
}

di_status di_engram_map_from_tokenizer(const di_config *config, const di_tokenizer *tokenizer,
                                       const char *what, di_engram *engram, di_error *error) {
    int32_t size = di_tokenizer_size(tokenizer), n_classes;
    if (size != config->vocab_size) {
        return di_fail(
            error, DI_ERR_INVALID,
            "%s has %d ids, but config.json says vocab_size %d; the tokenizer belongs to "
            "another model",
            what, size, config->vocab_size);
    }
    DI_TRY(allocate_map(config, engram, error));
    DI_TRY(di_tokenizer_engram_map(tokenizer, engram->token_map, &n_classes, error));
    return check_classes(config, what, n_classes, engram, error);
}

static di_status read_map(const di_config *config, const di_json *root, const char *path,
                          di_engram *engram, di_error *error) {
    const di_json *list = di_json_get(root, "token_map");
    int64_t n_classes, id = 0;
    if (!list || list->type != DI_JSON_ARRAY ||
        !di_json_int64(di_json_get(root, "n_classes"), &n_classes)) {
        return di_fail(error, DI_ERR_INVALID, "%s: needs \"token_map\" (a list) and \"n_classes\"",
                       path);
    }
    if (list->length != (size_t)config->vocab_size) {
        return di_fail(error, DI_ERR_INVALID, "%s: token_map has %zu entries, vocab_size is %d",
                       path, list->length, config->vocab_size);
    }
    for (const di_json *item = list->first; item; item = item->next, id++) {
        int64_t class_id;
        if (!di_json_int64(item, &class_id) || class_id < 0 || class_id >= n_classes) {
            return di_fail(error, DI_ERR_INVALID,
                           "%s: token_map[%" PRId64 "] is not a class below %" PRId64, path, id,
                           n_classes);
        }
        engram->token_map[id] = (int32_t)class_id;
    }
    return check_classes(config, path, n_classes, engram, error);
}

di_status di_engram_map_from_file(const di_config *config, const char *path, di_engram *engram,
                                  di_error *error) {
    char *text = NULL;
    uint64_t size;
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_status status;
    DI_TRY_DONE(di_file_read(path, 64 << 20, &text, &size, error));
    DI_TRY_DONE(di_json_parse(text, size, path, &arena, &root, error));
    DI_TRY_DONE(allocate_map(config, engram, error));
    status = read_map(config, root, path, engram, error);
done:
    di_arena_free(&arena);
    free(text);
    return status;
}

void di_engram_free(di_engram *engram) {
    free(engram->token_map);
    engram->token_map = NULL;
}
