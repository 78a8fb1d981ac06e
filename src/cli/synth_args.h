/* The config of random weights: the same options for synth and bench. */
#ifndef DI_CLI_SYNTH_ARGS_H
#define DI_CLI_SYNTH_ARGS_H

#include "cli/cli.h"

/* Appends the config.json that --config and the options which change it stand for. */
di_status di_args_synth_config(const di_args *args, di_buffer *out, di_error *error);

#endif
