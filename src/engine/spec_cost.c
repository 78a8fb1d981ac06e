/* The step-cost table: floors, running medians, and the curve that is drawn through them. */
#include "engine/spec_cost.h"

#include <math.h>
#include <string.h>

/* ---- Floors ---- */

static double positive(double x) { return x > 0 ? x : 0; } /* NaN: 0 */

double di_spec_floor_seconds(const di_spec_floor *floor, int64_t rows, double context) {
    double n = (double)(rows < 1 ? 1 : rows), used = fmin(positive(floor->expert_used), 1);
    double touched = 1 - pow(1 - used, n);
    double c = positive(context);
    double bytes = positive(floor->dense_bytes) + positive(floor->expert_bytes) * touched +
                   n * (positive(floor->row_bytes) + c * positive(floor->context_bytes));
    double flops = n * (positive(floor->row_flops) + c * positive(floor->context_flops));
    double read = floor->bandwidth > 0 ? bytes / floor->bandwidth : 0;
    double compute = floor->peak > 0 ? flops / floor->peak : 0;
    return positive(floor->overhead) + fmax(read, compute);
}

/* ---- Knots and classes ---- */

enum { SINGLE = 64, PER_OCTAVE = 16 }; /* rows with a knot each; knots of a doubling after them */

int32_t di_spec_cost_knot(int64_t rows) {
    if (rows <= SINGLE) return rows < 1 ? 0 : (int32_t)rows - 1;
    if (rows >= DI_SPEC_COST_MAX_ROWS) return DI_SPEC_COST_KNOTS - 1;
    int64_t octave = 0;
    while (rows > (int64_t)(2 * SINGLE) << octave) octave++;
    int64_t step = ((int64_t)SINGLE << octave) / PER_OCTAVE;
    int64_t above = rows - ((int64_t)SINGLE << octave);
    return (int32_t)(SINGLE + PER_OCTAVE * octave + (above + step - 1) / step - 1);
}

int64_t di_spec_cost_knot_rows(int32_t knot) {
    if (knot < SINGLE) return (int64_t)knot + 1;
    int64_t base = (int64_t)SINGLE << ((knot - SINGLE) / PER_OCTAVE);
    return base + base / PER_OCTAVE * ((knot - SINGLE) % PER_OCTAVE + 1);
}

int32_t di_spec_cost_class(double context) {
    int32_t kind = 0;
    for (double bound = 1024; kind < DI_SPEC_COST_CLASSES - 1 && context >= bound; bound *= 2)
        kind++;
    return kind;
}

void di_spec_cost_init(di_spec_cost *cost, const di_spec_floor *floor) {
    memset(cost, 0, sizeof *cost);
    for (int32_t c = 0; c < DI_SPEC_COST_CLASSES; c++) {
        double middle = c == 0 ? 512 : 768 * pow(2, c); /* 1024 .. 2048: 1536 */
        for (int32_t k = 0; k < DI_SPEC_COST_KNOTS; k++) {
            double s = di_spec_floor_seconds(floor, di_spec_cost_knot_rows(k), middle);
            /* Some positive number even when nothing is known: rates are divided by it. */
            s = isfinite(s) ? fmax(s, 1e-9) : 1e-9;
            cost->floor[c][k] = k > 0 ? fmax(s, cost->floor[c][k - 1]) : s;
        }
    }
}

/* ---- Medians ---- */

static double median_of(const float *samples, int32_t n) {
    float sorted[DI_SPEC_COST_WINDOW];
    for (int32_t i = 0; i < n; i++) {
        int32_t at = i;
        for (; at > 0 && sorted[at - 1] > samples[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = samples[i];
    }
    return 0.5 * ((double)sorted[(n - 1) / 2] + (double)sorted[n / 2]);
}

static bool is_time(double seconds) {
    return seconds >= DI_SPEC_COST_MIN_SECONDS && seconds <= DI_SPEC_COST_MAX_SECONDS;
}

bool di_spec_cost_record(di_spec_cost *cost, int64_t rows, int32_t context_class, double seconds) {
    if (rows < 1 || rows > DI_SPEC_COST_MAX_ROWS || !is_time(seconds)) return false;
    if (context_class < 0 || context_class >= DI_SPEC_COST_CLASSES) return false;
    di_spec_cost_cell *cell = &cost->cells[context_class][di_spec_cost_knot(rows)];
    cell->samples[cell->next] = (float)seconds;
    cell->next = (cell->next + 1) % DI_SPEC_COST_WINDOW;
    if (cell->n < DI_SPEC_COST_WINDOW) cell->n++;
    cell->median = median_of(cell->samples, cell->n);
    return true;
}

/* ---- The curve ---- */

typedef struct curve {
    int32_t n; /* measured knots, ascending; values non-decreasing */
    int32_t knot[DI_SPEC_COST_KNOTS];
    double value[DI_SPEC_COST_KNOTS];
} curve;

static bool counts(const di_spec_cost_cell *cell) { return cell->n >= DI_SPEC_COST_MIN; }

static bool measured(const di_spec_cost *cost, int32_t kind) {
    for (int32_t k = 0; k < DI_SPEC_COST_KNOTS; k++) {
        if (counts(&cost->cells[kind][k])) return true;
    }
    return false;
}

bool di_spec_cost_known(const di_spec_cost *cost, int64_t rows) {
    int32_t last = di_spec_cost_knot(rows + rows / 4);
    for (int32_t k = di_spec_cost_knot(rows - rows / 5); k <= last; k++) {
        for (int32_t c = 0; c < DI_SPEC_COST_CLASSES; c++) {
            if (counts(&cost->cells[c][k])) return true;
        }
    }
    return false;
}

/* The class whose measurements serve `kind`, or -1. */
static int32_t source_class(const di_spec_cost *cost, int32_t kind) {
    for (int32_t away = 0; away < DI_SPEC_COST_CLASSES; away++) {
        if (kind - away >= 0 && measured(cost, kind - away)) return kind - away;
        if (kind + away < DI_SPEC_COST_CLASSES && measured(cost, kind + away)) return kind + away;
    }
    return -1;
}

/* Pool adjacent violators: neighbours out of order become their weighted mean. */
static void make_monotonic(curve *c, const double *weights) {
    double mean[DI_SPEC_COST_KNOTS], weight[DI_SPEC_COST_KNOTS];
    int32_t size[DI_SPEC_COST_KNOTS], n_pools = 0;
    for (int32_t i = 0; i < c->n; i++) {
        mean[n_pools] = c->value[i];
        weight[n_pools] = weights[i];
        size[n_pools++] = 1;
        for (; n_pools > 1 && mean[n_pools - 2] > mean[n_pools - 1]; n_pools--) {
            int32_t a = n_pools - 2, b = n_pools - 1;
            double w = weight[a] + weight[b];
            mean[a] = (mean[a] * weight[a] + mean[b] * weight[b]) / w;
            weight[a] = w;
            size[a] += size[b];
        }
    }
    for (int32_t pool = 0, i = 0; pool < n_pools; pool++) {
        for (int32_t end = i + size[pool]; i < end; i++) c->value[i] = mean[pool];
    }
}

static void make_curve(const di_spec_cost *cost, int32_t kind, curve *c) {
    double weights[DI_SPEC_COST_KNOTS];
    int32_t source = source_class(cost, kind);
    c->n = 0;
    for (int32_t k = 0; source >= 0 && k < DI_SPEC_COST_KNOTS; k++) {
        const di_spec_cost_cell *cell = &cost->cells[source][k];
        if (!counts(cell)) continue;
        c->knot[c->n] = k;
        c->value[c->n] = cell->median * (cost->floor[kind][k] / cost->floor[source][k]);
        weights[c->n++] = cell->n;
    }
    make_monotonic(c, weights);
}

/* The estimate at `knot`; *at: the last measured knot not after it when queries ascend, start 0. */
static double curve_value(const curve *c, const double *floor, int32_t knot, int32_t *at) {
    if (c->n == 0) return floor[knot];
    while (*at + 1 < c->n && c->knot[*at + 1] <= knot) ++*at;
    int32_t left = c->knot[*at];
    double value = c->value[*at];
    if (knot == left) return value;
    if (knot < left || *at + 1 == c->n) return value * (floor[knot] / floor[left]);
    int32_t right = c->knot[*at + 1];
    double rise = floor[right] - floor[left], part;
    if (rise > 0) {
        part = (floor[knot] - floor[left]) / rise;
    } else {
        double first = (double)di_spec_cost_knot_rows(left);
        part = ((double)di_spec_cost_knot_rows(knot) - first) /
               ((double)di_spec_cost_knot_rows(right) - first);
    }
    return value + part * (c->value[*at + 1] - value);
}

void di_spec_cost_fill(const di_spec_cost *cost, int32_t context_class, int64_t first_rows,
                       int32_t n, double *out) {
    curve c;
    int32_t kind = context_class < 0 ? 0 : context_class, at = 0;
    if (kind >= DI_SPEC_COST_CLASSES) kind = DI_SPEC_COST_CLASSES - 1;
    make_curve(cost, kind, &c);
    for (int32_t i = 0; i < n; i++) {
        int64_t rows = first_rows + i;
        double s = curve_value(&c, cost->floor[kind], di_spec_cost_knot(rows), &at);
        if (rows > DI_SPEC_COST_MAX_ROWS) s *= (double)rows / DI_SPEC_COST_MAX_ROWS;
        out[i] = i > 0 ? fmax(s, out[i - 1]) : s; /* rounding of the interpolation */
    }
}

double di_spec_cost_seconds(const di_spec_cost *cost, int32_t context_class, int64_t rows) {
    double seconds;
    di_spec_cost_fill(cost, context_class, rows, 1, &seconds);
    return seconds;
}
