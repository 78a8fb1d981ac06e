/* Random operations on a small pool, against a model that is a plain list of pages with a clock.
 *
 * The model knows the rules in their simplest form (the page unused for longest goes; a promise is
 * a number) and says what every call must answer and what every count must be. Beside it each page
 * has "bytes": the name of what was last written there; whoever is given a page as a hit, by
 * adoption or by a fork must find the bytes that the name says. di_kv_check runs after every call.
 *
 *     DI_SEED=n test_kv_property    runs one seed, the one that a failure named
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/philox.h"
#include "kv/kv.h"

enum { T = DI_PAGE_TOKENS, MAX_PAGES = 7, MAX_POOL = 24, N_SEQUENCES = 5, N_SEEDS = 200 };
enum { N_OPERATIONS = 500 };

/* A named page in the model. */
typedef struct node {
    di_kv_name name;
    int32_t refs;
    uint64_t unused_since; /* the clock when refs became 0 */
} node;

typedef struct model_sequence {
    bool alive;
    di_kv_name root;
    int32_t ids[MAX_PAGES * T];
    di_kv_name tail;
    di_kv_name names[MAX_PAGES]; /* of the first n_named pages */
    int32_t n_pages, n_named, n_reserved;
} model_sequence;

typedef struct world {
    uint64_t seed, n_random, clock;
    di_kv *kv;
    int32_t n_pool;
    bool cache;
    node nodes[MAX_POOL];
    int32_t n_nodes, n_free;
    di_kv_name bytes[MAX_POOL]; /* of every page of the device */
    di_kv_sequence real[N_SEQUENCES];
    model_sequence model[N_SEQUENCES];
} world;

static di_error error;

#define MUST(w, condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fail_msg("seed %llu, after %llu random numbers: %s", (unsigned long long)(w)->seed,    \
                     (unsigned long long)(w)->n_random, #condition);                               \
        }                                                                                          \
    } while (0)

static int32_t pick(world *w, int32_t n) {
    uint32_t words[4];
    di_philox(w->seed, w->n_random++, 0, words);
    return (int32_t)(words[0] % (uint32_t)n);
}

/* ---- The model ---- */

static int32_t find_node(const world *w, const di_kv_name *name) {
    for (int32_t i = 0; i < w->n_nodes; i++) {
        if (di_kv_name_equal(&w->nodes[i].name, name)) return i;
    }
    return -1;
}

static int32_t n_cached(const world *w) {
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_nodes; i++) n += w->nodes[i].refs == 0;
    return n;
}

static int32_t spare(const world *w) {
    int32_t n = w->n_free + n_cached(w);
    for (int32_t i = 0; i < N_SEQUENCES; i++) n -= w->model[i].n_reserved;
    return n;
}

static void remove_node(world *w, int32_t i) {
    w->nodes[i] = w->nodes[--w->n_nodes];
    w->n_free++;
}

static void model_take(world *w) {
    if (w->n_free == 0) {
        int32_t oldest = -1;
        for (int32_t i = 0; i < w->n_nodes; i++) {
            if (w->nodes[i].refs > 0) continue;
            if (oldest < 0 || w->nodes[i].unused_since < w->nodes[oldest].unused_since) oldest = i;
        }
        MUST(w, oldest >= 0);
        remove_node(w, oldest);
    }
    w->n_free--;
}

static void model_release(world *w, model_sequence *m) {
    w->n_free += m->n_pages - m->n_named;
    for (int32_t i = m->n_named; i-- > 0;) {
        int32_t at = find_node(w, &m->names[i]);
        w->nodes[at].unused_since = w->clock++;
        if (--w->nodes[at].refs == 0 && !w->cache) remove_node(w, at);
    }
    *m = (model_sequence){0};
}

/* The names that are there from the beginning of ids on; with follow, after replays too. */
static int32_t model_walk(const world *w, const di_kv_name *root, const int32_t *ids, int32_t limit,
                          bool follow, di_kv_name *names) {
    di_kv_name tail = *root;
    int32_t n = 0;
    while (w->cache && n < limit) {
        names[n] = di_kv_name_page(&tail, ids + (size_t)n * T, NULL);
        if (find_node(w, &names[n]) < 0 && follow && n > 0) {
            di_kv_name after = di_kv_name_replay(&tail, (int64_t)n * T);
            names[n] = di_kv_name_page(&after, ids + (size_t)n * T, NULL);
        }
        if (find_node(w, &names[n]) < 0) break;
        tail = names[n++];
    }
    return n;
}

/* ---- Both agree ---- */

static void compare_sequence(world *w, int32_t which) {
    const model_sequence *m = &w->model[which];
    const di_kv_sequence *r = &w->real[which];
    MUST(w, r->n_pages == m->n_pages);
    MUST(w, r->n_named == m->n_named);
    MUST(w, r->n_reserved == m->n_reserved);
    for (int32_t i = 0; i < m->n_named; i++) {
        if (w->cache) MUST(w, di_kv_name_equal(&w->bytes[r->pages[i]], &m->names[i]));
    }
    if (w->cache && m->alive) MUST(w, di_kv_name_equal(&r->tail, &m->tail));
}

static void compare(world *w) {
    const di_kv_sequence *all[N_SEQUENCES];
    int32_t n_private = 0, cached = n_cached(w);
    for (int32_t i = 0; i < N_SEQUENCES; i++) {
        all[i] = &w->real[i];
        n_private += w->model[i].n_pages - w->model[i].n_named;
        compare_sequence(w, i);
    }
    if (di_kv_check(w->kv, all, N_SEQUENCES, &error) != DI_OK) {
        fail_msg("seed %llu: %s", (unsigned long long)w->seed, error.message);
    }
    di_kv_stats s = di_kv_get_stats(w->kv);
    MUST(w, s.n_free == w->n_free);
    MUST(w, s.n_private == n_private);
    MUST(w, s.n_cached == cached);
    MUST(w, s.n_named == w->n_nodes - cached);
    MUST(w, di_kv_spare(w->kv) == spare(w));
}

/* ---- Operations ---- */

/* Few beginnings, so that sequences meet: two roots, and two kinds of each page. */
static void make_prompt(world *w, model_sequence *m) {
    di_kv_root root = {.numerics = "float", .kernels = pick(w, 4) ? "a" : "b"};
    m->root = m->tail = di_kv_name_root(&root);
    for (int32_t page = 0; page < MAX_PAGES; page++) {
        int32_t kind = pick(w, 3) == 0;
        for (int32_t i = 0; i < T; i++) m->ids[page * T + i] = kind * 1000 + i;
    }
}

static void admit(world *w, int32_t which) {
    model_sequence *m = &w->model[which];
    di_kv_name plain[MAX_PAGES], found[MAX_PAGES];
    make_prompt(w, m);
    di_kv_name_chain(&m->root, m->ids, NULL, MAX_PAGES, plain);
    di_kv_prompt prompt = {.root = m->root,
                           .names = plain,
                           .n_pages = pick(w, MAX_PAGES + 1),
                           .follow_replays = pick(w, 2) == 0,
                           .ids = m->ids};
    int32_t max_hits = pick(w, 3) ? MAX_PAGES : pick(w, MAX_PAGES);
    int32_t total = pick(w, MAX_PAGES + 1);
    int32_t limit = max_hits < prompt.n_pages ? max_hits : prompt.n_pages;
    int32_t hits = model_walk(w, &m->root, m->ids, limit, prompt.follow_replays, found);
    int32_t fresh = total > hits ? total - hits : 0, from_cache = 0;
    for (int32_t i = 0; i < hits; i++) from_cache += w->nodes[find_node(w, &found[i])].refs == 0;
    di_kv_match match = di_kv_find(w->kv, &prompt, max_hits);
    MUST(w, match.n_pages == hits);
    MUST(w, match.n_cached == from_cache);

    bool want = total <= w->n_pool && from_cache + fresh <= spare(w);
    bool is = di_kv_admit(w->kv, &w->real[which], &prompt, max_hits, total);
    MUST(w, is == want);
    if (!is) {
        *m = (model_sequence){0};
        return;
    }
    m->alive = true;
    m->n_pages = m->n_named = hits;
    m->n_reserved = fresh;
    for (int32_t i = 0; i < hits; i++) {
        w->nodes[find_node(w, &found[i])].refs++;
        m->names[i] = m->tail = found[i];
    }
    if (!prompt.follow_replays || hits == 0) return;
    di_kv_mark_replay(&w->real[which]);
    m->tail = di_kv_name_replay(&m->tail, (int64_t)hits * T);
}

static void extend(world *w, int32_t which) {
    model_sequence *m = &w->model[which];
    int32_t n_tokens = pick(w, MAX_PAGES * T + 70);
    int32_t wanted = (n_tokens + T - 1) / T, n = wanted - m->n_pages;
    int32_t promised = n < m->n_reserved ? n : m->n_reserved;
    bool want = n <= 0 || (wanted <= MAX_PAGES && n - promised <= spare(w));
    MUST(w, di_kv_extend(w->kv, &w->real[which], n_tokens) == want);
    if (!want || n <= 0) return;
    m->n_reserved -= promised;
    for (int32_t i = 0; i < n; i++) {
        model_take(w);
        memset(&w->bytes[w->real[which].pages[m->n_pages++]], 0, sizeof w->bytes[0]);
    }
}

static void reserve(world *w, int32_t which) {
    model_sequence *m = &w->model[which];
    int32_t n = pick(w, 4);
    bool want = n <= MAX_PAGES - m->n_pages - m->n_reserved && n <= spare(w);
    MUST(w, di_kv_reserve(w->kv, &w->real[which], n) == want);
    if (want) m->n_reserved += n;
}

static void settle(world *w, int32_t which) {
    model_sequence *m = &w->model[which];
    di_kv_sequence *r = &w->real[which];
    int64_t settled = pick(w, MAX_PAGES * T + 1);
    for (;;) {
        int32_t i = m->n_named;
        di_kv_settled want = DI_KV_NOTHING;
        di_kv_name name = {{0}};
        int32_t at = -1;
        if (i < m->n_pages && (int64_t)(i + 1) * T <= settled) {
            name = di_kv_name_page(&m->tail, m->ids + (size_t)i * T, NULL);
            if (w->cache) w->bytes[r->pages[i]] = name; /* computed by now */
            if (!w->cache) memcpy(name.bytes, &w->clock, sizeof w->clock), w->clock++;
            at = find_node(w, &name);
            want = at >= 0 ? DI_KV_ADOPTED : DI_KV_NAMED;
        }
        int32_t own = i < m->n_pages ? r->pages[i] : -1;
        MUST(w, di_kv_settle(w->kv, r, m->ids, NULL, settled) == want);
        if (want == DI_KV_NOTHING) return;
        MUST(w, (r->pages[i] == own) == (want == DI_KV_NAMED));
        if (at >= 0) {
            w->n_free++;
        } else {
            w->nodes[at = w->n_nodes++] = (node){name, 0, 0};
        }
        w->nodes[at].refs++;
        m->names[m->n_named++] = m->tail = name;
        compare(w);
    }
}

static void fork_to(world *w, int32_t from, int32_t to) {
    model_sequence *a = &w->model[from], *b = &w->model[to];
    if (a->n_pages == 0) return;
    int32_t held = a->n_named + pick(w, a->n_pages - a->n_named + 1);
    int32_t total = pick(w, MAX_PAGES + 1), later = total > held ? total - held : 0;
    int32_t n_tokens = held * T - (held > a->n_named ? pick(w, T) : 0);
    bool want = total <= w->n_pool && held - a->n_named + later <= spare(w);
    MUST(w, di_kv_fork(w->kv, &w->real[from], &w->real[to], n_tokens, total) == want);
    if (!want) return;
    *b = *a;
    for (int32_t i = 0; i < a->n_named; i++) w->nodes[find_node(w, &a->names[i])].refs++;
    for (int32_t i = a->n_named; i < held; i++) {
        model_take(w);
        w->bytes[w->real[to].pages[i]] = w->bytes[w->real[from].pages[i]];
    }
    b->n_pages = held;
    b->n_reserved = later;
}

static void step(world *w) {
    int32_t which = pick(w, N_SEQUENCES), other = pick(w, N_SEQUENCES);
    model_sequence *m = &w->model[which];
    if (!m->alive) {
        admit(w, which);
        return;
    }
    switch (pick(w, 9)) {
    case 0:
    case 1:
    case 2: extend(w, which); break;
    case 3:
    case 4: settle(w, which); break;
    case 5: reserve(w, which); break;
    case 6:
        if (!w->model[other].alive) fork_to(w, which, other);
        break;
    case 7:
        di_kv_release(w->kv, &w->real[which]);
        model_release(w, m);
        break;
    default:
        if (pick(w, 20) != 0) break;
        di_kv_forget(w->kv);
        for (int32_t i = w->n_nodes; i-- > 0;) {
            if (w->nodes[i].refs == 0) remove_node(w, i);
        }
    }
}

static void run_seed(uint64_t seed) {
    static world w;
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.n_pool = w.n_free = 4 + pick(&w, MAX_POOL - 3);
    w.cache = pick(&w, 6) != 0;
    assert_int_equal(di_kv_create(w.n_pool, w.cache, &w.kv, &error), DI_OK);
    for (int i = 0; i < N_SEQUENCES; i++) {
        assert_int_equal(di_kv_sequence_init(&w.real[i], MAX_PAGES, &error), DI_OK);
    }
    for (int i = 0; i < N_OPERATIONS; i++) {
        step(&w);
        compare(&w);
    }
    for (int i = 0; i < N_SEQUENCES; i++) {
        di_kv_release(w.kv, &w.real[i]);
        model_release(&w, &w.model[i]);
        compare(&w);
        di_kv_sequence_deinit(&w.real[i]);
    }
    di_kv_stats s = di_kv_get_stats(w.kv);
    assert_int_equal(s.n_free + s.n_cached, w.n_pool); /* nothing leaks */
    assert_int_equal(s.n_reserved, 0);
    di_kv_destroy(w.kv);
}

static void test_against_model(void **state) {
    (void)state;
    const char *one = getenv("DI_SEED");
    if (one) {
        run_seed(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= N_SEEDS; seed++) run_seed(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
