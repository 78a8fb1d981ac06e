/* The least times that follow from a model's weights and the machine's measured speed. */
#include <math.h>
#include <string.h>

#include "cli/bench.h"
#include "model/checkpoint.h"

typedef struct sums {
    double bytes;       /* of all tensors */
    double dense_bytes; /* read by every step */
    double dense_values;
    double head_bytes, head_values;
    double expert_bytes; /* of all routed experts of all layers */
    int32_t n_layers;
} sums;

static di_status add(void *user, const di_tensor_spec *spec, di_error *error) {
    sums *s = user;
    (void)error;
    double bytes = (double)di_tensor_spec_bytes(spec);
    double values = spec->n_dims == 2 ? (double)spec->shape[0] * (double)spec->shape[1] : 0;
    if (spec->dtype == DI_F8_E8M0) values = 0;
    if (spec->required) s->bytes += bytes;
    if (spec->kind == DI_KIND_HEAD && strcmp(spec->name, "head.weight") == 0) {
        s->head_bytes += bytes;
        s->head_values += values;
    }
    if (spec->layer < 0 || spec->layer >= s->n_layers) return DI_OK;
    if (spec->kind == DI_KIND_EXPERTS) {
        s->expert_bytes += bytes;
    } else if (!strstr(spec->name, ".engram.embed.")) {
        s->dense_bytes += bytes;
        s->dense_values += values;
    }
    return DI_OK;
}

static sums sums_of(const di_bench *b) {
    di_error error;
    sums s = {.n_layers = b->config.num_hidden_layers};
    (void)di_contract_each(&b->config, add, &s, &error); /* add never fails */
    return s;
}

double di_bench_weight_bytes(const di_bench *b) { return sums_of(b).bytes; }

double di_bench_floor(const di_bench *b, double rows, double outs) {
    const di_config *c = &b->config;
    sums s = sums_of(b);
    double picked = (double)c->num_experts_per_tok, all = (double)c->n_routed_experts;
    double touched = 1 - pow(1 - picked / all, rows); /* part of the experts, at random */
    double values = 3.0 * c->hidden_size * c->moe_intermediate_size * picked * s.n_layers;
    double bytes = s.dense_bytes + s.expert_bytes * touched + (outs > 0 ? s.head_bytes : 0);
    double flops = 2 * ((s.dense_values + values) * rows + s.head_values * outs);
    double memory = bytes / b->peak.bytes_per_s, compute = flops / b->peak.flop_per_s;
    return memory > compute ? memory : compute;
}

double di_bench_prefill_floor(const di_bench *b, int64_t n, int64_t chunk) {
    int64_t last = n % chunk ? n % chunk : chunk; /* its last row gives the token */
    int64_t whole = (n - last) / chunk;
    return (double)whole * di_bench_floor(b, (double)chunk, 0) + di_bench_floor(b, (double)last, 1);
}
