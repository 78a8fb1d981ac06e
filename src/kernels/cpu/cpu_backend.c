/* The "cpu" backend: memory, the stream that runs at once, and the choice of kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

#define CPU_ENTRY(name) .name = cpu_op_##name,
static const di_ops cpu_ops = {DI_EACH_OP(CPU_ENTRY)};
#undef CPU_ENTRY

/* Lies in the 64 bytes before every allocation, so that destroy finds what free was not told of. */
typedef struct block {
    struct block *next, *previous;
    uint64_t mapped; /* bytes of a mapping, 0: from the heap */
} block;
enum { HEADER = 64 };
_Static_assert(sizeof(block) <= HEADER, "the header must fit before the first aligned byte");

typedef struct cpu_backend {
    di_backend base;
    di_stream stream;
    cpu_kernels kernels;
    block blocks; /* ring */
    uint8_t *work;
    uint64_t work_bytes;
} cpu_backend;

/* From here on memory is mapped: its pages are zero and cost nothing until they are written. */
#define MAP_FROM (UINT64_C(1) << 20)
/* More than any machine has: sizes beyond it never reach the allocator. */
#define MAX_BYTES (UINT64_C(1) << 46)

static cpu_backend *self_of(di_backend *backend) { return (cpu_backend *)backend; }

static uint64_t workspace_bytes(const di_backend *backend, const di_limits *limits) {
    int32_t members = di_team_size(backend->stream->team);
    return cpu_shared_bytes(limits) + (uint64_t)members * cpu_scratch_bytes(limits);
}

static di_status prepare(di_backend *backend, const di_limits *more, di_error *error) {
    cpu_backend *self = self_of(backend);
    di_stream *s = backend->stream;
    di_limits limits = di_limits_join(&s->limits, more);
    uint64_t shared = cpu_shared_bytes(&limits), each = cpu_scratch_bytes(&limits);
    bool sane = shared <= MAX_BYTES && each <= MAX_BYTES;
    uint64_t total = shared + (uint64_t)s->n_members * each;
    if (!sane || total > self->work_bytes) {
        uint8_t *work = sane && total <= MAX_BYTES ? aligned_alloc(64, (size_t)total) : NULL;
        if (!work)
            return di_fail(error, DI_ERR_MEMORY,
                           "cpu backend: no memory for %llu bytes of workspace",
                           (unsigned long long)total);
        memset(work, 0, (size_t)total);
        free(self->work);
        self->work = work;
        self->work_bytes = total;
    }
    s->limits = limits;
    s->shared = self->work;
    s->shared_size = shared;
    s->shared_used = 0;
    for (int32_t i = 0; i < s->n_members; i++)
        cpu_scratch_layout(&limits, self->work + shared + (uint64_t)i * each, &s->scratch[i]);
    return DI_OK;
}

static di_status alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                       di_error *error) {
    block *head = &self_of(backend)->blocks, *b = NULL;
    *out = DI_NONE;
    uint64_t bytes = HEADER + (size + 63) / 64 * 64;
    bool map = size >= MAP_FROM;
    if (map && size <= MAX_BYTES) {
        void *at =
            mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        b = at == MAP_FAILED ? NULL : at;
    } else if (size > 0 && !map) {
        b = aligned_alloc(64, (size_t)bytes);
    }
    if (!b)
        return di_fail(error, DI_ERR_MEMORY, "cpu backend: no memory for %llu bytes of %s",
                       (unsigned long long)size, what);
    *b = (block){head->next, head, map ? bytes : 0};
    b->next->previous = b;
    head->next = b;
    if (!map) memset((uint8_t *)b + HEADER, 0, (size_t)size);
    out->address = (uint64_t)(uintptr_t)b + HEADER;
    return DI_OK;
}

static void free_block(block *b) {
    b->next->previous = b->previous;
    b->previous->next = b->next;
    if (b->mapped)
        munmap(b, (size_t)b->mapped);
    else
        free(b);
}

static void free_memory(di_backend *backend, di_ptr memory) {
    (void)backend;
    if (memory.address) free_block((block *)(uintptr_t)(memory.address - HEADER));
}

static di_status bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                      di_ptr *out, di_error *error) {
    (void)backend, (void)size, (void)what, (void)error;
    out->address = (uint64_t)(uintptr_t)host;
    return DI_OK;
}

static void upload(di_stream *s, di_ptr to, const void *host, uint64_t size) {
    (void)s;
    if (size) memcpy(cpu_at(to), host, (size_t)size);
}

static void download(di_stream *s, void *host, di_ptr from, uint64_t size) {
    (void)s;
    if (size) memcpy(host, cpu_at(from), (size_t)size);
}

static void copy(di_stream *s, di_ptr to, di_ptr from, uint64_t size) {
    (void)s;
    if (size) memcpy(cpu_at(to), cpu_at(from), (size_t)size);
}

static void fill(di_stream *s, di_ptr to, int byte, uint64_t size) {
    (void)s;
    if (size) memset(cpu_at(to), byte, (size_t)size);
}

/* Whole pages only: the others hold neighbours' bytes. A file's pages come back when they are read;
 * the backend is told of bound, unchanged memory alone (backend.h). */
static void discard(di_stream *s, const void *host, uint64_t size) {
    (void)s;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)host + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)host + (uintptr_t)size) / page * page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* Operations are done when their call returns. */
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

static uint64_t mark(di_stream *s) { return ++s->marks; }

static di_status wait_mark(di_stream *s, uint64_t point, di_error *error) {
    (void)s, (void)point, (void)error;
    return DI_OK; /* operations are done when their call returns */
}

static void destroy(di_backend *backend) {
    if (!backend) return;
    cpu_backend *self = self_of(backend);
    while (self->blocks.next != &self->blocks) free_block(self->blocks.next);
    di_team_destroy(self->stream.team);
    free(self->stream.scratch);
    free(self->work);
    free(self);
}

/* ---- what the machine has ---- */

/* AVX2 and FMA in the CPU, and the upper register halves saved by the system. F16C is older than
 * AVX2, and no CPU has the latter alone; clang 14 cannot ask for it by name. */
static uint32_t cpu_features(void) {
#if defined(__x86_64__)
    __builtin_cpu_init(); /* cpuid, and xgetbv for what the system saves */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return DI_CPU_AVX2;
#endif
    return 0;
}

bool cpu_kernels_init(cpu_kernels *kernels, uint32_t cpu_mask) {
    memset(kernels, 0, sizeof *kernels);
    uint32_t features = cpu_features() & cpu_mask;
    if (features & DI_CPU_AVX2) cpu_kernels_init_avx2(kernels);
    return (features & DI_CPU_AVX2) != 0;
}

di_status di_backend_create_cpu(di_numerics numerics, const di_cpu_options *options,
                                di_backend **out, di_error *error) {
    static const di_cpu_options defaults = {0, -1, ~0u};
    if (!options) options = &defaults;
    *out = NULL;
    cpu_backend *self = calloc(1, sizeof *self);
    if (!self) return di_fail(error, DI_ERR_MEMORY, "cpu backend: no memory");
    self->blocks = (block){&self->blocks, &self->blocks, 0};
    self->base = (di_backend){
        .name = "cpu",
        .ops = &cpu_ops,
        .numerics = numerics,
        .a_bytes = 4,
        .f_bytes = 4,
        .stream = &self->stream,
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
    di_stream *s = &self->stream;
    di_status status = DI_OK;
    if (!cpu_kernels_init(&self->kernels, options->cpu_mask)) {
        status =
            di_fail(error, DI_ERR_UNSUPPORTED,
                    "cpu backend: it needs AVX2, FMA and F16C; this CPU %s. Use the ref backend",
                    cpu_features() ? "has them, but cpu_mask hides them" : "lacks them");
        goto done;
    }
    s->k = &self->kernels;
    s->release = numerics == DI_NUMERICS_RELEASE;
    DI_TRY_DONE(di_team_create(options->n_threads, options->spin, &s->team, error));
    s->n_members = di_team_size(s->team);
    s->scratch = calloc((size_t)s->n_members, sizeof *s->scratch);
    if (!s->scratch) status = di_fail(error, DI_ERR_MEMORY, "cpu backend: no memory");
done:
    if (status != DI_OK) {
        destroy(&self->base);
        return status;
    }
    *out = &self->base;
    return DI_OK;
}
