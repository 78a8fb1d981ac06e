/* Many requests through the public face on a page pool that is too small for them: some are
 * cancelled from outside between steps, some stopped by their own callback. Nothing is lost, nothing
 * ends twice, every token is the one that the same request gets alone, memory stays flat, and
 * nothing is held at the end.
 *
 * The default is a short campaign. A long one, as `make accurate` runs it, and another seed:
 *     DI_CAMPAIGN_REQUESTS=10000 DI_CAMPAIGN_SEED=7 test_requests_campaign
 */
/* ctest: slow */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/philox.h"
#include "deepinfer.h"
#include "support/sanitized.h"
#include "support/small_pool.h"

enum {
    CONTEXT = 256,
    MAX_PROMPT = 160,
    MAX_ANSWER = 96,
    TEXT = 4000,
    MAX_CHOICES = 3,
    MAX_TOP = 3,
    MAX_DISTINCT = 300,
    MAX_LIVE = 24
};

static di_error error;
static const char *model;

typedef struct dice {
    uint64_t seed, n;
} dice;

static int32_t below(dice *d, int32_t n) {
    uint32_t words[4];
    di_philox(d->seed, d->n++, 3, words);
    return (int32_t)(words[0] % (uint32_t)n);
}

static bool one_in(dice *d, int32_t n) { return below(d, n) == 0; }

/* ---- Distinct requests, and what each answers alone ---- */

typedef struct token {
    di_token token;
    di_top_token top[MAX_TOP];
} token;

typedef struct answer {
    int32_t n;
    token tokens[MAX_PROMPT + MAX_ANSWER]; /* those that were given, too */
    di_end end;
} answer;

typedef struct distinct {
    int32_t ids[MAX_PROMPT];
    di_token_bias biases[2];
    di_request request;
    answer alone[MAX_CHOICES];
} distinct;

static distinct *all; /* [n_distinct] */
static int32_t n_distinct, n_requests;
static uint64_t seed;

static void roll_sampling(dice *d, distinct *r, int32_t vocab) {
    di_sampling *s = &r->request.sampling;
    *s = di_sampling_defaults();
    s->seed = (uint64_t)below(d, 1 << 30);
    s->temperature = one_in(d, 3) ? 0 : (float)(1 + below(d, 12)) / 8;
    if (one_in(d, 4)) s->top_k = 1 + below(d, 40);
    if (one_in(d, 6)) s->min_p = 0.02f;
    if (one_in(d, 5)) s->repetition_penalty = 1.2f;
    if (one_in(d, 5)) s->presence_penalty = 0.5f;
    if (one_in(d, 5)) s->frequency_penalty = 0.25f;
    if (one_in(d, 5)) {
        for (int i = 0; i < 2; i++) r->biases[i] = (di_token_bias){below(d, vocab), 2};
        s->biases = r->biases;
        s->n_biases = 2;
    }
}

/* A piece of a text, half of them from one of its first places: they begin alike. One in four grows
 * over two ends of pages, which admission promised no room for. */
static void roll_distinct(dice *d, distinct *r, const int32_t *text, int32_t vocab, int32_t eos) {
    bool grows = one_in(d, 4);
    int32_t n = 1 + below(d, one_in(d, 3) ? MAX_PROMPT : 40);
    if (grows) n = 50 + below(d, 14);
    int32_t from = one_in(d, 2) ? 100 * below(d, 3) : below(d, TEXT - MAX_PROMPT);
    memcpy(r->ids, text + from, (size_t)n * sizeof *r->ids);
    r->request = (di_request){
        .ids = r->ids,
        .n_ids = (size_t)n,
        .n_given = one_in(d, 8) ? (size_t)below(d, n + 1) : 0,
        .max_tokens = grows ? MAX_ANSWER - below(d, 20) : 1 + below(d, 16),
        .n_choices = one_in(d, 5) ? 1 + below(d, MAX_CHOICES) : 1,
        .top_logprobs = one_in(d, 4) ? 1 + below(d, MAX_TOP) : 0,
    };
    roll_sampling(d, r, vocab);
    if (grows) {
        r->biases[0] = (di_token_bias){eos, -100};
        r->request.sampling.biases = r->biases;
        r->request.sampling.n_biases = 1;
    }
}

static bool keep_token(void *user, const di_request_token *t) {
    distinct *r = user;
    answer *a = &r->alone[t->choice];
    assert_true((size_t)a->n < sizeof a->tokens / sizeof a->tokens[0]);
    token *kept = &a->tokens[a->n++];
    kept->token = t->token;
    memcpy(kept->top, t->top, (size_t)t->n_top * sizeof *t->top);
    return true;
}

static void keep_end(void *user, const di_request_end *end) {
    distinct *r = user;
    r->alone[end->choice].end = end->end;
}

static di_engine *open_engine(const di_engine_options *options) {
    di_engine *engine;
    if (di_engine_open(model, options, &engine, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return engine;
}

static void step(di_engine *engine, bool *busy) {
    if (di_engine_step(engine, busy, &error) != DI_OK) fail_msg("%s", error.message);
}

/* One at a time, with nothing cached, drafted or ahead. */
static void answer_alone(void) {
    di_engine_options options = di_engine_options_defaults();
    options.context = CONTEXT;
    options.max_batch = 1;
    options.n_threads = 1;
    options.prefix_cache = false;
    options.window_cache = 0;
    options.spec = "off";
    options.steps_ahead = 0;
    di_engine *engine = open_engine(&options);
    for (int32_t i = 0; i < n_distinct; i++) {
        di_request request = all[i].request;
        request.user = &all[i];
        request.on_token = keep_token;
        request.on_end = keep_end;
        assert_int_equal(di_engine_submit(engine, &request, NULL, &error), DI_OK);
        for (bool busy = true; busy;) step(engine, &busy);
        for (int32_t c = 0; c < request.n_choices; c++) assert_true(all[i].alone[c].n > 0);
    }
    di_engine_close(engine);
}

/* ---- One request among others ---- */

typedef struct live {
    const distinct *what; /* NULL: free */
    uint64_t id;
    int32_t number;      /* in the campaign */
    int32_t stop_after;  /* tokens of a choice, then its callback says stop; 0: never */
    int32_t cancel_step; /* steps from now; 0: never */
    bool cancelled;
    int32_t n[MAX_CHOICES], n_ended, ended[MAX_CHOICES];
} live;

static void differs(const live *l, int32_t choice, const char *how) {
    fail_msg("DI_CAMPAIGN_SEED=%" PRIu64
             ", request %d of %d (distinct %d), choice %d, token %d: %s",
             seed, l->number, n_requests, (int)(l->what - all), choice, l->n[choice], how);
}

static bool hear_token(void *user, const di_request_token *t) {
    live *l = user;
    const answer *want = &l->what->alone[t->choice];
    const token *w = &want->tokens[l->n[t->choice]];
    if (l->ended[t->choice]) differs(l, t->choice, "after its end");
    if (l->n[t->choice] >= want->n) differs(l, t->choice, "alone it has ended");
    if (t->token.id != w->token.id) differs(l, t->choice, "another token");
    if (memcmp(&t->token.logprob, &w->token.logprob, sizeof w->token.logprob) != 0) {
        differs(l, t->choice, "another log-probability");
    }
    if (t->n_top != l->what->request.top_logprobs ||
        memcmp(t->top, w->top, (size_t)t->n_top * sizeof *t->top) != 0) {
        differs(l, t->choice, "other alternatives");
    }
    return ++l->n[t->choice] != l->stop_after;
}

static void hear_end(void *user, const di_request_end *end) {
    live *l = user;
    const answer *want = &l->what->alone[end->choice];
    int32_t n = l->n[end->choice];
    bool stopped = l->stop_after > 0 && n == l->stop_after;
    if (++l->ended[end->choice] > 1) differs(l, end->choice, "a second end");
    l->n_ended++;
    if (end->end == DI_END_FAILED) differs(l, end->choice, end->message);
    if (end->end == DI_END_CANCELLED) {
        if (!l->cancelled) differs(l, end->choice, "cancelled, which nobody asked for");
        return;
    }
    if (stopped && n < want->n) {
        if (end->end != DI_END_STOP) differs(l, end->choice, "not stopped");
        return;
    }
    if (n != want->n) differs(l, end->choice, "too short");
    if (end->end != want->end && !stopped) differs(l, end->choice, "another end");
}

/* ---- The campaign ---- */

typedef struct campaign {
    dice dice;
    di_engine *engine;
    live lives[MAX_LIVE];
    int32_t first, n, n_submitted, n_done, n_cancelled; /* n: of this engine */
    long anonymous_kib[2];                              /* after a fifth, and at the end */
} campaign;

/* Resident memory without mapped files: weights come and go. */
static long anonymous_kib(void) {
    long size, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld %ld", &size, &resident, &shared), 3);
    fclose(file);
    return (resident - shared) * (sysconf(_SC_PAGESIZE) / 1024);
}

static void submit(campaign *c, live *l) {
    dice *d = &c->dice;
    *l = (live){.what = &all[below(d, n_distinct)], .number = c->first + c->n_submitted++};
    if (one_in(d, 5)) l->stop_after = 1 + below(d, 20);
    if (one_in(d, 5)) l->cancel_step = 1 + below(d, one_in(d, 2) ? 4 : 60);
    di_request request = l->what->request;
    request.user = l;
    request.on_token = hear_token;
    request.on_end = hear_end;
    if (di_engine_submit(c->engine, &request, &l->id, &error) != DI_OK) {
        differs(l, 0, error.message);
    }
}

static void cancel(campaign *c, live *l) {
    int32_t before = l->n_ended;
    l->cancelled = true;
    bool there = di_engine_cancel(c->engine, l->id);
    if (there != (before < l->what->request.n_choices)) differs(l, 0, "there, or not");
    if (l->n_ended != l->what->request.n_choices) differs(l, 0, "cancelled, and goes on");
    if (di_engine_cancel(c->engine, l->id)) differs(l, 0, "cancelled twice");
    c->n_cancelled += there;
}

static void tend(campaign *c) {
    for (int i = 0; i < MAX_LIVE; i++) {
        live *l = &c->lives[i];
        if (l->what && l->cancel_step > 0 && --l->cancel_step == 0) cancel(c, l);
        if (l->what && l->n_ended == l->what->request.n_choices) {
            l->what = NULL;
            if (++c->n_done == c->n / 5) c->anonymous_kib[0] = anonymous_kib();
        }
        if (!l->what && c->n_submitted < c->n && !one_in(&c->dice, 3)) submit(c, l);
    }
}

static void check_end(const campaign *c, const char *name) {
    di_engine_stats stats = di_engine_get_stats(c->engine);
    assert_int_equal(c->n_done, c->n);
    assert_int_equal(stats.waiting, 0);
    assert_int_equal(stats.running, 0);
    assert_true(stats.pages_used <= stats.pages);
    long grown = c->anonymous_kib[1] - c->anonymous_kib[0];
    print_message("  %s: %d requests, %d cancelled, %" PRIu64 " steps, %" PRId64 " pages, %" PRIu64
                  " pre-emptions, %" PRIu64 " of %" PRIu64 " drafts accepted, %" PRIu64
                  " prompt tokens cached, %ld KiB more\n",
                  name, c->n, c->n_cancelled, stats.steps, stats.pages, stats.preemptions,
                  stats.accepted, stats.verified, stats.cached_tokens, grown);
    if (c->n >= 50) assert_true(c->n_cancelled > 0 && stats.preemptions > 0);
    if (!is_sanitized() && grown > 1024) fail_msg("%s: memory has grown by %ld KiB", name, grown);
    di_engine_forget(c->engine);
    assert_int_equal(di_engine_get_stats(c->engine).pages_used, 0);
}

static const struct {
    const char *name, *spec;
    int32_t max_batch, chunk, n_threads, steps_ahead;
    int32_t n_pages; /* of the pool; 4 are one context, and all of them run on it */
} settings[] = {
    {"plain", "off", 8, 64, 1, 1, 4},
    {"fixed", "fixed", 8, 40, 1, 1, 4},
    {"scheduled", "scheduled", 8, 64, 2, 1, 4},
    {"in turn", "scheduled", 8, 16, 1, 0, 4},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

static void stands_still(const campaign *c, const di_engine_stats *now) {
    for (int i = 0; i < MAX_LIVE; i++) {
        const live *l = &c->lives[i];
        if (!l->what) continue;
        const di_request *r = &l->what->request;
        print_message("  request %d: %zu tokens, %zu given, %d choices, %d ended; the first has %d "
                      "of %" PRId64 "\n",
                      l->number, r->n_ids, r->n_given, r->n_choices, l->n_ended, l->n[0],
                      r->max_tokens);
    }
    fail_msg("DI_CAMPAIGN_SEED=%" PRIu64
             ", %d requests: the engine stands still after step %" PRIu64 ", %" PRId64
             " run and %" PRId64 " wait, %" PRId64 " of %" PRId64 " pages are used",
             seed, n_requests, now->steps, now->running, now->waiting, now->pages_used, now->pages);
}

static void run_setting(int i) {
    campaign c = {.dice = {seed, (uint64_t)(i + 1) << 32},
                  .first = (int32_t)((int64_t)n_requests * i / N_SETTINGS)};
    c.n = (int32_t)((int64_t)n_requests * (i + 1) / N_SETTINGS) - c.first;
    di_engine_options options = di_engine_options_defaults();
    options.context = CONTEXT;
    options.window_cache = 1 << 20;
    options.spec = settings[i].spec;
    options.max_batch = settings[i].max_batch;
    options.chunk = settings[i].chunk;
    options.n_threads = settings[i].n_threads;
    options.steps_ahead = settings[i].steps_ahead;
    options.memory = small_pool_memory(model, &options, settings[i].n_pages);
    c.engine = open_engine(&options);
    uint64_t steps = 0;
    int32_t still = 0; /* calls since the engine took a step */
    for (bool busy = true; busy || c.n_done < c.n;) {
        tend(&c);
        step(c.engine, &busy);
        di_engine_stats now = di_engine_get_stats(c.engine);
        still = busy && now.steps == steps ? still + 1 : 0;
        steps = now.steps;
        if (still > 1000) stands_still(&c, &now);
    }
    c.anonymous_kib[1] = anonymous_kib();
    assert_int_equal(di_engine_get_stats(c.engine).pages, settings[i].n_pages);
    check_end(&c, settings[i].name);
    di_engine_close(c.engine);
}

static void test_campaign(void **state) {
    (void)state;
    for (int i = 0; i < N_SETTINGS; i++) run_setting(i);
}

/* ---- Set-up ---- */

static void roll_all(void) {
    static int32_t text[TEXT];
    dice d = {seed, 0};
    di_engine_options options = di_engine_options_defaults();
    di_engine *engine = open_engine(&options);
    di_engine_info info = di_engine_get_info(engine);
    di_engine_close(engine);
    for (int i = 0; i < TEXT; i++) text[i] = below(&d, info.vocab_size);
    for (int32_t i = 0; i < n_distinct; i++) {
        roll_distinct(&d, &all[i], text, info.vocab_size, info.eos_token);
    }
}

static int setup(void **state) {
    (void)state;
    const char *number = getenv("DI_CAMPAIGN_REQUESTS"), *given = getenv("DI_CAMPAIGN_SEED");
    n_requests = number ? (int32_t)strtol(number, NULL, 10) : is_sanitized() ? 40 : 240;
    n_distinct = n_requests / 5 < MAX_DISTINCT ? n_requests / 5 + 1 : MAX_DISTINCT;
    seed = given ? strtoull(given, NULL, 10) : 1;
    all = calloc((size_t)n_distinct, sizeof *all);
    if (!all) return -1;
    roll_all();
    answer_alone();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(all);
    return 0;
}

static bool can_compute(void) {
    di_engine_options options = di_engine_options_defaults();
    di_engine *engine = NULL;
    options.context = CONTEXT;
    di_status status = di_engine_open(model, &options, &engine, &error);
    di_engine_close(engine);
    return status != DI_ERR_UNSUPPORTED;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_campaign)};
    const char *other = getenv("DI_CAMPAIGN_MODEL");
    model = other ? other : DI_SOURCE_DIR "/tests/data/golden/tiny-a/model";
    if (!can_compute()) return 77;
    return cmocka_run_group_tests(tests, setup, teardown);
}
