/* synth: random checkpoints in the release's format, seeded and reproducible to the byte.
 *
 * Values are scaled so that the network is alive: attention is peaked, routing and selection pick
 * real subsets, the clamp and the gates bite (see synth_values.c). Every value is a function of
 * (seed, tensor name, element index), so a slice of a larger config has the same values in the
 * tensors and rows that it shares. No library function whose last bit differs between systems takes
 * part, so the same call gives the same bytes everywhere.
 *
 * Two steps: di_synth_config makes the config.json of a slice, di_synth_write the checkpoint for a
 * config.json. Both block; neither keeps state.
 */
#ifndef DI_MODEL_SYNTH_H
#define DI_MODEL_SYNTH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "model/config.h"

/* What to change in a config. Start from di_synth_overrides_none. */
typedef struct di_synth_overrides {
    /* The first n_layers layers, or those in `layers` (ascending numbers of the full model) when it
     * is not NULL; 0: all. Sources that are cut away are replaced by the first layer that needed
     * them, draft targets by the last layers. */
    int32_t n_layers;
    const int32_t *layers;
    int32_t draft_layers;   /* -1: as they are */
    int32_t experts;        /* routed experts a layer, of draft layers at most; 0: as they are */
    int64_t engram_rows;    /* about so many rows a table; 0: as they are */
    bool no_vision;         /* leave out vision_config and its tensors */
    const char *const *set; /* n_set times "KEY=VALUE": any field of text_config or of the document;
                               applied first, the others to the result */
    int n_set;
    const char
        *tokenizer; /* directory whose tokenizer.json decides vocab_size, the special ids that
                       no longer fit and the size of the Engram map; NULL: as they are */
} di_synth_overrides;

di_synth_overrides di_synth_overrides_none(void);

/* Appends the config.json (indented, newline at the end) that `json` becomes. It is parsed and
 * checked before and after. `what` names the source in messages. */
di_status di_synth_config(const char *json, size_t size, const char *what,
                          const di_synth_overrides *overrides, di_buffer *out, di_error *error);

typedef struct di_synth_options {
    const char *config_json; /* text of the config to write, with all overrides applied */
    size_t config_size;
    const char *tokenizer_dir; /* take tokenizer.json along, or NULL: write a token map */
    uint64_t seed;
    int32_t n_shards; /* 0: one, or as many as keep a shard at about 10 GB (release: 48) */
    bool sparse; /* files of full size without written data: all zero bytes, a few MB on disk */
    /* Bytes written and in all; may be NULL. Returns false to stop: DI_ERR_CANCELLED. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} di_synth_options;

/* Creates `directory` (must not hold a model yet) and writes config.json, one model.safetensors or
 * shards with index, and tokenizer.json or (with Engram layers) token_map.json. Interrupted or
 * failed: what was written is removed. */
di_status di_synth_write(const char *directory, const di_synth_options *options, di_error *error);

/* Overwrites bytes [offset, offset + n) of a tensor in the files of a checkpoint. */
di_status di_synth_plant(const char *directory, const char *tensor, uint64_t offset,
                         const void *bytes, uint64_t n, di_error *error);

#endif
