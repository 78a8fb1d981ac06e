/* Release numerics, operation by operation, against stored vectors (tests/support/release_vectors.h
 * has the rule), for every backend; and the proof that the rule can fail: deliberately wrong
 * variants of operations, each of which it must reject. */
/* ctest: gpu */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats.h"
#include "support/device.h"
#include "support/release_runner.h"
#include "support/release_vectors.h"

typedef struct checkpoint_facts {
    const char *directory;
    int n_ops;         /* stored operations */
    int64_t n_outputs; /* their outputs, marks of near ties left out */
} checkpoint_facts;

static const checkpoint_facts facts[2] = {
    {"tests/data/golden/tiny-a", 381, 697},
    {"tests/data/golden/tiny-b", 356, 643},
};

/* ---- Every stored operation, on a backend ---- */

static void run_all(const checkpoint_facts *fact, const char *backend) {
    static release_op ops[RELEASE_MAX_OPS];
    release_file file;
    device dev;
    release_score score = {0};
    release_open(&file, fact->directory);
    if (!device_open(&dev, backend, DI_NUMERICS_RELEASE, 2)) {
        release_close(&file);
        print_message("%s: this machine cannot run it\n", backend);
        skip();
    }
    di_limits limits = release_limits(&file);
    device_prepare(&dev, &limits);
    int n = release_list(&file, ops);
    assert_int_equal(n, fact->n_ops);
    for (int i = 0; i < n; i++) {
        if (!release_run(&file, &ops[i], &dev, &score)) {
            fail_msg("%s.%s was not run", ops[i].scope, ops[i].op);
        }
        if (device_reset(&dev) > 0) {
            fail_msg("%s.%s wrote beside its outputs", ops[i].scope, ops[i].op);
        }
    }
    int64_t failures = release_finish(&score);
    if (failures > 0) {
        fail_msg("%s, %s: %lld complaints; %s", backend, fact->directory, (long long)failures,
                 score.first);
    }
    assert_int_equal(score.outputs, fact->n_outputs);
    assert_int_equal(release_count_outputs(&file), fact->n_outputs);
    int64_t size = 0, equal = 0;
    for (int i = 0; i < score.n_kinds; i++) {
        size += score.kinds[i].size;
        equal += score.kinds[i].equal;
    }
    print_message(
        "%s, %s: %d operations, %lld outputs; BF16 equal %.6f of %lld; FP32 within %.1e\n", backend,
        fact->directory, n, (long long)score.outputs, (double)equal / (double)size, (long long)size,
        score.worst_f32);
    device_close(&dev);
    release_close(&file);
}

static void test_ref_a(void **state) { (void)state, run_all(&facts[0], "ref"); }
static void test_ref_b(void **state) { (void)state, run_all(&facts[1], "ref"); }
static void test_cpu_a(void **state) { (void)state, run_all(&facts[0], "cpu"); }
static void test_cpu_b(void **state) { (void)state, run_all(&facts[1], "cpu"); }
static void test_cuda_a(void **state) { (void)state, run_all(&facts[0], "cuda"); }
static void test_cuda_b(void **state) { (void)state, run_all(&facts[1], "cuda"); }

/* ---- The rule itself ---- */

enum { N = 1000 };
static float rule_want[N];
static double rule_got[N];

static void fill_rule(void) {
    for (int i = 0; i < N; i++) {
        rule_want[i] = di_bf16_round((float)(1.0 + 0.01 * (i % 100)) * (i % 3 ? 1.0f : -1.0f));
        rule_got[i] = (double)rule_want[i];
    }
}

static double step_from(float value, int steps) {
    return (double)di_bf16_decode((uint16_t)(di_bf16_encode(value) + steps));
}

static int64_t judge_bf16(void) {
    release_score score = {0};
    release_compare_bf16(&score, "rule", "rule", rule_want, rule_got, N / 100, 100);
    return release_finish(&score);
}

static void test_rule_bf16(void **state) {
    (void)state;
    fill_rule();
    assert_int_equal(judge_bf16(), 0);
    for (int i = 0; i < 5; i++) rule_got[i * 190] = step_from(rule_want[i * 190], 1);
    assert_int_equal(judge_bf16(), 0); /* 99.5 % equal, the rest one step */
    rule_got[17] = step_from(rule_want[17], 1);
    assert_int_equal(judge_bf16(), 1); /* one more is too many */
    fill_rule();
    rule_got[500] = step_from(rule_want[500], 2);
    assert_int_equal(judge_bf16(), 1); /* two steps */
    fill_rule();
    rule_want[500] = di_bf16_round(1e-7f); /* terms cancelled: many steps, but far below the row */
    rule_got[500] = (double)di_bf16_round(9e-7f);
    assert_int_equal(judge_bf16(), 0);
    rule_got[500] = (double)di_bf16_round(4e-6f);
    assert_int_equal(judge_bf16(), 1);
    fill_rule();
    rule_got[3] = NAN;
    assert_int_equal(judge_bf16(), 1);
    fill_rule();
    rule_want[3] = -INFINITY;
    assert_int_equal(judge_bf16(), 1);
    rule_got[3] = -INFINITY;
    assert_int_equal(judge_bf16(), 0);
    fill_rule();
    rule_got[3] += 1e-6; /* close to the right value, but never rounded */
    assert_int_equal(judge_bf16(), 1);
    fill_rule();
    rule_want[3] = 0; /* both zeros are one value */
    rule_got[3] = -0.0;
    assert_int_equal(judge_bf16(), 0);
}

static void test_rule_others(void **state) {
    (void)state;
    release_score score = {0};
    float want[4] = {1, -2, 0, 0.5f};
    double got[4] = {1, -2, (double)1.9e-5f, 0.5};
    release_compare_f32(&score, "f32", want, got, 4);
    assert_int_equal(score.failures, 0); /* of the largest, 2 */
    got[2] = (double)2.1e-5f;
    release_compare_f32(&score, "f32", want, got, 4);
    assert_int_equal(score.failures, 1);
    got[2] = NAN;
    release_compare_f32(&score, "f32", want, got, 4);
    assert_int_equal(score.failures, 2);
    release_score other = {0};
    got[2] = 1e-10; /* close, but no float32 */
    release_compare_f32(&other, "f32", want, got, 4);
    assert_int_equal(other.failures, 1);

    uint8_t codes[3] = {1, 2, 3}, wrong_codes[3] = {1, 3, 3}, near[3] = {0, 2, 0};
    release_compare_codes(&score, "codes", codes, codes, near, 3);
    assert_int_equal(score.failures, 2);
    release_compare_codes(&score, "codes", codes, wrong_codes, near, 3);
    assert_int_equal(score.failures, 3); /* an exact tie has one right code */
    near[1] = 1;
    release_compare_codes(&score, "codes", codes, wrong_codes, near, 3);
    assert_int_equal(score.failures, 3);
    int32_t picks[2] = {4, 7}, wrong[2] = {7, 4};
    release_compare_ints(&score, "ints", picks, wrong, 2);
    assert_int_equal(score.failures, 5);
    assert_string_equal(score.first, "f32: element 2 is 2.09999998e-05, expected 0");
}

/* ---- Wrong variants ---- */

/* A variant computes one kind of operation on the host; `wrong` 0 must pass, others must fail, and
 * so must 0 without any rounding. */
typedef struct variant {
    const char *op;
    int n_wrong;
    void (*run)(const release_file *file, const release_op *op, int wrong, double *out);
} variant;

static bool rounding = true; /* false: no operation of a variant rounds */
static double bf(double x) { return rounding ? (double)di_bf16_round((float)x) : x; }

static const float *in(const release_file *file, const release_op *op, const char *part) {
    return release_floats(release_part(file, op, part));
}

static float bf16_at(const di_tensor *t, int64_t i) {
    uint16_t word;
    memcpy(&word, t->data + 2 * i, 2);
    return di_bf16_decode(word);
}

static const di_tensor *layer_tensor(const release_file *file, const release_op *op,
                                     const char *name) {
    char full[128];
    int number = 0;
    bool draft = sscanf(op->scope, "layer%d", &number) != 1;
    if (draft) assert_int_equal(sscanf(op->scope, "draft%d", &number), 1);
    snprintf(full, sizeof full, "%s.%d.%s", draft ? "mtp" : "layers", number, name);
    const di_tensor *t = di_checkpoint_find(file->checkpoint, full);
    assert_non_null(t);
    return t;
}

/* The scores of one head's list and where they are; returns how many. */
static int list_scores(const release_file *file, const release_op *op, int64_t t, int64_t h,
                       double *scores, int64_t *keys, int *block) {
    const di_tensor *q = release_part(file, op, "in.q"),
                    *slots = release_part(file, op, "in.slots");
    const float *k = in(file, op, "in.keys");
    int64_t heads = q->shape[1], d = q->shape[2], n_slots = slots->shape[1];
    const float *x = release_floats(q) + (t * heads + h) * d;
    int32_t *list = release_ints(slots);
    double scale = (double)(float)(1 / sqrt((double)d));
    int n = 0;
    for (int64_t i = 0; i < n_slots; i++) {
        int32_t key = list[t * n_slots + i];
        if (key < 0) continue;
        double dot = 0;
        for (int64_t c = 0; c < d; c++) dot += (double)x[c] * (double)k[key * d + c];
        scores[n] = (double)(float)(dot * scale);
        block[n] = (int)(i / 64);
        keys[n++] = key;
    }
    free(list);
    return n;
}

enum { SINK_IN_MAXIMUM = 1, UNROUNDED, FINAL_MAXIMUM, ROUNDED_SUM };

static void attend_head(const release_file *file, const release_op *op, int wrong, int64_t t,
                        int64_t h, double sink, double *out) {
    const di_tensor *q = release_part(file, op, "in.q");
    const float *k = in(file, op, "in.keys");
    int64_t d = q->shape[2], keys[512];
    double scores[512], top = -1e30, total = 0;
    int block[512], n = list_scores(file, op, t, h, scores, keys, block), last = 0;
    for (int64_t c = 0; c < d; c++) out[c] = 0;
    if (wrong == SINK_IN_MAXIMUM) top = sink;
    for (int i = 0; wrong == FINAL_MAXIMUM && i < n; i++) top = fmax(top, scores[i]);
    for (int begin = 0; begin < n; begin = last) {
        double before = top;
        for (last = begin; last < n && block[last] == block[begin]; last++) {
            top = fmax(top, scores[last]);
        }
        double shrink = exp(before - top);
        total *= shrink;
        for (int64_t c = 0; c < d; c++) out[c] *= shrink;
        for (int i = begin; i < last; i++) {
            double p = exp(scores[i] - top), b = wrong == UNROUNDED ? p : bf(p);
            total += wrong == ROUNDED_SUM ? b : p;
            for (int64_t c = 0; c < d; c++) out[c] += b * (double)k[keys[i] * d + c];
        }
    }
    total += exp(sink - top);
    for (int64_t c = 0; c < d; c++) out[c] = bf(out[c] / total);
}

static void attend_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *q = release_part(file, op, "in.q");
    const di_tensor *own = release_find(file, op, "in.sink");
    const di_tensor *sink = own != NULL ? own : layer_tensor(file, op, "attn.attn_sink");
    int64_t heads = q->shape[1], d = q->shape[2];
    for (int64_t i = 0; i < q->shape[0] * heads; i++) {
        float s;
        memcpy(&s, sink->data + 4 * (i % heads), 4);
        attend_head(file, op, wrong, i / heads, i % heads, (double)s, out + i * d);
    }
}

static double silu(double x) { return x / (1 + exp(-x)); }

/* wrong 1: the routing weight after the rounding of h. */
static void swiglu_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *gate = release_part(file, op, "in.gate");
    const float *g = release_floats(gate), *u = in(file, op, "in.up"),
                *w = in(file, op, "in.weights");
    double limit = file->config.swiglu_limit;
    for (int64_t i = 0; i < release_count(gate); i++) {
        double h = silu(fmin((double)g[i], limit)) * fmin(fmax((double)u[i], -limit), limit);
        double weight = (double)w[i / gate->shape[1]];
        out[i] = wrong ? bf(weight * bf(h)) : bf(weight * h);
    }
}

/* wrong 1: RMSNorm rounded before the weight as well. */
static void norm_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *x = release_part(file, op, "in");
    const di_tensor *weight = layer_tensor(file, op, "attn_norm.weight");
    const float *v = release_floats(x);
    int64_t width = x->shape[1];
    for (int64_t t = 0; t < x->shape[0]; t++) {
        double sum = 0;
        for (int64_t i = 0; i < width; i++)
            sum += (double)v[t * width + i] * (double)v[t * width + i];
        double root = sqrt(sum / (double)width + file->config.rms_norm_eps);
        for (int64_t i = 0; i < width; i++) {
            double y = (double)v[t * width + i] / root;
            out[t * width + i] = bf((wrong ? bf(y) : y) * (double)bf16_at(weight, i));
        }
    }
}

/* wrong 1: scores in FP32, one rounding at the end. */
static void scores_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *q = release_part(file, op, "in.q"), *keys = release_part(file, op, "in.keys");
    int32_t *visible = release_ints(release_part(file, op, "in.visible"));
    const float *w = in(file, op, "in.weights"), *k = release_floats(keys), *x = release_floats(q);
    int64_t heads = q->shape[1], d = q->shape[2], n = keys->shape[0];
    for (int64_t i = 0; i < q->shape[0] * n; i++) {
        int64_t t = i / n, j = i % n;
        double sum = 0;
        for (int64_t h = 0; h < heads; h++) {
            double dot = 0;
            for (int64_t c = 0; c < d; c++) {
                dot += (double)x[(t * heads + h) * d + c] * (double)k[j * d + c];
            }
            double term = fmax(wrong ? dot : bf(dot), 0) * (double)w[t * heads + h];
            sum += wrong ? term : bf(term);
        }
        out[i] = j < visible[t] ? bf(sum) : -INFINITY;
    }
    free(visible);
}

/* wrong 1: experts summed in BF16. */
static void sum_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *routed = release_part(file, op, "in.routed");
    const float *r = release_floats(routed), *s = in(file, op, "in.shared");
    int64_t k = routed->shape[1], width = routed->shape[2];
    for (int64_t i = 0; i < routed->shape[0] * width; i++) {
        double y = 0;
        for (int64_t e = 0; e < k; e++) {
            y += (double)r[(i / width * k + e) * width + i % width];
            y = wrong ? bf(y) : (double)(float)y;
        }
        out[i] = bf(y + (double)s[i]);
    }
}

/* wrong 1: probabilities and products of the pooling in BF16. */
static void pool_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *kv = release_part(file, op, "in.kv");
    const float *c = release_floats(kv), *g = in(file, op, "in.gate");
    int64_t ratio = kv->shape[1], width = kv->shape[2];
    for (int64_t i = 0; i < kv->shape[0] * width; i++) {
        int64_t at = i / width * ratio * width + i % width;
        double top = -INFINITY, total = 0, sum = 0;
        for (int64_t r = 0; r < ratio; r++) top = fmax(top, (double)g[at + r * width]);
        for (int64_t r = 0; r < ratio; r++) total += exp((double)g[at + r * width] - top);
        for (int64_t r = 0; r < ratio; r++) {
            double p = exp((double)g[at + r * width] - top) / total, v = (double)c[at + r * width];
            sum += wrong ? bf(bf(p) * bf(v)) : p * v;
        }
        out[i] = bf(sum);
    }
}

/* wrong 1: a quantised wo_a input. */
static void wo_a_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *o = release_part(file, op, "in"),
                    *w = layer_tensor(file, op, "attn.wo_a.weight");
    const di_tensor *scale = layer_tensor(file, op, "attn.wo_a.scale");
    int64_t groups = file->config.o_groups, n = w->shape[0], k = w->shape[1], rows = o->shape[0];
    for (int64_t i = 0; i < rows * n; i++) {
        int64_t t = i / n, row = i % n, g = row / (n / groups);
        const float *x = release_floats(o) + t * groups * k + g * k;
        double sum = 0;
        for (int64_t b = 0; b < k; b += 32) {
            double largest = 1e-4, s;
            for (int64_t c = b; c < b + 32; c++) largest = fmax(largest, fabs((double)x[c]));
            s = exp2(ceil(log2(largest / 448)));
            for (int64_t c = b; c < b + 32; c++) {
                double value = (double)x[c];
                if (wrong) value = s * (double)di_e4m3_decode(di_e4m3_encode((float)(value / s)));
                sum += value * (double)di_e4m3_decode(w->data[row * k + c]) *
                       (double)di_e8m0_decode(scale->data[row / 32 * (k / 32) + c / 32]);
            }
        }
        out[i] = bf(sum);
    }
}

/* wrong 1: a rounded product in the gate's sum. The stored gate stands in for its computation. */
static void gate_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *streams = release_part(file, op, "in.streams");
    const float *h = release_floats(streams), *kv = in(file, op, "in.kv");
    const float *gate = in(file, op, "out.gate");
    int64_t hc = streams->shape[1], width = streams->shape[2];
    for (int64_t i = 0; i < release_count(streams); i++) {
        int64_t t = i / (hc * width), d = i % width;
        double term = (double)gate[i / width] * (double)kv[t * (hc + 1) * width + hc * width + d];
        out[i] = bf((double)h[i] + (wrong ? bf(term) : term));
    }
}

/* wrong 1: rounded terms in the streams. */
static void expand_variant(const release_file *file, const release_op *op, int wrong, double *out) {
    const di_tensor *streams = release_part(file, op, "in.streams");
    const float *x = release_floats(streams), *y = in(file, op, "in");
    const float *post = in(file, op, "in.post"), *comb = in(file, op, "in.comb");
    int64_t hc = streams->shape[1], width = streams->shape[2];
    for (int64_t i = 0; i < release_count(streams); i++) {
        int64_t t = i / (hc * width), k = i / width % hc, d = i % width;
        double first = (double)post[t * hc + k] * (double)y[t * width + d], sum = 0;
        for (int64_t j = 0; j < hc; j++) {
            sum += (double)comb[(t * hc + j) * hc + k] * (double)x[(t * hc + j) * width + d];
        }
        out[i] = wrong ? bf(bf(first) + bf(sum)) : bf(first + sum);
    }
}

static const variant variants[] = {
    {"attend", 4, attend_variant},      {"expert_h", 1, swiglu_variant},
    {"attn_norm", 1, norm_variant},     {"index_scores", 1, scores_variant},
    {"moe_sum", 1, sum_variant},        {"compressor_pool", 1, pool_variant},
    {"wo_a", 1, wo_a_variant},          {"engram_gate", 1, gate_variant},
    {"attn_expand", 1, expand_variant},
};

/* Complaints about one variant over all scopes of a file; wrong -1: not rounded at all. */
static int64_t judge_variant(const release_file *file, const release_op *ops, int n,
                             const variant *v, int wrong) {
    release_score score = {0};
    for (int i = 0; i < n; i++) {
        if (strcmp(ops[i].op, v->op) != 0) continue;
        const di_tensor *want = release_part(file, &ops[i], "out");
        int64_t count = release_count(want), width = want->shape[want->n_dims - 1];
        double *got = malloc((size_t)count * sizeof *got);
        assert_non_null(got);
        rounding = wrong >= 0;
        v->run(file, &ops[i], rounding ? wrong : 0, got);
        rounding = true;
        release_compare_bf16(&score, ops[i].scope, v->op, release_floats(want), got, count / width,
                             width);
        free(got);
    }
    assert_true(score.outputs > 0);
    return release_finish(&score);
}

static void test_wrong_variants_are_caught(void **state) {
    (void)state;
    static release_op ops[RELEASE_MAX_OPS];
    for (int f = 0; f < 2; f++) {
        release_file file;
        release_open(&file, facts[f].directory);
        int n = release_list(&file, ops), caught = 0;
        for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
            for (int wrong = -1; wrong <= variants[i].n_wrong; wrong++) {
                int64_t complaints = judge_variant(&file, ops, n, &variants[i], wrong);
                if ((complaints > 0) != (wrong != 0)) {
                    fail_msg("%s: variant %d of %s has %lld complaints", facts[f].directory, wrong,
                             variants[i].op, (long long)complaints);
                }
                caught += wrong != 0;
            }
        }
        assert_int_equal(caught, 21);
        release_close(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule_bf16),
        cmocka_unit_test(test_rule_others),
        cmocka_unit_test(test_wrong_variants_are_caught),
        cmocka_unit_test(test_ref_a),
        cmocka_unit_test(test_ref_b),
        cmocka_unit_test(test_cpu_a),
        cmocka_unit_test(test_cpu_b),
        cmocka_unit_test(test_cuda_a),
        cmocka_unit_test(test_cuda_b),
    };
    test_filter();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
