#include "support/small_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

uint64_t small_pool_memory(const char *model, const di_engine_options *options, int64_t n_pages) {
    enum { UNIT = 8192, MOST = 1 << 14 };
    uint64_t low = 0, high = MOST;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        di_engine_options o = *options;
        di_engine *engine = NULL;
        di_error error;
        o.memory = middle * UNIT;
        di_status status = di_engine_open(model, &o, &engine, &error);
        if (status != DI_OK && status != DI_ERR_MEMORY) fail_msg("%s", error.message);
        bool enough = status == DI_OK && di_engine_get_stats(engine).pages >= n_pages;
        di_engine_close(engine);
        *(enough ? &high : &low) = middle;
    }
    if (high == MOST) fail_msg("%s: no pool of %lld pages", model, (long long)n_pages);
    return high * UNIT;
}
