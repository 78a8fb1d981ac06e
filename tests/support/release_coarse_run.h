/* What the files that run coarse operations share: a scope's stored operations by name, the rows of a
 * step, a page. Device memory is taken from the device and given back when its owner resets it. */
#ifndef DI_TESTS_SUPPORT_RELEASE_COARSE_RUN_H
#define DI_TESTS_SUPPORT_RELEASE_COARSE_RUN_H

#include "support/release_run.h"

enum {
    RC_PROMPT = 33,
    RC_RING = 64
}; /* tokens of the stored prompt; window rows a sequence here */

/* Codes and selections behind a fused quantiser. The stored vectors ask for 99.5 %; a rounding left
 * out before a 4-bit quantiser moves fewer codes than that, and float32 sums move none. */
#define RC_FUSED_SHARE 0.999

/* The same scope's operation of another name, and its parts. */
rr rc_at(const rr *r, const char *op);
bool rc_has(const rr *r, const char *op, const char *part);
const di_tensor *rc_part_of(const rr *r, const char *op, const char *part);
di_ptr rc_put_a(const rr *r, const char *op, const char *part);
di_ptr rc_put_f(const rr *r, const char *op, const char *part);
/* Against its part "out", by the rule. */
void rc_compare_a(const rr *r, const char *op, di_ptr got);
void rc_compare_f(const rr *r, const char *op, di_ptr got);

void *rc_host_memory(int64_t n, size_t size); /* zeroed; the caller frees */

/* Rows at these positions: each a sequence of its own, or all of one from the first position on. */
di_batch rc_batch_at(const rr *r, const int32_t *positions, int32_t n, bool together);
/* At the part "in.positions" of an operation. */
di_batch rc_batch_of(const rr *r, const char *op, bool together);
/* One page that is every sequence's first, laid out as its parts follow each other. */
di_pages rc_one_page(const rr *r, int32_t n_slots);
di_ptr rc_page_part(const di_pages *p, uint32_t offset);

void rc_run_index_select(const rr *r);
void rc_run_attend(const rr *r);

#endif
