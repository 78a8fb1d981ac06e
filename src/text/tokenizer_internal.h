/* What the files of the tokenizer share: tokenizer_load.c fills it, the others read it.
 *
 * Everything hangs in one arena; nothing changes after loading.
 */
#ifndef DI_TEXT_TOKENIZER_INTERNAL_H
#define DI_TEXT_TOKENIZER_INTERNAL_H

#include "base/arena.h"
#include "base/json.h"
#include "text/tokenizer.h"

enum {
    /* Far above any real vocabulary; keeps a hostile file from asking for gigabytes. */
    TOKENIZER_MAX_SIZE = 1 << 20
};

enum { TOKEN_ADDED = 1, TOKEN_SPECIAL = 2, TOKEN_WHOLE = 4 };

typedef struct token_data {
    const char *spelling; /* as in the file, NUL-terminated; NULL: no token has this id */
    const char *bytes;    /* what it stands for */
    uint32_t size;        /* bytes of `bytes`, > 0 */
    /* ADDED, SPECIAL: as the file says. WHOLE: a piece with exactly these bytes becomes this token,
     * found out by merging it once when loading, so that encoding may skip the merges. */
    uint32_t flags;
} token_data;

/* One merge: tokens left and right become `id`; a lower rank goes first. */
typedef struct merge_slot {
    uint64_t key; /* left << 32 | right; MERGE_EMPTY when free */
    uint32_t rank;
    int32_t id;
} merge_slot;

#define MERGE_EMPTY UINT64_MAX
#define MERGE_NONE UINT32_MAX /* the rank of a pair that has no merge */

typedef struct word_slot {
    uint32_t hash;
    int32_t id; /* -1 when free */
} word_slot;

/* Added tokens sorted by content, for longest-match search by narrowing a range byte by byte. */
typedef struct added_set {
    int32_t *ids;
    size_t n;
    uint32_t first[257]; /* tokens with first byte b: ids[first[b] .. first[b + 1]) */
} added_set;

struct di_tokenizer {
    di_arena arena;
    token_data *tokens; /* [size] */
    int32_t size;
    int32_t byte_id[256]; /* the token of each single byte */
    merge_slot *merges;   /* open addressing, merge_mask + 1 slots, a power of two */
    size_t merge_mask;
    word_slot *words; /* tokens of the vocabulary by their bytes, the same way */
    size_t word_mask;
    size_t longest_word; /* bytes */
    /* Two sets, as the `tokenizers` library matches them: first over the whole text those that the
     * file calls not "normalized", then the others in what is left. */
    added_set added[2];
};

/* ids.c: makes room for `more` ids behind ids->size. */
di_status ids__reserve(di_ids *ids, size_t more, di_error *error);

/* tokenizer_tables.c: the two hash tables. *_init makes room for n entries; false: no memory. */
bool merges__init(di_tokenizer *t, size_t n);
/* False when the pair has a merge already. */
bool merges__add(di_tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t id);
const merge_slot *merges__find(const di_tokenizer *t, int32_t left, int32_t right); /* or NULL */
bool words__init(di_tokenizer *t, size_t n);
void words__add(di_tokenizer *t, int32_t id);
int32_t words__find(const di_tokenizer *t, const char *bytes, size_t size); /* or -1 */

/* tokenizer_merge.c: the tokens of one piece by merging alone; appends to `out`. */
di_status piece__merge(const di_tokenizer *t, const char *piece, size_t size, di_ids *out,
                       di_error *error);

/* tokenizer_added.c: sorts set->ids and fills set->first;
 * false: no memory. */
bool added__sort(const di_tokenizer *t, added_set *set);
/* Longest token of `set` at text[0..size): its id, or -1. */
int32_t added__match(const di_tokenizer *t, const added_set *set, const char *text, size_t size);

/* tokenizer_form.c: refuses what this tokenizer does not do. `what` names the file. */
di_status form__check(const di_json *root, const char *what, di_error *error);

/* `text` fit for a message: at most about 60 bytes of it, quoted, controls escaped. */
typedef struct quoted {
    char text[96];
} quoted;
quoted quote__text(const char *text, size_t size);
quoted quote__json(const di_json *value); /* "absent" for NULL */

#endif
