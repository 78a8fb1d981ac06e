/* The queue of a host backend: the same bits as the backend itself, whatever is enqueued; calls that
 * return before the work is done; the ring when it is full; waits, the end, the counters. */
/* ctest: threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/philox.h"
#include "kernels/queue.h"
#include "support/sanitized.h"

enum { ROWS = 8, WIDTH = 64, VOCAB = 50, RING = 4 << 20, BYTES = 6 << 20, KEEP = 2 << 20 };

static void must(di_status status, const di_error *error) {
    if (status != DI_OK) fail_msg("%s", error->message);
}

static di_backend *open_inner(const char *name) {
    di_backend *inner;
    di_error error;
    if (name[0] == 'c') {
        const di_cpu_options options = {2, 0, ~0u};
        if (di_backend_create_cpu(DI_NUMERICS_RELEASE, &options, &inner, &error) != DI_OK) skip();
    } else {
        must(di_backend_create_ref(DI_NUMERICS_RELEASE, &inner, &error), &error);
    }
    return inner;
}

static di_backend *queue_of(di_backend *inner) {
    di_error error;
    must(di_backend_create_queue(inner, &inner, &error), &error);
    return inner;
}

static di_ptr take(di_backend *b, uint64_t size) {
    di_ptr p;
    di_error error;
    must(b->alloc(b, size, "test", &p, &error), &error);
    return p;
}

static void sync_all(di_backend *b) {
    di_error error;
    must(di_backend_sync(b, &error), &error);
}

static void prepare(di_backend *b) {
    di_error error;
    const di_limits limits = {.max_rows = ROWS, .max_out = ROWS, .width = WIDTH, .max_k = WIDTH};
    must(b->prepare(b, &limits, &error), &error);
}

/* ---- A random program, on the backend itself and behind a queue ---- */

typedef struct world {
    di_backend *b;
    uint64_t seed, drawn;
    di_ptr bytes, x, y, single, counts, ids, slots;
    di_matrix w;
    di_vector norm;
    uint8_t *scratch; /* [BYTES] what uploads come from, changed as soon as one returns */
    uint8_t *kept;    /* [KEEP] what downloads went to */
    uint64_t n_kept, uploaded;
} world;

static uint32_t draw(world *w, uint32_t n) { /* 0..n-1 */
    uint32_t words[4];
    di_philox(w->seed, w->drawn++, 0, words);
    return words[0] % n;
}

static di_ptr put(world *w, const void *host, uint64_t size) {
    di_ptr p = take(w->b, size);
    w->b->upload(w->b->stream, p, host, size);
    return p;
}

static void open_world(world *w, di_backend *b, uint64_t seed) {
    static uint16_t square[WIDTH * WIDTH], norm[WIDTH];
    int32_t ids[ROWS], slots[ROWS] = {0};
    *w = (world){.b = b, .seed = seed};
    for (int i = 0; i < WIDTH * WIDTH; i++) square[i] = (uint16_t)(0x3C00 + i * 91 % 300);
    for (int i = 0; i < WIDTH; i++) norm[i] = 0x3F80;
    for (int i = 0; i < ROWS; i++) ids[i] = i * 7;
    prepare(b);
    w->scratch = malloc(BYTES);
    w->kept = calloc(KEEP, 1);
    assert_true(w->scratch != NULL && w->kept != NULL);
    for (uint32_t i = 0; i < BYTES; i++) w->scratch[i] = (uint8_t)(i * 2654435761u >> 24);
    w->bytes = take(b, BYTES);
    w->x = take(b, ROWS * WIDTH * b->a_bytes);
    w->y = take(b, ROWS * WIDTH * b->a_bytes);
    w->single = take(b, ROWS * WIDTH * 4);
    w->counts = take(b, VOCAB * 4);
    w->ids = put(w, ids, sizeof ids);
    w->slots = put(w, slots, sizeof slots);
    w->w = (di_matrix){DI_BF16, WIDTH, WIDTH, put(w, square, sizeof square), DI_NONE};
    w->norm = (di_vector){DI_BF16, WIDTH, put(w, norm, sizeof norm)};
    float one = 1.5F;
    double wide = 1.5;
    for (uint64_t i = 0; i < ROWS * WIDTH; i += 3) {
        b->upload(b->stream, di_ptr_at(w->x, i * b->a_bytes),
                  b->a_bytes == 4 ? (const void *)&one : (const void *)&wide, b->a_bytes);
    }
    sync_all(b); /* square and norm are written again by the next world */
}

/* Mostly small, some that fill the ring, a few beyond what a job may be. */
static uint64_t draw_size(world *w) {
    uint32_t kind = draw(w, 100);
    if (kind < 80) return draw(w, 600);
    if (kind < 97) return draw(w, 100000);
    return kind < 98 ? RING / 2 - 100 + draw(w, 120) : draw(w, RING + 100000);
}

static void play_upload(world *w) {
    uint64_t size = draw_size(w), from = draw(w, BYTES - (uint32_t)size + 1);
    uint64_t to = draw(w, BYTES - (uint32_t)size + 1);
    w->b->upload(w->b->stream, di_ptr_at(w->bytes, to), w->scratch + from, size);
    for (uint64_t i = 0; i < size; i += 1 + size / 100) w->scratch[from + i] ^= (uint8_t)(7 + i);
    w->uploaded += size;
}

static void play_transfer(world *w, uint32_t kind) {
    di_backend *b = w->b;
    uint64_t size = draw(w, 3000), at = draw(w, BYTES / 2 - 3000);
    di_ptr low = di_ptr_at(w->bytes, at), high = di_ptr_at(w->bytes, at + BYTES / 2);
    if (kind == 0) b->copy(b->stream, low, high, size);
    if (kind == 1) b->copy(b->stream, high, low, size);
    if (kind == 2) b->fill(b->stream, low, (int)draw(w, 256), size);
    if (kind == 3 && w->n_kept + size <= KEEP) {
        b->download(b->stream, w->kept + w->n_kept, high, size);
        w->n_kept += size;
    }
}

static void play_operation(world *w, uint32_t kind) {
    di_backend *b = w->b;
    uint64_t n = ROWS * WIDTH;
    if (kind == 0) {
        di_linear_args args = {ROWS, 1, true, false, w->x, w->w, w->y};
        b->ops->linear(b->stream, &args);
        memset(&args, 0xEE, sizeof args); /* argument structs are copied */
    }
    if (kind == 1) {
        b->ops->rms_norm(b->stream, &(di_rms_norm_args){ROWS, WIDTH, 1e-6, w->y, w->norm, w->x});
    }
    if (kind == 2) {
        int32_t delta = (int32_t)draw(w, 5);
        bool prompt = draw(w, 9) == 0;
        b->ops->tally(b->stream,
                      &(di_tally_args){ROWS, VOCAB, delta, prompt, w->ids, w->slots, w->counts});
    }
    if (kind == 3) {
        b->ops->to_f32(b->stream, &(di_to_f32_args){(int64_t)n, false, w->y, w->single});
        b->copy(b->stream, di_ptr_at(w->bytes, BYTES / 2 + draw(w, 100000)), w->single, n * 4);
    }
}

static void play(world *w, int n_jobs) {
    for (int i = 0; i < n_jobs; i++) {
        uint32_t kind = draw(w, 20);
        if (kind < 6) {
            play_upload(w);
        } else if (kind < 12) {
            play_transfer(w, kind % 4);
        } else if (kind < 19) {
            play_operation(w, draw(w, 4));
        } else if (draw(w, 8) == 0) {
            sync_all(w->b);
        }
    }
}

/* Everything that the program left, behind its downloads. */
static uint8_t *close_world(world *w, uint64_t *size) {
    di_backend *b = w->b;
    uint64_t a = ROWS * WIDTH * b->a_bytes;
    uint8_t *all = malloc(KEEP + BYTES + 2 * a + 4 * VOCAB), *to = all + KEEP;
    assert_non_null(all);
    b->download(b->stream, to, w->bytes, BYTES);
    b->download(b->stream, to + BYTES, w->x, a);
    b->download(b->stream, to + BYTES + a, w->y, a);
    b->download(b->stream, to + BYTES + 2 * a, w->counts, 4 * VOCAB);
    sync_all(b);
    memcpy(all, w->kept, KEEP);
    *size = KEEP + BYTES + 2 * a + 4 * VOCAB;
    free(w->kept);
    free(w->scratch);
    b->destroy(b);
    return all;
}

static void check_program(const char *name, uint64_t seed, int n_jobs) {
    world w[2];
    uint8_t *left[2];
    uint64_t size[2];
    for (int i = 0; i < 2; i++) {
        di_backend *b = open_inner(name);
        open_world(&w[i], i == 1 ? queue_of(b) : b, seed);
        play(&w[i], n_jobs);
        left[i] = close_world(&w[i], &size[i]);
    }
    assert_true(size[0] == size[1] && w[0].n_kept == w[1].n_kept && w[0].n_kept > 0);
    assert_true(w[1].uploaded > 3 * (uint64_t)RING); /* the ring came round */
    if (memcmp(left[0], left[1], size[0]) != 0) fail_msg("%s, seed %d", name, (int)seed);
    free(left[0]);
    free(left[1]);
}

static void test_same_bits(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        check_program("ref", seed, 1500);
        check_program("cpu", seed, 1500);
    }
}

/* ---- A backend that can be held up ---- */

static struct {
    void (*fill)(di_stream *stream, di_ptr to, int byte, uint64_t size);
    void (*destroy)(di_backend *backend);
    sem_t gate;    /* a permit for every fill that may run */
    sem_t entered; /* one for every fill that was begun */
    int filled, destroyed;
} held; /* written by the worker, read behind a wait */

static void held_fill(di_stream *stream, di_ptr to, int byte, uint64_t size) {
    sem_post(&held.entered);
    while (sem_wait(&held.gate) != 0) continue;
    held.fill(stream, to, byte, size);
    held.filled++;
}

static void held_destroy(di_backend *backend) {
    held.destroyed++;
    held.destroy(backend);
}

static di_backend *open_held(unsigned permits) {
    di_backend *inner = open_inner("ref");
    sem_init(&held.gate, 0, permits);
    sem_init(&held.entered, 0, 0);
    held.fill = inner->fill;
    held.destroy = inner->destroy;
    held.filled = held.destroyed = 0;
    inner->fill = held_fill;
    inner->destroy = held_destroy;
    return inner;
}

static void let_run(int n) {
    for (int i = 0; i < n; i++) sem_post(&held.gate);
}

static void *let_run_later(void *user) {
    usleep(20000);
    atomic_store((_Atomic int *)user, 1);
    let_run(1000);
    return NULL;
}

/* Calls return while the stream stands still, and nothing is seen of them before a wait. */
static void test_asynchronous(void **state) {
    (void)state;
    di_error error;
    uint8_t got[2][16], source[16];
    memset(got, 0x11, sizeof got);
    di_backend *b = queue_of(open_held(0));
    di_ptr p = take(b, 16);
    b->fill(b->stream, p, 0x22, 16);
    b->download(b->stream, got[0], p, 16);
    uint64_t first = b->mark(b->stream);
    b->fill(b->stream, p, 0x33, 8);
    memset(source, 0x44, sizeof source);
    b->upload(b->stream, di_ptr_at(p, 12), source, 4);
    memset(source, 0x55, sizeof source);
    b->download(b->stream, got[1], p, 16);
    di_ptr more = take(b, 1 << 21); /* not held up either */
    assert_true(more.address != 0 && got[0][0] == 0x11 && got[1][15] == 0x11);
    let_run(1);
    must(b->wait(b->stream, first, &error), &error);
    for (int i = 0; i < 16; i++) assert_int_equal(got[0][i], 0x22);
    for (int i = 0; i < 16; i++) assert_int_equal(got[1][i], 0x11); /* the second fill is held */
    must(b->wait(b->stream, first, &error), &error); /* once more, and an old one: at once */
    must(b->wait(b->stream, 0, &error), &error);
    let_run(1);
    sync_all(b);
    for (int i = 0; i < 16; i++) assert_int_equal(got[1][i], i < 8 ? 0x33 : i < 12 ? 0x22 : 0x44);
    b->destroy(b);
}

/* Twice what the ring holds, behind a job that does not end: the caller waits, and loses nothing. */
static void test_full_ring(void **state) {
    (void)state;
    enum { PIECE = 50000, N = 2 * RING / PIECE };
    pthread_t other;
    _Atomic int running = 0;
    uint8_t *source = malloc(PIECE), *got = malloc((size_t)N * PIECE);
    assert_true(source != NULL && got != NULL);
    di_backend *b = queue_of(open_held(0));
    di_ptr p = take(b, (uint64_t)N * PIECE), small = take(b, 64);
    b->fill(b->stream, small, 0, 64);
    for (int i = 0; i < N; i++) {
        memset(source, i % 251, PIECE);
        b->upload(b->stream, di_ptr_at(p, (uint64_t)i * PIECE), source, PIECE);
        if (i == N / 4) /* up to here there was room */
            assert_int_equal(pthread_create(&other, NULL, let_run_later, &running), 0);
        if (i > N / 2) assert_int_equal(atomic_load(&running), 1);
    }
    b->download(b->stream, got, p, (uint64_t)N * PIECE);
    sync_all(b);
    for (int i = 0; i < N * PIECE; i++) {
        if (got[i] != i / PIECE % 251) fail_msg("byte %d is %d", i, got[i]);
    }
    pthread_join(other, NULL);
    b->destroy(b);
    free(source);
    free(got);
}

/* Operations alone come round, too: their jobs end where the ring does only by an empty one. */
static void test_many_operations(void **state) {
    (void)state;
    enum { N = 2 * RING / 64 };
    int32_t count[2] = {0, 0}, id = 1, slot = 0;
    di_backend *b = queue_of(open_inner("ref"));
    di_ptr counts = take(b, 8), token = take(b, 4), slots = take(b, 4);
    b->upload(b->stream, token, &id, 4);
    b->upload(b->stream, slots, &slot, 4);
    for (int i = 0; i < N; i++) {
        b->ops->tally(b->stream, &(di_tally_args){1, 2, 3, false, token, slots, counts});
    }
    b->download(b->stream, count, counts, 8);
    sync_all(b);
    assert_int_equal(count[0], 0);
    assert_int_equal(count[1], 3 * N);
    b->destroy(b);
}

/* Both sides fall asleep and are woken, over and over. */
static void test_waking(void **state) {
    (void)state;
    world w = {.seed = 5};
    di_backend *b = queue_of(open_inner("ref"));
    di_ptr p = take(b, 8);
    for (int i = 0; i < (is_sanitized() ? 2000 : 10000); i++) {
        uint32_t n = 1 + draw(&w, 3), got = 0, want = 0;
        for (uint32_t k = 0; k < n; k++) {
            want = (uint32_t)i * 4 + k;
            b->upload(b->stream, p, &want, 4);
            if (draw(&w, 300) == 0) usleep(draw(&w, 60)); /* it sleeps, or is about to */
        }
        b->download(b->stream, &got, p, 4);
        sync_all(b);
        assert_int_equal(got, want);
    }
    b->destroy(b);
}

static void test_waits_of_memory(void **state) {
    (void)state;
    static uint8_t big[RING / 2], got[8];
    pthread_t other;
    for (int what = 0; what < 3; what++) {
        _Atomic int running = 0;
        di_backend *b = queue_of(open_held(0));
        di_ptr p = take(b, 64), q = take(b, sizeof big);
        memset(big, 0x77, sizeof big);
        b->free(b, DI_NONE);
        for (int i = 0; i < 9; i++) b->fill(b->stream, q, i, 64);
        assert_int_equal(pthread_create(&other, NULL, let_run_later, &running), 0);
        if (what == 0) b->free(b, p);
        if (what == 1) prepare(b);
        if (what == 2) b->upload(b->stream, q, big, sizeof big);
        assert_int_equal(atomic_load(&running), 1);
        assert_int_equal(held.filled, 9); /* no race either: the thread sanitizer looks */
        big[0] = 0;
        b->download(b->stream, got, q, 8);
        sync_all(b);
        assert_int_equal(got[0], what == 2 ? 0x77 : 8);
        pthread_join(other, NULL);
        b->destroy(b);
        assert_int_equal(held.destroyed, 1);
    }
}

static void test_destroy_with_work(void **state) {
    (void)state;
    pthread_t other;
    uint8_t got[64] = {0};
    _Atomic int running = 0;
    di_backend *b = queue_of(open_held(0));
    di_ptr p = take(b, 64);
    for (int i = 0; i < 200; i++) b->fill(b->stream, p, i, 64);
    b->download(b->stream, got, p, 64);
    assert_int_equal(pthread_create(&other, NULL, let_run_later, &running), 0);
    b->destroy(b);
    assert_int_equal(held.filled, 200);
    assert_int_equal(held.destroyed, 1);
    assert_int_equal(got[63], 199);
    pthread_join(other, NULL);
    b = queue_of(open_held(0)); /* and with none at all */
    b->destroy(b);
    assert_int_equal(held.destroyed, 1);
}

static void test_stats(void **state) {
    (void)state;
    di_backend *inner = open_held(0);
    di_queue_stats s = di_backend_queue_stats(inner);
    assert_true(s.busy_s == 0 && s.idle_s == 0 && s.batches == 0);
    di_backend *b = queue_of(inner);
    di_ptr p = take(b, 64);
    usleep(20000); /* before the first job: counts for nothing */
    for (int batch = 0; batch < 2; batch++) {
        for (int i = 0; i < 50; i++) b->fill(b->stream, p, i, 64); /* held: one batch */
        while (sem_wait(&held.entered) != 0) continue;
        usleep(10000);
        let_run(50);
        sync_all(b);
        for (int i = 1; i < 50; i++) sem_trywait(&held.entered);
        s = di_backend_queue_stats(b);
        assert_int_equal(s.batches, batch + 1);
        assert_true(s.busy_s >= 0.0099 * (batch + 1));
        assert_true(batch == 0 ? s.idle_s == 0 : s.idle_s >= 0.0299 && s.idle_s < 5);
        usleep(30000);
    }
    b->destroy(b);
}

/* What backend.h says of it, and the inner backend's own numbers. */
static void test_description(void **state) {
    (void)state;
    const di_limits limits = {.max_rows = 3, .max_out = 2, .width = 64, .max_k = 64};
    di_backend *inner = open_inner("ref");
    uint64_t workspace = inner->workspace_bytes(inner, &limits);
    di_backend *b = queue_of(inner);
    assert_string_equal(b->name, "ref");
    assert_int_equal(b->numerics, DI_NUMERICS_RELEASE);
    assert_true(b->a_bytes == 8 && b->f_bytes == 8);
    assert_int_equal(b->workspace_bytes(b, &limits), workspace);
    di_ptr p;
    di_error error;
    assert_int_equal(b->alloc(b, UINT64_MAX, "everything", &p, &error), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "everything"));
    static const char weights[] = "mapped";
    must(b->bind(b, weights, sizeof weights, "weights", &p, &error), &error);
    assert_true(p.address == (uint64_t)(uintptr_t)weights);
    const di_host_matrix host = {DI_F8_E4M3, 1, 6, 1, weights, weights + 6};
    di_matrix m;
    must(b->bind_matrix(b, &host, "weights", &m, &error), &error);
    assert_int_equal(di_packed_bytes(b, &host), 0);
    assert_true(m.dtype == DI_F8_E4M3 && m.n == 1 && m.k == 6);
    assert_true(m.data.address == p.address && m.scale.address == p.address + 6);
    b->discard(b->stream, weights, sizeof weights); /* not a page: nothing */
    sync_all(b);
    b->destroy(b);
}

/* No thread is to be had: an error, and nothing is left of either backend. */
static void test_no_thread(void **state) {
    (void)state;
    pthread_attr_t usual, huge;
    di_error error;
    di_backend *inner = open_held(0), *b = inner;
    assert_int_equal(pthread_getattr_default_np(&usual), 0);
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, (size_t)1 << 46); /* more than the address space has left */
    assert_int_equal(pthread_setattr_default_np(&huge), 0);
    di_status status = di_backend_create_queue(inner, &b, &error);
    assert_int_equal(pthread_setattr_default_np(&usual), 0);
    pthread_attr_destroy(&usual);
    pthread_attr_destroy(&huge);
    assert_int_equal(status, DI_ERR_IO);
    assert_non_null(strstr(error.message, "starting the thread of the ref backend's stream"));
    assert_null(b);
    assert_int_equal(held.destroyed, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_asynchronous),
        cmocka_unit_test(test_full_ring),
        cmocka_unit_test(test_many_operations),
        cmocka_unit_test(test_waking),
        cmocka_unit_test(test_waits_of_memory),
        cmocka_unit_test(test_destroy_with_work),
        cmocka_unit_test(test_stats),
        cmocka_unit_test(test_description),
        cmocka_unit_test(test_no_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
