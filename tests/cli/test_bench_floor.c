/* Floors of the bench: what is read once, what is computed a row, and chunks of a prefill. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/bench_floor.c"

enum { CHUNK = 64 };

static void near(double x, double want) {
    if (!(fabs(x - want) <= 1e-9 * fabs(want))) fail_msg("%.17g is not %.17g", x, want);
}

/* `bytes` and `flops` a second; 1e300 stands for a limit that bounds nothing. */
static di_bench tiny(double bytes, double flops) {
    size_t size;
    di_error error;
    di_bench b = {.peak = {.bytes_per_s = bytes, .flop_per_s = flops}};
    const char *json = di_config_builtin("tiny", &size);
    assert_non_null(json);
    if (di_config_parse(json, size, "tiny", &b.config, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return b;
}

/* The head: read once by a step that has logits, two operations a weight for each of them. */
static void test_head(void **state) {
    (void)state;
    di_bench read = tiny(1, 1e300), compute = tiny(1e300, 1);
    sums s = sums_of(&read);
    double weights = (double)read.config.vocab_size * read.config.hidden_size;
    assert_true(s.head_bytes >= weights);
    near(s.head_values, weights);
    near(di_bench_floor(&read, 1, 1) - di_bench_floor(&read, 1, 0), s.head_bytes);
    near(di_bench_floor(&read, 3, 3), di_bench_floor(&read, 3, 1));
    near(di_bench_floor(&compute, 5, 3) - di_bench_floor(&compute, 5, 0), 2 * weights * 3);
    near(di_bench_floor(&compute, 8, 0), 8 * di_bench_floor(&compute, 1, 0));
}

/* One row reads the experts that it picks; many read all of them; nothing is read twice. */
static void test_experts(void **state) {
    (void)state;
    di_bench b = tiny(1, 1e300);
    sums s = sums_of(&b);
    double part = (double)b.config.num_experts_per_tok / b.config.n_routed_experts;
    near(di_bench_floor(&b, 1, 0), s.dense_bytes + s.expert_bytes * part);
    near(di_bench_floor(&b, 1e6, 0), s.dense_bytes + s.expert_bytes);
    assert_true(s.dense_bytes + s.expert_bytes + s.head_bytes < di_bench_weight_bytes(&b));
}

/* The slower of the two bounds it. */
static void test_larger(void **state) {
    (void)state;
    di_bench read = tiny(1e3, 1e300), compute = tiny(1e300, 1e3), both = tiny(1e3, 1e3);
    for (double rows = 1; rows <= 1024; rows *= 4) {
        double a = di_bench_floor(&read, rows, 1), c = di_bench_floor(&compute, rows, 1);
        near(di_bench_floor(&both, rows, 1), a > c ? a : c);
    }
}

/* Every chunk reads its weights, the last one the head, whether or not it is a whole one. */
static void test_prefill(void **state) {
    (void)state;
    di_bench b = tiny(1, 1e300);
    double whole = di_bench_floor(&b, CHUNK, 0), last = di_bench_floor(&b, CHUNK, 1);
    near(di_bench_prefill_floor(&b, 1, CHUNK), di_bench_floor(&b, 1, 1));
    near(di_bench_prefill_floor(&b, CHUNK - 1, CHUNK), di_bench_floor(&b, CHUNK - 1, 1));
    near(di_bench_prefill_floor(&b, CHUNK, CHUNK), last);
    near(di_bench_prefill_floor(&b, CHUNK + 1, CHUNK), whole + di_bench_floor(&b, 1, 1));
    near(di_bench_prefill_floor(&b, 3 * CHUNK, CHUNK), 2 * whole + last);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_larger),
        cmocka_unit_test(test_prefill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
