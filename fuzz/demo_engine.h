/* The engine that requests are submitted to: of the demo model, and never stepped. */
#ifndef DI_FUZZ_DEMO_ENGINE_H
#define DI_FUZZ_DEMO_ENGINE_H

#include "deepinfer.h"
#include "require.h"

/* Opens it where *engine is NULL; it stays until the process ends. context: tokens, few, so that what is too
 * long is found. */
static inline void open_demo_engine(di_engine **engine, int64_t context) {
    di_engine_options options = di_engine_options_defaults();
    di_error error;
    if (*engine) return;
    options.backend = "ref";
    options.n_threads = 1;
    options.context = context;
    options.chunk = 8;
    options.max_batch = 1;
    options.window_cache = 0;
    REQUIRE(di_engine_open(DI_SOURCE_DIR "/models/demo", &options, engine, &error) == DI_OK);
}

#endif
