/* From the confidence head's logits to survivals, learnt while serving.
 *
 * The head gives s_k, k = 1..B, per draft: sigmoid(s_k) should be the probability that draft k is
 * accepted when all before it are. It is not quite (DSpark paper: an expected calibration error of
 * 3 to 8 %), and it was trained for rejection sampling, while greedy and coupled verification
 * accept by other laws. Sequential temperature scaling (STS, paper): one temperature a position,
 *     c_k = sigmoid(s_k / t_k),    a_k = c_1 c_2 ... c_k,
 * fitted from left to right, each with the earlier ones fixed, to the smallest calibration error
 * of a_k against the survival that was observed.
 *
 * Online: per position, sums in 16 bins of s_k over -8..8 (what is beyond goes to the outer bins):
 * weight n, of s_k, of a_{k-1} as it was predicted, of survivals. Every observation of a position
 * makes its old sums lighter by 0.999, so they span about 1,000 steps. For a temperature t,
 *     E(t) = sum_bins n (A sigmoid(S / t) - Y)^2   +   64 mean_bins (sigmoid(b / t) - sigmoid(b))^2
 * with S, A, Y the means of a bin: predicted against observed survivals, and a prior worth 64
 * observations that says t = 1 (b: the middle of a bin). t_k is the best of 49 temperatures
 * 2^(i/8), i = -24..24 (0.125 to 8), among equals the one nearest to 1. The constants are those of
 * vLLM's online form. The paper minimises the sum of n |A sigmoid(S / t) - Y|; the squares weigh a
 * bin's noise by what it is, and lose nothing later: over 40 synthetic streams (true t 1, 2 and
 * 0.5) the worst of log2 t after 200 observations was off by 1.1 against 2.9, and the error after
 * 100 was 0.02, 0.04, 0.03 against 0.01, 0.07, 0.03; after 3,000 both had 0.01.
 *
 * A position is observed when its draft was verified, whether or not it came to it: a survival is
 * known either way. Which drafts are verified depends on s_1..s_k only, so the bins stay fair.
 *
 * Deterministic: the same observations in the same order give the same bits. Kept apart for the
 * three laws of acceptance. Embedded by the caller (about 100 KB); one thread; nothing allocates or
 * fails.
 */
#ifndef DI_ENGINE_SPEC_CALIBRATE_H
#define DI_ENGINE_SPEC_CALIBRATE_H

#include <stdint.h>

typedef enum di_spec_law {
    DI_SPEC_GREEDY,
    DI_SPEC_COUPLED,
    DI_SPEC_REJECT,
    DI_SPEC_LAWS
} di_spec_law;

enum {
    DI_SPEC_BINS = 16,
    DI_SPEC_TEMPERATURES = 49,
    DI_SPEC_MAX_BLOCK = 64, /* as the config permits (dspark_block_size) */
    DI_SPEC_FIT_EVERY = 32  /* observations of a position between two fits: a fit is 800 exp */
};

typedef struct di_spec_bin {
    double n, logit, before, survived; /* weight; weighted sums of s_k, of a_{k-1}, of survivals */
} di_spec_bin;

typedef struct di_spec_position {
    double temperature;
    int32_t since_fit; /* observations */
    di_spec_bin bins[DI_SPEC_BINS];
} di_spec_position;

typedef struct di_spec_calibration {
    double prior[DI_SPEC_TEMPERATURES]; /* its part of E, by temperature */
    di_spec_position positions[DI_SPEC_LAWS][DI_SPEC_MAX_BLOCK];
} di_spec_calibration;

/* Nothing observed, every temperature 1. */
void di_spec_calibrate_init(di_spec_calibration *calibration);

/* survivals[k] = a_{k+1}, k < n, from the head's logits (before the sigmoid) [n]; in [0, 1] and
 * non-increasing whatever the logits are (NaN: 0 from there on). 0 <= n <= DI_SPEC_MAX_BLOCK. */
void di_spec_survivals(const di_spec_calibration *calibration, di_spec_law law, const float *logits,
                       int32_t n, double *survivals);

/* One verified block: of the drafts with these logits the first n_verified were verified, and the
 * first n_accepted of those accepted. Also refits what is due. */
void di_spec_observe(di_spec_calibration *calibration, di_spec_law law, const float *logits,
                     int32_t n_verified, int32_t n_accepted);

#endif
