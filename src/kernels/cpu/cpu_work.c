/* Workspace of operations and of members, and loops over the team. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu.h"

_Noreturn void cpu_broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: an operation was called outside of its limits: %s\n", file, line,
            condition);
    abort();
}

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t round64(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

/* Longest row that a product can read, with room for the padding of groups. */
static uint64_t input_width(const di_limits *l) {
    uint64_t w = most((uint64_t)l->max_k, (uint64_t)l->n_heads * (uint64_t)l->head_dim);
    w = most(w, (uint64_t)l->engram_columns * (uint64_t)l->engram_width);
    w = most(w, (uint64_t)l->hc * (uint64_t)l->width);
    w = most(w, most((uint64_t)l->inner, most((uint64_t)l->q_rank, (uint64_t)l->o_low)));
    return w + 512;
}

/* Generous rather than exact: every region that some operation takes, as if one took them all. */
uint64_t cpu_shared_bytes(const di_limits *l) {
    uint64_t rows = most((uint64_t)l->max_rows, (uint64_t)l->max_out) + 1;
    uint64_t picks = rows * ((uint64_t)l->top_k + 1);
    uint64_t width = (uint64_t)l->width, hc = (uint64_t)l->hc, d = (uint64_t)l->head_dim;
    uint64_t a_row = 2 * input_width(l) /* inputs of two products */
                     + (uint64_t)l->q_rank + 5 * d + 3 * (uint64_t)l->index_dim +
                     (uint64_t)l->index_heads * ((uint64_t)l->index_dim + 2) + (uint64_t)l->o_low +
                     2 * (uint64_t)l->inner + width + (2 + hc) * hc + 2 * (uint64_t)l->n_experts +
                     2 * DI_OPS_MAX_BLOCK + 64;
    uint64_t floats = rows * a_row + picks * (2 * (uint64_t)l->inner + 96) + 2 * hc * width +
                      4 * (width + d + (uint64_t)l->q_rank) + 3 * hc * hc;
    uint64_t pointers = 16 * picks + 32 * rows;
    return round64(4 * floats + 8 * pointers + 512 * (uint64_t)l->n_experts + (1 << 16));
}

typedef struct regions {
    uint8_t *memory; /* NULL: only count */
    uint64_t used;
} regions;

static void *region(regions *r, uint64_t bytes) {
    void *at = r->memory ? r->memory + r->used : NULL;
    r->used += round64(bytes);
    return at;
}

static uint64_t lay_out(const di_limits *l, uint8_t *memory, cpu_scratch *out) {
    regions r = {memory, 0};
    uint64_t rows = most((uint64_t)l->max_rows, (uint64_t)l->max_out) + 1;
    uint64_t heads = most((uint64_t)l->n_heads, (uint64_t)l->index_heads) + 1;
    uint64_t d = most((uint64_t)l->head_dim, (uint64_t)l->index_dim);
    uint64_t entries = (uint64_t)l->max_entries + CPU_BLOCK, vocab = (uint64_t)l->vocab + 8;
    out->tile = region(&r, 4 * CPU_TILE_N * CPU_TILE_LD);
    out->scaled = region(&r, 4 * CPU_FEW_ROWS * input_width(l));
    out->acc = region(&r, 4 * rows * CPU_TILE_N);
    out->acc2 = region(&r, 4 * rows * CPU_TILE_N);
    out->keys = region(&r, 4 * CPU_BLOCK * (d + CPU_KEY_PAD));
    out->probs = region(&r, 4 * heads * CPU_BLOCK);
    out->coded = region(&r, CPU_BLOCK * sizeof(cpu_coded));
    out->angles = region(&r, 4 * d);
    out->o = region(&r, 4 * heads * d);
    out->state = region(&r, 4 * 3 * heads);
    out->scores = region(&r, 4 * entries);
    out->best = region(&r, 4 * entries);
    out->sort_keys = region(&r, 4 * entries);
    out->list = region(&r, 4 * entries);
    out->x = region(&r, 8 * vocab);
    out->q = region(&r, 8 * vocab);
    out->ids = region(&r, 4 * vocab);
    return r.used;
}

uint64_t cpu_scratch_bytes(const di_limits *limits) {
    cpu_scratch unused;
    return lay_out(limits, NULL, &unused);
}

void cpu_scratch_layout(const di_limits *limits, uint8_t *memory, cpu_scratch *out) {
    lay_out(limits, memory, out);
}

void *cpu_take(di_stream *s, uint64_t bytes) {
    uint64_t size = round64(bytes);
    CPU_REQUIRE(size <= s->shared_size - s->shared_used);
    void *at = s->shared + s->shared_used;
    s->shared_used += size;
    return at;
}

/* Pieces are handed out by a counter, so that a core that others disturb gets fewer of them. */
typedef struct loop {
    di_stream *s;
    cpu_body body;
    void *user;
    int64_t n, grain;
    _Alignas(64) _Atomic int64_t next;
} loop;

static void loop_member(void *user, int32_t member, int32_t n_members) {
    loop *l = user;
    (void)n_members;
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&l->next, l->grain, memory_order_relaxed);
        if (begin >= l->n) return;
        int64_t end = l->n - begin < l->grain ? l->n : begin + l->grain;
        l->body(l->s, &l->s->scratch[member], l->user, begin, end);
    }
}

void cpu_parallel(di_stream *s, int64_t n, int64_t grain, int64_t work, cpu_body body, void *user) {
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (s->n_members == 1 || n <= grain || work < CPU_SMALL_WORK) {
        body(s, &s->scratch[0], user, 0, n);
        return;
    }
    loop l = {.s = s, .body = body, .user = user, .n = n, .grain = grain};
    atomic_init(&l.next, 0);
    di_team_share(s->team, loop_member, &l);
}
