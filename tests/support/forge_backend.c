#include "support/forge_backend.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/queue.h"

forge_control forge;

/* Of the backend that was opened last; its stream's thread alone uses what follows. */
static const di_ops *inner_ops;
static di_batch last_batch;       /* of the last step: where lengths are */
static di_step_end_args last_end; /* and the token history */
static int32_t markov_call;       /* within a draft pass */
static uint32_t dice;

static void *at(di_ptr p) { return (void *)(uintptr_t)p.address; }

/* ---- Whose drafts ---- */

enum { LOOK_BACK = 6 };

/* What the slot holds is the beginning of the text, as far as the history goes. */
static bool is_text_of(const forge_text *text, int32_t slot, int32_t length, int32_t next) {
    const int32_t *history = (const int32_t *)at(last_end.history) + slot * last_end.history_slots;
    if (length >= text->n || text->ids[length] != next) return false;
    for (int32_t k = 1; k <= LOOK_BACK && k <= length; k++) {
        if (history[(length - k) % last_end.history_slots] != text->ids[length - k]) return false;
    }
    return true;
}

static bool roll_wrong(void) {
    dice = dice * 1664525u + 1013904223u;
    return forge.wrong_in != 0 && (dice >> 16) % forge.wrong_in == 0;
}

static void forge_drafts(const di_allot_args *args, const di_block *block) {
    int32_t slot = block->slot, length = ((const int32_t *)at(last_batch.length))[slot];
    int32_t next = ((const int32_t *)at(args->next_token))[slot];
    int32_t *drafts = (int32_t *)at(args->drafts) + block->column;
    for (int32_t i = 0; i < forge.n_texts; i++) {
        const forge_text *text = &forge.texts[i];
        if (!is_text_of(text, slot, length, next)) continue;
        for (int32_t k = 0; k < block->most && length + 1 + k < text->n; k++) {
            int32_t id = text->ids[length + 1 + k];
            drafts[k * args->n_columns] = roll_wrong() ? id ^ 1 : id; /* vocabularies are even */
            forge.n_forged++;
        }
        return;
    }
}

/* ---- Operations ---- */

static void forge_allot(di_stream *s, const di_allot_args *args) {
    const di_block *blocks = at(args->blocks);
    if (args->n_drafts > 0 && last_batch.n_slots > 0 && last_end.history_slots > 0) {
        for (int32_t b = 0; b < args->n_blocks; b++) {
            if (blocks[b].most > 0) forge_drafts(args, &blocks[b]);
        }
    }
    int32_t n_rows = args->n_blocks + args->n_drafts;
    forge.clock +=
        forge.step_seconds ? forge.step_seconds(n_rows) : forge.step_s + forge.row_s * n_rows;
    inner_ops->allot(s, args);
}

static void forge_step_begin(di_stream *s, const di_step_begin_args *args) {
    last_batch = args->batch;
    markov_call = 0;
    inner_ops->step_begin(s, args);
}

static void forge_step_end(di_stream *s, const di_step_end_args *args) {
    last_end = *args;
    inner_ops->step_end(s, args);
}

static void toy_logits(const double rows[FORGE_VOCAB][FORGE_VOCAB], int32_t before, float *out,
                       int32_t vocab) {
    int32_t row = before >= 0 && before < forge.toy->vocab ? before : 0;
    for (int32_t id = 0; id < vocab; id++) {
        out[id] = id < forge.toy->vocab ? (float)rows[row][id] : -1e30f;
    }
}

static void forge_head(di_stream *s, const di_head_args *args) {
    if (!forge.toy) {
        inner_ops->head(s, args);
        return;
    }
    const int32_t *which = at(args->which), *token = at(last_batch.token);
    int32_t vocab = args->head.n;
    for (int32_t i = 0; i < args->n_out; i++) {
        toy_logits(forge.toy->p, token[which[i]], (float *)at(args->logits) + (int64_t)i * vocab,
                   vocab);
    }
}

static void forge_markov(di_stream *s, const di_markov_args *args) {
    if (!forge.toy) inner_ops->markov(s, args);
    if (markov_call == 0) {
        forge.clock += forge.draft_s * args->n;
        forge.passes++;
    }
    float *confidence = at(args->confidence), *logits = at(args->logits);
    for (int32_t i = 0; i < args->n; i++) {
        if (forge.confidence) confidence[i] = forge.confidence(markov_call);
        if (!forge.toy) continue;
        int32_t before = ((const int32_t *)at(args->prev))[i * args->prev_stride];
        int32_t row = before >= 0 && before < forge.toy->vocab ? before : 0;
        double c = forge.toy->confidence[markov_call][row];
        confidence[i] = (float)log(c / (1 - c));
        toy_logits(forge.toy->q, before, logits + (int64_t)i * args->vocab, args->vocab);
    }
    markov_call++;
}

/* Every draft becomes the token that its row must have, by the law that compares. */
static void accept_all(di_stream *s, const di_accept_args *args) {
    di_block *blocks = at(args->blocks);
    int32_t *token = at(args->sample.token);
    const int32_t *which = at(args->sample.which), *row_token = at(args->row_token);
    int32_t begin = 0;
    for (int32_t b = 0; b < args->n_blocks; b++) {
        int32_t n = ((const int32_t *)at(args->n_rows))[b];
        blocks[b].reject = 0;
        for (int32_t i = begin; i + 1 < begin + n; i++) token[i] = row_token[which[i + 1]];
        begin += n;
    }
    inner_ops->accept(s, args);
}

static void no_subtraction(di_stream *s, const di_accept_args *args) {
    enum { MOST = 1024 };
    int32_t plain[MOST], *token = at(args->sample.token), begin = 0;
    const di_block *blocks = at(args->blocks);
    if (args->sample.n_out > MOST) abort();
    memcpy(plain, token, (size_t)args->sample.n_out * sizeof *plain);
    inner_ops->accept(s, args);
    for (int32_t b = 0; b < args->n_blocks; b++) {
        int32_t n = ((const int32_t *)at(args->n_rows))[b], slot = blocks[b].slot;
        int32_t kept = ((const int32_t *)at(args->n_valid))[slot];
        if (kept < n) { /* the last one stands in a draft's place */
            token[begin + kept - 1] = plain[begin + kept - 1];
            ((int32_t *)at(args->sample.next_token))[slot] = plain[begin + kept - 1];
        }
        begin += n;
    }
}

static void forge_accept(di_stream *s, const di_accept_args *args) {
    if (forge.plant == FORGE_ACCEPT_ALL)
        accept_all(s, args);
    else if (forge.plant == FORGE_NO_SUBTRACTION)
        no_subtraction(s, args);
    else
        inner_ops->accept(s, args);
}

/* What a toy leaves out. */
#define FORGE_PASS(name)                                                                           \
    static void pass_##name(di_stream *s, const di_##name##_args *args) {                          \
        if (!forge.toy) inner_ops->name(s, args);                                                  \
    }
DI_EACH_OP(FORGE_PASS)
#undef FORGE_PASS

static void (*inner_stamp)(di_stream *s, double *host);

static void forge_stamp(di_stream *s, double *host) {
    if (forge.sets_clock)
        *host = forge.clock;
    else
        inner_stamp(s, host);
}

/* ---- Life ---- */

/* The inner backend itself, with some of its operations replaced. */
static void wrap(di_backend *backend) {
    static di_ops ops;
    forge = (forge_control){0};
    last_batch = (di_batch){0};
    last_end = (di_step_end_args){0};
    inner_ops = backend->ops;
    inner_stamp = backend->stamp;
#define FORGE_ENTRY(name) .name = pass_##name,
    ops = (di_ops){DI_EACH_OP(FORGE_ENTRY)};
#undef FORGE_ENTRY
    ops.rewind = inner_ops->rewind;
    ops.sample = inner_ops->sample;
    ops.tally = inner_ops->tally;
    ops.to_f32 = inner_ops->to_f32;
    ops.head = forge_head;
    ops.accept = forge_accept;
    ops.allot = forge_allot;
    ops.step_begin = forge_step_begin;
    ops.step_end = forge_step_end;
    ops.markov = forge_markov;
    backend->ops = &ops;
    backend->stamp = forge_stamp;
}

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

void forge_open_model(test_model *m, const char *directory, di_numerics numerics, int32_t n_threads,
                      bool queue) {
    char path[1024];
    di_error error;
    const di_cpu_options cpu = {n_threads, -1, ~0u};
    *m = (test_model){0};
    must(di_backend_create_cpu(numerics, &cpu, &m->backend, &error), &error);
    wrap(m->backend);
    if (queue) must(di_backend_create_queue(m->backend, &m->backend, &error), &error);
    snprintf(path, sizeof path, "%s/%s", DI_SOURCE_DIR, directory);
    const di_model_options load = di_model_options_defaults();
    must(di_model_open(path, m->backend, &load, &m->model, &error), &error);
    m->config = di_model_config(m->model);
}
