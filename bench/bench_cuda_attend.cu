/* Sparse attention and index selection of the "cuda" backend by themselves, at released sizes:
 *
 *   bench_cuda_attend
 *
 * Cases: a row of each of 64 sequences at contexts of 4 k and 64 k tokens, of 1 and 8 sequences at
 * 1 M; attention also of 128 and 256 sequences at 4 k, and of all rows of a prompt of 8192 tokens.
 * Selection in its three kinds: layers of ratio 2 (none), the layer that publishes candidate
 * blocks (source), and those that look at published blocks only (use).
 *
 * Caches are random. First a few rows are compared with the "cpu" backend. Then every case is timed
 * as a CUDA graph, behind a kernel that reads so much else that nothing is left in the cache; what
 * that kernel takes by itself is subtracted. floor: the larger of bytes over copy bandwidth and
 * operations over the matrix rate, both measured in the same run, plus the time of as many empty
 * kernels as the case has. ratio: floor over time. For selection also without its two products with
 * weights, which are timed by themselves.
 */
#include "kernels/cuda/cuda.h"

extern "C" {
#include "kernels/cuda/peak.h"
#include "kernels/formats.h"
}

#include "graph_times.cuh"

static constexpr int HEADS = 64, DIM = 512, WINDOW = 128, RING = 140, TOP_K = 512, ROPE = 64;
static constexpr int INDEX_N = 32, INDEX_D = 128, BLOCKS = 2048, BLOCK = 8; /* N: heads */
static constexpr int RANK = 1280, WIDTH = 5120;
static constexpr int MOST_ROWS = 64, MOST_TOKENS = 1 << 20, PAGE_SLOTS = MOST_TOKENS / 64;
static constexpr int ATTEND_ROWS = 8192, ATTEND_SLOTS = 256; /* where there is no selection */
static constexpr int POOL_PAGES = 8 * PAGE_SLOTS, SOURCES = 2;
static constexpr int REPEATS = 8, RUNS = 7; /* of a case in a graph, of the graph */

[[noreturn]] static void stop(const char *why) {
    fprintf(stderr, "bench_cuda_attend: %s\n", why);
    exit(1);
}
static void check(cudaError_t status) {
    if (status != cudaSuccess) stop(cudaGetErrorString(status));
}
static void must(di_status status, const di_error *error) {
    if (status != DI_OK) stop(error->message);
}

typedef struct bench {
    di_backend *cuda, *cpu;
    di_cuda_peak peak;
    di_pages source[SOURCES]; /* of ratio 2 and 1, side by side in every page */
    di_batch batch;
    di_attend_args attend;
    di_index_select_args select;
    di_matrix host_wq_b, host_proj; /* select's, as the cpu backend reads them */
    int32_t *table;                 /* [ATTEND_SLOTS][PAGE_SLOTS] host */
    int32_t *picks;                 /* [ATTEND_ROWS][TOP_K] host */
    uint4 *other;                   /* what stands in the cache instead */
    double flush, empty;            /* seconds: of that kernel, of an empty one */
} bench;

static double seconds_of(const bench *b, double bytes, double flops) {
    double by_bytes = bytes / b->peak.copy_bytes_per_s, by_flops = flops / b->peak.flop_per_s;
    return by_bytes > by_flops ? by_bytes : by_flops;
}

/* ---- Random memory ---- */

enum kind { CODES, E4M3_CODES, E4M3_SCALES, E8M0_SCALES, ACTIVATIONS, SMALL };

static __device__ uint32_t mixed(uint32_t x) {
    x ^= x >> 16, x *= 0x7FEB352Du, x ^= x >> 15, x *= 0x846CA68Bu, x ^= x >> 16;
    return x;
}

/* Byte `at` of memory of a kind; of bf16 the one byte or the other. */
static __device__ uint8_t random_byte(kind what, uint64_t at, uint32_t seed) {
    uint32_t unit = static_cast<uint32_t>(what >= ACTIVATIONS ? at / 2 : at);
    uint32_t bits = mixed(unit * 2654435761u + seed + static_cast<uint32_t>(at >> 32));
    if (what == CODES) return static_cast<uint8_t>(bits);
    if (what == E4M3_CODES) return static_cast<uint8_t>(bits & 0xF7u); /* no NaN */
    if (what == E4M3_SCALES) return static_cast<uint8_t>(0x28u + (bits & 15u));
    if (what == E8M0_SCALES) return static_cast<uint8_t>(118u + (bits & 3u));
    float x = (static_cast<float>(bits >> 8 & 0xFFFFu) - 32767.5f) / 32768.0f;
    uint16_t word = di_bf16_encode(what == SMALL ? x * 0.05f : x);
    return static_cast<uint8_t>(at % 2 ? word >> 8 : word);
}

static __global__ void fill_kernel(uint8_t *out, uint64_t n, kind what, uint32_t seed) {
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < n;
         i += uint64_t(gridDim.x) * blockDim.x)
        out[i] = random_byte(what, i, seed);
}

/* All pages: parts of both sources. */
static __global__ void fill_pages_kernel(di_pages a, di_pages b, uint64_t n) {
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < n;
         i += uint64_t(gridDim.x) * blockDim.x) {
        uint64_t at = i % a.page_bytes;
        const di_pages &p = at < b.codes ? a : b;
        kind what = at < p.scales       ? CODES
                    : at < p.key_codes  ? E4M3_SCALES
                    : at < p.key_scales ? CODES
                                        : E8M0_SCALES;
        cuda_at<uint8_t>(a.pool)[i] = random_byte(what, i, 77);
    }
}

static di_ptr take(bench *b, uint64_t bytes, const char *what) {
    di_ptr p;
    di_error error;
    must(b->cuda->alloc(b->cuda, bytes, what, &p, &error), &error);
    return p;
}
static di_ptr random_memory(bench *b, uint64_t bytes, kind what) {
    static uint32_t seed;
    di_ptr p = take(b, bytes, "data");
    fill_kernel<<<1024, 256, 0, b->cuda->stream->stream>>>(cuda_at<uint8_t>(p), bytes, what,
                                                           ++seed * 7919u);
    check(cudaGetLastError());
    return p;
}
static di_ptr put(bench *b, const void *host, uint64_t bytes) {
    di_ptr p = take(b, bytes, "data");
    b->cuda->upload(b->cuda->stream, p, host, bytes);
    return p;
}

/* Random matrices for products, bound as the model's are; and as they are stored. */
static di_matrix random_matrix(bench *b, di_dtype dtype, int32_t n, int32_t k, di_matrix *stored) {
    di_host_matrix m = {dtype, n, k, 1, NULL, NULL};
    uint64_t codes = di_host_matrix_bytes(&m), scales = di_host_matrix_scale_bytes(&m);
    uint8_t *host = static_cast<uint8_t *>(malloc(codes + scales));
    di_ptr data = random_memory(b, codes, dtype == DI_BF16 ? SMALL : E4M3_CODES), scale = DI_NONE;
    di_matrix out;
    di_error error;
    if (host == NULL) stop("no memory");
    b->cuda->download(b->cuda->stream, host, data, codes);
    if (scales > 0) {
        scale = random_memory(b, scales, E8M0_SCALES);
        b->cuda->download(b->cuda->stream, host + codes, scale, scales);
    }
    must(di_backend_sync(b->cuda, &error), &error);
    m.data = host, m.scale = host + codes;
    must(b->cuda->bind_matrix(b->cuda, &m, "a matrix", &out, &error), &error);
    b->cuda->free(b->cuda, data);
    b->cuda->free(b->cuda, scale);
    *stored = di_matrix{dtype, n, k, cuda_ptr(host), scales > 0 ? cuda_ptr(host + codes) : DI_NONE};
    return out;
}

/* ---- What is there for all cases ---- */

static di_limits limits_of(int32_t rows, int64_t entries) {
    di_limits l = {};
    l.max_rows = l.max_out = rows, l.width = WIDTH, l.hc = 1, l.vocab = 64;
    l.n_heads = HEADS, l.head_dim = DIM, l.q_rank = RANK, l.o_low = 8;
    l.n_experts = l.top_k = 1, l.inner = 32;
    l.index_heads = INDEX_N, l.index_dim = INDEX_D, l.index_top_k = TOP_K;
    l.top_blocks = BLOCKS, l.block_size = BLOCK, l.max_entries = entries, l.max_k = WIDTH;
    return l;
}

static void make_pages(bench *b) {
    uint64_t at = 0;
    for (int i = 0; i < SOURCES; i++) {
        di_pages *p = &b->source[i];
        p->ratio = i == 0 ? 2 : 1, p->d = DIM, p->di = INDEX_D;
        uint64_t entries = static_cast<uint64_t>(64 / p->ratio);
        p->codes = static_cast<uint32_t>(at), at += entries * DIM / 2;
        p->scales = static_cast<uint32_t>(at), at += entries * DIM / 16;
        p->key_codes = static_cast<uint32_t>(at), at += entries * INDEX_D / 2;
        p->key_scales = static_cast<uint32_t>(at), at += entries * INDEX_D / 32;
    }
    di_ptr pool = take(b, at * POOL_PAGES, "pages"),
           table = take(b, 4u * ATTEND_SLOTS * PAGE_SLOTS, "table");
    for (int i = 0; i < SOURCES; i++) {
        b->source[i].pool = pool, b->source[i].page_bytes = at;
        b->source[i].table = table, b->source[i].table_stride = PAGE_SLOTS;
    }
    fill_pages_kernel<<<4096, 256, 0, b->cuda->stream->stream>>>(b->source[0], b->source[1],
                                                                 at * POOL_PAGES);
    check(cudaGetLastError());
    b->table = static_cast<int32_t *>(calloc(ATTEND_SLOTS * PAGE_SLOTS, 4));
    b->picks = static_cast<int32_t *>(calloc(ATTEND_ROWS * TOP_K, 4));
    if (b->table == NULL || b->picks == NULL) stop("no memory");
}

static void make_inputs(bench *b) {
    float freq[ROPE / 2], sink[HEADS];
    for (int i = 0; i < ROPE / 2; i++) freq[i] = powf(160000, -2.0f * static_cast<float>(i) / ROPE);
    for (int i = 0; i < HEADS; i++) sink[i] = static_cast<float>(i % 5) - 2;
    di_attend_args *a = &b->attend;
    const uint64_t row = uint64_t(HEADS) * DIM * 2, slots = uint64_t(ATTEND_SLOTS) * RING;
    a->n_heads = HEADS, a->head_dim = DIM, a->window = WINDOW, a->top_k = TOP_K;
    a->rope.dims = ROPE, a->rope.freq = put(b, freq, sizeof freq);
    a->q = random_memory(b, ATTEND_ROWS * row, ACTIVATIONS);
    a->kv_codes = random_memory(b, ATTEND_ROWS * DIM, E4M3_CODES);
    a->kv_scales = random_memory(b, ATTEND_ROWS * DIM / 32, E8M0_SCALES);
    a->ring.ring_slots = RING;
    a->ring.codes = random_memory(b, slots * DIM, E4M3_CODES);
    a->ring.scales = random_memory(b, slots * DIM / 32, E8M0_SCALES);
    a->picks = take(b, 4u * ATTEND_ROWS * TOP_K, "picks");
    a->sink = di_vector{DI_F32, HEADS, put(b, sink, sizeof sink)};
    a->out = take(b, ATTEND_ROWS * row, "out");
    di_index_select_args *s = &b->select;
    s->n_heads = INDEX_N, s->top_k = TOP_K, s->top_blocks = BLOCKS, s->block_size = BLOCK;
    s->rope = a->rope;
    s->qr = random_memory(b, MOST_ROWS * RANK * 2, ACTIVATIONS);
    s->u = random_memory(b, MOST_ROWS * WIDTH * 2, ACTIVATIONS);
    s->wq_b = random_matrix(b, DI_F8_E4M3, INDEX_N * INDEX_D, RANK, &b->host_wq_b);
    s->weights_proj = random_matrix(b, DI_BF16, INDEX_N, WIDTH, &b->host_proj);
    s->candidates = take(b, 4u * MOST_ROWS * BLOCKS, "candidates");
    s->picks = take(b, 4u * MOST_ROWS * TOP_K, "picks");
}

/* A row of each of many sequences; or all rows of one, which begin a prompt. */
static void set_rows(bench *b, int32_t n_rows, bool one) {
    static di_row rows[ATTEND_ROWS];
    static int32_t first[ATTEND_ROWS];
    for (int i = 0; i < n_rows; i++)
        rows[i] = one ? di_row{0, 0, i} : di_row{0, i, 0}, first[i] = one ? 0 : i;
    b->batch.n_rows = n_rows;
    b->cuda->upload(b->cuda->stream, b->batch.rows, rows, sizeof rows);
    b->cuda->upload(b->cuda->stream, b->batch.first, first, sizeof first);
}

static void make_batch(bench *b) {
    di_batch *t = &b->batch;
    t->n_slots = ATTEND_SLOTS;
    t->rows = take(b, sizeof(di_row) * ATTEND_ROWS, "rows");
    t->first = take(b, 4 * ATTEND_ROWS, "first");
    t->length = take(b, 4 * ATTEND_SLOTS, "length"), t->pos = take(b, 4 * ATTEND_ROWS, "pos");
}

/* ---- A case ---- */

static int compare_ints(const void *a, const void *b) {
    int32_t x, y;
    memcpy(&x, a, 4), memcpy(&y, b, 4);
    return x < y ? -1 : x > y;
}

/* n different ones of 0 .. of - 1, ascending. */
static void random_choice(int32_t n, int32_t of, uint64_t *state, int32_t *out) {
    for (int32_t made = 0; made < n;) {
        for (int32_t i = made; i < n; i++) {
            *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            out[i] = static_cast<int32_t>((*state >> 33) % static_cast<uint64_t>(of));
        }
        qsort(out, static_cast<size_t>(n), 4, compare_ints);
        made = 0;
        for (int32_t i = 0; i < n; i++)
            if (i == 0 || out[i] != out[made - 1]) out[made++] = out[i];
    }
}

/* Where pages lie of `rows` sequences: in any order. */
static void set_pages(bench *b, int32_t rows, int32_t tokens) {
    int32_t pages = tokens / 64;
    for (int64_t i = 0; i < int64_t(rows) * pages; i++) {
        int64_t page = i * 7919 % (int64_t(rows) * pages); /* 7919 is prime, no divisor of it */
        b->table[i / pages * PAGE_SLOTS + i % pages] = static_cast<int32_t>(page);
    }
    b->cuda->upload(b->cuda->stream, b->source[0].table, b->table, 4u * ATTEND_SLOTS * PAGE_SLOTS);
}

/* rows sequences of `tokens` tokens, and the row after them: picks among all entries of ratio 1;
 * candidate blocks too, if there is selection. */
static void set_case(bench *b, int32_t rows, int32_t tokens) {
    static int32_t length[ATTEND_SLOTS], blocks[MOST_ROWS][BLOCKS];
    uint64_t state = 12345;
    for (int32_t t = 0; t < rows; t++) {
        int32_t visible = tokens, n = visible / BLOCK < BLOCKS ? visible / BLOCK : BLOCKS;
        length[t] = tokens - 1;
        random_choice(TOP_K, visible, &state, b->picks + t * TOP_K);
        if (t >= MOST_ROWS) continue;
        random_choice(n, visible / BLOCK, &state, blocks[t]);
        for (int32_t i = n; i < BLOCKS; i++) blocks[t][i] = -1;
    }
    di_stream *s = b->cuda->stream;
    set_pages(b, rows, tokens);
    set_rows(b, rows, false);
    b->cuda->upload(s, b->batch.length, length, sizeof length);
    b->cuda->upload(s, b->batch.pos, length, sizeof length);
    b->cuda->upload(s, b->attend.picks, b->picks, 4u * ATTEND_ROWS * TOP_K);
    b->cuda->upload(s, b->select.candidates, blocks, sizeof blocks);
    b->attend.batch = b->select.batch = b->batch;
    b->attend.pages = b->source[1];
    check(cudaStreamSynchronize(s->stream));
}

/* A prompt of `rows` tokens: row t picks among t + 1 entries, as many as there are at most. */
static void set_prompt(bench *b, int32_t rows) {
    static int32_t pos[ATTEND_ROWS];
    const int32_t none[ATTEND_SLOTS] = {};
    uint64_t state = 54321;
    for (int32_t t = 0; t < rows; t++) {
        int32_t *picks = b->picks + t * TOP_K, n = 0, want = t + 1 < TOP_K ? t + 1 : TOP_K;
        pos[t] = t;
        for (int32_t i = 0; i <= t && n < want; i++) { /* one of those left, with equal chances */
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            if ((state >> 33) % static_cast<uint64_t>(t + 1 - i) < static_cast<uint64_t>(want - n))
                picks[n++] = i;
        }
        while (n < TOP_K) picks[n++] = -1;
    }
    di_stream *s = b->cuda->stream;
    set_pages(b, 1, rows);
    set_rows(b, rows, true);
    b->cuda->upload(s, b->batch.length, none, sizeof none);
    b->cuda->upload(s, b->batch.pos, pos, sizeof pos);
    b->cuda->upload(s, b->attend.picks, b->picks, 4u * ATTEND_ROWS * TOP_K);
    b->attend.batch = b->batch, b->attend.pages = b->source[1];
    check(cudaStreamSynchronize(s->stream));
}

static void set_mode(bench *b, di_candidate_mode mode) {
    b->select.candidate_mode = mode;
    b->select.pages = b->source[mode == DI_CANDIDATES_NONE ? 0 : 1];
}

/* ---- Against the cpu backend ---- */

/* Device memory as the cpu backend holds it; A as float. Not given back: a few rows. */
static di_ptr host_copy(di_ptr from, uint64_t bytes, bool activations) {
    if (cuda_none(from)) return from;
    uint8_t *raw = static_cast<uint8_t *>(malloc(bytes));
    if (raw == NULL) stop("no memory");
    check(cudaMemcpy(raw, cuda_at<void>(from), bytes, cudaMemcpyDeviceToHost));
    if (!activations) return cuda_ptr(raw);
    float *wide = static_cast<float *>(malloc(bytes * 2));
    if (wide == NULL) stop("no memory");
    for (uint64_t i = 0; i < bytes / 2; i++) {
        uint16_t word;
        memcpy(&word, raw + 2 * i, 2);
        wide[i] = di_bf16_decode(word);
    }
    return cuda_ptr(wide);
}

static di_batch host_batch(const bench *b) {
    di_batch t = b->batch;
    t.rows = host_copy(t.rows, sizeof(di_row) * MOST_ROWS, false);
    t.first = host_copy(t.first, 4 * MOST_ROWS, false);
    t.length = host_copy(t.length, 4 * MOST_ROWS, false);
    t.pos = host_copy(t.pos, 4 * MOST_ROWS, false);
    return t;
}
static di_pages host_pages(const bench *b, di_pages p, int32_t n) {
    p.pool = host_copy(p.pool, p.page_bytes * static_cast<uint64_t>(n), false);
    p.table = cuda_ptr(b->table);
    return p;
}

static void compare_attend(bench *b, int32_t rows, int32_t tokens) {
    di_attend_args a = b->attend;
    const uint64_t row = uint64_t(HEADS) * DIM, slots = uint64_t(MOST_ROWS) * RING, n = row * rows;
    a.batch = host_batch(b), a.pages = host_pages(b, a.pages, rows * tokens / 64);
    a.rope.freq = host_copy(a.rope.freq, 2 * ROPE, false);
    a.q = host_copy(a.q, n * 2, true);
    a.kv_codes = host_copy(a.kv_codes, MOST_ROWS * DIM, false);
    a.kv_scales = host_copy(a.kv_scales, MOST_ROWS * DIM / 32, false);
    a.ring.codes = host_copy(a.ring.codes, slots * DIM, false);
    a.ring.scales = host_copy(a.ring.scales, slots * DIM / 32, false);
    a.picks = host_copy(a.picks, 4u * MOST_ROWS * TOP_K, false);
    a.sink.data = host_copy(a.sink.data, 4 * HEADS, false);
    a.out = host_copy(a.out, n * 2, true);
    b->cpu->ops->attend(b->cpu->stream, &a);
    b->cuda->ops->attend(b->cuda->stream, &b->attend);
    check(cudaStreamSynchronize(b->cuda->stream->stream));
    const float *want = cuda_at<float>(a.out),
                *got = cuda_at<float>(host_copy(b->attend.out, n * 2, true));
    uint64_t equal = 0;
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < n; i++) {
        double apart = fabs(static_cast<double>(want[i]) - static_cast<double>(got[i]));
        equal += want[i] == got[i];
        if (!(apart <= worst)) worst = apart; /* a NaN counts */
        largest = fmax(largest, fabs(static_cast<double>(want[i])));
    }
    printf("attend, %d rows, %d tokens: %.4f of the values are the cpu backend's, largest "
           "difference %.3g of %.3g\n",
           rows, tokens, static_cast<double>(equal) / static_cast<double>(n), worst, largest);
}

/* How many of the lists' numbers stand in both, of rows lists of width. */
static void compare_lists(const char *what, di_ptr got, di_ptr want, int32_t rows, int32_t width) {
    const int32_t *x = cuda_at<int32_t>(want);
    const int32_t *y =
        cuda_at<int32_t>(host_copy(got, 4u * static_cast<uint64_t>(rows * width), false));
    int32_t same = 0, whole = 0;
    for (int32_t t = 0; t < rows; t++, x += width, y += width) {
        whole += memcmp(x, y, 4u * static_cast<size_t>(width)) == 0;
        for (int32_t i = 0, j = 0; i < width && j < width;) {
            if (x[i] == y[j])
                same++, i++, j++;
            else if (y[j] < 0 || (x[i] >= 0 && x[i] < y[j]))
                i++;
            else
                j++;
        }
    }
    printf("  %s: %d of %d lists the cpu backend's, %d of %d numbers\n", what, whole, rows, same,
           rows * width);
}

static void compare_select(bench *b, int32_t rows, int32_t tokens, di_candidate_mode mode) {
    static const char *const names[] = {"none", "source", "use"};
    set_mode(b, mode);
    di_index_select_args a = b->select;
    a.batch = host_batch(b), a.pages = host_pages(b, a.pages, rows * tokens / 64);
    a.rope.freq = host_copy(a.rope.freq, 2 * ROPE, false);
    a.qr = host_copy(a.qr, MOST_ROWS * RANK * 2, true);
    a.u = host_copy(a.u, MOST_ROWS * WIDTH * 2, true);
    a.wq_b = b->host_wq_b, a.weights_proj = b->host_proj;
    a.candidates = host_copy(a.candidates, 4u * MOST_ROWS * BLOCKS, false);
    a.picks = host_copy(a.picks, 4u * MOST_ROWS * TOP_K, false);
    b->cpu->ops->index_select(b->cpu->stream, &a);
    b->cuda->ops->index_select(b->cuda->stream, &b->select);
    check(cudaStreamSynchronize(b->cuda->stream->stream));
    printf("selection (%s), %d rows, %d tokens:\n", names[mode], rows, tokens);
    compare_lists("picks", b->select.picks, a.picks, rows, TOP_K);
    if (mode == DI_CANDIDATES_SOURCE)
        compare_lists("blocks", b->select.candidates, a.candidates, rows, BLOCKS);
}

static void compare_all(bench *b) {
    set_case(b, 3, 20480);
    compare_attend(b, 3, 20480);
    for (int mode = DI_CANDIDATES_NONE; mode <= DI_CANDIDATES_USE; mode++)
        compare_select(b, 3, 20480, static_cast<di_candidate_mode>(mode));
}

/* ---- Time ---- */

static constexpr uint64_t OTHER_BYTES = UINT64_C(192) << 20;
static __global__ void read_kernel(const uint4 *from, size_t n, uint32_t *out) {
    uint32_t x = 0;
    for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
         i += size_t(gridDim.x) * blockDim.x) {
        uint4 v = from[i];
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678u) *out = x;
}
static __global__ void empty_kernel() {}

/* Seconds of what `run` enqueues, cold; *kernels: how many it enqueues. */
template <typename Run> static double seconds(bench *b, Run run, size_t *kernels) {
    cudaStream_t stream = b->cuda->stream->stream;
    cudaGraph_t graph;
    double all[RUNS];
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    for (int i = 0; i < REPEATS; i++) {
        read_kernel<<<528, 512, 0, stream>>>(b->other, OTHER_BYTES / 16,
                                             reinterpret_cast<uint32_t *>(b->other));
        run();
    }
    check(cudaStreamEndCapture(stream, &graph));
    if (b->cuda->stream->failed != cudaSuccess) stop(b->cuda->stream->failure);
    check(cudaGraphGetNodes(graph, NULL, kernels));
    *kernels = *kernels / REPEATS - 1;
    check(graph_times(stream, graph, RUNS, all));
    check(cudaGraphDestroy(graph));
    for (int i = 1; i < RUNS; i++)
        for (int j = i; j > 0 && all[j] < all[j - 1]; j--) {
            double swap = all[j];
            all[j] = all[j - 1], all[j - 1] = swap;
        }
    return all[RUNS / 2] / REPEATS - b->flush;
}

static void measure_overheads(bench *b) {
    size_t n;
    const int many = 16;
    b->flush = 0;
    b->flush = seconds(
        b, [] {}, &n);
    b->empty = seconds(
                   b,
                   [&] {
                       for (int i = 0; i < many; i++)
                           empty_kernel<<<264, 256, 0, b->cuda->stream->stream>>>();
                   },
                   &n) /
               many;
    printf("%s: copies %.0f GB/s, bf16 products %.0f Tflop/s, an empty kernel of a graph %.2f us\n",
           b->peak.device, b->peak.copy_bytes_per_s * 1e-9, b->peak.flop_per_s * 1e-12,
           b->empty * 1e6);
}

static void report(const bench *b, const char *what, double time, size_t kernels, double bytes,
                   double flops) {
    double empty = b->empty * static_cast<double>(kernels), work = seconds_of(b, bytes, flops);
    printf("  %-20s %9.2f us  %9.2f MB %8.2f Gflop  floor %8.2f us (work %.2f, %zu empty kernels "
           "%.2f)  ratio %.2f\n",
           what, time * 1e6, bytes * 1e-6, flops * 1e-9, (work + empty) * 1e6, work * 1e6, kernels,
           empty * 1e6, (work + empty) / time);
}

/* keys: of the rows' windows and picks; read: those of them that are not shared. */
static void time_attend(bench *b, double window, double picks, double window_read,
                        double picks_read) {
    size_t kernels;
    double time = seconds(
        b, [&] { b->cuda->ops->attend(b->cuda->stream, &b->attend); }, &kernels);
    double rows = b->batch.n_rows;
    double keys = window_read * (DIM + DIM / 32) + picks_read * (DIM / 2 + DIM / 16) + picks * 8;
    report(b, "attend", time, kernels, keys + rows * 4.0 * HEADS * DIM,
           4.0 * HEADS * DIM * (window + picks));
}

/* A prompt's rows share what they read. */
static void time_prompt(bench *b, int32_t rows) {
    double window = 0, picks = 0;
    printf("a prompt of %d tokens\n", rows);
    set_prompt(b, rows);
    for (int32_t t = 0; t < rows; t++)
        window += t + 1 < WINDOW ? t + 1 : WINDOW, picks += t + 1 < TOP_K ? t + 1 : TOP_K;
    time_attend(b, window, picks, rows, rows);
}

/* The two products that index_select has inside. */
static void select_products(bench *b) {
    const di_index_select_args *s = &b->select;
    di_linear_args a = {};
    a.n_rows = b->batch.n_rows, a.groups = 1, a.quantize = true, a.x = s->qr, a.w = s->wq_b;
    a.out = b->attend.out;
    b->cuda->ops->linear(b->cuda->stream, &a);
    a.quantize = false, a.x = s->u, a.w = s->weights_proj;
    b->cuda->ops->linear(b->cuda->stream, &a);
}

static void time_select(bench *b, int32_t rows, int32_t tokens, di_candidate_mode mode) {
    static const char *const names[] = {"select, none", "select, source", "select, use"};
    size_t kernels, inside;
    set_mode(b, mode);
    double listed = mode == DI_CANDIDATES_NONE ? tokens / 2 : tokens, queries = INDEX_N * INDEX_D;
    if (mode == DI_CANDIDATES_USE && listed > BLOCKS * BLOCK) listed = BLOCKS * BLOCK;
    double time = seconds(
        b, [&] { b->cuda->ops->index_select(b->cuda->stream, &b->select); }, &kernels);
    double products = seconds(
        b, [&] { select_products(b); }, &inside);
    double bytes = rows * listed * (INDEX_D / 2 + INDEX_D / 32),
           flops = 2 * rows * listed * queries;
    double weights = queries * RANK * (1 + 1.0 / 1024) + 2.0 * INDEX_N * WIDTH;
    report(b, names[mode], time, kernels, bytes + weights + 2.0 * rows * (RANK + WIDTH),
           flops + 2.0 * rows * (queries * RANK + INDEX_N * WIDTH));
    report(b, "  without products", time - products, kernels - inside, bytes, flops);
}

static void time_case(bench *b, int32_t rows, int32_t tokens) {
    printf("%d rows at %d tokens\n", rows, tokens);
    set_case(b, rows, tokens);
    time_attend(b, rows * WINDOW, rows * TOP_K, rows * WINDOW, rows * TOP_K);
    if (rows > MOST_ROWS) return;
    time_select(b, rows, tokens, DI_CANDIDATES_NONE);
    time_select(b, rows, tokens, DI_CANDIDATES_USE);
    time_select(b, rows, tokens, DI_CANDIDATES_SOURCE); /* writes what the one before read */
}

int main(void) {
    static bench b;
    di_error error;
    di_cpu_options one = {};
    di_limits cuda = limits_of(MOST_ROWS, MOST_TOKENS), cpu = limits_of(4, 1 << 15);
    one.cpu_mask = ~0u;
    must(di_cuda_peak_measure(0, &b.peak, &error), &error);
    must(di_backend_create_cuda(DI_NUMERICS_RELEASE, NULL, &b.cuda, &error), &error);
    must(di_backend_create_cpu(DI_NUMERICS_RELEASE, &one, &b.cpu, &error), &error);
    must(b.cuda->prepare(b.cuda, &cuda, &error), &error);
    must(b.cpu->prepare(b.cpu, &cpu, &error), &error);
    b.other = cuda_at<uint4>(take(&b, OTHER_BYTES, "other"));
    make_pages(&b);
    make_inputs(&b);
    make_batch(&b);
    compare_all(&b);
    measure_overheads(&b);
    time_prompt(&b, ATTEND_ROWS);
    time_case(&b, 256, 4096);
    time_case(&b, 128, 4096);
    time_case(&b, 64, 4096);
    time_case(&b, 64, 65536);
    time_case(&b, 1, MOST_TOKENS);
    time_case(&b, 8, MOST_TOKENS);
    b.cpu->destroy(b.cpu);
    b.cuda->destroy(b.cuda);
    free(b.table);
    free(b.picks);
    return 0;
}
