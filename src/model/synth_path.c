#include "model/synth_path.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/checkpoint.h"
#include "model/synth.h"
#include "model/synth_values.h"

__attribute__((format(printf, 4, 5))) static void add(di_path *path, uint64_t offset,
                                                      uint64_t bytes, const char *format, ...) {
    di_path_site *site = &path->sites[path->n_sites++];
    va_list args;
    va_start(args, format);
    vsnprintf(site->tensor, sizeof site->tensor, format, args);
    va_end(args);
    site->offset = offset;
    site->bytes = bytes;
    site->any_place = false;
}

/* Row that the n-gram ending at the last id hits in the last column of Engram layer `e`. */
static int64_t table_row(const di_config *c, const di_engram *engram, int32_t e,
                         const int32_t *ids) {
    int32_t size = c->engram_max_ngram_size, column = engram->n_columns - 1;
    int64_t hash = 0;
    for (int32_t k = 0; k < size; k++) {
        int32_t at = DI_PATH_TOKENS - 1 - k;
        int64_t y = at >= 0 ? engram->token_map[ids[at]] : engram->pad_class;
        hash ^= y * engram->multipliers[e][k];
    }
    return hash % engram->primes[e][column] + engram->offsets[e][column];
}

/* Varies the first token until the row lies near the end of the table. */
static void find_prompt(const di_config *c, const di_engram *engram, int32_t e, di_path *out) {
    int64_t last = c->engram_num_embeddings[e], best = -1;
    int32_t best_id = 0;
    for (int32_t id = 0; id < c->vocab_size; id++) {
        out->ids[0] = id;
        int64_t row = table_row(c, engram, e, out->ids);
        if (row > best) {
            best = row;
            best_id = id;
        }
        if (best >= last - last / 1000) break;
    }
    out->ids[0] = best_id;
}

static void engram_sites(const di_config *c, const di_engram *engram, di_path *out) {
    int32_t e = c->n_engram_layers - 1, layer = c->engram_layer_ids[e];
    uint64_t row = (uint64_t)table_row(c, engram, e, out->ids);
    uint64_t width = (uint64_t)c->engram_head_dim, k = (uint64_t)engram->n_columns * width;
    uint64_t value =
        (uint64_t)c->hc_mult * (uint64_t)c->hidden_size; /* first row of the value part */
    uint64_t rows = c->hidden_size < 64 ? 32 : 64;
    add(out, row * width, width, "layers.%d.engram.embed.weight", layer);
    add(out, row * (width / 32), width / 32, "layers.%d.engram.embed.scale", layer);
    out->sites[0].any_place = out->sites[1].any_place = true;
    add(out, value * k, rows * k, "layers.%d.engram.wkv.weight", layer);
    add(out, value / 32 * (k / 32), rows / 32 * (k / 32), "layers.%d.engram.wkv.scale", layer);
}

static void expert_sites(const di_config *c, di_path *out) {
    int32_t layer = c->num_hidden_layers - 1, expert = c->n_routed_experts - 1;
    uint64_t d = (uint64_t)c->hidden_size, inner = (uint64_t)c->moe_intermediate_size;
    add(out, 0, d * 2, "layers.%d.ffn_norm.weight", layer);
    add(out, (uint64_t)expert * 4, 4, "layers.%d.ffn.gate.bias", layer);
    static const char *const names[] = {"w1", "w3", "w2"};
    for (int i = 0; i < 3; i++) { /* all three have D * I values */
        add(out, 0, d * inner / 2, "layers.%d.ffn.experts.%d.%s.weight", layer, expert, names[i]);
        add(out, 0, d * inner / 32, "layers.%d.ffn.experts.%d.%s.scale", layer, expert, names[i]);
    }
}

void di_path_find(const di_config *config, const di_engram *engram, const int32_t *ids,
                  di_path *out) {
    uint64_t row = (uint64_t)config->hidden_size * 2;
    *out = (di_path){0};
    for (int32_t i = 0; i < DI_PATH_TOKENS; i++) {
        out->ids[i] = ids ? ids[i] : (17 * i + 5) % config->vocab_size;
    }
    if (config->n_engram_layers > 0) {
        if (!ids) find_prompt(config, engram, config->n_engram_layers - 1, out);
        engram_sites(config, engram, out);
    }
    expert_sites(config, out);
    add(out, 0, row, "norm.weight");
    for (int32_t i = 0; i < DI_PATH_TOKENS; i++) {
        bool again = false;
        for (int32_t j = 0; j < i; j++) again = again || out->ids[j] == out->ids[i];
        if (again) continue;
        add(out, (uint64_t)out->ids[i] * row, row, "embed.weight");
        add(out, (uint64_t)out->ids[i] * row, row, "head.weight");
    }
}

/* ---- Planting ---- */

typedef struct planting {
    const char *directory;
    const di_config *config;
    const di_path *path;
    synth_tables *tables;
    uint64_t seed;
    int32_t planted;
} planting;

/* The last expert gets the values of expert 0, so that a slice with fewer experts can hold them. */
static void name_like_first_expert(di_tensor_spec *spec, const di_config *c) {
    int layer, expert;
    char rest[64];
    if (sscanf(spec->name, "layers.%d.ffn.experts.%d.%63s", &layer, &expert, rest) != 3) return;
    if (expert == c->n_routed_experts - 1) {
        snprintf(spec->name, sizeof spec->name, "layers.%d.ffn.experts.0.%s", layer, rest);
    }
}

static di_status plant_site(const planting *p, const di_tensor_spec *spec, const di_path_site *site,
                            di_error *error) {
    uint64_t unit = di_dtype_bytes(spec->dtype);
    if (site->bytes == 4 && spec->dtype == DI_F32) { /* the router bias */
        const float selects = 4;
        return di_synth_plant(p->directory, site->tensor, site->offset, &selects, 4, error);
    }
    synth_recipe *recipe = malloc(sizeof *recipe);
    /* whole groups of four elements around the site, of which the site is written */
    uint64_t from = site->any_place ? 0 : site->offset;
    uint64_t first = from / unit / 4 * 4, skip = from - first * unit;
    uint64_t n = (skip + site->bytes + unit - 1) / unit;
    uint8_t *bytes = malloc((size_t)(n * unit));
    di_status status;
    if (recipe && bytes) {
        di_tensor_spec like = *spec;
        name_like_first_expert(&like, p->config);
        synth__recipe_init(recipe, p->tables, p->config, &like, p->seed);
        synth__fill(recipe, first, n, bytes);
        status = di_synth_plant(p->directory, site->tensor, site->offset, bytes + skip, site->bytes,
                                error);
    } else {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory planting %s", site->tensor);
    }
    free(recipe);
    free(bytes);
    return status;
}

static di_status visit(void *user, const di_tensor_spec *spec, di_error *error) {
    planting *p = user;
    for (int32_t i = 0; i < p->path->n_sites; i++) {
        if (strcmp(p->path->sites[i].tensor, spec->name) != 0) continue;
        DI_TRY(plant_site(p, spec, &p->path->sites[i], error));
        p->planted++;
    }
    return DI_OK;
}

di_status di_path_plant(const char *directory, const di_config *config, const di_path *path,
                        uint64_t seed, di_error *error) {
    synth_tables *tables = malloc(sizeof *tables);
    if (!tables) return di_fail(error, DI_ERR_MEMORY, "out of memory planting values");
    synth__tables_init(tables);
    planting p = {directory, config, path, tables, seed, 0};
    di_status status = di_contract_each(config, visit, &p, error);
    free(tables);
    if (status == DI_OK && p.planted != path->n_sites) {
        return di_fail(error, DI_ERR_INVALID, "%s: %d of %d sites could be planted", directory,
                       p.planted, path->n_sites);
    }
    return status;
}

static di_status read_token_map(const char *directory, const di_config *config, di_engram *engram,
                                di_error *error) {
    char path[4096];
    di_tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    if (access(path, F_OK) == 0) {
        DI_TRY(di_tokenizer_load(path, &tokenizer, error));
        di_status status = di_engram_map_from_tokenizer(config, tokenizer, path, engram, error);
        di_tokenizer_destroy(tokenizer);
        return status;
    }
    snprintf(path, sizeof path, "%s/token_map.json", directory);
    return di_engram_map_from_file(config, path, engram, error);
}

di_status di_path_plant_into(const char *directory, const di_config *config, const int32_t *ids,
                             uint64_t seed, di_path *out, di_error *error) {
    di_engram engram;
    DI_TRY(di_engram_derive(config, &engram, error));
    di_status status = DI_OK;
    if (config->n_engram_layers > 0) status = read_token_map(directory, config, &engram, error);
    if (status == DI_OK) {
        di_path_find(config, &engram, ids, out);
        status = di_path_plant(directory, config, out, seed, error);
    }
    di_engram_free(&engram);
    return status;
}
