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

/* Row t's list: n_window window positions from `begin` on, then n - n_window picks. */
typedef struct key_address { /* codes and scales of one key */
    const uint8_t *codes, *scales;
} key_address;
typedef struct key_list {
    int32_t slot, length, first, begin, n_window, n;
    const key_address *addresses; /* [n] in shared memory */
} key_list;

/* What begins the chains of loads that lead to a row's keys, or what the next link finds: the loads
 * of one link are under way together. pick: of a thread, `threads` apart. */
typedef struct row_start {
    int32_t pos, slot, first, pick;
} row_start;

/* A load that stays where it stands in the program: early. */
static __device__ __forceinline__ int32_t load_early(const int32_t *p) {
    int32_t x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

static __device__ __forceinline__ int32_t load_pick(const di_attend_args &args, int64_t t,
                                                    int32_t i) {
    return i < args.top_k ? load_early(cuda_at<const int32_t>(args.picks) + t * args.top_k + i)
                          : -1;
}

static __device__ __forceinline__ row_start start_row(const di_attend_args &args, int64_t t) {
    row_start r;
    r.pos = load_early(cuda_at<const int32_t>(args.batch.pos) + t);
    r.slot = load_early(&cuda_at<const di_row>(args.batch.rows)[t].slot);
    r.first = load_early(cuda_at<const int32_t>(args.batch.first) + t);
    r.pick = load_pick(args, t, static_cast<int32_t>(threadIdx.x));
    return r;
}

static __device__ __forceinline__ key_address window_key_at(const di_attend_args &args,
                                                            const key_list &l, int32_t p) {
    int64_t d = args.head_dim, row = static_cast<int64_t>(l.first) + (p - l.length);
    bool in_step = p >= l.length;
    if (!in_step)
        row = static_cast<int64_t>(l.slot) * args.ring.ring_slots + p % args.ring.ring_slots;
    return key_address{cuda_at<const uint8_t>(in_step ? args.kv_codes : args.ring.codes) + row * d,
                       cuda_at<const uint8_t>(in_step ? args.kv_scales : args.ring.scales) +
                           row * (d / 32)};
}

/* Where the key of a pick lies. */
static __device__ __forceinline__ key_address entry_key_at(const di_pages &p, int32_t per_page,
                                                           int32_t slot, int32_t pick) {
    const int32_t *table =
        cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    int32_t number = load_early(table + pick / per_page);
    int64_t place = pick % per_page;
    const uint8_t *page =
        cuda_at<const uint8_t>(p.pool) + static_cast<uint64_t>(number) * p.page_bytes;
    return key_address{page + p.codes + place * (p.d / 2), page + p.scales + place * (p.d / 16)};
}

/* Where all keys of row t lie, to addresses; all `threads` threads of the block call, and meet before
 * they read them. */
static __device__ __forceinline__ key_list find_keys(const di_attend_args &args, int64_t t,
                                                     row_start start, int32_t threads,
                                                     key_address *addresses) {
    const di_batch &b = args.batch;
    int32_t me = static_cast<int32_t>(threadIdx.x);
    int32_t per_page = args.top_k > 0 ? 64 / args.pages.ratio : 1;
    key_list l;
    l.slot = start.slot, l.first = start.first;
    l.length = load_early(cuda_at<const int32_t>(b.length) + l.slot);
    int32_t floor = cuda_none(b.floor) ? 0 : load_early(cuda_at<const int32_t>(b.floor) + l.slot);
    int32_t picked = 0, now = start.pos + 1;
    /* The window's size, which says where picks stand, is known only now; room is left for the
     * largest, and the window stands at the end of it. */
    int32_t room = args.window + args.block;
#pragma unroll 1 /* they run once: instructions that are not there need not be fetched */
    for (int32_t begin = 0; begin < args.top_k; begin += threads) {
        if (begin > 0) start.pick = load_pick(args, t, begin + me);
        if (start.pick >= 0)
            addresses[room + begin + me] = entry_key_at(args.pages, per_page, l.slot, start.pick);
        picked += __syncthreads_count(start.pick >= 0); /* those behind the first -1 are -1 too */
    }
    int32_t before = (args.block ? l.length : now) - args.window;
    l.begin = before > floor ? before : floor;
    l.n_window = (args.block ? l.length + args.block : now) - l.begin;
    l.n = l.n_window + picked;
    l.addresses = addresses + (room - l.n_window);
#pragma unroll 1
    for (int32_t i = me; i < l.n_window; i += threads)
        addresses[room - l.n_window + i] = window_key_at(args, l, l.begin + i);
    return l;
}

#endif
