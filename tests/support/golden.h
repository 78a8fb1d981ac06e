/* Golden vectors and small models, for tests: opens a model of tests/data or models, feeds it, and
 * reads stored arrays. Every helper fails the test (cmocka) instead of returning an error. */
#ifndef DI_TESTS_SUPPORT_GOLDEN_H
#define DI_TESTS_SUPPORT_GOLDEN_H

#include "model/model.h"

/* TEST_QUEUE: "cpu" behind a queue. TEST_SPLIT_*: with a host, "cpu" or for late "ref", that computes
 * the routed experts of all layers but the first. */
typedef enum test_backend {
    TEST_REF,
    TEST_CPU,
    TEST_LATE,
    TEST_QUEUE,
    TEST_CUDA,
    TEST_SPLIT_LATE,
    TEST_SPLIT_QUEUE,
    TEST_SPLIT_CUDA
} test_backend;

typedef struct test_model {
    di_backend *backend;
    di_backend *host; /* NULL unless TEST_SPLIT_* */
    di_model *model;
    di_context *context;
    const di_config *config;
} test_model;

typedef struct test_model_options {
    test_backend backend;
    di_numerics numerics;
    int32_t n_threads;          /* cpu, queue; 0: 1 thread */
    di_context_options context; /* n_slots 0: defaults with max_rows = max_out = 1024 */
} test_model_options;

/* Skips the test where there is no GPU, and says why. Before anything else is opened or taken. */
void test_need_cuda(void);

/* `directory` is relative to the source tree, or absolute. */
void test_model_open(test_model *m, const char *directory, const test_model_options *options);
void test_model_close(test_model *m);

/* Appends n tokens to slot in one step and returns logits of the listed rows, [n_out][V],
 * malloc'ed; NULL when n_out is 0. */
float *test_feed(test_model *m, int32_t slot, const int32_t *ids, int32_t n,
                 const int32_t *out_rows, int32_t n_out);
/* The same with logits of every row. */
float *test_feed_all(test_model *m, int32_t slot, const int32_t *ids, int32_t n);

/* Stored array of a safetensors file; fails the test when it is absent or of another type. */
const di_tensor *golden_tensor(const di_safetensors *file, const char *name);
const float *golden_f32(const di_safetensors *file, const char *name, int64_t *count);
/* Any integer type, widened; malloc'ed. */
int64_t *golden_int(const di_safetensors *file, const char *name, int64_t *count);
bool golden_has(const di_safetensors *file, const char *name);

#endif
