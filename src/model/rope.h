/* Inverse frequencies of the rotary embedding (model.md 3.3). */
#ifndef DI_MODEL_ROPE_H
#define DI_MODEL_ROPE_H

#include "model/config.h"

/* freq [qk_rope_head_dim / 2], float32 as the release computes them. compressed: theta
 * compress_rope_theta with YaRN (layers with ratio > 0); else rope_theta without. */
void di_rope_frequencies(const di_config *config, bool compressed, float *freq);

#endif
