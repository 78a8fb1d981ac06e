/* What a row costs by how many there are: bench_rows [options] [MODEL_DIR]
 *
 *   --numerics float|release   default release
 *   --threads N                default 0: all cores
 *   --context N                tokens before the middle of the prefill chunk; default 512
 *   --pairs N                  rounds; default 15
 *   --rows N                   decode steps of N rows only; default 1, 2, 4, 8, 16, 32, 64
 *   --profile                  then, by operation, microseconds a row
 *
 * In every round, in turn: a chunk of 256 rows of one sequence (logits and a sample of its last
 * row), then decode steps of 1 to 64 rows of different sequences (logits and a sample of each) at
 * the context of the chunk's middle. Reported are medians over the rounds; `ratio` is a decode row
 * over a prefill row of the same round, with its quartiles. The head and sampling are counted; the
 * profile tells their share. Tokens are random, the same for both kinds of rows in distribution.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "bench_ops.h"
#include "model/model.h"

enum { CHUNK = 256, MOST = 64, MAX_PAIRS = 201, KINDS = 8 };

/* kinds[0]: the prefill chunk; the others: decode steps of as many rows. */
static const int32_t kinds[KINDS] = {CHUNK, 1, 2, 4, 8, 16, 32, MOST};

typedef struct bench {
    const char *directory;
    di_numerics numerics;
    int32_t threads, context_tokens, pairs, only;
    bool profile;
    di_backend *backend;
    di_model *model;
    di_context *context;
    void *before_chunk; /* snapshot of the prefill slot */
    uint64_t tokens;    /* drawn so far */
    double row_us[KINDS][MAX_PAIRS];
    di_error error;
} bench;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static _Noreturn void stop(const char *why) {
    fprintf(stderr, "bench_rows: %s\n", why);
    exit(1);
}

static void must(const bench *b, di_status status) {
    if (status != DI_OK) stop(b->error.message);
}

/* ---- time by operation: a table of operations that measure those of the backend ---- */

static const di_ops *real_ops;
static double op_us[N_OPS];

#define OP_TIMED(name)                                                                             \
    static void timed_##name(di_stream *stream, const di_##name##_args *args) {                    \
        double begin = now_us();                                                                   \
        real_ops->name(stream, args);                                                              \
        op_us[OP_##name] += now_us() - begin;                                                      \
    }
DI_EACH_OP(OP_TIMED)
#undef OP_TIMED
#define OP_ENTRY(name) .name = timed_##name,
static const di_ops timed_ops = {DI_EACH_OP(OP_ENTRY)};
#undef OP_ENTRY

/* ---- steps ---- */

static int32_t some_id(bench *b) {
    uint32_t words[4];
    di_philox(9, b->tokens++, 0, words);
    return (int32_t)(words[0] % (uint32_t)di_model_config(b->model)->vocab_size);
}

static void run_step(bench *b, const di_row *rows, int32_t n, const int32_t *out, int32_t n_out) {
    di_sample_params params[MOST];
    for (int32_t i = 0; i < n_out; i++)
        params[i] = (di_sample_params){.top_p = 1,
                                       .repetition_penalty = 1,
                                       .slot = rows[out[i]].slot,
                                       .mask = -1};
    di_step step = {.rows = rows, .n_rows = n, .out_rows = out, .n_out = n_out, .params = params};
    int32_t tokens[MOST];
    must(b, di_forward(b->context, &step, &b->error));
    if (n_out > 0)
        must(b, di_context_read_samples(b->context, tokens, NULL, &b->error));
    else
        must(b, di_backend_sync(b->backend, &b->error));
}

/* n tokens of one sequence. */
static void extend(bench *b, int32_t slot, int32_t n, bool sample) {
    di_row rows[CHUNK];
    for (int32_t i = 0; i < n; i++) rows[i] = (di_row){some_id(b), slot, i};
    int32_t last = n - 1;
    run_step(b, rows, n, &last, sample);
}

static void fill(bench *b, int32_t slot, int32_t length) {
    for (int32_t at = 0; at < length; at += CHUNK)
        extend(b, slot, length - at < CHUNK ? length - at : CHUNK, false);
}

/* One token of each of the first n sequences, taken back afterwards. Returns the step's time. */
static double decode_us(bench *b, int32_t n) {
    di_row rows[MOST];
    int32_t out[MOST];
    for (int32_t s = 0; s < n; s++) rows[s] = (di_row){some_id(b), s, 0}, out[s] = s;
    double begin = now_us();
    run_step(b, rows, n, out, n);
    double spent = now_us() - begin;
    for (int32_t s = 0; s < n; s++) must(b, di_context_rewind(b->context, s, 1, &b->error));
    return spent;
}

static double prefill_us(bench *b) {
    di_context_restore(b->context, MOST, b->before_chunk);
    double begin = now_us();
    extend(b, MOST, CHUNK, true);
    return now_us() - begin;
}

/* Microseconds a row; short steps are repeated, so that all kinds have about as many rows. */
static double kind_us(bench *b, int32_t kind) {
    if (kind == 0) return prefill_us(b) / CHUNK;
    int32_t n = kinds[kind], repeats = MOST / n;
    double spent = 0;
    for (int32_t i = 0; i < repeats; i++) spent += decode_us(b, n);
    return spent / (n * repeats);
}

/* ---- report ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *values, int32_t n, int32_t part, int32_t parts) {
    double sorted[MAX_PAIRS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[(int64_t)(n - 1) * part / parts];
}

static bool wanted(const bench *b, int32_t kind) {
    return kind == 0 || b->only == 0 || b->only == kinds[kind];
}

static void measure(bench *b) {
    for (int32_t i = -1; i < b->pairs; i++) /* one round before, to warm up */
        for (int32_t kind = 0; kind < KINDS; kind++) {
            double us = wanted(b, kind) ? kind_us(b, kind) : 0;
            if (i >= 0) b->row_us[kind][i] = us;
        }
    printf("rows  us a row    ratio  (quartiles)\n");
    for (int32_t kind = 0; kind < KINDS; kind++) {
        double ratio[MAX_PAIRS];
        if (!wanted(b, kind)) continue;
        for (int32_t i = 0; i < b->pairs; i++) ratio[i] = b->row_us[kind][i] / b->row_us[0][i];
        printf("%4d  %8.1f  %7.3f  (%.3f .. %.3f)%s\n", kinds[kind],
               quantile(b->row_us[kind], b->pairs, 1, 2), quantile(ratio, b->pairs, 1, 2),
               quantile(ratio, b->pairs, 1, 4), quantile(ratio, b->pairs, 3, 4),
               kind == 0 ? "  prefill" : "");
    }
}

static void profile(bench *b) {
    static double us[KINDS][N_OPS + 1]; /* the last: all together */
    for (int32_t kind = 0; kind < KINDS; kind++) {
        memset(op_us, 0, sizeof op_us);
        for (int32_t i = 0; i < b->pairs && wanted(b, kind); i++)
            us[kind][N_OPS] += kind_us(b, kind) / b->pairs;
        double rows = (double)b->pairs * (kind == 0 ? CHUNK : MOST);
        for (int32_t op = 0; op < N_OPS; op++) us[kind][op] = op_us[op] / rows;
    }
    printf("\nus a row      ");
    for (int32_t kind = 0; kind < KINDS; kind++) printf(" %7d", kinds[kind]);
    for (int32_t op = 0; op <= N_OPS; op++) {
        if (op < N_OPS && us[0][op] == 0) continue;
        printf("\n%-14s", op < N_OPS ? op_names[op] : "all");
        for (int32_t kind = 0; kind < KINDS; kind++) printf(" %7.2f", us[kind][op]);
    }
    printf("\n");
}

/* ---- */

static int32_t number(const char *text, int32_t least, int32_t most) {
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < least || value > most) stop("a number is out of range");
    return (int32_t)value;
}

static void read_options(bench *b, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strncmp(name, "--", 2) != 0) {
            b->directory = name;
        } else if (strcmp(name, "--profile") == 0) {
            b->profile = true;
        } else {
            if (strcmp(name, "--numerics") == 0)
                b->numerics = strcmp(value, "float") ? DI_NUMERICS_RELEASE : DI_NUMERICS_FLOAT;
            else if (strcmp(name, "--threads") == 0)
                b->threads = number(value, 0, 1024);
            else if (strcmp(name, "--context") == 0)
                b->context_tokens = number(value, CHUNK / 2, 100000);
            else if (strcmp(name, "--pairs") == 0)
                b->pairs = number(value, 1, MAX_PAIRS);
            else if (strcmp(name, "--rows") == 0)
                b->only = number(value, 1, MOST);
            else
                stop("unknown option: see the head of bench/bench_rows.c");
            i++;
        }
    }
}

static void open_all(bench *b) {
    di_cpu_options cpu = {b->threads, -1, ~0u};
    must(b, di_backend_create_cpu(b->numerics, &cpu, &b->backend, &b->error));
    real_ops = b->backend->ops;
    if (b->profile) b->backend->ops = &timed_ops;
    di_model_options load = di_model_options_defaults();
    must(b, di_model_open(b->directory, b->backend, &load, &b->model, &b->error));
    di_context_options options = {.n_slots = MOST + 1,
                                  .max_context = b->context_tokens + 2 * CHUNK,
                                  .max_rows = CHUNK,
                                  .max_out = MOST};
    must(b, di_context_create(b->model, &options, &b->context, &b->error));
    b->before_chunk = malloc((size_t)di_context_snapshot_bytes(b->context));
    if (!b->before_chunk) stop("no memory");
    for (int32_t s = 0; s < (b->only ? b->only : MOST); s++) fill(b, s, b->context_tokens);
    fill(b, MOST, b->context_tokens - CHUNK / 2);
    di_context_save(b->context, MOST, b->before_chunk);
    must(b, di_context_wait(b->context, &b->error));
}

int main(int argc, char **argv) {
    static bench b = {.directory = "models/demo",
                      .numerics = DI_NUMERICS_RELEASE,
                      .context_tokens = 512,
                      .pairs = 15};
    read_options(&b, argc, argv);
    open_all(&b);
    printf("%s, %s, context %d, %d rounds\n", b.directory,
           b.numerics == DI_NUMERICS_RELEASE ? "release" : "float", b.context_tokens, b.pairs);
    measure(&b);
    if (b.profile) profile(&b);
    di_context_destroy(b.context);
    di_model_close(b.model);
    b.backend->destroy(b.backend);
    free(b.before_chunk);
    return 0;
}
