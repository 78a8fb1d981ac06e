/* bench_gpu: a prompt in chunks. */
#include <stdio.h>
#include <stdlib.h>

#include "bench_gpu.h"

enum { RUNS = 5 };

typedef struct prefill {
    bench *b;
    di_context *context;
    di_row *rows;
    crowd some; /* draws tokens */
    int32_t token;
    double begin, end;
} prefill;

static void run(void *user) {
    prefill *p = user;
    bench *b = p->b;
    const di_sample_params params = crowd_params(b, 0);
    di_context_reset(p->context, 0);
    di_context_stamp(p->context, &p->begin);
    for (int32_t at = 0; at < b->prompt_tokens; at += b->chunk) {
        int32_t n = b->prompt_tokens - at < b->chunk ? b->prompt_tokens - at : b->chunk;
        int32_t last = n - 1;
        bool ends = at + n == b->prompt_tokens;
        for (int32_t i = 0; i < n; i++) p->rows[i] = (di_row){crowd_some_id(b, &p->some), 0, i};
        const di_step step = {.rows = p->rows,
                              .n_rows = n,
                              .out_rows = &last,
                              .n_out = ends,
                              .params = ends ? &params : NULL};
        must(b, di_forward(p->context, &step, &b->error));
    }
    di_context_stamp(p->context, &p->end);
    must(b, di_context_read_samples(p->context, &p->token, NULL, &b->error));
    if (p->token < 0) stop("the prompt's logits are not finite");
}

static void print_seconds(const bench *b, quartiles s) {
    work w = {0};
    work_add_dense(b, &w, b->prompt_tokens);
    work_add_experts(b, &w, b->prompt_tokens, 0);
    for (int32_t i = 0; i < b->prompt_tokens; i++) work_add_attention(b, &w, i);
    work_add_head(b, &w, 1);
    double rate = work_flops(&w) / s.median;
    printf("  %d tokens in chunks of %d: %.4f s (%.4f .. %.4f), %.0f tokens/s, %.2f TFLOP, %.1f "
           "TFLOP/s: %.3f of the measured matrix rate",
           (int)b->prompt_tokens, (int)b->chunk, s.median, s.low, s.high,
           b->prompt_tokens / s.median, work_flops(&w) * 1e-12, rate * 1e-12, rate / b->flop_per_s);
    if (b->cublas_flop_per_s > 0) printf(", %.3f of cuBLAS's", rate / b->cublas_flop_per_s);
    printf("\n");
    printf("  TFLOP by part: dense %.2f, experts %.2f, attention %.2f, index %.2f, head %.2f\n",
           w.flops[PART_DENSE] * 1e-12, w.flops[PART_EXPERTS] * 1e-12,
           w.flops[PART_ATTENTION] * 1e-12, w.flops[PART_INDEX] * 1e-12,
           w.flops[PART_HEAD] * 1e-12);
    fflush(stdout);
}

void section_prefill(bench *b) {
    static const char *const heading[] = {"the prompt"};
    di_context_options options = crowd_options(b, 1, b->prompt_tokens, 0, false);
    prefill p = {.b = b, .rows = calloc((size_t)b->chunk, sizeof *p.rows)};
    double seconds[RUNS];
    if (!p.rows) stop("no memory for rows");
    options.n_pages = 0; /* its own */
    must(b, di_context_create(b->model, &options, &p.context, &b->error));
    printf("\nprefill\n");
    for (int i = -1; i < RUNS; i++) {
        run(&p);
        if (i >= 0) seconds[i] = p.end - p.begin;
    }
    print_seconds(b, quartiles_of(seconds, RUNS));
    profile_measure(b, 0, run, &p, 1, false);
    profile_print(heading, 1);
    di_context_destroy(p.context);
    free(p.rows);
}
