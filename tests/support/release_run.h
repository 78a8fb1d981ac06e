/* A stored operation on its way through a backend: reading its parts, binding its weights,
 * comparing what comes out. For the files that run stored operations.
 *
 * Device memory is taken from the device and given back when its owner resets it. Whatever is
 * missing fails the test.
 */
#ifndef DI_TESTS_SUPPORT_RELEASE_RUN_H
#define DI_TESTS_SUPPORT_RELEASE_RUN_H

#include "support/device.h"
#include "support/release_vectors.h"

typedef struct rr {
    const release_file *file;
    release_op op;
    device *dev;
    const di_ops *ops;
    di_stream *stream;
    release_score *score;
    const char *tensor; /* of the table: the name behind the prefix; from "/" on: without one */
    int layer;          /* of the backbone; -1 in drafts and elsewhere */
    char prefix[32];    /* layers.N or mtp.N */
    int planted;        /* release_mistake, 0: none */
} rr;

rr rr_open(const release_file *file, const release_op *op, device *dev, release_score *score);

int64_t rr_last_dim(const di_tensor *t); /* 1 for a scalar */
const di_tensor *rr_part(const rr *r, const char *name);
/* A stored part, or a stored integer tensor as int32, on the device. */
di_ptr rr_put_a(const rr *r, const char *name);
di_ptr rr_put_f(const rr *r, const char *name);
di_ptr rr_put_ints(const rr *r, const di_tensor *t);

/* Weights of the checkpoint: `name` behind the operation's prefix; from "/" on without it. A matrix
 * brings its scale. */
di_ptr rr_bind_tensor(const rr *r, const di_tensor *t);
const di_tensor *rr_weight(const rr *r, const char *name);
di_vector rr_vector_of(const rr *r, const char *name);
di_matrix rr_matrix_of(const rr *r, const char *name);
di_rope rr_rope_of(const rr *r, bool compress);
bool rr_compressed_layer(const rr *r);

/* name [96]: scope.op.out, kind [64]: op.out. */
void rr_names_of(const rr *r, const char *out, char *name, char *kind);
double *rr_got_memory(int64_t n); /* n doubles; the caller frees */
/* What stands at `at`, or in host memory, against the stored part `out`, by the rule. */
void rr_compare_a(const rr *r, const char *out, di_ptr at);
void rr_compare_f(const rr *r, const char *out, di_ptr at);
void rr_compare_ints_host(const rr *r, const char *out, const int32_t *got);
void rr_compare_bytes(const rr *r, const char *out, const char *near, const uint8_t *got);

#endif
