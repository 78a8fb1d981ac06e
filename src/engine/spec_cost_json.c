/* The step-cost table as JSON, for --profile-steps. */
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "engine/spec_cost.h"

#define FORMAT "deepinfer-step-costs"

static void dump_cell(const di_spec_cost_cell *cell, int32_t kind, int32_t knot, di_buffer *out) {
    di_buffer_printf(out, "{\"class\": %d, \"rows\": %lld, \"seconds\": [", (int)kind,
                     (long long)di_spec_cost_knot_rows(knot));
    int32_t first = cell->n < DI_SPEC_COST_WINDOW ? 0 : cell->next; /* the oldest */
    for (int32_t i = 0; i < cell->n; i++) {
        float sample = cell->samples[(first + i) % DI_SPEC_COST_WINDOW];
        /* 9 digits give a float32 back exactly. */
        di_buffer_printf(out, "%s%.9g", i > 0 ? ", " : "", (double)sample);
    }
    di_buffer_puts(out, "]}");
}

void di_spec_cost_dump(const di_spec_cost *cost, di_buffer *out) {
    bool first = true;
    di_buffer_puts(out, "{\"format\": \"" FORMAT "\", \"version\": 1, \"cells\": [");
    for (int32_t c = 0; c < DI_SPEC_COST_CLASSES; c++) {
        for (int32_t k = 0; k < DI_SPEC_COST_KNOTS; k++) {
            if (cost->cells[c][k].n == 0) continue;
            di_buffer_puts(out, first ? "\n" : ",\n");
            first = false;
            dump_cell(&cost->cells[c][k], c, k, out);
        }
    }
    di_buffer_puts(out, "]}\n");
}

/* Checks cell number `index` of a file; with cost NULL it only checks. */
static di_status load_cell(di_spec_cost *cost, const di_json *cell, int index, const char *what,
                           di_error *error) {
    int64_t kind, rows;
    if (!di_json_int64(di_json_get(cell, "class"), &kind) || kind < 0 ||
        kind >= DI_SPEC_COST_CLASSES)
        return di_fail(error, DI_ERR_INVALID, "%s: cell %d: class must be 0 to %d", what, index,
                       DI_SPEC_COST_CLASSES - 1);
    if (!di_json_int64(di_json_get(cell, "rows"), &rows) || rows < 1 ||
        rows > DI_SPEC_COST_MAX_ROWS)
        return di_fail(error, DI_ERR_INVALID, "%s: cell %d: rows must be 1 to %d", what, index,
                       DI_SPEC_COST_MAX_ROWS);
    const di_json *seconds = di_json_get(cell, "seconds");
    if (seconds == NULL || seconds->type != DI_JSON_ARRAY)
        return di_fail(error, DI_ERR_INVALID, "%s: cell %d: seconds must be a list", what, index);
    for (const di_json *s = seconds->first; s != NULL; s = s->next) {
        double value;
        if (!di_json_double(s, &value) || value < DI_SPEC_COST_MIN_SECONDS ||
            value > DI_SPEC_COST_MAX_SECONDS)
            return di_fail(error, DI_ERR_INVALID,
                           "%s: cell %d: seconds must be numbers from 1e-9 to 3600", what, index);
        if (cost != NULL) di_spec_cost_record(cost, rows, (int32_t)kind, value);
    }
    return DI_OK;
}

/* Twice over the list: all is checked before anything changes. */
static di_status load_cells(di_spec_cost *cost, const di_json *cells, const char *what,
                            di_error *error) {
    for (int pass = 0; pass < 2; pass++) {
        int index = 0;
        if (pass == 1) memset(cost->cells, 0, sizeof cost->cells);
        for (const di_json *cell = cells->first; cell != NULL; cell = cell->next, index++)
            DI_TRY(load_cell(pass == 1 ? cost : NULL, cell, index, what, error));
    }
    return DI_OK;
}

di_status di_spec_cost_load(di_spec_cost *cost, const char *text, size_t size, const char *what,
                            di_error *error) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root, *cells;
    int64_t version;
    di_status status = di_json_parse(text, size, what, &arena, &root, error);
    if (status != DI_OK) goto done;
    cells = di_json_get(root, "cells");
    if (!di_json_is_string(di_json_get(root, "format"), FORMAT)) {
        status = di_fail(error, DI_ERR_INVALID, "%s: no step costs: \"format\" must be \"%s\"",
                         what, FORMAT);
    } else if (!di_json_int64(di_json_get(root, "version"), &version) || version != 1) {
        status = di_fail(error, DI_ERR_INVALID, "%s: step costs of another version than 1", what);
    } else if (cells == NULL || cells->type != DI_JSON_ARRAY) {
        status = di_fail(error, DI_ERR_INVALID, "%s: cells must be a list", what);
    } else {
        status = load_cells(cost, cells, what, error);
    }
done:
    di_arena_free(&arena);
    return status;
}
