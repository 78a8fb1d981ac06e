/* The warps that decode keys into tiles (attend_pair.cuh). */
#ifndef DI_KERNELS_CUDA_ATTEND_DECODE_CUH
#define DI_KERNELS_CUDA_ATTEND_DECODE_CUH

#include "kernels/cuda/attend_shared.cuh"

enum { NO_KEY, WINDOW_KEY, ENTRY_KEY };

/* GOES times 32 values of an entry on their way: codes and scales, first ones in lower bytes. Nothing
 * is made of them before they are stored, so that loads are under way meanwhile. Of a window's key
 * nothing is: it would take twice the registers, and most keys are entries. */
template <int GOES> struct raw_key {
    uint32_t words[GOES][4], scales;
    int kind, goes; /* NO_KEY: beyond the list; goes: how many there are, the rest is not set */
};

template <bool WHOLE>
static __device__ __forceinline__ void load_words16(const uint8_t *from, uint32_t *words) {
    if (WHOLE) {
        uint4 v = load_early(reinterpret_cast<const uint4 *>(from));
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
        load_words<4>(from, words);
    }
}

/* 2 N scales, of which 2 `n` are there. */
template <int N, bool WHOLE>
static __device__ __forceinline__ uint32_t load_scales(const uint8_t *from, int n) {
    if (WHOLE && N == 2) return __ldg(reinterpret_cast<const uint32_t *>(from));
    uint32_t scales = 0;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        if (i < 2 * n) scales |= static_cast<uint32_t>(from[i]) << 8 * i;
    return scales;
}

/* An entry's values from `dim` on. */
template <int GOES, bool WHOLE>
static __device__ __forceinline__ void load_raw(key_address at, int32_t dim, raw_key<GOES> &raw) {
#pragma unroll
    for (int go = 0; go < GOES; go++)
        if (WHOLE || go < raw.goes)
            load_words16<WHOLE>(at.codes + dim / 2 + 16 * go, raw.words[go]);
    raw.scales = load_scales<GOES, WHOLE>(at.scales + dim / 16, raw.goes);
}

/* Four times eight values to four places of a tile. */
static __device__ __forceinline__ void store_values(const uint32_t (&x)[4][4], uint8_t *tile,
                                                    const int (&places)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        *reinterpret_cast<uint4 *>(tile + places[k]) =
            make_uint4(x[0][k], x[1][k], x[2][k], x[3][k]);
}

template <int GOES, bool WHOLE>
static __device__ __forceinline__ void store_entry(const raw_key<GOES> &raw, uint8_t *tile,
                                                   const int (&places)[GOES][4]) {
#pragma unroll
    for (int go = 0; go < GOES; go++) {
        uint32_t x[4][4] = {}, factors[2];
        if (raw.kind == ENTRY_KEY && (WHOLE || go < raw.goes)) {
            entry_factors(raw.scales >> 16 * go, factors);
#pragma unroll
            for (int i = 0; i < 4; i++) decode_entry8(raw.words[go][i], factors[i / 2], x[i]);
        }
        store_values(x, tile, places[go]);
    }
}

/* Values from `dim` on of a window's key, of which GOES or `goes` times 32 are there. */
template <int GOES, bool WHOLE>
static __device__ __forceinline__ void store_window(key_address at, int32_t dim, int goes,
                                                    uint8_t *tile, const int (&places)[GOES][4]) {
    uint32_t words[GOES][8], scales[GOES];
#pragma unroll
    for (int go = 0; go < GOES; go++)
        if (WHOLE || go < goes) {
            load_words16<WHOLE>(at.codes + dim + 32 * go, words[go]);
            load_words16<WHOLE>(at.codes + dim + 32 * go + 16, words[go] + 4);
            scales[go] = __ldg(at.scales + dim / 32 + go);
        }
#pragma unroll
    for (int go = 0; go < GOES; go++) {
        uint32_t x[4][4] = {};
        if (WHOLE || go < goes) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                decode_window8(words[go][2 * i], words[go][2 * i + 1], scales[go], x[i]);
        }
        store_values(x, tile, places[go]);
    }
}

/* A warp has eight keys, a thread 32 or 64 values of one in every tile: neighbours in a row of shared
 * memory are then keys, which lie in different banks. */
template <int DC, bool WHOLE> struct tile_decoder {
    static constexpr int PIECES = DC / 32, GOES = PIECES > 4 ? PIECES / 4 : 1;
    using raw = raw_key<GOES>;
    const di_attend_args &args;
    const key_list &l;
    pair_shared<DC> *m;
    int rank, key, piece; /* piece: of GOES times 32 values */
    int places[GOES][4];
    uint32_t nothing; /* 0, which the compiler does not know */
    key_address at;   /* of the block of slots whose loads are under way */
    int kind;

    __device__ __forceinline__ tile_decoder(const di_attend_args &a, const key_list &list,
                                            pair_shared<DC> *memory, int block_rank)
        : args(a), l(list), m(memory), rank(block_rank) {
        int lane = lane_id();
        key = (warp_id() - 2 * GROUP_WARPS) * 8 + lane % 8, piece = lane / 8;
        nothing = static_cast<uint32_t>(args.batch.n_rows) >> 31;
#pragma unroll
        for (int go = 0; go < GOES; go++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int place = piece * GOES + go;
                places[go][k] = place / 2 * SLAB_BYTES + slab_place(key, place % 2 * 4 + k);
            }
    }

    __device__ __forceinline__ int slot_of(int u) const { return (2 * u + rank) * SLAB + key; }

    /* The key of own block u, whose loads come next. */
    __device__ __forceinline__ void turn_to(int u) {
        int32_t slot = slot_of(u);
        kind = slot >= l.n ? NO_KEY : slot < l.n_window ? WINDOW_KEY : ENTRY_KEY;
        if (kind != NO_KEY) at = l.addresses[slot];
    }
    __device__ __forceinline__ int32_t first_dim(int half) const {
        return (half == AWAY ? rank ^ 1 : rank) * DC + piece * GOES * 32;
    }
    /* A half of it: AWAY or HERE. `before`: what was loaded before this; it has to be there first,
     * since a thread that waits for a load waits for later ones too. */
    __device__ __forceinline__ void load(int half, const raw &before, raw &r) const {
        uint32_t wait = before.words[0][0] ^ before.words[GOES - 1][0] ^ before.scales;
        int32_t dim = first_dim(half) + static_cast<int32_t>(wait & nothing);
        int32_t left = (args.head_dim - dim) / 32;
        r.goes = WHOLE || left > GOES ? GOES : left > 0 ? left : 0;
        r.kind = kind;
        if (kind == ENTRY_KEY && (PIECES >= 4 || piece < PIECES)) load_raw<GOES, WHOLE>(at, dim, r);
    }
    __device__ __forceinline__ void store(int u, int half, const raw &r) const {
        int stage = u % PAIR_STAGES;
        uint8_t *tile = m->tiles[stage][half];
        barrier_wait(&m->empty[stage][half], (u / PAIR_STAGES & 1) ^ 1);
        if (PIECES >= 4 || piece < PIECES) {
            if (r.kind == WINDOW_KEY)
                store_window<GOES, WHOLE>(l.addresses[slot_of(u)], first_dim(half), r.goes, tile,
                                          places);
            else
                store_entry<GOES, WHOLE>(r, tile, places);
        }
        shared_for_products();
        __syncwarp();
        if (lane_id() == 0) barrier_arrive(&m->full[stage][half]);
    }
    /* Asks for a whole own block, eight keys a warp: loads of it come soon. */
    __device__ __forceinline__ void ask(int u) const {
        int32_t slot = slot_of(u), quarter = (WHOLE ? 2 * DC : args.head_dim) / 4, part = piece;
        if (slot >= l.n) return;
        key_address from = l.addresses[slot];
        if (slot >= l.n_window) {
            ask_for(from.codes + part * (quarter / 2));
        } else {
            ask_for(from.codes + part * quarter);
            ask_for(from.codes + part * quarter + quarter / 2);
        }
        if (part == 0) ask_for(from.scales);
    }
};

/* All own blocks. Keys are asked for two blocks, and loaded one, before they are decoded. */
template <int DC, bool WHOLE>
static __device__ __forceinline__ void decode_tiles(const di_attend_args &args, const key_list &l,
                                                    pair_shared<DC> *m, int rank) {
    using decoder = tile_decoder<DC, WHOLE>;
    decoder d(args, l, m, rank);
    typename decoder::raw away = {}, here = {};
    int n = blocks_of(l.n, rank);
    if (n == 0) return;
    d.turn_to(0);
    d.load(AWAY, here, away);
    d.load(HERE, here, here);
    d.ask(0);
    d.ask(1);
#pragma unroll 1
    for (int u = 0; u < n; u++) {
        d.ask(u + 2);
        d.store(u, AWAY, away);
        d.turn_to(u + 1);
        d.load(AWAY, here, away);
        d.store(u, HERE, here);
        d.load(HERE, away, here);
    }
}

#endif
