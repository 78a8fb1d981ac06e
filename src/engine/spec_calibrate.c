/* Online sequential temperature scaling: statistics in bins, and the grid search over them. */
#include "engine/spec_calibrate.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/allot.h"
#include "kernels/ops.h"

_Static_assert((int)DI_SPEC_LAWS == (int)DI_LAWS && (int)DI_SPEC_MAX_BLOCK == (int)DI_OPS_MAX_BLOCK,
               "the operation allot reads the temperatures of every law and position");

static const double decay = 0.999, prior_weight = 64, bin_reach = 8;
enum { MIDDLE = DI_SPEC_TEMPERATURES / 2 }; /* where the temperature is 1 */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double temperature_at(int32_t i) { return exp2((double)(i - MIDDLE) / 8); }

void di_spec_calibrate_init(di_spec_calibration *calibration) {
    memset(calibration, 0, sizeof *calibration);
    for (int32_t i = 0; i < DI_SPEC_TEMPERATURES; i++) {
        double sum = 0, width = 2 * bin_reach / DI_SPEC_BINS;
        for (int32_t b = 0; b < DI_SPEC_BINS; b++) {
            double middle = (b + 0.5) * width - bin_reach;
            double gap = sigmoid(middle / temperature_at(i)) - sigmoid(middle);
            sum += gap * gap;
        }
        calibration->prior[i] = prior_weight * sum / DI_SPEC_BINS;
    }
    for (int32_t law = 0; law < DI_SPEC_LAWS; law++) {
        for (int32_t k = 0; k < DI_SPEC_MAX_BLOCK; k++)
            calibration->positions[law][k].temperature = 1;
    }
}

void di_spec_survivals(const di_spec_calibration *calibration, di_spec_law law, const float *logits,
                       int32_t n, double *survivals) {
    double a = 1;
    for (int32_t k = 0; k < n; k++) {
        a *= di_allot_confidence((double)logits[k], calibration->positions[law][k].temperature);
        survivals[k] = a;
    }
}

/* ---- Fitting ---- */

/* Predicted less observed survivals of a bin with observations. */
static double gap_of(const di_spec_bin *bin, double temperature) {
    return bin->before * sigmoid(bin->logit / bin->n / temperature) - bin->survived;
}

/* E(t) without the prior. */
static double misfit(const di_spec_position *position, double temperature) {
    double sum = 0;
    for (int32_t b = 0; b < DI_SPEC_BINS; b++) {
        const di_spec_bin *bin = &position->bins[b];
        if (!(bin->n > 0)) continue;
        double gap = gap_of(bin, temperature);
        sum += gap * gap / bin->n;
    }
    return sum;
}

static void fit(const di_spec_calibration *calibration, di_spec_position *position) {
    double best = INFINITY;
    position->since_fit = 0;
    for (int32_t away = 0; away <= MIDDLE; away++) { /* from 1 outwards: ties stay near it */
        for (int32_t side = -1; side <= 1; side += 2) {
            int32_t i = MIDDLE + side * away;
            double temperature = temperature_at(i);
            double error = misfit(position, temperature) + calibration->prior[i];
            if (error < best) best = error, position->temperature = temperature;
        }
    }
}

/* ---- Observing ---- */

static int32_t bin_of(double logit) {
    double at = floor((logit + bin_reach) * (DI_SPEC_BINS / (2 * bin_reach)));
    return (int32_t)fmin(fmax(at, 0), DI_SPEC_BINS - 1);
}

static void add(di_spec_position *position, double logit, double before, bool survived) {
    for (int32_t b = 0; b < DI_SPEC_BINS; b++) {
        di_spec_bin *bin = &position->bins[b];
        bin->n *= decay;
        bin->logit *= decay;
        bin->before *= decay;
        bin->survived *= decay;
    }
    di_spec_bin *bin = &position->bins[bin_of(logit)];
    bin->n += 1;
    bin->logit += logit;
    bin->before += before;
    bin->survived += survived;
    position->since_fit++;
}

void di_spec_observe(di_spec_calibration *calibration, di_spec_law law, const float *logits,
                     int32_t n_verified, int32_t n_accepted) {
    double before = 1; /* a_{k-1}, as predicted with the temperatures of now */
    for (int32_t k = 0; k < n_verified && k < DI_SPEC_MAX_BLOCK && !isnan(logits[k]); k++) {
        di_spec_position *position = &calibration->positions[law][k];
        double c = di_allot_confidence((double)logits[k], position->temperature);
        /* An infinite logit would never leave the sum of its bin. */
        add(position, fmin(fmax((double)logits[k], -64), 64), before, n_accepted > k);
        before *= c;
        if (position->since_fit >= DI_SPEC_FIT_EVERY) fit(calibration, position);
    }
}
