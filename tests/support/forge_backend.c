#include "support/forge_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
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
    forge.clock += forge.step_s + forge.row_s * (args->n_blocks + args->n_drafts);
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

static void forge_markov(di_stream *s, const di_markov_args *args) {
    inner_ops->markov(s, args);
    if (markov_call == 0) {
        forge.clock += forge.draft_s * args->n;
        forge.passes++;
    }
    float *confidence = at(args->confidence);
    for (int32_t i = 0; i < args->n && forge.sets_confidence; i++) {
        confidence[i] = forge.confidence(markov_call);
    }
    markov_call++;
}

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
    ops = *inner_ops;
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
