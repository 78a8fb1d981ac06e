/* bench_gpu: random weights that do not take a host's whole memory, nor minutes.
 *
 * Tensors of one distribution (the recipes of synth_values.h) take their bytes from one pool, one
 * behind the other; a pool ends after POOL_BYTES, and the next tensor begins at a shifted place in
 * it. On the device every tensor has bytes of its own, so that caches hold what they would hold of
 * real weights. The pool crosses to the device once and tensors are copied there (copied), or
 * every tensor crosses (uploaded). Where the backend packs matrices, the first few of a shape cross
 * and the others are copies of them in turn.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/team.h"
#include "bench_gpu.h"
#include "model/synth_values.h"

static const uint64_t POOL_BYTES = UINT64_C(1) << 30;
enum { MAX_POOLS = 256, PIECE = 1 << 22 }; /* PIECE: elements that one thread fills at a time */
enum { MAX_SHAPES = 512, MAX_MODELS = 8 }; /* of packed matrices; MAX_MODELS of a shape cross */

typedef struct pool {
    synth_recipe recipe;
    bool alone; /* one tensor that stays in host memory */
    int64_t n_tensors;
    uint64_t total, largest, size; /* bytes; total: of its tensors */
    uint64_t next, rounds;
    uint8_t *host;
    di_ptr device;
} pool;

typedef struct named {
    char name[96];
    int32_t pool;
} named;

static pool *pools[MAX_POOLS];
static int32_t n_pools;
static named *tensors;
static int64_t n_tensors;
static uint64_t stays_from; /* tensors of this size and more stay in host memory */
static weights_mode mode;
static di_status (*real_bind)(di_backend *, const void *, uint64_t, const char *, di_ptr *,
                              di_error *);
static di_status (*real_bind_matrix)(di_backend *, const di_host_matrix *, const char *,
                                     di_matrix *, di_error *);
static di_ptr slab;
static uint64_t slab_left;

typedef struct shape {
    di_host_matrix m; /* but its addresses */
    const pool *pool;
    int32_t n; /* matrices so far */
    di_ptr models[MAX_MODELS];
} shape;
static shape shapes[MAX_SHAPES];
static int32_t n_shapes;

static uint64_t rounded(uint64_t bytes) {
    return (bytes + DI_BIND_ALIGN - 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
}

/* ---- Pools ---- */

static pool *find_pool(const synth_recipe *r, bool alone, int32_t *index) {
    size_t table = (size_t)SYNTH_DRAWS * r->unit;
    for (*index = 0; *index < n_pools; ++*index) {
        pool *p = pools[*index];
        if (!alone && !p->alone && p->recipe.unit == r->unit &&
            memcmp(p->recipe.own, r->table, table) == 0)
            return p;
    }
    if (n_pools == MAX_POOLS) stop("weights of too many distributions");
    pool *p = calloc(1, sizeof *p);
    if (!p) stop("no memory for pools of weights");
    p->recipe.key = r->key;
    p->recipe.unit = r->unit;
    memcpy(p->recipe.own, r->table, table);
    p->recipe.table = p->recipe.own;
    p->alone = alone;
    return pools[n_pools++] = p;
}

typedef struct collector {
    const di_config *config;
    uint64_t seed;
    synth_tables tables;
    synth_recipe recipe;
} collector;

static di_status count(void *user, const di_tensor_spec *spec, di_error *error) {
    (void)user, (void)spec, (void)error;
    n_tensors++;
    return DI_OK;
}

static di_status collect(void *user, const di_tensor_spec *spec, di_error *error) {
    collector *c = user;
    named *t = &tensors[n_tensors++];
    uint64_t bytes = di_tensor_spec_bytes(spec);
    (void)error;
    synth__recipe_init(&c->recipe, &c->tables, c->config, spec, c->seed);
    snprintf(t->name, sizeof t->name, "%s", spec->name);
    pool *p = find_pool(&c->recipe, stays_from > 0 && bytes >= stays_from, &t->pool);
    p->n_tensors++;
    p->total += rounded(bytes);
    if (rounded(bytes) > p->largest) p->largest = rounded(bytes);
    return DI_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

/* ---- Filling ---- */

static _Atomic uint64_t next_piece; /* of all pools, one behind the other */

/* Fills that piece; false when there are not so many. */
static bool fill_piece(uint64_t piece) {
    for (int32_t i = 0; i < n_pools; i++) {
        const pool *p = pools[i];
        uint64_t all = p->size / p->recipe.unit, n_pieces = (all + PIECE - 1) / PIECE;
        if (piece < n_pieces) {
            uint64_t first = piece * PIECE, n = all - first < PIECE ? all - first : PIECE;
            synth__fill(&p->recipe, first, n, p->host + first * p->recipe.unit);
            return true;
        }
        piece -= n_pieces;
    }
    return false;
}

static void fill_some(void *user, int32_t member, int32_t n_members) {
    (void)user, (void)member, (void)n_members;
    while (fill_piece(next_piece++)) {
    }
}

static void take_memory(pool *p) {
    uint64_t two = p->total < 2 * p->largest ? p->total : 2 * p->largest;
    uint64_t most = POOL_BYTES > two ? POOL_BYTES : two;
    p->size = p->total < most ? p->total : most;
    void *memory =
        mmap(NULL, (size_t)p->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) stop("no memory for pools of weights");
    (void)madvise(memory, (size_t)p->size, MADV_HUGEPAGE); /* only faster */
    p->host = memory;
}

void weights_make(bench *b, uint64_t host_from) {
    di_config config;
    di_team *team;
    mode = b->weights;
    stays_from = host_from;
    must(b, di_config_parse(b->json.data, b->json.size, "config", &config, &b->error));
    must(b, di_contract_each(&config, count, NULL, &b->error));
    collector *c = calloc(1, sizeof *c);
    tensors = calloc((size_t)n_tensors, sizeof *tensors);
    if (!c || !tensors) stop("no memory for the list of weights");
    n_tensors = 0;
    c->config = &config;
    c->seed = b->seed;
    synth__tables_init(&c->tables);
    must(b, di_contract_each(&config, collect, c, &b->error));
    free(c);
    qsort(tensors, (size_t)n_tensors, sizeof *tensors, by_name);
    for (int32_t i = 0; i < n_pools; i++) take_memory(pools[i]);
    must(b, di_team_create(b->threads, -1, &team, &b->error));
    di_team_run(team, fill_some, NULL);
    di_team_destroy(team);
}

/* ---- Binding ---- */

static uint64_t take_place(pool *p, uint64_t bytes) {
    if (p->next + bytes > p->size) { /* again from the start, but not at the same places */
        p->rounds++;
        p->next = p->rounds * 4096 % (p->size - bytes + 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
    }
    uint64_t at = p->next;
    p->next = at + rounded(bytes);
    return at;
}

/* Device memory as bind() takes it. */
static di_status take_device(di_backend *backend, uint64_t bytes, const char *what, di_ptr *out,
                             di_error *error) {
    if (bytes > DI_BIND_SLAB_BYTES / 8) return backend->alloc(backend, bytes, what, out, error);
    if (bytes > slab_left) {
        DI_TRY(backend->alloc(backend, DI_BIND_SLAB_BYTES, what, &slab, error));
        slab_left = DI_BIND_SLAB_BYTES;
    }
    *out = di_ptr_at(slab, DI_BIND_SLAB_BYTES - slab_left);
    slab_left -= bytes;
    return DI_OK;
}

static di_status pool_of(const char *name, pool **out, di_error *error) {
    named key;
    snprintf(key.name, sizeof key.name, "%s", name);
    const named *t = bsearch(&key, tensors, (size_t)n_tensors, sizeof *tensors, by_name);
    if (!t) return di_fail(error, DI_ERR_INVALID, "%s has no random values", name);
    *out = pools[t->pool];
    return DI_OK;
}

static di_status shared_bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                             di_ptr *out, di_error *error) {
    pool *p;
    (void)host;
    DI_TRY(pool_of(what, &p, error));
    uint64_t at = take_place(p, size);
    bool copied = backend->device && mode == WEIGHTS_COPIED && p->total > p->size;
    if (!copied) return real_bind(backend, p->host + at, size, what, out, error);
    if (p->device.address == 0) {
        DI_TRY(backend->alloc(backend, p->size, "pool of random weights", &p->device, error));
        backend->upload(backend->stream, p->device, p->host, p->size);
    }
    DI_TRY(take_device(backend, rounded(size), what, out, error));
    backend->copy(backend->stream, *out, di_ptr_at(p->device, at), size);
    return DI_OK;
}

static shape *find_shape(const di_host_matrix *m, const pool *p) {
    for (int32_t i = 0; i < n_shapes; i++) {
        shape *s = &shapes[i];
        if (s->pool == p && s->m.dtype == m->dtype && s->m.n == m->n && s->m.k == m->k &&
            s->m.groups == m->groups)
            return s;
    }
    if (n_shapes == MAX_SHAPES) stop("matrices of too many shapes");
    shapes[n_shapes] = (shape){.m = *m, .pool = p};
    return &shapes[n_shapes++];
}

/* `scale`: the name of its scales; `packed`: the bytes that it takes. */
static di_status bind_packed(di_backend *backend, const di_host_matrix *m, const char *what,
                             const char *scale, uint64_t packed, di_matrix *out, di_error *error) {
    uint64_t scales = di_host_matrix_scale_bytes(m);
    di_host_matrix random = *m;
    pool *p, *of_scales;
    DI_TRY(pool_of(what, &p, error));
    shape *s = find_shape(m, p);
    di_ptr *model = &s->models[s->n % MAX_MODELS];
    if (s->n++ >= MAX_MODELS && mode == WEIGHTS_COPIED) {
        *out = (di_matrix){m->dtype, m->n, m->k, DI_NONE, DI_NONE};
        DI_TRY(take_device(backend, rounded(packed), what, &out->data, error));
        backend->copy(backend->stream, out->data, *model, packed);
        return DI_OK;
    }
    random.data = p->host + take_place(p, di_host_matrix_bytes(m));
    if (scales > 0) {
        DI_TRY(pool_of(scale, &of_scales, error));
        random.scale = of_scales->host + take_place(of_scales, scales);
    }
    DI_TRY(real_bind_matrix(backend, &random, what, out, error));
    *model = out->data;
    return DI_OK;
}

static di_status shared_bind_matrix(di_backend *backend, const di_host_matrix *m, const char *what,
                                    di_matrix *out, di_error *error) {
    uint64_t scales = di_host_matrix_scale_bytes(m), packed = di_packed_bytes(backend, m);
    char scale[96];
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(what) - strlen(".weight")), what);
    if (packed > 0) return bind_packed(backend, m, what, scale, packed, out, error);
    *out = (di_matrix){m->dtype, m->n, m->k, DI_NONE, DI_NONE};
    DI_TRY(shared_bind(backend, m->data, di_host_matrix_bytes(m), what, &out->data, error));
    if (scales == 0) return DI_OK;
    return shared_bind(backend, m->scale, scales, scale, &out->scale, error);
}

void weights_share(bench *b) {
    real_bind = b->backend->bind;
    real_bind_matrix = b->backend->bind_matrix;
    b->backend->bind = shared_bind;
    b->backend->bind_matrix = shared_bind_matrix;
}

void weights_settle(bench *b) {
    b->backend->bind = real_bind;
    b->backend->bind_matrix = real_bind_matrix;
    must(b, di_backend_sync(b->backend, &b->error));
    for (int32_t i = 0; i < n_pools; i++) {
        pool *p = pools[i];
        b->backend->free(b->backend, p->device);
        p->device = DI_NONE;
        if (!b->backend->device || p->alone) continue; /* operations read them in place */
        munmap(p->host, (size_t)p->size);
        p->host = NULL;
    }
    free(tensors);
    tensors = NULL;
}

void weights_report(const bench *b) {
    uint64_t total = 0, made = 0, repeats = 0;
    for (int32_t i = 0; i < n_pools; i++) {
        total += pools[i]->total;
        made += pools[i]->size;
        if (pools[i]->total > pools[i]->size) repeats += pools[i]->total;
    }
    printf(
        "  random bytes: %.3f GB made for %.3f GB of tensors, of which %.3f GB repeat others%s\n",
        (double)made * 1e-9, (double)total * 1e-9, (double)repeats * 1e-9,
        !b->backend->device ? " (in place: caches may hold what tensors share)"
        : mode == WEIGHTS_COPIED
            ? "; each tensor has device memory of its own, copied on the device"
            : "; each tensor has device memory of its own, uploaded");
}

void weights_free(void) {
    for (int32_t i = 0; i < n_pools; i++) {
        if (pools[i]->host) munmap(pools[i]->host, (size_t)pools[i]->size);
        free(pools[i]);
    }
    n_pools = 0;
    n_shapes = 0;
}
