/* Twins that follow: a leader that rounds ties the other way is followed, and then agreed with; one
 * that rounds wrongly is not. The leaders are twins as well, with a hand in what they round.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/quantize.h"
#include "kernels/ref/ref.h"
#include "model/network.h"
#include "support/follower.h"

/* What the leader does to vectors of one kind that are stored. */
typedef enum fault {
    FAULT_NOTHING,
    FAULT_TIES,  /* a value next to the middle of two codes gets the other one */
    FAULT_CODE,  /* one code, once, is its neighbour */
    FAULT_ZERO,  /* codes are rounded towards zero */
    FAULT_SCALE, /* scales of one power of two more */
} fault;

typedef struct leader {
    test_model m;
    fault what;
    di_quantizer kind;
    int64_t n_vectors; /* of that kind, so far */
} leader;

static uint8_t encode(di_quantizer kind, double x, double scale) {
    float over = (float)x / (float)scale;
    return kind == DI_Q8 ? di_e4m3_encode(over) : di_e2m1_encode(over);
}

static uint8_t get(di_quantizer kind, const uint8_t *codes, int64_t i) {
    return kind == DI_Q8 ? codes[i] : (uint8_t)(codes[i / 2] >> (i % 2 ? 4 : 0) & 15);
}

static void put(di_quantizer kind, uint8_t *codes, int64_t i, uint8_t code) {
    if (kind == DI_Q8) {
        codes[i] = code;
    } else {
        int shift = i % 2 ? 4 : 0;
        codes[i / 2] = (uint8_t)((codes[i / 2] & ~(15 << shift)) | code << shift);
    }
}

static double value(di_quantizer kind, uint8_t code) {
    return (double)(kind == DI_Q8 ? di_e4m3_decode(code) : di_e2m1_decode(code));
}

/* The code of value i of a block with this scale that the fault wants. */
static uint8_t planted(const leader *l, uint8_t own, double x, double scale, double largest) {
    const double tie = 0.5 * FOLLOWER_NOISE * largest;
    if (l->what == FAULT_TIES) {
        uint8_t less = encode(l->kind, x - tie, scale), more = encode(l->kind, x + tie, scale);
        return own == less ? more : less;
    }
    if (l->what == FAULT_ZERO)
        return fabs(value(l->kind, own)) * scale > fabs(x) ? (uint8_t)(own - 1) : own;
    return encode(l->kind, x, scale); /* FAULT_SCALE */
}

static void disturb(void *user, di_quantizer kind, const double *x, int64_t width, uint8_t *codes,
                    uint8_t *scales) {
    leader *l = user;
    const di_context *c = l->m.context;
    const uint8_t *pool = (const uint8_t *)(uintptr_t)c->at.page_pool.address;
    uint64_t size = (uint64_t)c->pages_per_slot * c->page_bytes;
    bool stored = kind == DI_Q8 || (codes >= pool && (uint64_t)(codes - pool) < size);
    if (l->what == FAULT_NOTHING || kind != l->kind || !stored) return;
    if (l->n_vectors++ != 20 && l->what == FAULT_CODE) return;
    if (l->what == FAULT_CODE) {
        put(kind, codes, 3, get(kind, codes, 3) ^ 1);
        return;
    }
    int64_t block = kind == DI_Q4C ? 16 : 32;
    for (int64_t b = 0; b < width / block; b++) {
        double largest = 0;
        if (l->what == FAULT_SCALE) /* E4M3 has three bits below the exponent */
            scales[b] = (uint8_t)(scales[b] + (kind == DI_Q4C ? 8 : 1));
        double scale =
            (double)(kind == DI_Q4C ? di_e4m3_decode(scales[b]) : di_e8m0_decode(scales[b]));
        for (int64_t i = b * block; i < (b + 1) * block; i++) largest = fmax(largest, fabs(x[i]));
        for (int64_t i = b * block; i < (b + 1) * block; i++) {
            put(kind, codes, i, planted(l, get(kind, codes, i), x[i], scale, largest));
        }
    }
}

/* ---- A prompt and what follows it ---- */

typedef struct outcome {
    double from_twins, from_golden; /* largest differences of logits */
    int64_t n_taken, n_wrong;
} outcome;

static double difference(const float *a, const float *b, int64_t n) {
    double worst = 0;
    for (int64_t i = 0; i < n; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    return worst;
}

/* p7 of tiny-a in one step, then its greedy tokens one by one, until something is wrong. */
static void run_steps(leader *l, follower *f, const di_safetensors *golden, outcome *out) {
    int64_t n, n_greedy, n_want, vocab = l->m.config->vocab_size;
    int64_t *prompt = golden_int(golden, "p7/ids", &n);
    int64_t *greedy = golden_int(golden, "p7/greedy_ids", &n_greedy);
    const float *want = golden_f32(golden, "p7/greedy_logits", &n_want);
    int32_t ids[7];
    assert_int_equal(n, 7);
    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)prompt[i];
    for (int64_t i = -1; i < n_greedy; i++) {
        int32_t id = i < 0 ? 0 : (int32_t)greedy[i], rows = i < 0 ? 7 : 1;
        const int32_t *step = i < 0 ? ids : &id;
        float *mine = test_feed_all(&l->m, 0, step, rows);
        float *twins = follower_feed(f, step, rows);
        out->from_twins = fmax(out->from_twins, difference(mine, twins, rows * vocab));
        if (i >= 0)
            out->from_golden = fmax(out->from_golden, difference(mine, want + i * vocab, vocab));
        free(mine);
        free(twins);
        if (f->n_wrong > 0) break;
    }
    free(prompt);
    free(greedy);
}

static outcome lead(fault what, di_quantizer kind) {
    leader l = {.what = what, .kind = kind};
    follower f;
    di_safetensors *golden;
    di_error error;
    outcome out = {0};
    const char *directory = "tests/data/golden/tiny-a/model";
    const char *path = DI_SOURCE_DIR "/tests/data/golden/tiny-a/golden.safetensors";
    assert_int_equal(di_safetensors_open(path, &golden, &error), DI_OK);
    test_model_open(&l.m, directory, &(test_model_options){TEST_REF, DI_NUMERICS_FLOAT, 1, {0}});
    l.m.backend->stream->rounded = disturb;
    l.m.backend->stream->rounded_user = &l;
    follower_open(&f, directory, &l.m);
    run_steps(&l, &f, golden, &out);
    out.n_taken = f.n_taken;
    out.n_wrong = f.n_wrong;
    follower_close(&f);
    test_model_close(&l.m);
    di_safetensors_close(golden);
    return out;
}

static void test_the_same(void **state) {
    (void)state;
    outcome o = lead(FAULT_NOTHING, DI_Q8);
    assert_int_equal(o.n_taken, 0);
    assert_int_equal(o.n_wrong, 0);
    assert_true(o.from_twins == 0);
    assert_true(o.from_golden < 1e-5);
}

/* They all are followed. One of them, in a compressed entry, lies within 1e-7 of the middle: there
 * float32 paths do part, by more than the bound for stored logits. */
static void test_ties(void **state) {
    (void)state;
    static const di_quantizer kinds[] = {DI_Q8, DI_Q4I, DI_Q4C};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        outcome o = lead(FAULT_TIES, kinds[i]);
        print_message("  kind %d: %ld taken, %.2g from the stored logits, %.2g from the twins\n",
                      (int)kinds[i], (long)o.n_taken, o.from_golden, o.from_twins);
        assert_int_equal(o.n_wrong, 0);
        assert_true(o.from_twins == 0);
        if (kinds[i] != DI_Q4I) assert_true(o.n_taken >= 1); /* no key here lies so near */
        if (kinds[i] == DI_Q4C) assert_true(o.from_golden > 1e-3);
    }
}

static void test_wrong(void **state) {
    (void)state;
    static const di_quantizer kinds[] = {DI_Q8, DI_Q4I, DI_Q4C};
    static const fault faults[] = {FAULT_CODE, FAULT_ZERO, FAULT_SCALE};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t j = 0; j < sizeof faults / sizeof *faults; j++) {
            outcome o = lead(faults[j], kinds[i]);
            print_message("  kind %d, fault %d: %ld wrong\n", (int)kinds[i], (int)faults[j],
                          (long)o.n_wrong);
            assert_true(o.n_wrong >= 1);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
