/* bench_gpu: sequences that decode.
 *
 * To fill hundreds of contexts takes minutes, so all sequences have the beginning of one, copied,
 * and only the last TAIL tokens of each are its own: enough for windows, routing and selection of
 * the steps behind them to differ.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "bench_gpu.h"

enum { TAIL = 64 };

int32_t crowd_some_id(const bench *b, crowd *c) {
    uint32_t words[4];
    di_philox(b->seed, c->drawn++, 0, words);
    return (int32_t)(words[0] % (uint32_t)b->config->vocab_size);
}

di_sample_params crowd_params(const bench *b, int32_t slot) {
    return (di_sample_params){.seed = b->seed + (uint64_t)slot,
                              .temperature = 1,
                              .top_p = 1,
                              .repetition_penalty = 1,
                              .slot = slot,
                              .mask = -1};
}

static int64_t max_context(int64_t tokens, int64_t room) {
    return (tokens + room + DI_PAGE_TOKENS - 1) / DI_PAGE_TOKENS * DI_PAGE_TOKENS;
}

di_context_options crowd_options(const bench *b, int32_t n_slots, int64_t tokens, int64_t room,
                                 bool drafts) {
    int64_t most = max_context(tokens, room);
    int32_t block = drafts ? b->config->dspark_block_size + 1 : 1, rows = n_slots * block;
    return (di_context_options){.n_slots = n_slots,
                                .max_context = most,
                                .max_rows = rows > b->chunk ? rows : b->chunk,
                                .max_out = rows,
                                .drafts = drafts,
                                .n_pages = (int32_t)(n_slots * (most / DI_PAGE_TOKENS))};
}

static void set_pages(bench *b, crowd *c, int32_t slot) {
    int32_t pages[1 << 15], n = c->pages_per_slot;
    if (n > (int32_t)(sizeof pages / sizeof *pages)) stop("the context is too long");
    for (int32_t i = 0; i < n; i++) pages[i] = slot * n + i;
    must(b, di_context_set_pages(c->context, slot, 0, pages, n, &b->error));
}

/* The tokens that all have, in slot 0; then in the others. */
static void fill_beginning(bench *b, crowd *c, int32_t n) {
    di_row *rows = calloc((size_t)b->chunk, sizeof *rows);
    uint8_t *saved = malloc((size_t)di_context_snapshot_bytes(c->context));
    if (!rows || !saved) stop("no memory for the first sequence");
    for (int32_t at = 0; at < n; at += b->chunk) {
        int32_t m = n - at < b->chunk ? n - at : b->chunk;
        for (int32_t i = 0; i < m; i++) rows[i] = (di_row){crowd_some_id(b, c), 0, i};
        must(b, di_forward(c->context, &(di_step){.rows = rows, .n_rows = m}, &b->error));
    }
    di_context_save(c->context, 0, saved);
    must(b, di_context_wait(c->context, &b->error));
    for (int32_t slot = 1; slot < c->n_slots; slot++) {
        for (int32_t i = 0; i < n / DI_PAGE_TOKENS; i++)
            di_context_copy_page(c->context, slot * c->pages_per_slot + i, i);
        di_context_restore(c->context, slot, saved);
    }
    must(b, di_context_wait(c->context, &b->error));
    free(saved);
    free(rows);
}

/* n tokens of its own for each sequence, and a token sampled behind them; as many sequences at a
 * time as a step has room for. */
static void fill_tails(bench *b, crowd *c, int32_t n) {
    int32_t max_rows = di_context_get_options(c->context)->max_rows, group = max_rows / n;
    di_row *rows = calloc((size_t)max_rows, sizeof *rows);
    int32_t out[MAX_BATCH], tokens[MAX_BATCH];
    di_sample_params params[MAX_BATCH];
    if (!rows) stop("no memory for rows");
    if (group == 0) stop("--chunk: too small for the sequences' own tokens");
    for (int32_t first = 0; first < c->n_slots; first += group) {
        int32_t m = c->n_slots - first < group ? c->n_slots - first : group;
        for (int32_t s = 0; s < m; s++) {
            for (int32_t i = 0; i < n; i++)
                rows[s * n + i] = (di_row){crowd_some_id(b, c), first + s, i};
            out[s] = s * n + n - 1;
            params[s] = crowd_params(b, first + s);
        }
        const di_step step = {.rows = rows,
                              .n_rows = m * n,
                              .out_rows = out,
                              .n_out = m,
                              .params = params};
        must(b, di_forward(c->context, &step, &b->error));
        must(b, di_context_read_samples(c->context, tokens, NULL, &b->error));
        for (int32_t s = 0; s < m; s++)
            if (tokens[s] < 0) stop("a prompt's logits are not finite");
    }
    free(rows);
}

void crowd_open(bench *b, crowd *c, int32_t n_slots, int64_t room, bool drafts) {
    double begin = now_s();
    di_context_options options = crowd_options(b, n_slots, b->context_tokens, room, drafts);
    *c = (crowd){.n_slots = n_slots,
                 .pages_per_slot = (int32_t)(options.max_context / DI_PAGE_TOKENS),
                 .room = room};
    must(b, di_context_create(b->model, &options, &c->context, &b->error));
    for (int32_t slot = 0; slot < n_slots; slot++) set_pages(b, c, slot);
    int32_t shared = (b->context_tokens - TAIL) / DI_PAGE_TOKENS * DI_PAGE_TOKENS;
    if (shared > 0) fill_beginning(b, c, shared);
    fill_tails(b, c, b->context_tokens - (shared > 0 ? shared : 0));
    printf("  %d sequences of %d tokens, the last %d of each its own; filled in %.1f s\n",
           (int)n_slots, (int)b->context_tokens,
           (int)(b->context_tokens - (shared > 0 ? shared : 0)), now_s() - begin);
    fflush(stdout);
}

void crowd_close(crowd *c) { di_context_destroy(c->context); }

/* ---- Time for the host ---- */

static int32_t stall_fills = 40;

void stall(bench *b) {
    static di_ptr memory;
    const uint64_t bytes = UINT64_C(256) << 20;
    if (!b->backend->device) return;
    if (memory.address == 0)
        must(b, b->backend->alloc(b->backend, bytes, "stall", &memory, &b->error));
    for (int32_t i = 0; i < stall_fills; i++)
        b->backend->fill(b->backend->stream, memory, i, bytes);
}

void stall_longer(void) {
    if (stall_fills < 320) stall_fills *= 2;
}
