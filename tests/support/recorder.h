/* A tap that keeps every intermediate of the next steps, for comparison after the stream is done.
 */
#ifndef DI_TESTS_SUPPORT_RECORDER_H
#define DI_TESTS_SUPPORT_RECORDER_H

#include "support/golden.h"

typedef struct recording {
    char name[32];
    int32_t layer;
    di_tap_type type;
    int64_t n_rows, width;
    void *data; /* as on the device */
} recording;

typedef struct recorder {
    test_model *model;
    recording *items;
    size_t n;
} recorder;

/* Starts recording steps of m. */
void recorder_begin(recorder *r, test_model *m);
/* Stops and frees. */
void recorder_end(recorder *r);
/* The recording, which must be there. Call after something has waited for the stream. */
const recording *recorder_find(const recorder *r, const char *name, int32_t layer);
/* Element as double (A, F) or as integer. */
double recording_value(const recorder *r, const recording *item, int64_t i);
int64_t recording_int(const recording *item, int64_t i);

#endif
