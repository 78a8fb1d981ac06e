/* Blocks at the model's interface: whatever is drafted (right, wrong at each place, the model's own),
 * the tokens that come out are those of plain decoding, and what a sequence holds afterwards is what
 * reading those tokens row by row leaves, draft windows too. Blocks that are under way can be given
 * up, and the last tokens of a settled one taken back. The same where steps only decode.
 */
/* ctest: slow */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/golden.h"
#include "support/live_state.h"

enum { ASIDE_ROWS = 80 }; /* of a step, and so of what is put aside */
enum { SLOTS = 2, ANSWER = 36, MOST = 160, ALL_RIGHT = -1, OWN = -2 };
static const int32_t prompt_tokens[SLOTS] = {37, 70};

typedef struct text {
    int32_t ids[MOST];
    int32_t n;
    float logprobs[MOST]; /* of the answer's tokens, by position */
} text;

typedef struct bench {
    test_model model;
    di_context *plain; /* row by row */
    int32_t block, vocab;
    text want[SLOTS]; /* by plain decoding */
    text got[SLOTS];
    int32_t length[SLOTS]; /* tokens of `want` that are in plain's slots */
} bench;

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static di_sample_params params_of(int32_t slot) {
    di_sample_params p = {.seed = 77,
                          .top_p = 1,
                          .repetition_penalty = 1,
                          .slot = slot,
                          .mask = -1};
    if (slot == 1) {
        p.temperature = 0.8f;
        p.repetition_penalty = 1.2f;
        p.frequency_penalty = 0.4f;
    }
    return p;
}

static void feed(di_context *context, int32_t slot, const int32_t *ids, int32_t n, bool samples) {
    di_error error;
    di_row rows[MOST];
    const di_sample_params params = params_of(slot);
    const int32_t last = n - 1;
    for (int32_t i = 0; i < n; i++) rows[i] = (di_row){ids[i], slot, i};
    di_step step = {.rows = rows, .n_rows = n};
    if (samples) {
        step.out_rows = &last;
        step.n_out = 1;
        step.params = &params;
    }
    must(di_forward(context, &step, &error), &error);
}

/* The prompt, and the token behind it. */
static void begin(di_context *context, int32_t slot, text *out) {
    di_error error;
    int32_t n = prompt_tokens[slot];
    di_context_reset(context, slot);
    for (int32_t i = 0; i < n; i++) out->ids[i] = (i * i * 3 + i * (slot + 5) + 9) % 300 + 2;
    feed(context, slot, out->ids, n, true);
    must(di_context_read_samples(context, &out->ids[n], &out->logprobs[n], &error), &error);
    out->n = n + 1;
}

/* One step of blocks for all slots; kept: how many rows of each stayed. */
static void run_blocks(di_context *context, int32_t most, text *out, int32_t *kept) {
    di_error error;
    di_decode blocks[SLOTS];
    di_sample_params params[SLOTS];
    float temperatures[DI_LAWS * 64];
    int32_t rows[SLOTS], tokens[64], at = 0;
    float logprobs[64];
    for (int32_t i = 0; i < DI_LAWS * 64; i++) temperatures[i] = 1;
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        blocks[slot] = (di_decode){slot, most, slot ? 1 : 0, false, NULL};
        params[slot] = params_of(slot);
    }
    const di_step step = {.blocks = blocks,
                          .n_blocks = SLOTS,
                          .n_drafts = SLOTS * most,
                          .temperatures = temperatures,
                          .params = params};
    must(di_forward(context, &step, &error), &error);
    di_context_fetch(context, &(di_fetch){rows, tokens, logprobs, NULL});
    must(di_context_wait(context, &error), &error);
    for (int32_t slot = 0; slot < SLOTS; at += rows[slot++]) {
        text *t = &out[slot];
        assert_int_equal(rows[slot], 1 + most);
        kept[slot] = 0;
        for (int32_t i = 0; i < rows[slot] && tokens[at + i] != -1; i++, kept[slot]++) {
            t->logprobs[t->n] = logprobs[at + i];
            t->ids[t->n++] = tokens[at + i];
        }
    }
}

/* Drafts behind what `got` has, by a pattern, in place of the model's. */
static void draft(bench *b, int32_t pattern) {
    di_error error;
    const int32_t slots[SLOTS] = {0, 1};
    const di_sample_params params[SLOTS] = {params_of(0), params_of(1)};
    int32_t drafts[SLOTS * 8];
    const di_draft_step step = {.slots = slots, .n = SLOTS, .params = params};
    must(di_draft(b->model.context, &step, &error), &error);
    if (pattern == OWN) return;
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        for (int32_t k = 0; k < b->block; k++) {
            int32_t id = b->want[slot].ids[b->got[slot].n + k];
            drafts[slot * b->block + k] = k == pattern ? (id + 1) % b->vocab : id;
        }
    }
    must(di_context_put_drafts(b->model.context, drafts, &error), &error);
}

/* ---- Comparison ---- */

static void expect_tokens(const bench *b, int32_t pattern) {
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        const text *got = &b->got[slot], *want = &b->want[slot];
        for (int32_t i = prompt_tokens[slot]; i < got->n && i < want->n; i++) {
            if (got->ids[i] == want->ids[i] &&
                memcmp(&got->logprobs[i], &want->logprobs[i], sizeof(float)) == 0)
                continue;
            fail_msg("drafts %d, slot %d, token %d: %d, want %d", pattern, slot, i, got->ids[i],
                     want->ids[i]);
        }
    }
}

/* All but the last token is in the slot. */
static void expect_state(bench *b, int32_t slot, int32_t length, const char *when) {
    char what[96];
    if (length < b->length[slot]) {
        di_context_reset(b->plain, slot);
        b->length[slot] = 0;
    }
    while (b->length[slot] < length) {
        int32_t n = length - b->length[slot] < 60 ? length - b->length[slot] : 60;
        feed(b->plain, slot, b->want[slot].ids + b->length[slot], n, false);
        b->length[slot] += n;
    }
    assert_int_equal(di_context_length(b->model.context, slot), length);
    assert_int_equal(di_context_length(b->plain, slot), length);
    int32_t margin = di_context_margin(b->model.context, slot);
    snprintf(what, sizeof what, "%s, slot %d, %d tokens, margin %d", when, slot, length, margin);
    live_state want = live_state_read(b->plain, slot, length, margin, true);
    live_state got = live_state_read(b->model.context, slot, length, margin, true);
    live_state_expect_same(&got, &want, what);
    live_state_free(&got);
    live_state_free(&want);
}

/* ---- The campaign ---- */

static void decode_plainly(bench *b) {
    int32_t kept[SLOTS];
    for (int32_t slot = 0; slot < SLOTS; slot++) begin(b->plain, slot, &b->want[slot]);
    while (b->want[0].n < prompt_tokens[0] + ANSWER + 2 * (b->block + 1)) {
        run_blocks(b->plain, 0, b->want, kept);
        for (int32_t slot = 0; slot < SLOTS; slot++) {
            assert_int_equal(kept[slot], 1);
            di_context_settle(b->plain, slot, 1, 1);
        }
    }
    for (int32_t slot = 0; slot < SLOTS; slot++) b->length[slot] = b->want[slot].n - 1;
}

static bool goes_on(const bench *b) {
    return b->got[0].n < prompt_tokens[0] + ANSWER && b->got[1].n < prompt_tokens[1] + ANSWER;
}

static void play(bench *b, int32_t pattern) {
    int32_t kept[SLOTS], rows = 1 + b->block;
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        begin(b->model.context, slot, &b->got[slot]);
    }
    while (goes_on(b)) {
        draft(b, pattern);
        run_blocks(b->model.context, b->block, b->got, kept);
        for (int32_t slot = 0; slot < SLOTS; slot++) {
            if (pattern != OWN) assert_int_equal(kept[slot], pattern < 0 ? rows : pattern + 1);
            di_context_settle(b->model.context, slot, rows, kept[slot]);
            expect_state(b, slot, b->got[slot].n - 1, "settled");
        }
        expect_tokens(b, pattern);
    }
}

/* A block behind one that is not settled is given up, then the end of that one is taken back. */
static void give_up(bench *b, int32_t pattern, int32_t back) {
    di_error error;
    int32_t kept[SLOTS], none[SLOTS], rows = 1 + b->block, n[SLOTS];
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        begin(b->model.context, slot, &b->got[slot]);
    }
    draft(b, pattern);
    run_blocks(b->model.context, b->block, b->got, kept);
    for (int32_t slot = 0; slot < SLOTS; slot++) n[slot] = b->got[slot].n;
    draft(b, OWN);
    run_blocks(b->model.context, b->block, b->got, none);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        b->got[slot].n = n[slot];
        di_context_settle(b->model.context, slot, rows, kept[slot]);
        di_context_drop(b->model.context, slot);
        assert_int_equal(di_context_ahead(b->model.context, slot), 0);
        expect_state(b, slot, n[slot] - 1, "dropped");
        int32_t taken = back < kept[slot] ? back : kept[slot] - 1;
        must(di_context_rewind(b->model.context, slot, taken, &error), &error);
        int32_t length = n[slot] - 1 - taken;
        expect_state(b, slot, length, "taken back");
        feed(b->model.context, slot, b->want[slot].ids + length, 5, false);
        expect_state(b, slot, length + 5, "gone on");
    }
    expect_tokens(b, pattern);
}

/* ---- Steps that only decode: what the drafter sees of them is put aside ---- */

typedef enum happening { NOTHING, GIVEN_UP, TAKEN_BACK, SAVED, BEGUN_AGAIN, HAPPENINGS } happening;

static void decode_some(bench *b, int32_t n) {
    int32_t kept[SLOTS];
    while (n-- > 0) {
        run_blocks(b->model.context, 0, b->got, kept);
        for (int32_t slot = 0; slot < SLOTS; slot++) {
            di_context_settle(b->model.context, slot, 1, 1);
        }
    }
}

static void let_happen(bench *b, happening what) {
    di_error error;
    di_context *context = b->model.context;
    int32_t kept[SLOTS], n = b->got[0].n;
    if (what == GIVEN_UP) { /* slot 0's block in flight; slot 1 keeps its own */
        run_blocks(context, 0, b->got, kept);
        di_context_settle(context, 1, 1, 1);
        di_context_drop(context, 0);
        b->got[0].n = n;
        feed(context, 0, b->want[0].ids + n - 1, 1, true);
        b->got[0].n++;
    } else if (what == TAKEN_BACK) {
        must(di_context_rewind(context, 0, 2, &error), &error);
        feed(context, 0, b->want[0].ids + n - 3, 2, true);
    } else if (what == SAVED) {
        void *snapshot = malloc(di_context_snapshot_bytes(context));
        assert_non_null(snapshot);
        di_context_save(context, 0, snapshot);
        must(di_context_wait(context, &error), &error);
        di_context_restore(context, 0, snapshot);
        must(di_context_wait(context, &error), &error);
        free(snapshot);
        expect_state(b, 0, n - 1, "restored");
        feed(context, 0, b->want[0].ids + n - 1, 1, true);
        b->got[0].n++;
    } else if (what == BEGUN_AGAIN) {
        begin(context, 0, &b->got[0]);
    }
}

/* More steps than there is room for rows aside, and something that must not lose them between. */
static void put_aside(bench *b, happening what) {
    char when[40];
    for (int32_t slot = 0; slot < SLOTS; slot++) begin(b->model.context, slot, &b->got[slot]);
    decode_some(b, 7);
    let_happen(b, what);
    decode_some(b, ASIDE_ROWS / SLOTS - 3);
    snprintf(when, sizeof when, "put aside, happening %d", (int)what);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        int32_t had = b->got[slot].n < b->want[slot].n ? b->got[slot].n : b->want[slot].n;
        assert_memory_equal(b->got[slot].ids, b->want[slot].ids, (size_t)had * sizeof(int32_t));
        assert_true(b->got[slot].n <= b->want[slot].n);
        expect_state(b, slot, b->got[slot].n - 1, when);
    }
}

static void check(const char *directory, test_backend backend, bool briefly) {
    bench *b = calloc(1, sizeof *b);
    di_error error;
    assert_non_null(b);
    const di_context_options options = {.n_slots = SLOTS,
                                        .max_context = MOST,
                                        .max_rows = ASIDE_ROWS,
                                        .max_out = 16,
                                        .penalties = true,
                                        .drafts = true};
    test_model_open(&b->model, directory,
                    &(test_model_options){backend, DI_NUMERICS_FLOAT, 1, options});
    must(di_context_create(b->model.model, &options, &b->plain, &error), &error);
    b->block = b->model.config->dspark_block_size;
    b->vocab = b->model.config->vocab_size;
    decode_plainly(b);
    for (int32_t pattern = OWN; pattern < b->block; pattern += briefly ? 3 : 1) play(b, pattern);
    for (int32_t back = 1; back <= (briefly ? 1 : b->block); back++) {
        give_up(b, ALL_RIGHT, back);
        give_up(b, b->block / 2, back);
    }
    for (int what = 0; what < HAPPENINGS; what++) put_aside(b, (happening)what);
    di_context_destroy(b->plain);
    test_model_close(&b->model);
    free(b);
}

static void test_cpu(void **state) {
    (void)state;
    check("tests/data/golden/tiny-a/model", TEST_CPU, false);
    check("tests/data/golden/tiny-b/model", TEST_QUEUE, false);
}

static void test_twins(void **state) {
    (void)state;
    check("tests/data/golden/tiny-b/model", TEST_LATE, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu),
        cmocka_unit_test(test_twins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
