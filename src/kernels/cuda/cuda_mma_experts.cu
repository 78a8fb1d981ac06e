/* Routed and shared experts: gate, up and the quantised h in one kernel, then w2. */
#include "kernels/cuda/mma_linear.cuh"
#include "kernels/cuda/mma_picks.cuh"

/* Tiles of the shared expert, which is FP8, are split where they do not fill the device. */
template <typename Job, int N> static void run_wide(di_stream *s, const Job &job, int64_t tiles) {
    if constexpr (Job::FORMAT == DI_F8_E4M3)
        if (mma_is_split<mma_wide<Job, N, true>::BLOCKS>(s, job.rows.k, tiles)) {
            mma_launch_split<Job, N>(s, "experts", job, tiles);
            return;
        }
    mma_launch_wide<Job, N>(s, "experts", job, tiles);
}

/* `height`: of the product, whose tiles have `columns` each. */
template <typename Job>
static void run_job(di_stream *s, const Job &job, int64_t tiles, int32_t columns, int32_t height) {
    int64_t wide = tiles * cuda_blocks(height, WIDE_HEIGHT / Job::SIDES);
    constexpr int MT = 4 / Job::SIDES; /* 64 rows of weights a tile, of both sides */
    int64_t narrow = tiles * cuda_blocks(height, 16 * MT);
    if constexpr (Job::FORMAT == DI_FP4_PAIR) {
        if (columns == 8) mma_launch_narrow<Job, MT>(s, "experts", job, narrow);
    }
    if constexpr (!Job::PICKS) {
        if (columns == 32)
            run_wide<Job, 32>(s, job, wide);
        else if (columns == 64)
            run_wide<Job, 64>(s, job, wide);
        else if (columns == 128)
            run_wide<Job, 128>(s, job, wide);
    }
}

/* Room for h, which the first kernel writes as the second reads it, padding apart. */
static uint8_t *take_h(di_stream *s, int64_t n_rows, int32_t inner) {
    uint64_t bytes = mma_input_bytes(n_rows, 1, inner);
    uint8_t *h = cuda_take<uint8_t>(s, bytes);
    if (inner % MMA_K != 0) cuda_fill(s, cuda_ptr(h), 0, bytes);
    return h;
}

/* What the products read: rows that are kept, or made ready here; and the lists, whose columns a tile
 * has. With kept rows and few picks every block makes its lists: they have no tiles here. */
static const uint8_t *ready_picks(di_stream *s, const di_experts_args *args, int32_t columns,
                                  int64_t slots, mma_order order, pick_lists *lists) {
    bool wide = order.wide;
    mma_input in = {args->u, args->width, args->n_rows, 1, args->width, true, order, NULL, {}};
    if (wide) in.codes = mma_kept_codes(s, DI_FP4_PAIR, args->u, args->n_rows, args->width);
    const uint8_t *kept =
        wide ? NULL : mma_kept(s, DI_FP4_PAIR, args->u, args->n_rows, args->width);
    if (kept != NULL && slots <= MMA_BLOCK_PICKS) {
        cuda_begin_beside(s, false);
        *lists = pick_lists{columns, 1};
        return kept;
    }
    cuda_begin(s);
    if (kept == NULL)
        in.out =
            cuda_take<uint8_t>(s, mma_input_bytes(wide ? slots : args->n_rows, 1, args->width));
    *lists = mma_sort_picks(s, args, columns, wide, wide || kept != NULL ? NULL : &in);
    if (wide) mma_gather_rows(s, &in, lists, slots, args->top_k);
    return kept != NULL ? kept : in.out;
}

/* OWN: every block makes its lists. */
template <bool OWN>
static void run_experts(di_stream *s, const di_experts_args *args, int32_t columns, int64_t slots,
                        mma_order order, const uint8_t *x, const pick_lists &lists) {
    mma_expert_in<DI_FP4_PAIR, OWN> first = {};
    first.rows = mma_rows_of(s, DI_FP4_PAIR, args->width);
    first.experts = cuda_at<const di_expert>(args->experts), first.x = x;
    first.inner = args->inner, first.n_rows = args->n_rows, first.top_k = args->top_k;
    first.by_slot = order.wide, first.from = mma_picks_of(args), first.lists = lists;
    first.weights = cuda_at<const float>(args->weights);
    first.limit = args->limit, first.h_order = order;
    first.h = take_h(s, slots, args->inner);
    mma_expert_out<DI_FP4_PAIR, OWN> second = {};
    second.rows = mma_rows_of(s, DI_FP4_PAIR, args->inner);
    second.experts = first.experts, second.x = first.h, second.width = args->width;
    second.octets = order.octets;
    second.from = first.from, second.lists = lists;
    second.out = cuda_at<__nv_bfloat16>(args->rows);

    int64_t tiles = mma_most_tiles(args, columns);
    run_job(s, first, tiles, columns, args->inner);
    run_job(s, second, tiles, columns, args->width);
}

void mma_run_experts(di_stream *s, const di_experts_args *args) {
    uint64_t picks = static_cast<uint64_t>(args->n_rows) * static_cast<uint64_t>(args->top_k);
    int32_t columns = mma_expert_columns(picks, args->n_experts);
    bool wide = columns > 8;
    int64_t slots = static_cast<int64_t>(wide ? mma_wide_slots(picks, args->n_experts) : picks);
    mma_order order = mma_order_of(DI_FP4_PAIR, wide, slots);
    pick_lists lists;
    const uint8_t *x = ready_picks(s, args, columns, slots, order, &lists);
    if (lists.tiles == NULL)
        run_experts<true>(s, args, columns, slots, order, x, lists);
    else
        run_experts<false>(s, args, columns, slots, order, x, lists);
}

/* Few rows: gate and up of a tile are a cluster's. */
static void run_shared_in(di_stream *s, const di_shared_expert_args *args, const mma_ready &x,
                          mma_order order, uint8_t *h) {
    constexpr di_dtype W = DI_F8_E4M3;
    cuda_product p[2] = {};
    for (int i = 0; i < 2; i++)
        p[i].w = i == 0 ? args->w1 : args->w3, p[i].n_rows = args->n_rows, p[i].groups = 1;
    mma_linear_gated<W> job = {mma_linear_job<W>(s, p, 2, &x), args->limit, order, h,
                               mma_padded(args->w1.n)};
    int64_t tiles = job.count(32, 8);
    int32_t blocks = mma_best_spread(s, tiles, mma_parts(job.rows.k), MMA_SPREAD / 2);
    mma_launch_spread<mma_linear_gated<W>, 2>(s, "experts", job, tiles / 2, 2 * blocks);
}

void mma_run_shared_expert(di_stream *s, const di_shared_expert_args *args) {
    int32_t inner = args->w1.n;
    mma_ready x =
        mma_prepare(s, DI_F8_E4M3, args->u, args->w1.k, args->n_rows, 1, args->w1.k, true);
    mma_ready h = {take_h(s, args->n_rows, inner), args->n_rows, 1, inner, DI_F8_E4M3, x.wide};
    mma_order order = mma_order_of(DI_F8_E4M3, x.wide, mma_rows8(args->n_rows));
    if (!x.wide) {
        run_shared_in(s, args, x, order, h.data);
    } else {
        mma_expert_in<DI_F8_E4M3> first = {};
        first.rows = mma_rows_of(s, DI_F8_E4M3, args->w1.k);
        first.data[0] = cuda_at<const uint8_t>(args->w1.data);
        first.data[1] = cuda_at<const uint8_t>(args->w3.data);
        first.x = x.data, first.inner = inner, first.n_rows = args->n_rows, first.top_k = 1;
        first.limit = args->limit, first.h_order = order, first.h = h.data;
        int32_t columns = args->n_rows <= 32 ? 32 : args->n_rows <= 64 ? 64 : 128;
        run_job(s, first, cuda_blocks(args->n_rows, columns), columns, inner);
    }
    cuda_product p = {};
    p.w = args->w2, p.n_rows = args->n_rows, p.groups = 1;
    p.out = args->out, p.out_stride = args->w2.n;
    mma_run_linear(s, &p, 1, &h);
}
