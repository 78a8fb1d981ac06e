/* Layers whose routed experts lie in host memory and are computed there, by a second backend, while
 * the rest of the layer stays where the others are.
 *
 * What the router chose and what the experts read goes to memory that both sides see; the stream
 * calls the host, which computes the experts and adds them up with the shared one; one row a token
 * comes back. All of it is enqueued in the one stream, so that a step is still a queue of work and
 * nobody waits for it here. A call's arguments stand in a ring, since the stream comes to them later.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "kernels/formats.h"
#include "model/network.h"

enum { CALLS = 256 }; /* under way: two steps of the release have 80 */

typedef struct host_call {
    di_context *context;
    int32_t layer, n_rows;
} host_call;

/* Offsets in shared memory. A of the host, but for `back`, which is of the device. */
typedef struct crossing_layout {
    uint64_t pos, picks, weights, u, shared; /* to the host */
    uint64_t rows, y;                        /* the host's alone */
    uint64_t back;                           /* from the host; y itself where A is the same */
    uint64_t size;
} crossing_layout;

struct di_crossing {
    crossing_layout at;
    di_ptr memory; /* as the stream sees it */
    uint8_t *host; /* as the host does */
    uint64_t given;
    _Atomic uint64_t done; /* calls that are over; written by whoever runs them */
    host_call calls[CALLS];
};

/* Activations cross as they are, or as float32 of bf16 and back. */
di_status di_host_check(const di_backend *device, const di_backend *host, di_error *error) {
    bool same = device->a_bytes == host->a_bytes, widens = device->a_bytes == 2;
    bool fits = same || (widens && host->a_bytes == 4);
    if (!host->device && host->numerics == device->numerics && host->f_bytes == device->f_bytes &&
        fits)
        return DI_OK;
    return di_fail(error, DI_ERR_UNSUPPORTED,
                   "the backend %s cannot compute experts for %s: other types or numerics",
                   host->name, device->name);
}

static crossing_layout lay_out(const di_config *c, const di_backend *device, const di_backend *host,
                               const di_context_options *o) {
    uint64_t rows = (uint64_t)o->max_rows, width = rows * (uint64_t)c->hidden_size;
    uint64_t picks = rows * (uint64_t)c->num_experts_per_tok;
    bool same = device->a_bytes == host->a_bytes;
    const uint64_t sizes[] = {rows * 4,
                              picks * 4,
                              picks * host->f_bytes,
                              width * host->a_bytes,
                              width * host->a_bytes,
                              width * (uint64_t)c->num_experts_per_tok * host->a_bytes,
                              width * host->a_bytes,
                              same ? 0 : width * device->a_bytes};
    crossing_layout l;
    uint64_t *const places[] = {&l.pos,    &l.picks, &l.weights, &l.u,
                                &l.shared, &l.rows,  &l.y,       &l.back};
    l.size = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *places[i] = l.size;
        l.size += (sizes[i] + 63) / 64 * 64;
    }
    if (same) l.back = l.y;
    return l;
}

/* Experts and their sum are all that the host computes: no workspace for long contexts. */
static di_limits limits_of(const di_config *c, const di_context_options *o) {
    int32_t inner = c->moe_intermediate_size;
    return (di_limits){.max_rows = o->max_rows,
                       .width = c->hidden_size,
                       .hc = 1,
                       .n_experts = c->n_routed_experts,
                       .top_k = c->num_experts_per_tok,
                       .inner = inner,
                       .max_k = inner > c->hidden_size ? inner : c->hidden_size};
}

uint64_t di_context_plan_host(const di_config *config, const di_backend *device,
                              const di_backend *host, const di_context_options *options) {
    const di_limits limits = limits_of(config, options);
    return lay_out(config, device, host, options).size + host->workspace_bytes(host, &limits);
}

di_status di_crossing_create(di_context *context, di_error *error) {
    di_backend *host = context->model->host, *device = context->backend;
    if (!host) return DI_OK;
    di_crossing *x = calloc(1, sizeof *x);
    if (!x) return di_fail(error, DI_ERR_MEMORY, "out of memory: experts of the host");
    context->crossing = x;
    x->at = lay_out(&context->model->config, device, host, &context->options);
    const di_limits limits = limits_of(&context->model->config, &context->options);
    /* Calls of the model's other contexts may be under way in the workspace that grows here. */
    DI_TRY(di_backend_sync(device, error));
    DI_TRY(host->prepare(host, &limits, error));
    void *memory;
    DI_TRY(device->alloc_shared(device, x->at.size, "what crosses for the host's experts", &memory,
                                &x->memory, error));
    x->host = memory;
    return DI_OK;
}

void di_crossing_destroy(di_context *context) {
    if (!context->crossing) return;
    context->backend->free(context->backend, context->crossing->memory);
    free(context->crossing);
}

/* What the host computed is rounded to bf16 already: nothing is lost. */
static void narrow(const float *from, uint16_t *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = di_bf16_encode(from[i]);
}

/* On a thread of the device's stream, with the host's backend to itself: the stream waits. */
static void run_call(void *user) {
    const host_call *call = user;
    const di_model *model = call->context->model;
    const di_config *c = &model->config;
    const di_moe_weights *w = &model->blocks[call->layer].moe;
    di_crossing *x = call->context->crossing;
    di_backend *host = model->host;
    const di_ptr base = {(uint64_t)(uintptr_t)x->host};
    di_ptr rows = di_ptr_at(base, x->at.rows), y = di_ptr_at(base, x->at.y);
    host->ops->experts(host->stream, &(di_experts_args){.n_rows = call->n_rows,
                                                        .top_k = w->top_k,
                                                        .n_experts = w->n_experts,
                                                        .limit = c->swiglu_limit,
                                                        .pos = di_ptr_at(base, x->at.pos),
                                                        .u = di_ptr_at(base, x->at.u),
                                                        .picks = di_ptr_at(base, x->at.picks),
                                                        .weights = di_ptr_at(base, x->at.weights),
                                                        .dtype = w->expert_dtype,
                                                        .width = c->hidden_size,
                                                        .inner = c->moe_intermediate_size,
                                                        .experts = w->experts,
                                                        .rows = rows});
    host->ops->combine(host->stream, &(di_combine_args){call->n_rows, w->top_k, c->hidden_size,
                                                        rows, di_ptr_at(base, x->at.shared), y});
    if (x->at.back != x->at.y) {
        narrow((const float *)(const void *)(x->host + x->at.y), (void *)(x->host + x->at.back),
               (int64_t)call->n_rows * c->hidden_size);
    }
    /* The call's place may be written to again by whoever sees this. */
    atomic_fetch_add_explicit(&x->done, 1, memory_order_release);
}

/* n values of A from the device to the host's side. */
static void put(const di_pass *p, uint64_t place, di_ptr from, uint64_t n) {
    di_backend *device = p->context->backend;
    di_ptr to = di_ptr_at(p->context->crossing->memory, place);
    if (device->a_bytes == p->context->model->host->a_bytes) {
        device->copy(p->stream, to, from, n * device->a_bytes);
    } else {
        p->ops->to_f32(p->stream, &(di_to_f32_args){(int64_t)n, false, from, to});
    }
}

/* Where none of the ring is free, all that is under way is waited for: a prompt in a hundred steps
 * at once does not happen. What has failed is told by whoever reads the step. */
static host_call *next_call(const di_pass *p) {
    di_crossing *x = p->context->crossing;
    di_backend *device = p->context->backend;
    di_error ignored;
    if (x->given - atomic_load_explicit(&x->done, memory_order_acquire) == CALLS)
        (void)di_backend_sync(device, &ignored);
    return &x->calls[x->given++ % CALLS];
}

void di_pass_host_experts(const di_pass *p, int32_t layer) {
    di_crossing *x = p->context->crossing;
    di_backend *device = p->context->backend;
    int32_t n = p->batch.n_rows;
    uint64_t rows = (uint64_t)n, width = rows * (uint64_t)p->config->hidden_size;
    uint64_t picks = rows * (uint64_t)p->config->num_experts_per_tok;
    if (n == 0) return;
    device->copy(p->stream, di_ptr_at(x->memory, x->at.pos), p->at->pos, rows * 4);
    device->copy(p->stream, di_ptr_at(x->memory, x->at.picks), p->at->router_picks, picks * 4);
    device->copy(p->stream, di_ptr_at(x->memory, x->at.weights), p->at->router_weights,
                 picks * device->f_bytes);
    put(p, x->at.u, p->at->u, width);
    put(p, x->at.shared, p->at->shared, width);
    host_call *call = next_call(p);
    *call = (host_call){p->context, layer, n};
    device->call(p->stream, run_call, call);
    device->copy(p->stream, p->at->y, di_ptr_at(x->memory, x->at.back), width * device->a_bytes);
}
