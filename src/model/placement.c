/* Where weights lie when the device has memory of its own. */
#include <string.h>

#include "model/network.h"

bool di_is_engram_table(const char *tensor_name) {
    return strstr(tensor_name, ".engram.embed.") != NULL;
}

typedef struct sizes {
    di_placement *out;
    uint64_t largest_table, slab_left;
} sizes;

/* What only images need is not bound. */
static di_status find_largest(void *user, const di_tensor_spec *spec, di_error *error) {
    sizes *s = user;
    (void)error;
    uint64_t bytes = di_tensor_spec_bytes(spec);
    uint64_t *largest = di_is_engram_table(spec->name) ? &s->largest_table : &s->out->largest_bytes;
    if (spec->required && bytes > *largest) *largest = bytes;
    return DI_OK;
}

/* As the backend's bind takes memory: see DI_BIND_SLAB_BYTES. */
static di_status add_tensor(void *user, const di_tensor_spec *spec, di_error *error) {
    sizes *s = user;
    (void)error;
    if (!spec->required) return DI_OK;
    uint64_t bytes = di_tensor_spec_bytes(spec);
    uint64_t room = (bytes + DI_BIND_ALIGN - 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
    if (s->out->host_from > 0 && bytes >= s->out->host_from) {
        s->out->host_bytes += bytes;
    } else if (room > DI_BIND_SLAB_BYTES / 8) {
        s->out->device_bytes += room;
    } else {
        if (room > s->slab_left) {
            s->out->device_bytes += DI_BIND_SLAB_BYTES;
            s->slab_left = DI_BIND_SLAB_BYTES;
        }
        s->slab_left -= room;
    }
    return DI_OK;
}

di_status di_model_place(const di_config *config, di_placement *out, di_error *error) {
    *out = (di_placement){0};
    sizes s = {.out = out};
    DI_TRY(di_contract_each(config, find_largest, &s, error));
    if (s.largest_table > out->largest_bytes) out->host_from = out->largest_bytes + 1;
    DI_TRY(di_contract_each(config, add_tensor, &s, error));
    /* Tensors are not bound in the order of the contract, and one more slab covers the difference;
     * the small tables besides: rotary frequencies, experts' addresses, what hashes n-grams. */
    int32_t n_blocks = config->num_hidden_layers + config->num_nextn_predict_layers;
    uint64_t experts = (uint64_t)n_blocks * (uint64_t)config->n_routed_experts * sizeof(di_expert);
    out->device_bytes += DI_BIND_SLAB_BYTES + experts + 4 * (uint64_t)config->vocab_size;
    return DI_OK;
}
