/* Where everything of a context lies: one allocation, regions of 64-byte alignment in a fixed
 * order. The same walk counts (plan) and places (create), so the two cannot disagree.
 */
#include <assert.h>
#include <string.h>

#include "model/network.h"

enum { ALIGN = 64, HISTORY_ROUND = 16 };

typedef struct planner {
    uint64_t at;
    di_context_buffers *out; /* NULL when only counting */
} planner;

/* What does not fit 64 bits stays at UINT64_MAX, which nobody has (di_context_plan). */
static di_ptr take(planner *p, uint64_t n, uint64_t element_bytes) {
    di_ptr place = {p->at};
    bool fits = element_bytes == 0 || n <= (UINT64_MAX - p->at - ALIGN) / element_bytes;
    p->at = fits ? p->at + (n * element_bytes + ALIGN - 1) / ALIGN * ALIGN : UINT64_MAX;
    return place;
}

static int32_t round_up(int32_t n, int32_t unit) { return (n + unit - 1) / unit * unit; }

/* Slots of a compressor ring: a rewind of `rollback` may reopen a group that began max_ratio - 1
 * rows before it. */
static int32_t compress_slots(const di_config *config) {
    int32_t ratio = 1;
    for (int32_t i = 0; i < config->num_hidden_layers; i++) {
        if (config->roles[i].ratio > ratio) ratio = config->roles[i].ratio;
    }
    return round_up(di_config_rollback(config) + ratio - 1, HISTORY_ROUND);
}

static void lay_out_step(planner *p, const di_config *c, const di_context_options *o,
                         di_context_buffers *at) {
    uint64_t rows = (uint64_t)o->max_rows, slots = (uint64_t)o->n_slots,
             outs = (uint64_t)o->max_out;
    at->rows = take(p, rows, sizeof(di_row));
    at->length = take(p, slots, 4);
    at->n_valid = take(p, slots, 4);
    at->next_token = take(p, slots, 4);
    at->rewind = take(p, slots, 4);
    at->pos = take(p, rows, 4);
    at->first = take(p, rows, 4);
    at->token = take(p, rows, 4);
    at->which = take(p, outs, 4);
    at->params = take(p, outs, sizeof(di_sample_params));
    at->biases = take(p, DI_MAX_BIASES, sizeof(di_logit_bias));
    at->masks = take(p, DI_MAX_MASKS * (((uint64_t)c->vocab_size + 31) / 32), 4);
    at->sampled = take(p, outs, 4);
    at->logprob = take(p, outs, 4);
    at->sampled_slot = take(p, outs, 4);
    at->blocks = take(p, slots, sizeof(di_block));
    at->temperatures = take(p, DI_LAWS, (uint64_t)c->dspark_block_size * 4);
    at->block_rows = take(p, slots, 4);
    at->param_of = take(p, outs, 4);
    at->extra_at = take(p, outs, 4);
    at->n_extra = take(p, outs, 4);
}

static void lay_out_activations(planner *p, const di_config *c, const di_backend *backend,
                                const di_context_options *o, di_context_buffers *at) {
    uint64_t a = backend->a_bytes, f = backend->f_bytes, rows = (uint64_t)o->max_rows;
    uint64_t d = (uint64_t)c->hidden_size, hc = (uint64_t)c->hc_mult;
    uint64_t head = (uint64_t)c->head_dim, heads = (uint64_t)c->num_attention_heads;
    at->streams = take(p, rows * hc * d, a);
    at->pre = take(p, rows * hc, f);
    at->pre_attn = take(p, rows * hc, f);
    at->post = take(p, rows * hc, f);
    at->comb = take(p, rows * hc * hc, f);
    at->u = take(p, rows * d, a);
    at->y = take(p, rows * d, a);
    at->qr = take(p, rows * (uint64_t)c->q_lora_rank, a);
    at->q = take(p, rows * heads * head, a);
    at->o = take(p, rows * heads * head, a);
    at->kv_codes = take(p, rows * head, 1);
    at->kv_scales = take(p, rows * head / 32, 1);
    at->picks = take(p, rows * (uint64_t)c->index_topk, 4);
    at->candidates = take(p, rows * (uint64_t)c->candidate_topk_blocks, 4);
    uint64_t k = (uint64_t)c->num_experts_per_tok;
    at->router_picks = take(p, rows * k, 4);
    at->router_weights = take(p, rows * k, f);
    at->expert_rows = take(p, rows * k * d, a);
    at->shared = take(p, rows * d, a);
    uint64_t columns = 0;
    if (c->n_engram_layers > 0) {
        columns = (uint64_t)(c->engram_max_ngram_size - 1) * (uint64_t)c->engram_n_heads;
    }
    at->engram_rows = take(p, (uint64_t)c->n_engram_layers * rows * columns, 8);
    at->engram_values = take(p, rows * columns * (uint64_t)c->engram_head_dim, a);
    at->engram_kv = take(p, columns ? rows * (hc + 1) * d : 0, a);
    at->main_hidden = take(p, rows * (uint64_t)c->n_dspark_targets * d, a);
}

/* What only replay needs: floors of windows, and room for the rows above the cut. */
static void lay_out_replay(planner *p, const di_config *c, const di_backend *backend,
                           const di_context_options *o, di_context_buffers *at) {
    uint64_t rows = o->replay ? (uint64_t)o->max_rows : 0;
    uint64_t slots = o->replay ? (uint64_t)o->n_slots : 0, hc = (uint64_t)c->hc_mult;
    at->floor_lower = take(p, slots, 4);
    at->floor_upper = take(p, slots, 4);
    at->closed = take(p, slots, 4);
    at->upper_rows = take(p, rows, sizeof(di_row));
    at->upper_pos = take(p, rows, 4);
    at->upper_first = take(p, rows, 4);
    at->upper_token = take(p, rows, 4);
    at->upper_streams = take(p, rows * hc * (uint64_t)c->hidden_size, backend->a_bytes);
    at->upper_pre = take(p, rows * hc, backend->f_bytes);
}

static void lay_out_logits(planner *p, const di_config *c, const di_backend *backend,
                           const di_context_options *o, di_context_buffers *at) {
    uint64_t outs = (uint64_t)o->max_out, vocab = (uint64_t)c->vocab_size;
    at->normed = take(p, outs * (uint64_t)c->hidden_size, backend->a_bytes);
    at->logits = take(p, outs * vocab, backend->f_bytes);
    /* Logits leave the device as float32: a copy where F is wider. */
    at->export = take(p, backend->f_bytes == 4 ? 0 : outs * vocab, 4);
}

/* Offsets of the four parts of every KV source inside a page. */
static void lay_out_page(const di_config *c, struct di_page_part *parts) {
    uint64_t at = 0, d = (uint64_t)c->head_dim, di = (uint64_t)c->index_head_dim;
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        if (!c->roles[i].is_kv_source) continue;
        uint64_t entries = (uint64_t)(DI_PAGE_TOKENS / c->roles[i].ratio);
        parts[i].codes = (uint32_t)at;
        at += entries * d / 2;
        parts[i].scales = (uint32_t)at;
        at += entries * d / 16;
        parts[i].key_codes = (uint32_t)at;
        at += entries * di / 2;
        parts[i].key_scales = (uint32_t)at;
        at += entries * di / 32;
    }
    assert(at == (uint64_t)di_config_page_bytes(c));
}

static void lay_out_drafts(planner *p, const di_config *c, const di_backend *backend,
                           const di_context_options *o, di_context_buffers *at) {
    uint64_t outs = o->drafts ? (uint64_t)o->max_out : 0;
    uint64_t block = c->dspark_block_size > 0 ? (uint64_t)c->dspark_block_size : 1;
    at->drafts = take(p, outs, 4);
    at->draft_confidence = take(p, outs, backend->f_bytes);
    uint64_t kept = o->reject ? outs : outs / block;
    at->draft_logits = take(p, kept * (uint64_t)c->vocab_size, backend->f_bytes);
    at->draft_next = take(p, o->drafts ? (uint64_t)o->n_slots : 0, 4);
    at->draft_export = take(p, outs, 4);
}

uint64_t di_context_lay_out(const di_config *c, const di_backend *backend,
                            const di_context_options *o, di_context *context,
                            di_context_bytes *bytes) {
    di_context_buffers scratch, *at = context ? &context->at : &scratch;
    di_ptr compress_ring[DI_MAX_LAYERS] = {{0}};
    struct di_page_part parts[DI_MAX_LAYERS];
    memset(parts, 0, sizeof parts);
    uint64_t slots = (uint64_t)o->n_slots, layers = (uint64_t)c->num_hidden_layers;
    if (o->drafts) layers += (uint64_t)c->num_nextn_predict_layers;
    uint64_t ring = (uint64_t)di_config_ring_slots(c), head = (uint64_t)c->head_dim;
    int32_t pages = (int32_t)((o->max_context + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS);
    int32_t history = round_up(di_config_rollback(c) + c->engram_max_ngram_size, HISTORY_ROUND);
    planner p = {0, at};
    *bytes = (di_context_bytes){0};

    lay_out_step(&p, c, o, at);
    lay_out_activations(&p, c, backend, o, at);
    lay_out_replay(&p, c, backend, o, at);
    bytes->activations = p.at;
    lay_out_logits(&p, c, backend, o, at);
    lay_out_drafts(&p, c, backend, o, at);
    bytes->logits = p.at - bytes->activations;

    uint64_t begin = p.at;
    at->history = take(&p, slots * (uint64_t)history, 4);
    for (int32_t i = 0; i < c->num_hidden_layers; i++) {
        if (!c->roles[i].is_kv_source || c->roles[i].ratio == 1) continue;
        uint64_t values = slots * (uint64_t)compress_slots(c) * 2 * head;
        compress_ring[i] = take(&p, values, backend->f_bytes);
    }
    bytes->rings = p.at - begin;

    begin = p.at;
    at->window_codes = take(&p, slots * ring, layers * head);
    at->window_scales = take(&p, slots * ring, layers * (head / 32));
    bytes->windows = p.at - begin;

    begin = p.at;
    at->counts = take(&p, o->penalties ? slots * (uint64_t)c->vocab_size : 0, 4);
    bytes->counts = p.at - begin;

    begin = p.at;
    uint64_t page_bytes = (uint64_t)di_config_page_bytes(c);
    lay_out_page(c, parts);
    at->page_table = take(&p, slots * (uint64_t)pages, 4);
    uint64_t pool = o->n_pages ? (uint64_t)o->n_pages : slots * (uint64_t)pages;
    at->page_pool = take(&p, pool, page_bytes);
    bytes->pages = p.at - begin;

    if (context) {
        context->pages_per_slot = pages;
        context->page_bytes = page_bytes;
        context->history_slots = history;
        context->ring_slots = (int32_t)ring;
        context->compress_slots = compress_slots(c);
        memcpy(context->compress_ring, compress_ring, sizeof compress_ring);
        memcpy(context->page_part, parts, sizeof parts);
    }
    return p.at;
}
