#include "model/rope.h"

#include <math.h>

/* The dimension whose wavelength turns `rotations` times within the original context. */
static double correction_dim(const di_config *config, double base, double rotations) {
    double context = (double)config->rope_scaling.original_max_position_embeddings;
    double pi = 3.14159265358979323846;
    return config->qk_rope_head_dim * log(context / (rotations * 2 * pi)) / (2 * log(base));
}

void di_rope_frequencies(const di_config *config, bool compressed, float *freq) {
    int32_t dims = config->qk_rope_head_dim;
    double base = compressed ? config->compress_rope_theta : config->rope_theta;
    for (int32_t i = 0; i < dims / 2; i++) {
        float exponent = (float)(2 * i) / (float)dims;
        freq[i] = 1.0f / (float)pow(base, exponent);
    }
    const di_rope_scaling *yarn = &config->rope_scaling;
    if (!compressed || yarn->factor == 0) return;
    double low = fmax(floor(correction_dim(config, base, yarn->beta_fast)), 0);
    double high = fmin(ceil(correction_dim(config, base, yarn->beta_slow)), dims - 1);
    float span = (float)fmax(high - low, 1e-3);
    for (int32_t i = 0; i < dims / 2; i++) {
        float ramp = fminf(fmaxf(((float)i - (float)low) / span, 0), 1);
        float keep = 1.0f - ramp;
        freq[i] = freq[i] / (float)yarn->factor * (1.0f - keep) + freq[i] * keep;
    }
}
