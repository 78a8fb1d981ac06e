/* The layout of a synthetic checkpoint: tensors in contract order cut into shards of about equal
 * size, so that a layer stays together; inside a shard wider elements first, so that every tensor
 * is aligned to its element without a gap, which the format does not allow.
 */
#include "model/synth_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/dtype_names.h"

enum { MAX_SHARDS = 1024 };

static const uint64_t SHARD_BYTES = UINT64_C(10700000000);

static di_status count_entry(void *user, const di_tensor_spec *spec, di_error *error) {
    synth_plan *plan = user;
    (void)error;
    plan->n++;
    plan->total += di_tensor_spec_bytes(spec);
    return DI_OK;
}

static di_status add_entry(void *user, const di_tensor_spec *spec, di_error *error) {
    synth_plan *plan = user;
    (void)error;
    plan->entries[plan->n++] = (synth_entry){.spec = *spec, .bytes = di_tensor_spec_bytes(spec)};
    return DI_OK;
}

/* Each shard takes its even part of what is left; one tensor may exceed it. Every shard gets one.
 */
static void assign_shards(synth_plan *plan) {
    uint64_t left = plan->total, held = 0;
    int32_t shard = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        synth_entry *e = &plan->entries[i];
        uint64_t part = left / (uint64_t)(plan->n_shards - shard);
        bool full = held > 0 && held + e->bytes / 2 > part;
        bool must = held > 0 && plan->n - i <= plan->n_shards - 1 - shard;
        if ((full || must) && shard < plan->n_shards - 1) {
            left -= held;
            held = 0;
            shard++;
        }
        e->shard = shard;
        held += e->bytes;
    }
}

static int compare_entries(const void *a, const void *b) {
    const synth_entry *x = a, *y = b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    uint64_t wide = di_dtype_bytes(x->spec.dtype), other = di_dtype_bytes(y->spec.dtype);
    if (wide != other) return wide > other ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset; /* contract order, see below */
}

static void assign_offsets(synth_plan *plan) {
    for (int64_t i = 0; i < plan->n; i++) plan->entries[i].offset = (uint64_t)i; /* for the sort */
    qsort(plan->entries, (size_t)plan->n, sizeof *plan->entries, compare_entries);
    uint64_t offset = 0;
    for (int64_t i = 0; i < plan->n; i++) {
        synth_entry *e = &plan->entries[i];
        if (i > 0 && e->shard != plan->entries[i - 1].shard) offset = 0;
        e->offset = offset;
        offset += e->bytes;
    }
}

di_status synth__plan_make(const di_config *config, int32_t n_shards, synth_plan *plan,
                           di_error *error) {
    *plan = (synth_plan){0};
    DI_TRY(di_contract_each(config, count_entry, plan, error));
    int64_t wanted = n_shards ? n_shards : (int64_t)((plan->total - 1) / SHARD_BYTES + 1);
    int64_t limit = plan->n < MAX_SHARDS ? plan->n : MAX_SHARDS;
    if (n_shards > limit) {
        return di_fail(error, DI_ERR_USAGE,
                       "%d shards for %" PRId64 " tensors: expected 1 to %" PRId64, (int)n_shards,
                       plan->n, limit);
    }
    plan->n_shards = (int32_t)(wanted < limit ? wanted : limit);
    plan->entries = malloc((size_t)plan->n * sizeof *plan->entries);
    if (!plan->entries) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory for a list of %" PRId64 " tensors",
                       plan->n);
    }
    plan->n = 0;
    DI_TRY(di_contract_each(config, add_entry, plan, error));
    assign_shards(plan);
    assign_offsets(plan);
    return DI_OK;
}

void synth__plan_free(synth_plan *plan) {
    free(plan->entries);
    *plan = (synth_plan){0};
}

void synth__plan_file(const synth_plan *plan, int32_t shard, char out[64]) {
    if (plan->n_shards == 1) {
        snprintf(out, 64, "model.safetensors");
    } else {
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", (int)shard + 1, (int)plan->n_shards);
    }
}

int64_t synth__plan_first(const synth_plan *plan, int32_t shard) {
    int64_t low = 0, high = plan->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (plan->entries[middle].shard < shard) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void synth__plan_header(const synth_plan *plan, int32_t shard, di_buffer *out) {
    int64_t end = synth__plan_first(plan, shard + 1);
    size_t start = out->size;
    di_buffer_append(out, "\0\0\0\0\0\0\0\0", 8);
    di_buffer_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int64_t i = synth__plan_first(plan, shard); i < end; i++) {
        const synth_entry *e = &plan->entries[i];
        di_buffer_printf(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", e->spec.name,
                         di_dtype_name(e->spec.dtype));
        for (int32_t d = 0; d < e->spec.n_dims; d++) {
            di_buffer_printf(out, "%s%" PRId64, d ? "," : "", e->spec.shape[d]);
        }
        di_buffer_printf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", e->offset,
                         e->offset + e->bytes);
    }
    di_buffer_putc(out, '}');
    while ((out->size - start) % 8 != 0 && !out->failed) di_buffer_putc(out, ' ');
    if (out->failed) return;
    uint64_t length = out->size - start - 8;
    for (int b = 0; b < 8; b++) out->data[start + (size_t)b] = (char)(length >> 8 * b);
}

void synth__plan_index(const synth_plan *plan, di_buffer *out) {
    char file[64];
    di_buffer_printf(out,
                     "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64
                     "\n  },\n  \"weight_map\": {",
                     plan->total);
    for (int64_t i = 0; i < plan->n; i++) {
        const synth_entry *e = &plan->entries[i];
        synth__plan_file(plan, e->shard, file);
        di_buffer_printf(out, "%s\n    \"%s\": \"%s\"", i ? "," : "", e->spec.name, file);
    }
    di_buffer_puts(out, "\n  }\n}\n");
}

/* Neighbouring ids share a class, as a word and its capitalised form may: class id * C / V takes
 * every value below C in order of first appearance, because C <= V. */
void synth__token_map(const di_config *config, di_buffer *out) {
    int64_t v = config->vocab_size, classes = config->engram_compressed_vocab_size;
    di_buffer_puts(out, "{\"token_map\": [");
    for (int64_t id = 0; id < v; id++) {
        di_buffer_printf(out, "%s%" PRId64, id ? ", " : "", id * classes / v);
    }
    di_buffer_printf(out, "], \"n_classes\": %" PRId64 "}\n", classes);
}
