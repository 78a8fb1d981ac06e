/* The warps that decode keys into tiles (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_DECODE_CUH
#define DI_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend_shared.cuh"

enum { NO_KEY, WINDOW_KEY, ENTRY_KEY };

/* Tiles whose keys are on their way while one is decoded. They lie where they will be decoded to, so
 * each takes one of PAIR_TILES from those that multiply. */
static constexpr int TILES_AHEAD = 1;

/* 32 values of a key: codes, of which an entry has four words, and a scale or two. Where they are
 * loaded ahead nothing is made of them before they are stored, so that loads are under way meanwhile. */
typedef struct raw_key {
    uint32_t words[8], scales;
    int kind; /* NO_KEY: beyond the list or the key; the rest is not set */
} raw_key;

static __device__ __forceinline__ void words_of(uint4 v, uint32_t *words) {
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

/* Values from `dim` on, of any alignment. Not by __ldg: they may have been written while this kernel
 * waited. */
static __device__ __forceinline__ void load_raw(key_address at, int32_t dim, raw_key &raw) {
    if (raw.kind == ENTRY_KEY) {
        const uint8_t *scales = at.scales + dim / 16;
        load_words<4>(at.codes + dim / 2, raw.words);
        raw.scales = scales[0] | static_cast<uint32_t>(scales[1]) << 8;
    } else if (raw.kind == WINDOW_KEY) {
        load_words<4>(at.codes + dim, raw.words);
        load_words<4>(at.codes + dim + 16, raw.words + 4);
        raw.scales = at.scales[dim / 32];
    }
}

/* Writes them to four places of a tile. */
static __device__ __forceinline__ void store_raw(const raw_key &raw, uint8_t *tile,
                                                 const int (&places)[4]) {
    uint32_t x[4][4] = {};
    if (raw.kind == ENTRY_KEY) {
        uint32_t factors[2];
        entry_factors(raw.scales, factors);
#pragma unroll
        for (int i = 0; i < 4; i++) decode_entry8(raw.words[i], factors[i / 2], x[i]);
    } else if (raw.kind == WINDOW_KEY) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            decode_window8(raw.words[2 * i], raw.words[2 * i + 1], raw.scales, x[i]);
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
        *reinterpret_cast<uint4 *>(tile + places[k]) =
            make_uint4(x[0][k], x[1][k], x[2][k], x[3][k]);
}

/* The same shared memory, whose address is not found out again wherever it is used. */
template <typename T> static __device__ __forceinline__ T *in_register(T *p) {
    uint32_t address = shared_address(p);
    asm volatile("" : "+r"(address));
    return static_cast<T *>(__cvta_shared_to_generic(address));
}

/* A warp has eight keys, and in one go four pieces of 32 of their values: neighbours in a row of
 * shared memory are then keys, which lie in different banks. */
template <int DC, bool WHOLE> struct tile_decoder {
    static constexpr int PIECES = DC / 32, GOES = PIECES > 4 ? PIECES / 4 : 1;
    const di_attend_args &args;
    const key_list &l;
    pair_shared<DC> *m;
    int rank, key, piece; /* piece: of the first go */
    int32_t list;         /* where it begins among all addresses */
    int places[4];

    __device__ __forceinline__ tile_decoder(const di_attend_args &a, const key_list &keys,
                                            pair_shared<DC> *memory, int block_rank)
        : args(a), l(keys), m(in_register(memory)), rank(block_rank) {
        int lane = lane_id();
        list = static_cast<int32_t>(keys.addresses - memory->addresses);
        key = (warp_id() - 2 * GROUP_WARPS) * 8 + lane % 8, piece = lane / 8;
#pragma unroll
        for (int k = 0; k < 4; k++)
            places[k] = piece / 2 * SLAB_BYTES + slab_place(key, piece % 2 * 4 + k);
    }

    /* Tile j: 4 i + k of the i-th pair of blocks of slots (pair_shared). */
    static __device__ __forceinline__ int stage_of(int j) { return (j >> 2 & 1) * 3 + (j & 3); }
    static __device__ __forceinline__ uint32_t parity_of(int j) {
        return static_cast<uint32_t>(j >> 3 & 1);
    }
    __device__ __forceinline__ int block_of(int j) const {
        return j >> 2 << 1 | (rank ^ (j >> 1 & 1));
    }
    /* Which half of the values it has. */
    __device__ __forceinline__ int half_of(int j) const { return rank ^ ((j & 3) == 0); }
    __device__ __forceinline__ int slot_of(int j) const { return block_of(j) * SLAB + key; }
    __device__ __forceinline__ bool has(int j) const { return block_of(j) * SLAB < l.n; }
    /* The first tile after tile j that there is, or one behind the last; after(-1): the first. */
    __device__ __forceinline__ int after(int j) const {
        j += (j & 3) == 2 ? 2 : 1;
        return has(j) ? j : j | 2;
    }

    __device__ __forceinline__ void load(int j, int go, raw_key &raw) const {
        int32_t at = slot_of(j), dim = half_of(j) * DC + (piece + 4 * go) * 32;
        bool live = at < l.n && dim < args.head_dim;
        raw.kind = !live ? NO_KEY : at < l.n_window ? WINDOW_KEY : ENTRY_KEY;
        if (live) load_raw(m->addresses[list + at], dim, raw);
    }
    __device__ __forceinline__ void store(int go, uint8_t *tile, const raw_key &raw) const {
        if (PIECES >= 4 || piece < PIECES) store_raw(raw, tile + go * 2 * SLAB_BYTES, places);
    }
    /* Begins to copy what this thread decodes of tile j to where it goes, codes to the first two of four
     * places, the word with their scales to the third: once that tile was read. */
    __device__ __forceinline__ void fetch(int j) const {
        int stage = stage_of(j), half = half_of(j);
        int32_t at = slot_of(j);
        barrier_wait(&m->empty[stage], parity_of(j) ^ 1);
        if (at >= l.n) return;
        key_address from = m->addresses[list + at];
        uint32_t tile = shared_address(m->tiles[stage]);
        if (at >= l.n_window) {
            const uint8_t *codes = from.codes + half * (DC / 2) + piece * 16;
            const uint8_t *scales = from.scales + half * (DC / 16) + piece / 2 * 4;
#pragma unroll
            for (int go = 0; go < GOES; go++, tile += 2 * SLAB_BYTES) {
                copy_16(tile + places[0], codes + go * 64);
                copy_4(tile + scale_place(), scales + go * 8);
            }
        } else {
            const uint8_t *codes = from.codes + half * DC + piece * 32;
            const uint8_t *scales = from.scales + half * (DC / 32);
#pragma unroll
            for (int go = 0; go < GOES; go++, tile += 2 * SLAB_BYTES) {
                copy_16(tile + places[0], codes + go * 128);
                copy_16(tile + places[1], codes + go * 128 + 16);
                copy_4(tile + scale_place(), scales + go * 4);
            }
        }
    }
    /* Of the 16 bytes a word that is in another bank for each piece. */
    __device__ __forceinline__ uint32_t scale_place() const {
        return static_cast<uint32_t>(places[2] + piece * 4);
    }
    /* Decodes what was fetched of tile j. */
    __device__ __forceinline__ void decode(int j) const {
        int32_t at = slot_of(j);
        int kind = at >= l.n ? NO_KEY : at < l.n_window ? WINDOW_KEY : ENTRY_KEY;
        uint8_t *tile = m->tiles[stage_of(j)];
        raw_key raw[GOES];
#pragma unroll
        for (int go = 0; go < GOES; go++) {
            const uint8_t *from = tile + go * 2 * SLAB_BYTES;
            raw[go].kind = kind;
            if (kind == NO_KEY) continue;
            words_of(*reinterpret_cast<const uint4 *>(from + places[0]), raw[go].words);
            if (kind == WINDOW_KEY)
                words_of(*reinterpret_cast<const uint4 *>(from + places[1]), raw[go].words + 4);
            uint32_t scales = *reinterpret_cast<const uint32_t *>(from + scale_place());
            raw[go].scales =
                kind == WINDOW_KEY ? scales >> piece * 8 & 255 : scales >> piece % 2 * 16;
        }
#pragma unroll
        for (int go = 0; go < GOES; go++) store_raw(raw[go], tile + go * 2 * SLAB_BYTES, places);
    }
};

/* Keys are copied TILES_AHEAD tiles before they are decoded. The fence between what is written here
 * and products stands where products are: here it would wait for copies under way too. */
template <int DC>
static __device__ __forceinline__ void decode_whole(const tile_decoder<DC, true> &d) {
    int j = d.after(-1), coming = j;
#pragma unroll 1
    for (int i = 0; i < TILES_AHEAD; i++, coming = d.after(coming)) {
        if (d.has(coming)) d.fetch(coming);
        copies_commit();
    }
#pragma unroll 1
    for (; d.has(j); j = d.after(j)) {
        if (d.has(coming)) d.fetch(coming);
        copies_commit();
        coming = d.after(coming);
        copies_wait<TILES_AHEAD>(); /* each thread reads what it copied */
        d.decode(j);
        warp_arrives(&d.m->full[d.stage_of(j)]);
    }
}

/* Keys of any width and alignment, which copies do not take: loaded one tile before they are decoded. */
template <int DC>
static __device__ __forceinline__ void decode_any(const tile_decoder<DC, false> &d) {
    using decoder = tile_decoder<DC, false>;
    raw_key raw[decoder::GOES];
    int j = d.after(-1);
#pragma unroll
    for (int go = 0; go < decoder::GOES; go++) d.load(j, go, raw[go]);
    while (d.has(j)) {
        int next = d.after(j), stage = d.stage_of(j);
        bool more = d.has(next);
        barrier_wait(&d.m->empty[stage], d.parity_of(j) ^ 1);
#pragma unroll
        for (int go = 0; go < decoder::GOES; go++) {
            d.store(go, d.m->tiles[stage], raw[go]);
            if (more) d.load(next, go, raw[go]);
        }
        warp_arrives(&d.m->full[stage]);
        j = next;
    }
}

template <int DC, bool WHOLE>
static __device__ __forceinline__ void decode_tiles(const di_attend_args &args, const key_list &l,
                                                    pair_shared<DC> *m, int rank) {
    if (l.n == 0) return;
    tile_decoder<DC, WHOLE> d(args, l, m, rank);
    if constexpr (WHOLE)
        decode_whole<DC>(d);
    else
        decode_any<DC>(d);
}

#endif
