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
typedef struct key_list {
    int32_t slot, length, first, begin, n_window, n;
} key_list;

/* Codes and scales of one key. */
typedef struct key_address {
    const uint8_t *codes, *scales;
} key_address;

static __device__ __forceinline__ key_list window_of(const di_attend_args &args, int64_t t,
                                                     int32_t pos) {
    const di_batch &b = args.batch;
    key_list l;
    l.slot = cuda_at<const di_row>(b.rows)[t].slot;
    l.first = cuda_at<const int32_t>(b.first)[t];
    l.length = cuda_at<const int32_t>(b.length)[l.slot];
    int32_t floor = cuda_none(b.floor) ? 0 : cuda_at<const int32_t>(b.floor)[l.slot];
    int32_t before = (args.block ? l.length : pos + 1) - args.window;
    l.begin = before > floor ? before : floor;
    l.n_window = (args.block ? l.length + args.block : pos + 1) - l.begin;
    l.n = l.n_window;
    return l;
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

/* Where all keys of row t lie, to addresses; all `threads` threads of the block call. */
static __device__ __forceinline__ key_list find_keys(const di_attend_args &args, int64_t t,
                                                     int32_t pos, int32_t threads,
                                                     key_address *addresses) {
    key_list l = window_of(args, t, pos);
    int32_t x = static_cast<int32_t>(threadIdx.x);
    const int32_t *picks = cuda_at<const int32_t>(args.picks) + t * args.top_k;
    for (int32_t i = x; i < l.n_window; i += threads)
        addresses[i] = window_key_at(args, l, l.begin + i);
    for (int32_t begin = 0; begin < args.top_k; begin += threads) {
        int32_t i = begin + x, pick = i < args.top_k ? picks[i] : -1;
        l.n += __syncthreads_count(pick >= 0); /* those behind the first -1 are -1 too */
        if (pick < 0) continue;
        page_entry entry = entry_at(args.pages, l.slot, pick);
        addresses[l.n_window + i] = key_address{entry.codes, entry.scales};
    }
    return l;
}

/* ---- Tiles ---- */

/* 32 values of a key on their way; kind 0: of the window, 1: of an entry, 2: none, zeros. */
typedef struct raw_key {
    uint32_t words[8], scale;
    int kind;
} raw_key;

/* Values from `dim` on of slot i, those beyond the key's width being zeros. */
static __device__ __forceinline__ raw_key load_raw(const di_attend_args &args, const key_list &l,
                                                   const key_address *addresses, int32_t i,
                                                   int32_t dim) {
    raw_key raw;
    raw.kind = i >= l.n || dim >= args.head_dim ? 2 : i >= l.n_window ? 1 : 0;
    if (raw.kind == 2) return raw;
    key_address at = addresses[i];
    if (raw.kind == 0) {
        load_words<8>(at.codes + dim, raw.words);
        raw.scale = at.scales[dim / 32];
    } else {
        load_words<4>(at.codes + dim / 2, raw.words);
        raw.scale = at.scales[dim / 16] | static_cast<uint32_t>(at.scales[dim / 16 + 1]) << 8;
    }
    return raw;
}

/* Writes them as values part * 32 .. of row `key` of a tile. */
static __device__ __forceinline__ void store_key(const raw_key &raw, uint8_t *tile, int key,
                                                 int part) {
    uint8_t *slab = tile + part / 2 * SLAB_BYTES;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 values = make_uint4(0, 0, 0, 0);
        if (raw.kind == 0)
            values = decode_window8(raw.words[2 * i], raw.words[2 * i + 1], raw.scale);
        else if (raw.kind == 1)
            values = decode_entry8(raw.words[i], i < 2 ? raw.scale & 255u : raw.scale >> 8);
        *reinterpret_cast<uint4 *>(slab + slab_place(key, part % 2 * 4 + i)) = values;
    }
}

#endif
