/* The warps that decode keys into tiles (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_DECODE_CUH
#define DI_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend_shared.cuh"

enum { NO_KEY, WINDOW_KEY, ENTRY_KEY };

/* What a thread takes in one go: 32 values of a key of any kind, or of an entry of the largest width 32
 * of the first and 32 of the second half of the tile. */
typedef struct raw_key {
    uint32_t words[8], scales[2]; /* an entry's 32 values: four words, and two scales in one */
} raw_key;

static __device__ __forceinline__ void words_of(uint4 v, uint32_t *words) {
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
}

/* 32 values to four places of a tile, of which this is the first (slab_place). */
static __device__ __forceinline__ void store_values(const uint32_t (&x)[4][4], uint8_t *tile,
                                                    int place) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        *reinterpret_cast<uint4 *>(tile + (place ^ k << 4)) =
            make_uint4(x[0][k], x[1][k], x[2][k], x[3][k]);
}
static __device__ __forceinline__ void store_entry(const uint32_t *words, uint32_t scales,
                                                   uint8_t *tile, int place) {
    uint32_t factors[2], x[4][4];
    entry_factors(scales, factors);
#pragma unroll
    for (int i = 0; i < 4; i++) decode_entry8(words[i], factors[i / 2], x[i]);
    store_values(x, tile, place);
}
static __device__ __forceinline__ void store_window(const raw_key &raw, uint8_t *tile, int place) {
    uint32_t x[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        decode_window8(raw.words[2 * i], raw.words[2 * i + 1], raw.scales[0], x[i]);
    store_values(x, tile, place);
}

/* The same shared memory, whose address is not found out again wherever it is used. */
template <typename T> static __device__ __forceinline__ T *in_register(T *p) {
    return static_cast<T *>(__cvta_shared_to_generic(kept(shared_address(p))));
}

/* A go: part `part` of tile j = 4 i + k of the i-th pair of blocks of slots (pair_shared) of all rows. */
typedef struct tile_go {
    int j, part;
    bool both; /* all parts at once */
} tile_go;

/* Where the decoders are: row r has the tiles from `first` to before `end`. */
typedef struct tile_place {
    pair_row row;
    uint32_t r;
    int first, end;
    tile_go go;
} tile_place;

/* Where a go's values are loaded from. */
typedef struct raw_place {
    key_address at;
    int kind;
} raw_place;

/* A warp has eight keys, and in one go four pieces of 32 of their values: neighbours in a row of
 * shared memory are then keys, which lie in different banks. A tile takes a go for each of its halves
 * (GOES), or one for both where all keys are entries. */
template <int DC, bool WHOLE> struct tile_decoder {
    static constexpr int PIECES = DC / 32, GOES = PIECES > 4 ? PIECES / 4 : 1;
    const di_attend_args &args;
    pair_shared<DC> *m;
    int rank, key, piece; /* piece: of the first go */
    int place;            /* in a tile, of the first eight values */

    __device__ __forceinline__ tile_decoder(const di_attend_args &a, pair_shared<DC> *memory,
                                            int block_rank)
        : args(a), m(in_register(memory)), rank(block_rank) {
        int lane = lane_id();
        key = (warp_id() - 2 * GROUP_WARPS) * 8 + lane % 8, piece = lane / 8;
        place = piece / 2 * SLAB_BYTES + slab_place(key, piece % 2 * 4);
    }

    static __device__ __forceinline__ int stage_of(int j) { return (j >> 2 & 1) * 3 + (j & 3); }
    __device__ __forceinline__ int block_of(const tile_place &p) const {
        return (p.go.j - p.first) >> 2 << 1 | (rank ^ (p.go.j >> 1 & 1));
    }
    __device__ __forceinline__ void begin_row(tile_place &p) const {
        p.row = await_row(m, p.r);
        p.first = p.go.j, p.end = p.go.j + 4 * p.row.pairs();
    }
    /* The next go; p.row.t is -1 behind the last one. */
    __device__ __forceinline__ void move_on(tile_place &p) const {
        if (!p.go.both && ++p.go.part < GOES) return;
        p.go.part = 0;
        p.go.j += (p.go.j & 3) == 2 ? 2 : 1;
        if (p.go.j < p.end) return;
        p.r++;
        begin_row(p);
    }
    /* Finds where the go at p has its values, and whether it takes the tile at once. */
    __device__ __forceinline__ raw_place find(tile_place &p) const {
        const int32_t width = WHOLE ? 2 * DC : args.head_dim;
        int32_t begin = block_of(p) * SLAB, slot = begin + key;
        raw_place from = {{NULL, NULL}, NO_KEY};
        p.go.both = WHOLE && GOES == 2 && begin >= p.row.n_window;
        int32_t dim = (rank ^ ((p.go.j & 3) == 0)) * DC + (piece + 4 * p.go.part) * 32;
        if (slot >= p.row.n || (!WHOLE && dim >= width)) return from;
        uint32_t which = m->keys[p.row.begin + slot];
        from.kind = slot < p.row.n_window ? WINDOW_KEY : ENTRY_KEY;
        from.at = from.kind == WINDOW_KEY ? window_key_at(args, which, width)
                                          : entry_key_at(args.pages, which, width);
        if (from.kind == WINDOW_KEY)
            from.at.codes += dim, from.at.scales += dim / 32;
        else
            from.at.codes += dim / 2, from.at.scales += dim / 16;
        return from;
    }
    /* Begins to copy a go to this thread's places among raw keys: codes, and the words in which its
     * scales are. */
    __device__ __forceinline__ void fetch(const raw_place &from, bool both) const {
        uint32_t codes = shared_address(&m->raw_codes[0][threadIdx.x - 2 * GROUP]);
        uint32_t scales = shared_address(&m->raw_scales[0][threadIdx.x - 2 * GROUP]);
        const uint8_t *words = reinterpret_cast<const uint8_t *>(
            reinterpret_cast<uint64_t>(from.at.scales) & ~UINT64_C(3));
        if (from.kind != NO_KEY) {
            copy_16(codes, from.at.codes);
            copy_4(scales, words);
        }
        if (from.kind == WINDOW_KEY) {
            copy_16(codes + sizeof m->raw_codes[0], from.at.codes + 16);
        } else if (from.kind == ENTRY_KEY && both) {
            copy_16(codes + sizeof m->raw_codes[0], from.at.codes + 64);
            copy_4(scales + sizeof m->raw_scales[0], words + 8);
        }
        copies_commit();
    }
    /* What was fetched; of a go that is no copy's (of any alignment) it is loaded here. Not by __ldg: it
     * may have been written while this kernel waited. */
    __device__ __forceinline__ void take(const raw_place &from, raw_key &raw) const {
        if constexpr (WHOLE) {
            copies_wait<0>(); /* each thread reads what it copied */
            const int me = static_cast<int>(threadIdx.x) - 2 * GROUP;
            words_of(m->raw_codes[0][me], raw.words);
            words_of(m->raw_codes[1][me], raw.words + 4);
            raw.scales[0] = m->raw_scales[0][me], raw.scales[1] = m->raw_scales[1][me];
            if (from.kind == WINDOW_KEY)
                raw.scales[0] = raw.scales[0] >> piece * 8 & 255;
            else
                raw.scales[0] >>= piece % 2 * 16, raw.scales[1] >>= piece % 2 * 16;
        } else if (from.kind == ENTRY_KEY) {
            load_words<4>(from.at.codes, raw.words);
            raw.scales[0] = from.at.scales[0] | static_cast<uint32_t>(from.at.scales[1]) << 8;
        } else if (from.kind == WINDOW_KEY) {
            load_words<4>(from.at.codes, raw.words);
            load_words<4>(from.at.codes + 16, raw.words + 4);
            raw.scales[0] = *from.at.scales;
        }
    }
    __device__ __forceinline__ void store(const raw_key &raw, int kind, uint8_t *tile,
                                          bool both) const {
        const uint32_t none[4][4] = {};
        if (PIECES < 4 && piece >= PIECES) return;
        if (kind == WINDOW_KEY) {
            store_window(raw, tile, place);
        } else if (kind == ENTRY_KEY) {
            store_entry(raw.words, raw.scales[0], tile, place);
            if (both) store_entry(raw.words + 4, raw.scales[1], tile + 2 * SLAB_BYTES, place);
        } else {
            store_values(none, tile, place);
            if (both) store_values(none, tile + 2 * SLAB_BYTES, place);
        }
    }
};

/* Keys are fetched a go before they are decoded, and where they are is found before what was fetched is
 * awaited. The fence between what is written here and products stands where products are: here it would
 * wait for copies too. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void decode_tiles(const di_attend_args &args, pair_shared<DC> *m,
                                                    int rank) {
    tile_decoder<DC, WHOLE> d(args, m, rank);
    tile_place p = {};
    raw_key raw = {};
    d.begin_row(p);
    if (p.row.t < 0) return;
    raw_place from = d.find(p);
    if (WHOLE) d.fetch(from, p.go.both);
#pragma unroll 1
    while (p.row.t >= 0) {
        const tile_go now = p.go;
        const raw_place here = from;
        int stage = d.stage_of(now.j);
        d.move_on(p);
        if (p.row.t >= 0) from = d.find(p);
        d.take(here, raw);
        if (WHOLE && p.row.t >= 0) d.fetch(from, p.go.both);
        if (now.part == 0)
            barrier_wait(&d.m->empty[stage], static_cast<uint32_t>(now.j >> 3 & 1) ^ 1);
        d.store(raw, here.kind, d.m->tiles[stage] + now.part * 2 * SLAB_BYTES, now.both);
        if (p.go.part == 0) warp_arrives(&d.m->full[stage]);
    }
}

#endif
