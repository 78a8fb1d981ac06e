/* config.json. What is accepted must give a contract and survive being written again by synth with
 * nothing changed but the Engram rows, which synth derives.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "model/checkpoint.h"
#include "model/config.h"
#include "model/synth.h"

static void demand(int condition) {
    if (!condition) abort();
}

static di_status count(void *user, const di_tensor_spec *spec, di_error *error) {
    (void)error;
    demand(spec->name[0] != '\0' && spec->n_dims >= 1 && spec->n_dims <= 2);
    for (int32_t i = 0; i < spec->n_dims; i++) demand(spec->shape[i] > 0);
    demand(di_tensor_spec_bytes(spec) < UINT64_C(1) << 60);
    ++*(uint64_t *)user;
    return DI_OK;
}

static void write_again(const uint8_t *data, size_t size, const di_config *config) {
    di_synth_overrides none = di_synth_overrides_none();
    di_buffer out = DI_BUFFER_EMPTY;
    di_error error;
    di_config again;
    demand(di_synth_config((const char *)data, size, "fuzz", &none, &out, &error) == DI_OK);
    demand(di_config_parse(out.data, out.size, "again", &again, &error) == DI_OK);
    memcpy(again.engram_num_embeddings, config->engram_num_embeddings,
           sizeof again.engram_num_embeddings);
    demand(memcmp(&again, config, sizeof again) == 0);
    di_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_config config;
    di_error error;
    if (di_config_parse((const char *)data, size, "fuzz", &config, &error) != DI_OK) {
        demand(error.message[0] != '\0');
        return 0;
    }
    demand(di_config_page_bytes(&config) >= 0 && di_config_ring_slots(&config) > 0);
    int64_t experts = (int64_t)config.num_hidden_layers * config.n_routed_experts +
                      (int64_t)config.num_nextn_predict_layers * config.dspark_n_routed_experts;
    if (experts < 2000 && config.vision.num_hidden_layers < 100) { /* else slow, not different */
        uint64_t n = 0;
        demand(di_contract_each(&config, count, &n, &error) == DI_OK && n > 10);
    }
    if (config.engram_vocab_size < 100000) write_again(data, size, &config); /* primes are sought */
    return 0;
}
