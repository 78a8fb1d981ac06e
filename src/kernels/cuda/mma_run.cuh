/* Launches of mma_narrow.cuh and mma_wide.cuh.
 *
 * They are launched to begin early, while the kernel before runs, if that says so: weights that no
 * kernel writes are on their way by the time that activations are ready.
 */
#ifndef DI_KERNELS_CUDA_MMA_RUN_CUH
#define DI_KERNELS_CUDA_MMA_RUN_CUH

#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/mma_narrow.cuh"
#include "kernels/cuda/mma_wide.cuh"

/* `cluster`: blocks along y that make one. */
template <typename Job>
static void mma_launch(di_stream *s, const char *what, dim3 grid, uint32_t threads, size_t shared,
                       uint32_t cluster, void (*kernel)(Job), const Job &job) {
    cudaLaunchAttribute attributes[3] = {cuda_split()};
    cudaLaunchConfig_t config = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[2].id = cudaLaunchAttributeClusterDimension;
    attributes[2].val.clusterDim.x = attributes[2].val.clusterDim.z = 1;
    attributes[2].val.clusterDim.y = cluster;
    config.gridDim = grid, config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared, config.stream = s->stream;
    config.attrs = attributes, config.numAttrs = cluster > 1 ? 3 : 2;
    if (s->failed != cudaSuccess) return;
    if (!cuda_check(s,
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared)),
                    what))
        return;
    attributes[1].val.programmaticStreamSerializationAllowed = cuda_may_be_early(s);
    cuda_check(s, cudaLaunchKernelEx(&config, kernel, job), what);
}

/* Warps of narrow blocks that a processor has. */
static constexpr int NARROW_WARPS = 18;

/* Blocks stay until all tiles are done: as many as the device holds, at most `items`. */
template <typename Job, int MT>
static void mma_launch_narrow(di_stream *s, const char *what, const Job &job, int64_t items) {
    using narrow = mma_narrow<Job, MT>;
    static int resident[MMA_PARTS + 1]; /* blocks of so many warps that a processor holds */
    int parts = mma_parts(job.rows.k), &blocks = resident[parts];
    size_t shared = narrow::bytes(parts, parts);
    auto kernel = mma_narrow_kernel<Job, MT, false>;
    if (items <= 0 || s->failed != cudaSuccess) return;
    if (blocks == 0) {
        cuda_check(s,
                   cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(shared)),
                   what);
        cuda_check(s,
                   cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, parts * WARP,
                                                                 shared),
                   what);
        /* More warps would only queue for their copies. */
        if (blocks > NARROW_WARPS / parts) blocks = NARROW_WARPS / parts;
        if (blocks < 1) blocks = 1;
    }
    int64_t most = static_cast<int64_t>(blocks) * s->n_processors;
    mma_launch(s, what, dim3(static_cast<uint32_t>(items < most ? items : most)),
               static_cast<uint32_t>(parts * WARP), shared, 1, kernel, job);
}

/* What a processor has at most of the parts of so many tiles, if `blocks` blocks share one's. */
static inline int64_t mma_share(const di_stream *s, int64_t tiles, int32_t parts, int32_t blocks) {
    return static_cast<int64_t>(cuda_blocks(tiles * blocks, s->n_processors)) * (parts / blocks);
}
/* Into how many blocks, `most` at most, to spread the parts of each of so many tiles, so that this
 * is least. */
static inline int32_t mma_best_spread(const di_stream *s, int64_t tiles, int32_t parts,
                                      int32_t most) {
    int32_t best = 1;
    for (int32_t blocks = 2; blocks <= most; blocks++)
        if (parts % blocks == 0 &&
            mma_share(s, tiles, parts, blocks) < mma_share(s, tiles, parts, best))
            best = blocks;
    return best;
}
/* Blocks of a cluster: each has room for all sums, and of eight not all find a place at once. */
static constexpr int32_t MMA_SPREAD = 4;
/* A cluster of so many blocks for each of so many tiles, or pairs of tiles (Job::PAIRED). */
template <typename Job, int MT>
static void mma_launch_spread(di_stream *s, const char *what, const Job &job, int64_t tiles,
                              int32_t blocks) {
    int parts = mma_parts(job.rows.k) * (Job::PAIRED ? 2 : 1), warps = parts / blocks;
    CUDA_REQUIRE(parts % blocks == 0 && (!Job::PAIRED || blocks % 2 == 0));
    if (tiles <= 0) return;
    mma_launch(s, what, dim3(static_cast<uint32_t>(tiles), static_cast<uint32_t>(blocks)),
               static_cast<uint32_t>(warps * WARP), mma_narrow<Job, MT, true>::bytes(warps, parts),
               static_cast<uint32_t>(blocks), mma_narrow_kernel<Job, MT, true>, job);
}

template <typename Job, int N>
static void mma_launch_wide(di_stream *s, const char *what, const Job &job, int64_t items) {
    int64_t most = static_cast<int64_t>(mma_wide<Job, N, false>::BLOCKS) * s->n_processors;
    if (items <= 0) return;
    mma_launch(s, what, dim3(static_cast<uint32_t>(items < most ? items : most)), WIDE_THREADS,
               mma_wide<Job, N, false>::BYTES, 1, mma_wide_kernel<Job, N, false>, job);
}

/* Whether tiles had better be split, so that more of the device takes part: in units of MMA_K. What
 * a block has to do besides costs some units more, measured. BLOCKS: on a processor, of split ones. */
template <int BLOCKS>
static inline bool mma_is_split(const di_stream *s, int32_t k, int64_t items) {
    constexpr int64_t BESIDES = 6;
    int64_t parts = mma_parts(k), places = static_cast<int64_t>(BLOCKS) * s->n_processors;
    int64_t whole = cuda_blocks(items, s->n_processors) * (mma_padded(k) / MMA_K + BESIDES);
    int64_t split = cuda_blocks(items * parts, places) * (mma_part_length(k) / MMA_K + BESIDES);
    return parts > 1 && split < whole;
}

/* A cluster a tile, a block of it for each part of K. */
template <typename Job, int N>
static void mma_launch_split(di_stream *s, const char *what, const Job &job, int64_t items) {
    uint32_t parts = static_cast<uint32_t>(mma_parts(job.rows.k));
    if (items <= 0) return;
    mma_launch(s, what, dim3(static_cast<uint32_t>(items), parts), WIDE_THREADS,
               mma_wide<Job, N, true>::BYTES, parts, mma_wide_kernel<Job, N, true>, job);
}

#endif
