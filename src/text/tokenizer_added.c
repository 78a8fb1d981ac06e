/* Added tokens in running text: leftmost, and of those that begin at one place the longest.
 *
 * The tokens are sorted by content. Matching narrows the range of those that agree with the text so
 * far, one byte at a time; a token that ends sorts before its continuations, so it is the first of
 * the range. Plain text costs one look at the table of first bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_internal.h"

static int compare_bytes(const token_data *a, const token_data *b) {
    int order = memcmp(a->bytes, b->bytes, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static int compare_entries(const void *a, const void *b) {
    return compare_bytes(*(const token_data *const *)a, *(const token_data *const *)b);
}

bool added__sort(const di_tokenizer *t, added_set *set) {
    const token_data **order = malloc((set->n + 1) * sizeof *order);
    if (!order) return false;
    for (size_t i = 0; i < set->n; i++) order[i] = &t->tokens[set->ids[i]];
    qsort(order, set->n, sizeof *order, compare_entries);
    for (size_t i = 0; i < set->n; i++) {
        set->ids[i] = (int32_t)(order[i] - t->tokens);
        set->first[(unsigned char)order[i]->bytes[0] + 1]++;
    }
    for (int b = 0; b < 256; b++) set->first[b + 1] += set->first[b];
    free(order);
    return true;
}

/* First of ids[low..high), all of more than `depth` bytes, whose byte there is at least `byte`. */
static size_t lower_bound(const di_tokenizer *t, const added_set *set, size_t low, size_t high,
                          size_t depth, int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)t->tokens[set->ids[middle]].bytes[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int32_t added__match(const di_tokenizer *t, const added_set *set, const char *text, size_t size) {
    size_t low = set->first[(unsigned char)*text], high = set->first[(unsigned char)*text + 1];
    int32_t found = -1;
    for (size_t depth = 1; low < high; depth++) {
        if (t->tokens[set->ids[low]].size == depth) found = set->ids[low++];
        if (depth == size) break;
        int byte = (unsigned char)text[depth];
        low = lower_bound(t, set, low, high, depth, byte);
        high = lower_bound(t, set, low, high, depth, byte + 1);
    }
    return found;
}
