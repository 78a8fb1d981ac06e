/* The forward pass of full-width layers against the device's ceilings: bench_gpu [options]
 *
 *   --sections a,b,...         of start, decode, idle, prefill, verify; default all. The ceilings are
 *                              always measured: everything is held against them
 *   --backend cuda|cpu         default cuda
 *   --numerics float|release   default release
 *   --config NAME|FILE         released (default), tiny, or a config.json
 *   --set KEY=VALUE            a field of it; may be given several times
 *   --layers N | I,J,...       a run of N layers, chosen for its mix of roles, or these layers;
 *                              default: on a GPU a run of as many as fit, else all
 *   --draft-layers N           default: as many as the config has
 *   --experts N                a layer; default: as many as the config has
 *   --engram-rows N            about so many rows a table; default 8000000; 0: as the config says
 *   --weights copied           one set of random bytes crosses to the device, tensors are copies of
 *                              it at shifted places; of packed matrices of a shape the first few
 *                              cross, the others are copies (default)
 *             uploaded         the same, but every tensor crosses from host memory
 *             own              every tensor has host bytes of its own, which are then bound
 *   --context N                tokens of each sequence before decode and verify; default 4096
 *   --rows N,N,...             rows of decode steps; default 1,8,32,64,256
 *   --prompt N                 tokens of the prefill; default 8192
 *   --chunk N                  of the prefill; default 2048
 *   --repeats N                measured steps each; default 20
 *   --threads N, --gpu-device N, --seed N
 *
 * Figures are medians with their quartiles.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_gpu.h"
#include "bench_gpu_cublas.h"
#include "kernels/cpu/peak.h"
#include "kernels/cuda/peak.h"

_Noreturn void stop(const char *why) {
    fflush(stdout);
    fprintf(stderr, "bench_gpu: %s\n", why);
    exit(1);
}

void must(const bench *b, di_status status) {
    if (status != DI_OK) stop(b->error.message);
}

double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

quartiles quartiles_of(const double *values, int32_t n) {
    double sorted[MAX_REPEATS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return (quartiles){sorted[(n - 1) / 4], sorted[(n - 1) / 2], sorted[3 * (n - 1) / 4]};
}

/* ---- Options ---- */

static int64_t number(const char *name, const char *text, int64_t least, int64_t most) {
    char *end, why[160];
    long long value = strtoll(text, &end, 10);
    if (end != text && !*end && value >= least && value <= most) return value;
    snprintf(why, sizeof why, "%s %.60s: expected a number from %lld to %lld", name, text,
             (long long)least, (long long)most);
    stop(why);
}

static int32_t small(const char *name, const char *text, int32_t least, int32_t most) {
    return (int32_t)number(name, text, least, most);
}

/* Which of the words, separated by bars, the text is. */
static int choice(const char *name, const char *text, const char *words) {
    char why[160];
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t m = strcspn(words, "|");
        if (m == n && memcmp(words, text, n) == 0) return i;
        if (!words[m]) break;
        words += m + 1;
    }
    snprintf(why, sizeof why, "%s: '%.60s' is none of its words", name, text);
    stop(why);
}

/* Numbers separated by commas; how many. */
static int32_t read_list(const char *name, const char *text, int32_t least, int32_t most,
                         int32_t *out, int32_t room) {
    char copy[1024], *rest = NULL;
    int32_t n = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, ",", &rest); at; at = strtok_r(NULL, ",", &rest)) {
        if (n == room) stop("a list of too many numbers");
        out[n++] = small(name, at, least, most);
    }
    if (n == 0) stop("a list without a number");
    return n;
}

static void read_layers(bench *b, const char *text) {
    const char *name = "--layers";
    b->n_listed = 0;
    if (!strchr(text, ',')) {
        b->layers = small(name, text, 1, DI_MAX_LAYERS);
        return;
    }
    b->n_listed = read_list(name, text, 0, DI_MAX_LAYERS - 1, b->listed, DI_MAX_LAYERS);
    b->layers = b->n_listed;
}

static bool wants(const bench *b, const char *section) {
    const char *at = b->sections;
    size_t n = strlen(section);
    while (*at) {
        size_t m = strcspn(at, ",");
        if (m == n && memcmp(at, section, n) == 0) return true;
        at += m + (at[m] == ',');
    }
    return false;
}

static void check_sections(const char *text) {
    char copy[256], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *at = strtok_r(copy, ",", &rest); at; at = strtok_r(NULL, ",", &rest))
        (void)choice("--sections", at, "ceilings|start|decode|idle|prefill|verify");
}

static bool read_number(bench *b, const char *name, const char *value) {
    static const struct {
        const char *name;
        size_t at;
        int32_t least, most;
    } numbers[] = {
        {"--draft-layers", offsetof(bench, draft_layers), 0, DI_MAX_LAYERS},
        {"--experts", offsetof(bench, experts), 1, 65536},
        {"--threads", offsetof(bench, threads), 0, 1024},
        {"--gpu-device", offsetof(bench, device), 0, 1023},
        {"--context", offsetof(bench, context_tokens), 1, 1 << 20},
        {"--prompt", offsetof(bench, prompt_tokens), 1, 1 << 20},
        {"--chunk", offsetof(bench, chunk), 1, 65536},
        {"--repeats", offsetof(bench, repeats), 1, MAX_REPEATS},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (strcmp(name, numbers[i].name) != 0) continue;
        int32_t read = small(name, value, numbers[i].least, numbers[i].most);
        memcpy((char *)b + numbers[i].at, &read, sizeof read);
        return true;
    }
    return false;
}

static void read_option(bench *b, const char *name, const char *value) {
    if (read_number(b, name, value)) return;
    if (strcmp(name, "--sections") == 0) {
        check_sections(value);
        b->sections = value;
    } else if (strcmp(name, "--backend") == 0) {
        b->cuda = choice(name, value, "cuda|cpu") == 0;
    } else if (strcmp(name, "--numerics") == 0) {
        b->numerics =
            choice(name, value, "release|float") ? DI_NUMERICS_FLOAT : DI_NUMERICS_RELEASE;
    } else if (strcmp(name, "--weights") == 0) {
        b->weights = (weights_mode)choice(name, value, "copied|uploaded|own");
    } else if (strcmp(name, "--config") == 0) {
        b->config_name = value;
    } else if (strcmp(name, "--engram-rows") == 0) {
        b->engram_rows = number(name, value, 0, INT64_C(1) << 40);
    } else if (strcmp(name, "--seed") == 0) {
        b->seed = (uint64_t)number(name, value, 0, INT64_MAX);
    } else if (strcmp(name, "--rows") == 0) {
        b->n_sizes = read_list(name, value, 1, MAX_BATCH, b->sizes, MAX_SIZES);
    } else if (strcmp(name, "--layers") == 0) {
        read_layers(b, value);
    } else if (strcmp(name, "--set") == 0) {
        if (b->n_set == MAX_SET) stop("--set: too many");
        b->set[b->n_set++] = value;
    } else {
        stop("unknown option: see the head of bench/bench_gpu.c");
    }
}

/* ---- Start ---- */

enum { FIRST_PROMPT = 128 };

/* Seconds from nothing enqueued to the token of a short prompt. */
static double first_token(bench *b, di_context *context, crowd *some) {
    di_row rows[FIRST_PROMPT];
    int32_t out, token, n = b->chunk < FIRST_PROMPT ? b->chunk : FIRST_PROMPT;
    di_sample_params params = crowd_params(b, 0);
    out = n - 1;
    for (int32_t i = 0; i < n; i++) rows[i] = (di_row){crowd_some_id(b, some), 0, i};
    di_step step = {.rows = rows, .n_rows = n, .out_rows = &out, .n_out = 1, .params = &params};
    double begin = now_s();
    must(b, di_forward(context, &step, &b->error));
    must(b, di_context_read_samples(context, &token, NULL, &b->error));
    if (token < 0) stop("the first token has no finite logit");
    return now_s() - begin;
}

/* The parts of a start, of which the last ones happen here. */
static void section_start(bench *b) {
    crowd some = {0};
    double begin = now_s();
    di_context_options options = crowd_options(b, 1, b->context_tokens, 2 * FIRST_PROMPT, false);
    di_context *context;
    options.n_pages = 0; /* its own */
    must(b, di_context_create(b->model, &options, &context, &b->error));
    double created = now_s() - begin, first = first_token(b, context, &some);
    double second = first_token(b, context, &some);
    int32_t n = b->chunk < FIRST_PROMPT ? b->chunk : FIRST_PROMPT;
    di_context_destroy(context);
    printf("\nstart to first token: %.2f s = backend %.2f + weights made %.2f + opened and bound "
           "%.2f + context %.2f + first step %.3f (a prompt of %d tokens; again %.4f)\n",
           b->backend_s + b->made_s + b->bound_s + created + first, b->backend_s, b->made_s,
           b->bound_s, created, first, (int)n, second);
}

/* ---- Ceilings ---- */

enum { CUBLAS_RUNS = 7 };

/* What others reach of the second ceiling with whole matrices: a median, as ours are. */
static void measure_cublas(bench *b) {
    const char *why = "built without CUDA";
    quartiles rate = {0};
#ifdef BENCH_CUDA
    double rates[CUBLAS_RUNS];
    why = cublas_product_flops(rates, CUBLAS_RUNS);
    if (why == NULL) rate = quartiles_of(rates, CUBLAS_RUNS);
#endif
    b->cublas_flop_per_s = rate.median;
    if (why == NULL)
        printf("cuBLAS does %.1f TFLOP/s (%.1f .. %.1f): bf16, normal values, 8192 x 8192 x 8192\n",
               rate.median * 1e-12, rate.low * 1e-12, rate.high * 1e-12);
    else
        printf("no figure of cuBLAS: %s\n", why);
}

static void measure_ceilings(bench *b) {
    printf("\nceilings: ");
    if (b->cuda) {
        di_cuda_peak peak;
        must(b, di_cuda_peak_measure(b->device, &peak, &b->error));
        b->bytes_per_s = peak.copy_bytes_per_s;
        b->flop_per_s = peak.flop_per_s;
#ifdef BENCH_CUDA
        b->empty_s = graph_empty_kernel_s(b->backend->stream);
#endif
        printf("%s copies %.1f GB/s (read and written), does %.1f TFLOP/s of bf16 products; an "
               "empty kernel in a graph takes %.2f us\n",
               peak.device, b->bytes_per_s * 1e-9, b->flop_per_s * 1e-12, b->empty_s * 1e6);
        if (!(b->empty_s > 0)) stop("an empty kernel could not be measured");
        measure_cublas(b);
    } else {
        di_cpu_peak peak;
        must(b, di_cpu_peak_measure(b->threads, &peak, &b->error));
        b->bytes_per_s = peak.read_bytes_per_s;
        b->flop_per_s = peak.flop_per_s;
        printf("reads %.1f GB/s, does %.1f GFLOP/s\n", b->bytes_per_s * 1e-9, b->flop_per_s * 1e-9);
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    static bench b = {.config_name = "released",
                      .sections = "start,decode,idle,prefill,verify",
                      .cuda = true,
                      .numerics = DI_NUMERICS_RELEASE,
                      .draft_layers = -1,
                      .chunk = 2048,
                      .context_tokens = 4096,
                      .prompt_tokens = 8192,
                      .repeats = 20,
                      .n_sizes = 5,
                      .sizes = {1, 8, 32, 64, 256},
                      .engram_rows = 8000000,
                      .seed = 1,
                      .json = DI_BUFFER_EMPTY};
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) stop("an option without its value: see the head of bench/bench_gpu.c");
        read_option(&b, argv[i], argv[i + 1]);
    }
    model_choose(&b);
    model_open(&b);
    if (wants(&b, "start")) section_start(&b);
    measure_ceilings(&b);
    if (wants(&b, "decode")) section_decode(&b);
    if (wants(&b, "idle")) section_idle(&b);
    if (wants(&b, "prefill")) section_prefill(&b);
    if (wants(&b, "verify")) section_verify(&b);
    model_close(&b);
    return 0;
}
