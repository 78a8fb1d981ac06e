/* What `inspect` prints is what an engine takes, to the byte: the program's numbers beside the plan,
 * beside what the backend is asked for when the engine is made, and beside where the pool lies. */
#include "api/plan.h"

#include <inttypes.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "engine/core_internal.h"
#include "model/inspect.h"
#include "model/network.h"
#include "support/program.h"
#include "support/sanitized.h"
#include "support/temp.h"

#define TINY_A "tests/data/golden/tiny-a/model"
#define TINY_B "tests/data/golden/tiny-b/model"

static di_error error;

static void must(di_status status) {
    if (status != DI_OK) fail_msg("%s", error.message);
}

/* ---- A backend that counts what it is asked for ---- */

static struct {
    di_status (*alloc)(di_backend *, uint64_t, const char *, di_ptr *, di_error *);
    di_status (*prepare)(di_backend *, const di_limits *, di_error *);
    uint64_t bytes, largest; /* asked for since count_begin */
    di_ptr at;               /* of the largest */
    uint64_t workspace;      /* of the last prepare, by the backend's own account */
    uint64_t heap;           /* that it took from the heap */
    int n_allocs, n_prepared;
} asked;

static di_status counted_alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                               di_error *e) {
    di_status status = asked.alloc(backend, size, what, out, e);
    asked.bytes += size;
    asked.n_allocs++;
    if (size > asked.largest) {
        asked.largest = size;
        asked.at = *out;
    }
    return status;
}

static uint64_t heap_bytes(void) {
    struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

static di_status counted_prepare(di_backend *backend, const di_limits *limits, di_error *e) {
    uint64_t before = heap_bytes();
    asked.workspace = backend->workspace_bytes(backend, limits);
    asked.n_prepared++;
    di_status status = asked.prepare(backend, limits, e);
    asked.heap = heap_bytes() - before;
    return status;
}

static void count_begin(di_backend *backend) {
    memset(&asked, 0, sizeof asked);
    asked.alloc = backend->alloc;
    asked.prepare = backend->prepare;
    backend->alloc = counted_alloc;
    backend->prepare = counted_prepare;
}

static void count_end(di_backend *backend) {
    backend->alloc = asked.alloc;
    backend->prepare = asked.prepare;
}

/* ---- What inspect says ---- */

typedef struct told {
    di_context_bytes state;
    int64_t context, batch, rows, page_bytes, pool_pages, pool_bytes;
    bool drafts;
} told;

static int64_t number(const di_json *object, const char *key) {
    int64_t value;
    if (!di_json_int64(di_json_get(object, key), &value)) fail_msg("inspect tells no %s", key);
    return value;
}

static told inspect(const char *model, const char *options) {
    told t = {0};
    di_arena arena = {0};
    const di_json *all;
    char *command = temp_printf("inspect %s --json %s", model, options);
    const program_result *r = program_run(command, NULL);
    if (r->code != 0) fail_msg("%s: %s", command, r->error);
    must(di_json_parse(r->out, r->out_size, command, &arena, &all, &error));
    const di_json *state = di_json_get(all, "state"), *pool = di_json_get(all, "pool");
    const struct {
        const char *key;
        uint64_t *to;
    } parts[] = {{"pages", &t.state.pages},         {"windows", &t.state.windows},
                 {"rings", &t.state.rings},         {"counts", &t.state.counts},
                 {"logits", &t.state.logits},       {"activations", &t.state.activations},
                 {"workspace", &t.state.workspace}, {"total", &t.state.total}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].to = (uint64_t)number(state, parts[i].key);
    }
    assert_int_equal(state->length, sizeof parts / sizeof *parts); /* nothing that is not checked */
    t.context = number(all, "context");
    t.batch = number(all, "batch");
    t.rows = number(all, "rows");
    t.page_bytes = number(all, "page_bytes");
    t.pool_pages = number(pool, "pages");
    t.pool_bytes = number(pool, "bytes");
    assert_true(di_json_bool(di_json_get(all, "drafts"), &t.drafts));
    di_arena_free(&arena);
    free(command);
    return t;
}

static void expect_bytes(const char *what, const di_context_bytes *a, const di_context_bytes *b) {
    if (memcmp(a, b, sizeof *a) == 0) return;
    fail_msg("%s: pages %" PRIu64 " %" PRIu64 ", windows %" PRIu64 " %" PRIu64 ", rings %" PRIu64
             " %" PRIu64 ", counts %" PRIu64 " %" PRIu64 ", logits %" PRIu64 " %" PRIu64
             ", activations %" PRIu64 " %" PRIu64 ", workspace %" PRIu64 " %" PRIu64
             ", total %" PRIu64 " %" PRIu64,
             what, a->pages, b->pages, a->windows, b->windows, a->rings, b->rings, a->counts,
             b->counts, a->logits, b->logits, a->activations, b->activations, a->workspace,
             b->workspace, a->total, b->total);
}

/* ---- An engine beside it ---- */

typedef struct setting {
    const char *model, *backend, *numerics;
    int32_t n_threads, chunk, max_batch; /* max_batch 0: not said */
    int64_t context;                     /* 0: not said */
    const char *spec;                    /* NULL: not said */
} setting;

/* What run and chat open. */
static int32_t batch_of(const setting *s) { return s->max_batch ? s->max_batch : 1; }

static char *options_of(const setting *s) {
    char context[48] = "", batch[32] = "", spec[32] = "";
    if (s->context) snprintf(context, sizeof context, " --context %" PRId64, s->context);
    if (s->max_batch) snprintf(batch, sizeof batch, " --batch %d", s->max_batch);
    if (s->spec) snprintf(spec, sizeof spec, " --spec %s", s->spec);
    return temp_printf("--backend %s --numerics %s --threads %d --chunk %d%s%s%s", s->backend,
                       s->numerics, s->n_threads, s->chunk, context, batch, spec);
}

static di_engine_options engine_options(const setting *s) {
    di_engine_options o = di_engine_options_defaults();
    o.backend = s->backend;
    o.numerics = s->numerics;
    o.n_threads = s->n_threads;
    o.chunk = s->chunk;
    o.max_batch = batch_of(s);
    o.context = s->context;
    o.spec = s->spec;
    return o;
}

static di_backend *backend_of(const setting *s) {
    di_backend *backend;
    di_cpu_options cpu = {s->n_threads, 0, ~0u};
    bool single = strcmp(s->numerics, "float") == 0;
    di_numerics numerics = single ? DI_NUMERICS_FLOAT : DI_NUMERICS_RELEASE;
    if (strcmp(s->backend, "ref") == 0) {
        must(di_backend_create_ref(numerics, &backend, &error));
    } else {
        must(di_backend_create_cpu(numerics, &cpu, &backend, &error));
    }
    return backend;
}

/* A context as it was made: the pool ends where the backend's memory ends. */
static void check_context(const di_context *c, const told *t, const char *what) {
    const di_context_options *o = di_context_get_options(c);
    assert_int_equal(o->max_context, t->context);
    assert_int_equal(o->n_slots, t->batch);
    assert_int_equal(o->max_rows, t->rows);
    assert_int_equal(o->drafts, t->drafts);
    assert_int_equal(t->pool_bytes, t->pool_pages * t->page_bytes);
    assert_int_equal(c->page_bytes, t->page_bytes);
    di_context_bytes plan = di_context_plan(di_model_config(c->model), c->backend, o);
    expect_bytes(what, &t->state, &plan);
    /* one allocation, and the backend's workspace */
    assert_int_equal(asked.n_allocs, 1);
    assert_int_equal(asked.n_prepared, 1);
    assert_int_equal(asked.bytes, t->state.total - t->state.workspace);
    assert_int_equal(asked.workspace, t->state.workspace);
    assert_int_equal(asked.at.address, c->memory.address);
    uint64_t end = c->at.page_pool.address + (uint64_t)t->pool_bytes;
    uint64_t behind = asked.at.address + asked.largest;
    assert_true(end <= behind && behind - end < 64);
    uint64_t begin = c->at.page_table.address;
    assert_int_equal(behind - begin, t->state.pages);
}

/* The core of requests, made by its own door from what the setting says. */
static void check_core(const setting *s, di_model *model, const told *t, const char *what) {
    di_core *core;
    const di_kv_name fingerprint = {{1}};
    const di_config *config = di_model_config(model);
    di_core_options o = di_core_options_defaults(config);
    o.max_batch = batch_of(s);
    o.max_rows = s->chunk > o.max_batch ? s->chunk : o.max_batch;
    if (s->context) o.max_context = s->context;
    if (s->spec && strcmp(s->spec, "off") == 0) o.spec = DI_SPEC_OFF;
    must(di_core_create(model, &o, &fingerprint, s->numerics, s->backend, &core, &error));
    check_context(core->context, t, what);
    assert_int_equal(di_core_get_stats(core).kv.n_pages, t->pool_pages);
    assert_int_equal(di_context_get_options(core->context)->n_pages, t->pool_pages);
    di_core_destroy(core);
}

/* Returns the total. */
static uint64_t check(const setting *s) {
    di_model *model;
    di_engine *engine;
    di_model_options load = di_model_options_defaults();
    di_engine_options o = engine_options(s);
    char *options = options_of(s), *what = temp_printf("%s %s", s->model, options),
         *path = temp_printf("%s/%s", DI_SOURCE_DIR, s->model);
    told t = inspect(s->model, options);
    /* as the program opens it */
    must(di_engine_open(path, &o, &engine, &error));
    assert_int_equal(di_engine_get_info(engine).state_bytes, t.state.total);
    di_engine_close(engine);
    /* what the backend is asked for */
    di_backend *backend = backend_of(s);
    must(di_model_open(path, backend, &load, &model, &error));
    count_begin(backend);
    check_core(s, model, &t, what);
    count_end(backend);
    di_model_close(model);
    backend->destroy(backend);
    free(path);
    free(what);
    free(options);
    return t.state.total;
}

static void check_all(const setting *settings, size_t n) {
    uint64_t before = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t total = check(&settings[i]);
        print_message("  %s %s, %d at once: %" PRIu64 " bytes\n", settings[i].model,
                      settings[i].backend, batch_of(&settings[i]), total);
        assert_true(total != before); /* every setting matters */
        before = total;
    }
}

static void test_twins(void **state) {
    (void)state;
    static const setting settings[] = {
        {TINY_A, "ref", "float", 0, 256, 0, 0, NULL},
        {TINY_A, "ref", "release", 0, 16, 5, 100, NULL},
        {TINY_B, "ref", "float", 0, 64, 0, 65, NULL},
        {TINY_B, "ref", "float", 0, 3, 9, 64, "off"},
    };
    check_all(settings, sizeof settings / sizeof *settings);
}

static void test_fast(void **state) {
    (void)state;
    if (!program_can_compute()) skip();
    static const setting settings[] = {
        {TINY_A, "cpu", "float", 1, 256, 0, 0, NULL},
        {TINY_A, "cpu", "float", 2, 256, 0, 0, NULL}, /* a workspace each */
        {TINY_A, "cpu", "float", 2, 255, 0, 0, NULL},
        {TINY_A, "cpu", "release", 2, 256, 4, 448, NULL},
        {TINY_A, "cpu", "release", 2, 256, 4, 449, NULL}, /* a page more for each */
        {TINY_B, "cpu", "float", 2, 20, 33, 200, "off"},  /* more sequences than rows of a chunk */
        {"models/demo", "cpu", "release", 2, 256, 0, 0, NULL},
        {"models/demo", "cpu", "release", 2, 256, 16, 4096, NULL},
        {"models/demo", "cpu", "release", 2, 512, 64, 2048, "off"},
    };
    check_all(settings, sizeof settings / sizeof *settings);
}

/* Windows of the draft layers, and what a draft writes: planned as they are taken. */
static void test_drafts(void **state) {
    (void)state;
    static const char *const models[] = {TINY_A, TINY_B, "models/demo"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        di_backend *backend;
        di_model *model;
        di_context *context;
        di_model_options load = di_model_options_defaults();
        char *path = temp_printf("%s/%s", DI_SOURCE_DIR, models[i]);
        must(di_backend_create_ref(DI_NUMERICS_FLOAT, &backend, &error));
        must(di_model_open(path, backend, &load, &model, &error));
        di_context_options o = {.n_slots = 3,
                                .max_context = 200,
                                .max_rows = 40,
                                .max_out = 40,
                                .replay = true,
                                .n_pages = 7};
        di_context_bytes without = di_context_plan(di_model_config(model), backend, &o), with;
        o.drafts = true;
        must(di_inspect_state(di_model_config(model), backend, &o, &with, &error));
        int32_t layers = di_model_config(model)->num_hidden_layers,
                drafts = di_model_config(model)->num_nextn_predict_layers;
        assert_true(with.logits > without.logits);
        assert_true(with.windows * (uint64_t)layers / (uint64_t)(layers + drafts) >=
                    without.windows - 128);
        count_begin(backend);
        must(di_context_create(model, &o, &context, &error));
        assert_int_equal(asked.bytes, with.total - with.workspace);
        assert_int_equal(asked.workspace, with.workspace);
        count_end(backend);
        di_context_destroy(context);
        di_model_close(model);
        backend->destroy(backend);
        free(path);
    }
}

static void test_refusals(void **state) {
    (void)state;
    program_refuses("inspect " TINY_A " --context 5000000", NULL, 2,
                    "inspect: a context of 5000000 tokens was asked for, the model takes at most "
                    "1048576");
    program_refuses("inspect " TINY_A " --batch 2 --context 5000000", NULL, 2,
                    "inspect: a context of 5000000 tokens was asked for, the model takes at most "
                    "1048576");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_fast),
        cmocka_unit_test(test_drafts),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
