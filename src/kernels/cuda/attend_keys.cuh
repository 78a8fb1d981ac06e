/* Keys of a row's list for attention: where they lie, and how they become bf16 tiles.
 *
 * Values in tiles are 2^-7 of the keys'. Of every 32 values, value 8 t + k + 4 e stands at place
 * 8 k + 2 t + e: codes come apart so without being sorted, a thread that multiplies has whole pieces
 * of eight values of queries and results, and products do not mind, as long as all of them do.
 */
#ifndef DI_KERNELS_CUDA_ATTEND_KEYS_CUH
#define DI_KERNELS_CUDA_ATTEND_KEYS_CUH

#include "kernels/cuda/attend_wide.cuh"

static constexpr float KEY_SHARE = 1.0f / 128;

/* Both halves times both; exact here, since no product has more bits than bf16. */
static __device__ __forceinline__ uint32_t scaled_pair(uint32_t x, uint32_t y) {
    __nv_bfloat162 a = *reinterpret_cast<__nv_bfloat162 *>(&x),
                   b = *reinterpret_cast<__nv_bfloat162 *>(&y), c = __hmul2_rn(a, b);
    return *reinterpret_cast<uint32_t *>(&c);
}

/* bf16 twice */
static constexpr uint32_t TWO_120 = 0x7B807B80u, TWO_119 = 0x7B007B00u;
static constexpr uint32_t PAIR_SIGNS = 0x80008000u;

/* Two E4M3 codes, in the upper bytes of the halves, as bf16 and 2^120 too small: a subnormal one
 * becomes subnormal too. */
static __device__ __forceinline__ uint32_t e4m3_halves(uint32_t codes) {
    return (codes >> 4 & 0x07F007F0u) | (codes & PAIR_SIGNS);
}

/* Of two E4M3 scales, the first in the lower byte, the factors for decode_entry8: 2^119 times them,
 * which is the most that bf16 has room for. */
static __device__ __forceinline__ void entry_factors(uint32_t scales, uint32_t *factors) {
    uint32_t codes = __byte_perm(scales, 0, 0x1404);
    uint32_t both = scaled_pair(scaled_pair(e4m3_halves(codes), TWO_120), TWO_119);
    factors[0] = __byte_perm(both, 0, 0x1010), factors[1] = __byte_perm(both, 0, 0x3232);
}

/* Eight e2m1 codes, as the pairs k, k + 4: as bf16 they are 2^126 too small. A product puts a code
 * where its sign belongs and where its size belongs; the two do not meet, and what is too much is
 * masked. */
static __device__ __forceinline__ void decode_entry8(uint32_t word, uint32_t factor, uint32_t *x) {
    const uint32_t pair = 0x81C081C0u, upper = word >> 8;
    x[0] = (word & 0x000F000Fu) * 0x1040u & pair;
    x[1] = (word & 0x00F000F0u) * 0x0104u & pair;
    x[2] = (upper & 0x000F000Fu) * 0x1040u & pair;
    x[3] = (upper & 0x00F000F0u) * 0x0104u & pair;
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = scaled_pair(x[i], factor);
}

/* Eight E4M3 codes times an E8M0 scale, as the pairs k, k + 4: together with what e4m3_halves leaves
 * out and KEY_SHARE 2^(scale - 14), in two factors so that neither is out of range. */
static __device__ __forceinline__ void decode_window8(uint32_t low, uint32_t high, uint32_t scale,
                                                      uint32_t *x) {
    uint32_t first = scale < 141 ? scale : 141;
    uint32_t factor = (first + 113) * 0x00800080u, rest = (scale - first + 127) * 0x00800080u;
    x[0] = __byte_perm(low, high, 0x4000), x[1] = __byte_perm(low, high, 0x5010);
    x[2] = __byte_perm(low, high, 0x6020), x[3] = __byte_perm(low, high, 0x7030);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = scaled_pair(scaled_pair(e4m3_halves(x[i]), factor), rest);
}

/* ---- The list ---- */

/* A key of a list: of an entry 64 times its page and its place there, of a window position its row
 * among the rings' or, with IN_STEP, among the step's. */
static constexpr uint32_t IN_STEP = UINT32_C(1) << 31;

/* A row and where its list stands: n_window window positions, then the picks before the first
 * negative one. Both blocks of a cluster find it for themselves. */
typedef struct found_row {
    int32_t t, pos;               /* t -1: there is no further row */
    int32_t begin, n_window;      /* begin: among the keys of shared memory */
    int32_t n_picks[GROUP_WARPS]; /* of each warp that found them */
} found_row;

/* What begins the chains of loads that lead to a row's keys, or what the next link finds: the loads
 * of one link are under way together. picks: neighbours, of a thread. Little code: instructions that
 * run once take long to be fetched. */
static constexpr int PICKS = 4;
typedef struct row_start {
    int32_t pos, slot, first, picks[PICKS];
} row_start;

/* A load that stays where it stands in the program: early. */
static __device__ __forceinline__ int32_t load_early(const int32_t *p) {
    int32_t x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

static __device__ __forceinline__ void load_picks(const di_attend_args &args, int64_t t,
                                                  int32_t begin, int32_t (&picks)[PICKS]) {
    const int32_t *from = cuda_at<const int32_t>(args.picks) + t * args.top_k;
    int32_t i = begin + PICKS * (static_cast<int32_t>(threadIdx.x) % GROUP);
#pragma unroll
    for (int k = 0; k < PICKS; k++) picks[k] = i + k < args.top_k ? load_early(from + i + k) : -1;
}

static __device__ __forceinline__ row_start start_row(const di_attend_args &args, int64_t t) {
    row_start r;
    r.pos = load_early(cuda_at<const int32_t>(args.batch.pos) + t);
    r.slot = load_early(&cuda_at<const di_row>(args.batch.rows)[t].slot);
    r.first = load_early(cuda_at<const int32_t>(args.batch.first) + t);
    load_picks(args, t, 0, r.picks);
    return r;
}

/* A thread's picks as keys, to keys[0 ..]; returns how many there are of this warp. */
static __device__ __forceinline__ int32_t find_entries(const di_attend_args &args, int32_t slot,
                                                       const int32_t (&picks)[PICKS],
                                                       uint32_t *keys) {
    const di_pages &p = args.pages;
    const int32_t *table =
        cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    int32_t page_bits = 6 - (__ffs(p.ratio) - 1), pages[PICKS], n = 0;
#pragma unroll
    for (int k = 0; k < PICKS; k++)
        pages[k] = picks[k] < 0 ? 0 : load_early(table + (picks[k] >> page_bits));
    uint32_t places = (1u << page_bits) - 1;
#pragma unroll
    for (int k = 0; k < PICKS; k++) {
        if (picks[k] < 0) continue;
        keys[k] = static_cast<uint32_t>(pages[k]) * 64 + (static_cast<uint32_t>(picks[k]) & places);
        n++;
    }
    return __reduce_add_sync(ALL_LANES, n);
}

/* The list of row t, whose loads have begun, by the GROUP threads of a warpgroup. keys: of all of
 * shared memory; `begin`: where there is room for it. */
static __device__ __forceinline__ void find_keys(const di_attend_args &args, int64_t t,
                                                 row_start start, int32_t begin, uint32_t *keys,
                                                 found_row *row) {
    const di_batch &b = args.batch;
    int32_t me = static_cast<int32_t>(threadIdx.x) % GROUP;
    int32_t length = load_early(cuda_at<const int32_t>(b.length) + start.slot);
    int32_t floor =
        cuda_none(b.floor) ? 0 : load_early(cuda_at<const int32_t>(b.floor) + start.slot);
    /* The window's size, which says where picks stand, is known only now; room is left for the
     * largest, and the window stands at the end of it. */
    int32_t entries = begin + args.window + args.block, n_picks = 0, now = start.pos + 1;
#pragma unroll 1
    for (int32_t done = 0; done < args.top_k; done += PICKS * GROUP) {
        if (done > 0) load_picks(args, t, done, start.picks);
        n_picks += find_entries(args, start.slot, start.picks, keys + entries + done + PICKS * me);
    }
    int32_t before = (args.block ? length : now) - args.window;
    int32_t first = before > floor ? before : floor;
    int32_t n_window = (args.block ? length + args.block : now) - first;
    begin = entries - n_window;
#pragma unroll 1
    for (int32_t i = me; i < n_window; i += GROUP) {
        int32_t p = first + i;
        uint32_t ring = static_cast<uint32_t>(args.ring.ring_slots);
        keys[begin + i] = p >= length ? static_cast<uint32_t>(start.first + (p - length)) | IN_STEP
                                      : static_cast<uint32_t>(start.slot) * ring +
                                            static_cast<uint32_t>(p) % ring;
    }
    if (lane_id() == 0) row->n_picks[warp_id() % GROUP_WARPS] = n_picks;
    if (me == 0) row->t = static_cast<int32_t>(t), row->pos = start.pos;
    if (me == 0) row->begin = begin, row->n_window = n_window;
}

/* Where a key lies. */
typedef struct key_address {
    const uint8_t *codes, *scales;
} key_address;

/* width: of a key. */
static __device__ __forceinline__ key_address window_key_at(const di_attend_args &args,
                                                            uint32_t key, int32_t width) {
    bool in_step = (key & IN_STEP) != 0;
    int64_t row = key & ~IN_STEP;
    return key_address{cuda_at<const uint8_t>(in_step ? args.kv_codes : args.ring.codes) +
                           row * width,
                       cuda_at<const uint8_t>(in_step ? args.kv_scales : args.ring.scales) +
                           row * (width / 32)};
}
static __device__ __forceinline__ key_address entry_key_at(const di_pages &p, uint32_t key,
                                                           int32_t width) {
    uint32_t place = key % 64, wide = static_cast<uint32_t>(width);
    const uint8_t *page = cuda_at<const uint8_t>(p.pool) + (key / 64) * p.page_bytes;
    return key_address{page + p.codes + place * (wide / 2), page + p.scales + place * (wide / 16)};
}

#endif
