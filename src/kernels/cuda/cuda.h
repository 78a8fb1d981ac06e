/* The CUDA backend's inside, as its host code sees it: the stream, launches, workspace, errors.
 *
 * F is float. A is __nv_bfloat16 under `release` and float under `float`: kernels are templates of
 * A, and the numerics follow from it (device.cuh). Operations only enqueue: an operation is one or
 * a few kernels that take the operation's own argument struct, on the backend's stream. Some run on
 * a second one beside it (cuda_step_aside), and some wait until it is known what follows, to be one
 * kernel with it (cuda_pending). Memory is as if all had run one by one.
 *
 * Row invariance. No kernel adds floating-point values across threads but in an order fixed by the
 * row's own shape (device.cuh); block sizes are constants; no floating-point atomics. Compiled with
 * -fmad=false: a product and a sum are fused only where the code says fmaf.
 *
 * Files: cuda_backend.cu (create, memory), cuda_transfer.cu (copies, marks, stamps), cuda_graph.cu
 * (steps that come again), cuda_work.cu (workspace, work beside the stream), cuda_pack.cu (matrices
 * that are bound), cuda_ops_*.cu (operations), cuda_mma_*.cu (their products on the matrix units).
 * Headers *.cuh hold device code.
 */
#ifndef DI_KERNELS_CUDA_CUDA_H
#define DI_KERNELS_CUDA_CUDA_H

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/backend.h"
}

struct cuda_transfer; /* cuda_transfer.cu */
struct cuda_graphs;   /* cuda_graph.cu */

/* A second stream, for operations that few wait for (cuda_step_aside). */
typedef struct cuda_beside {
    cudaStream_t stream;
    cudaEvent_t begin, end, chosen; /* the last: of the router's choice */
    uint64_t bytes; /* of workspace, behind the counters; then as many as products of the router */
    uint64_t router_bytes;
    bool runs;   /* something there has not been waited for */
    bool aside;  /* between step_aside and step_back: di_stream's stream is this one */
    bool router; /* the router's choice is among what runs */
    bool store;  /* so is a store of window rows, which reads what qkv writes */
    di_ptr pre;  /* what a mix that runs writes */
} cuda_beside;

/* What sublayer_in leaves besides its rows: the same quantised, of few rows as products read them
 * (mma_kept), of many as codes (mma_kept_codes). Nobody's when an operation began since that is not
 * known to leave the rows as they are. */
typedef struct cuda_kept {
    di_ptr x; /* whose */
    int32_t n_rows, width;
    /* Of workspace, behind that of work beside the stream: of few rows a half for each form. */
    uint64_t bytes;
} cuda_kept;

/* Operations that were called and may become part of the kernel of one that follows
 * (cuda_ops_sublayer.cu). */
typedef struct cuda_pending {
    bool has_combine, has_out, has_mix;
    di_combine_args combine;
    di_sublayer_out_args out;
    di_mix_args mix;
} cuda_pending;

struct di_stream {
    cudaStream_t stream;
    int device, n_processors; /* streaming multiprocessors */
    bool release;
    di_limits limits;
    uint8_t *work; /* device workspace of the operation that runs, given out by cuda_take */
    uint64_t work_size, work_used;
    cuda_beside beside;
    cuda_kept kept;
    cuda_pending pending;
    bool late; /* the next kernel waits for more than the one before it */
    cuda_transfer *transfer;
    cuda_graphs *graphs; /* NULL: nothing is kept */
    uint32_t *far;       /* device memory: 1 if a packed matrix has a far scale (mma_far), else 0 */
    cudaError_t failed;  /* the first error; nothing is enqueued after it */
    char failure[256];
};

/* ---- Errors ---- */

/* Keeps the first error, with what was being done, for the next wait(). Returns whether all is
 * well. */
bool cuda_check(di_stream *s, cudaError_t status, const char *what);

/* Stops the program: an operation was called with more than prepare() was told of, or with what
 * this backend does not do. */
[[noreturn]] void cuda_broken(const char *condition, const char *file, int line);
#define CUDA_REQUIRE(condition)                                                                    \
    do {                                                                                           \
        if (!(condition)) cuda_broken(#condition, __FILE__, __LINE__);                             \
    } while (0)

/* ---- Workspace ---- */

/* Every operation that is enqueued starts with cuda_begin or cuda_begin_beside. cuda_begin: what is
 * pending is enqueued, the device is this thread's, the workspace free, no rows are kept, and what
 * runs beside the stream comes before what is enqueued next. What an earlier operation left in the
 * workspace may still be read by its kernels: stream order keeps them apart. */
void cuda_begin(di_stream *s);
/* The same for copies, which may be part of an operation: the workspace stays as it is. */
void cuda_begin_copy(di_stream *s);

/* Work beside the stream. In a step with few rows kernels are short, and much of the device has
 * nothing to do: the coefficients of a mix, which the sublayer's end reads, the router's choice, for
 * which the shared expert need not wait, the weights of the indexer's heads, which go beside its
 * queries, and the store of window rows are enqueued on a second stream, which goes on from here (a
 * recorded step has a branch there).
 * Operations that neither write what a mix or a store reads nor touch what they write start with
 * cuda_begin_beside, or wait by themselves for the one that they meet; `router`: so it is for the
 * router too. All others wait. */
void cuda_begin_beside(di_stream *s, bool router);
/* Behind it, once what the operation reads of kept rows is asked for: it writes rows of A, so many
 * bytes. What is kept is nobody's if its rows lie there. */
void cuda_overwrites(di_stream *s, di_ptr rows, uint64_t bytes);
/* Before the router's operation: what is pending is enqueued, but for a mix alone. That is enqueued
 * behind the choice, for which more is waiting, and which cuda_chosen marks on the second stream. */
void cuda_begin_router(di_stream *s);
void cuda_chosen(di_stream *s);
/* Between these two calls the stream is the second one and the workspace has `bytes`. False, and all
 * is as it was, where there is not that much room, or where the stream only waits for the second one
 * by now. Once in an operation, which has no more of the workspace after it. */
bool cuda_step_aside(di_stream *s, uint64_t bytes);
void cuda_step_back(di_stream *s);
/* What is pending is enqueued, and the stream waits for what runs beside it. */
void cuda_join(di_stream *s);
void cuda_flush(di_stream *s); /* what is pending is enqueued (cuda_ops_sublayer.cu) */
void cuda_combine_now(di_stream *s, const di_combine_args *args);
void cuda_mix_now(di_stream *s, const di_mix_args *args);
static constexpr int32_t CUDA_BESIDE_ROWS = 64; /* at most, in a step */
/* Of workspace, for work beside the stream; and for what the router has of every expert, which it
 * chooses from there. */
uint64_t cuda_beside_bytes(const di_limits *limits);
uint64_t cuda_router_bytes(const di_limits *limits);
/* The place of that, NULL where there is not so much room. */
float *cuda_router_products(const di_stream *s, int64_t n_rows, int64_t n_experts);
uint64_t cuda_kept_bytes(const di_limits *limits);

/* At the head of the workspace: CUDA_COUNTERS uint32 that are 0 while no kernel runs. A kernel that
 * counts in them leaves them at 0. */
static constexpr uint64_t CUDA_COUNTERS = 1024;
static inline uint32_t *cuda_counters(const di_stream *s) {
    return reinterpret_cast<uint32_t *>(s->work);
}
/* A 256-byte aligned piece of device memory until the operation ends. */
void *cuda_take_bytes(di_stream *s, uint64_t bytes);
template <typename T> T *cuda_take(di_stream *s, uint64_t n) {
    return static_cast<T *>(cuda_take_bytes(s, n * sizeof(T)));
}
uint64_t cuda_work_bytes(const di_limits *limits);
/* Rows that are sampled at a time, each with [vocab] doubles of workspace, and that are judged (accept)
 * at a time, each with twice that: eight blocks each, three on a processor. */
static constexpr uint64_t CUDA_SAMPLE_ROWS = 48, CUDA_JUDGE_ROWS = CUDA_SAMPLE_ROWS / 2;
/* Rows that the indexer scores at a time, each against max_entries: room for CUDA_SCORES floats and
 * as many words, or one row's. */
static constexpr uint64_t CUDA_SCORES = 64 << 20;
uint64_t cuda_score_rows(const di_limits *limits, int64_t n_rows);

template <typename T> static inline __host__ __device__ T *cuda_at(di_ptr p) {
    return reinterpret_cast<T *>(p.address);
}
static inline __host__ __device__ bool cuda_none(di_ptr p) { return p.address == 0; }

/* ---- Launches ---- */

static inline uint32_t cuda_blocks(int64_t n, int64_t each) {
    return static_cast<uint32_t>((n + each - 1) / each);
}

/* `across` blocks for each of so many rows, along y and, since that ends at 65,535, along z. Kernels ask
 * grid_row (device.cuh) for theirs, which may lie behind the last. */
static inline dim3 cuda_row_grid(uint32_t across, int64_t n_rows) {
    constexpr int64_t MOST_Y = 65535;
    uint32_t z = cuda_blocks(n_rows, MOST_Y);
    return dim3(across, z == 0 ? 0 : cuda_blocks(n_rows, z), z);
}

/* A block's shared memory at most (compute capability 9.0). */
static constexpr size_t SHARED_MOST = 227 * 1024;

/* Whether a kernel can be enqueued: no error yet, a grid that is not empty, and its dynamic shared
 * memory, above 48 KiB too. */
template <typename... P>
bool cuda_can_launch(di_stream *s, const char *what, dim3 grid, size_t shared,
                     void (*kernel)(P...)) {
    if (s->failed != cudaSuccess || grid.x == 0 || grid.y == 0 || grid.z == 0) return false;
    return shared <= 48 * 1024 ||
           cuda_check(s,
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared)),
                      what);
}

/* Whether the kernel that is enqueued next may begin early. Not so behind a wait for the other
 * stream: blocks that only wait would take the room of those that they wait for (1 to 3 % of a step of
 * one row). */
static inline int cuda_may_be_early(di_stream *s) {
    bool late = s->late;
    s->late = false;
    return !late;
}
/* The next kernel, which is small, may all the same: await_kernels_before waits for all that a kernel
 * depends on, of both streams, and before that it reads nothing but weights. */
static inline void cuda_early_behind_wait(di_stream *s) { s->late = false; }

/* Every kernel asks for the same split of a processor's memory, as much as there is shared: a
 * processor changes its split only when it is empty, so that a kernel of another split would neither
 * begin beside the one before it nor let the next begin beside itself. */
static inline cudaLaunchAttribute cuda_split(void) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attribute.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    return attribute;
}

/* `early`: the kernel may begin while the one before it runs. */
template <typename... P, typename... Q>
void cuda_enqueue(di_stream *s, const char *what, dim3 grid, uint32_t threads, size_t shared,
                  bool early, void (*kernel)(P...), const Q &...args) {
    cudaLaunchAttribute attributes[2] = {cuda_split()};
    cudaLaunchConfig_t config = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = early;
    config.gridDim = grid, config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared, config.stream = s->stream;
    config.attrs = attributes, config.numAttrs = early ? 2 : 1;
    cuda_check(s, cudaLaunchKernelEx(&config, kernel, args...), what);
}

/* Enqueues a kernel, which begins when all before it are done; an empty grid is nothing. */
template <typename... P, typename... Q>
void cuda_launch(di_stream *s, const char *what, dim3 grid, uint32_t threads, size_t shared,
                 void (*kernel)(P...), const Q &...args) {
    if (!cuda_can_launch(s, what, grid, shared, kernel)) return;
    s->late = false;
    cuda_enqueue(s, what, grid, threads, shared, false, kernel, args...);
}

/* The same for a kernel that may begin while the one before it runs, if that lets it: all its threads
 * call await_kernels_before (device.cuh). */
template <typename... P, typename... Q>
void cuda_launch_early(di_stream *s, const char *what, dim3 grid, uint32_t threads, size_t shared,
                       void (*kernel)(P...), const Q &...args) {
    if (!cuda_can_launch(s, what, grid, shared, kernel)) return;
    cuda_enqueue(s, what, grid, threads, shared, cuda_may_be_early(s), kernel, args...);
}

/* The same for a template of A: CUDA_LAUNCH_A(s, "what", grid, threads, shared, kernel, args...)
 * calls kernel<__nv_bfloat16> or kernel<float>. */
#define CUDA_LAUNCH_BY(launch, s, what, grid, threads, shared, kernel, ...)                        \
    do {                                                                                           \
        if ((s)->release)                                                                          \
            launch(s, what, grid, threads, shared, kernel<__nv_bfloat16>, __VA_ARGS__);            \
        else                                                                                       \
            launch(s, what, grid, threads, shared, kernel<float>, __VA_ARGS__);                    \
    } while (0)
#define CUDA_LAUNCH_A(...) CUDA_LAUNCH_BY(cuda_launch, __VA_ARGS__)
#define CUDA_LAUNCH_EARLY_A(...) CUDA_LAUNCH_BY(cuda_launch_early, __VA_ARGS__)

static inline uint64_t cuda_a_bytes(const di_stream *s) { return s->release ? 2 : 4; }
/* Of rows of A. */
static inline uint64_t cuda_rows_bytes(const di_stream *s, int32_t n_rows, int64_t width) {
    return static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(width) * cuda_a_bytes(s);
}
static inline di_ptr cuda_ptr(const void *memory) {
    return di_ptr{reinterpret_cast<uint64_t>(memory)};
}
static inline di_ptr cuda_take_a(di_stream *s, int64_t n) { /* n values of A */
    return cuda_ptr(cuda_take_bytes(s, static_cast<uint64_t>(n) * cuda_a_bytes(s)));
}
static inline di_ptr cuda_take_f(di_stream *s, int64_t n) {
    return cuda_ptr(cuda_take_bytes(s, static_cast<uint64_t>(n) * 4));
}

/* ---- cuda_ops_product.cu ---- */

/* out[t] = w x[t]; x in memory as A. */
typedef struct cuda_product {
    di_matrix w;
    int32_t n_rows;
    int32_t groups; /* 1, or as di_linear_args */
    di_ptr x;       /* A, row t at element t * x_stride */
    int64_t x_stride;
    di_ptr out; /* A, or F when to_f; row t at element t * out_stride */
    int64_t out_stride;
    bool to_f;
} cuda_product;
void cuda_run_product(di_stream *s, const cuda_product *product);

/* n_rows contiguous rows of `width` A as a quantised matrix reads them: x itself under `float`, else
 * a copy in the workspace that went through q8 (exact in bf16). width a multiple of 32. */
di_ptr cuda_quantized(di_stream *s, di_ptr x, int64_t n_rows, int64_t width);

/* The usual case: contiguous rows, all of w, quantised input if `quantize`. */
void cuda_linear_rows(di_stream *s, const di_matrix *w, di_ptr x, int32_t n_rows, bool quantize,
                      bool to_f, di_ptr out);
/* Block g of w's rows times the g-th K values of x, see di_linear_args. groups >= 1. */
void cuda_linear_groups(di_stream *s, const di_matrix *w, int32_t groups, di_ptr x, int32_t n_rows,
                        bool quantize, bool to_f, di_ptr out);

/* ---- cuda_ops_parts.cu ---- */

/* out[t] = rms_norm(x[t], weight), rows of weight.n; may be in place. */
void cuda_norm_rows(di_stream *s, di_ptr x, int64_t n_rows, di_vector weight, double eps,
                    di_ptr out);

/* ---- cuda_transfer.cu ---- */

di_status cuda_transfer_create(di_stream *s, di_error *error);
void cuda_transfer_destroy(di_stream *s);
void cuda_upload(di_stream *s, di_ptr to, const void *host, uint64_t size);
void cuda_download(di_stream *s, void *host, di_ptr from, uint64_t size);
void cuda_copy(di_stream *s, di_ptr to, di_ptr from, uint64_t size);
void cuda_fill(di_stream *s, di_ptr to, int byte, uint64_t size);
void cuda_stamp(di_stream *s, double *host);
void cuda_call(di_stream *s, void (*run)(void *user), void *user);
uint64_t cuda_mark(di_stream *s);
/* Waits for all that was enqueued, and hands it out: nothing is on its way to the host any more. */
void cuda_drain(di_stream *s);
di_status cuda_wait(di_stream *s, uint64_t mark, di_error *error);

/* ---- cuda_pack.cu: matrices as the matrix units read them (mma_weights.cuh) ---- */

/* What a packed matrix takes; 0: operations read it as it is stored. */
uint64_t cuda_packed_bytes(const di_stream *s, const di_host_matrix *m);
/* Enqueues: the matrix to `to`, cuda_packed_bytes() of it, by way of `staging`, DI_BIND_STAGING_BYTES;
 * both are 16-byte aligned. Host memory may be reused when it returns. Sets *s->far. */
void cuda_pack(di_stream *s, const di_host_matrix *m, uint8_t *staging, uint8_t *to);
/* Whether cuda_pack can: groups of whole 8 rows, and a block's 128 rows go into the staging. */
bool cuda_can_pack(const di_host_matrix *m);

/* ---- cuda_graph.cu: record and recorded of the backend ---- */

di_status cuda_graphs_create(di_stream *s, di_error *error);
void cuda_graphs_destroy(di_stream *s);
void cuda_graphs_forget(di_stream *s); /* the stream must be idle */
bool cuda_record(di_stream *s, const uint64_t key[2]);
void cuda_recorded(di_stream *s);

/* ---- The operations, one declaration each (cuda_ops_*.cu) ---- */

#define CUDA_OP_DECLARE(name) void cuda_op_##name(di_stream *s, const di_##name##_args *args);
DI_EACH_OP(CUDA_OP_DECLARE)
#undef CUDA_OP_DECLARE

#endif
