/* KV pages: which page of the device holds what, who may use it, and how it is found again.
 *
 * The bytes lie on the device and belong to the model's context; here a page is a number, 0 to
 * n_pages - 1, that holds 64 tokens (DI_PAGE_TOKENS). This module decides who may write a page, who
 * shares it, under which name it is found, and which one goes when room is needed. It never touches
 * a byte of a page, never waits and, after creation, allocates nothing.
 *
 * The life of a page:
 *
 *     free --extend--> private --settle--> named <--admit/release--> cached
 *       ^                 |                  (in the index)             |
 *       '----release------'                                             '--> private, when taken
 *
 *   free     nobody's.
 *   private  one sequence writes it. It has no name, for its tokens may yet be rewound.
 *   named    read-only for ever: its name says all that its bytes depend on. Counted: one reference
 *            for each sequence that holds it.
 *   cached   named and held by no sequence: found by the next prompt with the same beginning, or
 *            taken, the least recently used first, when nothing is free.
 *
 * What the engine does, in order:
 *   submission   di_kv_name_root and di_kv_name_chain: names of the prompt's pages, once. Pure.
 *   admission    di_kv_find to see how much would be a hit; di_kv_admit takes the hits and promises
 *                the rest, all or nothing. False: not now; it is tried again after a release.
 *   each step    di_kv_extend to the length after the step and the overrun (12 tokens). Within what
 *                was promised it cannot fail.
 *   after it     di_kv_settle with the position below which nothing is rewound any more.
 *   n > 1        di_kv_fork: named pages are shared, the others are copied by the caller.
 *   end, cancel, pre-emption: di_kv_release. What was named stays findable while there is room.
 *
 * An engine that promises each sequence all the pages it may ever need never has to stop one. One
 * that promises less (di_kv_admit with fewer, more by di_kv_reserve) admits more and must pre-empt
 * when extend says false. Mixed is fine: a promise is kept whatever the others do.
 *
 * One thread, the engine's, calls everything here, but for the functions that say "any thread".
 * Exhaustion is false, never an abort. README.md of this folder has the invariants.
 */
#ifndef DI_KV_KV_H
#define DI_KV_KV_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/error.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* ---- Names ---- */

/* A SHA-256 over everything that a page's bytes depend on. The same name is the same page on the
 * device, in memory, on a disk and on another machine. */
typedef struct di_kv_name {
    uint8_t bytes[32];
} di_kv_name;

/* Whose weights: SHA-256 of config.json, tokenizer.json (or token_map.json), and of every shard its
 * size, its header and 64 samples of 4 KiB spread evenly over its data. Reads some 300 KiB a shard,
 * whatever its size; holes of sparse files count as zeros. Reads files, so it blocks; any thread.
 * DI_ERR_IO, DI_ERR_INVALID or DI_ERR_MEMORY with the file's path. */
di_status di_kv_fingerprint(const char *directory, const di_checkpoint *checkpoint,
                            di_kv_name *fingerprint, di_error *error);

/* What all pages of a request have in common. */
typedef struct di_kv_root {
    di_kv_name fingerprint;
    const char *numerics; /* "float", "release" */
    /* What rounds alike: backend and instruction set, "cpu-avx2". Backends that give the same bits
     * may share a name here, and then share pages. */
    const char *kernels;
    /* The tenant: requests with different salts never see each other's pages, not even by the time
     * a prompt takes. Any bytes, none for a service of one tenant. */
    const void *salt;
    uint64_t salt_bytes;
} di_kv_root;

/* The parent of a request's first page. Any thread. */
di_kv_name di_kv_name_root(const di_kv_root *root);

/* The page after `parent` with these 64 ids. `content` are 64 hashes of what stands behind ids that
 * do not tell by themselves (images), 0 for text; NULL: all 0. Any thread. */
di_kv_name di_kv_name_page(const di_kv_name *parent, const int32_t *ids, const uint64_t *content);

/* Names of n_pages pages from `parent` on; ids [64 n_pages], content the same or NULL. Any thread.
 * 0.65 us a page: 16,384 pages, a million tokens, take 11 ms. */
void di_kv_name_chain(const di_kv_name *parent, const int32_t *ids, const uint64_t *content,
                      int32_t n_pages, di_kv_name *names);

/* The lineage of pages written after a `bounded` replay at `position` (64 times the pages of the
 * hit): their bytes depend on where the hit fell, so they are chained to this instead of to
 * `parent`, the hit's last page, and are invisible to `exact` and `stable`, which share all names.
 * A link in the chain and not a part of the root, so that the pages before the replay stay shared
 * by all modes, and a conversation that is replayed at every turn is found again. Any thread. */
di_kv_name di_kv_name_replay(const di_kv_name *parent, int64_t position);

static inline bool di_kv_name_equal(const di_kv_name *a, const di_kv_name *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- The pool ---- */

typedef struct di_kv di_kv;

/* A pool of n_pages free pages, 1 to 2^28. With prefix_cache false nothing is ever found and
 * released pages are free at once; everything else is the same. DI_ERR_USAGE, DI_ERR_MEMORY. */
di_status di_kv_create(int32_t n_pages, bool prefix_cache, di_kv **out, di_error *error);
/* Sequences are released before, or never used again. NULL is fine. */
void di_kv_destroy(di_kv *kv);

/* Counts now, all kept up to date, and sums since creation. */
typedef struct di_kv_stats {
    int32_t n_pages;                              /* = free + private + named + cached */
    int32_t n_free, n_private, n_named, n_cached; /* by state */
    int32_t n_reserved;                           /* promised, not yet taken; <= free + cached */
    uint64_t admissions;                          /* calls of di_kv_admit that succeeded */
    uint64_t hit_pages, miss_pages;               /* of the pages that they looked for */
    uint64_t named;                               /* pages that entered the index */
    uint64_t adopted;                             /* settled pages that were there already */
    uint64_t evicted;                             /* cached pages taken for something else */
} di_kv_stats;
di_kv_stats di_kv_get_stats(const di_kv *kv);

/* Pages that can still be promised: free + cached - reserved. */
int32_t di_kv_spare(const di_kv *kv);

/* Forgets all cached pages; they are free then. For a cold start without a restart. */
void di_kv_forget(di_kv *kv);

/* ---- Sequences ---- */

/* The pages of one sequence, in order: position p lies in pages[p / 64]. Embedded by the engine in
 * its sequence; read by it (the device's page table is a copy of `pages`), changed only here. */
typedef struct di_kv_sequence {
    int32_t *pages;    /* [max_pages], the first n_pages are held */
    int32_t max_pages; /* the longest sequence */
    int32_t n_pages;
    int32_t n_named;    /* the first so many are named, the others private */
    int32_t n_reserved; /* promised to this sequence and not yet taken */
    di_kv_name tail;    /* what the next page is chained to: the last name, or the root */
} di_kv_sequence;

/* Makes an empty sequence for at most max_pages pages (>= 1). DI_ERR_MEMORY. */
di_status di_kv_sequence_init(di_kv_sequence *sequence, int32_t max_pages, di_error *error);
/* Of a released sequence, or of one zeroed. */
void di_kv_sequence_deinit(di_kv_sequence *sequence);

/* The prompt as admission sees it. Kept by the engine with a waiting request. */
typedef struct di_kv_prompt {
    di_kv_name root;
    const di_kv_name *names; /* [n_pages], di_kv_name_chain from root */
    int32_t n_pages;         /* whole pages that may be hits, without the last token: it must run */
    /* Only for `bounded`: go on with pages written after a replay where those of the plain chain
     * end. Needs ids [64 n_pages], and content or NULL, since such names are made on the way. */
    bool follow_replays;
    const int32_t *ids;
    const uint64_t *content;
} di_kv_prompt;

/* How many of the first max_hits pages are there. Takes nothing. 40 ns a page.
 * With follow_replays the plain chain is followed as far as it goes, then one of a replay at that
 * very place, and so on: linear, and it finds what a conversation left. It may miss a longer one
 * that left the plain chain earlier. */
typedef struct di_kv_match {
    int32_t n_pages;  /* hits */
    int32_t n_cached; /* of them held by no sequence: taking one leaves one page less to promise */
} di_kv_match;
di_kv_match di_kv_find(const di_kv *kv, const di_kv_prompt *prompt, int32_t max_hits);

/* Begins an empty sequence: takes the hits among the first max_hits pages of the prompt and
 * promises the rest of n_total, the pages it may ever hold (or fewer, see the head). False and
 * nothing changed when that does not fit now. It always fits into a pool that nobody else uses if
 * n_total <= n_pages and <= max_pages; a request that wants more must be refused at submission.
 * The sequence's 64 * n_pages tokens are there; what they leave behind in windows, replay or a
 * snapshot must bring. */
bool di_kv_admit(di_kv *kv, di_kv_sequence *sequence, const di_kv_prompt *prompt, int32_t max_hits,
                 int32_t n_total) __attribute__((warn_unused_result));

/* The sequence was admitted with hits and `bounded` replays its window: what is settled from here
 * on is of that lineage. Directly after di_kv_admit; without hits nothing changes. */
void di_kv_mark_replay(di_kv_sequence *sequence);

/* Promises n_more pages on top; false and nothing changed when they are not to be had now. */
bool di_kv_reserve(di_kv *kv, di_kv_sequence *sequence, int32_t n_more)
    __attribute__((warn_unused_result));

/* Takes private pages until n_tokens fit; first those promised, then others while they last. False
 * and nothing changed when there are not enough, or n_tokens is beyond max_pages. New pages hold
 * what they held: their entries are written before they are read. The caller copies
 * pages[old n_pages .. n_pages) to the device's table before the step that uses them. */
bool di_kv_extend(di_kv *kv, di_kv_sequence *sequence, int64_t n_tokens)
    __attribute__((warn_unused_result));

typedef enum di_kv_settled {
    DI_KV_NOTHING, /* no further page is whole below n_settled */
    DI_KV_NAMED,   /* one page more is named; its number did not change */
    DI_KV_ADOPTED /* the page was there already, with the same bytes: pages[n_named - 1] is now that
                     one and must go to the device's table; the sequence's own is free again */
} di_kv_settled;

/* Names the next private page if its 64 tokens lie below n_settled. The caller promises that those
 * tokens are never rewound and that every write to the page is enqueued before whatever is enqueued
 * from now on: n_settled is the length minus the rollback margin and minus what is in flight, or
 * the whole length of a prompt that is computed, or of a sequence that has ended (without its
 * overrun). Call it until it says nothing. ids, content (or NULL): from position 0, at least
 * n_settled of them. Pages filled from a tier are settled the same way. */
di_kv_settled di_kv_settle(di_kv *kv, di_kv_sequence *sequence, const int32_t *ids,
                           const uint64_t *content, int64_t n_settled);

/* Makes the empty `to` a copy of the first n_tokens of `from`: the named pages are shared, the
 * others taken new, up to n_total in all promised. The caller copies on the device
 * from->pages[i] to to->pages[i] for i in [to->n_named, to->n_pages), and the window. False and
 * nothing changed when it does not fit. n_tokens must not be less than the named pages hold. */
bool di_kv_fork(di_kv *kv, const di_kv_sequence *from, di_kv_sequence *to, int64_t n_tokens,
                int32_t n_total) __attribute__((warn_unused_result));

/* Gives everything back; the sequence is empty. Private pages are free, named ones that nobody else
 * holds are cached, the last page the first to go. Pages may be handed out again at once: steps
 * already enqueued may still write to them, those enqueued later are in order behind. Whoever reads
 * a page outside the stream keeps the sequence until that is done. */
void di_kv_release(di_kv *kv, di_kv_sequence *sequence);

/* For tests and debug builds: every invariant of README.md, with the sequences [n] that hold pages
 * (all of them, or the counts will not agree). DI_ERR_INVALID says which is broken. Allocates. */
di_status di_kv_check(const di_kv *kv, const di_kv_sequence *const *sequences, int32_t n,
                      di_error *error);

#endif
