#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_internal.h"
#include "grammar/vocabulary_internal.h"

di_grammar_options di_grammar_options_defaults(void) {
    return (di_grammar_options){.space = DI_GRAMMAR_SPACE_FREE};
}

static di_status find_markers(di_grammar *g, di_error *error) {
    for (int32_t k = 0; k < g->p.n_markers; k++) {
        g->marker_ids[k] = -1;
        if (!g->vocabulary) continue;
        g->marker_ids[k] = di_tokenizer_added_id(g->vocabulary->tokenizer, g->p.markers[k]);
        if (g->marker_ids[k] < 0) {
            return di_fail(error, DI_ERR_UNSUPPORTED, "the tokenizer has no token '%s'",
                           g->p.markers[k]);
        }
    }
    return DI_OK;
}

/* What would fail while it is being written is refused where that can be seen. */
static di_status look_ahead(states *s, di_error *error) {
    bool ok = states__can_be_read(s);
    bool memory = s->status == DI_ERR_MEMORY;
    s->status = DI_OK;
    if (memory) return di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    if (ok) return DI_OK;
    return di_fail(
        error, DI_ERR_LIMIT,
        "more than %d alternatives begin alike and differ in what they count or refer to: "
        "let their first members differ, or have the same bounds",
        READINGS_MAX);
}

static di_status create(const di_vocabulary *vocabulary, program *p, di_grammar **out,
                        di_error *error) {
    DI_TRY(program__finish(p, error));
    di_grammar *g = calloc(1, sizeof *g);
    if (!g) return di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    atomic_init(&g->n_holders, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->vocabulary = vocabulary;
    g->p = *p;
    program__init(p); /* the grammar owns it now */
    for (int32_t i = 0; i < g->p.n_rules; i++) g->p.rules[i].name = NULL; /* the compiler's */
    di_status status = find_markers(g, error);
    if (status == DI_OK && !(states__init(&g->s, &g->p) && mask__init(&g->masks, vocabulary))) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory while compiling a grammar");
    }
    if (status == DI_OK) status = look_ahead(&g->s, error);
    if (status != DI_OK) {
        di_grammar_release(g);
        return status;
    }
    *out = g;
    return DI_OK;
}

di_status grammar__finish(const di_vocabulary *vocabulary, compiler *c, di_grammar **out) {
    di_status status = c->status;
    *out = NULL;
    if (status == DI_OK) status = create(vocabulary, &c->p, out, c->error);
    if (status == DI_OK) (*out)->n_steps = COMPILE_STEPS - c->steps_left;
    compiler__deinit(c);
    return status;
}

di_grammar *di_grammar_acquire(di_grammar *g) {
    /* Whoever acquires holds one already or got the pointer from someone who does. */
    atomic_fetch_add_explicit(&g->n_holders, 1, memory_order_relaxed);
    return g;
}

void di_grammar_release(di_grammar *g) {
    /* acq_rel: what other holders did happens before the last one frees. */
    if (!g || atomic_fetch_sub_explicit(&g->n_holders, 1, memory_order_acq_rel) != 1) return;
    mask__deinit(&g->masks);
    states__deinit(&g->s);
    program__deinit(&g->p);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

size_t di_grammar_memory(di_grammar *g) {
    pthread_mutex_lock(&g->lock);
    size_t size = sizeof *g + (size_t)g->p.node_capacity * sizeof(program_node) +
                  (size_t)g->p.rule_capacity * sizeof(program_rule) + g->s.bytes +
                  mask__memory(&g->masks);
    pthread_mutex_unlock(&g->lock);
    return size;
}
