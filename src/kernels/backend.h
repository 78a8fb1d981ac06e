/* A backend: one device's memory, streams and operations.
 *
 * Owned by whoever creates it; used from one thread at a time (the engine thread). Memory is taken
 * at start; a step allocates nothing. See ops.h for the operations and their types.
 */
#ifndef DI_KERNELS_BACKEND_H
#define DI_KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/ops.h"

typedef enum di_numerics { DI_NUMERICS_FLOAT, DI_NUMERICS_RELEASE } di_numerics;

/* The largest sizes that operations will be called with; workspaces follow from them. */
typedef struct di_limits {
    int32_t max_rows, max_out; /* rows of a step; rows that ask for logits */
    int32_t width, hc, vocab;
    int32_t n_heads, head_dim, q_rank, o_low; /* o_low = groups * o_lora_rank */
    int32_t n_experts, top_k, inner;          /* routed experts, picks a row, expert width */
    int32_t index_heads, index_dim, index_top_k, top_blocks, block_size;
    int64_t max_entries;                  /* compressed entries of one sequence */
    int32_t engram_columns, engram_width; /* columns a token, values a row */
    int32_t max_k;                        /* longest K of any product */
} di_limits;

/* Member by member the larger one. */
di_limits di_limits_join(const di_limits *a, const di_limits *b);

typedef struct di_backend di_backend;

#define DI_BIND_ALIGN UINT64_C(256)
#define DI_BIND_SLAB_BYTES (UINT64_C(256) << 20)
/* Taken once where matrices are packed, for rows on their way; and DI_BIND_ALIGN for what is known
 * of them all. */
#define DI_BIND_STAGING_BYTES (UINT64_C(8) << 20)

/* A matrix as di_matrix has it, in host memory. groups: those of its products (di_linear_args), 1 or
 * more; they divide n. */
typedef struct di_host_matrix {
    di_dtype dtype;
    int32_t n, k, groups;
    const void *data, *scale; /* scale NULL where there is none */
} di_host_matrix;

/* As stored. scale_bytes is 0 for types that have no scales. */
uint64_t di_host_matrix_bytes(const di_host_matrix *m);
uint64_t di_host_matrix_scale_bytes(const di_host_matrix *m);

struct di_backend {
    const char *name;
    /* A device with memory of its own: which one, in words, and the most bytes of it that may be
     * taken, what bind copies included. NULL and 0: operations work in host memory. */
    const char *device;
    uint64_t device_memory;
    const di_ops *ops;
    di_numerics numerics;
    uint32_t a_bytes, f_bytes; /* sizes of A and F */
    di_stream *stream;         /* the backend's one compute stream */

    /* Workspaces. Contexts of one backend share them: after prepare() operations may have these
     * sizes and all that were prepared before, since each member's largest value counts; nothing
     * shrinks. Where that needs more memory than was taken, it is taken before the old is given
     * back, and when there is none (DI_ERR_MEMORY) everything stays as it was. Waits for the
     * stream. workspace_bytes: what a backend without earlier contexts takes for these limits. */
    uint64_t (*workspace_bytes)(const di_backend *backend, const di_limits *limits);
    di_status (*prepare)(di_backend *backend, const di_limits *limits, di_error *error);

    /* Zeroed device memory, 64-byte aligned. size > 0. `what` names it in messages. */
    di_status (*alloc)(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                       di_error *error);
    /* DI_NONE is fine. Waits for the stream, downloads and stamps included: whoever owns what these
     * go to may free it afterwards. */
    void (*free)(di_backend *backend, di_ptr memory);

    /* Makes host bytes that stay valid and unchanged (mapped weights) readable by operations: in
     * place where the device sees host memory, else a copy. Undone by destroy. Copies take
     * multiples of DI_BIND_ALIGN bytes, those of at most an eighth of a slab in slabs. */
    di_status (*bind)(di_backend *backend, const void *host, uint64_t size, const char *what,
                      di_ptr *out, di_error *error);

    /* The same for a matrix that operations multiply with, and do nothing else: where `matrix_bytes`
     * says 0, by bind, data and scale as they are (di_bind_as_stored); else packed in an order of the
     * backend's own, a copy of so many bytes with the scales in it: out->data is an address for the
     * operations alone, out->scale DI_NONE, and the host's bytes are not needed any more. Groups of
     * packed matrices have multiples of 8 rows, if there are several (DI_ERR_UNSUPPORTED).
     * matrix_bytes is NULL where it is always 0; it does not look at the addresses. */
    di_status (*bind_matrix)(di_backend *backend, const di_host_matrix *m, const char *what,
                             di_matrix *out, di_error *error);
    uint64_t (*matrix_bytes)(const di_backend *backend, const di_host_matrix *m);

    /* All in stream order. upload: `host` may be reused when it returns. download: `host` is
     * written by the time that wait() of a later mark() returns. */
    void (*upload)(di_stream *stream, di_ptr to, const void *host, uint64_t size);
    void (*download)(di_stream *stream, void *host, di_ptr from, uint64_t size);
    void (*copy)(di_stream *stream, di_ptr to, di_ptr from, uint64_t size); /* no overlap */
    void (*fill)(di_stream *stream, di_ptr to, int byte, uint64_t size);
    /* The host bytes of a bound range will not be needed soon (see di_tensor_release): in stream
     * order, so only after the operations that read them. No effect where bind copied. */
    void (*discard)(di_stream *stream, const void *host, uint64_t size);

    /* Seconds of a clock of the device's own when the stream comes here, to *host as by download:
     * for differences between two points of one stream. */
    void (*stamp)(di_stream *stream, double *host);

    /* Zeroed memory that the host and operations share: *host is where the host finds it, *out the
     * same for copies and operations; free(out) gives it back. Taken from the host's memory. */
    di_status (*alloc_shared)(di_backend *backend, uint64_t size, const char *what, void **host,
                              di_ptr *out, di_error *error);
    /* In stream order run(user) on some thread of the host, which may look into shared memory then
     * and write to it, and uses nothing of this backend. The stream goes on when it returns; after a
     * failure of the stream it is not called. Not between record() and recorded(). */
    void (*call)(di_stream *stream, void (*run)(void *user), void *user);

    uint64_t (*mark)(di_stream *stream); /* a point in the stream */
    di_status (*wait)(di_stream *stream, uint64_t mark, di_error *error); /* until it is reached */

    /* Sequences of operations that come again, like those of a step that decodes. Between record()
     * and recorded() come operations, copies and fills of device memory alone, and everything that
     * they are called with follows from `key` (two words). True: the backend kept them under that key
     * and has enqueued them all; the caller leaves them and recorded() out. prepare() forgets what
     * was kept. NULL where nothing ever is. */
    bool (*record)(di_stream *stream, const uint64_t key[2]);
    void (*recorded)(di_stream *stream);

    void (*destroy)(di_backend *backend); /* waits, frees everything */
};

static inline di_status di_backend_sync(di_backend *backend, di_error *error) {
    return backend->wait(backend->stream, backend->mark(backend->stream), error);
}

/* alloc_shared of backends whose addresses are the host's. */
di_status di_alloc_same(di_backend *backend, uint64_t size, const char *what, void **host,
                        di_ptr *out, di_error *error);

/* bind_matrix of backends that read matrices as they are stored. */
di_status di_bind_as_stored(di_backend *backend, const di_host_matrix *m, const char *what,
                            di_matrix *out, di_error *error);

static inline uint64_t di_packed_bytes(const di_backend *backend, const di_host_matrix *m) {
    return backend->matrix_bytes ? backend->matrix_bytes(backend, m) : 0;
}

/* "ref": the scalar twins, one thread, double. Never fails for want of hardware. */
di_status di_backend_create_ref(di_numerics numerics, di_backend **out, di_error *error);

typedef struct di_cpu_options {
    int32_t n_threads; /* 0: all cores this process may use */
    int32_t spin;      /* iterations a waiting thread spins before it sleeps; -1: choose; 0: none */
    uint32_t cpu_mask; /* DI_CPU_* that may be used; ~0: all. For tests and operators */
} di_cpu_options;

/* "cpu": AVX2 and FMA are needed (DI_ERR_UNSUPPORTED otherwise, saying what the machine has). */
di_status di_backend_create_cpu(di_numerics numerics, const di_cpu_options *options,
                                di_backend **out, di_error *error);

typedef struct di_cuda_options {
    int32_t device;  /* number of the GPU, from 0 */
    uint64_t memory; /* most bytes of device memory taken for everything; 0: what is free, less
                        DI_CUDA_MARGIN or 1 % of the device's memory, whichever is more */
    uint64_t
        host_from; /* bind() leaves ranges of at least this size in host memory, pinned and seen
                           by the device through its bus; 0: copies all */
} di_cuda_options;

/* Left alone by default: code of kernels, their stacks and graphs, and pieces that are rounded up. */
#define DI_CUDA_MARGIN (UINT64_C(512) << 20)

/* "cuda": a GPU of compute capability 9.0 or a later one that this build has code for.
 * DI_ERR_UNSUPPORTED with the reason where there is none: no or an old driver, no such device, an
 * older part, a build without CUDA. Operations do not run when they are called. */
di_status di_backend_create_cuda(di_numerics numerics, const di_cuda_options *options,
                                 di_backend **out, di_error *error);

#endif
