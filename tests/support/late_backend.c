/* The queue and the hidden memory of the late backend.
 *
 * Memory is one memfd mapped twice: `revealed` with PROT_NONE, whose addresses the handles carry,
 * and `hidden`, which only the worker uses (the twins add the difference, see ref_at). It is handed
 * out in order and never twice, so that a use after free finds holes, not someone else's bytes.
 */
#include "support/late_backend.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/ref/ref.h"

enum { QUEUE_SLOTS = 64 };
static const uint64_t memory_bytes = (uint64_t)4 << 30; /* sparse: only what is touched counts */

typedef union late_args {
#define LATE_MEMBER(name) di_##name##_args name;
    DI_EACH_OP(LATE_MEMBER)
#undef LATE_MEMBER
    struct {
        void *host;
        di_ptr to, from;
        uint64_t size;
        int byte;
    } transfer;
    struct {
        void (*run)(void *user);
        void *user;
    } call;
} late_args;

typedef struct late_job {
    void (*run)(di_stream *ref, late_args *args);
    late_args args;
} late_job;

/* A sequence of operations that was kept (backend.h, record). */
typedef struct late_tape {
    uint64_t key[2];
    late_job *jobs;
    size_t n, size;
} late_tape;
enum { TAPES = 64 };

typedef struct late_backend late_backend;

typedef struct late_stream {
    di_stream head; /* what a di_stream * of this backend points to; its fields are unused */
    late_backend *owner;
} late_stream;

struct late_backend {
    di_backend base;
    late_stream stream;
    di_backend *ref; /* runs the twins; used by the worker alone once operations are enqueued */
    uint8_t *hidden, *revealed;
    uint64_t memory_used;
    int memory_fd;
    late_tape tapes[TAPES];
    int n_tapes;
    late_tape *recording;

    pthread_t worker;
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t work, progress;
    late_job queue[QUEUE_SLOTS];
    uint64_t enqueued, done, wanted; /* counts since the start; wanted: someone waits for it */
    uint32_t random;
    bool stop;
};

static late_backend *owner_of(di_stream *stream) { return ((late_stream *)stream)->owner; }

/* ---- The worker ---- */

static void linger(late_backend *late) { /* lock held; at most 0.3 ms */
    late->random = late->random * 1664525u + 1013904223u;
    if (late->random >> 30 != 0) return; /* three of four jobs start at once */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(late->random >> 12 & 0x3FFFF);
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    pthread_cond_timedwait(&late->work, &late->lock, &until);
}

static void *work_loop(void *user) {
    late_backend *late = user;
    pthread_mutex_lock(&late->lock);
    for (;;) {
        while (late->enqueued == late->done && !late->stop) {
            pthread_cond_wait(&late->work, &late->lock);
        }
        if (late->enqueued == late->done) break;
        bool full = late->enqueued - late->done == QUEUE_SLOTS;
        if (late->wanted <= late->done && !full && !late->stop) linger(late);
        late_job *job = &late->queue[late->done % QUEUE_SLOTS];
        pthread_mutex_unlock(&late->lock);
        job->run(late->ref->stream, &job->args);
        pthread_mutex_lock(&late->lock);
        late->done++;
        pthread_cond_broadcast(&late->progress);
    }
    pthread_mutex_unlock(&late->lock);
    return NULL;
}

static void keep(late_tape *tape, const late_job *job) {
    if (tape->n == tape->size) {
        tape->size = 2 * tape->size + 64;
        tape->jobs = realloc(tape->jobs, tape->size * sizeof *tape->jobs);
        if (tape->jobs == NULL) abort();
    }
    tape->jobs[tape->n++] = *job;
}

static void enqueue(di_stream *stream, void (*run)(di_stream *, late_args *), const void *args,
                    size_t size) {
    late_backend *late = owner_of(stream);
    pthread_mutex_lock(&late->lock);
    while (late->enqueued - late->done == QUEUE_SLOTS) {
        pthread_cond_wait(&late->progress, &late->lock);
    }
    late_job *job = &late->queue[late->enqueued++ % QUEUE_SLOTS];
    job->run = run;
    memcpy(&job->args, args, size);
    if (late->recording) keep(late->recording, job);
    pthread_cond_signal(&late->work);
    pthread_mutex_unlock(&late->lock);
}

/* ---- Operations ---- */

#define LATE_OP(name)                                                                              \
    static void run_##name(di_stream *ref, late_args *args) { ref_ops.name(ref, &args->name); }    \
    static void late_##name(di_stream *stream, const di_##name##_args *args) {                     \
        enqueue(stream, run_##name, args, sizeof *args);                                           \
    }
DI_EACH_OP(LATE_OP)
#undef LATE_OP

#define LATE_ENTRY(name) .name = late_##name,
static const di_ops late_ops = {DI_EACH_OP(LATE_ENTRY)};
#undef LATE_ENTRY

/* ---- Recorded steps: what is kept is played back as it was, wrong keys and all ---- */

static bool late_record(di_stream *stream, const uint64_t key[2]) {
    late_backend *late = owner_of(stream);
    for (int i = 0; i < late->n_tapes; i++) {
        const late_tape *tape = &late->tapes[i];
        if (tape->key[0] != key[0] || tape->key[1] != key[1]) continue;
        for (size_t j = 0; j < tape->n; j++) {
            enqueue(stream, tape->jobs[j].run, &tape->jobs[j].args, sizeof tape->jobs[j].args);
        }
        return true;
    }
    if (late->n_tapes == TAPES) return false;
    late->recording = &late->tapes[late->n_tapes++];
    *late->recording = (late_tape){.key = {key[0], key[1]}};
    return false;
}

static void late_recorded(di_stream *stream) { owner_of(stream)->recording = NULL; }

static void forget_tapes(late_backend *late) {
    while (late->n_tapes > 0) free(late->tapes[--late->n_tapes].jobs);
}

/* Host memory has no place in what is kept. */
static void require_no_recording(const di_stream *stream) {
    if (((const late_stream *)stream)->owner->recording) abort();
}

/* ---- Transfers ---- */

static void enqueue_transfer(di_stream *stream, void (*run)(di_stream *, late_args *), void *host,
                             di_ptr to, di_ptr from, uint64_t size, int byte) {
    late_args args;
    memset(&args, 0, sizeof args);
    args.transfer.host = host;
    args.transfer.to = to;
    args.transfer.from = from;
    args.transfer.size = size;
    args.transfer.byte = byte;
    if (size > 0) enqueue(stream, run, &args, sizeof args);
}

static void run_upload(di_stream *ref, late_args *args) {
    memcpy(ref_at(ref, args->transfer.to), args->transfer.host, args->transfer.size);
    free(args->transfer.host);
}

static void late_upload(di_stream *stream, di_ptr to, const void *host, uint64_t size) {
    if (size == 0) return;
    require_no_recording(stream);
    void *bytes = malloc(size); /* host may change as soon as this returns */
    if (bytes == NULL) abort();
    memcpy(bytes, host, size);
    enqueue_transfer(stream, run_upload, bytes, to, DI_NONE, size, 0);
}

static void run_download(di_stream *ref, late_args *args) {
    memcpy(args->transfer.host, ref_at(ref, args->transfer.from), args->transfer.size);
}

static void late_download(di_stream *stream, void *host, di_ptr from, uint64_t size) {
    require_no_recording(stream);
    if (size > 0) memset(host, 0xA5, size); /* whoever reads before wait() shall notice */
    enqueue_transfer(stream, run_download, host, DI_NONE, from, size, 0);
}

static void run_copy(di_stream *ref, late_args *args) {
    memcpy(ref_at(ref, args->transfer.to), ref_at(ref, args->transfer.from), args->transfer.size);
}

static void late_copy(di_stream *stream, di_ptr to, di_ptr from, uint64_t size) {
    enqueue_transfer(stream, run_copy, NULL, to, from, size, 0);
}

static void run_fill(di_stream *ref, late_args *args) {
    memset(ref_at(ref, args->transfer.to), args->transfer.byte, args->transfer.size);
}

static void late_fill(di_stream *stream, di_ptr to, int byte, uint64_t size) {
    enqueue_transfer(stream, run_fill, NULL, to, DI_NONE, size, byte);
}

static void late_discard(di_stream *stream, const void *host, uint64_t size) {
    (void)stream, (void)host, (void)size; /* bind copied */
}

static void run_stamp(di_stream *ref, late_args *args) {
    struct timespec now;
    (void)ref;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(args->transfer.host, &seconds, sizeof seconds);
}

static void late_stamp(di_stream *stream, double *host) {
    require_no_recording(stream);
    memset(host, 0xA5, sizeof *host); /* as late_download */
    enqueue_transfer(stream, run_stamp, host, DI_NONE, DI_NONE, sizeof *host, 0);
}

static void run_call(di_stream *ref, late_args *args) {
    (void)ref;
    args->call.run(args->call.user);
}

static void late_call(di_stream *stream, void (*run)(void *user), void *user) {
    late_args args;
    memset(&args, 0, sizeof args);
    require_no_recording(stream);
    args.call.run = run;
    args.call.user = user;
    enqueue(stream, run_call, &args, sizeof args);
}

static uint64_t late_mark(di_stream *stream) {
    late_backend *late = owner_of(stream);
    pthread_mutex_lock(&late->lock);
    uint64_t mark = late->enqueued;
    pthread_mutex_unlock(&late->lock);
    return mark;
}

static void wait_until(late_backend *late, uint64_t mark) {
    pthread_mutex_lock(&late->lock);
    if (late->wanted < mark) late->wanted = mark;
    pthread_cond_signal(&late->work);
    while (late->done < mark) pthread_cond_wait(&late->progress, &late->lock);
    pthread_mutex_unlock(&late->lock);
}

static di_status late_wait(di_stream *stream, uint64_t mark, di_error *error) {
    (void)error;
    wait_until(owner_of(stream), mark);
    return DI_OK;
}

/* ---- Memory ---- */

static uint64_t late_workspace_bytes(const di_backend *backend, const di_limits *limits) {
    (void)backend;
    return ref_workspace_bytes(limits);
}

static di_status late_prepare(di_backend *backend, const di_limits *limits, di_error *error) {
    late_backend *late = (late_backend *)backend;
    wait_until(late, late_mark(backend->stream));
    forget_tapes(late);
    return late->ref->prepare(late->ref, limits, error);
}

static di_status late_alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                            di_error *error) {
    late_backend *late = (late_backend *)backend;
    *out = DI_NONE;
    if (size == 0 || size > memory_bytes - late->memory_used - 4096) {
        return di_fail(error, DI_ERR_MEMORY, "late backend: no memory for %llu bytes of %s",
                       (unsigned long long)size, what);
    }
    out->address = (uint64_t)(uintptr_t)(late->revealed + late->memory_used);
    late->memory_used += (size + 63) / 64 * 64 + 64;
    return DI_OK;
}

/* The host has an address of its own for what operations find elsewhere. */
static di_status late_alloc_shared(di_backend *backend, uint64_t size, const char *what,
                                   void **host, di_ptr *out, di_error *error) {
    late_backend *late = (late_backend *)backend;
    DI_TRY(late_alloc(backend, size, what, out, error));
    *host = late->hidden + (out->address - (uint64_t)(uintptr_t)late->revealed);
    return DI_OK;
}

static void late_free(di_backend *backend, di_ptr memory) {
    (void)memory; /* never handed out again; the whole goes with destroy */
    wait_until((late_backend *)backend, late_mark(backend->stream));
}

static di_status late_bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                           di_ptr *out, di_error *error) {
    late_backend *late = (late_backend *)backend;
    DI_TRY(late_alloc(backend, size, what, out, error));
    memcpy(late->hidden + (out->address - (uint64_t)(uintptr_t)late->revealed), host, size);
    return DI_OK;
}

static void late_destroy(di_backend *backend) {
    if (backend == NULL) return;
    late_backend *late = (late_backend *)backend;
    pthread_mutex_lock(&late->lock);
    late->stop = true;
    pthread_cond_signal(&late->work);
    pthread_mutex_unlock(&late->lock);
    pthread_join(late->worker, NULL);
    forget_tapes(late);
    late->ref->destroy(late->ref);
    munmap(late->hidden, memory_bytes);
    munmap(late->revealed, memory_bytes);
    close(late->memory_fd);
    pthread_cond_destroy(&late->work);
    pthread_cond_destroy(&late->progress);
    pthread_mutex_destroy(&late->lock);
    free(late);
}

static bool map_memory(late_backend *late) {
    late->memory_fd = memfd_create("late_backend", MFD_CLOEXEC);
    if (late->memory_fd < 0 || ftruncate(late->memory_fd, (off_t)memory_bytes) != 0) return false;
    late->hidden = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                        late->memory_fd, 0);
    late->revealed =
        mmap(NULL, memory_bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, late->memory_fd, 0);
    return late->hidden != MAP_FAILED && late->revealed != MAP_FAILED;
}

/* A test helper: what cannot fail for want of a few hundred bytes is not unwound. */
di_status late_backend_create(di_numerics numerics, di_backend **out, di_error *error) {
    *out = NULL;
    late_backend *late = calloc(1, sizeof *late);
    if (late == NULL || !map_memory(late)) {
        free(late);
        return di_fail(error, DI_ERR_MEMORY, "late backend: no memory");
    }
    DI_TRY(di_backend_create_ref(numerics, &late->ref, error));
    late->ref->stream->delta =
        (uint64_t)(uintptr_t)late->hidden - (uint64_t)(uintptr_t)late->revealed;
    late->stream.owner = late;
    late->memory_used = 64; /* address 0 is far away, but an offset of 0 might hide a bug */
    late->random = 12345;
    late->base = (di_backend){
        .name = "late",
        .ops = &late_ops,
        .numerics = numerics,
        .a_bytes = 8,
        .f_bytes = 8,
        .stream = &late->stream.head,
        .workspace_bytes = late_workspace_bytes,
        .prepare = late_prepare,
        .alloc = late_alloc,
        .free = late_free,
        .bind = late_bind,
        .bind_matrix = di_bind_as_stored,
        .upload = late_upload,
        .download = late_download,
        .copy = late_copy,
        .fill = late_fill,
        .discard = late_discard,
        .stamp = late_stamp,
        .alloc_shared = late_alloc_shared,
        .call = late_call,
        .mark = late_mark,
        .wait = late_wait,
        .record = late_record,
        .recorded = late_recorded,
        .destroy = late_destroy,
    };
    pthread_mutex_init(&late->lock, NULL);
    pthread_cond_init(&late->work, NULL);
    pthread_cond_init(&late->progress, NULL);
    if (pthread_create(&late->worker, NULL, work_loop, late) != 0) abort();
    *out = &late->base;
    return DI_OK;
}
