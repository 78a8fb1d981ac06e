/* The "ref" backend: device memory is host memory, every call runs at once. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/ref/ref.h"

#define REF_ENTRY(name) .name = ref_##name,
const di_ops ref_ops = {DI_EACH_OP(REF_ENTRY)};
#undef REF_ENTRY

/* Stands in the 64 bytes before each allocation, so that destroy finds what free was not told of.
 */
typedef struct ref_block {
    struct ref_block *next, *previous;
} ref_block;
_Static_assert(sizeof(ref_block) <= 64, "the header must fit before the first aligned byte");

typedef struct ref_backend {
    di_backend base;
    di_stream stream;
    ref_block blocks; /* ring of allocations */
} ref_backend;

static uint64_t workspace_bytes(const di_backend *backend, const di_limits *limits) {
    (void)backend;
    return ref_workspace_bytes(limits);
}

static di_status prepare(di_backend *backend, const di_limits *more, di_error *error) {
    di_stream *s = backend->stream;
    di_limits limits = di_limits_join(&s->limits, more);
    uint64_t bytes = ref_workspace_bytes(&limits);
    if (s->work != NULL && bytes <= s->work_bytes) { /* it grows with every member */
        s->limits = limits;
        return DI_OK;
    }
    uint8_t *work = bytes <= SIZE_MAX - 63 ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    if (work == NULL) {
        return di_fail(error, DI_ERR_MEMORY, "ref backend: no memory for %llu bytes of workspace",
                       (unsigned long long)bytes);
    }
    free(s->work);
    s->work = work;
    s->limits = limits;
    s->work_bytes = bytes;
    s->work_used = 0;
    return DI_OK;
}

static di_status alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                       di_error *error) {
    ref_backend *ref = (ref_backend *)backend;
    *out = DI_NONE;
    uint8_t *memory = NULL;
    if (size > 0 && size <= SIZE_MAX - 128) {
        memory = aligned_alloc(64, (size_t)(64 + (size + 63) / 64 * 64));
    }
    if (memory == NULL) {
        return di_fail(error, DI_ERR_MEMORY, "ref backend: no memory for %llu bytes of %s",
                       (unsigned long long)size, what);
    }
    memset(memory + 64, 0, (size_t)size);
    ref_block *block = (ref_block *)(void *)memory;
    *block = (ref_block){ref->blocks.next, &ref->blocks};
    block->next->previous = block;
    ref->blocks.next = block;
    out->address = (uint64_t)(uintptr_t)(memory + 64);
    return DI_OK;
}

static void free_block(ref_block *block) {
    block->next->previous = block->previous;
    block->previous->next = block->next;
    free(block);
}

static void free_memory(di_backend *backend, di_ptr memory) {
    (void)backend;
    if (memory.address == 0) return;
    free_block((ref_block *)(void *)((uint8_t *)(uintptr_t)memory.address - 64));
}

static di_status bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                      di_ptr *out, di_error *error) {
    (void)backend, (void)size, (void)what, (void)error;
    out->address = (uint64_t)(uintptr_t)host;
    return DI_OK;
}

static void upload(di_stream *s, di_ptr to, const void *host, uint64_t size) {
    if (size > 0) memcpy(ref_at(s, to), host, (size_t)size);
}

static void download(di_stream *s, void *host, di_ptr from, uint64_t size) {
    if (size > 0) memcpy(host, ref_at(s, from), (size_t)size);
}

static void copy(di_stream *s, di_ptr to, di_ptr from, uint64_t size) {
    if (size > 0) memcpy(ref_at(s, to), ref_at(s, from), (size_t)size);
}

static void fill(di_stream *s, di_ptr to, int byte, uint64_t size) {
    if (size > 0) memset(ref_at(s, to), byte, (size_t)size);
}

/* Only whole pages inside the range: others hold neighbours. Fails harmlessly on what is no map. */
static void discard(di_stream *s, const void *host, uint64_t size) {
    (void)s;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)host + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)host + (uintptr_t)size) / page * page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Everything before has run. */
static void stamp(di_stream *s, double *host) {
    struct timespec now;
    (void)s;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *host = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void call(di_stream *s, void (*run)(void *user), void *user) {
    (void)s;
    run(user);
}

static uint64_t mark(di_stream *s) {
    (void)s;
    return 0;
}

static di_status wait_mark(di_stream *s, uint64_t point, di_error *error) {
    (void)s, (void)point, (void)error;
    return DI_OK;
}

static void destroy(di_backend *backend) {
    if (backend == NULL) return;
    ref_backend *ref = (ref_backend *)backend;
    while (ref->blocks.next != &ref->blocks) free_block(ref->blocks.next);
    free(ref->stream.work);
    free(ref);
}

di_status di_backend_create_ref(di_numerics numerics, di_backend **out, di_error *error) {
    *out = NULL;
    ref_backend *ref = calloc(1, sizeof *ref);
    if (ref == NULL) return di_fail(error, DI_ERR_MEMORY, "ref backend: no memory");
    ref->stream.numerics = numerics;
    ref->blocks = (ref_block){&ref->blocks, &ref->blocks};
    ref->base = (di_backend){
        .name = "ref",
        .ops = &ref_ops,
        .numerics = numerics,
        .a_bytes = 8,
        .f_bytes = 8,
        .stream = &ref->stream,
        .workspace_bytes = workspace_bytes,
        .prepare = prepare,
        .alloc = alloc,
        .free = free_memory,
        .bind = bind,
        .bind_matrix = di_bind_as_stored,
        .upload = upload,
        .download = download,
        .copy = copy,
        .fill = fill,
        .discard = discard,
        .stamp = stamp,
        .alloc_shared = di_alloc_same,
        .call = call,
        .mark = mark,
        .wait = wait_mark,
        .destroy = destroy,
    };
    *out = &ref->base;
    return DI_OK;
}
