/* Random weights in memory alone, for measuring: any config, filled at the speed of memory.
 *
 * Values have the distributions of a synthetic checkpoint (synth.h), but each tensor repeats its
 * first million of draws at shifted places, so they are not the values that di_synth_write gives.
 *
 * A model opens from a directory, so there is one: of symbolic links to memory files, which hold
 * config.json, token map and shards. It is a few bytes in $TMPDIR (/tmp) and works in this process
 * only. Linux.
 */
#ifndef DI_MODEL_SYNTH_MEMORY_H
#define DI_MODEL_SYNTH_MEMORY_H

#include "model/synth.h"

typedef struct di_synth_memory di_synth_memory;

/* Of *options: config_json, seed, n_shards, progress (on this thread; false stops). tokenizer_dir
 * must be NULL, sparse false. n_threads as in di_team_create. DI_ERR_MEMORY when the weights exceed
 * what the machine has left. */
di_status di_synth_memory_create(const di_synth_options *options, int32_t n_threads,
                                 di_synth_memory **out, di_error *error);
/* To open a model from, any number of times; valid until the destruction. */
const char *di_synth_memory_directory(const di_synth_memory *memory);
/* Removes the directory. Models that are open keep the weights. NULL is fine. */
void di_synth_memory_destroy(di_synth_memory *memory);

#endif
