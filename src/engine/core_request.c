/* The life of requests: submitted, waiting by rank, ended.
 *
 * Callbacks come only from core__end and from delivery. While one may be running (core->telling),
 * cancelling marks a request and core__sweep ends it, so nobody's loop loses what it stands on.
 */
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "engine/core_internal.h"
#include "kernels/reject.h"

uint64_t di_core_seed(uint64_t seed, int32_t choice) {
    if (choice == 0) return seed;
    uint32_t words[4];
    di_philox(seed, (uint64_t)choice, UINT64_C(0x63686F696365), words); /* "choice" */
    return (uint64_t)words[1] << 32 | words[0];
}

/* ---- The waiting list ---- */

bool core__goes_before(const core__sequence *a, const core__sequence *b) {
    const core__request *ra = a->request, *rb = b->request;
    if (ra->given.priority != rb->given.priority) return ra->given.priority > rb->given.priority;
    if (ra->id != rb->id) return ra->id < rb->id;
    return a->choice < b->choice;
}

/* From the end: new arrivals belong there. */
void core__waiting_insert(di_core *core, core__sequence *s) {
    core__list *list = &core->waiting;
    core__sequence *before = list->tail;
    while (before && core__goes_before(s, before)) before = before->before;
    s->before = before;
    s->after = before ? before->after : list->head;
    if (s->before)
        s->before->after = s;
    else
        list->head = s;
    if (s->after)
        s->after->before = s;
    else
        list->tail = s;
    s->state = CORE__WAITING;
    core->n_waiting++;
}

void core__waiting_remove(di_core *core, core__sequence *s) {
    core__list *list = &core->waiting;
    if (s->before)
        s->before->after = s->after;
    else
        list->head = s->after;
    if (s->after)
        s->after->before = s->before;
    else
        list->tail = s->before;
    s->before = s->after = NULL;
    core->n_waiting--;
}

void core__name_pages(core__sequence *s, int32_t n_pages) {
    if (n_pages <= s->n_names) return;
    const di_kv_name *parent = s->n_names ? &s->names[s->n_names - 1] : &s->request->root;
    di_kv_name_chain(parent, s->ids + (int64_t)s->n_names * DI_PAGE_TOKENS, NULL,
                     n_pages - s->n_names, s->names + s->n_names);
    s->n_names = n_pages;
}

/* ---- Submission ---- */

static void append(di_core *core, core__request *r) {
    r->before = core->last;
    if (core->last)
        core->last->after = r;
    else
        core->first = r;
    core->last = r;
}

static void unlink_request(di_core *core, core__request *r) {
    if (r->before)
        r->before->after = r->after;
    else
        core->first = r->after;
    if (r->after)
        r->after->before = r->before;
    else
        core->last = r->before;
    r->before = r->after = NULL;
}

/* How drafts of it are accepted. Requests that reject see each other's drafts, for these compete for
 * the rows of a step: they may not share noise (reject.h). Those with masks never do: drafts are drawn
 * without the masks, so not from what their rows are compared with. */
static void choose_law(const di_core *core, core__sequence *s) {
    const core__request *r = s->request;
    s->law = r->given.sampling.temperature == 0.0f ? DI_SPEC_GREEDY : DI_SPEC_COUPLED;
    bool rejects = core->options.reject && core->spec.block > 0 && !r->given.mask;
    if (s->law == DI_SPEC_GREEDY || !rejects) return;
    s->law = DI_SPEC_REJECT;
    s->seed = di_noise_seed(s->seed, DI_NOISE_REQUEST, (int64_t)r->id);
}

static bool fill_sequence(const di_core *core, core__request *r, core__sequence *s,
                          const int32_t *ids, int32_t choice) {
    int64_t max_ids = r->n_known + r->given.max_tokens;
    size_t block = (size_t)core->spec.block, n_names = (size_t)(max_ids / DI_PAGE_TOKENS);
    *s = (core__sequence){.request = r,
                          .choice = choice,
                          .slot = -1,
                          .seed = di_core_seed(r->given.sampling.seed, choice),
                          .n_ids = r->n_known,
                          .n_scored = r->n_known,
                          .max_ids = max_ids};
    if (r->given.n_given > 0) s->n_scored = r->n_prompt;
    if (r->given.prompt_logprobs) s->n_scored = 0;
    s->ids = di_arena_alloc(&r->arena, (size_t)max_ids * sizeof *s->ids);
    s->names = di_arena_alloc(&r->arena, n_names * sizeof *s->names);
    s->survival = di_arena_alloc(&r->arena, block * sizeof *s->survival);
    if (!s->ids || !s->names || !s->survival) return false;
    memcpy(s->ids, ids, (size_t)r->n_known * sizeof *ids);
    choose_law(core, s);
    return true;
}

static bool fill(di_core *core, core__request *r, const di_core_request *given) {
    int64_t room = core->max_tokens_held - given->n_ids;
    r->given = *given;
    r->given.ids = NULL;
    r->given.salt = NULL;
    r->given.max_tokens = given->max_tokens < room ? given->max_tokens : room;
    r->id = core->last_id + 1;
    r->n_known = given->n_ids;
    r->n_prompt = given->n_ids - given->n_given;
    r->n_open = given->n;
    r->n_cached = -1;
    r->forked = given->n == 1;
    r->cut = core__cut_of(core, r->n_prompt, given->prompt_logprobs);
    r->root = di_kv_name_root(&(di_kv_root){core->fingerprint, core->numerics, core->kernels,
                                            given->salt, given->salt_bytes});
    di_logit_bias *biases = di_arena_alloc(&r->arena, (size_t)given->n_biases * sizeof *biases);
    r->sequences = di_arena_calloc(&r->arena, (size_t)given->n, sizeof *r->sequences);
    if (!biases || !r->sequences) return false;
    if (given->n_biases) memcpy(biases, given->biases, (size_t)given->n_biases * sizeof *biases);
    r->given.biases = biases;
    for (int32_t i = 0; i < given->n; i++) {
        if (!fill_sequence(core, r, &r->sequences[i], given->ids, i)) return false;
    }
    return true;
}

di_status di_core_submit(di_core *core, const di_core_request *request, uint64_t *id,
                         di_error *error) {
    DI_TRY(core__check_request(core, request, error));
    core__request *r = calloc(1, sizeof *r);
    if (!r || !fill(core, r, request)) {
        if (r) core__request_free(r);
        return di_fail(error, DI_ERR_MEMORY, "out of memory: a request of %lld tokens",
                       (long long)request->n_ids);
    }
    *id = core->last_id = r->id;
    append(core, r);
    core->n_open += r->given.n;
    core__name_pages(&r->sequences[0], (int32_t)((r->n_known - 1) / DI_PAGE_TOKENS));
    core__waiting_insert(core, &r->sequences[0]); /* the other choices are held */
    return DI_OK;
}

void core__request_free(core__request *r) {
    di_arena_free(&r->arena);
    free(r);
}

/* ---- The end ---- */

/* The first choice ended while it computed the prompt: the others do that for themselves. */
static void release_held(di_core *core, core__request *r) {
    r->forked = true;
    for (int32_t i = 1; i < r->given.n; i++) {
        core__sequence *s = &r->sequences[i];
        if (s->state == CORE__HELD) core__waiting_insert(core, s);
    }
}

void core__end(di_core *core, core__sequence *s, di_finish finish, const char *message) {
    core__request *r = s->request;
    if (s->state == CORE__DONE) return;
    if (s->state == CORE__RUNNING) core__give_back(core, s);
    if (s->state == CORE__WAITING) core__waiting_remove(core, s);
    s->state = CORE__DONE;
    if (!r->forked) release_held(core, r);
    core->n_open--;
    if (--r->n_open == 0) {
        if (r->cancelled) core->n_cancelled--;
        unlink_request(core, r);
        r->after = core->ended;
        core->ended = r;
    }
    if (!r->given.on_end) return;
    bool telling = core->telling;
    core->telling = true;
    r->given.on_end(r->given.user, &(di_core_result){.request = r->id,
                                                     .choice = s->choice,
                                                     .finish = finish,
                                                     .n_prompt = r->n_prompt,
                                                     .n_cached = r->n_cached > 0 ? r->n_cached : 0,
                                                     .n_found = r->n_found,
                                                     .n_answer = s->n_ids - r->n_prompt,
                                                     .n_accepted = s->n_accepted,
                                                     .message = message});
    core->telling = telling;
}

void core__end_request(di_core *core, core__request *r, di_finish finish, const char *message) {
    for (int32_t i = 0; i < r->given.n; i++) core__end(core, &r->sequences[i], finish, message);
}

static core__request *find_cancelled(const di_core *core) {
    core__request *r = core->first;
    while (r && !r->cancelled) r = r->after;
    return r;
}

void core__sweep(di_core *core) {
    while (core->n_cancelled > 0) {
        core__end_request(core, find_cancelled(core), DI_FINISH_CANCELLED, NULL);
    }
    for (core__request **at = &core->ended, *r; (r = *at) != NULL;) {
        if (r->n_flying > 0) { /* a step in flight still names it */
            at = &r->after;
            continue;
        }
        *at = r->after;
        core__request_free(r);
    }
}

bool di_core_cancel(di_core *core, uint64_t id) {
    core__request *r = core->first;
    while (r && r->id != id) r = r->after;
    if (!r || r->cancelled) return false;
    r->cancelled = true;
    core->n_cancelled++;
    if (!core->telling) core__sweep(core);
    return true;
}
