/* A vocabulary: the bytes of every token of a tokenizer, laid out for finding which tokens may come
 * next.
 *
 * Made once for a model (tens of milliseconds, 18 MB for the release's 129,280 tokens) and immutable then:
 * any number of grammars and threads share one. It outlives them all, and the tokenizer outlives it.
 *
 * Three kinds of ids. *Ordinary* tokens spell bytes: a grammar allows them by those bytes. *End* tokens
 * are allowed exactly where a grammar accepts. *Markers*, the tokenizer's added tokens, are never
 * allowed by their spelling: only a grammar that names one (the DSML marker of tool calls) allows it,
 * by its id. Ids without a token are never allowed.
 */
#ifndef DI_GRAMMAR_VOCABULARY_H
#define DI_GRAMMAR_VOCABULARY_H

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

typedef struct di_vocabulary di_vocabulary;

/* n_ids: how many ids a mask has, the model's vocabulary size (0: the tokenizer's); at least the
 * tokenizer's. end_ids: [n_end], what ends an answer, inside n_ids. The caller destroys *out. */
di_status di_vocabulary_create(const di_tokenizer *tokenizer, int32_t n_ids, const int32_t *end_ids,
                               size_t n_end, di_vocabulary **out, di_error *error);
void di_vocabulary_destroy(di_vocabulary *vocabulary); /* NULL is fine */

int32_t di_vocabulary_size(const di_vocabulary *vocabulary); /* n_ids */
/* uint32 words of a mask: ceil(n_ids / 32). */
size_t di_vocabulary_words(const di_vocabulary *vocabulary);

#endif
