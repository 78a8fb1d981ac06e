/* Step costs: any bytes. What loads is dumped, must load again, and be dumped the same; its curves
 * are positive and never fall. What does not load changes nothing. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/spec_cost.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const di_spec_floor floor_costs = {.overhead = 1e-3, .row_bytes = 1, .bandwidth = 1e6};

static void check_curves(const di_spec_cost *cost) {
    double curve[300];
    for (int32_t c = 0; c < DI_SPEC_COST_CLASSES; c++) {
        di_spec_cost_fill(cost, c, 1, 300, curve);
        for (int i = 0; i < 300; i++) {
            if (!(curve[i] > 0) || !isfinite(curve[i]) || (i > 0 && curve[i] < curve[i - 1]))
                abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_spec_cost cost, again, before;
    di_buffer once = DI_BUFFER_EMPTY, twice = DI_BUFFER_EMPTY;
    di_error error;
    di_spec_cost_init(&cost, &floor_costs);
    di_spec_cost_record(&cost, 2, 1, 0.5);
    before = cost;
    if (di_spec_cost_load(&cost, (const char *)data, size, "fuzz", &error) == DI_OK) {
        check_curves(&cost);
        di_spec_cost_dump(&cost, &once);
        di_spec_cost_init(&again, &floor_costs);
        if (di_spec_cost_load(&again, once.data, once.size, "again", &error) != DI_OK) abort();
        di_spec_cost_dump(&again, &twice);
        if (once.size != twice.size || memcmp(once.data, twice.data, once.size) != 0) abort();
    } else if (memcmp(&cost, &before, sizeof cost) != 0) {
        abort();
    }
    di_buffer_free(&once);
    di_buffer_free(&twice);
    return 0;
}
