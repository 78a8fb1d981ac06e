/* What a vocabulary holds: a trie of its ordinary tokens, and slices.
 *
 * A *slice* is all ordinary tokens that are whole characters of a certain kind (letters, say). In most
 * states that a long answer passes, either every character of the kind may come, any number of times,
 * or none: then the slice's tokens are allowed together, and only the tokens that are left are
 * looked at one by one. Of these whole subtrees of the trie can be allowed, where all that is below a
 * node is of the kind: words behind a blank, say.
 */
#ifndef DI_GRAMMAR_VOCABULARY_INTERNAL_H
#define DI_GRAMMAR_VOCABULARY_INTERNAL_H

#include <stdbool.h>

#include "grammar/vocabulary.h"

/* In preorder: the children of a node follow it, its subtree ends before `end`. 12 bytes, since walks
 * are as fast as nodes can be read. */
typedef struct trie_node {
    int32_t end;
    int32_t first;  /* tokens before this node: its own, if it has one, and those below follow */
    uint16_t depth; /* bytes, >= 1 */
    uint8_t byte;
    uint8_t kinds; /* bit k: behind this node tokens go on in whole characters of slice k alone */
} trie_node;

typedef struct trie {
    trie_node *nodes; /* [n + 1]; the last one only bounds the others' tokens */
    int32_t n;
    int32_t *tokens; /* ids by their bytes; of some with the same bytes one (see `twin`) */
} trie;

enum {
    VOCABULARY_SLICES = 5,
    SLICE_COUNTED = 40, /* masks of tokens with at most 1..so many characters */
    SLICE_STATES = 10,  /* of the automaton below; 0: between characters */
    SLICE_OUT = 255,
    VOCABULARY_MAX_TOKEN = 1024 /* bytes; longer ones are never allowed */
};

typedef struct slice {
    uint8_t next[SLICE_STATES][256]; /* the kind's characters in UTF-8 */
    uint8_t within;                  /* bit k: slice k is this one, or part of it */
    uint32_t *all;                   /* mask of its tokens */
    /* Of the widest slice alone, for repetitions: */
    uint32_t *up_to[SLICE_COUNTED + 1]; /* [k]: of those with at most k characters; k >= 1 */
    int32_t *longer;                    /* ids with more than SLICE_COUNTED characters, by length */
    int32_t *longer_chars;
    int32_t n_longer;
    trie rest; /* ordinary tokens that are not in it */
} slice;

struct di_vocabulary {
    const di_tokenizer *tokenizer;
    int32_t n_ids;
    size_t n_words;
    int32_t *end_ids;
    size_t n_end;
    uint32_t *ordinary; /* mask of the tokens in the trie */
    int32_t longest;    /* bytes of the longest token in the trie */
    int32_t *twin;      /* [n_ids]: the next token with the same bytes, or -1 */
    bool has_twins;
    trie all;
    slice slices[VOCABULARY_SLICES];
};

/* An ordinary token's bytes, or NULL. */
const char *vocabulary__bytes(const di_vocabulary *v, int32_t id, size_t *size);
bool vocabulary__is_end(const di_vocabulary *v, int32_t id);

#endif
