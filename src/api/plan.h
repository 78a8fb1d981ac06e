/* What an engine would take, before there is one: for `inspect`. */
#ifndef DI_API_PLAN_H
#define DI_API_PLAN_H

#include "deepinfer.h"
#include "model/model.h"

/* The context that di_engine_open makes of these options, max_batch >= 1, for a model of this config,
 * where memory is not bounded. DI_ERR_USAGE for what it refuses in them. */
di_status di_engine_plan_context(const di_config *config, const di_engine_options *options,
                                 di_context_options *out, di_error *error);

#endif
