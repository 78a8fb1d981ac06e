/* Which backend an engine computes with, and how a device's own memory is divided: by a backend that
 * says it has some. */
/* ctest: gpu */
#include "deepinfer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/api_internal.h"
#include "api/plan.h"

#define DEMO DI_SOURCE_DIR "/models/demo"
#define MIB (UINT64_C(1) << 20)

static di_error error;

static bool has_gpu(void) {
    di_backend *backend;
    if (di_backend_create_cuda(DI_NUMERICS_FLOAT, NULL, &backend, &error) != DI_OK) return false;
    backend->destroy(backend);
    return true;
}

/* ---- Choosing ---- */

static di_engine *open_engine(const di_engine_options *o) {
    di_engine *engine;
    di_status status = di_engine_open(DEMO, o, &engine, &error);
    if (status == DI_ERR_UNSUPPORTED) skip(); /* no AVX2 either */
    if (status != DI_OK) fail_msg("%s", error.message);
    return engine;
}

static void test_auto(void **state) {
    (void)state;
    for (int32_t max_batch = 0; max_batch < 2; max_batch++) {
        di_engine_options o = di_engine_options_defaults();
        assert_string_equal(o.backend, "auto");
        o.max_batch = max_batch;
        di_engine *engine = open_engine(&o);
        di_engine_info info = di_engine_get_info(engine);
        assert_string_equal(info.backend, has_gpu() ? "cuda" : "cpu");
        assert_non_null(info.why);
        assert_null(strchr(info.why, '\n'));
        if (!has_gpu()) assert_string_equal(info.why, di_device_reason(&error));
        di_engine_close(engine);
        o.gpu_device = 1000; /* nobody has so many */
        engine = open_engine(&o);
        assert_string_equal(di_engine_get_info(engine).backend, "cpu");
        di_engine_close(engine);
    }
}

/* Nothing is chosen, and nothing has to be said. */
static void test_named(void **state) {
    (void)state;
    di_engine_options o = di_engine_options_defaults();
    o.backend = "cpu";
    di_engine *engine = open_engine(&o);
    assert_string_equal(di_engine_get_info(engine).backend, "cpu");
    assert_null(di_engine_get_info(engine).why);
    di_engine_close(engine);
    o.backend = "cuda";
    o.gpu_device = 1000;
    engine = (di_engine *)&error;
    assert_int_equal(di_engine_open(DEMO, &o, &engine, &error), DI_ERR_UNSUPPORTED);
    assert_null(engine);
    assert_int_equal(strncmp(error.message, "cuda backend: ", 14), 0);
    assert_non_null(strstr(error.message, "; the backends auto and cpu do without one"));
    o.gpu_device = -1;
    assert_int_equal(di_engine_open(DEMO, &o, &engine, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "gpu_device: -1 is out of range, 0 to 1023 are accepted");
}

/* ---- Memory ---- */

typedef struct setup {
    di_config config;
    di_backend *backend;
    di_context_options context;
    di_engine_options options;
    uint64_t weights, state;
    int32_t layers;
} setup;

static void open_setup(setup *s) {
    di_placement place;
    *s = (setup){.options = di_engine_options_defaults()};
    assert_int_equal(di_config_load(DEMO "/config.json", &s->config, &error), DI_OK);
    assert_int_equal(di_backend_create_ref(DI_NUMERICS_RELEASE, &s->backend, &error), DI_OK);
    s->context = di_context_options_defaults(&s->config);
    s->backend->device = "GPU 7 (made up)";
    assert_int_equal(di_model_place(&s->config, s->backend, &place, &error), DI_OK);
    s->weights = place.device_bytes;
    s->layers = s->config.num_hidden_layers;
    s->state = di_context_plan(&s->config, s->backend, &s->context).total;
}

static di_status divide(setup *s, uint64_t device_memory, uint64_t memory, di_memory_plan *plan) {
    s->backend->device_memory = device_memory;
    s->options.memory = memory;
    return di_engine_divide_memory(DEMO, &s->config, s->backend, s->layers, &s->options,
                                   &s->context, 0, plan, &error);
}

static void test_device_memory(void **state) {
    (void)state;
    setup s;
    di_memory_plan plan;
    open_setup(&s);
    uint64_t need = s.weights + s.state;
    assert_int_equal(divide(&s, need + 5, 0, &plan), DI_OK);
    assert_int_equal(plan.weights, s.weights);
    assert_int_equal(plan.max_bytes, s.state + 5);
    assert_false(plan.release_layers);
    assert_int_equal(plan.score_rows, s.context.max_out);
    assert_int_equal(divide(&s, need - 1, 0, &plan), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "the model does not fit GPU 7 (made up): "));
    assert_non_null(strstr(error.message, " MiB may be taken; allow more, "));
    assert_int_equal(divide(&s, s.weights - 1, 0, &plan), DI_ERR_MEMORY);
    assert_int_equal(divide(&s, 0, 0, &plan), DI_ERR_MEMORY);
    s.backend->destroy(s.backend);
}

/* --memory is then of the host alone: neither weights nor state are in it. */
static void test_host_memory(void **state) {
    (void)state;
    setup s;
    di_memory_plan plan;
    open_setup(&s);
    uint64_t need = s.weights + s.state, most = 64 * MIB;
    s.context.n_slots = 64;
    need += di_context_plan(&s.config, s.backend, &s.context).total;
    assert_true(need > most);
    assert_int_equal(divide(&s, need, most, &plan), DI_OK);
    assert_false(plan.release_layers);
    assert_int_equal(divide(&s, need, 4 * MIB, &plan), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "not enough memory: "));
    s.backend->destroy(s.backend);
}

/* ---- Layers ---- */

static uint64_t need(const setup *s, int32_t layers, const di_context_options *context) {
    di_placement place;
    assert_int_equal(di_model_place_layers(&s->config, s->backend, layers, &place, &error), DI_OK);
    return place.device_bytes + di_context_plan(&s->config, s->backend, context).total;
}

/* Layers of the released geometry, whose experts are larger than slabs. */
static int32_t layers_in(setup *s, uint64_t memory) {
    int32_t layers = -1;
    s->backend->device_memory = memory;
    assert_int_equal(di_device_layers(&s->options, &s->config, s->backend, &s->context, &layers,
                                      &error),
                     DI_OK);
    return layers;
}

static void test_layers(void **state) {
    (void)state;
    setup s;
    size_t size;
    const char *json = di_config_builtin("released", &size);
    open_setup(&s);
    assert_int_equal(di_config_parse(json, size, "released", &s.config, &error), DI_OK);
    s.context = di_context_options_defaults(&s.config);
    s.context.n_slots = 8;
    s.context.n_pages = 8 * 512;
    int32_t all = s.config.num_hidden_layers;
    di_context_options least = s.context;
    least.n_pages = 512;
    assert_int_equal(layers_in(&s, need(&s, all, &least)), all); /* with fewer pages */
    assert_true(layers_in(&s, need(&s, all, &least) - 1) < all);
    for (int32_t n = 0; n < all; n += 7) {
        assert_int_equal(layers_in(&s, need(&s, n, &s.context)), n);
        assert_true(need(&s, n, &s.context) < need(&s, n + 1, &s.context));
        if (n > 0) assert_int_equal(layers_in(&s, need(&s, n, &s.context) - 1), n - 1);
    }
    assert_int_equal(layers_in(&s, 0), 0); /* refused when the memory is divided */
    s.options.gpu_layers = 3;
    assert_int_equal(layers_in(&s, 0), 3);
    s.options.gpu_layers = all + 1;
    assert_int_equal(layers_in(&s, 0), all);
    s.backend->destroy(s.backend);
}

/* The host's share is bounded by --memory; what does not fit the device says what would help. */
static void test_layers_memory(void **state) {
    (void)state;
    setup s;
    di_memory_plan plan;
    di_placement place;
    open_setup(&s);
    s.layers = 1;
    assert_int_equal(di_model_place_layers(&s.config, s.backend, 1, &place, &error), DI_OK);
    assert_true(place.expert_bytes > 0);
    assert_int_equal(divide(&s, place.device_bytes + s.state, 0, &plan), DI_OK);
    assert_int_equal(plan.weights, place.device_bytes);
    assert_int_equal(plan.experts, place.expert_bytes);
    assert_int_equal(divide(&s, place.device_bytes + s.state, 64 * MIB, &plan), DI_OK);
    uint64_t room = place.expert_bytes + 8 * MIB; /* less than the program takes beside them */
    assert_int_equal(divide(&s, place.device_bytes + s.state, room, &plan), DI_ERR_MEMORY);
    assert_int_equal(divide(&s, place.device_bytes, 0, &plan), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "; allow more, fewer gpu layers, ask for "));
    s.layers = 0;
    assert_int_equal(divide(&s, 0, 0, &plan), DI_ERR_MEMORY);
    assert_non_null(strstr(error.message, "; allow more, ask for "));
    s.backend->destroy(s.backend);
}

static void test_layers_words(void **state) {
    (void)state;
    char text[160];
    di_layers_text(20, 40, 5 * MIB, text, sizeof text);
    assert_string_equal(text,
                        "layers 0 to 19 whole, the experts of layers 20 to 39, 5 MiB, on the CPU");
    di_layers_text(1, 2, MIB, text, sizeof text);
    assert_string_equal(text, "layer 0 whole, the experts of layer 1, 1 MiB, on the CPU");
    di_layers_text(0, 40, MIB, text, sizeof text);
    assert_string_equal(text, "no layer whole, the experts of layers 0 to 39, 1 MiB, on the CPU");
    di_engine_options o = di_engine_options_defaults();
    di_engine *engine;
    o.backend = "cpu";
    o.gpu_layers = 2;
    assert_int_equal(di_engine_open(DEMO, &o, &engine, &error), DI_ERR_USAGE);
    assert_string_equal(error.message,
                        "gpu_layers (--gpu-layers) says how a GPU shares a model with the CPU; "
                        "the backend cpu has no GPU");
}

/* An engine on a GPU that shares: sequences, and requests behind a cache. */
static void test_shared(void **state) {
    (void)state;
    if (!has_gpu()) skip();
    for (int32_t max_batch = 0; max_batch < 2; max_batch++) {
        di_engine_options o = di_engine_options_defaults();
        o.max_batch = max_batch;
        o.gpu_layers = 1;
        o.backend = max_batch ? "auto" : "cuda";
        di_engine *engine = open_engine(&o);
        di_engine_info info = di_engine_get_info(engine);
        assert_string_equal(info.backend, "cuda");
        assert_int_equal(info.gpu_layers, 1);
        assert_non_null(strstr(info.why, "; layer 0 whole, the experts of layers 1 to "));
        di_engine_close(engine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto),          cmocka_unit_test(test_named),
        cmocka_unit_test(test_device_memory), cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_layers),        cmocka_unit_test(test_layers_memory),
        cmocka_unit_test(test_layers_words),  cmocka_unit_test(test_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
