/* Where weights lie beside a device's own memory: which Engram tables stay in host memory, and that
 * what is planned is at least what a backend takes that copies as bind says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "model/synth.h"
#include "support/golden.h"

static di_error error;

static void parse(const char *name, int64_t engram_rows, di_config *out) {
    size_t size;
    const char *json = di_config_builtin(name, &size);
    di_synth_overrides o = di_synth_overrides_none();
    di_buffer config = DI_BUFFER_EMPTY;
    if (engram_rows > 0) o.engram_rows = engram_rows;
    assert_int_equal(di_synth_config(json, size, name, &o, &config, &error), DI_OK);
    assert_int_equal(di_config_parse(config.data, config.size, name, out, &error), DI_OK);
    di_buffer_free(&config);
}

typedef struct sums {
    uint64_t tables, others, largest_other, before;
} sums;

static di_status add(void *user, const di_tensor_spec *spec, di_error *e) {
    sums *s = user;
    (void)e;
    uint64_t bytes = di_tensor_spec_bytes(spec);
    if (!spec->required) return DI_OK;
    if (strstr(spec->name, "engram.embed")) {
        s->tables += bytes;
        return DI_OK;
    }
    s->others += bytes;
    uint64_t matrix = spec->dtype == DI_F8_E8M0 ? s->before + bytes : bytes;
    if (matrix > s->largest_other) s->largest_other = matrix;
    s->before = bytes;
    return DI_OK;
}

static di_placement place(const di_config *config, sums *s) {
    di_placement p;
    *s = (sums){0};
    assert_int_equal(di_contract_each(config, add, s, &error), DI_OK);
    assert_int_equal(di_model_place(config, NULL, &p, &error), DI_OK);
    assert_int_equal(p.largest_bytes, s->largest_other);
    return p;
}

/* Two tables whose codes alone have 98 GB: none of them, and no more than slabs on top of the rest. */
static void test_released(void **state) {
    (void)state;
    di_config config;
    sums s;
    parse("released", 0, &config);
    di_placement p = place(&config, &s);
    assert_int_equal(p.host_from, s.largest_other + 1);
    assert_int_equal(p.host_bytes, s.tables);
    assert_true(p.device_bytes > s.others);
    assert_true((double)p.device_bytes < 1.05 * (double)s.others);
}

static void test_cut_tables(void **state) {
    (void)state;
    di_config config;
    sums s;
    parse("released", 100000, &config); /* 25.6 MB of codes: less than the embedding has */
    di_placement p = place(&config, &s);
    assert_int_equal(p.host_from, 0);
    assert_int_equal(p.host_bytes, 0);
    assert_true(p.device_bytes > s.others + s.tables);
    parse("tiny", 4000000, &config);
    p = place(&config, &s);
    assert_true(p.host_from > s.largest_other);
    assert_true(p.host_bytes > 0 && p.host_bytes <= s.tables);
}

/* ---- Against a backend that counts ---- */

static struct {
    di_status (*bind)(di_backend *, const void *, uint64_t, const char *, di_ptr *, di_error *);
    di_status (*alloc)(di_backend *, uint64_t, const char *, di_ptr *, di_error *);
    uint64_t taken, left, n_packed;
} counted;

static void count(uint64_t size) {
    uint64_t room = (size + DI_BIND_ALIGN - 1) / DI_BIND_ALIGN * DI_BIND_ALIGN;
    if (room > DI_BIND_SLAB_BYTES / 8) {
        counted.taken += room;
    } else if (room > counted.left) {
        counted.taken += DI_BIND_SLAB_BYTES;
        counted.left = DI_BIND_SLAB_BYTES - room;
    } else {
        counted.left -= room;
    }
}

static di_status count_bind(di_backend *backend, const void *host, uint64_t size, const char *what,
                            di_ptr *out, di_error *e) {
    count(size);
    return counted.bind(backend, host, size, what, out, e);
}

static di_status count_alloc(di_backend *backend, uint64_t size, const char *what, di_ptr *out,
                             di_error *e) {
    counted.taken += size;
    return counted.alloc(backend, size, what, out, e);
}

/* A packing that small models grow by; BF16 stays as it is. */
static uint64_t matrix_bytes(const di_backend *backend, const di_host_matrix *m) {
    (void)backend;
    return m->dtype == DI_F8_E4M3 || m->dtype == DI_FP4_PAIR
               ? (uint64_t)m->groups * 40000 + 5 * di_host_matrix_bytes(m)
               : 0;
}

static di_status count_matrix(di_backend *backend, const di_host_matrix *m, const char *what,
                              di_matrix *out, di_error *e) {
    uint64_t size = matrix_bytes(backend, m);
    if (size == 0) return di_bind_as_stored(backend, m, what, out, e);
    if (counted.n_packed++ == 0) counted.taken += DI_BIND_STAGING_BYTES;
    count(size);
    *out = (di_matrix){m->dtype, m->n, m->k, {(uint64_t)(uintptr_t)m->data}, DI_NONE};
    return DI_OK;
}

/* device_layers below the model's: the rest of the experts goes to a host, which counts nothing. */
static void check_counted(const char *name, bool packs, int32_t device_layers) {
    char path[1024];
    sums s;
    di_backend *backend, *host;
    di_model *model;
    di_placement p;
    di_model_options load = di_model_options_defaults();
    assert_int_equal(di_backend_create_ref(DI_NUMERICS_RELEASE, &host, &error), DI_OK);
    load.host = host;
    load.device_layers = device_layers;
    snprintf(path, sizeof path, "%s%s", DI_SOURCE_DIR, name);
    assert_int_equal(di_backend_create_ref(DI_NUMERICS_RELEASE, &backend, &error), DI_OK);
    counted.taken = counted.left = counted.n_packed = 0;
    counted.bind = backend->bind;
    counted.alloc = backend->alloc;
    backend->bind = count_bind;
    backend->alloc = count_alloc;
    if (packs) {
        backend->bind_matrix = count_matrix;
        backend->matrix_bytes = matrix_bytes;
    }
    assert_int_equal(di_model_open(path, backend, &load, &model, &error), DI_OK);
    uint64_t stored = place(di_model_config(model), &s).device_bytes;
    assert_int_equal(di_model_place_layers(di_model_config(model), backend, device_layers, &p,
                                           &error),
                     DI_OK);
    assert_int_equal(p.host_bytes, 0); /* their tables are small */
    bool all = device_layers >= di_model_config(model)->num_hidden_layers;
    assert_true((p.expert_bytes == 0) == all);
    assert_true(counted.taken <= p.device_bytes);
    assert_true(p.device_bytes - counted.taken <= DI_BIND_SLAB_BYTES + (8 << 20));
    assert_true((counted.n_packed > 0) == packs);
    if (all) assert_true(packs ? p.device_bytes > stored : p.device_bytes == stored);
    di_model_close(model);
    backend->destroy(backend);
    host->destroy(host);
}

static void test_counted(void **state) {
    (void)state;
    static const char *const models[] = {"/tests/data/golden/tiny-a/model", "/models/demo"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        static const int32_t layers[] = {0, 1, DI_MAX_LAYERS};
        for (size_t k = 0; k < sizeof layers / sizeof *layers; k++) {
            check_counted(models[i], false, layers[k]);
            check_counted(models[i], true, layers[k]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_released),
        cmocka_unit_test(test_cut_tables),
        cmocka_unit_test(test_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
