/* The draft layers' windows are filled when somebody will read them (observe.c). Two contexts do the
 * same; one of them catches up behind every call, so that nothing is ever put aside for long. Tokens,
 * drafts, confidences and all that a sequence's future hangs on must be the same bits.
 *
 * The campaign's calls are random. DI_SEED=n in the environment plays run n of every variation alone.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/network.h"
#include "support/golden.h"
#include "support/live_state.h"
#include "support/spec_support.h"

enum { LATE, PROMPT, CONTEXTS }; /* PROMPT: the one that catches up behind every call */
enum { MAX_SLOTS = 6, MAX_BLOCK = 8, MAX_CONTEXT = 256, MAX_FED = 60, MAX_OUT = 80 };

/* One step's blocks that were not settled. */
typedef struct flight {
    int32_t n, slot[MAX_SLOTS], rows[MAX_SLOTS], kept[MAX_SLOTS]; /* slot -1: it was given up */
} flight;

/* Calls that found rows put aside. */
typedef struct found {
    int64_t feeds, drafts, resets, drops, rewinds, saves, restores, full;
} found;

typedef struct twins {
    const char *name;
    test_model model;
    di_context *context[CONTEXTS];
    int32_t n_slots, max_rows, max_out, block;
    spec_random random;
    flight flights[DI_MAX_AHEAD];
    int32_t n_flights;
    bool has_token[MAX_SLOTS]; /* one was sampled */
    void *snapshot[CONTEXTS];
    bool saved;
    found found;
} twins;

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static int32_t below(twins *t, int32_t n) { return spec_below(&t->random, n); }

static di_sample_params params_of(int32_t slot) {
    di_sample_params p = {.seed = 77,
                          .top_p = 1,
                          .repetition_penalty = 1,
                          .slot = slot,
                          .mask = -1};
    if (slot % 2) p.temperature = 0.8f;
    return p;
}

/* ---- Two contexts ---- */

static void open_twins(twins *t, const char *directory, test_backend backend,
                       const di_context_options *options) {
    di_error error;
    test_model_open(&t->model, directory,
                    &(test_model_options){backend, DI_NUMERICS_FLOAT, 1, *options});
    t->context[LATE] = t->model.context;
    must(di_context_create(t->model.model, options, &t->context[PROMPT], &error), &error);
    t->n_slots = options->n_slots;
    t->max_rows = options->max_rows;
    t->max_out = options->max_out;
    t->block = t->model.config->dspark_block_size;
    assert_true(t->n_slots <= MAX_SLOTS && t->block <= MAX_BLOCK && t->max_out <= MAX_OUT);
    for (int c = 0; c < CONTEXTS; c++) {
        t->snapshot[c] = malloc(di_context_snapshot_bytes(t->context[c]));
        assert_non_null(t->snapshot[c]);
    }
}

static void close_twins(twins *t) {
    for (int c = 0; c < CONTEXTS; c++) free(t->snapshot[c]);
    di_context_destroy(t->context[PROMPT]);
    test_model_close(&t->model);
}

static bool is_aside(const twins *t) { return t->context[LATE]->n_aside > 0; }
static void catch_up(twins *t) { di_context_catch_up(t->context[PROMPT]); }

static int32_t length_of(const twins *t, int32_t slot) {
    const di_context *context = t->context[LATE];
    return (int32_t)di_context_length(context, slot) + di_context_ahead(context, slot);
}
static bool is_settled(const twins *t, int32_t slot) {
    return di_context_ahead(t->context[LATE], slot) == 0;
}

static void expect_same_state(twins *t, int32_t slot) {
    char what[128];
    const di_context *late = t->context[LATE];
    int32_t length = (int32_t)di_context_length(late, slot);
    int32_t margin = di_context_margin(late, slot);
    assert_int_equal(length, di_context_length(t->context[PROMPT], slot));
    assert_int_equal(margin, di_context_margin(t->context[PROMPT], slot));
    snprintf(what, sizeof what, "%s, seed %llu: slot %d, %d tokens, margin %d, %d rows aside",
             t->name, (unsigned long long)t->random.seed, slot, length, margin, late->n_aside);
    live_state got = live_state_read(t->context[LATE], slot, length, margin, true);
    live_state want = live_state_read(t->context[PROMPT], slot, length, margin, true);
    live_state_expect_same(&got, &want, what);
    live_state_free(&got);
    live_state_free(&want);
}

/* ---- What is called ---- */

static void forward(twins *t, const di_step *step) {
    di_error error;
    for (int c = 0; c < CONTEXTS; c++) must(di_forward(t->context[c], step, &error), &error);
}

static void feed(twins *t, int32_t slot, int32_t n) {
    di_row rows[MAX_FED];
    const int32_t last = n - 1;
    const di_sample_params params = params_of(slot);
    t->found.feeds += is_aside(t);
    for (int32_t i = 0; i < n; i++) rows[i] = (di_row){2 + below(t, 280), slot, i};
    forward(t, &(di_step){.rows = rows,
                          .n_rows = n,
                          .out_rows = &last,
                          .n_out = 1,
                          .params = &params});
    t->has_token[slot] = true;
}

/* Drafts for n slots, the same ones. */
static void draft(twins *t, const int32_t *slots, int32_t n) {
    di_error error;
    di_sample_params params[MAX_SLOTS];
    int32_t tokens[CONTEXTS][MAX_SLOTS * MAX_BLOCK];
    float confidence[CONTEXTS][MAX_SLOTS * MAX_BLOCK];
    t->found.drafts += is_aside(t);
    for (int32_t i = 0; i < n; i++) params[i] = params_of(slots[i]);
    const di_draft_step step = {.slots = slots, .n = n, .params = params};
    for (int c = 0; c < CONTEXTS; c++) {
        must(di_draft(t->context[c], &step, &error), &error);
        must(di_context_read_drafts(t->context[c], tokens[c], confidence[c], &error), &error);
    }
    for (int32_t i = 0; i < n * t->block; i++) {
        if (tokens[LATE][i] == tokens[PROMPT][i] &&
            memcmp(&confidence[LATE][i], &confidence[PROMPT][i], sizeof(float)) == 0)
            continue;
        fail_msg("%s, seed %llu: draft %d of slot %d is %d (%.9g), want %d (%.9g)", t->name,
                 (unsigned long long)t->random.seed, i % t->block, slots[i / t->block],
                 tokens[LATE][i], (double)confidence[LATE][i], tokens[PROMPT][i],
                 (double)confidence[PROMPT][i]);
    }
}

static void settle_first(twins *t) {
    const flight *f = &t->flights[0];
    for (int32_t i = 0; i < f->n; i++) {
        for (int c = 0; c < CONTEXTS && f->slot[i] >= 0; c++) {
            di_context_settle(t->context[c], f->slot[i], f->rows[i], f->kept[i]);
        }
    }
    t->n_flights--;
    memmove(t->flights, t->flights + 1, (size_t)t->n_flights * sizeof *t->flights);
}

static void settle_all(twins *t) {
    while (t->n_flights > 0) settle_first(t);
}

/* Nobody settles what slot has under way. */
static void forget(twins *t, int32_t slot) {
    for (int32_t k = 0; k < t->n_flights; k++) {
        flight *f = &t->flights[k];
        for (int32_t i = 0; i < f->n; i++) {
            if (f->slot[i] == slot) f->slot[i] = -1;
        }
    }
}

static void reset(twins *t, int32_t slot) {
    t->found.resets += is_aside(t) && t->context[LATE]->n_aside_of[slot] > 0;
    for (int c = 0; c < CONTEXTS; c++) di_context_reset(t->context[c], slot);
    forget(t, slot);
}

static void drop(twins *t, int32_t slot) {
    t->found.drops += is_aside(t);
    for (int c = 0; c < CONTEXTS; c++) di_context_drop(t->context[c], slot);
    forget(t, slot);
}

static void take_back(twins *t, int32_t slot) {
    di_error error;
    int32_t most = di_context_margin(t->context[LATE], slot), length = length_of(t, slot);
    if (most >= length) most = length - 1;
    if (most < 1) return;
    int32_t n = 1 + below(t, most);
    t->found.rewinds += is_aside(t);
    for (int c = 0; c < CONTEXTS; c++)
        must(di_context_rewind(t->context[c], slot, n, &error), &error);
}

static void save(twins *t, int32_t slot) {
    di_error error;
    t->found.saves += is_aside(t);
    for (int c = 0; c < CONTEXTS; c++) {
        di_context_save(t->context[c], slot, t->snapshot[c]);
        must(di_context_wait(t->context[c], &error), &error);
    }
    t->saved = true;
}

static void restore(twins *t, int32_t slot) {
    di_error error;
    t->found.restores += is_aside(t) && t->context[LATE]->n_aside_of[slot] > 0;
    for (int c = 0; c < CONTEXTS; c++) {
        di_context_restore(t->context[c], slot, t->snapshot[c]);
        must(di_context_wait(t->context[c], &error), &error);
    }
    forget(t, slot);
}

/* ---- Steps with blocks ---- */

typedef struct block_step {
    int32_t slots[MAX_SLOTS], n, n_drafts;
    int32_t prompt; /* slot with one row beside them, -1: none */
} block_step;

/* What came out is the same in both; how much of each block stays is remembered. */
static void note_results(twins *t, const block_step *s, int32_t rows[CONTEXTS][MAX_SLOTS],
                         int32_t tokens[CONTEXTS][MAX_OUT]) {
    flight *f = &t->flights[t->n_flights++];
    *f = (flight){.n = s->n};
    assert_memory_equal(rows[LATE], rows[PROMPT], (size_t)s->n * sizeof(int32_t));
    for (int32_t i = 0, at = 0; i < s->n; at += rows[LATE][i++]) {
        f->slot[i] = s->slots[i];
        f->rows[i] = rows[LATE][i];
        while (f->kept[i] < f->rows[i] && tokens[LATE][at + f->kept[i]] != -1) f->kept[i]++;
        assert_memory_equal(tokens[LATE] + at, tokens[PROMPT] + at,
                            (size_t)f->kept[i] * sizeof(int32_t));
    }
}

static void run_blocks(twins *t, const block_step *s) {
    di_error error;
    di_decode blocks[MAX_SLOTS];
    di_sample_params params[MAX_SLOTS + 1];
    float temperatures[DI_LAWS * MAX_BLOCK], logprobs[MAX_OUT];
    int32_t rows[CONTEXTS][MAX_SLOTS], tokens[CONTEXTS][MAX_OUT];
    const int32_t out_row = 0, n_rows = s->prompt >= 0;
    const di_row row = {2 + below(t, 280), s->prompt, 0};
    for (int32_t i = 0; i < DI_LAWS * MAX_BLOCK; i++) temperatures[i] = 1;
    for (int32_t i = 0; i < s->n; i++) {
        blocks[i] = (di_decode){s->slots[i], s->n_drafts > 0 ? t->block : 0, 0, false, NULL};
        params[i] = params_of(s->slots[i]);
    }
    if (n_rows > 0) params[s->n] = params_of(s->prompt);
    const di_step step = {.blocks = blocks,
                          .n_blocks = s->n,
                          .n_drafts = s->n_drafts,
                          .temperatures = temperatures,
                          .params = params,
                          .rows = &row,
                          .n_rows = n_rows,
                          .out_rows = &out_row,
                          .n_out = n_rows};
    bool plain = s->n_drafts == 0 && n_rows == 0;
    t->found.full += plain && t->context[LATE]->n_aside + s->n > t->max_rows;
    for (int c = 0; c < CONTEXTS; c++) {
        must(di_forward(t->context[c], &step, &error), &error);
        di_context_fetch(t->context[c], &(di_fetch){rows[c], tokens[c], logprobs, NULL});
        must(di_context_wait(t->context[c], &error), &error);
    }
    if (n_rows > 0) t->has_token[s->prompt] = true;
    note_results(t, s, rows, tokens);
}

/* Most of the slots that can decode, as far as rows and results go. */
static void choose_slots(twins *t, bool drafts, bool beside, block_step *s) {
    int32_t most = t->max_rows < t->max_out ? t->max_rows : t->max_out;
    if (beside) most--;
    if (drafts) most /= 1 + t->block;
    *s = (block_step){.prompt = -1};
    for (int32_t slot = 0; slot < t->n_slots; slot++) {
        const int32_t *ahead = t->context[LATE]->ahead + slot * DI_MAX_AHEAD;
        bool room = length_of(t, slot) + 1 + t->block < MAX_CONTEXT - MAX_BLOCK;
        bool can = t->has_token[slot] && di_context_length(t->context[LATE], slot) > 0 && room &&
                   ahead[DI_MAX_AHEAD - 1] == 0;
        if (can && s->n < most && below(t, 3) > 0) {
            s->slots[s->n++] = slot;
        } else if (beside && is_settled(t, slot) && length_of(t, slot) < MAX_CONTEXT / 2) {
            s->prompt = slot;
        }
    }
}

static void decode(twins *t, bool drafts, bool beside) {
    block_step s;
    if (t->n_flights == DI_MAX_AHEAD) settle_first(t);
    choose_slots(t, drafts, beside, &s);
    if (s.n == 0) return;
    if (drafts) {
        draft(t, s.slots, s.n);
        s.n_drafts = below(t, s.n * t->block + 1); /* 0: they were not worth it */
    }
    run_blocks(t, &s);
    if (below(t, 3) > 0) settle_all(t);
}

/* ---- The campaign ---- */

static void call_something(twins *t) {
    int32_t slot = below(t, t->n_slots), what = below(t, 24);
    bool settled = is_settled(t, slot), empty = di_context_length(t->context[LATE], slot) == 0;
    if (what == 0 && settled && length_of(t, slot) < MAX_CONTEXT / 2) {
        feed(t, slot, 1 + below(t, t->max_rows < MAX_FED ? t->max_rows : MAX_FED));
    } else if (what == 1) {
        reset(t, slot);
    } else if (what == 2) {
        drop(t, slot);
    } else if (what <= 4 && settled) {
        take_back(t, slot);
    } else if (what == 5 && settled && !empty) {
        save(t, slot);
        restore(t, below(t, t->n_slots));
    } else if (what == 6 && settled && !empty) {
        save(t, slot);
    } else if (what == 7 && t->saved) { /* an older one, of whichever slot */
        restore(t, slot);
    } else if (what == 8) {
        decode(t, true, below(t, 3) == 0);
    } else if (what == 9) {
        decode(t, false, true);
    } else {
        decode(t, false, false);
    }
    catch_up(t);
}

typedef struct variation {
    const char *name, *directory;
    test_backend backend;
    int32_t n_slots, max_rows, max_out;
    bool replay;
    int32_t runs, calls; /* at most so many calls a run */
} variation;

static void play(twins *t, const variation *v, uint64_t seed) {
    t->random = (spec_random){.seed = seed};
    t->n_flights = 0;
    for (int32_t slot = 0; slot < t->n_slots; slot++) {
        reset(t, slot);
        if (below(t, 4) > 0) feed(t, slot, 1 + below(t, t->max_rows < 9 ? t->max_rows : 9));
    }
    for (int32_t n = 5 + below(t, v->calls); n > 0; n--) call_something(t);
    settle_all(t);
    for (int32_t slot = 0; slot < t->n_slots; slot++) {
        bool can = t->has_token[slot] && di_context_length(t->context[LATE], slot) > 0;
        if (below(t, 2) && can && t->block <= t->max_out && t->block <= t->max_rows)
            draft(t, &slot, 1);
        expect_same_state(t, slot);
    }
}

static void campaign(const variation *v, found *sum) {
    static twins t;
    const char *one = getenv("DI_SEED");
    t = (twins){.name = v->name};
    const di_context_options options = {.n_slots = v->n_slots,
                                        .max_context = MAX_CONTEXT,
                                        .max_rows = v->max_rows,
                                        .max_out = v->max_out,
                                        .penalties = true,
                                        .drafts = true,
                                        .replay = v->replay};
    open_twins(&t, v->directory, v->backend, &options);
    uint64_t from = one ? strtoull(one, NULL, 10) : 1, to = one ? from : (uint64_t)v->runs;
    for (uint64_t seed = from; seed <= to; seed++) play(&t, v, seed);
    int64_t *all = (int64_t *)sum;
    for (size_t i = 0; i < sizeof t.found / sizeof *all; i++) all[i] += ((int64_t *)&t.found)[i];
    close_twins(&t);
}

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

static void test_campaign(void **state) {
    (void)state;
    static const variation variations[] = {
        {"room", TINY_B, TEST_CPU, 3, 80, 40, false, 20, 80},
        {"few rows", TINY_A, TEST_CPU, 5, 12, 12, false, 20, 80},
        {"one slot, replay", TINY_A, TEST_CPU, 1, 256, 40, true, 20, 120},
        {"fewer rows than slots", TINY_A, TEST_CPU, 6, 4, 4, false, 20, 60},
        {"more rows than a ring, replay", TINY_B, TEST_CPU, 2, 200, 30, true, 12, 160},
        {"one row", TINY_B, TEST_CPU, 4, 1, 1, false, 8, 40},
        {"queue", TINY_B, TEST_QUEUE, 3, 50, 40, false, 20, 80},
        {"late, replay", TINY_B, TEST_LATE, 3, 50, 40, true, 2, 40},
    };
    found f = {0};
    for (size_t i = 0; i < sizeof variations / sizeof *variations; i++)
        campaign(&variations[i], &f);
    print_message("  rows were aside at %lld feeds, %lld drafts, %lld resets, %lld drops, %lld "
                  "rewinds, %lld saves, %lld restores; too many %lld times\n",
                  (long long)f.feeds, (long long)f.drafts, (long long)f.resets, (long long)f.drops,
                  (long long)f.rewinds, (long long)f.saves, (long long)f.restores,
                  (long long)f.full);
    if (getenv("DI_SEED")) return;
    assert_true(f.feeds > 20 && f.drafts > 20 && f.resets > 20 && f.drops > 20);
    assert_true(f.rewinds > 20 && f.saves > 20 && f.restores > 20 && f.full > 20);
}

/* ---- One thing at a time ---- */

static void open_pair(twins *t, const char *name) {
    static const di_context_options options = {.n_slots = 2,
                                               .max_context = MAX_CONTEXT,
                                               .max_rows = 200,
                                               .max_out = 20,
                                               .penalties = true,
                                               .drafts = true};
    *t = (twins){.name = name, .random.seed = 1};
    open_twins(t, TINY_B, TEST_CPU, &options);
    for (int32_t slot = 0; slot < 2; slot++) feed(t, slot, 20 + 9 * slot);
}

static void decode_some(twins *t, int32_t n) {
    const block_step both = {.slots = {0, 1}, .n = 2, .prompt = -1};
    while (n-- > 0) {
        run_blocks(t, &both);
        settle_all(t);
        catch_up(t);
    }
}

static void test_drafts(void **state) {
    (void)state;
    static twins t;
    static const int32_t slots[2] = {0, 1};
    open_pair(&t, "drafts behind plain steps");
    for (int32_t n = 1; n < 8; n++) {
        decode_some(&t, n);
        assert_int_equal(t.context[LATE]->n_aside, 2 * n);
        draft(&t, slots, 2);
        assert_int_equal(t.context[LATE]->n_aside, 0);
    }
    close_twins(&t);
}

/* Rows that stand behind the end of what was restored are nobody's. */
static void test_older_snapshot(void **state) {
    (void)state;
    static twins t;
    open_pair(&t, "an older snapshot");
    for (int32_t from = 0; from < 2; from++) {
        decode_some(&t, 3);
        save(&t, from);
        decode_some(&t, 5);
        assert_int_equal(t.context[LATE]->n_aside_of[0], 5);
        restore(&t, 0);
        assert_int_equal(t.context[LATE]->n_aside_of[0], 0);
        assert_int_equal(t.context[LATE]->n_aside_of[1], 5);
        for (int32_t slot = 0; slot < 2; slot++) expect_same_state(&t, slot);
        decode_some(&t, 4);
        for (int32_t slot = 0; slot < 2; slot++) expect_same_state(&t, slot);
    }
    close_twins(&t);
}

/* Rows that go into windows together take places of their own (ops.h): a backend may store them in any
 * order. upper: dead rows before. */
static void expect_own_places(const di_context *context) {
    int32_t live = 0;
    for (int32_t i = 0; i < context->options.max_rows; i++) {
        const di_row *a = &context->upper[i];
        if (a->offset == DI_OFFSET_DEAD) continue;
        live++;
        assert_true(a->offset < 0 && -a->offset <= context->ring_slots);
        for (int32_t j = 0; j < i; j++) {
            const di_row *b = &context->upper[j];
            if (b->slot == a->slot) assert_int_not_equal(a->offset, b->offset);
        }
    }
    assert_true(live > context->ring_slots);
}

/* One slot has more rows aside than its ring has places, the other one few. */
static void test_more_than_a_ring(void **state) {
    (void)state;
    static twins t;
    static const int32_t slots[2] = {0, 1};
    for (int32_t early = 0; early < 2; early++) {
        open_pair(&t, "more than a ring");
        di_context *late = t.context[LATE];
        const block_step alone = {.slots = {0}, .n = 1, .prompt = -1};
        assert_true(late->ring_slots + 24 < late->options.max_rows);
        if (early) decode_some(&t, 2); /* what the other one has aside stands before what is lost */
        for (int32_t n = 0; n < late->ring_slots + 12; n++) {
            run_blocks(&t, &alone);
            settle_all(&t);
            catch_up(&t);
        }
        decode_some(&t, 3);
        for (int32_t i = 0; i < late->options.max_rows; i++)
            late->upper[i] = (di_row){0, 0, DI_OFFSET_DEAD};
        di_context_catch_up(late);
        expect_own_places(late);
        draft(&t, slots, 2);
        for (int32_t slot = 0; slot < 2; slot++) expect_same_state(&t, slot);
        close_twins(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_older_snapshot),
        cmocka_unit_test(test_more_than_a_ring),
        cmocka_unit_test(test_campaign),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
