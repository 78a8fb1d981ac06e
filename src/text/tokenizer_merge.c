/* Byte-pair merges of one piece. Always the merge of lowest rank among the neighbours, of equal
 * ones the leftmost, until none is left. Two ways to the same result: short pieces (nearly all)
 * look for the minimum in an array on the stack; long ones keep the candidates in a heap, since a
 * hundred thousand blanks are one piece and must not take the square of that.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

enum { SHORT_PIECE = 48 }; /* bytes; measured: about where the heap begins to win */

/* Rank of the merge of two tokens, MERGE_NONE without one. */
static uint32_t rank_of(const di_tokenizer *t, int32_t left, int32_t right) {
    const merge_slot *slot = merges__find(t, left, right);
    return slot ? slot->rank : MERGE_NONE;
}

static di_status merge_short(const di_tokenizer *t, const char *piece, size_t size, di_ids *out,
                             di_error *error) {
    int32_t ids[SHORT_PIECE];
    uint32_t ranks[SHORT_PIECE]; /* of ids[i] with ids[i + 1] */
    size_t n = size;
    for (size_t i = 0; i < n; i++) ids[i] = t->byte_id[(unsigned char)piece[i]];
    for (size_t i = 0; i + 1 < n; i++) ranks[i] = rank_of(t, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == MERGE_NONE) break;
        ids[best] = merges__find(t, ids[best], ids[best + 1])->id;
        n--;
        size_t behind = n - best - 1; /* symbols, and so ranks, that move up */
        memmove(ids + best + 1, ids + best + 2, behind * sizeof *ids);
        memmove(ranks + best, ranks + best + 1, behind * sizeof *ranks);
        if (best > 0) ranks[best - 1] = rank_of(t, ids[best - 1], ids[best]);
        if (best + 1 < n) ranks[best] = rank_of(t, ids[best], ids[best + 1]);
    }
    return di_ids_append(out, ids, n, error);
}

/* A long piece is a list of symbols linked by index; the left one of a merged pair stays. */
typedef struct symbol {
    int32_t id;              /* -1 when merged away */
    uint32_t previous, next; /* NOWHERE at the ends */
    uint32_t rank;           /* of the merge with `next` */
} symbol;

#define NOWHERE UINT32_MAX

/* Candidates as rank << 32 | index of the left symbol: the order of the numbers is the order of the
 * merges. An entry is out of date when its symbol is gone or has another rank by now. */
typedef struct heap {
    uint64_t *entries;
    size_t n;
} heap;

static void sift_down(heap *h, size_t at) {
    uint64_t entry = h->entries[at];
    for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && h->entries[child + 1] < h->entries[child]) child++;
        if (entry <= h->entries[child]) break;
        h->entries[at] = h->entries[child];
    }
    h->entries[at] = entry;
}

static void push(heap *h, uint64_t entry) {
    size_t at = h->n++;
    for (; at > 0 && entry < h->entries[(at - 1) / 2]; at = (at - 1) / 2) {
        h->entries[at] = h->entries[(at - 1) / 2];
    }
    h->entries[at] = entry;
}

static uint64_t pop(heap *h) {
    uint64_t top = h->entries[0];
    h->entries[0] = h->entries[--h->n];
    if (h->n) sift_down(h, 0);
    return top;
}

static void renew(const di_tokenizer *t, symbol *symbols, uint32_t left, heap *h) {
    if (left == NOWHERE) return;
    symbol *s = &symbols[left];
    s->rank = s->next == NOWHERE ? MERGE_NONE : rank_of(t, s->id, symbols[s->next].id);
    if (s->rank != MERGE_NONE) push(h, (uint64_t)s->rank << 32 | left);
}

static void merge_all(const di_tokenizer *t, symbol *symbols, heap *h) {
    while (h->n) {
        uint64_t entry = pop(h);
        uint32_t at = (uint32_t)entry;
        symbol *left = &symbols[at];
        if (left->id < 0 || left->rank != (uint32_t)(entry >> 32)) continue;
        symbol *right = &symbols[left->next];
        left->id = merges__find(t, left->id, right->id)->id;
        left->next = right->next;
        right->id = -1;
        if (left->next != NOWHERE) symbols[left->next].previous = at;
        renew(t, symbols, left->previous, h);
        renew(t, symbols, at, h);
    }
}

static di_status merge_long(const di_tokenizer *t, const char *piece, size_t size, di_ids *out,
                            di_error *error) {
    /* Each merge takes one entry and adds at most two, so 2 * size are enough. */
    symbol *symbols = malloc(size * sizeof *symbols);
    heap h = {malloc(2 * size * sizeof(uint64_t)), 0};
    di_status status = DI_OK;
    if (!symbols || !h.entries) {
        status = di_fail(error, DI_ERR_MEMORY, "no memory to tokenize a piece of %zu bytes", size);
        goto done;
    }
    uint32_t n = (uint32_t)size;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i] = (symbol){t->byte_id[(unsigned char)piece[i]], i - 1,
                              i + 1 < n ? i + 1 : NOWHERE, MERGE_NONE};
    }
    for (uint32_t i = 0; i < n; i++) renew(t, symbols, i, &h);
    merge_all(t, symbols, &h);
    if ((status = ids__reserve(out, size, error)) != DI_OK) goto done;
    for (uint32_t i = 0; i != NOWHERE; i = symbols[i].next) out->data[out->size++] = symbols[i].id;
done:
    free(symbols);
    free(h.entries);
    return status;
}

di_status piece__merge(const di_tokenizer *t, const char *piece, size_t size, di_ids *out,
                       di_error *error) {
    if (size <= SHORT_PIECE) return merge_short(t, piece, size, out, error);
    if (size >= INT32_MAX) {
        return di_fail(
            error, DI_ERR_LIMIT,
            "the text has %zu bytes without a place to cut; the tokenizer takes less than "
            "2 GiB at a time",
            size);
    }
    return merge_long(t, piece, size, out, error);
}
