/* Matrices packed for the matrix units when they are bound (mma_weights.cuh): rows go through a
 * staging buffer in bands of whole blocks, and a kernel puts each band's 16-byte units in their
 * places. */
#include "kernels/cuda/mma_launch.cuh"

static constexpr int PACK_THREADS = 256, UNIT = MMA_RUN_BYTES;
static constexpr uint8_t NO_SCALE = 127; /* 1, where rows or K are missing */

/* Rows of one group, from the first row of a block on. */
typedef struct pack_band {
    const uint8_t *data, *scale; /* of the first row; FP8: of the 32 rows that it is among */
    int32_t n_rows, k;
    int32_t first;  /* row, in the matrix */
    uint64_t units; /* of all its blocks */
    uint8_t *out;
    uint32_t *far;
} pack_band;

static __host__ __device__ int64_t row_bytes(di_dtype dtype, int32_t k) {
    return dtype == DI_FP4_PAIR ? k / 2 : dtype == DI_F8_E4M3 ? k : 2 * static_cast<int64_t>(k);
}
/* Of a row, or of 32 rows of FP8. */
static __host__ __device__ int64_t scale_row_bytes(di_dtype dtype, int32_t k) {
    return dtype == DI_BF16 ? 0 : (k + 31) / 32;
}

static __device__ uint4 load_run(const uint8_t *row, int64_t at, int64_t bytes) {
    uint32_t words[4] = {};
    if (at + UNIT <= bytes && reinterpret_cast<uintptr_t>(row + at) % UNIT == 0)
        return *reinterpret_cast<const uint4 *>(row + at);
    for (int i = 0; i < UNIT && at + i < bytes; i++)
        words[i / 4] |= static_cast<uint32_t>(row[at + i]) << 8 * (i % 4);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <di_dtype W> static __device__ uint32_t packed_word(uint32_t word) {
    if constexpr (W == DI_FP4_PAIR) {
        uint32_t codes[8];
        for (int i = 0; i < 8; i++) codes[i] = word >> 4 * i & 15;
        return mma_pack_fp4(codes);
    } else if constexpr (W == DI_F8_E4M3) {
        uint32_t codes[4];
        for (int i = 0; i < 4; i++) codes[i] = word >> 8 * i & 255;
        return mma_pack_fp8(codes);
    } else {
        return word;
    }
}

/* Unit `unit` of a chunk's runs. */
template <di_dtype W>
static __device__ uint4 run_unit(const pack_band &b, int64_t strip, int64_t chunk, int32_t unit) {
    constexpr int GROUPS = mma_format<W>::CHUNK_K / mma_format<W>::GROUP, GROUP_BYTES = 4 * UNIT;
    int32_t lane = unit % WARP, upper = unit / WARP % 2, group = unit / (2 * WARP);
    int64_t row = strip * MMA_STRIP + lane / 4 + 8 * upper, bytes = row_bytes(W, b.k);
    if (row >= b.n_rows) return make_uint4(0, 0, 0, 0);
    int64_t at = (chunk * GROUPS + group) * GROUP_BYTES + lane % 4 * UNIT;
    uint4 run = load_run(b.data + row * bytes, at, bytes);
    return make_uint4(packed_word<W>(run.x), packed_word<W>(run.y), packed_word<W>(run.z),
                      packed_word<W>(run.w));
}

/* Byte `at` of a chunk's scales. */
template <di_dtype W>
static __device__ uint32_t scale_byte(const pack_band &b, int64_t strip, int64_t chunk,
                                      int32_t at) {
    int64_t row = strip * MMA_STRIP, block = chunk * (MMA_K / 32) + at % 4, scale_row;
    if (W == DI_F8_E4M3) {
        if (at >= 8) return 0;
        row += 8 * (at / 4);
        scale_row = (b.first + row) / 32 - b.first / 32;
    } else {
        row += at % WARP / 4 + 8 * (at / WARP);
        scale_row = row;
    }
    int64_t blocks = scale_row_bytes(W, b.k);
    if (row >= b.n_rows || block >= blocks) return NO_SCALE;
    uint32_t scale = b.scale[scale_row * blocks + block];
    if (mma_far(W, scale)) atomicOr(b.far, 1u);
    return scale;
}

template <di_dtype W>
static __device__ uint4 scale_unit(const pack_band &b, int64_t strip, int64_t chunk, int32_t unit) {
    uint32_t words[4] = {};
    for (int i = 0; i < UNIT; i++)
        words[i / 4] |= scale_byte<W>(b, strip, chunk, unit * UNIT + i) << 8 * (i % 4);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* A thread a unit. */
template <di_dtype W>
static __global__ __launch_bounds__(PACK_THREADS) void pack_kernel(pack_band b) {
    constexpr uint32_t UNITS = mma_format<W>::CHUNK / UNIT, RUNS = mma_format<W>::RUNS / UNIT;
    static_assert(mma_format<W>::CHUNK % UNIT == 0 && mma_format<W>::RUNS % UNIT == 0);
    uint64_t i = static_cast<uint64_t>(blockIdx.x) * PACK_THREADS + threadIdx.x;
    if (i >= b.units) return;
    constexpr int STRIPS = MMA_BLOCK / MMA_STRIP;
    int64_t at = static_cast<int64_t>(i / UNITS), chunk = at / STRIPS;
    int64_t chunks = mma_padded(b.k) / mma_format<W>::CHUNK_K;
    int32_t unit = static_cast<int32_t>(i % UNITS);
    int64_t strip = chunk / chunks * STRIPS + at % STRIPS;
    chunk %= chunks;
    uint4 v;
    if constexpr (mma_format<W>::SCALES)
        v = unit < static_cast<int32_t>(RUNS)
                ? run_unit<W>(b, strip, chunk, unit)
                : scale_unit<W>(b, strip, chunk, unit - static_cast<int32_t>(RUNS));
    else
        v = run_unit<W>(b, strip, chunk, unit);
    reinterpret_cast<uint4 *>(b.out)[i] = v;
}

static void pack_rows(di_stream *s, di_dtype dtype, const pack_band &b) {
    uint32_t blocks = cuda_blocks(static_cast<int64_t>(b.units), PACK_THREADS);
    if (dtype == DI_FP4_PAIR)
        cuda_launch(s, "pack", blocks, PACK_THREADS, 0, pack_kernel<DI_FP4_PAIR>, b);
    else if (dtype == DI_F8_E4M3)
        cuda_launch(s, "pack", blocks, PACK_THREADS, 0, pack_kernel<DI_F8_E4M3>, b);
    else
        cuda_launch(s, "pack", blocks, PACK_THREADS, 0, pack_kernel<DI_BF16>, b);
}

uint64_t cuda_packed_bytes(const di_stream *s, const di_host_matrix *m) {
    if (!mma_takes(s, m->dtype)) return 0;
    uint64_t blocks =
        static_cast<uint64_t>(m->groups) * static_cast<uint64_t>(mma_blocks(m->n / m->groups));
    return blocks * mma_block_bytes(m->dtype, m->k);
}

/* Blocks that go into the staging, the scales behind the rows. */
static int64_t blocks_of_band(const di_host_matrix *m) {
    int64_t block = MMA_BLOCK * (row_bytes(m->dtype, m->k) + scale_row_bytes(m->dtype, m->k));
    return (static_cast<int64_t>(DI_BIND_STAGING_BYTES) - UNIT) / block;
}

bool cuda_can_pack(const di_host_matrix *m) {
    if (m->groups > 1 && (m->n % m->groups != 0 || m->n / m->groups % 8 != 0)) return false;
    return (m->dtype != DI_FP4_PAIR || m->k % 32 == 0) && blocks_of_band(m) >= 1;
}

/* Rows first .. first + n - 1 and their scales to the staging, and from there to `out`. */
static void pack_band_at(di_stream *s, const di_host_matrix *m, int32_t first, int32_t n,
                         uint8_t *staging, uint8_t *out) {
    int64_t row = row_bytes(m->dtype, m->k), scale_row = scale_row_bytes(m->dtype, m->k);
    int64_t rows = (n * row + UNIT - 1) / UNIT * UNIT;
    pack_band b = {staging, staging + rows, n, m->k, first, 0, out, s->far};
    int64_t from = first, scale_rows = n;
    if (m->dtype == DI_F8_E4M3) {
        from = first / 32;
        scale_rows = (first + n - 1) / 32 + 1 - from;
    }
    cuda_upload(s, cuda_ptr(staging), static_cast<const uint8_t *>(m->data) + first * row,
                static_cast<uint64_t>(n * row));
    if (scale_row > 0)
        cuda_upload(s, cuda_ptr(staging + rows),
                    static_cast<const uint8_t *>(m->scale) + from * scale_row,
                    static_cast<uint64_t>(scale_rows * scale_row));
    b.units = static_cast<uint64_t>(mma_blocks(n)) * mma_block_bytes(m->dtype, m->k) / UNIT;
    pack_rows(s, m->dtype, b);
}

void cuda_pack(di_stream *s, const di_host_matrix *m, uint8_t *staging, uint8_t *to) {
    CUDA_REQUIRE(mma_takes(s, m->dtype) && cuda_can_pack(m));
    int32_t rows = m->n / m->groups, blocks = mma_blocks(rows);
    int64_t fit = blocks_of_band(m);
    int32_t band = static_cast<int32_t>(fit < blocks ? fit : blocks);
    for (int32_t group = 0; group < m->groups; group++) {
        for (int32_t block = 0; block < blocks; block += band) {
            int32_t first = block * MMA_BLOCK, left = rows - first;
            int32_t n = left < band * MMA_BLOCK ? left : band * MMA_BLOCK;
            uint64_t at = static_cast<uint64_t>(group) * static_cast<uint64_t>(blocks) +
                          static_cast<uint64_t>(block);
            pack_band_at(s, m, group * rows + first, n, staging,
                         to + at * mma_block_bytes(m->dtype, m->k));
        }
    }
    /* Products ask for their weights before they wait for kernels, and so may those that follow an
     * early one: the next kernel is not. */
    s->late = true;
}
