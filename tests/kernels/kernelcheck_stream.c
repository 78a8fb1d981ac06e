/* kernelcheck: streams, norms, RoPE, quantisers, elementwise operations. */
#include <stdlib.h>
#include <string.h>

#include "kernelcheck.h"

static const kc_pair none = {{{0}, {0}}};

static di_dtype plain_dtype(const check *c) { return c->round % 3 == 2 ? DI_F32 : DI_BF16; }

/* One round has more tiles of 16 rows than a GPU has processors, so that blocks take a second one. */
enum { LONG_ROWS = 2120 };
void kc_check_mix(check *c) {
    int32_t rows = kc_some_rows(c, 12), hc = c->round % 2 || c->bench ? 4 : kc_pick(c, 1, 8, 4);
    int32_t width = kc_pick_step(c, 8, 300, 4, 5120), iters = kc_pick(c, 1, 20, 20);
    if (!c->bench && c->round % 16 == 15)
        rows = kc_pick(c, LONG_ROWS, KC_MOST_ROWS, 1), width = kc_pick_step(c, 8, 40, 4, 8);
    int32_t n = (2 + hc) * hc;
    kc_style style = kc_style_of(c);
    double eps = style == KC_TINY || style == KC_ZEROS ? 1e-6 : 1e-20;
    kc_pair x = kc_random_a(c, (int64_t)rows * hc * width, style, 1);
    kc_matrix fn = kc_weights(c, DI_F32, n, hc * width, 0.05);
    kc_vector base = kc_weight_vector(c, DI_F32, n, 0, 1),
              scale = kc_weight_vector(c, DI_F32, 3, 1, 0.3);
    kc_pair pre = kc_take_f(c, rows * hc), post = kc_take_f(c, rows * hc);
    kc_pair comb = kc_take_f(c, rows * hc * hc), pre1 = kc_take_f(c, hc), post1 = kc_take_f(c, hc);
    kc_pair comb1 = kc_take_f(c, hc * hc);
    KC_RUN(c, mix, rows, hc, width, iters, eps, 1e-6, x.p[i], fn.m[i], base.v[i], scale.v[i],
           pre.p[i], post.p[i], comb.p[i]);
    kc_compare_f(c, "pre", pre, rows, hc, DI_BOUND_SUM, NULL);
    kc_compare_f(c, "post", post, rows, hc, DI_BOUND_SUM, NULL);
    kc_compare_f(c, "comb", comb, rows, hc * hc, DI_BOUND_SUM, NULL);
    kc_work(c, (double)n * hc * width * 4, 2.0 * n * hc * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, x, (int64_t)r * hc * width);
    KC_RUN(c, mix, 1, hc, width, iters, eps, 1e-6, one.p[i], fn.m[i], base.v[i], scale.v[i],
           pre1.p[i], post1.p[i], comb1.p[i]);
    kc_same_f(c, "pre", pre1, kc_at_f(c, pre, r * hc), hc);
    kc_same_f(c, "post", post1, kc_at_f(c, post, r * hc), hc);
    kc_same_f(c, "comb", comb1, kc_at_f(c, comb, r * hc * hc), hc * hc);
}

void kc_check_sublayer_in(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), hc = kc_pick(c, 1, 8, 4), width = kc_pick(c, 1, 300, 5120);
    kc_style style = kc_style_of(c);
    double eps = style == KC_TINY || style == KC_ZEROS ? 1e-6 : 1e-20;
    kc_pair x = kc_random_a(c, (int64_t)rows * hc * width, style, 1);
    kc_pair pre = kc_uniform_f(c, rows * hc, 0, 1);
    kc_vector norm = kc_weight_vector(c, plain_dtype(c), width, 1, 0.2);
    kc_pair collapsed = c->round % 2 ? none : kc_take_a(c, (int64_t)rows * width);
    kc_pair out = kc_take_a(c, (int64_t)rows * width), out1 = kc_take_a(c, width);
    KC_RUN(c, sublayer_in, rows, hc, width, eps, x.p[i], pre.p[i], norm.v[i], collapsed.p[i],
           out.p[i]);
    if (collapsed.p[0].address != 0) {
        kc_compare_a(c, "collapsed", collapsed, rows, width, DI_BOUND_EXP, NULL);
    }
    kc_compare_a(c, "out", out, rows, width, DI_BOUND_SUM, NULL);
    kc_work(c, (double)(hc + 1) * width * 4, 2.0 * hc * width + 4.0 * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, x, (int64_t)r * hc * width), pre1 = kc_at_f(c, pre, r * hc);
    KC_RUN(c, sublayer_in, 1, hc, width, eps, one.p[i], pre1.p[i], norm.v[i], none.p[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

/* Of whole chunks, but wider than a block of CUDA's has threads for. */
enum { WIDER = 5128 };

void kc_check_sublayer_out(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), hc = kc_pick(c, 1, 8, 4), width = kc_pick(c, 1, 300, 5120);
    if (c->round == 6 && !c->bench) hc = 4, width = WIDER;
    int64_t n = (int64_t)rows * hc * width;
    kc_style style = kc_style_of(c);
    kc_pair y = kc_random_a(c, (int64_t)rows * width, style, 1);
    kc_pair post = kc_uniform_f(c, rows * hc, 0, c->bench ? 0.1 : 2);
    kc_pair comb = kc_uniform_f(c, rows * hc * hc, 0, c->bench ? 0.2 : 1), streams, again;
    float *x = kc_values(c, n, style, 1, true);
    for (int i = 0; i < 2; i++) {
        streams.p[i] = device_put_a(&c->dev[i], x, n);
        again.p[i] = device_put_a(&c->dev[i], x, n);
    }
    free(x);
    KC_RUN(c, sublayer_out, rows, hc, width, y.p[i], post.p[i], comb.p[i], streams.p[i]);
    kc_compare_a(c, "streams", streams, (int64_t)rows * hc, width, DI_BOUND_EXP, NULL);
    kc_work(c, (2.0 * hc + 1) * width * 4, 2.0 * hc * (hc + 1) * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, again, (int64_t)r * hc * width),
            y1 = kc_at_a(c, y, (int64_t)r * width);
    kc_pair post1 = kc_at_f(c, post, r * hc), comb1 = kc_at_f(c, comb, r * hc * hc);
    KC_RUN(c, sublayer_out, 1, hc, width, y1.p[i], post1.p[i], comb1.p[i], one.p[i]);
    kc_same_a(c, "streams", one, kc_at_a(c, streams, (int64_t)r * hc * width), (int64_t)hc * width);
}

void kc_check_stream_mean(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), hc = kc_pick(c, 1, 8, 4), width = kc_pick(c, 1, 300, 5120);
    int64_t stride = width + kc_pick(c, 0, 50, 0);
    /* More rows than a GPU's grid has along y. */
    if (c->round == 5 && !c->bench) rows = 65536 + 100, hc = 2, stride = width = 8;
    kc_pair x = kc_random_a(c, (int64_t)rows * hc * width, kc_style_of(c), 1);
    kc_pair out = kc_take_a(c, rows * stride);
    KC_RUN(c, stream_mean, rows, hc, width, x.p[i], out.p[i], stride);
    bool whole = stride == width;
    for (int32_t t = 0; t < (whole ? 1 : rows); t++) {
        kc_compare_a(c, "out", kc_at_a(c, out, t * stride), whole ? rows : 1, width, DI_BOUND_EXP,
                     NULL);
    }
    kc_work(c, (hc + 1.0) * width * 4, (double)hc * width);
}

void kc_check_rms_norm(check *c) {
    int32_t rows = kc_pick(c, 1, 30, 1), width = kc_pick(c, 1, 400, 5120);
    int64_t n = (int64_t)rows * width;
    kc_style style = kc_style_of(c);
    double eps = style == KC_TINY || style == KC_ZEROS ? 1e-6 : 1e-20;
    kc_pair x = kc_random_a(c, n, style, 1), out = kc_take_a(c, n), out1 = kc_take_a(c, width);
    kc_vector weight = kc_weight_vector(c, plain_dtype(c), width, 1, 0.3);
    KC_RUN(c, rms_norm, rows, width, eps, x.p[i], weight.v[i], out.p[i]);
    kc_compare_a(c, "out", out, rows, width, DI_BOUND_SUM, NULL);
    kc_work(c, 2.0 * width * 4, 4.0 * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, x, (int64_t)r * width);
    KC_RUN(c, rms_norm, 1, width, eps, one.p[i], weight.v[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
    KC_RUN(c, rms_norm, rows, width, eps, x.p[i], weight.v[i], x.p[i]);
    kc_same_a(c, "in place", x, out, n);
}

void kc_check_rope(check *c) {
    int32_t rows = kc_pick(c, 1, 9, 1), heads = kc_pick(c, 1, 6, 64), positions[9];
    int32_t width = kc_pick(c, 8, 160, 512), dims = kc_pick_step(c, 2, 8, 2, 64);
    if (!c->bench && c->round % 2) dims = width / 2 * 2; /* all of it */
    int64_t n = (int64_t)rows * heads * width;
    for (int i = 0; i < 9; i++) positions[i] = kc_pick(c, 0, i % 2 ? 1000000 : 300, 4000);
    kc_pair freq = kc_frequencies(c, dims), at = kc_ints(c, positions, rows), x, again;
    float *values = kc_values(c, n, kc_style_of(c), 1, true);
    for (int i = 0; i < 2; i++) {
        x.p[i] = device_put_a(&c->dev[i], values, n);
        again.p[i] = device_put_a(&c->dev[i], values, n);
    }
    free(values);
    bool inverse = c->round % 4 >= 2;
    KC_RUN(c, rope, rows, heads, width, inverse, {dims, freq.p[i]}, at.p[i], x.p[i]);
    kc_compare_a(c, "x", x, (int64_t)rows * heads, width, DI_BOUND_EXP, NULL);
    kc_work(c, 2.0 * heads * dims * 4, 6.0 * heads * dims / 2);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, again, (int64_t)r * heads * width), at1 = kc_at(at, (uint64_t)r * 4);
    KC_RUN(c, rope, 1, heads, width, inverse, {dims, freq.p[i]}, at1.p[i], one.p[i]);
    kc_same_a(c, "x", one, kc_at_a(c, x, (int64_t)r * heads * width), (int64_t)heads * width);
}

void kc_check_quantize(check *c) {
    di_quantizer kind = (di_quantizer)(c->round % 3);
    int32_t rows = kc_pick(c, 1, 12, 1), width = kc_pick_step(c, 32, 320, 32, 5120);
    if (kind == DI_Q4C && !c->bench) width += 16 * kc_pick(c, 0, 1, 0);
    int64_t n = (int64_t)rows * width, bytes = kind == DI_Q8 ? width : width / 2;
    int64_t block = kind == DI_Q4C ? 16 : 32;
    kc_style style = c->bench ? KC_NORMAL : (kc_style)(kc_bits(c) % KC_N_STYLES);
    float *x = kc_values(c, n, style, 1, true);
    for (int64_t i = 0; i < n && kc_bits(c) % 2; i++) { /* exact ties: small multiples of 1/8 */
        if (style == KC_NORMAL) x[i] = (float)(int)(x[i] * 16) / 8;
    }
    kc_pair in, codes = kc_take(c, (uint64_t)(rows * bytes));
    kc_pair scales = kc_take(c, (uint64_t)(n / block));
    for (int i = 0; i < 2; i++) in.p[i] = device_put_a(&c->dev[i], x, n);
    free(x);
    KC_RUN(c, quantize, rows, width, kind, in.p[i], codes.p[i], scales.p[i]);
    kc_compare_bytes(c, "codes", codes, rows, bytes, NULL);
    kc_compare_bytes(c, "scales", scales, rows, width / block, NULL);
    kc_work(c, (double)width * 5, 0);
}

void kc_check_swiglu(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), width = kc_pick(c, 1, 300, 2304);
    int64_t n = (int64_t)rows * width;
    double limit = c->round % 3 == 0 ? 0 : 2.5;
    kc_style style = kc_style_of(c);
    kc_pair gate = kc_random_a(c, n, style, 2), up = kc_random_a(c, n, style, 2);
    kc_pair weight = c->round % 2 ? none : kc_uniform_f(c, rows, 0, 1.5), out = kc_take_a(c, n);
    KC_RUN(c, swiglu, rows, width, limit, gate.p[i], up.p[i], weight.p[i], out.p[i]);
    kc_compare_a(c, "out", out, rows, width, DI_BOUND_EXP, NULL);
    kc_work(c, 3.0 * width * 4, 0);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0); /* a shift of one value moves vector edges as well */
    kc_pair g1 = kc_at_a(c, gate, (int64_t)r * width), u1 = kc_at_a(c, up, (int64_t)r * width);
    kc_pair w1 = weight.p[0].address == 0 ? none : kc_at_f(c, weight, r),
            out1 = kc_take_a(c, width);
    KC_RUN(c, swiglu, 1, width, limit, g1.p[i], u1.p[i], w1.p[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

void kc_check_combine(check *c) {
    int32_t rows = kc_pick(c, 1, 20, 1), k = kc_pick(c, 1, 8, 6), width = kc_pick(c, 1, 300, 5120);
    if (c->round == 6 && !c->bench) width = WIDER;
    kc_style style = kc_style_of(c);
    kc_pair routed = kc_random_a(c, (int64_t)rows * k * width, style, 1);
    kc_pair shared = kc_random_a(c, (int64_t)rows * width, style, 1);
    kc_pair out = kc_take_a(c, (int64_t)rows * width), out1 = kc_take_a(c, width);
    KC_RUN(c, combine, rows, k, width, routed.p[i], shared.p[i], out.p[i]);
    kc_compare_a(c, "out", out, rows, width, DI_BOUND_EXP, NULL);
    kc_work(c, (k + 2.0) * width * 4, (k + 1.0) * width);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, rows - 1, 0);
    kc_pair one = kc_at_a(c, routed, (int64_t)r * k * width);
    kc_pair s1 = kc_at_a(c, shared, (int64_t)r * width);
    KC_RUN(c, combine, 1, k, width, one.p[i], s1.p[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

void kc_check_pool(check *c) {
    int32_t groups = kc_pick(c, 1, 12, 1), ratio = kc_pick(c, 2, 8, 2),
            width = kc_pick(c, 1, 200, 512);
    int64_t n = (int64_t)groups * ratio * width;
    double spread = c->round % 4 == 3 ? 60 : 2; /* one gate far above the others */
    kc_pair kv = kc_random_f(c, n, 1), gate = kc_random_f(c, n, spread);
    kc_pair out = kc_take_a(c, (int64_t)groups * width), out1 = kc_take_a(c, width);
    KC_RUN(c, pool, groups, ratio, width, kv.p[i], gate.p[i], out.p[i]);
    kc_compare_a(c, "out", out, groups, width, DI_BOUND_EXP, NULL);
    if (c->bench) return;
    int32_t r = kc_pick(c, 0, groups - 1, 0);
    kc_pair kv1 = kc_at_f(c, kv, (int64_t)r * ratio * width);
    kc_pair g1 = kc_at_f(c, gate, (int64_t)r * ratio * width);
    KC_RUN(c, pool, 1, ratio, width, kv1.p[i], g1.p[i], out1.p[i]);
    kc_same_a(c, "out", out1, kc_at_a(c, out, (int64_t)r * width), width);
}

void kc_check_to_f32(check *c) {
    int64_t n = kc_pick(c, 1, 3000, 129280);
    bool from_f = c->round % 2;
    kc_pair src = from_f ? kc_random_f(c, n, 1) : kc_random_a(c, n, kc_style_of(c), 1);
    kc_pair out = kc_take(c, (uint64_t)n * 4);
    KC_RUN(c, to_f32, n, from_f, src.p[i], out.p[i]);
    kc_compare_bytes(c, "out", out, 1, n * 4, NULL);
    kc_work(c, (double)n * 8, 0);
}
