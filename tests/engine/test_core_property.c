/* The law of the engine (engine.h): whatever else runs, however a request is chunked, pre-empted,
 * speculated on or served from the cache, its tokens and log-probabilities are the bits of the same
 * request alone with nothing cached and nothing drafted.
 *
 * Models of this size draft badly, so in most schedules drafts are forged: right ones, with a wrong
 * one now and then, on the device (forge_backend.h) or through the engine (di_core_force_drafts).
 *
 * Each schedule is random and comes from one seed. A seed that fails is printed; run it alone with
 *     DI_CORE_SEED=seed test_core_property
 * and more of them with DI_CORE_SCHEDULES=number (from seed 1).
 */
/* ctest: slow threads gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "support/core_run.h"
#include "support/device.h"
#include "support/forge_backend.h"
#include "support/sanitized.h"

enum { N_RUNS = 9, N_NEIGHBOURS = 4, N_DOCUMENTS = 2, DOCUMENT = 330, MAX_CONTEXT = 448 };
enum { LATE_RUNS = 4, LATE_DOCUMENT = 90, N_TEXTS = N_RUNS * RUN_MAX_CHOICES };

typedef struct dice {
    uint64_t seed, n;
} dice;

static int32_t below(dice *d, int32_t n) {
    uint32_t words[4];
    di_philox(d->seed, d->n++, 7, words);
    return (int32_t)(words[0] % (uint32_t)n);
}

static bool one_in(dice *d, int32_t n) { return below(d, n) == 0; }

/* ---- Models, opened when a schedule first needs them ---- */

/* "cpu" as it is; with forged drafts; that behind a queue. The scalar twins at once and late. A
 * GPU, whose memory cannot be read, so that drafts are forged through the engine alone. SPLIT: with
 * a host for some of the experts, "cpu" behind a queue or a GPU. */
typedef enum model_kind {
    PLAIN,
    FORGED,
    FORGED_QUEUE,
    TWINS,
    LATE,
    CUDA,
    SPLIT,
    SPLIT_CUDA,
    KINDS
} model_kind;

typedef struct models {
    test_model at[2][2][2][KINDS]; /* directory, numerics, threads - 1, kind */
    bool open[2][2][2][KINDS];
} models;

static models all_models;

static test_model *get_model(int32_t directory, int32_t numerics, int32_t threads,
                             model_kind kind) {
    static const char *const names[] = {"tests/data/golden/tiny-a/model",
                                        "tests/data/golden/tiny-b/model"};
    const char *name = names[directory];
    test_model *m = &all_models.at[directory][numerics][threads - 1][kind];
    if (all_models.open[directory][numerics][threads - 1][kind]) return m;
    all_models.open[directory][numerics][threads - 1][kind] = true;
    di_numerics rounds = (di_numerics)numerics;
    switch (kind) {
    case FORGED: forge_open_model(m, name, rounds, threads, false); break;
    case FORGED_QUEUE: forge_open_model(m, name, rounds, threads, true); break;
    case TWINS: run_open_model(m, name, TEST_REF, rounds, threads); break;
    case LATE: run_open_model(m, name, TEST_LATE, rounds, threads); break;
    case CUDA: run_open_model(m, name, TEST_CUDA, rounds, threads); break;
    case SPLIT: run_open_model(m, name, TEST_SPLIT_QUEUE, rounds, threads); break;
    case SPLIT_CUDA: run_open_model(m, name, TEST_SPLIT_CUDA, rounds, threads); break;
    default: run_open_model(m, name, TEST_CPU, rounds, threads); break;
    }
    return m;
}

static int close_models(void **state) {
    (void)state;
    for (int i = 0; i < 8 * KINDS; i++) {
        if ((&all_models.open[0][0][0][0])[i]) test_model_close(&(&all_models.at[0][0][0][0])[i]);
    }
    return 0;
}

/* ---- One schedule ---- */

typedef struct schedule {
    uint64_t seed;
    dice dice;
    int32_t directory, numerics, threads, vocab, block;
    model_kind kind;
    int32_t n_runs, document; /* fewer and shorter where it is slow */
    di_core_options options;
    int32_t documents[N_DOCUMENTS][DOCUMENT];
    run runs[N_RUNS], alone[N_TEXTS], neighbours[N_NEIGHBOURS];
    /* What is forged: */
    bool on_device, through_core;
    int32_t wrong_in, texts[N_TEXTS][RUN_MAX_PROMPT + RUN_MAX_ANSWER];
    forge_text forge_texts[N_TEXTS];
    double row_s;
} schedule;

static void set_kind(schedule *s, model_kind kind) {
    s->kind = kind;
    s->threads = 1;
    s->n_runs = N_RUNS;
    s->document = DOCUMENT;
    s->on_device = false;
    s->through_core = s->options.steps_ahead == 0;
}

static void roll_options(schedule *s, bool cuda) {
    dice *d = &s->dice;
    s->directory = below(d, 2);
    s->numerics = below(d, 2);
    s->threads = one_in(d, 4) ? 2 : 1;
    s->options = (di_core_options){
        .max_batch = 1 + below(d, 6),
        .max_context = MAX_CONTEXT,
        .n_pages = 7 + below(d, 3) * below(d, 12), /* 7: one full context */
        .prefix_cache = !one_in(d, 6),
        .replay = one_in(d, 8)   ? DI_REPLAY_BOUNDED
                  : one_in(d, 2) ? DI_REPLAY_STABLE
                                 : DI_REPLAY_EXACT,
        .window_cache_bytes = (uint64_t)below(d, 3) * (uint64_t)below(d, 3) * 300000,
    };
    s->kind = one_in(d, 20) ? LATE : one_in(d, 2) ? FORGED_QUEUE : FORGED;
    s->n_runs = s->kind == LATE ? LATE_RUNS : N_RUNS;
    s->document = s->kind == LATE ? LATE_DOCUMENT : DOCUMENT;
    s->options.steps_ahead = below(d, 2);
    s->options.spec = one_in(d, 4) ? DI_SPEC_OFF : one_in(d, 2) ? DI_SPEC_FIXED : DI_SPEC_SCHEDULED;
    s->on_device = s->kind != LATE && !one_in(d, 4);
    s->through_core = s->options.steps_ahead == 0 && one_in(d, 2);
    s->wrong_in = one_in(d, 4) ? 0 : 2 + below(d, 12);
    s->row_s = one_in(d, 3) ? 3e-4 : 1e-6;
    if (cuda) set_kind(s, s->seed % 4 == 2 ? SPLIT_CUDA : CUDA);
    if (!cuda && s->seed % 5 == 2) set_kind(s, SPLIT);
    s->options.max_rows = s->options.max_batch + below(d, 3) * below(d, 40);
    for (int32_t i = 0; i < N_DOCUMENTS; i++) {
        for (int32_t k = 0; k < DOCUMENT; k++) s->documents[i][k] = below(d, s->vocab);
    }
}

static void roll_sampling(schedule *s, run *r) {
    dice *d = &s->dice;
    di_sample_params *p = &r->request.sampling;
    p->seed = (uint64_t)below(d, 1 << 30);
    if (!one_in(d, 3)) p->temperature = (float)(1 + below(d, 15)) / 8;
    if (one_in(d, 4)) p->top_k = 1 + below(d, 50);
    if (one_in(d, 4)) p->top_p = 0.9f;
    if (one_in(d, 6)) p->min_p = 0.02f;
    if (one_in(d, 4)) p->repetition_penalty = 1.3f;
    if (one_in(d, 4)) p->presence_penalty = 0.7f;
    if (one_in(d, 4)) p->frequency_penalty = 0.4f;
    if (one_in(d, 4)) {
        r->request.n_biases = 1 + below(d, 8);
        for (int32_t i = 0; i < r->request.n_biases; i++) {
            r->biases[i] = (di_logit_bias){below(d, s->vocab), (float)below(d, 9) - 3};
        }
    }
}

/* A beginning of a document, or of an earlier request and its answer, and something of its own. */
static int64_t roll_prompt(schedule *s, int32_t i, int32_t *ids) {
    dice *d = &s->dice;
    const int32_t *from = s->documents[below(d, N_DOCUMENTS)];
    int64_t n = one_in(d, 6) ? 1 + below(d, 4) : 1 + below(d, s->document), own = below(d, 30);
    if (one_in(d, 5)) own = 0;
    memcpy(ids, from, (size_t)n * sizeof *ids);
    if (i > 0 && one_in(d, 2)) {
        const run *earlier = &s->alone[below(d, i) * RUN_MAX_CHOICES];
        n = one_in(d, 2) ? run_text(earlier, 0, ids) : earlier->request.n_ids;
        if (n == earlier->request.n_ids) memcpy(ids, earlier->prompt, (size_t)n * sizeof *ids);
    }
    if (n > s->document) n = s->document;
    for (int64_t k = 0; k < own; k++) ids[n++] = below(d, s->vocab);
    return n;
}

static void roll_run(schedule *s, int32_t i, run *r) {
    dice *d = &s->dice;
    int32_t ids[RUN_MAX_PROMPT + RUN_MAX_ANSWER];
    int64_t n = roll_prompt(s, i, ids);
    run_make(r, ids, n, 1 + below(d, one_in(d, 3) ? 80 : 12));
    roll_sampling(s, r);
    r->request.n = one_in(d, 3) ? 1 + below(d, RUN_MAX_CHOICES) : 1;
    r->request.priority = below(d, 3) - 1;
    r->request.top_logprobs = one_in(d, 4) ? 1 + below(d, RUN_MAX_TOP) : 0;
    r->request.prompt_logprobs = one_in(d, 6);
    r->request.ignore_end_token = !one_in(d, 4);
    if (one_in(d, 6)) r->stop_at = below(d, one_in(d, 2) ? 6 : 30);
    if (one_in(d, 5)) r->request.salt = "tenant", r->request.salt_bytes = 6;
    if (one_in(d, 5)) { /* its end is the beginning of the answer */
        int64_t most = n < RUN_MAX_ANSWER - 80 ? n : RUN_MAX_ANSWER - 80;
        r->request.n_given = 1 + below(d, (int32_t)most);
        if (r->request.n == 1 && one_in(d, 4)) r->request.max_tokens = 0;
    }
}

/* Given tokens have the log-probabilities that they have in a prompt. */
static void check_given(const schedule *s, di_core *core, const run *one) {
    static run plain;
    int64_t n_given = one->request.n_given;
    char what[64];
    if (n_given == 0 || s->options.replay != DI_REPLAY_EXACT) return;
    plain = *one;
    memset(plain.choices, 0, sizeof plain.choices);
    plain.request.n_given = 0;
    plain.request.prompt_logprobs = true;
    if (plain.request.max_tokens == 0) plain.request.max_tokens = 1;
    plain.stop_at = -1;
    run_submit(&plain, core);
    run_to_end(core);
    const float *scores = plain.choices[0].scores + (plain.request.n_ids - n_given);
    const run_choice *c = &one->choices[0];
    int64_t first = n_given == one->request.n_ids; /* the first of all has none: NaN */
    if (n_given > c->n) n_given = c->n;
    snprintf(what, sizeof what, "DI_CORE_SEED=%llu, given", (unsigned long long)s->seed);
    for (int64_t i = first; i < n_given; i++) {
        if (memcmp(&scores[i], &c->logprobs[i], sizeof *scores) != 0) fail_msg("%s", what);
    }
}

/* What each choice must be: the request alone, one choice, nothing cached, all rows at once. */
static void run_alone(schedule *s, int32_t i) {
    di_core_options options = {.max_batch = 1,
                               .max_rows = 128,
                               .max_context = MAX_CONTEXT,
                               .prefix_cache = false,
                               .replay = s->options.replay};
    bool gpu = s->kind == CUDA || s->kind == SPLIT_CUDA;
    model_kind kind = s->kind == LATE ? TWINS : gpu ? s->kind : PLAIN;
    di_core *core = run_core(get_model(s->directory, s->numerics, 1, kind), &options);
    const run *r = &s->runs[i];
    for (int32_t choice = 0; choice < r->request.n; choice++) {
        run *one = &s->alone[i * RUN_MAX_CHOICES + choice];
        *one = *r;
        one->request.n = 1;
        one->request.sampling.seed = di_core_seed(r->request.sampling.seed, choice);
        one->request.prompt_logprobs = r->request.prompt_logprobs && choice == 0;
        if (r->request.prompt_logprobs && choice > 0 && options.replay == DI_REPLAY_STABLE) {
            one->request.prompt_logprobs = true; /* the same path; its scores are not asked for */
        }
        if (choice > 0 && one->stop_at < r->request.n_given) one->stop_at = -1; /* not told them */
        run_submit(one, core);
        run_to_end(core);
        if (choice == 0) {
            check_given(s, core, one);
            continue;
        }
        one->choices[0].n_scores = 0; /* the first choice reports them, and what is given */
        size_t n_given = (size_t)r->request.n_given;
        memset(one->choices[0].logprobs, 0, n_given * sizeof one->choices[0].logprobs[0]);
        memset(one->choices[0].top, 0, n_given * sizeof one->choices[0].top[0]);
    }
    run_core_destroy(core);
}

/* ---- Forged drafts ---- */

/* Right ones from here on, with a wrong one now and then; others' drafts stay theirs. */
static void force(void *user, uint64_t request, int32_t choice, const int32_t *ids, int64_t n_ids,
                  int32_t *drafts) {
    schedule *s = user;
    (void)ids;
    for (int32_t i = 0; i < s->n_runs; i++) {
        if (s->runs[i].id != request) continue;
        const forge_text *text = &s->forge_texts[i * RUN_MAX_CHOICES + choice];
        for (int32_t k = 0; k < s->block && n_ids + k < text->n; k++) {
            bool wrong = s->wrong_in > 0 && one_in(&s->dice, s->wrong_in);
            drafts[k] = text->ids[n_ids + k] ^ (wrong ? 1 : 0);
        }
    }
}

static void set_forge(schedule *s) {
    for (int32_t i = 0; i < N_TEXTS; i++) {
        int32_t *ids = s->texts[i];
        const run *one = &s->alone[i];
        s->forge_texts[i] = (forge_text){ids, one->id ? run_text(one, 0, ids) : 0};
    }
    forge.texts = s->forge_texts;
    forge.n_texts = s->on_device ? N_TEXTS : 0;
    forge.wrong_in = (uint32_t)s->wrong_in;
    forge.sets_clock = true; /* what is scheduled by cost can be replayed */
    forge.step_s = 1e-3;
    forge.row_s = s->row_s;
    forge.draft_s = 1e-5;
}

/* Neighbours come and are cancelled, from inside or from outside; what they got is not compared. */
static void disturb(schedule *s, di_core *core, int32_t *next, int32_t *forced) {
    dice *d = &s->dice;
    if (*next < N_NEIGHBOURS && one_in(d, 6)) {
        run *r = &s->neighbours[(*next)++];
        roll_run(s, s->n_runs, r);
        r->stop_at = -1;
        r->cancel_at = one_in(d, 2) ? below(d, 4) : -1;
        if (r->cancel_at >= r->request.max_tokens) r->cancel_at = -1;
        run_submit(r, core);
    }
    for (int32_t i = 0; i < *next; i++) {
        run *r = &s->neighbours[i];
        if (!run_ended(r) && one_in(d, 12)) assert_true(di_core_cancel(core, r->id));
    }
    /* Not for ever: who is pre-empted faster than he can replay makes no progress. */
    if (*forced < 20 && one_in(d, 10)) di_core_preempt(core), ++*forced;
}

static di_core_stats run_together(schedule *s) {
    test_model *m = get_model(s->directory, s->numerics, s->threads, s->kind);
    s->block = m->config->dspark_block_size;
    set_forge(s);
    di_core *core = run_core(m, &s->options);
    if (s->through_core) di_core_force_drafts(core, force, s);
    int32_t n_submitted = 0, n_neighbours = 0, n_forced = 0;
    int64_t n_steps = 0;
    di_error error;
    for (bool busy = true; busy || n_submitted < s->n_runs; n_steps++) {
        if (n_steps == 20000) {
            fail_msg("DI_CORE_SEED=%llu: it never ends", (unsigned long long)s->seed);
        }
        while (n_submitted < s->n_runs && one_in(&s->dice, 4)) {
            run_submit(&s->runs[n_submitted++], core);
        }
        disturb(s, core, &n_neighbours, &n_forced);
        if (di_core_step(core, &busy, &error) != DI_OK) fail_msg("%s", error.message);
        if (di_core_check(core, &error) != DI_OK) fail_msg("%s", error.message);
    }
    for (int32_t i = 0; i < n_neighbours; i++) assert_true(run_ended(&s->neighbours[i]));
    di_core_stats stats = di_core_get_stats(core);
    run_core_destroy(core);
    return stats;
}

static schedule *current;

static void check_schedule(uint64_t seed, bool cuda, di_core_stats *sum) {
    schedule *s = current;
    char what[96];
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->dice = (dice){seed, 0};
    s->vocab = 320; /* of the smaller one */
    roll_options(s, cuda);
    for (int32_t i = 0; i < s->n_runs; i++) {
        roll_run(s, i, &s->runs[i]);
        run_alone(s, i);
    }
    di_core_stats stats = run_together(s);
    for (int32_t i = 0; i < s->n_runs; i++) {
        for (int32_t choice = 0; choice < s->runs[i].request.n; choice++) {
            snprintf(what, sizeof what, "DI_CORE_SEED=%llu, request %d, choice %d",
                     (unsigned long long)seed, i, choice);
            const run_choice *got = &s->runs[i].choices[choice];
            if (s->options.replay == DI_REPLAY_BOUNDED) { /* may differ; must end well */
                if (!got->ended || got->result.finish > DI_FINISH_LENGTH) fail_msg("%s", what);
                continue;
            }
            run_expect_same(got, &s->alone[i * RUN_MAX_CHOICES + choice].choices[0], what);
        }
    }
    sum->preemptions += stats.preemptions;
    sum->snapshot_hits += stats.snapshot_hits;
    sum->replayed_rows += stats.replayed_rows;
    sum->kv.hit_pages += stats.kv.hit_pages;
    sum->kv.adopted += stats.kv.adopted;
    sum->kv.evicted += stats.kv.evicted;
    sum->verified += stats.verified;
    sum->accepted += stats.accepted;
}

static void check_schedules(bool cuda) {
    const char *one = getenv("DI_CORE_SEED"), *many = getenv("DI_CORE_SCHEDULES");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, n = one                     ? 1
                                                            : is_thread_sanitized() ? 6
                                                                                    : 20;
    if (!one && many) n = strtoull(many, NULL, 10);
    di_core_stats sum = {0};
    current = malloc(sizeof *current);
    assert_non_null(current);
    for (uint64_t seed = first; seed < first + n; seed++) {
        if (one || many) print_message("seed %llu\n", (unsigned long long)seed);
        check_schedule(seed, cuda, &sum);
    }
    print_message("  %llu pre-emptions, %llu snapshots used, %llu pages hit, %llu adopted, %llu "
                  "evicted, %llu rows replayed, %llu drafts verified, %llu accepted\n",
                  (unsigned long long)sum.preemptions, (unsigned long long)sum.snapshot_hits,
                  (unsigned long long)sum.kv.hit_pages, (unsigned long long)sum.kv.adopted,
                  (unsigned long long)sum.kv.evicted, (unsigned long long)sum.replayed_rows,
                  (unsigned long long)sum.verified, (unsigned long long)sum.accepted);
    if (!one && n >= 20) { /* the schedules must be worth something */
        assert_true(sum.preemptions > 50 && sum.snapshot_hits > 10 && sum.kv.hit_pages > 50);
        assert_true(sum.kv.adopted > 0 && sum.kv.evicted > 0 && sum.replayed_rows > 1000);
        uint64_t least = cuda ? 1 : 3; /* forged in fewer of them */
        assert_true(sum.accepted > 167 * least && sum.verified - sum.accepted > 100 * least);
    }
    free(current);
}

static void test_schedules(void **state) {
    (void)state;
    check_schedules(false);
}

static void test_cuda(void **state) {
    (void)state;
    test_need_cuda();
    check_schedules(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_cuda)};
    test_filter();
    return cmocka_run_group_tests(tests, NULL, close_models);
}
