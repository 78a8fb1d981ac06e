/* Tokenizer: byte-level BPE as tokenizer.json describes it, exact on every input.
 *
 * Immutable once loaded, so any number of threads may use one. Accepted: model BPE with byte-level
 * alphabet, the DeepSeek pre-tokeniser (three Split steps and ByteLevel, see pretokenize.c), no
 * normaliser, added tokens; anything else is refused by name, never approximated. Every byte must
 * have a token, so decoding what was encoded gives the same bytes back, whatever they are. A byte
 * that is not part of valid UTF-8 counts as one character without a Unicode class, as a control
 * character does.
 */
#ifndef DI_TEXT_TOKENIZER_H
#define DI_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"

/* di_ids, a growing list of token ids, is part of the public interface (deepinfer.h). */

/* Reads a tokenizer.json. The caller destroys *out. */
di_status di_tokenizer_load(const char *path, di_tokenizer **out, di_error *error);
/* The same from memory; `what` names it in messages. */
di_status di_tokenizer_parse(const char *json, size_t size, const char *what, di_tokenizer **out,
                             di_error *error);
void di_tokenizer_destroy(di_tokenizer *tokenizer); /* NULL is fine */

/* Highest id + 1. Ids without a token inside that range are possible: see di_tokenizer_spelling. */
int32_t di_tokenizer_size(const di_tokenizer *tokenizer);

/* Appends the ids of `text`. With match_added, added tokens in the text (longest match first)
 * become their ids, as for prompts that are already rendered; without it all text is ordinary. */
di_status di_tokenizer_encode(const di_tokenizer *tokenizer, const char *text, size_t size,
                              bool match_added, di_ids *out, di_error *error);

/* Id of an added token by its exact content, -1 when there is none. */
int32_t di_tokenizer_added_id(const di_tokenizer *tokenizer, const char *content);

/* The bytes a token stands for (an added token: its content). NULL, *size 0: no such id.
 * Owned by the tokenizer. */
const char *di_tokenizer_bytes(const di_tokenizer *tokenizer, int32_t id, size_t *size);
/* As written in the vocabulary (byte-level alphabet; NUL-terminated), or NULL. */
const char *di_tokenizer_spelling(const di_tokenizer *tokenizer, int32_t id);
bool di_tokenizer_is_added(const di_tokenizer *tokenizer, int32_t id);
bool di_tokenizer_is_special(const di_tokenizer *tokenizer, int32_t id); /* flagged special */

/* Appends the bytes of n ids; with skip_special, tokens flagged special are left out.
 * An id without a token is DI_ERR_INVALID. */
di_status di_tokenizer_decode(const di_tokenizer *tokenizer, const int32_t *ids, size_t n,
                              bool skip_special, di_buffer *out, di_error *error);

/* Streaming: bytes of token after token in, only whole characters out. A sequence that is still
 * incomplete is held back (at most 3 bytes). Bytes that can never become a character come out as
 * U+FFFD as soon as that is certain: one for a sequence that breaks off, one for each byte that can
 * begin none. All output together is what Python's bytes.decode(errors="replace") gives, however
 * the bytes were cut. Allocates nothing itself; out of memory shows as out->failed. */
typedef struct di_detokenizer {
    char held[4];
    size_t n_held;
} di_detokenizer;

/* clang-format off */
#define DI_DETOKENIZER_EMPTY {{0}, 0}
/* clang-format on */

void di_detokenizer_push(di_detokenizer *stream, const char *bytes, size_t size, di_buffer *out);
/* The end: what is still held becomes one U+FFFD. */
void di_detokenizer_finish(di_detokenizer *stream, di_buffer *out);

/* Engram's token map (spec model.md 5.1): map[id] = class for ids 0..size-1, classes numbered by
 * first appearance. map has room for di_tokenizer_size entries; every id below that must have a
 * token, or the result is DI_ERR_INVALID naming the first gap. */
di_status di_tokenizer_engram_map(const di_tokenizer *tokenizer, int32_t *map, int32_t *n_classes,
                                  di_error *error);

#endif
