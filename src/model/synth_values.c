/* How a synthetic tensor gets its values.
 *
 * Each element is one of 4096 equally likely draws, looked up in a table of 4096 finished elements
 * that is made for the tensor: normal quantiles times a standard deviation as bf16 or float32, E4M3
 * or E2M1 codes of a normal distribution, or E8M0 exponents spread over a few octaves. So the cost
 * of a byte is a lookup and a quarter of a hash whatever the type is, which makes hundreds of
 * megabytes a second on one core, and any element can be computed alone.
 *
 * The draws come from a counter-based generator (the finaliser of splitmix64 over key + counter),
 * four of 16 bits a word, the key from seed and name.
 *
 * Scale of the values: a product of unit-variance inputs with weights of variance gain^2 / K has
 * standard deviation `gain`; the gains are those that make small random networks of this
 * architecture behave: scores of a few units, routing and selection without ties or dead experts,
 * SwiGLU inputs that reach the clamp, gates on both sides.
 */
#include "model/synth_values.h"

#include <math.h>
#include <string.h>

/* ---- Normal quantiles, by arithmetic that IEEE 754 fixes (+ - * / sqrt): no libm functions, whose
 * last bit is the library's choice ---- */

/* P(|z| < x) by the Maclaurin series of erf; x up to 4 keeps 1e-12. */
static double half_normal(double x) {
    double t = x * sqrt(0.5), term = t, sum = t;
    for (int n = 1; n < 80; n++) {
        term *= -t * t / n;
        sum += term / (2 * n + 1);
    }
    return sum * 1.1283791670955126; /* 2 / sqrt(pi) */
}

static double half_normal_quantile(double p) {
    double low = 0, high = 4;
    for (int i = 0; i < 40; i++) {
        double middle = 0.5 * (low + high);
        if (half_normal(middle) < p) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static void init_normal(synth_tables *t) {
    int half = SYNTH_DRAWS / 2;
    double square = 0;
    for (int i = 0; i < half; i++) {
        double z = half_normal_quantile((i + 0.5) / half);
        square += z * z / half;
        t->normal[i] = z;
    }
    for (int i = 0; i < half; i++) {
        t->normal[i] /= sqrt(square);
        t->normal[half + i] = -t->normal[i];
    }
    for (int i = 0; i < SYNTH_FP4_LEVELS; i++) {
        t->coarse[i] = half_normal_quantile((i + 0.5) / SYNTH_FP4_LEVELS);
    }
}

/* ---- Tables ---- */

static void put_f32(synth_recipe *r, int i, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    for (int b = 0; b < 4; b++) r->own[4 * i + b] = (uint8_t)(bits >> 8 * b);
}

static void put_bf16(synth_recipe *r, int i, double value) {
    float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16; /* nearest, ties to even; never NaN here */
    r->own[2 * i] = (uint8_t)bits;
    r->own[2 * i + 1] = (uint8_t)(bits >> 8);
}

static void fill_normal(synth_recipe *r, const synth_tables *t, double mean, double std) {
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        double value = mean + std * t->normal[i];
        if (r->unit == 4) {
            put_f32(r, i, value);
        } else {
            put_bf16(r, i, value);
        }
    }
}

static void fill_uniform(synth_recipe *r, double low, double high) {
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        put_f32(r, i, low + (high - low) * ((i + 0.5) / SYNTH_DRAWS));
    }
}

static double e4m3_value(uint8_t code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
    return code & 0x80 ? -value : value;
}

/* A standard deviation of 112 puts the largest of the 4096 draws at 3.7 * 112 = 413 of 448: the
 * range of a tile whose scale was chosen by its maximum. */
static const double FP8_STD = 112;

static void init_e4m3(synth_tables *t) {
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        double z = FP8_STD * fabs(t->normal[i]);
        uint8_t code = 0; /* nearest; an exact tie does not occur */
        while (code < 0x7E && z - e4m3_value(code) > e4m3_value((uint8_t)(code + 1)) - z) code++;
        t->e4m3[i] = t->normal[i] < 0 ? code | 0x80 : code;
    }
}

/* 2.5: the largest draw, 2.4 standard deviations, becomes the largest code, 6. */
static const double FP4_STD = 2.5;

static const double E2M1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static uint8_t fp4_code(const synth_tables *t, int draw) { /* a sign bit and 5 of magnitude */
    double z = FP4_STD * t->coarse[draw & 31];
    uint8_t code = 0;
    while (code < 7 && z - E2M1[code] > E2M1[code + 1] - z) code++;
    return (uint8_t)(draw >> 5 << 3 | code);
}

static void init_fp4(synth_tables *t) {
    double square = 0;
    for (int i = 0; i < SYNTH_FP4_LEVELS; i++) {
        double value = E2M1[fp4_code(t, i)];
        square += value * value / SYNTH_FP4_LEVELS;
    }
    t->fp4_rms = sqrt(square);
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        t->fp4[i] = (uint8_t)(fp4_code(t, i & 63) | fp4_code(t, i >> 6) << 4);
    }
}

void synth__tables_init(synth_tables *t) {
    t->n_scales = 0;
    init_normal(t);
    init_e4m3(t);
    init_fp4(t);
}

/* Exponents floor(base + u) with u even over [-spread, spread): the mean of their squares as powers
 * of two. */
static double scale_square(double base, double spread) {
    double square = 0;
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        double u = spread * (2 * (i + 0.5) / SYNTH_DRAWS - 1);
        square += ldexp(1.0 / SYNTH_DRAWS, 2 * (int)floor(base + u));
    }
    return square;
}

static void make_scales(struct synth_scales *s) {
    double low = -100, high = 100;
    for (int i = 0; i < 50; i++) {
        double middle = 0.5 * (low + high);
        if (scale_square(middle, s->spread) < s->rms * s->rms) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (int i = 0; i < SYNTH_DRAWS; i++) {
        double u = s->spread * (2 * (i + 0.5) / SYNTH_DRAWS - 1);
        int exponent = 127 + (int)floor(low + u);
        s->table[i] = (uint8_t)(exponent < 1 ? 1 : exponent > 254 ? 254 : exponent);
    }
}

/* Scales with root mean square `rms`, spread over 2 * spread octaves, so that neighbouring blocks
 * differ and a reader that takes the wrong one is seen. A model has a few kinds of them and 10^5
 * tensors, so the tables are kept. */
static const uint8_t *scale_table(synth_tables *t, double rms, double spread) {
    for (int i = 0; i < t->n_scales && i < SYNTH_SCALE_TABLES; i++) {
        if (t->scales[i].rms == rms && t->scales[i].spread == spread) return t->scales[i].table;
    }
    struct synth_scales *s = &t->scales[t->n_scales++ % SYNTH_SCALE_TABLES];
    s->rms = rms;
    s->spread = spread;
    make_scales(s);
    return s->table;
}

/* ---- Which tensor gets what ---- */

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && memcmp(name + n - m, end, m) == 0;
}

/* The clamp should bite: gate and up values reach it at 1.7 standard deviations. */
static double expert_gain(const di_config *c) {
    return c->swiglu_limit > 0 && c->swiglu_limit <= 100 ? 0.6 * c->swiglu_limit : 1.5;
}

/* Gain of a quantised matrix, by the name of its scale. h = silu(a) * b grows with the square of
 * the gain of w1 and w3, so w2 takes it back. */
static double matrix_gain(const di_config *c, const char *name) {
    double gain = expert_gain(c);
    if (ends_with(name, ".w1.scale") || ends_with(name, ".w3.scale")) return gain;
    if (ends_with(name, ".w2.scale")) return 0.5 * (1.5 / gain) * (1.5 / gain);
    if (ends_with(name, "attn.wq_b.scale")) return 1.7;
    if (ends_with(name, "attn.wo_a.scale")) return 1.5;
    return 1.0;
}

static const uint8_t *scales_of(synth_tables *t, const di_config *c, const di_tensor_spec *spec) {
    if (ends_with(spec->name, "engram.embed.scale")) { /* not divided by K: rows are inputs */
        return scale_table(t, 1.7 / FP8_STD, 2);
    }
    double k = 32.0 * (double)spec->shape[1];
    double rms = strstr(spec->name, ".ffn.experts.") ? t->fp4_rms : FP8_STD;
    return scale_table(t, matrix_gain(c, spec->name) / sqrt(k) / rms, 1.5);
}

static void plain_recipe(synth_recipe *r, const synth_tables *t, const di_tensor_spec *spec) {
    static const struct {
        const char *end;
        double mean, std; /* std < 0: gain, divided by sqrt(K) */
    } rules[] = {
        {"norm.weight", 1, 0.2},
        {"norm1.weight", 1, 0.2},
        {"norm2.weight", 1, 0.2},
        {"engram.q_weight", 1, 0.3},
        {"engram.k_weight", 1, 0.3},
        {"markov_head.embed.weight", 0, 1},
        {"embed.weight", 0, 2.5},
        {"markov_head.head.weight", 0, -1.5},
        {"head.weight", 0, -3},
        {"ffn.gate.weight", 0, -1.5},
        {"compressor.wgate.weight", 0, -1.5},
        {"ffn.gate.bias", 0, 0.2},
        {"ffn.gate.bias_vl", 0, 0.2},
        {"attn_sink", 0, 1},
        {"hc_attn_base", 0, 0.5},
        {"hc_ffn_base", 0, 0.5},
        {".bias", 0, 0.1}, /* vision */
        {"", 0, -1},       /* any other matrix; of a vector (image_start) K is 1 */
    };
    if (ends_with(spec->name, "hc_attn_scale") || ends_with(spec->name, "hc_ffn_scale")) {
        fill_uniform(r, 0.5, 1.5);
        return;
    }
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (!ends_with(spec->name, rules[i].end)) continue;
        double k = spec->n_dims == 2 ? (double)spec->shape[1] : 1;
        double std = rules[i].std < 0 ? -rules[i].std / sqrt(k) : rules[i].std;
        fill_normal(r, t, rules[i].mean, std);
        return;
    }
}

static uint64_t mix64(uint64_t x) { /* finaliser of splitmix64 */
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static const uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

static uint64_t make_key(uint64_t seed, const char *name) {
    uint64_t hash = mix64(seed + GOLDEN);
    for (; *name; name++) hash = mix64(hash ^ (uint8_t)*name) + GOLDEN;
    return hash;
}

void synth__recipe_init(synth_recipe *r, synth_tables *tables, const di_config *config,
                        const di_tensor_spec *spec, uint64_t seed) {
    r->key = make_key(seed, spec->name);
    r->unit = (uint32_t)di_dtype_bytes(spec->dtype);
    r->table = r->own;
    switch (spec->dtype) {
    case DI_F8_E4M3: r->table = tables->e4m3; break;
    case DI_FP4_PAIR: r->table = tables->fp4; break;
    case DI_F8_E8M0: r->table = scales_of(tables, config, spec); break;
    default: plain_recipe(r, tables, spec); break;
    }
}

/* One loop for each element size, so that the copy is a move of known length. */
#define FILL(size)                                                                                 \
    for (uint64_t i = 0; i < n; i += 4) {                                                          \
        uint64_t word = mix64(counter);                                                            \
        uint64_t lanes = n - i < 4 ? n - i : 4;                                                    \
        counter += GOLDEN;                                                                         \
        for (uint64_t lane = 0; lane < lanes; lane++, word >>= 16) {                               \
            memcpy(out, table + (word & (SYNTH_DRAWS - 1)) * (size), size);                        \
            out += size;                                                                           \
        }                                                                                          \
    }

void synth__fill(const synth_recipe *r, uint64_t first, uint64_t n, uint8_t *out) {
    uint64_t counter = r->key + first / 4 * GOLDEN;
    const uint8_t *table = r->table;
    if (r->unit == 1) {
        FILL(1)
    } else if (r->unit == 2) {
        FILL(2)
    } else {
        FILL(4)
    }
}
