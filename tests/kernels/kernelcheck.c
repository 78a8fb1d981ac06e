/* kernelcheck [--bench | --far] [--backend NAME] [--op NAME] [--seed N] [--rounds N | --round N,..]
 *             [--threads N]
 *
 * Checks every operation of a backend against the scalar twins and lists it with its largest error
 * as a share of the bound in ops.h; with --bench then also with its time. --round: those rounds
 * alone, with the inputs that they have among others. --far: products of FP8 and FP4 whose scales
 * are what a release hardly has, in `release`, for which a backend may have other code for as long
 * as it lives. Exit status 1 when anything failed, an operation without a function included; 2 when
 * the command is wrong; 77 when this machine has nothing that could run the backend: a GPU that is
 * there and fails is a failure. */
#include "kernelcheck.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digits.h"
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

static const char usage[] =
    "usage: kernelcheck [--bench | --far] [--backend cpu|cuda|ref|late|queue] "
    "[--op NAME] [--seed N] [--rounds N | --round N,..] [--threads N]\n";

/* One line that says what is wrong with the command. */
__attribute__((format(printf, 1, 2))) static _Noreturn void refuse(const char *format, ...) {
    va_list args;
    fflush(stdout);
    fprintf(stderr, "kernelcheck: ");
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    exit(2);
}

static uint64_t number(const char *name, const char *text, uint64_t least, uint64_t most) {
    uint64_t value;
    const char *end;
    if (!di_read_digits(text, least, most, &value, &end) || *end)
        refuse("%s: '%.60s' is no whole number from %" PRIu64 " to %" PRIu64, name, text, least,
               most);
    return value;
}

/* Numbers below 64, with commas between them, as bits. */
static uint64_t round_bits(const char *list) {
    uint64_t bits = 0, round;
    for (const char *text = list, *end;; text = end + 1) {
        if (!di_read_digits(text, 0, 63, &round, &end) || (*end && *end != ','))
            refuse("--round: '%.60s' is no list of whole numbers from 0 to 63, with commas "
                   "between them",
                   list);
        bits |= UINT64_C(1) << round;
        if (!*end) return bits;
    }
}

static void read_backend(const char *name) {
    static const char *const backends[] = {"cpu", "cuda", "ref", "late", "queue"};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (strcmp(name, backends[i]) == 0) return;
    }
    refuse("--backend: '%.60s' is none of cpu, cuda, ref, late and queue", name);
}

static bool read_flag(options *out, const char *name) {
    if (strcmp(name, "--help") == 0) {
        printf("%s", usage);
        exit(0);
    }
    if (strcmp(name, "--bench") == 0) return out->bench = true;
    if (strcmp(name, "--far") == 0) return out->far = true;
    return false;
}

static void read_option(options *out, const char *name, const char *value) {
    static const char *const names[] = {"--backend", "--op",    "--seed",
                                        "--rounds",  "--round", "--threads"};
    enum { BACKEND, OP, SEED, ROUNDS, ROUND, THREADS, N_NAMES };
    int option = 0;
    while (option < N_NAMES && strcmp(name, names[option]) != 0) option++;
    if (option == N_NAMES) refuse("there is no option '%.60s'; --help names those there are", name);
    if (value == NULL) refuse("%s: it needs a value", name);
    switch (option) {
    case BACKEND:
        read_backend(value);
        out->backend = value;
        break;
    case OP: out->op = value; break;
    case SEED: out->seed = number(name, value, 0, UINT64_MAX); break;
    case ROUNDS: out->rounds = (int32_t)number(name, value, 1, 1000000); break;
    case ROUND: out->only |= round_bits(value); break;
    default: out->threads = (int32_t)number(name, value, 0, 1024);
    }
}

/* Whether an operation is asked for. */
static bool is_wanted(const options *o, const char *name) {
    static const char *const far[] = {"linear", "attn_out", "experts", "shared_expert", "qkv"};
    bool is = !o->far;
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) is = is || strcmp(name, far[i]) == 0;
    return is && (o->op == NULL || strcmp(o->op, name) == 0);
}

/* Something is to be checked: a command that checks nothing must not pass. */
static void check_wanted(const options *o) {
    bool known = o->op == NULL;
    for (int i = 0; i < N_OPERATIONS; i++) {
        if (is_wanted(o, operations[i].name)) return;
        known = known || strcmp(o->op, operations[i].name) == 0;
    }
    if (known) refuse("--far: it has no operation '%.60s'", o->op);
    refuse("--op: no operation is named '%.60s'", o->op);
}

/* Refuses what it cannot take: exit status 2. */
static options parse(int argc, char **argv) {
    options out = {.backend = "cpu", .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (read_flag(&out, argv[i])) continue;
        read_option(&out, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        i++;
    }
    if (out.far && out.bench) refuse("--far and --bench do not go together");
    if (out.rounds > 0 && out.only) refuse("--rounds and --round do not go together");
    if (out.rounds == 0) out.rounds = 16;
    check_wanted(&out);
    return out;
}

/* Operations whose rounds have many heads, others having many rows: both together would take more than a
 * gigabyte of workspace. */
static bool has_heads(const char *name) { return strcmp(name, "attend") == 0; }

/* Large enough for every case of the checks, of the bench where it is asked for. heads: of operations
 * that has_heads. */
static di_limits limits_of(bool bench, bool heads) {
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
    return (di_limits){.max_rows = heads ? KC_CROWD_ROWS : KC_MOST_ROWS,
                       .max_out = 8,
                       .width = 320,
                       .hc = 8,
                       .vocab = 129280,
                       .n_heads = heads ? KC_MOST_HEADS : 8,
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

static bool open_sides(check *c, const options *o, bool heads) { /* c->bench, c->release are set */
    di_numerics numerics = c->release ? DI_NUMERICS_RELEASE : DI_NUMERICS_FLOAT;
    di_limits limits = limits_of(c->bench, heads);
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
    c->rotated = 0;
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

/* Those of all operations, or of the one asked for, that has_heads or not: checked, or timed when
 * c->bench. Returns how many ran, -1 when this machine cannot run the backend: that has failed where it
 * is broken. */
static int run_some(check *c, const options *o, bool heads, int *failed) {
    int run = 0;
    for (int i = 0; i < N_OPERATIONS; i++) {
        const operation *op = &operations[i];
        if (!is_wanted(o, op->name) || has_heads(op->name) != heads) continue;
        if (run++ == 0 && !open_sides(c, o, heads)) {
            *failed += c->dev[1].broken;
            return -1;
        }
        if (c->bench) {
            bench_operation(c, op, o);
        } else {
            *failed += !check_operation(c, op, o);
        }
        fflush(stdout);
    }
    for (int i = 0; i < 2 && run > 0; i++) device_close(&c->dev[i]);
    return run;
}

/* The same of all, in both numerics. */
static int run_all(const options *o, bool bench, int *failed) {
    int run = 0;
    for (int way = o->far ? 2 : 0; way < 4; way++) {
        check c = {.release = way / 2 == 1, .bench = bench, .far = o->far};
        int some = run_some(&c, o, way % 2 == 1, failed);
        if (some < 0) return -1;
        run += some;
    }
    return run;
}

int main(int argc, char **argv) {
    const options o = parse(argc, argv);
    int failed = 0;
    int run = run_all(&o, false, &failed);
    if (run < 0 && failed > 0) return 1;
    if (run < 0) {
        printf("this machine cannot run the backend %s\n", o.backend);
        return 77;
    }
    printf("%s: %d checks, %d failed\n", o.backend, run, failed);
    if (o.bench) {
        print_machine(&o);
        run_all(&o, true, &failed);
    }
    return failed > 0;
}
