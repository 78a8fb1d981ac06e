/* Launches of mma_narrow.cuh and mma_wide.cuh. */
#ifndef DI_KERNELS_CUDA_MMA_RUN_CUH
#define DI_KERNELS_CUDA_MMA_RUN_CUH

#include "kernels/cuda/mma_launch.cuh"
#include "kernels/cuda/mma_wide.cuh"

/* Blocks stay until all tiles are done: as many as the device holds, at most `items`. */
template <typename Job, int MT, int NT>
static void mma_launch_narrow(di_stream *s, const char *what, const Job &job, int64_t items) {
    using narrow = mma_narrow<Job, MT, NT>;
    static int resident[MMA_PARTS + 1]; /* blocks of so many warps that a processor holds */
    int parts = mma_parts(job.rows.k), &blocks = resident[parts];
    size_t shared = narrow::bytes(parts);
    auto kernel = mma_narrow_kernel<Job, MT, NT>;
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
        if (blocks < 1) blocks = 1;
    }
    int64_t most = static_cast<int64_t>(blocks) * s->n_processors;
    cuda_launch(s, what, dim3(static_cast<uint32_t>(items < most ? items : most)),
                static_cast<uint32_t>(parts * WARP), shared, kernel, job);
}

template <typename Job>
static void mma_launch_wide(di_stream *s, const char *what, const Job &job, int64_t items) {
    int64_t most = s->n_processors;
    if (items <= 0) return;
    cuda_launch(s, what, dim3(static_cast<uint32_t>(items < most ? items : most)), WIDE_THREADS,
                mma_wide<Job, false>::BYTES, mma_wide_kernel<Job, false>, job);
}

/* A cluster a tile, a block of it for each part of K. */
template <typename Job>
static void mma_launch_split(di_stream *s, const char *what, const Job &job, int64_t items) {
    auto kernel = mma_wide_kernel<Job, true>;
    uint32_t parts = static_cast<uint32_t>(mma_parts(job.rows.k));
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    if (items <= 0 || s->failed != cudaSuccess) return;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
    cluster.val.clusterDim.y = parts;
    config.gridDim = dim3(static_cast<uint32_t>(items), parts);
    config.blockDim = dim3(WIDE_THREADS);
    config.dynamicSmemBytes = mma_wide<Job, true>::BYTES;
    config.stream = s->stream;
    config.attrs = &cluster, config.numAttrs = 1;
    if (!cuda_check(s,
                    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(config.dynamicSmemBytes)),
                    what))
        return;
    cuda_check(s, cudaLaunchKernelEx(&config, kernel, job), what);
}

#endif
