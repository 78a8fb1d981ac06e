/* What was used lately: against a list that is kept by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/recent.h"
#include "support/chat_support.h"

typedef struct thing {
    di_recent_entry recent;
    char key[8];
} thing;

static int n_freed;

static void free_thing(di_recent_entry *entry) {
    n_freed++;
    free(entry);
}

static thing *make(int key, size_t bytes) {
    thing *t = calloc(1, sizeof *t);
    assert_non_null(t);
    snprintf(t->key, sizeof t->key, "%d", key);
    t->recent = (di_recent_entry){.key = t->key, .key_size = strlen(t->key), .bytes = bytes};
    return t;
}

static thing *find(const di_recent *set, int key) {
    char text[8];
    snprintf(text, sizeof text, "%d", key);
    return (thing *)di_recent_find(set, text, strlen(text));
}

enum { N_KEYS = 3000, MOST = 500 };

/* Keys by their last use, the newest first, and their bytes. */
typedef struct model {
    int keys[N_KEYS];
    size_t sizes[N_KEYS];
    int n;
} model;

static int place_of(const model *m, int key) {
    int i = 0;
    while (i < m->n && m->keys[i] != key) i++;
    return i;
}

static void drop(model *m, int i) {
    memmove(m->keys + i, m->keys + i + 1, (size_t)(m->n - i - 1) * sizeof *m->keys);
    memmove(m->sizes + i, m->sizes + i + 1, (size_t)(m->n - i - 1) * sizeof *m->sizes);
    m->n--;
}

static void put_first(model *m, int key, size_t size) {
    memmove(m->keys + 1, m->keys, (size_t)m->n * sizeof *m->keys);
    memmove(m->sizes + 1, m->sizes, (size_t)m->n * sizeof *m->sizes);
    m->keys[0] = key;
    m->sizes[0] = size;
    m->n++;
}

static size_t sum(const model *m) {
    size_t bytes = 0;
    for (int i = 0; i < m->n; i++) bytes += m->sizes[i];
    return bytes;
}

static void compare(const di_recent *set, const model *m) {
    int i = 0;
    assert_int_equal(set->bytes, sum(m));
    for (const di_recent_entry *e = set->newest; e; e = e->older, i++) {
        assert_true(i < m->n);
        assert_int_equal(atoi(e->key), m->keys[i]);
    }
    assert_int_equal(i, m->n);
}

static void one_step(di_recent *set, model *m, uint64_t *random) {
    int key = (int)chat_random(random, N_KEYS), at = place_of(m, key);
    thing *t = find(set, key);
    assert_int_equal(t != NULL, at < m->n);
    uint32_t what = chat_random(random, 4);
    if (t && what < 3) {
        size_t size = m->sizes[at];
        di_recent_use(set, &t->recent);
        drop(m, at);
        put_first(m, key, size);
    } else if (t) {
        di_recent_drop(set, &t->recent);
        drop(m, at);
    } else {
        size_t size = 1 + chat_random(random, chat_random(random, 100) == 0 ? MOST + 10 : 9);
        t = make(key, size);
        bool fits = di_recent_add(set, &t->recent);
        assert_int_equal(fits, size <= MOST);
        if (!fits) free(t);
        if (!fits) return;
        while (sum(m) + size > MOST) m->n--;
        put_first(m, key, size);
    }
}

static void as_a_list(void **state) {
    (void)state;
    static di_recent set;
    static model m;
    uint64_t random = 7;
    di_recent_init(&set, MOST, free_thing);
    for (int i = 0; i < 20000; i++) {
        one_step(&set, &m, &random);
        if (i % 16 == 0) compare(&set, &m);
    }
    assert_true(m.n > 20);
    n_freed = 0;
    di_recent_deinit(&set);
    assert_int_equal(n_freed, m.n);
    assert_int_equal(set.bytes, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_a_list)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
