/* The forward pass against the machine: bench_forward [MODEL_DIR [float|release]]
 *
 * Reports prefill and decode of a model next to their floors, with the machine's read bandwidth and
 * FMA peak measured in the same run. Without arguments: a full-width slice of the release, five
 * layers of every kind, written once to build/bench-slice (about 4.3 GB).
 *
 * The floor of a step is the larger of bytes / bandwidth and operations / peak. Bytes: every weight
 * that the step needs, once (dense weights, the experts that were picked, the head); operations:
 * two a weight and row. Attention and caches are left out of both: they are small at these lengths.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/philox.h"
#include "kernels/cpu/peak.h"
#include "model/model.h"
#include "model/synth.h"

enum { PREFILL = 256, DECODE = 24, REPEATS = 5, MAX_BATCH = 16 };

typedef struct bench {
    di_backend *backend;
    di_model *model;
    di_context *context;
    const di_config *config;
    di_cpu_peak peak;
    int32_t *picks; /* of every layer in the last step: [layers][rows][k] */
    int32_t n_rows;
    di_error error;
} bench;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(const bench *b, di_status status) {
    if (status == DI_OK) return;
    fprintf(stderr, "bench_forward: %s\n", b->error.message);
    exit(1);
}

/* Keeps the router's picks, to count the experts that a step reads. */
static void keep_picks(void *user, const char *name, int32_t layer, di_ptr data, di_tap_type type,
                       int64_t n_rows, int64_t width) {
    bench *b = user;
    (void)type;
    if (strcmp(name, "router_picks") != 0) return;
    int64_t n = n_rows * width;
    b->n_rows = (int32_t)n_rows;
    b->backend->download(b->backend->stream, b->picks + layer * n, data, (uint64_t)n * 4);
}

static int64_t distinct_experts(const bench *b, int32_t layer) {
    int64_t n = (int64_t)b->n_rows * b->config->num_experts_per_tok, count = 0;
    char *seen = calloc((size_t)b->config->n_routed_experts, 1);
    if (!seen) return 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t expert = b->picks[layer * n + i];
        count += !seen[expert];
        seen[expert] = 1;
    }
    free(seen);
    return count;
}

typedef struct work {
    double bytes, flops;
} work;

/* What a step of n rows needs, n_out of them with logits; the picks must be those of such a step.
 */
static work step_work(const bench *b, int32_t n_rows, int32_t n_out) {
    const di_config *c = b->config;
    const di_checkpoint *checkpoint = di_model_checkpoint(b->model);
    double expert_values = 3.0 * c->hidden_size * c->moe_intermediate_size;
    work w = {0, 0};
    for (int64_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        const di_tensor *t = di_checkpoint_at(checkpoint, i);
        bool head = strcmp(t->name, "head.weight") == 0;
        bool read = strncmp(t->name, "layers.", 7) == 0 && !strstr(t->name, ".ffn.experts.") &&
                    !strstr(t->name, ".engram.embed.");
        if (!read && !(head && n_out)) continue;
        w.bytes += (double)t->bytes;
        double values = t->n_dims == 2 ? (double)t->shape[0] * (double)t->shape[1] : 0;
        if (t->dtype != DI_F8_E8M0) w.flops += 2 * values * (head ? n_out : n_rows);
    }
    for (int32_t layer = 0; layer < c->num_hidden_layers; layer++) {
        w.bytes += (double)distinct_experts(b, layer) * expert_values * (0.5 + 1.0 / 32);
        w.flops += 2 * expert_values * n_rows * c->num_experts_per_tok;
    }
    return w;
}

static void report(const bench *b, const char *what, double seconds, work w, int32_t tokens) {
    double memory = w.bytes / b->peak.read_bytes_per_s, compute = w.flops / b->peak.flop_per_s;
    double floor = memory > compute ? memory : compute;
    printf("%-24s %8.1f ms  %8.1f tokens/s  floor %8.1f ms (%s: %.2f GB, %.1f GFLOP)  ratio %.2f\n",
           what, seconds * 1e3, tokens / seconds, floor * 1e3, memory > compute ? "bytes" : "FMA",
           w.bytes * 1e-9, w.flops * 1e-9, floor / seconds);
}

static int32_t some_id(const bench *b, int32_t slot, int64_t i) {
    uint32_t words[4];
    di_philox(9, (uint64_t)i, (uint64_t)slot, words);
    return (int32_t)(words[0] % (uint32_t)b->config->vocab_size);
}

/* One step: n tokens of every slot below n_slots, logits of each slot's last row. Seconds. */
static double step(bench *b, int32_t n_slots, int32_t n) {
    di_row rows[PREFILL];
    int32_t out[MAX_BATCH];
    for (int32_t s = 0; s < n_slots; s++) {
        int64_t at = di_context_length(b->context, s);
        for (int32_t i = 0; i < n; i++) rows[s * n + i] = (di_row){some_id(b, s, at + i), s, i};
        out[s] = s * n + n - 1;
    }
    di_step todo = {.rows = rows, .n_rows = n_slots * n, .out_rows = out, .n_out = n_slots};
    double begin = now_s();
    must(b, di_forward(b->context, &todo, &b->error));
    must(b, di_backend_sync(b->backend, &b->error));
    return now_s() - begin;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of `n` equal steps. */
static void run(bench *b, const char *what, int32_t n_slots, int32_t rows, int32_t n) {
    double seconds[64];
    for (int32_t s = 0; s < n_slots; s++) di_context_reset(b->context, s);
    step(b, n_slots, rows); /* brings the weights in */
    for (int32_t i = 0; i < n; i++) seconds[i] = step(b, n_slots, rows);
    qsort(seconds, (size_t)n, sizeof *seconds, by_value);
    report(b, what, seconds[n / 2], step_work(b, n_slots * rows, n_slots), n_slots * rows);
}

/* Layers of every kind: Engram; KV sources of both ratios, the last of them the candidate source;
 * reuse; reindex. */
static void write_slice(bench *b, const char *directory) {
    static const int32_t layers[] = {1, 2, 3, 20, 24};
    di_synth_overrides o = di_synth_overrides_none();
    o.layers = layers;
    o.n_layers = 5;
    o.experts = 16;
    o.engram_rows = 1000000;
    o.draft_layers = 0;
    o.no_vision = true;
    size_t size;
    const char *json = di_config_released(&size);
    di_buffer text = DI_BUFFER_EMPTY;
    must(b, di_synth_config(json, size, "released", &o, &text, &b->error));
    di_synth_options options = {.config_json = text.data, .config_size = text.size, .seed = 1};
    fprintf(stderr, "bench_forward: writing %s ...\n", directory);
    must(b, di_synth_write(directory, &options, &b->error));
    di_buffer_free(&text);
}

static void open_model(bench *b, const char *directory, di_numerics numerics) {
    di_cpu_options cpu = {0, -1, ~0u};
    must(b, di_backend_create_cpu(numerics, &cpu, &b->backend, &b->error));
    di_model_options load = di_model_options_defaults();
    must(b, di_model_open(directory, b->backend, &load, &b->model, &b->error));
    b->config = di_model_config(b->model);
    di_context_options options = {.n_slots = MAX_BATCH,
                                  .max_context = 2048,
                                  .max_rows = PREFILL,
                                  .max_out = MAX_BATCH};
    must(b, di_context_create(b->model, &options, &b->context, &b->error));
    b->picks = calloc((size_t)b->config->num_hidden_layers * PREFILL *
                          (size_t)b->config->num_experts_per_tok,
                      sizeof *b->picks);
    di_context_set_tap(b->context, keep_picks, b);
}

int main(int argc, char **argv) {
    bench b = {0};
    const char *directory = argc > 1 ? argv[1] : "build/bench-slice";
    bool release = argc <= 2 || strcmp(argv[2], "float") != 0;
    mkdir("build", 0777); /* there already, as a rule */
    if (argc <= 1 && access("build/bench-slice/config.json", F_OK) != 0) write_slice(&b, directory);
    must(&b, di_cpu_peak_measure(0, &b.peak, &b.error));
    open_model(&b, directory, release ? DI_NUMERICS_RELEASE : DI_NUMERICS_FLOAT);
    printf("%s, %s: %d layers of width %d; this machine reads %.1f GB/s, does %.1f GFLOP/s\n",
           directory, release ? "release" : "float", b.config->num_hidden_layers,
           b.config->hidden_size, b.peak.read_bytes_per_s * 1e-9, b.peak.flop_per_s * 1e-9);
    run(&b, "prefill, 256 rows", 1, PREFILL, REPEATS);
    run(&b, "decode, 1 sequence", 1, 1, DECODE);
    run(&b, "decode, 4 sequences", 4, 1, DECODE);
    run(&b, "decode, 16 sequences", MAX_BATCH, 1, DECODE);
    di_context_destroy(b.context);
    di_model_close(b.model);
    b.backend->destroy(b.backend);
    free(b.picks);
    return 0;
}
