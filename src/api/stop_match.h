/* Stop texts in a stream: what could be the beginning of one is held back until it is clear. */
#ifndef DI_API_STOP_MATCH_H
#define DI_API_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buffer.h"
#include "base/error.h"

/* Embedded by its owner; start zeroed, end with deinit. */
typedef struct di_stop_match {
    char **stops;
    int n_stops;
    di_buffer held;
    bool stopped;
    int which;     /* once stopped: of the stop texts */
    size_t behind; /* once stopped: bytes taken in from the beginning of the stop text on */
} di_stop_match;

/* Copies n texts; DI_ERR_USAGE when one is empty or no valid UTF-8. */
di_status di_stop_match_init(di_stop_match *match, const char *const *stops, int n,
                             di_error *error);
void di_stop_match_deinit(di_stop_match *match);

/* Takes text in (once stopped, only its size); what is certainly before any stop text goes to the
 * end of *out. Once a stop text is complete (of two at once the longer), `stopped` is true and
 * nothing follows. Any cut of the input gives the same. */
void di_stop_match_push(di_stop_match *match, const char *text, size_t size, di_buffer *out);
/* Gives out what is held: no stop text can be completed any more. */
void di_stop_match_flush(di_stop_match *match, di_buffer *out);

#endif
