/* Sequences on a small pool: admission, promises, hits, settling, adoption, forks, replays. After
 * every step the invariants are checked with all sequences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

enum { N_SEQUENCES = 4, MAX_PAGES = 8, T = DI_PAGE_TOKENS };

typedef struct fixture {
    di_kv *kv;
    di_kv_sequence sequence[N_SEQUENCES];
    di_kv_name root;
    int32_t ids[MAX_PAGES * T];
    di_kv_name names[MAX_PAGES];
    di_kv_prompt prompt;
} fixture;

static di_error error;

static void start(fixture *f, int32_t n_pages, bool prefix_cache) {
    memset(f, 0, sizeof *f);
    assert_int_equal(di_kv_create(n_pages, prefix_cache, &f->kv, &error), DI_OK);
    for (int i = 0; i < N_SEQUENCES; i++) {
        assert_int_equal(di_kv_sequence_init(&f->sequence[i], MAX_PAGES, &error), DI_OK);
    }
    di_kv_root root = {.numerics = "float", .kernels = "ref"};
    f->root = di_kv_name_root(&root);
    for (int i = 0; i < MAX_PAGES * T; i++) f->ids[i] = i;
    di_kv_name_chain(&f->root, f->ids, NULL, MAX_PAGES, f->names);
    f->prompt = (di_kv_prompt){.root = f->root, .names = f->names, .n_pages = MAX_PAGES};
}

static void check(fixture *f) {
    const di_kv_sequence *all[N_SEQUENCES];
    for (int i = 0; i < N_SEQUENCES; i++) all[i] = &f->sequence[i];
    if (di_kv_check(f->kv, all, N_SEQUENCES, &error) != DI_OK) fail_msg("%s", error.message);
}

static void stop(fixture *f) {
    for (int i = 0; i < N_SEQUENCES; i++) {
        di_kv_release(f->kv, &f->sequence[i]);
        di_kv_sequence_deinit(&f->sequence[i]);
    }
    di_kv_destroy(f->kv);
}

/* Settles all it can and returns how many pages were named and how many adopted. */
static void settle(fixture *f, int which, int64_t n_settled, int named, int adopted) {
    int is_named = 0, is_adopted = 0;
    for (di_kv_settled s;
         (s = di_kv_settle(f->kv, &f->sequence[which], f->ids, NULL, n_settled));) {
        is_named += s == DI_KV_NAMED;
        is_adopted += s == DI_KV_ADOPTED;
        check(f);
    }
    assert_int_equal(is_named, named);
    assert_int_equal(is_adopted, adopted);
}

/* Admits, grows to n_tokens, settles, releases: leaves the prompt's beginning in the cache. */
static void leave(fixture *f, int which, int64_t n_tokens, int32_t n_total) {
    assert_true(di_kv_admit(f->kv, &f->sequence[which], &f->prompt, MAX_PAGES, n_total));
    assert_true(di_kv_extend(f->kv, &f->sequence[which], n_tokens));
    while (di_kv_settle(f->kv, &f->sequence[which], f->ids, NULL, n_tokens)) {
    }
    di_kv_release(f->kv, &f->sequence[which]);
    check(f);
}

static void test_init(void **state) {
    (void)state;
    di_kv_sequence s;
    assert_int_equal(di_kv_sequence_init(&s, 0, &error), DI_ERR_USAGE);
    di_kv_sequence_deinit(&s);
}

/* Promises bind: what is promised is there, and what is not is refused whole. */
static void test_promises(void **state) {
    (void)state;
    fixture f;
    start(&f, 10, true);
    di_kv_sequence *a = &f.sequence[0], *b = &f.sequence[1], *c = &f.sequence[2];
    assert_false(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, MAX_PAGES + 1)); /* too long, ever */
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 6));
    assert_int_equal(di_kv_spare(f.kv), 4);
    assert_false(di_kv_admit(f.kv, b, &f.prompt, MAX_PAGES, 5));
    check(&f);
    assert_true(di_kv_admit(f.kv, b, &f.prompt, MAX_PAGES, 2));
    assert_true(di_kv_reserve(f.kv, b, 1));
    assert_false(di_kv_reserve(f.kv, b, 2)); /* one is left */
    assert_false(di_kv_reserve(f.kv, b, 6)); /* more than the sequence may have */
    assert_int_equal(b->n_reserved, 3);
    assert_true(di_kv_admit(f.kv, c, &f.prompt, MAX_PAGES, 0)); /* nothing promised */
    assert_true(di_kv_extend(f.kv, c, 1));                      /* the last one that is spare */
    assert_int_equal(di_kv_spare(f.kv), 0);
    assert_false(di_kv_extend(f.kv, c, T + 1));
    assert_int_equal(c->n_pages, 1);
    check(&f);
    for (int32_t i = 1; i <= 6; i++) {
        assert_true(di_kv_extend(f.kv, a, (int64_t)(i - 1) * T + 1));
        assert_int_equal(a->n_pages, i);
        assert_int_equal(a->n_reserved, 6 - i);
        assert_true(di_kv_extend(f.kv, a, (int64_t)i * T)); /* fits already */
        assert_int_equal(a->n_pages, i);
        check(&f);
    }
    assert_false(di_kv_extend(f.kv, a, 6 * T + 1));
    assert_true(di_kv_extend(f.kv, b, 3 * T));
    assert_false(di_kv_extend(f.kv, b, (int64_t)MAX_PAGES * T + 1));
    assert_false(di_kv_extend(f.kv, b, INT64_MAX));
    di_kv_release(f.kv, a);
    check(&f);
    assert_int_equal(di_kv_spare(f.kv), 6);
    assert_true(di_kv_extend(f.kv, c, 7 * T));
    stop(&f);
}

/* Only whole pages below the settled position get names; released ones are found again. */
static void test_settle_and_hit(void **state) {
    (void)state;
    fixture f;
    start(&f, 6, true);
    di_kv_sequence *a = &f.sequence[0], *b = &f.sequence[1];
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 0);
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 4));
    assert_memory_equal(&a->tail, &f.root, sizeof f.root);
    assert_true(di_kv_extend(f.kv, a, 3 * T + 5));
    settle(&f, 0, T - 1, 0, 0);
    settle(&f, 0, 3 * T - 12, 2, 0);
    assert_int_equal(a->n_named, 2);
    assert_memory_equal(&a->tail, &f.names[1], sizeof f.root);
    settle(&f, 0, 3 * T + 5, 1, 0);
    settle(&f, 0, 5 * T, 1, 0); /* all four pages, and nothing beyond those it has */
    settle(&f, 0, 8 * T, 0, 0);

    di_kv_match match = di_kv_find(f.kv, &f.prompt, MAX_PAGES);
    assert_int_equal(match.n_pages, 4);
    assert_int_equal(match.n_cached, 0);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, 2).n_pages, 2);
    f.prompt.n_pages = 3;
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 3);
    f.prompt.n_pages = MAX_PAGES;
    assert_true(di_kv_admit(f.kv, b, &f.prompt, 2, 3));
    assert_int_equal(b->n_pages, 2);
    assert_int_equal(b->n_named, 2);
    assert_int_equal(b->n_reserved, 1);
    assert_memory_equal(b->pages, a->pages, 2 * sizeof *a->pages);
    assert_memory_equal(&b->tail, &f.names[1], sizeof f.root);
    check(&f);
    int32_t pages[4];
    memcpy(pages, a->pages, sizeof pages);
    di_kv_release(f.kv, a);
    check(&f);
    match = di_kv_find(f.kv, &f.prompt, MAX_PAGES);
    assert_int_equal(match.n_pages, 4);
    assert_int_equal(match.n_cached, 2);
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 4));
    assert_memory_equal(a->pages, pages, sizeof pages);
    di_kv_stats s = di_kv_get_stats(f.kv);
    assert_int_equal(s.admissions, 3);
    assert_int_equal(s.hit_pages, 2 + 4);
    assert_int_equal(s.miss_pages, 8 + 0 + 4);
    assert_int_equal(s.named, 4);
    stop(&f);
}

/* A divergent prompt shares what it has in common and no more. */
static void test_partial_hit(void **state) {
    (void)state;
    fixture f;
    start(&f, 8, true);
    leave(&f, 0, 3 * T, 3);
    f.ids[T + 63]++; /* the last id of the second page */
    di_kv_name_chain(&f.root, f.ids, NULL, MAX_PAGES, f.names);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 1);
    leave(&f, 1, 3 * T, 3);
    di_kv_stats s = di_kv_get_stats(f.kv);
    assert_int_equal(s.named, 5);
    assert_int_equal(s.n_cached, 5);
    stop(&f);
}

static void test_tenants_do_not_meet(void **state) {
    (void)state;
    fixture f;
    start(&f, 8, true);
    leave(&f, 0, 2 * T, 2);
    di_kv_root other = {.numerics = "float", .kernels = "ref", .salt = "b", .salt_bytes = 1};
    di_kv_prompt theirs = f.prompt;
    di_kv_name names[2];
    theirs.root = di_kv_name_root(&other);
    theirs.names = names;
    theirs.n_pages = 2;
    di_kv_name_chain(&theirs.root, f.ids, NULL, 2, names);
    assert_int_equal(di_kv_find(f.kv, &theirs, MAX_PAGES).n_pages, 0);
    assert_true(di_kv_admit(f.kv, &f.sequence[1], &theirs, MAX_PAGES, 2));
    assert_true(di_kv_extend(f.kv, &f.sequence[1], 2 * T));
    settle(&f, 1, 2 * T, 2, 0); /* own pages, not those of the first */
    assert_int_equal(di_kv_get_stats(f.kv).n_named, 2);
    assert_int_equal(di_kv_get_stats(f.kv).n_cached, 2);
    stop(&f);
}

/* Two sequences compute the same pages at the same time: one copy stays. */
static void test_adoption(void **state) {
    (void)state;
    fixture f;
    start(&f, 6, true);
    di_kv_sequence *a = &f.sequence[0], *b = &f.sequence[1];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 3));
    assert_true(di_kv_admit(f.kv, b, &f.prompt, MAX_PAGES, 3));
    assert_true(di_kv_extend(f.kv, a, 3 * T));
    assert_true(di_kv_extend(f.kv, b, 3 * T));
    settle(&f, 0, T, 1, 0);
    assert_int_equal(di_kv_settle(f.kv, b, f.ids, NULL, T), DI_KV_ADOPTED);
    assert_int_equal(b->pages[0], a->pages[0]);
    assert_int_equal(di_kv_get_stats(f.kv).n_free, 1);
    settle(&f, 1, 3 * T, 2, 0); /* the second is ahead now */
    settle(&f, 0, 3 * T, 0, 2);
    assert_memory_equal(a->pages, b->pages, 3 * sizeof *a->pages);
    di_kv_stats s = di_kv_get_stats(f.kv);
    assert_int_equal(s.adopted, 3);
    assert_int_equal(s.named, 3);
    assert_int_equal(s.n_free, 3);
    di_kv_release(f.kv, b);
    check(&f);
    stop(&f);
}

/* Adopting a page that is only cached keeps promises covered in a full pool. */
static void test_adoption_of_cached(void **state) {
    (void)state;
    fixture f;
    start(&f, 4, true);
    leave(&f, 0, T, 1);
    di_kv_sequence *a = &f.sequence[1], *b = &f.sequence[2];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, 0, 1)); /* takes no hit */
    assert_true(di_kv_extend(f.kv, a, T));
    assert_true(di_kv_admit(f.kv, b, &f.prompt, 0, 3));
    assert_int_equal(di_kv_spare(f.kv), 0);
    settle(&f, 1, T, 0, 1);
    assert_int_equal(di_kv_spare(f.kv), 0);
    assert_true(di_kv_extend(f.kv, b, 3 * T));
    check(&f);
    stop(&f);
}

/* Hits on cached pages use up what could be promised: one more than there is must be refused. */
static void test_cached_hits_cost(void **state) {
    (void)state;
    fixture f;
    start(&f, 4, true);
    leave(&f, 0, 2 * T, 2);
    assert_true(di_kv_admit(f.kv, &f.sequence[0], &f.prompt, 0, 3)); /* evicts one, in time */
    assert_int_equal(di_kv_spare(f.kv), 1);
    assert_false(di_kv_admit(f.kv, &f.sequence[1], &f.prompt, 2, 2));
    check(&f);
    assert_true(di_kv_admit(f.kv, &f.sequence[1], &f.prompt, 1, 1));
    check(&f);
    assert_true(di_kv_admit(f.kv, &f.sequence[2], &f.prompt, 1, 1)); /* held already: free */
    check(&f);
    assert_true(di_kv_extend(f.kv, &f.sequence[0], 3 * T));
    check(&f);
    stop(&f);
}

/* The end of a chain goes before its beginning, the older chain before the newer. */
static void test_eviction_order(void **state) {
    (void)state;
    fixture f;
    start(&f, 6, true);
    leave(&f, 0, 3 * T, 3);
    di_kv_prompt first = f.prompt;
    di_kv_name names[MAX_PAGES];
    memcpy(names, f.names, sizeof names);
    first.names = names;
    f.ids[0]++;
    di_kv_name_chain(&f.root, f.ids, NULL, MAX_PAGES, f.names);
    leave(&f, 0, 3 * T, 3);
    assert_true(di_kv_admit(f.kv, &f.sequence[0], &f.prompt, 0, 6));
    for (int32_t i = 1; i <= 6; i++) {
        assert_true(di_kv_extend(f.kv, &f.sequence[0], (int64_t)i * T));
        int32_t of_first = i < 3 ? 3 - i : 0, of_second = i < 3 ? 3 : 6 - i;
        assert_int_equal(di_kv_find(f.kv, &first, MAX_PAGES).n_pages, of_first);
        assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, of_second);
        check(&f);
    }
    assert_int_equal(di_kv_get_stats(f.kv).evicted, 6);
    stop(&f);
}

static void test_fork(void **state) {
    (void)state;
    fixture f;
    start(&f, 8, true);
    di_kv_sequence *a = &f.sequence[0], *b = &f.sequence[1], *c = &f.sequence[2];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 4));
    assert_true(di_kv_extend(f.kv, a, 2 * T + 10 + 60)); /* four pages: 138 tokens and overrun */
    settle(&f, 0, 2 * T + 10, 2, 0);
    assert_false(di_kv_fork(f.kv, a, b, 2 * T + 10, 7)); /* 5 of its own, 4 are left */
    check(&f);
    assert_true(di_kv_fork(f.kv, a, b, 2 * T + 10, 4));
    check(&f);
    assert_int_equal(b->n_named, 2);
    assert_int_equal(b->n_pages, 3); /* the unfinished page; the overrun's is not copied */
    assert_int_equal(b->n_reserved, 1);
    assert_memory_equal(b->pages, a->pages, 2 * sizeof *a->pages);
    assert_int_not_equal(b->pages[2], a->pages[2]);
    assert_memory_equal(&b->tail, &a->tail, sizeof a->tail);
    assert_int_equal(di_kv_spare(f.kv), 2);
    assert_false(di_kv_fork(f.kv, a, c, 2 * T + 10, MAX_PAGES + 1));
    di_kv_release(f.kv, a);
    check(&f);
    assert_true(di_kv_fork(f.kv, b, c, 2 * T, 2)); /* nothing to copy at a page's boundary */
    assert_int_equal(c->n_pages, 2);
    assert_int_equal(c->n_reserved, 0);
    check(&f);
    stop(&f);
}

/* Pages after a bounded replay: found by those who follow replays, by no others. */
static void test_replay_lineage(void **state) {
    (void)state;
    fixture f;
    start(&f, 16, true);
    leave(&f, 0, 2 * T, 2);
    di_kv_sequence *a = &f.sequence[1], *b = &f.sequence[2];
    di_kv_prompt bounded = f.prompt;
    bounded.follow_replays = true;
    bounded.ids = f.ids;

    assert_true(di_kv_admit(f.kv, a, &bounded, MAX_PAGES, 4));
    assert_int_equal(a->n_pages, 2);
    di_kv_mark_replay(a);
    assert_true(di_kv_extend(f.kv, a, 4 * T));
    settle(&f, 1, 4 * T, 2, 0);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 2);
    assert_int_equal(di_kv_find(f.kv, &bounded, MAX_PAGES).n_pages, 4);

    assert_true(di_kv_admit(f.kv, b, &bounded, MAX_PAGES, 6)); /* the conversation's next turn */
    assert_int_equal(b->n_pages, 4);
    assert_memory_equal(b->pages, a->pages, 4 * sizeof *a->pages);
    assert_memory_equal(&b->tail, &a->tail, sizeof a->tail);
    di_kv_mark_replay(b);
    assert_true(di_kv_extend(f.kv, b, 6 * T));
    settle(&f, 2, 6 * T, 2, 0);
    di_kv_release(f.kv, a);
    di_kv_release(f.kv, b);
    check(&f);
    assert_int_equal(di_kv_find(f.kv, &bounded, MAX_PAGES).n_pages, 6);
    assert_int_equal(di_kv_find(f.kv, &bounded, 5).n_pages, 5);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 2);

    leave(&f, 0, 3 * T, 3); /* an exact run adds its own third page, with other bytes */
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 3);
    assert_int_equal(di_kv_find(f.kv, &bounded, MAX_PAGES).n_pages, 3); /* the plain chain first */
    assert_int_equal(di_kv_get_stats(f.kv).n_cached, 7);

    di_kv_sequence *cold = &f.sequence[3];
    assert_true(di_kv_admit(f.kv, cold, &bounded, 0, 1));
    di_kv_mark_replay(cold); /* without hits there is no replay */
    assert_memory_equal(&cold->tail, &f.root, sizeof f.root);
    stop(&f);
}

static void test_content_counts(void **state) {
    (void)state;
    fixture f;
    start(&f, 8, true);
    uint64_t content[2 * T] = {0};
    content[T + 3] = 99; /* an image in the second page */
    di_kv_sequence *a = &f.sequence[0];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 2));
    assert_true(di_kv_extend(f.kv, a, 2 * T));
    while (di_kv_settle(f.kv, a, f.ids, content, 2 * T)) {
    }
    assert_int_equal(a->n_named, 2);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 1);
    di_kv_name_chain(&f.root, f.ids, content, 2, f.names);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, 2).n_pages, 2);
    stop(&f);
}

static void test_without_prefix_cache(void **state) {
    (void)state;
    fixture f;
    start(&f, 6, false);
    di_kv_sequence *a = &f.sequence[0], *b = &f.sequence[1];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 3));
    assert_true(di_kv_extend(f.kv, a, 3 * T));
    settle(&f, 0, 2 * T, 2, 0);
    assert_int_equal(di_kv_find(f.kv, &f.prompt, MAX_PAGES).n_pages, 0);
    assert_true(di_kv_fork(f.kv, a, b, 3 * T, 3)); /* forks share all the same */
    assert_memory_equal(b->pages, a->pages, 2 * sizeof *a->pages);
    assert_int_not_equal(b->pages[2], a->pages[2]);
    check(&f);
    di_kv_release(f.kv, a);
    di_kv_release(f.kv, b);
    check(&f);
    assert_int_equal(di_kv_get_stats(f.kv).n_free, 6);
    stop(&f);
}

/* The checker itself: each kind of damage is seen. */
static void test_check_sees(void **state) {
    (void)state;
    fixture f;
    start(&f, 6, true);
    di_kv_sequence *a = &f.sequence[0];
    assert_true(di_kv_admit(f.kv, a, &f.prompt, MAX_PAGES, 4));
    assert_true(di_kv_extend(f.kv, a, 3 * T));
    settle(&f, 0, 2 * T, 2, 0);
    const di_kv_sequence *all[] = {a};
    di_kv_sequence broken;
    const di_kv_sequence *wrong[] = {&broken};
    int32_t pages[MAX_PAGES];
    assert_int_equal(di_kv_check(f.kv, all, 1, &error), DI_OK);
    assert_int_equal(di_kv_check(f.kv, NULL, 0, &error), DI_ERR_INVALID);
    broken = *a, broken.n_reserved++;
    assert_int_equal(di_kv_check(f.kv, wrong, 1, &error), DI_ERR_INVALID);
    broken = *a, broken.n_named--;
    assert_int_equal(di_kv_check(f.kv, wrong, 1, &error), DI_ERR_INVALID);
    broken = *a, broken.n_pages--;
    assert_int_equal(di_kv_check(f.kv, wrong, 1, &error), DI_ERR_INVALID);
    memcpy(pages, a->pages, 3 * sizeof *pages);
    pages[0] = a->pages[1], pages[1] = a->pages[0];
    broken = *a, broken.pages = pages;
    assert_int_equal(di_kv_check(f.kv, wrong, 1, &error), DI_ERR_INVALID);
    stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_settle_and_hit),
        cmocka_unit_test(test_partial_hit),
        cmocka_unit_test(test_tenants_do_not_meet),
        cmocka_unit_test(test_adoption),
        cmocka_unit_test(test_adoption_of_cached),
        cmocka_unit_test(test_cached_hits_cost),
        cmocka_unit_test(test_eviction_order),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_replay_lineage),
        cmocka_unit_test(test_content_counts),
        cmocka_unit_test(test_without_prefix_cache),
        cmocka_unit_test(test_check_sees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
