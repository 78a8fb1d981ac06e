/* bench_gpu: the useful work of steps.
 *
 * Every byte that must be read, once a step, and every multiplication and addition of products:
 * what activations between operations cost is not useful work. Matrices of one row a layer, norms
 * and the stream mixing's elementwise part are in the bytes only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"

static double total(const double *parts) {
    double sum = 0;
    for (int i = 0; i < N_PARTS; i++) sum += parts[i];
    return sum;
}

double work_bytes(const work *w) { return total(w->bytes); }
double work_flops(const work *w) { return total(w->flops); }

double work_seconds(const bench *b, const work *w) {
    double memory = work_bytes(w) / b->bytes_per_s, compute = work_flops(w) / b->flop_per_s;
    return memory > compute ? memory : compute;
}

void work_add_dense(const bench *b, work *w, double n_rows) {
    const di_checkpoint *checkpoint = di_model_checkpoint(b->model);
    for (int64_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        const di_tensor *t = di_checkpoint_at(checkpoint, i);
        if (strncmp(t->name, "layers.", 7) != 0 || strstr(t->name, ".ffn.experts.") ||
            strstr(t->name, ".engram.embed."))
            continue;
        w->bytes[PART_DENSE] += (double)t->bytes;
        if (t->n_dims == 2 && t->dtype != DI_F8_E8M0)
            w->flops[PART_DENSE] += 2 * (double)t->shape[0] * (double)t->shape[1] * n_rows;
    }
}

void work_add_experts(const bench *b, work *w, double n_rows, double n_experts) {
    const di_config *c = b->config;
    double values = 3.0 * c->hidden_size * c->moe_intermediate_size;
    w->bytes[PART_EXPERTS] += n_experts * values * (0.5 + 1.0 / 32);
    w->flops[PART_EXPERTS] += 2 * values * n_rows * c->num_experts_per_tok * c->num_hidden_layers;
}

void work_add_attention(const bench *b, work *w, int64_t position) {
    const di_config *c = b->config;
    double d = c->head_dim, di = c->index_head_dim;
    int64_t window = position + 1 < c->sliding_window ? position + 1 : c->sliding_window;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        const struct di_layer_role *r = &c->roles[i];
        int64_t entries = r->ratio > 0 ? (position + 1) / r->ratio : 0;
        double picks = (double)(entries < c->index_topk ? entries : c->index_topk);
        w->bytes[PART_ATTENTION] += (double)window * (d + d / 32) + picks * (d / 2 + d / 16);
        w->flops[PART_ATTENTION] += 4.0 * c->num_attention_heads * d * ((double)window + picks);
        if (!r->is_index_source) continue;
        int64_t most = (int64_t)c->candidate_topk_blocks * c->candidate_block_size;
        double scored = (double)(r->uses_candidates && entries > most ? most : entries);
        w->bytes[PART_INDEX] += scored * (di / 2 + di / 32);
        w->flops[PART_INDEX] += 2.0 * c->index_n_heads * di * scored;
    }
}

void work_add_head(const bench *b, work *w, double n_out) {
    const di_tensor *head = di_checkpoint_find(di_model_checkpoint(b->model), "head.weight");
    double values = (double)head->shape[0] * (double)head->shape[1];
    w->bytes[PART_HEAD] += (double)head->bytes + 2 * 4.0 * (double)head->shape[0] * n_out;
    w->flops[PART_HEAD] += 2 * values * n_out;
}

void work_explain(void) {
    printf("  useful work. bytes: dense weights once, experts that were picked once (counted), "
           "each sequence's window, picked entries and scored index keys in every layer that reads "
           "them, the head, logits written and read once; embedding and Engram rows and all "
           "activations are left out. operations: 2 a weight and row, 4 a value of each key and "
           "head, 2 a value of each index key and head\n");
}

/* ---- Experts that were read ---- */

static void keep_picks(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                       int64_t n_rows, int64_t width) {
    expert_count *count = user;
    di_backend *backend = count->b->backend;
    int64_t n = n_rows * width;
    (void)type;
    if (strcmp(name, "router_picks") != 0 || layer >= count->b->config->num_hidden_layers) return;
    count->n_rows = (int32_t)n_rows;
    backend->download(backend->stream, count->picks + layer * n, data, (uint64_t)n * 4);
}

void experts_watch(bench *b, expert_count *count, di_context *context, int32_t max_rows) {
    size_t n = (size_t)b->config->num_hidden_layers * (size_t)max_rows *
               (size_t)b->config->num_experts_per_tok;
    *count = (expert_count){.b = b, .picks = calloc(n, sizeof *count->picks)};
    if (!count->picks) stop("no memory for the router's picks");
    di_context_set_tap(context, keep_picks, count);
}

double experts_read(const expert_count *count) {
    const di_config *c = count->b->config;
    int64_t n = (int64_t)count->n_rows * c->num_experts_per_tok;
    double sum = 0;
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        bool seen[65536] = {false};
        for (int64_t i = 0; i < n; i++) {
            int32_t expert = count->picks[layer * n + i];
            if (expert < 0 || expert >= c->n_routed_experts || expert >= 65536)
                stop("the router picked an expert that is not there");
            sum += !seen[expert];
            seen[expert] = true;
        }
    }
    return sum;
}

void experts_unwatch(expert_count *count, di_context *context) {
    di_context_set_tap(context, NULL, NULL);
    free(count->picks);
    count->picks = NULL;
}
