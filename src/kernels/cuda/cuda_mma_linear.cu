/* Products with one stored matrix on the matrix units. */
#include "kernels/cuda/mma_linear.cuh"
#include "kernels/cuda/mma_prepare.cuh"

/* Small blocks: with one row all of them are on different processors. */
static constexpr int PREPARE_THREADS = 128;

static __global__ void prepare_kernel(mma_input in) {
    begin_early(); /* the product may ask for its weights */
    mma_prepare_chunk(in, static_cast<int32_t>(blockIdx.x * PREPARE_THREADS + threadIdx.x));
}

template <di_dtype W> static __global__ void prepare_wide_kernel(mma_input in) {
    begin_early();
    int32_t part = static_cast<int32_t>(blockIdx.x * WIDE_PREPARE_WARPS) + warp_id();
    if (part * mma_format<W>::GROUP >= mma_padded(in.k)) return;
    int32_t octets = static_cast<int32_t>(mma_rows8(in.n_rows) / 8);
    int32_t octet = grid_row(), group = octet / octets;
    if (octet >= in.order.octets) return;
    int32_t row = octet % octets * 8 + lane_id() / 4;
    mma_prepare_group<W>(in, row < in.n_rows ? row : -1, group, part, octet);
}
template <di_dtype W> static void prepare_wide(di_stream *s, const mma_input &in) {
    cuda_launch_early(s, "prepare", mma_wide_grid<W>(mma_padded(in.k), in.order.octets),
                      WIDE_PREPARE_WARPS * WARP, 0, prepare_wide_kernel<W>, in);
}

mma_ready mma_room(di_stream *s, di_dtype dtype, int32_t n_rows, int32_t groups, int32_t k) {
    return mma_ready{cuda_take<uint8_t>(s, mma_input_bytes(n_rows, groups, k)),
                     n_rows,
                     groups,
                     k,
                     dtype,
                     mma_is_wide(n_rows),
                     0};
}

/* Whether narrow products read rows as they lie (mma_linear_stored). */
static bool read_as_stored(di_dtype dtype, di_ptr x, int64_t stride, int32_t n_rows, int32_t k,
                           bool quantize) {
    return !quantize && dtype != DI_FP4_PAIR && !mma_is_wide(n_rows) && k % MMA_K == 0 &&
           stride > 0 && stride % 8 == 0 && stride < INT32_MAX / MMA_NARROW_ROWS &&
           x.address % 16 == 0;
}

static bool is_kept(const di_stream *s, di_ptr x, int32_t n_rows, int32_t k) {
    return !cuda_none(x) && s->kept.x.address == x.address && s->kept.n_rows == n_rows &&
           s->kept.width == k;
}

uint8_t *mma_kept(di_stream *s, di_dtype dtype, di_ptr x, int32_t n_rows, int32_t k) {
    if (!mma_reads_kept(dtype) || mma_is_wide(n_rows) || !is_kept(s, x, n_rows, k)) return NULL;
    return mma_kept_place(s, dtype);
}

mma_codes mma_kept_codes(di_stream *s, di_dtype dtype, di_ptr x, int32_t n_rows, int32_t k) {
    if (!mma_reads_kept(dtype) || !mma_is_wide(n_rows) || !is_kept(s, x, n_rows, k))
        return mma_codes{NULL, NULL};
    return mma_codes_place(s, n_rows, k);
}

mma_ready mma_prepare(di_stream *s, di_dtype dtype, di_ptr x, int64_t stride, int32_t n_rows,
                      int32_t groups, int32_t k, bool quantize) {
    if (read_as_stored(dtype, x, stride, n_rows, k, quantize))
        return mma_ready{cuda_at<uint8_t>(x), n_rows, groups, k, dtype, false, stride};
    if (quantize && groups == 1 && stride == k) {
        uint8_t *kept = mma_kept(s, dtype, x, n_rows, k);
        if (kept != NULL) return mma_ready{kept, n_rows, groups, k, dtype, false, 0};
    }
    mma_ready ready = mma_room(s, dtype, n_rows, groups, k);
    mma_order order = mma_order_of(dtype, ready.wide, mma_rows8(n_rows) * groups);
    mma_input in = {x, stride, n_rows, groups, k, quantize, order, ready.data, {}};
    if (quantize && groups == 1 && stride == k) in.codes = mma_kept_codes(s, dtype, x, n_rows, k);
    CUDA_REQUIRE(!quantize || k % 32 == 0);
    if (ready.wide) {
        if (dtype == DI_FP4_PAIR)
            prepare_wide<DI_FP4_PAIR>(s, in);
        else if (dtype == DI_F8_E4M3)
            prepare_wide<DI_F8_E4M3>(s, in);
        else
            prepare_wide<DI_BF16>(s, in);
        return ready;
    }
    CUDA_REQUIRE(mma_input_chunks(in) < INT32_MAX - PREPARE_THREADS);
    cuda_launch_early(s, "prepare", cuda_blocks(mma_input_chunks(in), PREPARE_THREADS),
                      PREPARE_THREADS, 0, prepare_kernel, in);
    return ready;
}

/* A file for each format. `low`: where quantised rows go, or NULL. */
static void run_format(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x,
                       const mma_ready *low) {
    if (x->dtype == DI_FP4_PAIR)
        mma_run_fp4(s, p, n, x, low);
    else if (x->dtype == DI_F8_E4M3)
        mma_run_fp8(s, p, n, x, low);
    else
        mma_run_bf16(s, p, n, x, low);
}

void mma_run_linear(di_stream *s, const cuda_product *p, int32_t n, const mma_ready *x) {
    CUDA_REQUIRE(n >= 1 && n <= MMA_MATRICES && (n == 1 || p->groups == 1));
    for (int32_t i = 0; i < n; i++) {
        CUDA_REQUIRE(p[i].groups >= 1 && p[i].w.n % p[i].groups == 0 && p[i].w.n > 0);
        CUDA_REQUIRE(mma_takes(s, p[i].w.dtype));
        CUDA_REQUIRE(x->dtype == p[i].w.dtype && x->k == p[i].w.k && x->n_rows == p[i].n_rows &&
                     x->groups == p[i].groups);
        CUDA_REQUIRE(p[i].w.dtype != DI_FP4_PAIR || p[i].w.k % 32 == 0);
    }
    run_format(s, p, n, x, NULL);
}

/* Whether a product of so many rows gives them ready for that with w (mma_linear_made). */
static bool makes_ready(const di_stream *s, const cuda_product *p, const di_matrix *w) {
    constexpr di_dtype W = DI_F8_E4M3;
    const mma_ready nothing = {};
    return p->w.dtype == W && w->dtype == W && p->n_rows > MMA_WIDEST_ROWS &&
           !mma_linear_is_split<W, 128>(s, mma_linear_job<W>(s, p, 1, &nothing));
}

bool mma_run_low(di_stream *s, const cuda_product *p, const di_matrix *w, mma_ready *ready) {
    if (!mma_takes(s, p->w.dtype) || !mma_takes(s, w->dtype) ||
        !(read_as_stored(p->w.dtype, p->x, p->x_stride, p->n_rows, p->w.k, false) ||
          makes_ready(s, p, w)) ||
        p->w.n % (32 * p->groups) != 0 || w->k != p->w.n || w->k % MMA_K != 0)
        return false;
    mma_ready x =
        mma_prepare(s, p->w.dtype, p->x, p->x_stride, p->n_rows, p->groups, p->w.k, false);
    *ready = mma_room(s, w->dtype, p->n_rows, 1, w->k);
    run_format(s, p, 1, &x, ready);
    return true;
}
