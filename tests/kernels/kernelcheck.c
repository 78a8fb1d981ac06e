/* kernelcheck [--bench | --far] [--backend NAME] [--op NAME] [--seed N] [--rounds N | --round N,..]
 *             [--threads N]
 *
 * Checks every operation of a backend against the scalar twins and lists it with its largest error
 * as a share of the bound in ops.h; with --bench then also with its time. --round: those rounds
 * alone, with the inputs that they have among others. --far: products of FP8 and FP4 whose scales
 * are what a release hardly has, in `release`, for which a backend may have other code for as long
 * as it lives. Exit status 1 when anything failed, an operation without a function included; 77
 * when this machine cannot run the backend. */
#include "kernelcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/team.h"

typedef struct operation {
    const char *name;
    size_t offset; /* in di_ops */
    void (*check)(check *c);
} operation;

/* An operation of ops.h without a check does not link. */
#define KC_OPERATION(name) {#name, offsetof(di_ops, name), kc_check_##name},
static const operation operations[] = {DI_EACH_OP(KC_OPERATION)};
enum { N_OPERATIONS = sizeof operations / sizeof operations[0] };
_Static_assert(sizeof(di_ops) == N_OPERATIONS * sizeof(void (*)(void)),
               "di_ops has members that DI_EACH_OP does not name");

typedef struct options {
    const char *backend, *op;
    uint64_t seed;
    int32_t rounds, threads;
    uint64_t only; /* rounds, bit by bit; 0: the first `rounds` */
    bool bench, far;
} options;

static int usage(void) {
    fprintf(stderr, "usage: kernelcheck [--bench | --far] [--backend cpu|cuda|ref|late|queue] "
                    "[--op NAME] [--seed N] [--rounds N | --round N,..] [--threads N]\n");
    return 2;
}

/* Numbers below 64, with commas between them, as bits. */
static bool parse_rounds(const char *text, uint64_t *bits) {
    for (;; text++) {
        char *end;
        long round = strtol(text, &end, 10);
        if (end == text || round < 0 || round > 63) return false;
        *bits |= UINT64_C(1) << round;
        if (*end == '\0') return true;
        if (*end != ',') return false;
        text = end;
    }
}

static bool parse(int argc, char **argv, options *out) {
    *out = (options){.backend = "cpu", .seed = 1, .rounds = 16};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--bench") == 0) {
            out->bench = true;
            continue;
        }
        if (strcmp(argv[i], "--far") == 0) {
            out->far = true;
            continue;
        }
        if (value == NULL) return false;
        i++;
        if (strcmp(argv[i - 1], "--backend") == 0) {
            out->backend = value;
        } else if (strcmp(argv[i - 1], "--op") == 0) {
            out->op = value;
        } else if (strcmp(argv[i - 1], "--seed") == 0) {
            out->seed = strtoull(value, NULL, 10);
        } else if (strcmp(argv[i - 1], "--rounds") == 0) {
            out->rounds = (int32_t)strtol(value, NULL, 10);
        } else if (strcmp(argv[i - 1], "--round") == 0) {
            if (!parse_rounds(value, &out->only)) return false;
        } else if (strcmp(argv[i - 1], "--threads") == 0) {
            out->threads = (int32_t)strtol(value, NULL, 10);
        } else {
            return false;
        }
    }
    static const char *const backends[] = {"cpu", "cuda", "ref", "late", "queue"};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(out->backend, backends[i]) == 0) return !out->far || !out->bench;
    }
    return false;
}

/* Large enough for every case of the checks, of the bench where it is asked for. */
static di_limits limits_of(bool bench) {
    if (bench) {
        return (di_limits){.max_rows = 16,
                           .max_out = 2,
                           .width = 5120,
                           .hc = 4,
                           .vocab = 129280,
                           .n_heads = 64,
                           .head_dim = 512,
                           .q_rank = 1280,
                           .o_low = 1024,
                           .n_experts = 384,
                           .top_k = 6,
                           .inner = 2304,
                           .index_heads = 32,
                           .index_dim = 128,
                           .index_top_k = 512,
                           .top_blocks = 512,
                           .block_size = 8,
                           .max_entries = 8192,
                           .engram_columns = 24,
                           .engram_width = 256,
                           .max_k = 32768};
    }
    return (di_limits){.max_rows = KC_MOST_ROWS,
                       .max_out = 8,
                       .width = 320,
                       .hc = 8,
                       .vocab = 129280,
                       .n_heads = 130,
                       .head_dim = 512,
                       .q_rank = 128,
                       .o_low = 384,
                       .n_experts = 80,
                       .top_k = 8,
                       .inner = 2048,
                       .index_heads = 40,
                       .index_dim = 128,
                       .index_top_k = 640,
                       .top_blocks = 5600,
                       .block_size = 9,
                       .max_entries = 66600,
                       .engram_columns = 56,
                       .engram_width = 256,
                       .max_k = 2400};
}

static bool open_sides(check *c, const options *o) { /* c->bench, c->release are set */
    di_numerics numerics = c->release ? DI_NUMERICS_RELEASE : DI_NUMERICS_FLOAT;
    di_limits limits = limits_of(c->bench);
    if (!device_open(&c->dev[1], o->backend, numerics, o->threads)) return false;
    device_open(&c->dev[0], "ref", numerics, 1);
    for (int i = 0; i < 2; i++) device_prepare(&c->dev[i], &limits);
    return true;
}

/* Pooled rules: under `release` 99.5 % of single operations' values and of codes equal, and 98 % of
 * the rows of composed operations. */
static void judge(check *c) {
    if (c->release && (double)c->equal < 0.995 * (double)c->values) {
        kc_fail(c, "%lld of %lld values equal", (long long)c->equal, (long long)c->values);
    }
    double allowed = (c->release ? 0.02 : 0.01) * (double)c->rows + 1;
    if ((double)c->tipped > allowed) {
        kc_fail(c, "%lld of %lld rows differ", (long long)c->tipped, (long long)c->rows);
    }
    allowed = (c->release ? 0.005 : 0.001) * (double)c->codes + 1;
    if ((double)c->codes_off > allowed) {
        kc_fail(c, "%lld of %lld codes differ", (long long)c->codes_off, (long long)c->codes);
    }
}

static bool check_operation(check *c, const operation *op, const options *o) {
    c->op = op->name;
    c->values = c->equal = c->failures = c->rows = c->tipped = c->codes = c->codes_off = 0;
    c->worst = 0;
    c->cancel = strncmp(op->name, "attend", 6) == 0 ? 0x1p-8 : 1e-6; /* see Bounds in ops.h */
    for (int i = 0; i < 2; i++) {
        void (*function)(void);
        memcpy(&function, (const char *)c->dev[i].backend->ops + op->offset, sizeof function);
        if (function == NULL) kc_fail(c, "%s has no function", c->dev[i].backend->name);
    }
    int rounds = 0;
    for (c->round = 0; c->round < (o->only ? 64 : o->rounds) && c->failures == 0; c->round++) {
        if (o->only && !(o->only >> c->round & 1)) continue;
        /* A round's inputs do not hang on those before it: --round. */
        c->random = (o->seed * 1000003 + op->offset) * 1000003 + (uint64_t)c->round;
        op->check(c);
        kc_end_case(c);
        rounds++;
    }
    judge(c);
    printf("%-14s %-8s %3d rounds  error %5.3f of the bound", op->name,
           c->release ? "release" : "float", rounds, c->worst);
    if (c->values > 0) printf("  equal %.5f", (double)c->equal / (double)c->values);
    if (c->rows > 0) printf("  rows off %lld of %lld", (long long)c->tipped, (long long)c->rows);
    if (c->codes > 0) {
        printf("  codes off %lld of %lld", (long long)c->codes_off, (long long)c->codes);
    }
    printf("%s\n", c->failures > 0 ? "  FAILED" : "");
    return c->failures == 0;
}

static void bench_operation(check *c, const operation *op, const options *o) {
    c->op = op->name;
    c->random = o->seed;
    c->round = 0;
    c->seconds[0] = c->seconds[1] = c->bytes = c->flops = 0;
    op->check(c);
    kc_end_case(c);
    printf("%-14s %-8s %10.2f us  twin x %7.1f", op->name, c->release ? "release" : "float",
           c->seconds[1] * 1e6, c->seconds[0] / c->seconds[1]);
    if (c->bytes > 0) printf("  %7.2f GB/s", c->bytes / c->seconds[1] * 1e-9);
    if (c->flops > 0) printf("  %7.2f GFLOP/s", c->flops / c->seconds[1] * 1e-9);
    printf("\n");
}

static void print_machine(const options *o) {
    double gb, gflop;
    int32_t threads = o->threads > 0 ? o->threads : di_cores_available();
    kc_machine(threads, &gb, &gflop);
    printf("\nthis machine, %d threads: reads %.1f GB/s, %.1f GFLOP/s of float FMA\n", threads, gb,
           gflop);
}

/* Whether an operation is asked for. */
static bool is_wanted(const options *o, const char *name) {
    static const char *const far[] = {"linear", "attn_out", "experts", "shared_expert", "qkv"};
    bool is = !o->far;
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) is = is || strcmp(name, far[i]) == 0;
    return is && (o->op == NULL || strcmp(o->op, name) == 0);
}

/* All operations, or the one asked for, in both numerics: checked, or timed when `bench`. Returns
 * how many ran, -1 when this machine cannot run the backend. */
static int run_all(const options *o, bool bench, int *failed) {
    int run = 0;
    for (int numerics = o->far ? 1 : 0; numerics < 2; numerics++) {
        check c = {.release = numerics == 1, .bench = bench, .far = o->far};
        if (!open_sides(&c, o)) return -1;
        for (int i = 0; i < N_OPERATIONS; i++) {
            if (!is_wanted(o, operations[i].name)) continue;
            run++;
            if (bench) {
                bench_operation(&c, &operations[i], o);
            } else {
                *failed += !check_operation(&c, &operations[i], o);
            }
            fflush(stdout);
        }
        for (int i = 0; i < 2; i++) device_close(&c.dev[i]);
    }
    return run;
}

int main(int argc, char **argv) {
    options o;
    int failed = 0;
    if (!parse(argc, argv, &o)) return usage();
    int run = run_all(&o, false, &failed);
    if (run < 0) {
        printf("this machine cannot run the backend %s\n", o.backend);
        return 77;
    }
    if (run == 0) return usage();
    printf("%s: %d checks, %d failed\n", o.backend, run, failed);
    if (o.bench) {
        print_machine(&o);
        run_all(&o, true, &failed);
    }
    return failed > 0;
}
