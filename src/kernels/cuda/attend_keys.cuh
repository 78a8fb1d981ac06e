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

/* Eight values in order as the pairs k, k + 4. */
static __device__ __forceinline__ uint4 paired(uint4 x) {
    return make_uint4(__byte_perm(x.x, x.z, 0x5410), __byte_perm(x.x, x.z, 0x7632),
                      __byte_perm(x.y, x.w, 0x5410), __byte_perm(x.y, x.w, 0x7632));
}

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

/* A row's list: n_window window positions, then n - n_window picks. */
typedef struct key_address { /* codes and scales of one key */
    const uint8_t *codes, *scales;
} key_address;
typedef struct key_list {
    int32_t n_window, n;
    const key_address *addresses; /* [n] in shared memory */
} key_list;

/* A load that stays where it stands in the program: early. */
static __device__ __forceinline__ int32_t load_early(const int32_t *p) {
    int32_t x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

/* What begins the chains of loads that lead to a row's keys, or what the next link finds: the loads
 * of one link are under way together. picks: of a thread, `threads` apart. */
static constexpr int PICKS = 2;
typedef struct row_start {
    int32_t slot, first, picks[PICKS];
} row_start;

static __device__ __forceinline__ void load_picks(const di_attend_args &args, int64_t t,
                                                  int32_t first, int32_t threads,
                                                  int32_t (&picks)[PICKS]) {
    const int32_t *row = cuda_at<const int32_t>(args.picks) + t * args.top_k;
#pragma unroll
    for (int k = 0; k < PICKS; k++) {
        int32_t i = first + k * threads;
        picks[k] = i < args.top_k ? load_early(row + i) : -1;
    }
}

static __device__ __forceinline__ row_start start_row(const di_attend_args &args, int64_t t,
                                                      int32_t me, int32_t threads) {
    row_start r;
    r.slot = load_early(&cuda_at<const di_row>(args.batch.rows)[t].slot);
    r.first = load_early(cuda_at<const int32_t>(args.batch.first) + t);
    load_picks(args, t, me, threads, r.picks);
    return r;
}

/* The window: positions begin .. begin + n - 1, those from `length` on in the step's rows. */
typedef struct key_window {
    int32_t length, begin, n;
} key_window;

static __device__ __forceinline__ key_window window_of(const di_attend_args &args, int32_t slot,
                                                       int32_t pos) {
    const di_batch &b = args.batch;
    key_window w;
    w.length = load_early(cuda_at<const int32_t>(b.length) + slot);
    int32_t floor = cuda_none(b.floor) ? 0 : load_early(cuda_at<const int32_t>(b.floor) + slot);
    int32_t before = (args.block ? w.length : pos + 1) - args.window;
    w.begin = before > floor ? before : floor;
    w.n = (args.block ? w.length + args.block : pos + 1) - w.begin;
    return w;
}

static __device__ __forceinline__ key_address window_key_at(const di_attend_args &args,
                                                            const row_start &start,
                                                            const key_window &w, int32_t p) {
    int64_t d = args.head_dim, row = static_cast<int64_t>(start.first) + (p - w.length);
    bool in_step = p >= w.length;
    if (!in_step)
        row = static_cast<int64_t>(start.slot) * args.ring.ring_slots + p % args.ring.ring_slots;
    return key_address{cuda_at<const uint8_t>(in_step ? args.kv_codes : args.ring.codes) + row * d,
                       cuda_at<const uint8_t>(in_step ? args.kv_scales : args.ring.scales) +
                           row * (d / 32)};
}

/* Where the keys of a thread's picks lie, to addresses[k * threads]; returns how many there are. */
static __device__ __forceinline__ int32_t find_entries(const di_pages &p, int32_t per_page,
                                                       int32_t slot, int32_t threads,
                                                       const int32_t (&picks)[PICKS],
                                                       key_address *addresses) {
    const int32_t *table =
        cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    int32_t numbers[PICKS], n = 0;
#pragma unroll
    for (int k = 0; k < PICKS; k++)
        numbers[k] = picks[k] < 0 ? 0 : load_early(table + picks[k] / per_page);
#pragma unroll
    for (int k = 0; k < PICKS; k++) {
        if (picks[k] < 0) break; /* those behind the first -1 are -1 too */
        int64_t place = picks[k] % per_page;
        const uint8_t *page =
            cuda_at<const uint8_t>(p.pool) + static_cast<uint64_t>(numbers[k]) * p.page_bytes;
        addresses[k * threads] =
            key_address{page + p.codes + place * (p.d / 2), page + p.scales + place * (p.d / 16)};
        n++;
    }
    return n;
}

/* Where all keys of a row lie, to addresses, by `threads` threads in whole warps, of which this is
 * number `me`. The window's size, which says where picks stand, is known late: room is left for the
 * largest, and the window stands at the end of it. Returns how many picks this warp has found;
 * *n_window: the window's size. */
static __device__ __forceinline__ int32_t find_keys(const di_attend_args &args, int64_t t,
                                                    int32_t pos, row_start start, int32_t me,
                                                    int32_t threads, key_address *addresses,
                                                    int32_t *n_window) {
    int32_t per_page = args.top_k > 0 ? 64 / args.pages.ratio : 1, mine = 0;
    int32_t room = args.window + args.block;
    key_window w = window_of(args, start.slot, pos);
#pragma unroll 1 /* they run once: instructions that are not there need not be fetched */
    for (int32_t begin = 0; begin < args.top_k; begin += PICKS * threads) {
        if (begin > 0) load_picks(args, t, begin + me, threads, start.picks);
        mine += find_entries(args.pages, per_page, start.slot, threads, start.picks,
                             addresses + room + begin + me);
    }
#pragma unroll 1
    for (int32_t i = me; i < w.n; i += threads)
        addresses[room - w.n + i] = window_key_at(args, start, w, w.begin + i);
    *n_window = w.n;
    return __reduce_add_sync(ALL_LANES, mine);
}

#endif
