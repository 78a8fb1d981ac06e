/* The values of synthetic tensors: internal to synth. */
#ifndef DI_MODEL_SYNTH_VALUES_H
#define DI_MODEL_SYNTH_VALUES_H

#include <stdint.h>

#include "model/checkpoint.h"
#include "model/config.h"

enum {
    SYNTH_DRAW_BITS = 12,
    SYNTH_DRAWS = 1 << SYNTH_DRAW_BITS,
    SYNTH_FP4_LEVELS = 32, /* magnitudes of a code before rounding */
    SYNTH_SCALE_TABLES = 16
};

/* What all tensors share, made once: quantiles of the normal distribution and finished tables. */
typedef struct synth_tables {
    double normal[SYNTH_DRAWS];      /* both signs, mean 0, standard deviation 1 */
    double coarse[SYNTH_FP4_LEVELS]; /* of |z| */
    double fp4_rms;
    uint8_t e4m3[SYNTH_DRAWS], fp4[SYNTH_DRAWS];
    struct synth_scales {
        double rms, spread;
        uint8_t table[SYNTH_DRAWS];
    } scales[SYNTH_SCALE_TABLES]; /* the last ones used */
    int n_scales;
} synth_tables;

void synth__tables_init(synth_tables *tables);

/* One tensor: which bytes each of 4096 equally likely draws becomes, and the stream of draws. */
typedef struct synth_recipe {
    uint64_t key;
    uint32_t unit;        /* bytes of an element: 1, 2 or 4 */
    const uint8_t *table; /* SYNTH_DRAWS little-endian elements: `own`, or in the tables,
                             valid until the next recipe */
    uint8_t own[SYNTH_DRAWS * 4];
} synth_recipe;

void synth__recipe_init(synth_recipe *recipe, synth_tables *tables, const di_config *config,
                        const di_tensor_spec *spec, uint64_t seed);

/* Elements first .. first + n - 1 of the tensor; `first` is a multiple of 4. */
void synth__fill(const synth_recipe *recipe, uint64_t first, uint64_t n, uint8_t *out);

#endif
