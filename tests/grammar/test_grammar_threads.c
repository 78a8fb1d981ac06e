/* ctest: threads */
/* One grammar, many threads: each follows answers of its own; masks are what one thread alone gets. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/grammar_support.h"

enum { THREADS = 4, ANSWERS = 6 };

typedef struct job {
    di_grammar *grammar;
    uint64_t seed;
    di_buffer text;
} job;

static void *work(void *argument) {
    job *j = argument;
    for (uint64_t i = 0; i < ANSWERS; i++) {
        grammar_sample(j->grammar, j->seed + i, 2, 40, 0, &j->text);
    }
    di_grammar_release(j->grammar);
    return NULL;
}

static void test_threads_share_a_grammar(void **state) {
    (void)state;
    const char *schema = "{\"type\": \"object\", \"additionalProperties\": {\"type\": [\"string\", "
                         "\"array\", \"number\"], \"maxLength\": 9}}";
    di_grammar *shared = grammar_of_schema(schema, NULL);
    pthread_t threads[THREADS];
    job jobs[THREADS] = {0}, alone = {.text = DI_BUFFER_EMPTY};
    for (int i = 0; i < THREADS; i++) {
        jobs[i] = (job){di_grammar_acquire(shared), (uint64_t)(i / 2) * 1000, DI_BUFFER_EMPTY};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &jobs[i]), 0);
    }
    di_grammar_release(shared); /* the threads hold it */
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i += 2) {
        alone = (job){grammar_of_schema(schema, NULL), jobs[i].seed, DI_BUFFER_EMPTY};
        work(&alone);
        for (int k = i; k < i + 2; k++) {
            assert_int_equal(jobs[k].text.size, alone.text.size);
            assert_memory_equal(jobs[k].text.data, alone.text.data, alone.text.size);
        }
        di_buffer_free(&alone.text);
    }
    for (int i = 0; i < THREADS; i++) di_buffer_free(&jobs[i].text);
    grammar_vocabulary_free();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_share_a_grammar)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
