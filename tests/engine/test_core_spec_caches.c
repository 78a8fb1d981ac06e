/* After rejections, cancellations in flight, ends inside a block and pre-emptions the caches are
 * those of a sequence that was read row by row and never speculated: every byte of the named pages,
 * and of windows (the draft layers' too), raw rows, history and the unfinished page all that is ever
 * read (live_state.h says what is not). Afterwards nothing is held any more.
 *
 * Drafts are forged on the device (forge_backend.h), so that long acceptances and rejections at every
 * place happen also with a step ahead.
 */
/* ctest: slow threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/core_internal.h"
#include "model/network.h"
#include "support/core_run.h"
#include "support/forge_backend.h"
#include "support/live_state.h"
#include "support/sanitized.h"

enum { N_RUNS = 6, MAX_TEXT = RUN_MAX_PROMPT + RUN_MAX_ANSWER, N_TEXTS = N_RUNS * 3 };

typedef struct variation {
    const char *name, *directory;
    bool queue;
    int32_t steps_ahead;
    di_spec_mode spec;
    int32_t n_pages, preempt_every; /* 0: never */
    uint32_t wrong_in;
} variation;

typedef struct watch { /* of one choice */
    int32_t slot;      /* where it was when it last got a token */
    int32_t n_compared;
} watch;

typedef struct stage {
    const variation *how;
    test_model forged, plain;
    di_context *reference; /* of plain: one slot, with the draft layers' windows */
    di_core *core;
    run runs[N_RUNS], alone[N_TEXTS];
    watch watches[N_RUNS][3];
    int32_t texts[N_TEXTS][MAX_TEXT];
    forge_text forge_texts[N_TEXTS];
    int32_t n_texts, n_compared, n_pages_compared;
} stage;

static stage *at;
static bool (*base_token)(void *user, const di_core_token *token);
static void (*base_end)(void *user, const di_core_result *result);

/* ---- The reference ---- */

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s: %s", at->how->name, error->message);
}

static void open_reference(stage *s) {
    di_error error;
    di_context_options options = {.n_slots = 1,
                                  .max_context = 448,
                                  .max_rows = 64,
                                  .max_out = 8,
                                  .replay = true,
                                  .drafts = true};
    must(di_context_create(s->plain.model, &options, &s->reference, &error), &error);
}

static void feed_reference(stage *s, const int32_t *ids, int64_t n) {
    di_error error;
    di_context_reset(s->reference, 0);
    for (int64_t i = 0; i < n; i += 48) {
        di_row rows[48];
        int32_t m = n - i < 48 ? (int32_t)(n - i) : 48;
        for (int32_t k = 0; k < m; k++) rows[k] = (di_row){ids[i + k], 0, k};
        must(di_forward(s->reference, &(di_step){.rows = rows, .n_rows = m}, &error), &error);
    }
}

/* Slot of the core holds the first `length` of these ids. */
static void compare_slot(stage *s, int32_t slot, const int32_t *ids, int64_t length, int32_t margin,
                         const char *when) {
    char what[128];
    snprintf(what, sizeof what, "%s, %s, slot %d, %d tokens, margin %d", s->how->name, when, slot,
             (int)length, margin);
    feed_reference(s, ids, length);
    live_state want = live_state_read(s->reference, 0, length, margin, true);
    live_state got = live_state_read(s->core->context, slot, length, margin, true);
    live_state_expect_same(&got, &want, what);
    live_state_free(&got);
    live_state_free(&want);
    s->n_compared++;
}

/* ---- While it runs ---- */

static core__sequence *in_slot(const stage *s, uint64_t request, int32_t choice, int32_t *slot) {
    for (int32_t i = 0; i < s->core->options.max_batch; i++) {
        core__sequence *sequence = s->core->slots[i].sequence;
        if (!sequence || sequence->request->id != request || sequence->choice != choice) continue;
        *slot = i;
        return sequence;
    }
    return NULL;
}

static bool watch_token(void *user, const di_core_token *token) {
    run *r = user;
    if (r >= at->runs && r < at->runs + N_RUNS) {
        watch *w = &at->watches[r - at->runs][token->choice];
        in_slot(at, token->request, token->choice, &w->slot);
    }
    return base_token(user, token);
}

static int64_t text_of(const run *r, int32_t choice, int32_t *ids) {
    int64_t n = r->request.n_ids;
    memcpy(ids, r->prompt, (size_t)n * sizeof *ids);
    memcpy(ids + n, r->choices[choice].ids, (size_t)r->choices[choice].n * sizeof *ids);
    return n + r->choices[choice].n;
}

/* The slot was just given back; nothing has touched it since. What is in flight runs first. */
static void watch_end(void *user, const di_core_result *result) {
    run *r = user;
    int32_t ids[MAX_TEXT];
    base_end(user, result);
    if (result->finish == DI_FINISH_CANCELLED) return;
    const watch *w = &at->watches[r - at->runs][result->choice];
    int64_t n = text_of(r, result->choice, ids), answer = n - r->request.n_ids;
    int32_t margin = di_context_margin(at->core->context, w->slot);
    assert_int_equal(di_context_length(at->core->context, w->slot), n - 1);
    if (margin > answer - 1) margin = (int32_t)answer - 1; /* windows before a hit are replayed */
    compare_slot(at, w->slot, ids, n - 1, margin, "at the end");
}

/* Without a step ahead everything is settled between two steps. */
static void compare_running(stage *s) {
    for (int32_t i = 0; i < s->core->options.max_batch; i++) {
        const core__sequence *sequence = s->core->slots[i].sequence;
        if (!sequence || !sequence->decoding) continue;
        assert_int_equal(sequence->n_done, sequence->n_ids - 1);
        compare_slot(s, i, sequence->ids, sequence->n_done, 0, "between steps");
    }
}

/* ---- Afterwards ---- */

/* Pages that are found by the names of these ids, against the reference's; returns how many. */
static int32_t compare_pages(stage *s, const int32_t *ids, int64_t n) {
    di_error error;
    enum { MOST = MAX_TEXT / DI_PAGE_TOKENS };
    di_kv_name names[MOST];
    di_kv_sequence pages = {0};
    int32_t n_pages = (int32_t)(n / DI_PAGE_TOKENS);
    di_kv_root root = {s->core->fingerprint, s->core->numerics, s->core->kernels, NULL, 0};
    di_kv_prompt prompt = {.root = di_kv_name_root(&root), .names = names, .n_pages = n_pages};
    di_kv_name_chain(&prompt.root, ids, NULL, n_pages, names);
    int32_t found = di_kv_find(s->core->kv, &prompt, n_pages).n_pages;
    if (found == 0) return 0;
    must(di_kv_sequence_init(&pages, MOST, &error), &error);
    assert_true(di_kv_admit(s->core->kv, &pages, &prompt, found, found));
    feed_reference(s, ids, (int64_t)found * DI_PAGE_TOKENS);
    for (int32_t i = 0; i < found; i++) {
        uint8_t *got = live_state_page(s->core->context, pages.pages[i]);
        uint8_t *want = live_state_page(s->reference, s->reference->page_of[i]);
        if (memcmp(got, want, s->reference->page_bytes) != 0) {
            fail_msg("%s: page %d is not that of plain decoding", s->how->name, i);
        }
        free(got);
        free(want);
    }
    di_kv_release(s->core->kv, &pages);
    di_kv_sequence_deinit(&pages);
    return found;
}

static void compare_all_pages(stage *s) {
    int32_t ids[MAX_TEXT];
    for (int32_t i = 0; i < N_RUNS; i++) {
        for (int32_t choice = 0; choice < s->runs[i].request.n; choice++) {
            int64_t n = text_of(&s->runs[i], choice, ids);
            int32_t found = compare_pages(s, ids, n);
            s->n_pages_compared += found;
            if (s->how->n_pages < 40) continue; /* some had to go */
            assert_true(found >= s->runs[i].request.n_ids / DI_PAGE_TOKENS);
            if (s->runs[i].choices[choice].result.finish == DI_FINISH_CANCELLED) continue;
            assert_int_equal(found, (n - 1) / DI_PAGE_TOKENS);
        }
    }
}

/* ---- Requests ---- */

static void make_request(int32_t i, run *r) {
    static const int32_t lengths[N_RUNS] = {70, 100, 64, 125, 41, 100};
    static const int32_t answers[N_RUNS] = {80, 60, 90, 70, 50, 64};
    int32_t ids[RUN_MAX_PROMPT];
    for (int32_t k = 0; k < lengths[i]; k++) ids[k] = (k * k * 5 + k * 7 + (i % 5) * 13) % 300 + 2;
    run_make(r, ids, lengths[i], answers[i]);
    r->request.sampling.seed = (uint64_t)i + 7;
    if (i % 2) r->request.sampling.temperature = 0.8f;
    if (i == 3) r->request.sampling.repetition_penalty = 1.2f;
    if (i == 1) r->request.n = 3;
    if (i == 4) r->cancel_at = 23; /* from inside */
}

static void record(stage *s) {
    di_core_options options = run_options();
    options.max_rows = 128;
    di_core *core = run_core(&s->plain, &options);
    for (int32_t i = 0; i < N_RUNS; i++) {
        run one;
        make_request(i, &one);
        for (int32_t choice = 0; choice < one.request.n; choice++) {
            run *r = &s->alone[s->n_texts];
            make_request(i, r);
            r->cancel_at = -1;
            r->request.n = 1;
            r->request.sampling.seed = di_core_seed(one.request.sampling.seed, choice);
            run_submit(r, core);
            run_to_end(core);
            int32_t *ids = s->texts[s->n_texts];
            s->forge_texts[s->n_texts++] = (forge_text){ids, text_of(r, 0, ids)};
        }
    }
    run_core_destroy(core);
}

static void expect_answers(const stage *s, const char *when) {
    int32_t text = 0;
    char what[96];
    for (int32_t i = 0; i < N_RUNS; i++) {
        for (int32_t choice = 0; choice < s->runs[i].request.n; choice++, text++) {
            const run_choice *got = &s->runs[i].choices[choice];
            run_choice want = s->alone[text].choices[0];
            snprintf(what, sizeof what, "%s, %s: request %d, choice %d", s->how->name, when, i,
                     choice);
            if (got->result.finish == DI_FINISH_CANCELLED) {
                want.n = got->n;
                want.result.finish = DI_FINISH_CANCELLED;
            } else if (s->runs[i].stop_at >= 0) {
                want.n = s->runs[i].stop_at + 1;
                want.result.finish = DI_FINISH_STOP;
            }
            run_expect_same(got, &want, what);
        }
    }
}

/* ---- One variation ---- */

static void submit_all(stage *s, bool disturbed) {
    for (int32_t i = 0; i < N_RUNS; i++) {
        run *r = &s->runs[i];
        make_request(i, r);
        base_token = r->request.on_token;
        base_end = r->request.on_end;
        r->request.on_token = watch_token;
        r->request.on_end = watch_end;
        if (!disturbed) r->cancel_at = -1;
        if (disturbed && i == 2) r->stop_at = 66; /* behind its second page, inside a block */
        run_submit(r, s->core);
    }
}

static void run_all(stage *s, bool disturbed) {
    di_error error;
    int32_t n_steps = 0;
    submit_all(s, disturbed);
    for (bool busy = true; busy; n_steps++) {
        must(di_core_step(s->core, &busy, &error), &error);
        must(di_core_check(s->core, &error), &error);
        if (!disturbed) continue;
        if (s->how->steps_ahead == 0 && n_steps % 4 == 0) compare_running(s);
        if (s->how->preempt_every && n_steps % s->how->preempt_every == 0) {
            di_core_preempt(s->core);
        }
        run *last = &s->runs[N_RUNS - 1]; /* from outside, with a step in flight */
        if (last->choices[0].n > 30 && !run_ended(last)) {
            assert_true(di_core_cancel(s->core, last->id));
        }
    }
}

/* Of every draft: the model's own confidences are not those of the forged ones, and with them a
 * schedule verifies few. */
static float sure(int32_t k) {
    (void)k;
    return 4;
}

static void open_stage(stage *s, const variation *how) {
    *s = (stage){.how = how};
    at = s;
    run_open_model(&s->plain, how->directory, TEST_CPU, DI_NUMERICS_FLOAT, 1);
    open_reference(s);
    record(s);
    forge_open_model(&s->forged, how->directory, DI_NUMERICS_FLOAT, 1, how->queue);
    forge.texts = s->forge_texts;
    forge.n_texts = s->n_texts;
    forge.wrong_in = how->wrong_in;
    forge.sets_clock = true; /* schedules that can be replayed, and that speculate */
    forge.step_s = 1e-3;
    forge.row_s = 1e-6;
    forge.draft_s = 1e-6;
    forge.confidence = sure;
    di_core_options options = run_options();
    options.max_rows = 48;
    options.n_pages = how->n_pages;
    options.spec = how->spec;
    options.steps_ahead = how->steps_ahead;
    s->core = run_core(&s->forged, &options);
}

static void close_stage(stage *s) {
    di_core_stats stats = di_core_get_stats(s->core);
    assert_int_equal(stats.kv.n_named, 0);
    assert_int_equal(stats.kv.n_private, 0);
    print_message("  %-28s %d states, %d pages compared; %llu drafts verified, %llu accepted, %llu "
                  "pre-emptions\n",
                  s->how->name, s->n_compared, s->n_pages_compared,
                  (unsigned long long)stats.verified, (unsigned long long)stats.accepted,
                  (unsigned long long)stats.preemptions);
    assert_true(stats.accepted > 400 && stats.verified - stats.accepted > 50);
    if (s->how->preempt_every) assert_true(stats.preemptions > 3);
    di_core_forget(s->core);
    assert_int_equal(di_core_get_stats(s->core).kv.n_free, s->how->n_pages);
    run_core_destroy(s->core);
    di_context_destroy(s->reference);
    test_model_close(&s->forged);
    test_model_close(&s->plain);
}

static void check(const variation *how) {
    stage *s = malloc(sizeof *s);
    assert_non_null(s);
    open_stage(s, how);
    run_all(s, true);
    expect_answers(s, "first");
    compare_all_pages(s);
    run_all(s, false); /* what was left is found */
    expect_answers(s, "again");
    compare_all_pages(s);
    assert_true(s->n_pages_compared > 8);
    close_stage(s);
    free(s);
}

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

static void test_synchronous(void **state) {
    (void)state;
    if (is_thread_sanitized()) skip(); /* one thread */
    check(&(variation){"fixed", TINY_A, false, 0, DI_SPEC_FIXED, 64, 0, 4});
    check(&(variation){"scheduled, pre-empted", TINY_B, false, 0, DI_SPEC_SCHEDULED, 64, 7, 3});
}

static void test_ahead(void **state) {
    (void)state;
    check(&(variation){"fixed, ahead", TINY_B, true, 1, DI_SPEC_FIXED, 64, 0, 4});
    check(&(variation){"scheduled, ahead", TINY_A, true, 1, DI_SPEC_SCHEDULED, 64, 0, 5});
    check(&(variation){"fixed, ahead, few pages", TINY_A, true, 1, DI_SPEC_FIXED, 8, 5, 4});
}

/* ---- Cancelled by another one's callback while the same step's results are read ---- */

enum { CANCELS_AT = 6 };
static run *victim;

static bool cancel_victim(void *user, const di_core_token *token) {
    const run *r = user;
    if (token->index == CANCELS_AT) assert_true(di_core_cancel(r->core, victim->id));
    return base_token(user, token);
}

/* The last by rank is to give way, and cannot before the step in flight is read; that cancels it,
 * with a block that nobody settles. */
static void test_cancelled_gives_way(void **state) {
    (void)state;
    test_model m;
    di_error error;
    static run first, second;
    run_open_model(&m, TINY_A, TEST_QUEUE, DI_NUMERICS_FLOAT, 1);
    di_core_options options = run_options();
    options.steps_ahead = 1;
    di_core *core = run_core(&m, &options);
    make_request(0, &first);
    make_request(2, &second);
    base_token = first.request.on_token;
    first.request.on_token = cancel_victim;
    victim = &second;
    run_submit(&first, core);
    run_submit(&second, core);
    for (bool busy = true; busy;) {
        if (first.choices[0].n == CANCELS_AT) di_core_preempt(core);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
        if (di_core_check(core, &error) != DI_OK) fail_msg("%s", error.message);
    }
    assert_int_equal(second.choices[0].result.finish, DI_FINISH_CANCELLED);
    assert_in_range(second.choices[0].n, 2, CANCELS_AT + 2);
    assert_int_equal(first.choices[0].result.finish, DI_FINISH_LENGTH);
    run_core_destroy(core);
    test_model_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_synchronous),
        cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_cancelled_gives_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
