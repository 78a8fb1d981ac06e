/* The keys of strips of a list on their way to shared memory, each warp's for itself, some turns
 * ahead: entries anyhow, and all visible ones. What the two have in common is that a turn is PAIR
 * entries, `fetch` asks for those of one turn, and `counts` says whether an entry may be taken.
 */
#ifndef DI_KERNELS_CUDA_INDEX_KEYS_CUH
#define DI_KERNELS_CUDA_INDEX_KEYS_CUH

#include "kernels/cuda/index_query.cuh"

static constexpr int TILE = 16, PAIR = 2 * TILE; /* entries of a product of a warp, and of a turn */
static_assert(PAIR == STRIP / (GROUP / WARP) && PAIR == WARP, "a lane an entry");
static constexpr int STAGES = 4, INDEX_GROUPS = INDEX_THREADS / GROUP;
static constexpr int KEY_BYTES = INDEX_DIM / 2;

/* A warp's entries on their way: the 16 bytes of block b of entry e at key_place, its four scales,
 * and of listed tiles which entries there are, bit by bit. */
typedef struct key_slot {
    uint8_t codes[PAIR * KEY_BYTES];
    uint32_t scales[PAIR];
    uint32_t there, unused[3];
} key_slot;
static_assert(sizeof(key_slot) % 16 == 0, "copied to by pieces of 16 bytes");

/* Eight entries' pieces of one block lie in different banks. */
static __device__ __forceinline__ int32_t key_place(int32_t entry, int32_t block) {
    return entry * KEY_BYTES + ((block ^ (entry >> 1 & 3)) << 4);
}

/* Which of a turn's entries a lane writes. */
static __device__ __forceinline__ int32_t stored_entry() {
    return lane_id() / 4 + 8 * (lane_id() % 4);
}

/* ---- Where they lie ---- */

/* What a warp asks for in advance, a lane an entry of its part of a strip. Three links: the number
 * of the candidate block, that of the page, the key. */
typedef struct key_finder {
    const int32_t *blocks; /* of the row's list, or NULL: the list is all entries */
    const int32_t *table;
    const uint8_t *codes, *scales; /* of entry 0 of page 0 */
    int32_t size, visible;         /* of the list, entries */
    int32_t size_bits, page_bits;  /* blocks of 1 << size_bits entries; -1: another size */
} key_finder;

/* Before index_scores_kernel waits, as is all of fetch: rows, positions, tables, published blocks
 * and keys are older than index_prepare_kernel, which waits before it lets this one begin. With
 * begin_early there this would read what is still written. */
static __device__ __forceinline__ key_finder finder_of(const di_index_select_args &args,
                                                       const index_pass &pass, int32_t r) {
    const di_pages &p = args.pages;
    int64_t t = pass.first + r;
    int32_t slot = cuda_at<const di_row>(args.batch.rows)[t].slot;
    key_finder f;
    f.blocks = args.candidate_mode == DI_CANDIDATES_USE
                   ? cuda_at<const int32_t>(args.candidates) + t * args.top_blocks
                   : NULL;
    f.table = cuda_at<const int32_t>(p.table) + static_cast<int64_t>(slot) * p.table_stride;
    f.codes = cuda_at<const uint8_t>(p.pool) + p.key_codes;
    f.scales = cuda_at<const uint8_t>(p.pool) + p.key_scales;
    f.size = list_size(args, pass, r);
    f.visible = visible_entries(args, t);
    f.page_bits = 6 - (__ffs(p.ratio) - 1);
    int32_t size = args.block_size;
    f.size_bits = size > 0 && (size & (size - 1)) == 0 ? __ffs(size) - 1 : -1;
    return f;
}

/* Link 1, of a place in the list; -1 or what link 2 takes. */
static __device__ __forceinline__ int32_t find_block(const key_finder &f, int32_t block_size,
                                                     int32_t place) {
    if (place >= f.size) return -1;
    if (f.blocks == NULL) return 0;
    return f.blocks[f.size_bits >= 0 ? place >> f.size_bits : place / block_size];
}
/* The entry, -1: none. */
static __device__ __forceinline__ int32_t entry_of(const key_finder &f, int32_t block_size,
                                                   int32_t place, int32_t block) {
    if (f.blocks == NULL) return block < 0 || place >= f.visible ? -1 : place;
    int32_t of = f.size_bits >= 0 ? place & (block_size - 1) : place % block_size;
    int32_t entry = block * block_size + of;
    return block >= 0 && entry < f.visible ? entry : -1;
}

/* Link 3: codes and scales into a slot; a lane's entry, and its page. ALIGNED: pieces of 16 and
 * scales of 4 bytes lie at such addresses and all of INDEX_DIM is there. */
template <bool ALIGNED>
static __device__ __forceinline__ void fetch_entries(const di_pages &p, const key_finder &f,
                                                     int32_t entry, int32_t page, key_slot *slot) {
    uint32_t lane = static_cast<uint32_t>(lane_id()), block = lane % 4;
    uint32_t dim = ALIGNED ? INDEX_DIM : static_cast<uint32_t>(p.di);
    uint32_t place = static_cast<uint32_t>(entry) & ((1u << f.page_bits) - 1);
    uint64_t at =
        static_cast<uint64_t>(static_cast<uint32_t>(page)) * static_cast<uint32_t>(p.page_bytes);
    uint64_t mine = at + place * (dim / 2); /* of the lane's own entry */
    uint32_t there = __ballot_sync(ALL_LANES, entry >= 0);
    int32_t to = key_place(static_cast<int32_t>(lane / 4), static_cast<int32_t>(block));
#pragma unroll
    for (uint32_t e = 0; e < PAIR; e += 8) { /* and lane / 4 */
        int from_lane = static_cast<int>(e + lane / 4);
        const uint8_t *from = f.codes + __shfl_sync(ALL_LANES, mine, from_lane) + 16 * block;
        uint8_t *piece = slot->codes + to + e * KEY_BYTES;
        bool wanted = (there >> from_lane & 1u) != 0 && 32 * block < dim;
        if (ALIGNED) {
            copy_16(piece, from, wanted ? 16 : 0);
        } else {
            uint32_t words[4] = {0, 0, 0, 0};
            if (wanted) load_words<4>(from, words);
            *reinterpret_cast<uint4 *>(piece) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
    const uint8_t *from = f.scales + at + place * (dim / 32);
    if (ALIGNED) {
        copy_4(&slot->scales[lane], from, entry >= 0 ? 4 : 0);
    } else {
        uint32_t scale = 0;
        if (entry >= 0)
            for (uint32_t i = 0; i < dim / 32; i++)
                scale |= static_cast<uint32_t>(from[i]) << (8 * i);
        slot->scales[lane] = scale;
    }
    if (lane == 0) slot->there = there;
}

/* ---- The turns of a warp ---- */

/* A warp's way through its pairs of tiles: of strips begin .. of row r, which warpgroups take in
 * turn. */
typedef struct tile_run {
    int32_t n, first; /* turns, and the first place in the list of turn 0 */
    uint32_t slots;   /* shared address of STAGES slots */
} tile_run;
static constexpr int TURN_STEP = INDEX_GROUPS * STRIP; /* from one turn to the next */

/* Entries of a list of published blocks, or whose keys lie anyhow: each has its own address. */
template <bool ALIGNED> struct listed_tiles {
    const di_index_select_args &args;
    const tile_run &run;
    key_finder f;
    key_slot *slots;
    int32_t block, entry, page;

    __device__ __forceinline__ int32_t place(int32_t i) const {
        return run.first + i * TURN_STEP + lane_id();
    }
    __device__ __forceinline__ int32_t block_at(int32_t i) const {
        return i < run.n ? find_block(f, args.block_size, place(i)) : -1;
    }
    __device__ __forceinline__ int32_t page_of(int32_t of) const {
        return of < 0 ? 0 : f.table[of >> f.page_bits];
    }
    __device__ __forceinline__ listed_tiles(const di_index_select_args &a, const tile_run &tiles,
                                            const key_finder &finder, key_slot *memory)
        : args(a), run(tiles), f(finder), slots(memory) {
        block = block_at(0);
        entry = entry_of(f, args.block_size, place(0), block);
        page = page_of(entry);
        block = block_at(1);
    }
    /* Fetches what turn i takes, asks for what is ahead of it. */
    __device__ __forceinline__ void fetch(int32_t i) {
        int32_t next = entry_of(f, args.block_size, place(i + 1), block), next_page = page_of(next);
        block = block_at(i + 2);
        fetch_entries<ALIGNED>(args.pages, f, entry, page,
                               slots + static_cast<uint32_t>(i) % STAGES);
        entry = next, page = next_page;
    }
    /* Whether this lane's entry of a turn, at a place of the list, may be taken. slot: the
     * turn's. */
    __device__ __forceinline__ bool counts(int32_t, uint32_t slot) const {
        uint32_t there = load_shared_32(slot + static_cast<uint32_t>(offsetof(key_slot, there)));
        return (there >> stored_entry() & 1u) != 0;
    }
};

/* Entries of a list of all visible ones: those of a turn are part of one page, where their keys lie
 * one behind the other. What lies behind the last visible entry may be read and is not counted. */
struct running_tiles {
    const int32_t *table; /* where the page of the next turn stands */
    const uint8_t *codes,
        *scales; /* of page 0, this lane's piece of a turn: the place is always one */
    uint32_t page_bytes, to, scales_to, slots; /* to: in a slot, where this lane's pieces go */
    int32_t page_step, n, visible, page;       /* n: turns with entries */

    __device__ __forceinline__ int32_t page_at(int32_t i) {
        int32_t of = i < n ? *table : 0;
        table += page_step;
        return of;
    }
    __device__ __forceinline__ running_tiles(const di_index_select_args &args, const tile_run &run,
                                             const key_finder &f)
        : table(f.table + (run.first >> f.page_bits)), slots(run.slots),
          page_step(TURN_STEP >> f.page_bits), visible(f.visible) {
        int32_t lane = lane_id(), place = run.first & ((1 << f.page_bits) - 1);
        static_assert(TURN_STEP % 64 == 0, "whole pages from one turn to the next");
        n = min(run.n, ceil_div(max(visible - run.first, 0), TURN_STEP));
        codes = f.codes + place * KEY_BYTES + 16 * lane;
        scales = f.scales + place * KEY_BLOCKS + 16 * (lane % 8);
        page_bytes = static_cast<uint32_t>(args.pages.page_bytes);
        to = held(static_cast<uint32_t>(key_place(lane / 4, lane % 4)));
        scales_to = held(static_cast<uint32_t>(offsetof(key_slot, scales)) + 16u * (lane % 8));
        page = page_at(0);
    }
    __device__ __forceinline__ void fetch(int32_t i) {
        uint32_t slot = slots + static_cast<uint32_t>(i) % STAGES * sizeof(key_slot);
        uint64_t from = static_cast<uint64_t>(static_cast<uint32_t>(page)) * page_bytes;
        page = page_at(i + 1);
        if (i >= n) return;
        const uint8_t *mine = codes + from;
#pragma unroll
        for (int e = 0; e < PAIR; e += 8) copy_16(slot + to + e * KEY_BYTES, mine + e * KEY_BYTES);
        if (to < 2 * KEY_BYTES) /* eight lanes: those of entries 0 and 1 */
            copy_16(slot + scales_to, scales + from);
    }
    __device__ __forceinline__ bool counts(int32_t place, uint32_t) const {
        return place < visible;
    }
};

#endif
