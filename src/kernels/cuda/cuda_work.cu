/* The workspace of operations, and the ends of programs that were called wrongly. */
#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/mma_picks.cuh"

[[noreturn]] void cuda_broken(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: an operation was called outside of its limits: %s\n", file, line,
            condition);
    abort();
}

bool cuda_check(di_stream *s, cudaError_t status, const char *what) {
    if (status == cudaSuccess) return true;
    if (s->failed == cudaSuccess) {
        s->failed = status;
        snprintf(s->failure, sizeof s->failure, "%s: %s (%s)", what, cudaGetErrorString(status),
                 cudaGetErrorName(status));
    }
    return false;
}

static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

#define MAX_BYTES (UINT64_C(1) << 60)
enum { ALIGN = 256 };
static uint64_t rounded(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* Longest row that a product can read. */
static uint64_t input_width(const di_limits *l) {
    uint64_t w = most((uint64_t)l->max_k, (uint64_t)l->n_heads * (uint64_t)l->head_dim);
    w = most(w, (uint64_t)l->engram_columns * (uint64_t)l->engram_width);
    w = most(w, (uint64_t)l->hc * (uint64_t)l->width);
    return most(w, most((uint64_t)l->inner, most((uint64_t)l->q_rank, (uint64_t)l->o_low)));
}

/* Generous rather than exact: every region that some operation takes, as if one took them all. */
uint64_t cuda_work_bytes(const di_limits *l) {
    typedef unsigned __int128 wide; /* limits nobody can have must not come out small */
    uint64_t rows = most((uint64_t)l->max_rows, (uint64_t)l->max_out) + 1;
    uint64_t picks = rows * ((uint64_t)l->top_k + 1);
    uint64_t width = (uint64_t)l->width, hc = (uint64_t)l->hc, d = (uint64_t)l->head_dim;
    uint64_t a_row = 2 * input_width(l) + (uint64_t)l->q_rank + 5 * d + 3 * (uint64_t)l->index_dim +
                     (uint64_t)l->index_heads * ((uint64_t)l->index_dim + 2) + (uint64_t)l->o_low +
                     4 * (uint64_t)l->inner + 2 * width + (2 + hc) * hc +
                     2 * (uint64_t)l->n_experts + 4 * DI_OPS_MAX_BLOCK + 64;
    wide floats = (wide)rows * a_row + (wide)picks * (3 * (uint64_t)l->inner + 96);
    uint64_t entries = (uint64_t)l->max_entries + 64;
    uint64_t scores = cuda_score_rows(l, l->max_rows) * entries * 2; /* scores and sort keys */
    uint64_t vocab = CUDA_SAMPLE_ROWS * 8 * ((uint64_t)l->vocab + 64);
    floats += (wide)mma_most_wide_slots(picks, l->n_experts) * /* experts' rows by slots */
              ((width + (uint64_t)l->inner) / 2 + MMA_K);
    wide all = 4 * (floats + scores) + vocab + 64 * (uint64_t)l->n_experts + cuda_beside_bytes(l) +
               cuda_router_bytes(l) + cuda_kept_bytes(l) + (4 << 20);
    return all > MAX_BYTES ? MAX_BYTES : rounded((uint64_t)all);
}

uint64_t cuda_score_rows(const di_limits *l, int64_t n_rows) {
    uint64_t fit = CUDA_SCORES / ((uint64_t)l->max_entries + 64);
    if (fit < 1) fit = 1;
    return (uint64_t)n_rows < fit ? (uint64_t)n_rows : fit;
}

/* The sums of a mix (cuda_ops_mix.cu). */
uint64_t cuda_beside_bytes(const di_limits *l) {
    uint64_t width = (uint64_t)l->width, hc = (uint64_t)l->hc, rows = CUDA_BESIDE_ROWS;
    return rounded(rows * (hc * width / 1024 + 4) * 128) + 4 * ALIGN;
}

uint64_t cuda_router_bytes(const di_limits *l) {
    return rounded(CUDA_BESIDE_ROWS * 4 * (uint64_t)l->n_experts);
}

/* Rows of FP8 and of FP4, or codes. */
uint64_t cuda_kept_bytes(const di_limits *l) {
    return most(2 * rounded(mma_input_bytes(MMA_NARROW_ROWS, 1, l->width)),
                rounded(mma_codes_bytes(l->max_rows, l->width)));
}

static uint64_t counters_bytes(const di_stream *s) {
    return s->work_size > 0 ? CUDA_COUNTERS * sizeof(uint32_t) : 0;
}

float *cuda_router_products(const di_stream *s, int64_t n_rows, int64_t n_experts) {
    uint64_t bytes = 4 * static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(n_experts);
    if (bytes > s->beside.router_bytes) return NULL;
    return reinterpret_cast<float *>(s->work + counters_bytes(s) + s->beside.bytes);
}

/* Where the workspace of the stream's own operations begins. */
static uint64_t own_bytes(const di_stream *s) {
    return counters_bytes(s) + s->beside.bytes + s->beside.router_bytes + s->kept.bytes;
}

void *cuda_take_bytes(di_stream *s, uint64_t bytes) {
    uint64_t size = rounded(bytes);
    uint64_t end = s->beside.aside ? counters_bytes(s) + s->beside.bytes : s->work_size;
    CUDA_REQUIRE(size <= end - s->work_used);
    void *at = s->work + s->work_used;
    s->work_used += size;
    return at;
}

static void use_device(di_stream *s) {
    static thread_local int device = -1;
    if (device == s->device) return;
    if (cuda_check(s, cudaSetDevice(s->device), "choose the device")) device = s->device;
}

/* The stream waits for the router's choice, and not for what runs behind it. */
static void join_router(di_stream *s) {
    s->beside.router = false;
    s->late = true;
    cuda_check(s, cudaStreamWaitEvent(s->stream, s->beside.chosen, 0), "beside");
}

static void begin(di_stream *s) {
    use_device(s);
    s->work_used = own_bytes(s);
}

void cuda_begin_beside(di_stream *s, bool router) {
    cuda_flush(s);
    begin(s);
    if (s->beside.router && !router) join_router(s);
}

void cuda_begin_router(di_stream *s) {
    cuda_pending *p = &s->pending;
    if (p->has_combine || p->has_out) cuda_flush(s);
    if (s->beside.router) cuda_join(s);
    begin(s);
}

void cuda_begin_copy(di_stream *s) {
    use_device(s);
    cuda_join(s);
}

void cuda_begin(di_stream *s) {
    cuda_begin_beside(s, true);
    s->kept.x = DI_NONE;
    cuda_join(s);
}

void cuda_overwrites(di_stream *s, di_ptr rows, uint64_t bytes) {
    cuda_kept *kept = &s->kept;
    uint64_t size = cuda_rows_bytes(s, kept->n_rows, kept->width);
    if (rows.address < kept->x.address + size && kept->x.address < rows.address + bytes)
        kept->x = DI_NONE;
}

uint8_t *mma_kept_place(di_stream *s, di_dtype dtype) {
    uint64_t fp4 = dtype == DI_FP4_PAIR ? s->kept.bytes / 2 : 0;
    return s->work + own_bytes(s) - s->kept.bytes + fp4;
}

mma_codes mma_codes_place(di_stream *s, int32_t n_rows, int32_t width) {
    uint8_t *at = s->work + own_bytes(s) - s->kept.bytes;
    if (width % MMA_K != 0 || mma_codes_bytes(n_rows, width) > s->kept.bytes)
        return mma_codes{NULL, NULL};
    return mma_codes{at, at + static_cast<int64_t>(n_rows) * width};
}

/* ---- Beside the stream ---- */

static void swap_streams(di_stream *s) {
    cudaStream_t other = s->beside.stream;
    s->beside.stream = s->stream;
    s->stream = other;
    s->beside.aside = !s->beside.aside;
}

bool cuda_step_aside(di_stream *s, uint64_t bytes) {
    if (bytes > s->beside.bytes || s->failed != cudaSuccess) return false;
    if (s->late) return false; /* nothing has come since the last wait: it would only be longer */
    cuda_check(s, cudaEventRecord(s->beside.begin, s->stream), "beside");
    cuda_check(s, cudaStreamWaitEvent(s->beside.stream, s->beside.begin, 0), "beside");
    swap_streams(s);
    s->late = true;
    s->work_used = counters_bytes(s);
    return true;
}

void cuda_step_back(di_stream *s) {
    cuda_check(s, cudaEventRecord(s->beside.end, s->stream), "beside");
    swap_streams(s);
    s->late = false;
    s->beside.runs = true;
}

void cuda_chosen(di_stream *s) {
    cuda_check(s, cudaEventRecord(s->beside.chosen, s->beside.stream), "beside");
    s->beside.router = true;
}

void cuda_join(di_stream *s) {
    cuda_flush(s);
    if (!s->beside.runs) return;
    s->beside.runs = s->beside.router = s->beside.store = false;
    s->beside.pre = DI_NONE;
    s->late = true;
    cuda_check(s, cudaStreamWaitEvent(s->stream, s->beside.end, 0), "beside");
}
