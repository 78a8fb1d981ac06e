/* Routed and shared experts: gate, up and the quantised h in one kernel, then w2. */
#include "kernels/cuda/mma_picks.cuh"
#include "kernels/cuda/mma_run.cuh"

/* Picks an expert has on average from which wide tiles are used. */
static constexpr int64_t WIDE_PICKS = 24;

template <di_dtype W, int NT>
static void run_in(di_stream *s, const mma_expert_in<W> &job, bool wide, int64_t tiles) {
    using narrow = mma_narrow<mma_expert_in<W>, 2, NT>;
    if (wide)
        mma_launch_wide(s, "experts", job, tiles * cuda_blocks(job.inner, WIDE_HEIGHT / 2));
    else
        mma_launch_narrow<mma_expert_in<W>, 2, NT>(s, "experts", job,
                                                   tiles * cuda_blocks(job.inner, narrow::HEIGHT));
}

template <int NT>
static void run_out(di_stream *s, const mma_expert_out<DI_FP4_PAIR> &job, bool wide,
                    int64_t tiles) {
    using narrow = mma_narrow<mma_expert_out<DI_FP4_PAIR>, 2, NT>;
    if (wide)
        mma_launch_wide(s, "experts", job, tiles * cuda_blocks(job.width, WIDE_HEIGHT));
    else
        mma_launch_narrow<mma_expert_out<DI_FP4_PAIR>, 2, NT>(s, "experts", job,
                                                              tiles * cuda_blocks(job.width,
                                                                                  narrow::HEIGHT));
}

/* Room for h, which the first kernel writes as the second reads it, padding apart. */
static uint8_t *take_h(di_stream *s, int64_t n_rows, int32_t inner) {
    uint64_t bytes = mma_input_bytes(n_rows, 1, inner);
    uint8_t *h = cuda_take<uint8_t>(s, bytes);
    if (inner % MMA_K != 0) cuda_fill(s, cuda_ptr(h), 0, bytes);
    return h;
}

void mma_run_experts(di_stream *s, const di_experts_args *args) {
    int64_t picks = static_cast<int64_t>(args->n_rows) * args->top_k;
    bool wide = picks > WIDE_PICKS * args->n_experts;
    int32_t columns = wide ? WIDE_COLUMNS : args->n_rows <= 8 ? 8 : 32;
    mma_order order = mma_order_of(DI_FP4_PAIR, wide);
    mma_input in = {args->u, args->width, args->n_rows, 1, args->width, true, order, NULL};
    in.out = cuda_take<uint8_t>(s, mma_input_bytes(args->n_rows, 1, args->width));
    pick_lists lists = mma_sort_picks(s, args, columns, &in);

    mma_expert_in<DI_FP4_PAIR> first = {};
    first.rows = mma_rows_of(DI_FP4_PAIR, args->width);
    first.experts = cuda_at<const di_expert>(args->experts), first.x = in.out;
    first.inner = args->inner, first.n_rows = args->n_rows, first.top_k = args->top_k;
    first.lists = lists, first.weights = cuda_at<const float>(args->weights);
    first.limit = args->limit, first.h_order = order;
    first.h = take_h(s, picks, args->inner);
    mma_expert_out<DI_FP4_PAIR> second = {};
    second.rows = mma_rows_of(DI_FP4_PAIR, args->inner);
    second.experts = first.experts, second.x = first.h, second.width = args->width;
    second.lists = lists, second.out = cuda_at<__nv_bfloat16>(args->rows);

    int64_t tiles = mma_most_tiles(args, columns);
    if (columns == 8) {
        run_in<DI_FP4_PAIR, 1>(s, first, wide, tiles);
        run_out<1>(s, second, wide, tiles);
    } else {
        run_in<DI_FP4_PAIR, 4>(s, first, wide, tiles);
        run_out<4>(s, second, wide, tiles);
    }
}

void mma_run_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    int32_t inner = args->w1.n;
    mma_ready x =
        mma_prepare(s, DI_F8_E4M3, args->u, args->w1.k, args->n_rows, 1, args->w1.k, true);
    mma_expert_in<DI_F8_E4M3> first = {};
    first.rows = mma_rows_of(DI_F8_E4M3, args->w1.k);
    first.data[0] = cuda_at<const uint8_t>(args->w1.data);
    first.data[1] = cuda_at<const uint8_t>(args->w3.data);
    first.scale[0] = cuda_at<const uint8_t>(args->w1.scale);
    first.scale[1] = cuda_at<const uint8_t>(args->w3.scale);
    first.x = x.data, first.inner = inner, first.n_rows = args->n_rows, first.top_k = 1;
    first.limit = args->limit, first.h_order = mma_order_of(DI_F8_E4M3, x.wide);
    first.h = take_h(s, args->n_rows, inner);
    if (args->n_rows <= 8)
        run_in<DI_F8_E4M3, 1>(s, first, false, cuda_blocks(args->n_rows, 8));
    else
        run_in<DI_F8_E4M3, 4>(s, first, x.wide,
                              cuda_blocks(args->n_rows, x.wide ? WIDE_COLUMNS : 32));
    cuda_product p = {};
    p.w = args->w2, p.n_rows = args->n_rows, p.n = args->w2.n, p.groups = 1;
    p.out = args->out, p.out_stride = args->w2.n;
    mma_ready h = {first.h, args->n_rows, 1, inner, DI_F8_E4M3, x.wide};
    mma_run_linear(s, &p, &h);
}
