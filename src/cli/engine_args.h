/* From options to an engine and to sampling values: the same for every verb that runs the network.
 */
#ifndef DI_CLI_ENGINE_ARGS_H
#define DI_CLI_ENGINE_ARGS_H

#include "cli/cli.h"
#include "cli/progress.h"

/* What computes, in steps of how many rows, for sequences how long, with drafts or without: the
 * options that decide what memory a context takes. */
void di_args_machine(const di_args *args, di_engine_options *out);

/* The machine options of the verb; progress goes to *progress. */
void di_args_engine_options(const di_args *args, di_progress *progress, di_engine_options *out);

/* Says on stderr which backend was taken where nobody chose, and why; not for why NULL. */
void di_say_backend(const char *backend, const char *why, bool quiet);

/* Opens the model with the machine options of the verb; progress goes to *progress, which must
 * outlive the engine. What backend was taken by itself is said. */
di_status di_args_open_engine(const di_args *args, const char *directory, di_progress *progress,
                              di_engine **out, di_error *error);

/* The model's defaults with the given options over them; without --seed one is drawn. End with
 * di_args_free_sampling. */
di_status di_args_sampling(const di_args *args, const di_engine *engine, di_sampling *out,
                           di_error *error);
void di_args_free_sampling(di_sampling *sampling);

/* DI_ERR_INVALID when the model came without tokenizer.json. */
di_status di_engine_need_tokenizer(const di_engine *engine, const char *directory,
                                   const di_tokenizer **out, di_error *error);

#endif
