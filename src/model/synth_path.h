/* Real values in a sparse checkpoint of any size, just where one prompt will look, so that its
 * logits tell whether every one of those places was read, and read right.
 */
#ifndef DI_MODEL_SYNTH_PATH_H
#define DI_MODEL_SYNTH_PATH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "model/config.h"
#include "model/engram.h"

enum { DI_PATH_TOKENS = 4, DI_PATH_MAX_SITES = 40 };

typedef struct di_path_site {
    char tensor[96];
    uint64_t offset, bytes; /* inside the tensor */
    bool any_place;         /* a table row: its values do not depend on where it lies */
} di_path_site;

typedef struct di_path {
    int32_t ids[DI_PATH_TOKENS];
    di_path_site sites[DI_PATH_MAX_SITES];
    int32_t n_sites;
} di_path;

/* Chooses the prompt and lists the sites: embedding and head rows of its tokens, the final norm; in
 * the last layer the FFN norm, a router bias that selects the last expert, and that expert; in the
 * last Engram layer the table row that the prompt's longest n-gram hits in the last column (the
 * first token is searched for, so that the row lies in the last thousandth of the table) and the
 * first 64 rows of wkv's value part. `engram` must have its token map. With `ids` that prompt is
 * taken as it is: the same prompt in a slice hits another table row. */
void di_path_find(const di_config *config, const di_engram *engram, const int32_t *ids,
                  di_path *out);

/* Writes the values of (seed, tensor, index) to every site, as synth would; the bias gets 4.0, the
 * table row the values of row 0 and the expert those of expert 0, so that a slice with another hash
 * and fewer experts can hold the same ones. */
di_status di_path_plant(const char *directory, const di_config *config, const di_path *path,
                        uint64_t seed, di_error *error);

/* Both for a checkpoint that was just written: reads the token map of the directory
 * (tokenizer.json, else token_map.json), finds the path, with `ids` or NULL as di_path_find, and
 * plants it. */
di_status di_path_plant_into(const char *directory, const di_config *config, const int32_t *ids,
                             uint64_t seed, di_path *out, di_error *error);

#endif
