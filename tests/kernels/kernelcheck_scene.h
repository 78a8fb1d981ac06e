/* kernelcheck: steps in the middle of some sequences, and the pages that their rows look at. */
#ifndef DI_TESTS_KERNELCHECK_SCENE_H
#define DI_TESTS_KERNELCHECK_SCENE_H

#include "kernelcheck.h"

typedef struct kc_scene {
    kc_layout layout;
    kc_batch batch;
    int32_t live[64], rows;
} kc_scene;

/* A few slots of random lengths; so long exactly in bench mode. */
kc_scene kc_random_scene(check *c, int32_t max_length, int32_t bench_length);
/* The step of a layout whose slots, lengths and rows are set; fills the layout's total. */
kc_scene kc_scene_of(check *c, kc_layout layout);

/* Codes of n random values and their scales. */
kc_pair kc_put_quantized(check *c, di_quantizer kind, int64_t n, kc_pair *scales);

typedef struct kc_pages {
    di_pages side[2];
    kc_pair pool;
    uint64_t bytes;
} kc_pages;

/* Rounds whose pages are as the release's: pieces of 16 bytes lie at such addresses. */
bool kc_has_whole_pages(const check *c);
/* A pool with pages for `tokens` tokens of every slot, in random order, full of valid entries.
 * whole: pieces lie as the release's do. */
kc_pages kc_random_pages(check *c, int32_t n_slots, int32_t tokens, int32_t ratio, int32_t d,
                         int32_t di, bool whole);

/* Ascending entries that each row may see: of the first row about as many as there is room for,
 * some rows with few or none. */
kc_pair kc_random_picks(check *c, const kc_scene *s, int32_t ratio, int32_t top_k);

/* Bytes of the twin's memory several times over, for both sides. */
kc_pair kc_repeated(check *c, kc_pair once, uint64_t bytes, int32_t times);
kc_pair kc_pair_of(di_ptr a, di_ptr b);
/* A step's rows many times over, so many that a backend may take them in another way; returns how
 * many times. */
int32_t kc_crowd_batch(check *c, const di_batch few[2], int32_t rows, di_batch out[2]);

#endif
