/* Layer roles: who owns a compressed cache, whose selection a layer uses (model.md section 1).
 *
 * One walk over the layers. The nearest source at or before a layer serves it; a selection is only
 * good for the cache it was made on, so layer and index source must share the KV source.
 */
#include "model/config_internal.h"

static int32_t find(const int32_t *ids, int32_t n, int32_t layer) {
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] == layer) return i;
    }
    return -1;
}

static di_status check_role(const di_config *c, int32_t layer, const char *what, di_error *error) {
    const struct di_layer_role *role = &c->roles[layer];
    int32_t source = role->kv_source;
    if (source < 0) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: text_config.compress_ratios[%d] is %d, but kv_source_layer_ids has no "
                       "layer at or before %d",
                       what, (int)layer, (int)role->ratio, (int)layer);
    }
    if (c->compress_ratios[source] != role->ratio) {
        return di_fail(
            error, DI_ERR_INVALID,
            "%s: text_config.compress_ratios[%d] is %d, but its KV source, layer %d, has "
            "ratio %d",
            what, (int)layer, (int)role->ratio, (int)source, (int)c->compress_ratios[source]);
    }
    if (role->index_source < source) {
        return di_fail(
            error, DI_ERR_INVALID,
            "%s: text_config.index_source_layer_ids has no layer from %d to %d: layer %d "
            "has no selection of the entries of KV source %d",
            what, (int)source, (int)layer, (int)layer, (int)source);
    }
    return DI_OK;
}

/* A source at ratio 0 would compress nothing. */
static di_status check_sources(const di_config *c, const char *name, const int32_t *ids, int32_t n,
                               const char *what, di_error *error) {
    for (int32_t i = 0; i < n; i++) {
        if (c->compress_ratios[ids[i]] > 0) continue;
        return di_fail(error, DI_ERR_INVALID,
                       "%s: text_config.%s[%d] is layer %d, which has compress ratio 0", what, name,
                       (int)i, (int)ids[i]);
    }
    return DI_OK;
}

/* Candidates are places of entries: the source must select, and its users must read caches of the same
 * ratio, whose entries stand for the same tokens. */
static di_status check_candidates(const di_config *c, const char *what, di_error *error) {
    int32_t source = c->candidate_source_layer_id;
    if (source < 0) return DI_OK;
    if (find(c->index_source_layer_ids, c->n_index_sources, source) < 0) {
        return di_fail(error, DI_ERR_INVALID,
                       "%s: text_config.candidate_source_layer_id is %d, expected one of "
                       "index_source_layer_ids, or -1",
                       what, (int)source);
    }
    for (int32_t i = 0; i < c->n_index_sources; i++) {
        int32_t user = c->index_source_layer_ids[i];
        if (user <= source || c->roles[user].ratio == c->roles[source].ratio) continue;
        return di_fail(
            error, DI_ERR_INVALID,
            "%s: text_config.candidate_source_layer_id is %d with ratio %d, but index source "
            "%d after it has ratio %d",
            what, (int)source, (int)c->roles[source].ratio, (int)user, (int)c->roles[user].ratio);
    }
    return DI_OK;
}

di_status config__derive_roles(di_config *c, const char *what, di_error *error) {
    int32_t kv_source = -1, index_source = -1, candidates = c->candidate_source_layer_id;
    DI_TRY(check_sources(c, "kv_source_layer_ids", c->kv_source_layer_ids, c->n_kv_sources, what,
                         error));
    DI_TRY(check_sources(c, "index_source_layer_ids", c->index_source_layer_ids, c->n_index_sources,
                         what, error));
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        struct di_layer_role *role = &c->roles[layer];
        role->ratio = c->compress_ratios[layer];
        role->is_kv_source = find(c->kv_source_layer_ids, c->n_kv_sources, layer) >= 0;
        role->is_index_source = find(c->index_source_layer_ids, c->n_index_sources, layer) >= 0;
        if (role->is_kv_source) kv_source = layer;
        if (role->is_index_source) index_source = layer;
        role->kv_source = role->ratio > 0 ? kv_source : -1;
        role->index_source = role->ratio > 0 ? index_source : -1;
        role->is_candidate_source = layer == candidates;
        role->uses_candidates = role->is_index_source && candidates >= 0 && layer > candidates;
        role->engram = find(c->engram_layer_ids, c->n_engram_layers, layer);
        role->dspark_target = find(c->dspark_target_layer_ids, c->n_dspark_targets, layer);
        if (role->ratio > 0) DI_TRY(check_role(c, layer, what, error));
    }
    return check_candidates(c, what, error);
}
