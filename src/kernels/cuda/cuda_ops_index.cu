/* The indexer (model.md 3.8): weights, scores, candidate blocks, selection. */
#include "kernels/cuda/index_pick.cuh"
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/weights.cuh"

/* ---- Weights ---- */

template <typename A> static __global__ void scale_kernel(A *x, int64_t n, float scale) {
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROW_THREADS + threadIdx.x;
    if (i < n) x[i] = from_float<A>(to_float(x[i]) * scale);
}

static float weight_scale(int32_t index_dim, int32_t heads) {
    return static_cast<float>(1 / sqrt(static_cast<double>(index_dim)) *
                              (1 / sqrt(static_cast<double>(heads))));
}

static void index_weights(di_stream *s, const di_matrix *proj, int32_t index_dim, di_ptr u,
                          int32_t n_rows, di_ptr out) {
    float scale = weight_scale(index_dim, proj->n);
    int64_t n = static_cast<int64_t>(n_rows) * proj->n;
    uint32_t blocks = cuda_blocks(n, ROW_THREADS);
    cuda_linear_rows(s, proj, u, n_rows, false, false, out);
    if (s->release)
        cuda_launch(s, "index weights", blocks, ROW_THREADS, 0, scale_kernel<__nv_bfloat16>,
                    cuda_at<__nv_bfloat16>(out), n, scale);
    else
        cuda_launch(s, "index weights", blocks, ROW_THREADS, 0, scale_kernel<float>,
                    cuda_at<float>(out), n, scale);
}

void cuda_op_index_weights(di_stream *s, const di_index_weights_args *args) {
    cuda_begin(s);
    index_weights(s, &args->weights_proj, args->index_dim, args->u, args->n_rows, args->out);
}

/* ---- Scores ---- */

static constexpr int KEYS = 128; /* a thread a key */
static constexpr int CHUNK = 32; /* of the dimension, in registers */

static size_t score_bytes(int32_t heads, int32_t dim) {
    return sizeof(float) * static_cast<size_t>(heads) * static_cast<size_t>(dim + 1 + KEYS);
}

/* The shared memory of a block: queries and weights of one row, and the dots of every thread. */
typedef struct score_memory {
    float *q, *weights, *dots; /* [heads][dim], [heads], [heads][KEYS] */
} score_memory;

template <typename A>
static __device__ score_memory load_queries(const A *q, const A *weights, int32_t heads,
                                            int32_t dim) {
    extern __shared__ float shared[];
    score_memory m = {shared, shared + heads * dim, shared + heads * (dim + 1)};
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < heads * dim; i += KEYS)
        m.q[i] = to_float(q[i]);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < heads; i += KEYS)
        m.weights[i] = to_float(weights[i]);
    __syncthreads();
    return m;
}

/* dots of this thread += q_h[chunk] . key, for all heads. */
static __device__ __forceinline__ void add_dots(const score_memory &m, int32_t heads, int32_t dim,
                                                int32_t chunk, const float (&key)[CHUNK]) {
    for (int32_t h = 0; h < heads; h++) {
        const float *q = m.q + h * dim + chunk;
        float dot = chunk == 0 ? 0 : m.dots[h * KEYS + threadIdx.x];
#pragma unroll
        for (int i = 0; i < CHUNK; i++) dot = fmaf(q[i], key[i], dot);
        m.dots[h * KEYS + threadIdx.x] = dot;
    }
}

/* a(sum_h a(relu(a(dot)) w)) */
template <typename A> static __device__ float join_dots(const score_memory &m, int32_t heads) {
    float sum = 0;
    for (int32_t h = 0; h < heads; h++) {
        float dot = fmaxf(round_a<A>(m.dots[h * KEYS + threadIdx.x]), 0.0f);
        sum += round_a<A>(dot * m.weights[h]);
    }
    return round_a<A>(sum);
}

template <typename A> static __global__ void scores_kernel(di_index_scores_args args) {
    int64_t t = blockIdx.y, heads = args.n_heads, dim = args.index_dim;
    score_memory m =
        load_queries(cuda_at<const A>(args.q) + t * heads * dim,
                     cuda_at<const A>(args.weights) + t * heads, args.n_heads, args.index_dim);
    int64_t j = static_cast<int64_t>(blockIdx.x) * KEYS + threadIdx.x;
    if (j >= args.n_keys) return;
    A *out = cuda_at<A>(args.out) + t * args.n_keys + j;
    if (j >= cuda_at<const int32_t>(args.visible)[t]) {
        *out = from_float<A>(-INFINITY);
        return;
    }
    const A *row = cuda_at<const A>(args.keys) + j * dim;
    for (int32_t chunk = 0; chunk < args.index_dim; chunk += CHUNK) {
        float key[CHUNK];
        for (int i = 0; i < CHUNK; i++) key[i] = to_float(row[chunk + i]);
        add_dots(m, args.n_heads, args.index_dim, chunk, key);
    }
    *out = from_float<A>(join_dots<A>(m, args.n_heads));
}

void cuda_op_index_scores(di_stream *s, const di_index_scores_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->index_dim % CHUNK == 0 && args->n_rows <= 65535);
    dim3 grid(cuda_blocks(args->n_keys, KEYS), static_cast<uint32_t>(args->n_rows));
    CUDA_LAUNCH_A(s, "index_scores", grid, KEYS, score_bytes(args->n_heads, args->index_dim),
                  scores_kernel, *args);
}

/* ---- Candidate blocks and selection of one row ---- */

/* keys: scratch [blocks]. out [top_blocks] */
template <typename T>
static __device__ void candidate_blocks(const T *scores, int32_t n, int32_t visible,
                                        int32_t top_blocks, int32_t block_size, uint32_t *keys,
                                        int32_t *out) {
    int32_t blocks = n / block_size + (n % block_size != 0);
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b < blocks; b += SELECT_THREADS) {
        int32_t end = n - b * block_size < block_size ? n : (b + 1) * block_size;
        float best = -INFINITY;
        for (int32_t j = b * block_size; j < end; j++) best = fmaxf(best, to_float(scores[j]));
        if (visible > 0 && b == (visible - 1) / block_size) best = INFINITY; /* always kept */
        keys[b] = score_key(best);
    }
    write_best(keys, blocks, top_blocks, out);
}

/* Whether an entry's block is published: blocks [n] ascending, -1 behind them. */
static __device__ bool published(const int32_t *blocks, int32_t n, int32_t block) {
    int32_t low = 0, high = n;
    while (low < high) {
        int32_t middle = (low + high) / 2, at = blocks[middle];
        if (at == block) return true;
        if (at >= 0 && at < block)
            low = middle + 1;
        else
            high = middle;
    }
    return false;
}

/* keys: scratch [n]. candidates NULL: all entries count. out [top_k] */
template <typename T>
static __device__ void pick_entries(const T *scores, int32_t n, int32_t top_k,
                                    const int32_t *candidates, int32_t top_blocks,
                                    int32_t block_size, uint32_t *keys, int32_t *out) {
    for (int32_t j = static_cast<int32_t>(threadIdx.x); j < n; j += SELECT_THREADS) {
        bool counts = candidates == NULL || published(candidates, top_blocks, j / block_size);
        keys[j] = counts ? score_key(to_float(scores[j])) : 0;
    }
    write_best(keys, n, top_k, out);
}

template <typename A>
static __global__ void candidates_kernel(di_candidates_args args, uint32_t *keys) {
    int64_t t = blockIdx.x, n = args.n_keys;
    candidate_blocks(cuda_at<const A>(args.scores) + t * n, args.n_keys,
                     cuda_at<const int32_t>(args.visible)[t], args.top_blocks, args.block_size,
                     keys + t * n, cuda_at<int32_t>(args.out) + t * args.top_blocks);
}

void cuda_op_candidates(di_stream *s, const di_candidates_args *args) {
    cuda_begin(s);
    uint64_t n = static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(args->n_keys);
    uint32_t *keys = cuda_take<uint32_t>(s, n);
    CUDA_LAUNCH_A(s, "candidates", static_cast<uint32_t>(args->n_rows), SELECT_THREADS, 0,
                  candidates_kernel, *args, keys);
}

template <typename A> static __global__ void top_k_kernel(di_top_k_args args, uint32_t *keys) {
    int64_t t = blockIdx.x, n = args.n_keys;
    const int32_t *candidates = NULL;
    if (!cuda_none(args.candidates))
        candidates = cuda_at<const int32_t>(args.candidates) + t * args.top_blocks;
    pick_entries(cuda_at<const A>(args.scores) + t * n, args.n_keys, args.top_k, candidates,
                 args.top_blocks, args.block_size, keys + t * n,
                 cuda_at<int32_t>(args.out) + t * args.top_k);
}

void cuda_op_top_k(di_stream *s, const di_top_k_args *args) {
    cuda_begin(s);
    uint64_t n = static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(args->n_keys);
    uint32_t *keys = cuda_take<uint32_t>(s, n);
    CUDA_LAUNCH_A(s, "top_k", static_cast<uint32_t>(args->n_rows), SELECT_THREADS, 0, top_k_kernel,
                  *args, keys);
}

/* ---- The whole, one entry a thread: `float`, and shapes that are not streamed ---- */

/* What the kernels of index_select share: queries and weights of all rows, scores and keys of the
 * rows from `first` on, `stride` each. */
typedef struct index_work {
    di_ptr q, weights; /* A */
    float *scores;
    uint32_t *keys;
    int64_t stride;
    int32_t first;
} index_work;

/* iq = Q4i(rope(q)) of every head of one row, dequantised in place. */
template <typename A> static __global__ void queries_kernel(di_index_select_args args, A *q) {
    int64_t t = blockIdx.x;
    int32_t dim = args.pages.di, pos = cuda_at<const int32_t>(args.batch.pos)[t];
    A *row = q + t * args.n_heads * dim;
    if (pos < 0) return;
    row_rope(row, args.n_heads, dim, args.rope, pos, false);
    __syncthreads();
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < args.n_heads * dim; i += ROW_THREADS) {
        uint8_t scale, pair = warp_q4i(to_float(row[i]), &scale);
        float code = e2m1_value(lane_id() % 2 ? pair >> 4 : pair);
        row[i] = from_float<A>(code * di_e8m0_decode(scale));
    }
}

static __device__ const int32_t *row_candidates(const di_index_select_args &args, int64_t t) {
    return args.candidate_mode == DI_CANDIDATES_USE
               ? cuda_at<const int32_t>(args.candidates) + t * args.top_blocks
               : NULL;
}

/* Blocks of threads go through the tiles of KEYS entries of row blockIdx.y. */
template <typename A>
static __global__ void entry_scores_kernel(di_index_select_args args, index_work work) {
    int64_t t = work.first + blockIdx.y;
    int32_t heads = args.n_heads, dim = args.pages.di, visible = visible_entries(args, t);
    if (static_cast<int64_t>(blockIdx.x) * KEYS >= visible) return;
    int32_t slot = cuda_at<const di_row>(args.batch.rows)[t].slot;
    const int32_t *candidates = row_candidates(args, t);
    score_memory m = load_queries(cuda_at<const A>(work.q) + t * heads * dim,
                                  cuda_at<const A>(work.weights) + t * heads, heads, dim);
    float *out = work.scores + blockIdx.y * work.stride;
    for (int32_t begin = static_cast<int32_t>(blockIdx.x) * KEYS; begin < visible;
         begin += static_cast<int32_t>(gridDim.x) * KEYS) {
        int32_t j = begin + static_cast<int32_t>(threadIdx.x);
        if (j >= visible) continue;
        if (candidates != NULL && !published(candidates, args.top_blocks, j / args.block_size)) {
            out[j] = -INFINITY;
            continue;
        }
        page_entry entry = entry_at(args.pages, slot, j);
        for (int32_t chunk = 0; chunk < dim; chunk += CHUNK) {
            uint32_t words[4];
            float key[CHUNK], scale = di_e8m0_decode(entry.key_scales[chunk / 32]);
            load_words<4>(entry.key_codes + chunk / 2, words);
            for (int i = 0; i < 4; i++) decode_e2m1(words[i], scale, key + 8 * i);
            add_dots(m, heads, dim, chunk, key);
        }
        out[j] = join_dots<A>(m, heads);
    }
}

static __global__ void select_kernel(di_index_select_args args, index_work work) {
    int64_t t = work.first + blockIdx.x;
    int32_t visible = visible_entries(args, t);
    const float *scores = work.scores + blockIdx.x * work.stride;
    uint32_t *keys = work.keys + blockIdx.x * work.stride;
    if (cuda_at<const int32_t>(args.batch.pos)[t] < 0) return;
    if (args.candidate_mode == DI_CANDIDATES_SOURCE)
        candidate_blocks(scores, visible, visible, args.top_blocks, args.block_size, keys,
                         cuda_at<int32_t>(args.candidates) + t * args.top_blocks);
    pick_entries(scores, visible, args.top_k, static_cast<const int32_t *>(NULL), 0, 1, keys,
                 cuda_at<int32_t>(args.picks) + t * args.top_k); /* USE: the others are -inf */
}

template <typename A>
static void score_rows(di_stream *s, const di_index_select_args *args, const index_work &work,
                       uint32_t rows) {
    /* Who is visible is known to the device alone; enough blocks to fill it, that take turns. */
    uint32_t tiles = cuda_blocks(work.stride, KEYS);
    uint32_t most = 8u * static_cast<uint32_t>(s->n_processors) / rows + 1;
    dim3 grid(tiles < most ? tiles : most, rows);
    cuda_launch(s, "index scores", grid, KEYS, score_bytes(args->n_heads, args->pages.di),
                entry_scores_kernel<A>, *args, work);
    cuda_launch(s, "index selection", rows, SELECT_THREADS, 0, select_kernel, *args, work);
}

template <typename A>
static void index_select(di_stream *s, const di_index_select_args *args, index_work work) {
    int64_t n = args->batch.n_rows;
    int64_t each = static_cast<int64_t>(cuda_score_rows(&s->limits, n));
    uint64_t scratch = static_cast<uint64_t>(each * work.stride);
    if (each > 65535) each = 65535;
    cuda_launch(s, "index queries", static_cast<uint32_t>(n), ROW_THREADS, 0, queries_kernel<A>,
                *args, cuda_at<A>(work.q));
    work.scores = cuda_take<float>(s, scratch);
    work.keys = cuda_take<uint32_t>(s, scratch);
    for (int64_t first = 0; first < n; first += each) {
        work.first = static_cast<int32_t>(first);
        score_rows<A>(s, args, work, static_cast<uint32_t>(n - first < each ? n - first : each));
    }
}

static void select_plainly(di_stream *s, const di_index_select_args *args) {
    int32_t n = args->batch.n_rows, dim = args->pages.di, width = args->n_heads * dim;
    CUDA_REQUIRE(dim % CHUNK == 0);
    index_work work = {};
    work.q = cuda_take_a(s, static_cast<int64_t>(n) * width);
    work.weights = cuda_take_a(s, static_cast<int64_t>(n) * args->n_heads);
    work.stride = s->limits.max_entries;
    cuda_linear_rows(s, &args->wq_b, args->qr, n, true, false, work.q);
    index_weights(s, &args->weights_proj, dim, args->u, n, work.weights);
    if (s->release)
        index_select<__nv_bfloat16>(s, args, work);
    else
        index_select<float>(s, args, work);
}

/* ---- The whole, streamed ---- */

/* Lists of nothing are not streamed: to find_bin fewer entries than k means that all are taken. */
static bool fits_stream(const di_stream *s, const di_index_select_args *args) {
    const di_pages *p = &args->pages;
    bool takes =
        args->top_k > 0 && (args->candidate_mode == DI_CANDIDATES_NONE || args->top_blocks > 0);
    int major = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s->device);
    return major == 9 && s->release && args->n_heads <= INDEX_HEADS && p->di <= INDEX_DIM &&
           p->di % WARP == 0 && (p->ratio & (p->ratio - 1)) == 0 && p->page_bytes <= UINT32_MAX &&
           takes;
}

/* Whether pieces of codes and scales may be copied whole (index_keys.cuh). */
static bool is_aligned(const di_pages *p) {
    return p->di == INDEX_DIM && p->pool.address % 16 == 0 && p->page_bytes % 16 == 0 &&
           p->key_codes % 16 == 0 && p->key_scales % 16 == 0;
}

static int64_t whole_chunks(int64_t n) { return (n + CHUNK_KEYS - 1) / CHUNK_KEYS * CHUNK_KEYS; }

/* The sizes of a pass, without its memory. */
static index_pass pass_of(const di_stream *s, const di_index_select_args *args, int32_t n_rows) {
    index_pass pass = {};
    int64_t most = s->limits.max_entries, size = args->block_size > 0 ? args->block_size : 1;
    bool source = args->candidate_mode == DI_CANDIDATES_SOURCE;
    pass.n_rows = n_rows;
    pass.lists = source ? 2 * n_rows : n_rows;
    pass.block_stride = source ? whole_chunks((most + size - 1) / size) : 0;
    if (args->candidate_mode == DI_CANDIDATES_USE) {
        int64_t listed = (most + size - 1) / size; /* blocks */
        most = (listed < args->top_blocks ? listed : args->top_blocks) * size;
    }
    pass.stride = whole_chunks(most);
    if (pass.stride > WHOLE_LIST)
        pass.n_chunks = n_rows * ((pass.stride + pass.block_stride) / CHUNK_KEYS);
    return pass;
}

/* Memory from the workspace, or, with s NULL, the bytes it would be. */
template <typename T> static uint64_t take_part(di_stream *s, T **out, int64_t n) {
    if (s != NULL) *out = cuda_take<T>(s, static_cast<uint64_t>(n));
    return static_cast<uint64_t>(n) * sizeof(T) + 256;
}
static uint64_t take_pass(di_stream *s, index_pass *p) {
    int64_t rows = p->n_rows, lists = p->lists;
    return take_part(s, &p->queries, rows) + take_part(s, &p->keys, rows * p->stride) +
           take_part(s, &p->block_keys, rows * p->block_stride) +
           take_part(s, &p->bins, lists * BINS) + take_part(s, &p->low, lists * LOW) +
           take_part(s, &p->done, lists) + take_part(s, &p->hits, p->n_chunks * (CHUNK_KEYS / 8)) +
           take_part(s, &p->n_hits, p->n_chunks);
}

/* As many rows as there is memory for. */
static index_pass plan_pass(di_stream *s, const di_index_select_args *args, int32_t n_rows) {
    uint64_t room = s->work_size - s->work_used;
    int32_t n = n_rows < INDEX_ROWS ? n_rows : INDEX_ROWS;
    index_pass pass = pass_of(s, args, n);
    while (n > 1 && take_pass(NULL, &pass) > room) {
        n = (n + 1) / 2;
        pass = pass_of(s, args, n);
    }
    take_pass(s, &pass);
    return pass;
}

static void run_pass(di_stream *s, const di_index_select_args *args, const index_pass &pass,
                     di_ptr q, di_ptr weights) {
    uint32_t rows = static_cast<uint32_t>(pass.n_rows);
    uint32_t all = 2 * static_cast<uint32_t>(s->n_processors);
    CUDA_REQUIRE(all <= MOST_BLOCKS);
    cuda_launch_early(s, "index queries", rows * ROW_PARTS, INDEX_THREADS, 0, index_prepare_kernel,
                      *args, pass, cuda_at<const __nv_bfloat16>(q),
                      cuda_at<const __nv_bfloat16>(weights),
                      weight_scale(args->pages.di, args->n_heads));
    if (is_aligned(&args->pages))
        cuda_launch_early(s, "index scores", all, INDEX_THREADS, sizeof(score_shared) + 1024,
                          index_scores_kernel<true>, *args, pass);
    else
        cuda_launch_early(s, "index scores", all, INDEX_THREADS, sizeof(score_shared) + 1024,
                          index_scores_kernel<false>, *args, pass);
    if (pass.stride <= WHOLE_LIST) return; /* no list can be longer */
    if (args->candidate_mode == DI_CANDIDATES_SOURCE)
        cuda_launch_early(s, "index blocks", all, INDEX_THREADS, 0, index_blocks_kernel, *args,
                          pass);
    cuda_launch_early(s, "index picks", all, INDEX_THREADS, sizeof(hit_memory), index_pick_kernel,
                      *args, pass);
}

/* Queries and weights, raw, and the memory of a pass. With few rows both products are short, and
 * one runs beside the other. There is no more of the workspace afterwards. */
static index_pass query_products(di_stream *s, const di_index_select_args *args, di_ptr q,
                                 di_ptr weights) {
    const di_matrix *w = &args->wq_b, *proj = &args->weights_proj;
    int32_t n = args->batch.n_rows;
    if (n > CUDA_BESIDE_ROWS || !mma_takes(s, w->dtype) || !mma_takes(s, proj->dtype)) {
        cuda_linear_rows(s, w, args->qr, n, true, false, q);
        cuda_linear_rows(s, proj, args->u, n, false, false, weights);
        return plan_pass(s, args, n);
    }
    cuda_product a = {*w, n, 1, args->qr, w->k, q, w->n};
    cuda_product b = {*proj, n, 1, args->u, proj->k, weights, proj->n};
    mma_ready x = mma_prepare(s, w->dtype, a.x, a.x_stride, n, 1, w->k, true);
    mma_ready y = mma_prepare(s, proj->dtype, b.x, b.x_stride, n, 1, proj->k, false);
    index_pass pass = plan_pass(s, args, n);
    bool aside = cuda_step_aside(s, 0);
    mma_run_linear(s, &b, 1, &y);
    if (aside) cuda_step_back(s);
    mma_run_linear(s, &a, 1, &x);
    if (aside) cuda_join(s);
    return pass;
}

static void select_streamed(di_stream *s, const di_index_select_args *args) {
    int32_t n = args->batch.n_rows;
    di_ptr q = cuda_take_a(s, static_cast<int64_t>(n) * args->wq_b.n);
    di_ptr weights = cuda_take_a(s, static_cast<int64_t>(n) * args->n_heads);
    index_pass pass = query_products(s, args, q, weights);
    for (int32_t each = pass.n_rows; pass.first < n; pass.first += each) {
        index_pass part = pass;
        part.n_rows = n - pass.first < each ? n - pass.first : each;
        part.lists = pass.lists / each * part.n_rows;
        run_pass(s, args, part, q, weights);
    }
}

void cuda_op_index_select(di_stream *s, const di_index_select_args *args) {
    cuda_begin(s);
    CUDA_REQUIRE(args->wq_b.n == args->n_heads * args->pages.di);
    CUDA_REQUIRE(args->weights_proj.n == args->n_heads);
    /* Both are divided by, or into a page. */
    CUDA_REQUIRE(args->candidate_mode == DI_CANDIDATES_NONE || args->block_size > 0);
    CUDA_REQUIRE(args->pages.ratio > 0 && args->pages.ratio <= 64);
    if (args->batch.n_rows == 0) return;
    if (fits_stream(s, args))
        select_streamed(s, args);
    else
        select_plainly(s, args);
}
