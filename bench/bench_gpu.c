/* The forward pass of full-width layers against the device's ceilings: bench_gpu [options]
 *
 * The options are in bench_gpu_options.c; --help prints them. Exit status 2 when they are wrong.
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
    if (status == DI_ERR_USAGE) refuse("%s", b->error.message);
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

/* ---- Start ---- */

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
    di_context_options options = crowd_options(b, 1, b->context_tokens, START_ROOM, false);
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
    static bench b;
    options_read(&b, argc, argv);
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
