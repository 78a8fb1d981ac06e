/* Which mapped bytes belong to a layer. A model that is larger than memory gives each layer's pages
 * back after its use; the tensors of a layer lie side by side in the files, so merging the ones
 * that touch leaves a handful of ranges. And how much of the weights is in memory then.
 */
#include <stdlib.h>

#include "model/network.h"

static int by_address(const void *a, const void *b) {
    const di_host_range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void merge(di_layer_ranges *list) {
    qsort(list->ranges, (size_t)list->n, sizeof *list->ranges, by_address);
    int64_t kept = 0;
    for (int64_t i = 1; i < list->n; i++) {
        di_host_range *last = &list->ranges[kept];
        const di_host_range *next = &list->ranges[i];
        if (last->begin + last->size == next->begin) {
            last->size += next->size;
        } else {
            list->ranges[++kept] = *next;
        }
    }
    if (list->n > 0) list->n = kept + 1;
}

/* NULL: vision, which is not read. */
static di_layer_ranges *list_of(di_model *model, const di_tensor_spec *spec) {
    if (spec->layer >= 0) return &model->layer_ranges[spec->layer];
    if (spec->kind == DI_KIND_EMBED) return &model->embed_range;
    return spec->kind == DI_KIND_HEAD ? &model->head_range : NULL;
}

/* Lists grow at powers of two. */
static di_status add_range(void *user, const di_tensor_spec *spec, di_error *error) {
    di_model *model = user;
    di_layer_ranges *list = list_of(model, spec);
    const di_tensor *tensor = di_checkpoint_find(model->checkpoint, spec->name);
    if (!list || !tensor) return DI_OK;
    if ((list->n & (list->n - 1)) == 0) {
        size_t capacity = list->n ? 2 * (size_t)list->n : 1;
        di_host_range *grown = realloc(list->ranges, capacity * sizeof *grown);
        if (!grown) return di_fail(error, DI_ERR_MEMORY, "out of memory: ranges of layers");
        list->ranges = grown;
    }
    list->ranges[list->n++] = (di_host_range){tensor->data, tensor->bytes};
    return DI_OK;
}

static int32_t n_blocks(const di_config *c) {
    return c->num_hidden_layers + c->num_nextn_predict_layers;
}

di_status di_ranges_collect(di_model *model, di_error *error) {
    int32_t n = n_blocks(&model->config);
    model->layer_ranges = calloc((size_t)n, sizeof *model->layer_ranges);
    if (!model->layer_ranges) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory: ranges of layers");
    }
    DI_TRY(di_contract_each(&model->config, add_range, model, error));
    for (int32_t i = 0; i < n; i++) merge(&model->layer_ranges[i]);
    merge(&model->embed_range);
    merge(&model->head_range);
    return DI_OK;
}

void di_ranges_free(di_model *model) {
    for (int32_t i = 0; model->layer_ranges && i < n_blocks(&model->config); i++) {
        free(model->layer_ranges[i].ranges);
    }
    free(model->layer_ranges);
    free(model->embed_range.ranges);
    free(model->head_range.ranges);
}

/* ---- How much is in memory at a time ---- */

int32_t di_release_rows(int32_t n_rows, int32_t cells) {
    int32_t most = cells < DI_RELEASE_CELLS ? DI_RELEASE_CELLS / cells : 1;
    return n_rows < most ? n_rows : most;
}

typedef struct residency {
    const di_config *config;
    int32_t max_rows;
    uint64_t layers[DI_MAX_LAYERS];
    uint64_t head, embed;
} residency;

/* Of a tensor of which n single rows are read. */
static uint64_t row_bytes(const di_tensor_spec *spec, uint64_t n) {
    uint64_t whole = di_tensor_spec_bytes(spec), row = whole / (uint64_t)spec->shape[0];
    uint64_t touched = n * (row + DI_ROW_REACH);
    return touched < whole ? touched : whole;
}

static di_status add_residency(void *user, const di_tensor_spec *spec, di_error *error) {
    residency *r = user;
    const di_config *c = r->config;
    (void)error;
    if (spec->kind == DI_KIND_EMBED) {
        r->embed += row_bytes(spec, (uint64_t)di_release_rows(r->max_rows, 1));
    }
    if (spec->kind == DI_KIND_HEAD) r->head += di_tensor_spec_bytes(spec);
    if (spec->layer < 0) return DI_OK;
    uint64_t bytes = di_tensor_spec_bytes(spec);
    if (di_is_engram_table(spec->name)) {
        int32_t columns = (c->engram_max_ngram_size - 1) * c->engram_n_heads;
        int32_t rows = di_release_rows(r->max_rows, columns);
        bytes = row_bytes(spec, (uint64_t)rows * (uint64_t)columns);
    }
    r->layers[spec->layer] += bytes;
    return DI_OK;
}

di_status di_model_released_bytes(const di_config *config, int32_t max_rows, bool drafts,
                                  uint64_t *out, di_error *error) {
    residency r = {.config = config, .max_rows = max_rows};
    DI_TRY(di_contract_each(config, add_residency, &r, error));
    int32_t n = drafts ? n_blocks(config) : config->num_hidden_layers;
    *out = 0;
    for (int32_t i = 0; i < n; i++) {
        if (r.layers[i] > *out) *out = r.layers[i];
    }
    *out += r.head + r.embed;
    return DI_OK;
}
