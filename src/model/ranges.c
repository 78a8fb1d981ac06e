/* Which mapped bytes belong to a layer. A model that is larger than memory gives each layer's pages
 * back after its use; the tensors of a layer lie side by side in the files, so merging the ones
 * that touch leaves a handful of ranges.
 */
#include <stdlib.h>
#include <string.h>

#include "model/network.h"

/* Layer that a tensor belongs to; num_hidden_layers for embed, head and the final norm. -1: other.
 */
static int32_t layer_of(const di_model *model, const char *name) {
    if (strncmp(name, "layers.", 7) == 0) return (int32_t)strtol(name + 7, NULL, 10);
    bool is_global = !strcmp(name, "embed.weight") || !strcmp(name, "head.weight");
    return is_global ? model->config.num_hidden_layers : -1;
}

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

static di_layer_ranges *list_of(di_model *model, int32_t layer) {
    return layer < model->config.num_hidden_layers ? &model->layer_ranges[layer]
                                                   : &model->head_range;
}

di_status di_ranges_collect(di_model *model, di_error *error) {
    int32_t n_layers = model->config.num_hidden_layers;
    int64_t n = di_checkpoint_count(model->checkpoint);
    model->layer_ranges = calloc((size_t)n_layers, sizeof *model->layer_ranges);
    if (!model->layer_ranges) goto no_memory;
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        for (int64_t i = 0; i < n; i++) {
            const di_tensor *tensor = di_checkpoint_at(model->checkpoint, i);
            int32_t layer = layer_of(model, tensor->name);
            if (layer < 0 || layer > n_layers) continue;
            di_layer_ranges *list = list_of(model, layer);
            if (pass == 1) list->ranges[list->n] = (di_host_range){tensor->data, tensor->bytes};
            list->n++;
        }
        for (int32_t layer = 0; layer <= n_layers; layer++) {
            di_layer_ranges *list = list_of(model, layer);
            if (pass == 1) {
                merge(list);
                continue;
            }
            list->ranges = calloc((size_t)list->n + 1, sizeof *list->ranges);
            if (!list->ranges) goto no_memory;
            list->n = 0;
        }
    }
    return DI_OK;
no_memory:
    return di_fail(error, DI_ERR_MEMORY, "out of memory: ranges of layers");
}

void di_ranges_free(di_model *model) {
    for (int32_t i = 0; model->layer_ranges && i < model->config.num_hidden_layers; i++) {
        free(model->layer_ranges[i].ranges);
    }
    free(model->layer_ranges);
    free(model->head_range.ranges);
}
