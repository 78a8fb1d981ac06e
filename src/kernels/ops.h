/* The operations of the network, as mathematics: one contract each.
 *
 * A backend is a table of these functions (di_ops) plus memory and streams (backend.h). Every
 * operation has a scalar twin in ref/, which is its definition; kernelcheck compares every backend
 * with the twins. The model calls the operations of the first part; the second part names the steps
 * of which they are made, so that each can be verified by itself.
 *
 * Calls. ops->NAME(stream, &args) enqueues the operation; it may run later, in order with
 * everything else on the stream. The argument struct is copied by the call. Device memory is named
 * by di_ptr and may be read or written by the backend alone. Operations do not fail: whoever
 * enqueues them has checked shapes and sizes, and assert()s in the twins say what was assumed.
 *
 * Types. A: an activation; F: a coefficient or accumulator; both are the backend's (sizes in
 * di_backend). Twins: double, double. CPU: float, float. A GPU may hold A in bf16 under `release`.
 * Weights, caches and codes have the stored types of dtype.h. All matrices are row-major; a weight
 * [N, K] gives y[n] = sum_k x[k] * w[n, k]. Weight and cache memory may be unaligned.
 *
 * Numerics, a property of the backend (di_numerics). `float`: nothing is rounded but what the
 * caches store. `release`: a(x) rounds an A to bf16 (nearest, ties to even), f(x) an F to float32,
 * where the released code holds such a tensor; q8(x) quantises the input of FP8 and FP4 matrices.
 * Under `float`, a, f and q8 are the identity. Sums inside one operation are taken at least in
 * float32.
 *
 * Row invariance. The bits of a row depend on that row and its sequence alone: not on other rows of
 * the step, the chunking, the number of threads or the device's load. How K is split in a product
 * is a property of the tensor; attention runs over its list in blocks of 64 from the start of the
 * list.
 *
 * Dead rows. A row whose pos is < 0 (see step_begin) may hold garbage. Its outputs are unspecified,
 * and nothing outside the step's own row buffers is read or written for it.
 *
 * Bounds. A backend's result stays within DI_BOUND_* of the twin's on the same inputs:
 * |got - want| <= bound * max(1, largest |want| of the row) in `float`; in `release` at least
 * 99.5 % of A values equal and the rest one bf16 step off (where terms cancel, 1e-6 of the row's
 * largest value; in attention, where a probability's rounding may tip, 2^-8 of it, and of what it
 * rotates back 2^-7 of the pair's norm and of the value together: both values are rounded before, a
 * step of which is more than one where the rotation makes a value small), F values within 1e-5 of
 * the tensor's largest. Integers, codes, scales, picks: equal. In an operation made of several, a
 * rounding that tips before a quantiser or a selection may move what follows in its row.
 */
#ifndef DI_KERNELS_OPS_H
#define DI_KERNELS_OPS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/inline.h"
#include "kernels/dtype.h"

#define DI_BOUND_SUM 2e-5 /* products and norms, float32 sums of up to 20,480 terms */
#define DI_BOUND_EXP 5e-6 /* elementwise functions */
#define DI_BOUND_ATTEND 2e-5

/* Sizes that operations have room for; a config's own limits (model/config.h) stay below them. */
enum {
    DI_OPS_MAX_RATIO = 64, /* tokens of a compressed entry: at most a page */
    DI_OPS_MAX_HC = 16,    /* streams */
    DI_OPS_MAX_NGRAM = 16,
    DI_OPS_MAX_BLOCK = 64 /* drafts of a sequence */
};

typedef struct di_stream di_stream;

/* An address in device memory. Arithmetic is allowed (di_ptr_at), reading through it is not.
 * address 0 is "none". */
typedef struct di_ptr {
    uint64_t address;
} di_ptr;

DI_INLINE di_ptr di_ptr_at(di_ptr base, uint64_t bytes) { return (di_ptr){base.address + bytes}; }

#define DI_NONE ((di_ptr){0})

/* A stored matrix [n, k]. FP8: scale E8M0 [ceil(n/32), ceil(k/32)]; FP4_PAIR: data [n, k/2] bytes,
 * scale [n, k/32]; BF16 and F32: no scale. Dequantisation is exact (model.md 2.1). E4M3's NaN codes
 * (0x7F, 0xFF), which no released checkpoint has, are NaN to the twins; a backend may read them as
 * +-480, if it does so for any number of rows. They show in their own output only. */
typedef struct di_matrix {
    di_dtype dtype;
    int32_t n, k;
    di_ptr data, scale;
} di_matrix;

/* A stored vector of n BF16 or F32 values. */
typedef struct di_vector {
    di_dtype dtype;
    int32_t n;
    di_ptr data;
} di_vector;

/* ------------------------------------------------------------------------------------------------
 * The step
 * --------------------------------------------------------------------------------------------- */

enum { DI_TOKEN_NEXT = -1 }; /* a row's token is next_token[slot], known to the device only */

/* A row as the host asks for it. Rows of one slot are contiguous, offsets 0, 1, 2, ...; but rows that
 * only go into windows (window_kv, window_store) may come in any order, and stand before the slot's
 * end, as long as no two of them take the same place of a ring; batch.first means nothing then. */
typedef struct di_row {
    int32_t token;  /* id, or DI_TOKEN_NEXT */
    int32_t slot;   /* of the sequence */
    int32_t offset; /* position - length[slot]; a row of a position below 0 is dead */
} di_row;
enum { DI_OFFSET_DEAD = INT32_MIN / 2 }; /* dead in any slot */

/* The rows of a step. Host-known: counts. Device-side: everything behind a di_ptr. */
typedef struct di_batch {
    int32_t n_rows, n_slots;
    di_ptr rows;       /* di_row [n_rows] */
    di_ptr length;     /* int32 [n_slots]: tokens in each sequence before this step */
    di_ptr n_valid;    /* int32 [n_slots]: rows with offset >= n_valid[slot] are dead; INT32_MAX but
                          between accept and step_end */
    di_ptr next_token; /* int32 [n_slots] */
    /* Written by step_begin for the operations after it: */
    di_ptr pos; /* int32 [n_rows]: absolute position, negative for a dead row */
    /* int32 [n_rows]: row minus offset, where offset 0 of the slot stands, or would: above the cut
     * rows begin at a larger one, so it says nothing about who belongs together. */
    di_ptr first;
    di_ptr token; /* int32 [n_rows] */
    /* int32 [n_slots], or DI_NONE for 0: window rows below this position are lost (replay). */
    di_ptr floor;
} di_batch;

/* pos, first, token of every row, as above. */
typedef struct di_step_begin_args {
    di_batch batch;
} di_step_begin_args;

/* Rows with pos >= 0 and offset < n_valid[slot] stay: their tokens go to history[slot][pos %
 * history_slots], and length[slot] grows by one for each. n_valid of the step's slots becomes
 * INT32_MAX. What rejected rows left in caches is never read; it is written over. */
typedef struct di_step_end_args {
    di_batch batch;
    di_ptr history; /* int32 [n_slots][history_slots] token ids */
    int32_t history_slots;
} di_step_end_args;

/* length[s] -= count[s] for every slot. Caches need no other undoing: rings keep `rollback` more
 * rows than are ever read, and entries of reopened groups are written again. */
typedef struct di_rewind_args {
    int32_t n_slots;
    di_ptr length; /* int32 [n_slots] */
    di_ptr count;  /* int32 [n_slots], 0..rollback */
} di_rewind_args;

/* ------------------------------------------------------------------------------------------------
 * Verification of drafts (dspark.md 6 and 8)
 * --------------------------------------------------------------------------------------------- */

enum { DI_LAWS = 3 }; /* of acceptance, as calibration tells them apart */

/* A sequence that decodes: the token that stands at its length, and up to `most` of its drafts. In
 * device memory; the host writes it for every step. */
typedef struct di_block {
    int32_t slot;
    int32_t most;   /* 0: no drafts */
    int32_t column; /* where its drafts stand; unused when most is 0 */
    int32_t law;    /* row of `temperatures` */
    int32_t reject; /* accept by rejection sampling instead of equality */
} di_block;

/* Which drafts are verified, and their rows. Survival of draft k (from 0) of a block in double:
 * a_k = prod_{j <= k} sigmoid(confidence[j][column] / temperatures[law][j]), NaN counts as 0. The
 * n_drafts largest of all blocks (within `most`) are taken; equal ones: the smaller k first, then
 * the lower block. So a later draft never pushes out an earlier one of its block, and whether draft
 * k is verified depends on what was known before it was drawn. n_drafts is at most the sum of most,
 * so exactly n_blocks + n_drafts rows are made: block by block, the row of next_token[slot], then
 * those of its drafts. A draft below 0 (bad logits) stands in its row as id 0, which is as good a
 * guess, and the confidences behind it count as NaN. */
typedef struct di_allot_args {
    int32_t n_blocks, n_drafts; /* together at most max_rows */
    int32_t block, n_columns;   /* block: drafts that a column has */
    di_ptr blocks;              /* di_block [n_blocks] */
    di_ptr next_token;          /* int32 [n_slots] */
    di_ptr drafts;              /* int32 [block][n_columns]; not read when n_drafts is 0 */
    di_ptr confidence;          /* F [block][n_columns], before the sigmoid; likewise */
    di_ptr temperatures;        /* float32 [DI_LAWS][block]; likewise */
    di_ptr n_rows;              /* out int32 [n_blocks]: 1 + drafts taken */
    /* out, [n_blocks + n_drafts] each: */
    di_ptr rows;                  /* di_row */
    di_ptr which, slot, param_of; /* int32: the row itself, its slot, its block */
    di_ptr extra_at, n_extra; /* int32: for sample: the drafts before a row, as places in `token` */
} di_allot_args;

/* streams[t][j] = embed[token[t]] for all j; pre[t] = (1, 0, ..., 0). model.md 3.4. */
typedef struct di_embed_args {
    di_batch batch;
    di_matrix embed; /* BF16 [V, D] */
    int32_t hc;
    di_ptr streams; /* out A [n_rows][hc][D] */
    di_ptr pre;     /* out F [n_rows][hc] */
} di_embed_args;

/* ------------------------------------------------------------------------------------------------
 * Engram (model.md 5)
 * --------------------------------------------------------------------------------------------- */

/* Table rows of every row and Engram layer. y_k = token_map[token at pos - k] for k < max_ngram,
 * from the step's rows where pos - k >= length[slot], else from history; before position 0 the
 * class `pad_class`. H = y_0 m_0; for n = 1..: H ^= y_n m_n, columns (n - 1) * n_heads + h:
 * H mod prime + offset. Exact integers; products stay below 2^63. */
typedef struct di_engram_hash_args {
    di_batch batch;
    di_ptr history; /* int32 [n_slots][history_slots] */
    int32_t history_slots;
    di_ptr token_map; /* int32 [V] */
    int32_t pad_class;
    int32_t n_layers, max_ngram, n_heads; /* n_columns = (max_ngram - 1) * n_heads */
    di_ptr multipliers;                   /* int64 [n_layers][max_ngram] */
    di_ptr primes, offsets;               /* int64 [n_layers][n_columns] */
    di_ptr table_rows;                    /* out int64 [n_layers][n_rows][n_columns] */
} di_engram_hash_args;

/* out[t] = the n_columns table rows side by side, dequantised (1x32 blocks). Exact. */
typedef struct di_engram_rows_args {
    int32_t n_rows, n_columns, width; /* width: values of a table row, a multiple of 32 */
    di_ptr pos;                       /* int32 [n_rows], or DI_NONE: all rows are live */
    di_ptr table_rows;                /* int64 [n_rows][n_columns] */
    di_ptr codes, scales;             /* table: E4M3 [B][width], E8M0 [B][width / 32] */
    di_ptr out;                       /* A [n_rows][n_columns * width] */
} di_engram_rows_args;

/* Per stream j, h = streams[t][j], key = kv[t][j], value = kv[t][hc]:
 * dot = sum_d h_d (q_jd k_jd) key_d * rsqrt(mean(h^2) + eps) * rsqrt(mean(key^2) + eps) * D^-0.5;
 * gate = f(sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot))); streams[t][j] = a(h + gate * value). */
typedef struct di_engram_gate_args {
    int32_t n_rows, hc, width; /* width D */
    double eps;
    di_ptr kv;                    /* A [n_rows][hc + 1][D] */
    di_matrix q_weight, k_weight; /* BF16 [hc, D] */
    di_ptr streams;               /* in, out A [n_rows][hc][D] */
    di_ptr gate;                  /* out F [n_rows][hc], or DI_NONE */
} di_engram_gate_args;

/* ------------------------------------------------------------------------------------------------
 * mHC (model.md 3.5)
 * --------------------------------------------------------------------------------------------- */

/* m = (fn . v) * rsqrt(mean(v^2) + rms_eps), v = the row's hc * D stream values.
 * pre_j = sigmoid(m_j scale0 + base_j) + hc_eps; post_j = 2 sigmoid(m_{hc+j} scale1 + base_{hc+j});
 * comb[i][k] = m_{2hc+hc i+k} scale2 + base_{...}, then row softmax + hc_eps, one column
 * normalisation / (sum + hc_eps), then (iters - 1) times rows and columns. All rounded by f. */
typedef struct di_mix_args {
    int32_t n_rows, hc, width, iters;
    double rms_eps, hc_eps;
    di_ptr streams;         /* A [n_rows][hc][D] */
    di_matrix fn;           /* F32 [(2 + hc) hc, hc D] */
    di_vector base, scale;  /* F32 [(2 + hc) hc], [3] */
    di_ptr pre, post, comb; /* out F [n_rows][hc], [n_rows][hc], [n_rows][hc][hc] */
} di_mix_args;

/* x = a(sum_j pre[j] streams[j]); out = rms_norm(x, norm). */
typedef struct di_sublayer_in_args {
    int32_t n_rows, hc, width;
    double eps;
    di_ptr streams;   /* A [n_rows][hc][D] */
    di_ptr pre;       /* F [n_rows][hc] */
    di_vector norm;   /* [D] */
    di_ptr collapsed; /* out A [n_rows][D]: x, or DI_NONE */
    di_ptr out;       /* A [n_rows][D] */
} di_sublayer_in_args;

/* streams[k] = a(post[k] y + sum_i comb[i][k] streams[i]): the sum is over the FIRST index. */
typedef struct di_sublayer_out_args {
    int32_t n_rows, hc, width;
    di_ptr y;          /* A [n_rows][D] */
    di_ptr post, comb; /* F [n_rows][hc], [n_rows][hc][hc] */
    di_ptr streams;    /* in, out A [n_rows][hc][D] */
} di_sublayer_out_args;

/* out[t * out_stride ...] = a(mean over j of streams[t][j]): what the drafter reads (dspark.md 3).
 */
typedef struct di_stream_mean_args {
    int32_t n_rows, hc, width;
    di_ptr streams; /* A [n_rows][hc][D] */
    di_ptr out;     /* A, row t at element t * out_stride */
    int64_t out_stride;
} di_stream_mean_args;

/* ------------------------------------------------------------------------------------------------
 * Products
 * --------------------------------------------------------------------------------------------- */

/* out[t] = W . x[t] (x through q8 when `quantize` and the backend is `release`), rounded by a, or
 * by f when to_f. With groups > 1 the N rows of W are `groups` equal blocks, and block g multiplies
 * the g-th K values of x[t] (wo_a); x rows then have groups * K values. */
typedef struct di_linear_args {
    int32_t n_rows, groups;
    bool quantize, to_f;
    di_ptr x;    /* A [n_rows][groups * K] */
    di_matrix w; /* [N, K] */
    di_ptr out;  /* A or F [n_rows][N] */
} di_linear_args;

/* ------------------------------------------------------------------------------------------------
 * Attention (model.md 3.6 to 3.8)
 * --------------------------------------------------------------------------------------------- */

/* Window KV as stored: one row a token, all of it after RoPE, E4M3 codes and E8M0 scales per 32. */
typedef struct di_window {
    di_ptr codes;  /* [n_slots][ring_slots][d] */
    di_ptr scales; /* [n_slots][ring_slots][d / 32] */
    int32_t ring_slots;
} di_window;

/* Pages of 64 tokens. Entry j of a source of ratio r stands for tokens j r .. j r + r - 1; it lies
 * in page table[slot][j r / 64] at place j % (64 / r). Offsets are of this source's four parts
 * inside a page: latent e2m1 pairs [64/r][d/2], E4M3 scales [64/r][d/16], index key e2m1 pairs
 * [64/r][di/2], E8M0 scales [64/r][di/32]. */
typedef struct di_pages {
    di_ptr pool;
    uint64_t page_bytes;
    di_ptr table; /* int32 [n_slots][table_stride]: page numbers */
    int32_t table_stride;
    int32_t ratio, d, di;
    uint32_t codes, scales, key_codes, key_scales;
} di_pages;

/* RoPE on the last `dims` values of a vector, adjacent pairs; freq: float32 [dims / 2].
 * Angle = float32(position) * freq in float32; cos and sin rounded by f; results by a. */
typedef struct di_rope {
    int32_t dims;
    di_ptr freq;
} di_rope;

/* qr = rms_norm(linear(u, wq_a)); q = rope(linear(qr, wq_b)) per head;
 * kv = q8_store(rope(rms_norm(linear(u, wkv)))): codes and scales of the step's rows. */
typedef struct di_qkv_args {
    di_batch batch;
    int32_t n_heads, head_dim;
    double eps;
    di_rope rope;
    di_ptr u; /* A [n_rows][D] */
    di_matrix wq_a, wq_b, wkv;
    di_vector q_norm, kv_norm;
    di_ptr qr;                  /* out A [n_rows][Q] */
    di_ptr q;                   /* out A [n_rows][n_heads][head_dim] */
    di_ptr kv_codes, kv_scales; /* out [n_rows][head_dim], [n_rows][head_dim / 32] */
} di_qkv_args;

/* The window rows of qkv alone, for rows that ask nothing: kv of u as there (dspark.md 4). */
typedef struct di_window_kv_args {
    di_batch batch;
    int32_t head_dim;
    double eps;
    di_rope rope;
    di_ptr u; /* A [n_rows][D] */
    di_matrix wkv;
    di_vector kv_norm;
    di_ptr kv_codes, kv_scales; /* out [n_rows][head_dim], [n_rows][head_dim / 32] */
} di_window_kv_args;

/* Latents of a KV source. ratio 1: latent = rms_norm(a(wkv u)). ratio r > 1: c = f(wkv u),
 * g = f(wgate u) of every row; for each group that is completed by a row of the step: per channel
 * softmax over the r values of g, weighted sum of c (a), rms_norm. Rows of the group that lie
 * before the step come from the ring. Then, from the unrotated latent: index key =
 * Q4i(rope(rms_norm(a(wk latent)))) if wk.n > 0; latent entry = Q4c(rope(latent)); both at position
 * j r; stored in the pages. At the end c and g of live rows go to the ring, slot pos % ring_slots.
 */
typedef struct di_compress_args {
    di_batch batch;
    double eps;
    di_rope rope;
    di_ptr u;             /* A [n_rows][D] */
    di_matrix wkv, wgate; /* wgate.n 0 at ratio 1 */
    di_vector norm;
    di_matrix wk; /* n 0: this source has no index keys */
    di_vector k_norm;
    di_ptr ring; /* F [n_slots][ring_slots][2][d]: c, g; DI_NONE at ratio 1 */
    int32_t ring_slots;
    di_pages pages;
    /* int32 [n_slots], or DI_NONE for 0: entries of tokens below this position are in the pages
     * already and are not written again (replay); a multiple of the ratio. */
    di_ptr closed;
} di_compress_args;

/* Which compressed entries a row attends to. iq = Q4i(rope(linear(qr, wq_b))) per index head;
 * w = a(a(weights_proj u) * f(di^-0.5 heads^-0.5));
 * score[j] = a(sum_h a(relu(a(iq_h . key_j)) w_h)) for the visible entries j < (pos + 1) / ratio.
 * candidate_mode SOURCE: blocks of block_size entries, score of a block = its best entry, the block
 * of the newest visible entry is always kept, the top_blocks best are published ascending in
 * `candidates`; the row itself selects from all. USE: only entries in published blocks count.
 * Selection: the top_k best, ascending. All ties: the lower index wins. */
typedef enum di_candidate_mode {
    DI_CANDIDATES_NONE,
    DI_CANDIDATES_SOURCE,
    DI_CANDIDATES_USE
} di_candidate_mode;

typedef struct di_index_select_args {
    di_batch batch;
    int32_t n_heads, top_k;
    di_candidate_mode candidate_mode;
    int32_t top_blocks, block_size;
    di_rope rope;
    di_ptr qr, u; /* A [n_rows][Q], [n_rows][D] */
    di_matrix wq_b, weights_proj;
    di_pages pages;
    di_ptr candidates; /* int32 [n_rows][top_blocks] block numbers, -1 fills; out or in by mode */
    di_ptr picks;      /* out int32 [n_rows][top_k] entries ascending, -1 fills */
} di_index_select_args;

/* One softmax over the row's list: window positions ascending, then picks ascending. The window is
 * max(floor, pos - window + 1) .. pos. With block > 0 the rows are drafts (dspark.md 5): every slot
 * has `block` of them, and each sees the last `window` positions before the step and all rows of
 * its slot: max(floor, length - window) .. length + block - 1. Keys = values. Window rows at
 * positions from length[slot] on come from kv_codes of the step, older ones from the ring, slot
 * position % ring_slots. Then inverse RoPE at pos.
 * s_n = f(q_h . K_n * f(d^-0.5)); blocks of 64 list slots, running maximum m from -1e30:
 * p_n = exp(s_n - m); o = a(sum_n b(p_n) K_n / (sum_n p_n + exp(sink_h - m))), earlier blocks
 * rescaled by exp(m_old - m_new); b rounds to bf16 in `release` (against the running maximum).
 * The sink is not part of the maximum. */
typedef struct di_attend_args {
    di_batch batch;
    int32_t n_heads, head_dim, window;
    di_rope rope;
    di_ptr q;                   /* A [n_rows][n_heads][head_dim] */
    di_ptr kv_codes, kv_scales; /* of the step's rows */
    di_window ring;
    di_pages pages; /* ignored when top_k is 0 */
    int32_t top_k;  /* 0: window only */
    di_ptr picks;   /* int32 [n_rows][top_k] */
    di_vector sink; /* F32 [n_heads] */
    di_ptr out;     /* A [n_rows][n_heads][head_dim] */
    int32_t block;  /* 0: causal; else draft rows, this many a slot */
} di_attend_args;

/* The step's window rows go to the ring, slot pos % ring_slots: the last ring_slots live rows of
 * each sequence. After attend of the same layer. */
typedef struct di_window_store_args {
    di_batch batch;
    int32_t head_dim;
    di_ptr kv_codes, kv_scales; /* of the step's rows */
    di_window ring;
} di_window_store_args;

/* low = a(wo_a . o) by groups, not quantised; y = linear(low, wo_b), quantised. */
typedef struct di_attn_out_args {
    int32_t n_rows, groups;
    di_ptr o; /* A [n_rows][groups * K] */
    di_matrix wo_a, wo_b;
    di_ptr out; /* A [n_rows][D] */
} di_attn_out_args;

/* ------------------------------------------------------------------------------------------------
 * Experts (model.md 4)
 * --------------------------------------------------------------------------------------------- */

typedef enum di_score { DI_SCORING_SQRTSOFTPLUS, DI_SCORING_SIGMOID, DI_SCORING_SOFTMAX } di_score;

/* z = f(gate . u / temperature); s = f(score(z)); the top_k largest of f(s + bias), ties to the
 * lower expert; weight = s of the picked, / (their sum + 1e-20) when `normalize` and top_k > 1, *
 * scale. */
typedef struct di_route_args {
    int32_t n_rows, top_k;
    di_score scoring;
    bool normalize;
    double temperature, scale;
    di_ptr u;       /* A [n_rows][D] */
    di_matrix gate; /* BF16 [E, D] */
    di_vector bias; /* F32 [E] */
    di_ptr picks;   /* out int32 [n_rows][top_k], best first */
    di_ptr weights; /* out F [n_rows][top_k] */
    di_ptr scores;  /* out F [n_rows][E], or DI_NONE */
} di_route_args;

/* Where the six tensors of an expert lie; an array of these in device memory names all experts. */
typedef struct di_expert {
    di_ptr w1, w1_scale, w3, w3_scale, w2, w2_scale;
} di_expert;

/* One output row a pick: h = a(weight * silu(min(w1 u, limit)) * clamp(w3 u, +-limit)); w2 h. All
 * three products quantised. rows[t][i] belongs to the i-th pick of row t in increasing expert
 * number. limit 0: no clamp. A dead row's picks may hold anything. */
typedef struct di_experts_args {
    int32_t n_rows, top_k, n_experts;
    double limit;
    di_ptr pos;            /* int32 [n_rows], or DI_NONE */
    di_ptr u;              /* A [n_rows][D] */
    di_ptr picks, weights; /* int32, F [n_rows][top_k] */
    di_dtype dtype;        /* of all experts' matrices (FP4_PAIR) */
    int32_t width, inner;  /* D, expert width */
    di_ptr experts;        /* di_expert [n_experts] */
    di_ptr rows;           /* out A [n_rows][top_k][D] */
} di_experts_args;

/* The same without a weight, for every row. */
typedef struct di_shared_expert_args {
    int32_t n_rows;
    double limit;
    di_ptr u; /* A [n_rows][D] */
    di_matrix w1, w3, w2;
    di_ptr out; /* A [n_rows][D] */
} di_shared_expert_args;

/* y = a(((0 + rows[0]) + rows[1]) + ... + shared): float32, term by term. */
typedef struct di_combine_args {
    int32_t n_rows, top_k, width;
    di_ptr rows;   /* A [n_rows][top_k][D], increasing expert */
    di_ptr shared; /* A [n_rows][D] */
    di_ptr out;    /* A [n_rows][D] */
} di_combine_args;

/* ------------------------------------------------------------------------------------------------
 * Head and sampling
 * --------------------------------------------------------------------------------------------- */

/* For the listed rows: rms_norm(a(sum_j pre[j] streams[j]), norm), then f(head . x). */
typedef struct di_head_args {
    int32_t n_out, hc, width;
    double eps;
    di_ptr which;   /* int32 [n_out]: rows of streams and pre */
    di_ptr streams; /* A [..][hc][D] */
    di_ptr pre;     /* F [..][hc] */
    di_vector norm;
    di_matrix head;
    di_ptr normed; /* out A [n_out][D], or DI_NONE */
    di_ptr logits; /* out F [n_out][V] */
} di_head_args;

/* One step of DSpark's token loop (dspark.md 5, 6), for n sequences. With e = embed[prev[i *
 * prev_stride]] and hidden row h = hidden[i * hidden_stride]: logits[i] = f(base[i] + f(head . e));
 * confidence[i] = f(proj . [h; e]), before the sigmoid. A negative prev leaves both unspecified. */
typedef struct di_markov_args {
    int32_t n, vocab, width, prev_stride, hidden_stride;
    di_ptr prev;                 /* int32: the token before */
    di_matrix embed, head, proj; /* BF16 [V, m], [V, m], [1, D + m] */
    di_ptr base;                 /* F [n][V] */
    di_ptr hidden;               /* A, rows of D: collapsed, before the norm */
    di_ptr logits;               /* out F [n][V], not base */
    di_ptr confidence;           /* out F [n] */
} di_markov_args;

/* What a draft's noise hangs on (base/philox.h). ROUND: every round of drafts has noise of its own,
 * seed = di_noise_seed(seed, DI_NOISE_DRAFT, pos of the row that holds offset 0 of the slot), as
 * rejection sampling under a schedule needs (kernels/reject.h). */
typedef enum di_noise { DI_NOISE_POSITION, DI_NOISE_ROUND } di_noise;

/* How one row is sampled. In device memory; the host writes it for every step. */
typedef struct di_sample_params {
    uint64_t seed;
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    float repetition_penalty;                  /* 1: off */
    float presence_penalty, frequency_penalty; /* 0: off */
    int32_t top_k;                             /* 0: off */
    int32_t slot;                              /* for counts and next_token */
    int32_t bias_begin, n_bias;                /* into `biases` */
    int32_t mask;                              /* index into `masks`, -1: none */
    int32_t noise;                             /* di_noise */
} di_sample_params;

typedef struct di_logit_bias {
    int32_t id;
    float value;
} di_logit_bias;

enum { DI_COUNT_PROMPT = 1 << 30 }; /* flag in counts: the id stands in the prompt */

/* In this order, in double: x = logit; repetition penalty (ids in prompt or output: x > 0 ? x / r :
 * x * r), presence and frequency (output ids: x -= presence + frequency * count); bias; mask (bit
 * 0: x = -inf); temperature 0: the largest x, ties to the lower id. Otherwise x /= temperature;
 * sorted by (x down, id up) keep the first top_k; of those, p = softmax, the shortest prefix whose
 * sum reaches top_p; of those, p >= min_p * p_max. Token = argmax of x + gumbel(seed, position, id)
 * over the kept ids, ties to the lower id; position = pos of the row + 1. gumbel: base/philox.h.
 * logprob = log softmax of the RAW logits at the token. A dead row gives token -1. When no logit
 * is finite, or one is NaN or +infinite, token = -2. next_token[slot] = token if >= 0.
 *
 * Output ids are those in counts and, for row i, the drafts that stand before it: extra[extra_at[i]
 * + j * extra_stride], j < n_extra[i], each counted once more. */
typedef struct di_sample_args {
    int32_t n_out, vocab;
    di_ptr which;             /* int32 [n_out]: rows of the step, for pos */
    di_ptr pos, first;        /* int32 [n_rows] */
    di_ptr logits;            /* F [n_out][V]; not modified */
    di_ptr params;            /* di_sample_params */
    di_ptr param_of;          /* int32 [n_out]: which of params; DI_NONE: params [n_out] in order */
    di_ptr counts;            /* int32 [n_slots][V], or DI_NONE: no penalties */
    di_ptr extra;             /* int32, or DI_NONE: none */
    di_ptr extra_at, n_extra; /* int32 [n_out]; ids that are negative are left out */
    int32_t extra_stride;
    di_ptr biases;     /* di_logit_bias [..] */
    di_ptr masks;      /* uint32 [..][ceil(V / 32)]; bit id % 32 of word id / 32: allowed */
    di_ptr next_token; /* in, out int32 [n_slots] */
    di_ptr token;      /* out int32 [n_out] */
    di_ptr logprob;    /* out float32 [n_out], or DI_NONE */
} di_sample_args;

/* Which drafts stand. The rows of block b begin behind those of the blocks before it and hold
 * next_token and n_rows[b] - 1 drafts d_0, d_1, ...; sample has drawn token[i] from row i. m drafts
 * are accepted, and m + 1 tokens come out:
 *   equality   d_i stands while it equals the token drawn from the row before it.
 *   rejection  as kernels/reject.h defines it, with p_i the logits of row i and q_i the draft's,
 *              both after all processors of sample (the draft's row had params of the same values);
 *              seed: the params'. token and logprob (of the raw logits) become those that come out.
 * Rows behind the first m + 1 get token -1 and logprob 0. n_valid[slot] = m + 1; next_token[slot] =
 * the last that came out if >= 0. A -2 (or -1, of a dead row) is the last to come out. */
typedef struct di_accept_args {
    /* As sample had them, with logprob; n_out: the rows of all blocks, which come first. */
    di_sample_args sample;
    int32_t n_blocks, block, n_columns;
    di_ptr blocks;       /* di_block [n_blocks] */
    di_ptr n_rows;       /* int32 [n_blocks] */
    di_ptr row_token;    /* int32 [n_rows]: what stands in the rows */
    di_ptr draft_logits; /* F [block][n_columns][V]; not read when no block rejects */
    di_ptr n_valid;      /* out int32 [n_slots] */
} di_accept_args;

/* For i < n: id = tokens[i] (skipped when < 0): counts[slots[i]][id] |= DI_COUNT_PROMPT when
 * `prompt`, else += delta. */
typedef struct di_tally_args {
    int32_t n, vocab, delta;
    bool prompt;
    di_ptr tokens, slots; /* int32 [n] */
    di_ptr counts;        /* int32 [n_slots][V] */
} di_tally_args;

/* float32 copies, for the host. */
typedef struct di_to_f32_args {
    int64_t n;
    bool from_f; /* src is F, else A */
    di_ptr src, out;
} di_to_f32_args;

/* ------------------------------------------------------------------------------------------------
 * Parts: the steps of the operations above, each to be verified by itself
 * --------------------------------------------------------------------------------------------- */

/* out = a(w * (x * rsqrt(mean(x^2) + eps))): one rounding (model.md 3.2). May be in place. */
typedef struct di_rms_norm_args {
    int32_t n_rows, width;
    double eps;
    di_ptr x;
    di_vector weight;
    di_ptr out; /* A [n_rows][width] */
} di_rms_norm_args;

/* Every vector of x, [n_rows][n_heads][width], in place, at positions[row]. */
typedef struct di_rope_args {
    int32_t n_rows, n_heads, width;
    bool inverse;
    di_rope rope;
    di_ptr positions; /* int32 [n_rows] */
    di_ptr x;         /* in, out A */
} di_rope_args;

/* The three quantisers of model.md 3.1; inputs are looked at as float32. Q8: E4M3 bytes, E8M0
 * per 32. Q4I: e2m1 pairs, E8M0 per 32. Q4C: e2m1 pairs, E4M3 per 16. */
typedef enum di_quantizer { DI_Q8, DI_Q4I, DI_Q4C } di_quantizer;
typedef struct di_quantize_args {
    int32_t n_rows, width;
    di_quantizer kind;
    di_ptr x;             /* A [n_rows][width] */
    di_ptr codes, scales; /* out */
} di_quantize_args;

/* out[g] = a(per channel: sum_i softmax_i(gate[g][i]) kv[g][i]). */
typedef struct di_pool_args {
    int32_t n_groups, ratio, width;
    di_ptr kv, gate; /* F [n_groups][ratio][width] */
    di_ptr out;      /* A [n_groups][width] */
} di_pool_args;

/* w = a(a(weights_proj u) * f(di^-0.5 * heads^-0.5)), di = index_dim. */
typedef struct di_index_weights_args {
    int32_t n_rows, index_dim;
    di_ptr u;               /* A [n_rows][D] */
    di_matrix weights_proj; /* [heads, D] */
    di_ptr out;             /* A [n_rows][heads] */
} di_index_weights_args;

/* The scores of index_select from dequantised queries and keys; -inf from visible[t] on. */
typedef struct di_index_scores_args {
    int32_t n_rows, n_heads, index_dim, n_keys;
    di_ptr q;       /* A [n_rows][n_heads][index_dim] */
    di_ptr keys;    /* A [n_keys][index_dim] */
    di_ptr weights; /* A [n_rows][n_heads] */
    di_ptr visible; /* int32 [n_rows] */
    di_ptr out;     /* A [n_rows][n_keys] */
} di_index_scores_args;

/* The published blocks of index_select, from its scores. */
typedef struct di_candidates_args {
    int32_t n_rows, n_keys, top_blocks, block_size;
    di_ptr scores;  /* A [n_rows][n_keys] */
    di_ptr visible; /* int32 [n_rows] */
    di_ptr out;     /* int32 [n_rows][top_blocks] ascending, -1 fills */
} di_candidates_args;

/* The selection of index_select, from its scores; candidates DI_NONE: all entries count. */
typedef struct di_top_k_args {
    int32_t n_rows, n_keys, top_k, top_blocks, block_size;
    di_ptr scores;     /* A [n_rows][n_keys]; -inf entries are never picked */
    di_ptr candidates; /* int32 [n_rows][top_blocks], or DI_NONE */
    di_ptr out;        /* int32 [n_rows][top_k] ascending, -1 fills */
} di_top_k_args;

/* The attention of `attend` over dequantised keys and an explicit list, without inverse RoPE. Slots
 * of -1 are empty; a list of empty slots only gives 0. */
typedef struct di_attend_list_args {
    int32_t n_rows, n_heads, head_dim, n_keys, n_slots;
    di_ptr q;       /* A [n_rows][n_heads][head_dim] */
    di_ptr keys;    /* A [n_keys][head_dim] */
    di_ptr slots;   /* int32 [n_rows][n_slots] */
    di_vector sink; /* F32 [n_heads] */
    di_ptr out;     /* A [n_rows][n_heads][head_dim] */
} di_attend_list_args;

/* out = a([weight[t] *] silu(min(gate, limit)) * clamp(up, +-limit)); limit 0: no clamp. */
typedef struct di_swiglu_args {
    int32_t n_rows, width;
    double limit;
    di_ptr gate, up; /* A [n_rows][width] */
    di_ptr weight;   /* F [n_rows], or DI_NONE */
    di_ptr out;      /* A [n_rows][width] */
} di_swiglu_args;

/* ------------------------------------------------------------------------------------------------
 * The table
 * --------------------------------------------------------------------------------------------- */

/* Every operation once. Whoever walks all operations (tables, wrappers, kernelcheck) uses this. */
/* clang-format off */
#define DI_EACH_OP(X)                                                                              \
    X(step_begin) X(step_end) X(rewind) X(embed)                                                   \
    X(engram_hash) X(engram_rows) X(engram_gate)                                                   \
    X(mix) X(sublayer_in) X(sublayer_out) X(stream_mean)                                           \
    X(linear) X(qkv) X(window_kv) X(compress) X(index_select) X(attend) X(window_store)            \
    X(attn_out) X(route) X(experts) X(shared_expert) X(combine)                                    \
    X(allot) X(head) X(markov) X(sample) X(accept) X(tally) X(to_f32)                              \
    X(rms_norm) X(rope) X(quantize) X(pool) X(index_weights) X(index_scores) X(candidates)         \
    X(top_k) X(attend_list) X(swiglu)
/* clang-format on */

typedef struct di_ops {
#define DI_OP_MEMBER(name) void (*name)(di_stream * stream, const di_##name##_args *args);
    DI_EACH_OP(DI_OP_MEMBER)
#undef DI_OP_MEMBER
} di_ops;

#endif
