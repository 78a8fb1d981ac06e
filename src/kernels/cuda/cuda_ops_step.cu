/* The rows of a step, lengths, history and the window ring. */
#include "kernels/cuda/device.cuh"

static constexpr int ROWS = 256;

static __global__ void step_begin_kernel(di_step_begin_args args) {
    begin_early();
    const di_batch &b = args.batch;
    int t = static_cast<int>(blockIdx.x * ROWS + threadIdx.x);
    if (t >= b.n_rows) return;
    di_row row = cuda_at<const di_row>(b.rows)[t];
    bool live = row.offset < cuda_at<const int32_t>(b.n_valid)[row.slot];
    cuda_at<int32_t>(b.pos)[t] =
        live ? cuda_at<const int32_t>(b.length)[row.slot] + row.offset : -1;
    cuda_at<int32_t>(b.first)[t] = t - row.offset; /* rows of a slot are contiguous */
    cuda_at<int32_t>(b.token)[t] =
        row.token == DI_TOKEN_NEXT ? cuda_at<const int32_t>(b.next_token)[row.slot] : row.token;
}

void cuda_op_step_begin(di_stream *s, const di_step_begin_args *args) {
    cuda_begin(s);
    cuda_launch_early(s, "step_begin", cuda_blocks(args->batch.n_rows, ROWS), ROWS, 0,
                      step_begin_kernel, *args);
}

/* Whether row t stays: its position is the step's, and no draft before it was rejected. */
static __device__ bool stays(const di_batch &b, int t, di_row row) {
    return cuda_at<const int32_t>(b.pos)[t] >= 0 &&
           row.offset < cuda_at<const int32_t>(b.n_valid)[row.slot];
}

/* One block for all rows: n_valid is read by all before any thread resets it. */
static __global__ void step_end_kernel(di_step_end_args args) {
    begin_early();
    const di_batch &b = args.batch;
    const di_row *rows = cuda_at<const di_row>(b.rows);
    for (int t = static_cast<int>(threadIdx.x); t < b.n_rows; t += static_cast<int>(blockDim.x)) {
        di_row row = rows[t];
        if (!stays(b, t, row)) continue;
        /* The place in the history is this row's unless a later one of the step wants it too. */
        int64_t later = static_cast<int64_t>(t) + args.history_slots;
        bool over = later < b.n_rows && rows[later].slot == row.slot &&
                    stays(b, static_cast<int>(later), rows[later]);
        int32_t place = cuda_at<const int32_t>(b.pos)[t] % args.history_slots;
        if (!over)
            cuda_at<int32_t>(
                args.history)[static_cast<int64_t>(row.slot) * args.history_slots + place] =
                cuda_at<const int32_t>(b.token)[t];
        atomicAdd(cuda_at<int32_t>(b.length) + row.slot, 1);
    }
    __syncthreads();
    for (int t = static_cast<int>(threadIdx.x); t < b.n_rows; t += static_cast<int>(blockDim.x))
        cuda_at<int32_t>(b.n_valid)[rows[t].slot] = INT32_MAX;
}

void cuda_op_step_end(di_stream *s, const di_step_end_args *args) {
    cuda_begin(s);
    uint32_t any = args->batch.n_rows > 0;
    cuda_launch_early(s, "step_end", any, 1024, 0, step_end_kernel, *args);
}

static __global__ void rewind_kernel(di_rewind_args args) {
    begin_early();
    int i = static_cast<int>(blockIdx.x * ROWS + threadIdx.x);
    if (i < args.n_slots) cuda_at<int32_t>(args.length)[i] -= cuda_at<const int32_t>(args.count)[i];
}

void cuda_op_rewind(di_stream *s, const di_rewind_args *args) {
    cuda_begin(s);
    cuda_launch_early(s, "rewind", cuda_blocks(args->n_slots, ROWS), ROWS, 0, rewind_kernel, *args);
}

/* A block a row; the ring's place is this row's unless a later row of the step wants it too. */
static __global__ void window_store_kernel(di_window_store_args args) {
    begin_early();
    const di_batch &b = args.batch;
    const di_row *rows = cuda_at<const di_row>(b.rows);
    const int32_t *pos = cuda_at<const int32_t>(b.pos);
    int64_t t = blockIdx.x, d = args.head_dim, later = t + args.ring.ring_slots;
    int32_t slot = rows[t].slot;
    if (pos[t] < 0) return;
    if (later < b.n_rows && rows[later].slot == slot && pos[later] >= 0 &&
        (pos[later] - pos[t]) % args.ring.ring_slots == 0)
        return;
    int64_t place =
        static_cast<int64_t>(slot) * args.ring.ring_slots + pos[t] % args.ring.ring_slots;
    for (int64_t i = threadIdx.x; i < d; i += blockDim.x)
        cuda_at<uint8_t>(args.ring.codes)[place * d + i] =
            cuda_at<const uint8_t>(args.kv_codes)[t * d + i];
    for (int64_t i = threadIdx.x; i < d / 32; i += blockDim.x)
        cuda_at<uint8_t>(args.ring.scales)[place * (d / 32) + i] =
            cuda_at<const uint8_t>(args.kv_scales)[t * (d / 32) + i];
}

void cuda_op_window_store(di_stream *s, const di_window_store_args *args) {
    cuda_begin_beside(s, false);
    int32_t n = args->batch.n_rows;
    bool aside = n > 0 && n <= CUDA_BESIDE_ROWS && cuda_step_aside(s, 0);
    cuda_launch_early(s, "window_store", static_cast<uint32_t>(args->batch.n_rows), 128, 0,
                      window_store_kernel, *args);
    if (!aside) return;
    cuda_step_back(s);
    s->beside.store = true;
}
