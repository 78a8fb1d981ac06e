/* Engram's constants: what the n-gram hash needs besides the tokens (model.md 5.1 and 5.2).
 *
 * Everything is derived, nothing is read from the release: primes by search, multipliers from
 * numpy's PCG64 seeded with 10007 * layer, the token map from the tokenizer; and checked against
 * the sizes that config.json states.
 */
#ifndef DI_MODEL_ENGRAM_H
#define DI_MODEL_ENGRAM_H

#include <stdint.h>

#include "base/error.h"
#include "model/config.h"
#include "text/tokenizer.h"

typedef struct di_engram {
    int32_t n_columns; /* (max_ngram - 1) * n_heads */
    int64_t multipliers[DI_MAX_ENGRAM_LAYERS][DI_MAX_NGRAM];
    int64_t primes[DI_MAX_ENGRAM_LAYERS][DI_MAX_ENGRAM_COLUMNS];
    int64_t offsets[DI_MAX_ENGRAM_LAYERS][DI_MAX_ENGRAM_COLUMNS];
    int32_t *token_map; /* [vocab_size], owned */
    int32_t pad_class;
} di_engram;

/* Primes, offsets, multipliers. DI_ERR_INVALID when the primes of a layer do not add up to its
 * engram_num_embeddings. */
di_status di_engram_derive(const di_config *config, di_engram *out, di_error *error);

/* Sum of the primes of every Engram layer for this config, without the check: for synth. */
void di_engram_table_rows(const di_config *config, int64_t rows[DI_MAX_ENGRAM_LAYERS]);

/* Fills token_map and pad_class from a tokenizer, or from a token_map.json
 * {"token_map": [class of id 0, ...], "n_classes": N}. Both must fit vocab_size and
 * engram_compressed_vocab_size. `what` names the file in messages. */
di_status di_engram_map_from_tokenizer(const di_config *config, const di_tokenizer *tokenizer,
                                       const char *what, di_engram *engram, di_error *error);
di_status di_engram_map_from_file(const di_config *config, const char *path, di_engram *engram,
                                  di_error *error);

void di_engram_free(di_engram *engram);

/* numpy.random.default_rng(seed).integers(0, bound, size=n, dtype=int64), for bound > 2^32. */
void di_numpy_integers(uint32_t seed, uint64_t bound, int32_t n, int64_t *out);

#endif
