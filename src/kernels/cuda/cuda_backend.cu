/* The "cuda" backend: what the machine has, device memory, the table of operations. */
#include <unistd.h>

#include "kernels/cuda/cuda.h"

#define CUDA_ENTRY(name) .name = cuda_op_##name,
static const di_ops cuda_ops = {DI_EACH_OP(CUDA_ENTRY)};
#undef CUDA_ENTRY

/* A piece of memory that destroy gives back: of the device, a registered range of somebody else's
 * host memory, or pinned host memory of ours. */
typedef enum block_kind { OF_DEVICE, REGISTERED, SHARED } block_kind;
typedef struct block {
    struct block *next, *previous;
    void *memory;
    uint64_t size;
    block_kind kind;
} block;

/* Small bound ranges share slabs: the driver rounds sizes up and is slow. */
#define SLAB_BYTES DI_BIND_SLAB_BYTES

typedef struct cuda_backend {
    di_backend base;
    char device[160]; /* base.device */
    di_stream stream;
    block blocks; /* ring */
    uint64_t limit, host_from;
    uint64_t used; /* device bytes taken */
    uint8_t *slab; /* the newest, with slab_left bytes at its end */
    uint64_t slab_left;
    uint8_t *staging; /* of matrices that are packed; NULL before the first one */
} cuda_backend;

static cuda_backend *self_of(di_backend *backend) {
    return reinterpret_cast<cuda_backend *>(backend);
}

/* ---- Memory ---- */

static block *new_block(cuda_backend *self, void *memory, uint64_t size, block_kind kind) {
    block *head = &self->blocks, *b = static_cast<block *>(malloc(sizeof *b));
    if (b == NULL) return NULL;
    *b = block{head->next, head, memory, size, kind};
    b->next->previous = b;
    head->next = b;
    return b;
}

static void free_block(cuda_backend *self, block *b) {
    b->next->previous = b->previous;
    b->previous->next = b->next;
    if (b->kind == REGISTERED) {
        (void)cudaHostUnregister(b->memory);
    } else if (b->kind == SHARED) {
        (void)cudaFreeHost(b->memory);
    } else {
        (void)cudaFree(b->memory);
        self->used -= b->size;
    }
    free(b);
}

static di_status no_room(const cuda_backend *self, uint64_t size, const char *what,
                         di_error *error) {
    size_t free_bytes = 0, all = 0;
    (void)cudaMemGetInfo(&free_bytes, &all);
    (void)cudaGetLastError();
    return di_fail(error, DI_ERR_MEMORY,
                   "cuda backend: no memory for %llu bytes of %s: %llu of %llu are free on GPU %d, "
                   "%llu are taken of the %llu that may be",
                   (unsigned long long)size, what, (unsigned long long)free_bytes,
                   (unsigned long long)all, self->stream.device, (unsigned long long)self->used,
                   (unsigned long long)self->limit);
}

/* Device memory, not zeroed. */
static di_status take(cuda_backend *self, uint64_t size, const char *what, uint8_t **out,
                      di_error *error) {
    *out = NULL;
    cuda_begin(&self->stream);
    if (size == 0 || size > self->limit || self->used > self->limit - size)
        return no_room(self, size, what, error);
    void *memory = NULL;
    cudaError_t status = cudaMalloc(&memory, size);
    if (status == cudaErrorMemoryAllocation) return no_room(self, size, what, error);
    if (!cuda_check(&self->stream, status, what))
        return di_fail(error, DI_ERR_IO, "cuda backend: %s", self->stream.failure);
    if (new_block(self, memory, size, OF_DEVICE) == NULL) {
        (void)cudaFree(memory);
        return di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
    }
    self->used += size;
    *out = static_cast<uint8_t *>(memory);
    return DI_OK;
}

static void give_back(cuda_backend *self, const void *memory) {
    for (block *b = self->blocks.next; b != &self->blocks; b = b->next) {
        if (b->memory != memory) continue;
        free_block(self, b);
        return;
    }
}

/* Sizes are rounded up so that whole words may be read where the last byte is wanted. */
static uint64_t round64(uint64_t size) { return (size + 63) / 64 * 64; }

static di_status alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                       di_error *error) {
    uint8_t *memory;
    *out = DI_NONE;
    DI_TRY(take(self_of(backend), round64(size), what, &memory, error));
    *out = cuda_ptr(memory);
    cuda_fill(backend->stream, *out, 0, round64(size));
    return DI_OK;
}

/* Pinned host memory; with one address for both sides, as on every 64-bit system. */
static di_status alloc_shared(di_backend *backend, uint64_t size, const char *what, void **host,
                              di_ptr *out, di_error *error) {
    cuda_backend *self = self_of(backend);
    void *memory = NULL;
    *host = NULL;
    *out = DI_NONE;
    cuda_begin(&self->stream);
    cudaError_t status = cudaHostAlloc(&memory, size, cudaHostAllocMapped);
    if (status != cudaSuccess) {
        (void)cudaGetLastError();
        return di_fail(error, DI_ERR_MEMORY,
                       "cuda backend: cannot pin %llu bytes of host memory for %s: %s",
                       (unsigned long long)size, what, cudaGetErrorString(status));
    }
    if (new_block(self, memory, size, SHARED) == NULL) {
        (void)cudaFreeHost(memory);
        return di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
    }
    memset(memory, 0, size);
    *host = memory;
    *out = cuda_ptr(memory);
    return DI_OK;
}

static void free_memory(di_backend *backend, di_ptr memory) {
    di_stream *s = backend->stream;
    if (memory.address == 0) return;
    cuda_begin(s);
    cuda_drain(s);
    give_back(self_of(backend), cuda_at<void>(memory));
}

/* Whether a page is pinned already: neighbours in one file share their first and last ones. */
static bool is_pinned(const cuda_backend *self, uintptr_t page) {
    for (const block *b = self->blocks.next; b != &self->blocks; b = b->next) {
        uintptr_t begin = reinterpret_cast<uintptr_t>(b->memory);
        if (b->kind == REGISTERED && page >= begin && page < begin + b->size) return true;
    }
    return false;
}

/* Host memory that the device reads through its bus, at the host's addresses: for tables too large
 * to copy. Whole pages are pinned. */
static di_status bind_host(cuda_backend *self, const void *host, uint64_t size, const char *what,
                           di_ptr *out, di_error *error) {
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    uintptr_t begin = reinterpret_cast<uintptr_t>(host) / page * page;
    uintptr_t end = (reinterpret_cast<uintptr_t>(host) + size + page - 1) / page * page;
    int same = 0, read_only = 0, device = self->stream.device;
    (void)cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
    (void)cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, device);
    if (!same)
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "cuda backend: GPU %d cannot read host memory in place, as %s needs", device,
                       what);
    if (is_pinned(self, begin)) begin += page;
    if (begin < end && is_pinned(self, end - page)) end -= page;
    *out = cuda_ptr(host);
    if (begin >= end) return DI_OK;
    void *memory = reinterpret_cast<void *>(begin);
    cudaError_t status =
        cudaHostRegister(memory, end - begin,
                         cudaHostRegisterMapped | (read_only ? cudaHostRegisterReadOnly : 0u));
    if (status == cudaSuccess && new_block(self, memory, end - begin, REGISTERED) != NULL)
        return DI_OK;
    *out = DI_NONE;
    if (status == cudaSuccess) {
        (void)cudaHostUnregister(memory);
        return di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
    }
    (void)cudaGetLastError();
    return di_fail(error, DI_ERR_MEMORY,
                   "cuda backend: cannot pin the %llu bytes of %s in host memory: %s",
                   (unsigned long long)size, what, cudaGetErrorString(status));
}

/* Device memory for what is bound, in a slab or by itself. */
static di_status take_bound(cuda_backend *self, uint64_t size, const char *what, uint8_t **out,
                            di_error *error) {
    uint64_t room = (size + DI_BIND_ALIGN - 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
    if (room > SLAB_BYTES / 8) return take(self, room, what, out, error);
    if (room > self->slab_left) {
        DI_TRY(take(self, SLAB_BYTES, what, &self->slab, error));
        self->slab_left = SLAB_BYTES;
    }
    *out = self->slab + (SLAB_BYTES - self->slab_left);
    self->slab_left -= room;
    return DI_OK;
}

static di_status bound(const cuda_backend *self, const char *what, di_error *error) {
    if (self->stream.failed == cudaSuccess) return DI_OK;
    return di_fail(error, DI_ERR_IO, "cuda backend: %s: %s", what, self->stream.failure);
}

static di_status bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                      di_ptr *out, di_error *error) {
    cuda_backend *self = self_of(backend);
    uint8_t *memory;
    *out = DI_NONE;
    cuda_begin(&self->stream);
    if (size == 0) return DI_OK;
    if (self->host_from > 0 && size >= self->host_from)
        return bind_host(self, host, size, what, out, error);
    DI_TRY(take_bound(self, size, what, &memory, error));
    *out = cuda_ptr(memory);
    cuda_upload(&self->stream, *out, host, size);
    return bound(self, what, error);
}

static uint64_t matrix_bytes(const di_backend *backend, const di_host_matrix *m) {
    return cuda_packed_bytes(backend->stream, m);
}

static di_status bind_matrix(di_backend *backend, const di_host_matrix *m, const char *what,
                             di_matrix *out, di_error *error) {
    cuda_backend *self = self_of(backend);
    uint64_t size = matrix_bytes(backend, m);
    uint8_t *memory;
    if (size == 0) return di_bind_as_stored(backend, m, what, out, error);
    *out = di_matrix{m->dtype, m->n, m->k, DI_NONE, DI_NONE};
    if (!cuda_can_pack(m))
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "cuda backend: %s has %d rows of %d values in %d groups: groups need a "
                       "multiple of 8 rows, and 128 rows at most %llu bytes",
                       what, m->n, m->k, m->groups, (unsigned long long)DI_BIND_STAGING_BYTES);
    cuda_begin(&self->stream);
    if (self->staging == NULL)
        DI_TRY(take(self, DI_BIND_STAGING_BYTES, "staging of matrices", &self->staging, error));
    DI_TRY(take_bound(self, size, what, &memory, error));
    cuda_pack(&self->stream, m, self->staging, memory);
    out->data = cuda_ptr(memory);
    return bound(self, what, error);
}

/* The device has its own copy, or the range is pinned: nothing to give back. */
static void discard(di_stream *s, const void *host, uint64_t size) {
    (void)s, (void)host, (void)size;
}

static uint64_t workspace_bytes(const di_backend *backend, const di_limits *limits) {
    (void)backend;
    return cuda_work_bytes(limits);
}

static di_status prepare(di_backend *backend, const di_limits *more, di_error *error) {
    cuda_backend *self = self_of(backend);
    di_stream *s = backend->stream;
    di_limits limits = di_limits_join(&s->limits, more);
    uint64_t bytes = cuda_work_bytes(&limits);
    uint8_t *work;
    cuda_begin(s);
    cuda_drain(s);
    if (s->work == NULL || bytes > s->work_size) {
        DI_TRY(take(self, bytes, "workspace", &work, error));
        if (s->work != NULL) give_back(self, s->work);
        s->work = work;
        s->work_size = bytes;
        cuda_fill(s, cuda_ptr(work), 0, CUDA_COUNTERS * sizeof(uint32_t));
    }
    cuda_graphs_forget(s); /* they name the old workspace, and sizes that follow from the limits */
    s->limits = limits;
    s->beside.bytes = cuda_beside_bytes(&limits);
    s->beside.router_bytes = cuda_router_bytes(&limits);
    s->kept.bytes = cuda_kept_bytes(&limits);
    return DI_OK;
}

static void destroy(di_backend *backend) {
    if (backend == NULL) return;
    cuda_backend *self = self_of(backend);
    di_stream *s = &self->stream;
    cuda_begin(s);
    if (s->stream) (void)cudaStreamSynchronize(s->stream);
    while (self->blocks.next != &self->blocks) free_block(self, self->blocks.next);
    cuda_graphs_destroy(s);
    cuda_transfer_destroy(s);
    if (s->stream) (void)cudaStreamDestroy(s->stream);
    if (s->beside.stream) (void)cudaStreamDestroy(s->beside.stream);
    if (s->beside.begin) (void)cudaEventDestroy(s->beside.begin);
    if (s->beside.end) (void)cudaEventDestroy(s->beside.end);
    if (s->beside.chosen) (void)cudaEventDestroy(s->beside.chosen);
    free(self);
}

/* ---- What the machine has ---- */

static di_status find_driver(di_error *error) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: no NVIDIA driver is installed");
    if (driver / 1000 < CUDART_VERSION / 1000)
        return di_fail(
            error, DI_ERR_UNSUPPORTED,
            "cuda backend: the NVIDIA driver is for CUDA %d.%d; this build needs one for "
            "CUDA %d or later",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
    return DI_OK;
}

static di_status find_device(int device, cudaDeviceProp *prop, di_error *error) {
    int n = 0;
    DI_TRY(find_driver(error));
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && n == 0))
        return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: this machine has no NVIDIA GPU");
    if (status != cudaSuccess)
        return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: the NVIDIA driver says: %s",
                       cudaGetErrorString(status));
    if (device < 0 || device >= n)
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "cuda backend: there is no GPU %d; this machine has %d, from 0 on", device,
                       n);
    status = cudaGetDeviceProperties(prop, device);
    if (status != cudaSuccess)
        return di_fail(error, DI_ERR_UNSUPPORTED, "cuda backend: GPU %d: %s", device,
                       cudaGetErrorString(status));
    if (prop->major < 9)
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "cuda backend: GPU %d (%s) is of compute capability %d.%d; 9.0 (Hopper) or "
                       "later is needed",
                       device, prop->name, prop->major, prop->minor);
    return DI_OK;
}

/* Defined where a device function is: whether this build has code for the device in use. */
static __global__ void nothing() {}

static di_status open_device(cuda_backend *self, int device, const cudaDeviceProp *prop,
                             di_error *error) {
    di_stream *s = &self->stream;
    cudaFuncAttributes unused;
    s->device = device;
    s->n_processors = prop->multiProcessorCount;
    cuda_begin(s);
    if (s->failed == cudaSuccess && cudaFuncGetAttributes(&unused, nothing) != cudaSuccess) {
        (void)cudaGetLastError();
        return di_fail(error, DI_ERR_UNSUPPORTED,
                       "cuda backend: this build has no code for GPU %d (%s, compute capability "
                       "%d.%d): build with DI_CUDA_ARCHS=%d%da",
                       device, prop->name, prop->major, prop->minor, prop->major, prop->minor);
    }
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "stream");
    /* What runs beside is small, and waited for: it comes first where there is room for one. */
    int lowest = 0, highest = 0;
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaDeviceGetStreamPriorityRange(&lowest, &highest), "stream");
    if (s->failed == cudaSuccess)
        cuda_check(s,
                   cudaStreamCreateWithPriority(&s->beside.stream, cudaStreamNonBlocking, highest),
                   "stream");
    for (cudaEvent_t *event : {&s->beside.begin, &s->beside.end, &s->beside.chosen})
        if (s->failed == cudaSuccess)
            cuda_check(s, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "stream");
    if (s->failed != cudaSuccess)
        return di_fail(error, DI_ERR_IO, "cuda backend: GPU %d (%s): %s", device, prop->name,
                       s->failure);
    DI_TRY(cuda_graphs_create(s, error));
    return cuda_transfer_create(s, error);
}

/* Without a bound: what is free, less what this backend does not count. */
static di_status set_limit(cuda_backend *self, uint64_t bound, di_error *error) {
    size_t free_bytes = 0, all = 0;
    if (!cuda_check(&self->stream, cudaMemGetInfo(&free_bytes, &all), "memory of the device"))
        return di_fail(error, DI_ERR_IO, "cuda backend: %s: %s", self->device,
                       self->stream.failure);
    uint64_t margin = all / 100 > DI_CUDA_MARGIN ? all / 100 : DI_CUDA_MARGIN;
    uint64_t room = free_bytes > margin ? free_bytes - margin : 0;
    if (bound > 0) room = bound < free_bytes ? bound : free_bytes;
    self->limit = self->base.device_memory = room;
    return DI_OK;
}

static di_status make_far(cuda_backend *self, di_error *error) {
    di_ptr at;
    DI_TRY(alloc(&self->base, sizeof *self->stream.far, "a flag of matrices", &at, error));
    self->stream.far = cuda_at<uint32_t>(at);
    return DI_OK;
}

extern "C" di_status di_backend_create_cuda(di_numerics numerics, const di_cuda_options *options,
                                            di_backend **out, di_error *error) {
    static const di_cuda_options defaults = {0, 0, 0};
    cudaDeviceProp prop;
    if (options == NULL) options = &defaults;
    *out = NULL;
    DI_TRY(find_device(options->device, &prop, error));
    cuda_backend *self = static_cast<cuda_backend *>(calloc(1, sizeof *self));
    if (self == NULL) return di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
    self->blocks.next = self->blocks.previous = &self->blocks;
    self->host_from = options->host_from;
    self->stream.release = numerics == DI_NUMERICS_RELEASE;
    self->base = di_backend{
        .name = "cuda",
        .device = self->device,
        .device_memory = 0,
        .ops = &cuda_ops,
        .numerics = numerics,
        .a_bytes = numerics == DI_NUMERICS_RELEASE ? 2u : 4u,
        .f_bytes = 4,
        .stream = &self->stream,
        .workspace_bytes = workspace_bytes,
        .prepare = prepare,
        .alloc = alloc,
        .free = free_memory,
        .bind = bind,
        .bind_matrix = bind_matrix,
        .matrix_bytes = matrix_bytes,
        .upload = cuda_upload,
        .download = cuda_download,
        .copy = cuda_copy,
        .fill = cuda_fill,
        .discard = discard,
        .stamp = cuda_stamp,
        .alloc_shared = alloc_shared,
        .call = cuda_call,
        .mark = cuda_mark,
        .wait = cuda_wait,
        .record = cuda_record,
        .recorded = cuda_recorded,
        .destroy = destroy,
    };
    snprintf(self->device, sizeof self->device, "GPU %d (%.100s)", options->device, prop.name);
    di_status status = open_device(self, options->device, &prop, error);
    if (status == DI_OK) status = set_limit(self, options->memory, error);
    if (status == DI_OK && self->stream.release) status = make_far(self, error);
    if (status != DI_OK) {
        destroy(&self->base);
        return status;
    }
    *out = &self->base;
    return DI_OK;
}
