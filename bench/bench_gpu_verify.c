/* bench_gpu: steps that verify drafts, and the passes that make them.
 *
 * All n sequences verify k drafts each, so a step has n (1 + k) rows. The plain step, k = 0, is one
 * of the same context. Every step is enqueued while the device is kept busy and then timed by
 * stamps, since what comes out of it decides how the next one begins.
 */
#include <stdio.h>

#include "bench_gpu.h"

enum { MOST_SLOTS = 64, MOST_DRAFTS = 15, MOST_ROWS = MOST_SLOTS * (MOST_DRAFTS + 1) };

typedef struct verify {
    bench *b;
    crowd c;
    int32_t n, k;
    double begin, middle, end;
    int32_t rows[MOST_SLOTS], tokens[MOST_ROWS];
    float logprobs[MOST_ROWS];
    int64_t came_out, n_steps;
} verify;

static int32_t most_drafts(const bench *b) {
    return b->config->dspark_block_size < MOST_DRAFTS ? b->config->dspark_block_size : MOST_DRAFTS;
}

int32_t verify_slots(const bench *b) {
    int32_t most = 1;
    for (int32_t i = 0; i < b->n_sizes; i++)
        if (b->sizes[i] <= MOST_SLOTS && b->sizes[i] > most) most = b->sizes[i];
    return most;
}

/* Few drafts of random weights stand, but all may. */
int64_t verify_room(const bench *b) {
    int64_t tokens = 0;
    for (int32_t k = 0; k <= most_drafts(b); k++) tokens += 1 + k;
    return b->n_sizes * (WARM_STEPS + (int64_t)b->repeats) * tokens;
}

static void settle(verify *v) {
    int32_t at = 0;
    for (int32_t i = 0; i < v->n; i++) {
        int32_t rows = v->rows[i], kept = 0;
        while (kept < rows && v->tokens[at + kept] != -1) kept++;
        if (kept == 0 || v->tokens[at + kept - 1] < 0) stop("logits are not finite");
        di_context_settle(v->c.context, i, rows, kept);
        v->came_out += kept;
        at += rows;
    }
    v->n_steps++;
}

static void enqueue(verify *v) {
    bench *b = v->b;
    di_context *context = v->c.context;
    di_decode blocks[MOST_SLOTS];
    di_sample_params params[MOST_SLOTS];
    float temperatures[DI_LAWS * DI_OPS_MAX_BLOCK];
    int32_t slots[MOST_SLOTS];
    for (int32_t i = 0; i < DI_LAWS * DI_OPS_MAX_BLOCK; i++) temperatures[i] = 1;
    for (int32_t i = 0; i < v->n; i++) {
        slots[i] = i;
        blocks[i] = (di_decode){.slot = i, .most = v->k};
        params[i] = crowd_params(b, i);
    }
    const di_draft_step draft = {.slots = slots, .n = v->n, .params = params};
    const di_step step = {.blocks = blocks,
                          .n_blocks = v->n,
                          .n_drafts = v->n * v->k,
                          .temperatures = v->k > 0 ? temperatures : NULL,
                          .params = params};
    stall(b);
    di_context_stamp(context, &v->begin);
    if (v->k > 0) must(b, di_draft(context, &draft, &b->error));
    di_context_stamp(context, &v->middle);
    must(b, di_forward(context, &step, &b->error));
    di_context_stamp(context, &v->end);
    di_context_fetch(context, &(di_fetch){v->rows, v->tokens, v->logprobs, NULL});
}

/* Of the step, and of the drafts before it. */
static void measure(verify *v, quartiles *steps, quartiles *drafts) {
    double step_s[MAX_REPEATS], draft_s[MAX_REPEATS];
    for (int32_t i = -WARM_STEPS; i < v->b->repeats; i++) {
        enqueue(v);
        must(v->b, di_context_wait(v->c.context, &v->b->error));
        settle(v);
        if (i < 0) continue;
        draft_s[i] = v->middle - v->begin;
        step_s[i] = v->end - v->middle;
    }
    *steps = quartiles_of(step_s, v->b->repeats);
    *drafts = quartiles_of(draft_s, v->b->repeats);
}

static void measure_size(verify *v) {
    quartiles plain = {0}, step, draft;
    for (v->k = 0; v->k <= most_drafts(v->b); v->k++) {
        v->came_out = v->n_steps = 0;
        measure(v, &step, &draft);
        if (v->k == 0) plain = step;
        printf("  %4d x %d  %9.3f (%.3f .. %.3f) %8.3f", (int)v->n, (int)(v->k + 1),
               step.median * 1e3, step.low * 1e3, step.high * 1e3, step.median / plain.median);
        if (v->k > 0)
            printf(" %9.3f (%.3f .. %.3f) %8.3f", draft.median * 1e3, draft.low * 1e3,
                   draft.high * 1e3, (draft.median + step.median) / plain.median);
        printf("%s\n", v->k == 0 ? "  plain" : "");
        fflush(stdout);
    }
}

void section_verify(bench *b) {
    static verify v;
    if (b->config->num_nextn_predict_layers == 0) {
        printf("\nverify: left out, there are no draft layers\n");
        return;
    }
    v.b = b;
    printf("\nverify\n");
    crowd_open(b, &v.c, verify_slots(b), verify_room(b), true);
    printf("  sequences x rows, step ms (quartiles), to the plain step, draft pass ms (quartiles), "
           "tokens a sequence that pay for both\n");
    for (int32_t i = 0; i < b->n_sizes; i++) {
        v.n = b->sizes[i];
        if (v.n <= MOST_SLOTS) measure_size(&v);
    }
    crowd_close(&v.c);
}
