/* What a step costs: seconds by rows of the step and class of context.
 *
 * The scheduler of drafts (spec_schedule.h) divides expected tokens by this. It starts from floors,
 * what the machine cannot beat, and replaces them by running medians of real steps, one for every
 * number of rows and context class that has been seen (DSpark paper: the steps per second of a
 * batch, profiled at start; here also kept up to date). Real curves have stairs, at the tile
 * sizes of kernels, and those stay.
 *
 * Estimates of one class never fall when rows are added: a median that is lower than one of fewer
 * rows is noise, and an argmax would go for it. Out-of-order medians are averaged (isotonic
 * regression, weighted by samples). A step that really is cheaper with more rows can be had by
 * adding dead rows; that is for the engine to know.
 *
 * One table for verification steps (rows = rows of the step), a second one for draft passes
 * (rows = requests). The caller embeds it (about 100 KB: on the heap, or static). No function
 * allocates. One thread at a time.
 */
#ifndef DI_ENGINE_SPEC_COST_H
#define DI_ENGINE_SPEC_COST_H

#include <stdbool.h>
#include <stdint.h>

enum {
    DI_SPEC_COST_CLASSES = 8,
    DI_SPEC_COST_WINDOW = 15, /* samples of a running median */
    DI_SPEC_COST_MIN = 3,     /* samples before a median counts: the first step of a size is cold */
    DI_SPEC_COST_KNOTS = 192,
    DI_SPEC_COST_MAX_ROWS = 16384
};
/* What can be the time of a step. */
#define DI_SPEC_COST_MIN_SECONDS 0x1p-30
#define DI_SPEC_COST_MAX_SECONDS 3600.0

/* ---- Floors ---- */

/* A step of n rows at context c takes at least
 *     overhead + max(bytes(n, c) / bandwidth, flops(n, c) / peak),
 *     bytes = dense + experts * (1 - (1 - used)^n) + n (row + c context),
 *     flops = n (row_flops + c context_flops).
 * Expert bytes: n rows that pick independently leave an expert untouched with (1 - used)^n. */
typedef struct di_spec_floor {
    double dense_bytes;   /* weights that every step reads */
    double expert_bytes;  /* all routed experts of all layers */
    double expert_used;   /* share that one row reads: picks / experts, in [0, 1] */
    double row_bytes;     /* activations a row moves */
    double context_bytes; /* cache that a row reads per token of context */
    double row_flops, context_flops;
    double bandwidth; /* bytes per second, > 0 */
    double peak;      /* floating-point operations per second, > 0 */
    double overhead;  /* seconds of every step: launches, barriers */
} di_spec_floor;

/* Seconds; what is negative or NaN counts as 0. Never falls with rows. */
double di_spec_floor_seconds(const di_spec_floor *floor, int64_t rows, double context);

/* ---- The table ---- */

typedef struct di_spec_cost_cell {
    int32_t n;     /* samples held, at most the window */
    int32_t next;  /* where the next one goes */
    double median; /* of those; the mean of the middle two when n is even */
    float samples[DI_SPEC_COST_WINDOW];
} di_spec_cost_cell;

typedef struct di_spec_cost {
    double floor[DI_SPEC_COST_CLASSES][DI_SPEC_COST_KNOTS]; /* seconds */
    di_spec_cost_cell cells[DI_SPEC_COST_CLASSES][DI_SPEC_COST_KNOTS];
} di_spec_cost;

/* Seeds the table; measurements: none. Every floor is taken in the middle of its class. */
void di_spec_cost_init(di_spec_cost *cost, const di_spec_floor *floor);

/* Class of a step whose rows stand at `context` tokens on average: 0 below 1024, 1 below 2048, then
 * doubling, 7 from 65536 on. */
int32_t di_spec_cost_class(double context);

/* Knots: every number of rows to 64, then 16 an octave; a number between counts as the next one.
 * 1 <= rows <= DI_SPEC_COST_MAX_ROWS. */
int32_t di_spec_cost_knot(int64_t rows);
int64_t di_spec_cost_knot_rows(int32_t knot);

/* Adds the time of a real step. False, and nothing changes: rows out of range, seconds outside the
 * two bounds above or NaN, class out of range. */
bool di_spec_cost_record(di_spec_cost *cost, int64_t rows, int32_t context_class, double seconds);

/* out[i] = estimate for first_rows + i rows, i < n; positive, non-decreasing. first_rows >= 1.
 *
 * A knot that was measured is its median, after the averaging above. Between two of them the
 * estimate goes from one to the other as the floor does (or evenly in rows where the floor is
 * flat); beyond the last, and before the first, it is the floor times the ratio there. A class with
 * no measurements borrows those of the nearest class that has some (the lower of two), each times
 * the ratio of the floors; with none at all, the floors. Rows beyond the table go on in proportion.
 */
void di_spec_cost_fill(const di_spec_cost *cost, int32_t context_class, int64_t first_rows,
                       int32_t n, double *out);
/* One estimate. */
double di_spec_cost_seconds(const di_spec_cost *cost, int32_t context_class, int64_t rows);

/* Whether steps of about so many rows, a quarter more or less, were measured, in any class: what is
 * far from all measurements is a guess. */
bool di_spec_cost_known(const di_spec_cost *cost, int64_t rows);

#endif
