/* Copies between host and device, marks and stamps: all in the order of the one stream.
 *
 * Both directions go through pinned rings, so that no call waits for the device unless its ring is
 * full: uploads through pieces that are reused when an event behind their last copy has passed,
 * downloads through a ring whose bytes wait() hands out. Addresses say on which side they are: bound
 * memory may be the host's.
 */
#include "kernels/cuda/cuda.h"

enum {
    N_PIECES = 8,
    N_DOWNLOADS = 1024, /* small copies that nobody has waited for */
    N_MARKS = 64,
    N_STAMPS = 256
};
static constexpr uint64_t PIECE_BYTES = 2 << 20, DOWN_BYTES = 4 << 20;

typedef struct piece {
    cudaEvent_t done; /* behind the last copy from it */
    uint64_t used;
    bool busy; /* done was recorded */
} piece;

typedef struct download {
    void *host;
    uint64_t from, size; /* place in the ring */
    uint64_t mark;       /* the first mark behind it */
} download;

typedef struct stamp_slot {
    cudaEvent_t event;
    double *host;
    uint64_t mark;
} stamp_slot;

struct cuda_transfer {
    uint8_t *up, *down; /* pinned */
    piece pieces[N_PIECES];
    int now; /* piece in use */
    download downloads[N_DOWNLOADS];
    uint64_t first_download, n_downloads; /* ever: their difference waits */
    uint64_t down_head;                   /* where the next one may begin */
    cudaEvent_t marks[N_MARKS];
    uint64_t mark; /* the last one given out */
    stamp_slot stamps[N_STAMPS];
    uint64_t first_stamp, n_stamps;
    bool has_time;    /* `time` is the moment of `last` */
    cudaEvent_t last; /* the newest stamp that was read */
    double time;      /* seconds since the first stamp */
};

static cudaEvent_t *event_of_mark(cuda_transfer *t, uint64_t mark) {
    return &t->marks[mark % N_MARKS];
}

di_status cuda_transfer_create(di_stream *s, di_error *error) {
    cuda_transfer *t = static_cast<cuda_transfer *>(calloc(1, sizeof *t));
    s->transfer = t;
    if (t == NULL) return di_fail(error, DI_ERR_MEMORY, "cuda backend: no memory");
    cudaError_t status = cudaHostAlloc(&t->up, (size_t)N_PIECES * PIECE_BYTES, 0);
    if (status == cudaSuccess) status = cudaHostAlloc(&t->down, DOWN_BYTES, 0);
    for (int i = 0; status == cudaSuccess && i < N_PIECES; i++)
        status = cudaEventCreateWithFlags(&t->pieces[i].done, cudaEventDisableTiming);
    for (int i = 0; status == cudaSuccess && i < N_MARKS; i++)
        status = cudaEventCreateWithFlags(&t->marks[i], cudaEventDisableTiming);
    for (int i = 0; status == cudaSuccess && i < N_STAMPS; i++)
        status = cudaEventCreate(&t->stamps[i].event);
    if (status == cudaSuccess) status = cudaEventCreate(&t->last);
    if (status == cudaSuccess) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, "cuda backend: pinned memory and events: %s",
                   cudaGetErrorString(status));
}

void cuda_transfer_destroy(di_stream *s) {
    cuda_transfer *t = s->transfer;
    if (t == NULL) return;
    for (int i = 0; i < N_PIECES; i++)
        if (t->pieces[i].done) (void)cudaEventDestroy(t->pieces[i].done);
    for (int i = 0; i < N_MARKS; i++)
        if (t->marks[i]) (void)cudaEventDestroy(t->marks[i]);
    for (int i = 0; i < N_STAMPS; i++)
        if (t->stamps[i].event) (void)cudaEventDestroy(t->stamps[i].event);
    if (t->last) (void)cudaEventDestroy(t->last);
    if (t->up) (void)cudaFreeHost(t->up);
    if (t->down) (void)cudaFreeHost(t->down);
    free(t);
    s->transfer = NULL;
}

/* ---- To the device ---- */

/* Up to `wanted` bytes of the ring; *got of them. */
static uint8_t *staging(di_stream *s, uint64_t wanted, uint64_t *got) {
    cuda_transfer *t = s->transfer;
    piece *p = &t->pieces[t->now];
    if (p->used == PIECE_BYTES) {
        cuda_check(s, cudaEventRecord(p->done, s->stream), "upload");
        p->busy = true;
        t->now = (t->now + 1) % N_PIECES;
        p = &t->pieces[t->now];
        if (p->busy) cuda_check(s, cudaEventSynchronize(p->done), "upload");
        p->used = 0;
        p->busy = false;
    }
    uint64_t left = PIECE_BYTES - p->used;
    *got = wanted < left ? wanted : left;
    uint8_t *at = t->up + (uint64_t)t->now * PIECE_BYTES + p->used;
    p->used += (*got + 63) / 64 * 64; /* PIECE_BYTES is a multiple: never beyond it */
    return at;
}

void cuda_upload(di_stream *s, di_ptr to, const void *host, uint64_t size) {
    const uint8_t *from = static_cast<const uint8_t *>(host);
    s->kept.x = DI_NONE;
    cuda_begin_copy(s);
    while (size > 0 && s->failed == cudaSuccess) {
        uint64_t n;
        uint8_t *at = staging(s, size, &n);
        memcpy(at, from, n);
        cuda_check(s, cudaMemcpyAsync(cuda_at<void>(to), at, n, cudaMemcpyDefault, s->stream),
                   "upload");
        to = di_ptr_at(to, n);
        from += n;
        size -= n;
    }
}

void cuda_copy(di_stream *s, di_ptr to, di_ptr from, uint64_t size) {
    s->kept.x = DI_NONE;
    cuda_begin_copy(s);
    if (size == 0 || s->failed != cudaSuccess) return;
    cuda_check(s,
               cudaMemcpyAsync(cuda_at<void>(to), cuda_at<void>(from), size, cudaMemcpyDefault,
                               s->stream),
               "copy");
}

void cuda_fill(di_stream *s, di_ptr to, int byte, uint64_t size) {
    s->kept.x = DI_NONE;
    cuda_begin_copy(s);
    if (size == 0 || s->failed != cudaSuccess) return;
    cuda_check(s, cudaMemsetAsync(cuda_at<void>(to), byte, size, s->stream), "fill");
}

/* ---- To the host ---- */

/* Hands out what mark `reached` and those before it have behind them. */
static void deliver(di_stream *s, uint64_t reached) {
    cuda_transfer *t = s->transfer;
    while (t->first_download < t->n_downloads) {
        const download *d = &t->downloads[t->first_download % N_DOWNLOADS];
        if (d->mark > reached) break;
        memcpy(d->host, t->down + d->from, d->size);
        t->first_download++;
    }
    while (t->first_stamp < t->n_stamps) {
        stamp_slot *stamp = &t->stamps[t->first_stamp % N_STAMPS];
        float ms = 0;
        if (stamp->mark > reached) break;
        if (t->has_time &&
            !cuda_check(s, cudaEventElapsedTime(&ms, t->last, stamp->event), "stamp"))
            break;
        t->time += 1e-3 * (double)ms; /* from stamp to stamp: a float of a long time is coarse */
        t->has_time = true;
        *stamp->host = t->time;
        cudaEvent_t swap = t->last;
        t->last = stamp->event;
        stamp->event = swap;
        t->first_stamp++;
    }
}

void cuda_drain(di_stream *s) {
    if (cuda_check(s, cudaStreamSynchronize(s->stream), "wait")) deliver(s, UINT64_MAX);
}

/* Room in the ring: *at; false when what waits is in the way. room <= DOWN_BYTES. */
static bool find_room(cuda_transfer *t, uint64_t room, uint64_t *at) {
    uint64_t waiting = t->n_downloads - t->first_download, head = t->down_head;
    if (waiting == N_DOWNLOADS) return false;
    if (waiting == 0) head = 0;
    uint64_t tail = waiting > 0 ? t->downloads[t->first_download % N_DOWNLOADS].from : 0;
    if (waiting > 0 && head <= tail) { /* the free part is between them, never all of it taken */
        *at = head;
        return head + room < tail;
    }
    *at = head + room <= DOWN_BYTES ? head : 0;
    return *at == head || room < tail;
}

void cuda_download(di_stream *s, void *host, di_ptr from, uint64_t size) {
    cuda_transfer *t = s->transfer;
    uint8_t *to = static_cast<uint8_t *>(host);
    cuda_begin_copy(s);
    while (size > 0 && s->failed == cudaSuccess) {
        uint64_t n = size < DOWN_BYTES ? size : DOWN_BYTES, room = (n + 63) / 64 * 64, at;
        if (!find_room(t, room, &at)) {
            cuda_drain(s);
            if (s->failed != cudaSuccess || !find_room(t, room, &at)) return;
        }
        cuda_check(s,
                   cudaMemcpyAsync(t->down + at, cuda_at<void>(from), n, cudaMemcpyDefault,
                                   s->stream),
                   "download");
        t->downloads[t->n_downloads++ % N_DOWNLOADS] = download{to, at, n, t->mark + 1};
        t->down_head = at + room;
        from = di_ptr_at(from, n);
        to += n;
        size -= n;
    }
}

void cuda_stamp(di_stream *s, double *host) {
    cuda_transfer *t = s->transfer;
    cuda_begin_copy(s);
    if (t->n_stamps - t->first_stamp == N_STAMPS) cuda_drain(s);
    if (s->failed != cudaSuccess) return;
    stamp_slot *stamp = &t->stamps[t->n_stamps++ % N_STAMPS];
    stamp->host = host;
    stamp->mark = t->mark + 1;
    cuda_check(s, cudaEventRecord(stamp->event, s->stream), "stamp");
}

void cuda_call(di_stream *s, void (*run)(void *user), void *user) {
    s->kept.x = DI_NONE;
    cuda_begin_copy(s);
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaLaunchHostFunc(s->stream, run, user), "a call of the host");
}

/* ---- Points in the stream ---- */

uint64_t cuda_mark(di_stream *s) {
    cuda_transfer *t = s->transfer;
    cuda_begin_copy(s);
    t->mark++;
    if (s->failed == cudaSuccess)
        cuda_check(s, cudaEventRecord(*event_of_mark(t, t->mark), s->stream), "mark");
    return t->mark;
}

di_status cuda_wait(di_stream *s, uint64_t mark, di_error *error) {
    cuda_transfer *t = s->transfer;
    cuda_begin_copy(s);
    /* An old mark's event belongs to a later one by now: waiting for that is enough. */
    if (s->failed == cudaSuccess && mark > 0 &&
        cuda_check(s, cudaEventSynchronize(*event_of_mark(t, mark)), "wait"))
        deliver(s, mark);
    if (s->failed == cudaSuccess) return DI_OK;
    return di_fail(error, DI_ERR_IO, "cuda backend: %s", s->failure);
}
