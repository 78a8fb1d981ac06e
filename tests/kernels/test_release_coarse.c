/* Release numerics of the operations that the model calls, each from the stored inputs of its first
 * step to the stored outputs of its last (tests/support/release_coarse.h), for every backend. */
/* ctest: gpu */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/device.h"
#include "support/release_coarse.h"
#include "support/release_runner.h"
#include "support/release_vectors.h"

/* The kinds of which something differs. */
static void print_kinds(const release_score *score) {
    for (int i = 0; i < score->n_kinds; i++) {
        const release_kind *kind = &score->kinds[i];
        if (kind->equal == kind->size) continue;
        print_message("  %-28s %lld of %lld differ\n", kind->name,
                      (long long)(kind->size - kind->equal), (long long)kind->size);
    }
}

static void run_all(const char *directory, int n_coarse, int n_kinds, const char *backend) {
    static release_op ops[RELEASE_MAX_OPS];
    release_file file;
    device dev;
    release_score score = {0};
    release_open(&file, directory);
    if (!device_open(&dev, backend, DI_NUMERICS_RELEASE, 2)) {
        release_close(&file);
        print_message("%s: this machine cannot run it\n", backend);
        skip();
    }
    di_limits limits = release_limits(&file);
    device_prepare(&dev, &limits);
    int n = release_list(&file, ops), runs = 0;
    for (int i = 0; i < n; i++) {
        runs += release_run_coarse(&file, &ops[i], &dev, &score);
        if (device_reset(&dev) > 0) {
            fail_msg("%s.%s wrote beside its outputs", ops[i].scope, ops[i].op);
        }
    }
    int64_t failures = release_finish(&score);
    print_kinds(&score);
    if (failures > 0) {
        fail_msg("%s, %s: %lld complaints; %s", backend, directory, (long long)failures,
                 score.first);
    }
    print_message("%s, %s: %d operations, %d kinds; FP32 within %.1e\n", backend, directory, runs,
                  score.n_kinds, score.worst_f32);
    assert_int_equal(runs, n_coarse);
    assert_int_equal(score.n_kinds, n_kinds);
    device_close(&dev);
    release_close(&file);
}

enum { OPS_A = 82, OPS_B = 75, KINDS = 20 };

static void test_a(void **state) {
    run_all("tests/data/golden/tiny-a", OPS_A, KINDS, (const char *)*state);
}
static void test_b(void **state) {
    run_all("tests/data/golden/tiny-b", OPS_B, KINDS, (const char *)*state);
}

int main(void) {
    static char ref[] = "ref", cpu[] = "cpu", cuda[] = "cuda";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_a, ref),    cmocka_unit_test_prestate(test_b, ref),
        cmocka_unit_test_prestate(test_a, cpu),    cmocka_unit_test_prestate(test_b, cpu),
        {"test_a_cuda", test_a, NULL, NULL, cuda}, {"test_b_cuda", test_b, NULL, NULL, cuda},
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
