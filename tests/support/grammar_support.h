/* Helpers of the grammar tests: a small vocabulary, acceptance of texts, random answers. */
#ifndef DI_TESTS_GRAMMAR_SUPPORT_H
#define DI_TESTS_GRAMMAR_SUPPORT_H

#include "grammar/grammar.h"

/* The demo model's tokenizer (2,560 tokens), or the one of a path; the end token is 1. Loaded once. */
const di_vocabulary *grammar_vocabulary(void);
const di_tokenizer *grammar_tokenizer(void);
void grammar_vocabulary_free(void);
int grammar_vocabulary_done(void **state); /* the same, as a group's end */

/* Compiles a schema given as text; fails the test on an error. */
di_grammar *grammar_of_schema(const char *schema, const di_grammar_options *options);
/* The message that refuses it (valid until the next call); fails the test when it is taken. */
const char *grammar_refusal(const char *schema);

/* The whole text is in the language. */
bool grammar_accepts(di_grammar *grammar, const char *text, size_t size);
/* The same for a JSON value, with the members of its objects in some order; at most `limit` orders are
 * tried. Numbers that are integers are written without fraction. */
bool grammar_accepts_value(di_grammar *grammar, const di_json *value, int limit);
void grammar_write_value(di_buffer *out, const di_json *value);

/* An answer sampled through the masks with random logits (normal, divided by the temperature), at
 * most max_tokens long: its text is appended. True when it ended; false when it was cut. Fails the
 * test when a mask is empty. With checks, every so many steps the mask is compared with what the
 * matcher takes, token by token. */
bool grammar_sample(di_grammar *grammar, uint64_t seed, double temperature, int max_tokens,
                    int check_every, di_buffer *out);
/* Compares the mask with what the matcher takes; fails the test where they differ. */
void grammar_check_mask(di_grammar_matcher *matcher);

/* A small generator: the same numbers from the same seed everywhere. */
uint32_t grammar_random(uint64_t *state, uint32_t below);

#endif
