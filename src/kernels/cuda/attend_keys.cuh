/* Keys of a row's list for attention: where they lie, and how they become bf16 tiles.
 *
 * Within every eight values keys, queries and results stand in the order 0 4 1 5 2 6 3 7, as codes
 * come apart; products do not mind, as long as all of them do.
 */
#ifndef DI_KERNELS_CUDA_ATTEND_KEYS_CUH
#define DI_KERNELS_CUDA_ATTEND_KEYS_CUH

#include "kernels/cuda/attend_wide.cuh"

/* Eight values in order to that order. */
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
static constexpr uint32_t TWO_126 = 0x7E807E80u, TWO_120 = 0x7B807B80u;
static constexpr uint32_t PAIR_SIGNS = 0x80008000u;

/* Two E4M3 codes, in the upper bytes of the halves, as bf16 and 2^120 too small: a subnormal one
 * becomes subnormal too. */
static __device__ __forceinline__ uint32_t e4m3_halves(uint32_t codes) {
    return (codes >> 4 & 0x07F007F0u) | (codes & PAIR_SIGNS);
}

/* Eight e2m1 codes times an E4M3 scale. */
static __device__ __forceinline__ uint4 decode_entry8(uint32_t word, uint32_t scale) {
    const uint32_t size = 0x01C001C0u;
    uint32_t x[4] = {(word << 6 & size) | (word << 12 & PAIR_SIGNS),
                     (word << 2 & size) | (word << 8 & PAIR_SIGNS),
                     (word >> 2 & size) | (word << 4 & PAIR_SIGNS),
                     (word >> 6 & size) | (word & PAIR_SIGNS)};
    uint32_t factor = scaled_pair(e4m3_halves(scale * 0x01000100u), TWO_120);
    for (int i = 0; i < 4; i++) x[i] = scaled_pair(scaled_pair(x[i], TWO_126), factor);
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* Eight E4M3 codes times an E8M0 scale: together with what e4m3_halves leaves out 2^(scale - 7), in
 * two factors so that neither is out of range. */
static __device__ __forceinline__ uint4 decode_window8(uint32_t low, uint32_t high,
                                                       uint32_t scale) {
    uint32_t first = scale < 134 ? scale : 134, x[4];
    uint32_t factor = (first + 120) * 0x00800080u, rest = (scale - first + 127) * 0x00800080u;
    x[0] = __byte_perm(low, high, 0x4000), x[1] = __byte_perm(low, high, 0x5010);
    x[2] = __byte_perm(low, high, 0x6020), x[3] = __byte_perm(low, high, 0x7030);
    for (int i = 0; i < 4; i++) x[i] = scaled_pair(scaled_pair(e4m3_halves(x[i]), factor), rest);
    return make_uint4(x[0], x[1], x[2], x[3]);
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
 * of one link are under way together. PICKS: of a thread, `threads` apart. */
static constexpr int PICKS = 2;
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
                                                  int32_t begin, int32_t threads,
                                                  int32_t (&picks)[PICKS]) {
    const int32_t *all = cuda_at<const int32_t>(args.picks) + t * args.top_k;
#pragma unroll
    for (int i = 0; i < PICKS; i++) {
        int32_t at = begin + i * threads + static_cast<int32_t>(threadIdx.x);
        picks[i] = -1;
        if (at < args.top_k) picks[i] = load_early(all + at);
    }
}

static __device__ __forceinline__ row_start start_row(const di_attend_args &args, int64_t t,
                                                      int32_t threads) {
    row_start r;
    r.pos = load_early(cuda_at<const int32_t>(args.batch.pos) + t);
    r.slot = load_early(&cuda_at<const di_row>(args.batch.rows)[t].slot);
    r.first = load_early(cuda_at<const int32_t>(args.batch.first) + t);
    load_picks(args, t, 0, threads, r.picks);
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

/* Where the keys of picks lie, at their places of the list; n: how many there are, of all threads. */
static __device__ __forceinline__ int32_t find_picks(const di_attend_args &args, int32_t slot,
                                                     int32_t begin, int32_t threads,
                                                     const int32_t (&picks)[PICKS],
                                                     key_address *addresses) {
    const di_pages &p = args.pages;
    const int32_t *table =
        cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    int32_t per_page = 64 / p.ratio, pages[PICKS], n = 0;
#pragma unroll
    for (int i = 0; i < PICKS; i++)
        pages[i] = picks[i] < 0 ? 0 : load_early(table + picks[i] / per_page);
#pragma unroll
    for (int i = 0; i < PICKS; i++) {
        n += __syncthreads_count(picks[i] >= 0); /* those behind the first -1 are -1 too */
        if (picks[i] < 0) continue;
        int32_t at = begin + i * threads + static_cast<int32_t>(threadIdx.x);
        int64_t place = picks[i] % per_page;
        const uint8_t *page =
            cuda_at<const uint8_t>(p.pool) + static_cast<uint64_t>(pages[i]) * p.page_bytes;
        addresses[at] =
            key_address{page + p.codes + place * (p.d / 2), page + p.scales + place * (p.d / 16)};
    }
    return n;
}

/* Where all keys of row t lie, to addresses; all `threads` threads of the block call. */
static __device__ __forceinline__ key_list find_keys(const di_attend_args &args, int64_t t,
                                                     row_start start, int32_t threads,
                                                     key_address *addresses) {
    const di_batch &b = args.batch;
    key_list l;
    l.slot = start.slot, l.first = start.first;
    l.length = load_early(cuda_at<const int32_t>(b.length) + l.slot);
    int32_t floor = cuda_none(b.floor) ? 0 : load_early(cuda_at<const int32_t>(b.floor) + l.slot);
    int32_t picked = 0, now = start.pos + 1;
    /* The window's size, which says where picks stand, is known only now; room is left for the
     * largest, and the window stands at the end of it. */
    int32_t room = args.window + args.block;
    for (int32_t begin = 0; begin < args.top_k; begin += PICKS * threads) {
        if (begin > 0) load_picks(args, t, begin, threads, start.picks);
        picked += find_picks(args, l.slot, begin, threads, start.picks, addresses + room);
    }
    int32_t before = (args.block ? l.length : now) - args.window;
    l.begin = before > floor ? before : floor;
    l.n_window = (args.block ? l.length + args.block : now) - l.begin;
    l.n = l.n_window + picked;
    l.addresses = addresses + (room - l.n_window);
    for (int32_t i = static_cast<int32_t>(threadIdx.x); i < l.n_window; i += threads)
        addresses[room - l.n_window + i] = window_key_at(args, l, l.begin + i);
    return l;
}

/* ---- Tiles ---- */

/* 32 values of a key on their way: codes, of which an entry has four words, and one or two scales.
 * Nothing is made of them before store_key, so that the loads of several blocks are under way. */
typedef struct raw_key {
    uint32_t words[8];
    uint8_t scales[2];
} raw_key;

/* Values from `dim` on of slot i; for places beyond the list or the key what is there instead. No
 * branches: a second load of an entry is its first again. ALIGNED: pieces of 16 bytes are. */
template <bool ALIGNED>
static __device__ __forceinline__ raw_key load_raw(const di_attend_args &args, const key_list &l,
                                                   int32_t i, int32_t dim) {
    raw_key raw;
    int32_t last = args.head_dim - 32;
    key_address at = l.addresses[i < l.n ? i : l.n - 1];
    if (dim > last) dim = last;
    bool entry = i >= l.n_window && (i < l.n || l.n > l.n_window);
    const uint8_t *codes = at.codes + (entry ? dim / 2 : dim);
    const uint8_t *more = codes + (entry ? 0 : 16);
    if (ALIGNED) {
        uint4 low = __ldg(reinterpret_cast<const uint4 *>(codes));
        uint4 high = __ldg(reinterpret_cast<const uint4 *>(more));
        raw.words[0] = low.x, raw.words[1] = low.y, raw.words[2] = low.z, raw.words[3] = low.w;
        raw.words[4] = high.x, raw.words[5] = high.y, raw.words[6] = high.z, raw.words[7] = high.w;
    } else {
        load_words<4>(codes, raw.words);
        load_words<4>(more, raw.words + 4);
    }
    const uint8_t *scales = at.scales + (entry ? dim / 16 : dim / 32);
    raw.scales[0] = __ldg(scales);
    raw.scales[1] = __ldg(scales + (entry ? 1 : 0));
    return raw;
}

/* Writes them as values part * 32 .. of row `key` of a tile. kind 0: of the window, 1: of an entry, 2:
 * none, zeros. */
static __device__ __forceinline__ void store_key(const raw_key &raw, int kind, uint8_t *tile,
                                                 int key, int part) {
    uint8_t *slab = tile + part / 2 * SLAB_BYTES;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 values = make_uint4(0, 0, 0, 0);
        if (kind == 0)
            values = decode_window8(raw.words[2 * i], raw.words[2 * i + 1], raw.scales[0]);
        else if (kind == 1)
            values = decode_entry8(raw.words[i], raw.scales[i / 2]);
        *reinterpret_cast<uint4 *>(slab + slab_place(key, part % 2 * 4 + i)) = values;
    }
}

#endif
