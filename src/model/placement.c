/* Where weights lie when the device has memory of its own. */
#include <string.h>

#include "model/network.h"

bool di_is_engram_table(const char *tensor_name) {
    return strstr(tensor_name, ".engram.embed.") != NULL;
}

static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

int32_t di_matrix_groups(const di_config *config, const char *tensor_name) {
    static const char *const tables[] = {"embed.weight", ".engram.q_weight", ".engram.k_weight"};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (ends_in(tensor_name, tables[i])) return 0;
    }
    return ends_in(tensor_name, ".attn.wo_a.weight") ? config->o_groups : 1;
}

typedef struct sizes {
    const di_config *config;
    const di_backend *backend;
    di_placement *out;
    int32_t device_layers; /* from here on routed experts are the host's */
    uint64_t largest_table, slab_left;
    uint64_t before;    /* bytes of the tensor before: a scale comes behind its matrix */
    bool packs, packed; /* any matrix; the one before */
} sizes;

/* What only images need is not bound. A matrix goes to the device with its scales. */
static di_status find_largest(void *user, const di_tensor_spec *spec, di_error *error) {
    sizes *s = user;
    (void)error;
    uint64_t bytes = di_tensor_spec_bytes(spec), with = bytes;
    uint64_t *largest = di_is_engram_table(spec->name) ? &s->largest_table : &s->out->largest_bytes;
    if (largest != &s->largest_table && spec->dtype == DI_F8_E8M0) with += s->before;
    if (spec->required && with > *largest) *largest = with;
    s->before = bytes;
    return DI_OK;
}

/* What a packed matrix takes, with its scales; 0 for all other tensors. */
static uint64_t packed_bytes(const sizes *s, const di_tensor_spec *spec) {
    if (!s->backend || spec->n_dims != 2 || spec->dtype == DI_F8_E8M0) return 0;
    int64_t k = spec->shape[1] * (spec->dtype == DI_FP4_PAIR ? 2 : 1);
    di_host_matrix m = {.dtype = spec->dtype, .n = (int32_t)spec->shape[0], .k = (int32_t)k};
    m.groups = di_matrix_groups(s->config, spec->name);
    return m.groups > 0 ? di_packed_bytes(s->backend, &m) : 0;
}

/* As the backend's bind takes memory: see DI_BIND_SLAB_BYTES. */
static di_status add_tensor(void *user, const di_tensor_spec *spec, di_error *error) {
    sizes *s = user;
    (void)error;
    if (spec->kind == DI_KIND_EXPERTS && spec->layer >= s->device_layers) {
        s->out->expert_bytes += di_tensor_spec_bytes(spec);
        return DI_OK;
    }
    if (!spec->required || (spec->dtype == DI_F8_E8M0 && s->packed)) return DI_OK;
    uint64_t bytes = di_tensor_spec_bytes(spec), packed = packed_bytes(s, spec);
    s->packed = packed > 0;
    s->packs = s->packs || s->packed;
    uint64_t size = s->packed ? packed : bytes;
    uint64_t room = (size + DI_BIND_ALIGN - 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
    if (!s->packed && s->out->host_from > 0 && bytes >= s->out->host_from) {
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

di_status di_model_place(const di_config *config, const di_backend *backend, di_placement *out,
                         di_error *error) {
    return di_model_place_layers(config, backend, config->num_hidden_layers, out, error);
}

di_status di_model_place_layers(const di_config *config, const di_backend *backend,
                                int32_t device_layers, di_placement *out, di_error *error) {
    *out = (di_placement){0};
    sizes s = {.config = config, .backend = backend, .out = out, .device_layers = device_layers};
    DI_TRY(di_contract_each(config, find_largest, &s, error));
    if (s.largest_table > out->largest_bytes) out->host_from = out->largest_bytes + 1;
    DI_TRY(di_contract_each(config, add_tensor, &s, error));
    if (s.packs) out->device_bytes += DI_BIND_STAGING_BYTES + DI_BIND_ALIGN;
    /* Tensors are not bound in the order of the contract, and one more slab covers the difference;
     * the small tables besides: rotary frequencies, experts' addresses, what hashes n-grams. */
    int32_t n_blocks = config->num_hidden_layers + config->num_nextn_predict_layers;
    uint64_t experts = (uint64_t)n_blocks * (uint64_t)config->n_routed_experts * sizeof(di_expert);
    out->device_bytes += DI_BIND_SLAB_BYTES + experts + 4 * (uint64_t)config->vocab_size;
    return DI_OK;
}
