/* The accounts of inspect: against sums known for the release, and against a real checkpoint. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/inspect.h"
#include "support/temp.h"

#define TINY_B DI_SOURCE_DIR "/tests/data/golden/tiny-b/model"

static di_config builtin(const char *name) {
    di_config c;
    di_error error;
    size_t size;
    const char *json = di_config_builtin(name, &size);
    assert_int_equal(di_config_parse(json, size, name, &c, &error), DI_OK);
    return c;
}

static void released(void **state) {
    (void)state;
    di_config c = builtin("released");
    di_inspect f;
    di_error error;
    assert_int_equal(di_inspect_make(&c, NULL, &f, &error), DI_OK);
    assert_int_equal(f.tensors, 96085);
    assert_int_equal(f.bytes, UINT64_C(510286023000));
    assert_int_equal(f.kinds[DI_KIND_EXPERTS].tensors, 92160);
    assert_int_equal(f.kinds[DI_KIND_EXPERTS].bytes, UINT64_C(40) * 384 * 18800640);
    /* an expert: three matrices of 5120 x 2304 */
    assert_int_equal(f.kinds[DI_KIND_EXPERTS].values, UINT64_C(40) * 384 * 3 * 5120 * 2304);
    assert_int_equal(f.kinds[DI_KIND_VISION].tensors, 266);
    uint64_t layers = 0, kinds = 0;
    for (int i = 0; i < 43; i++) layers += f.layer_bytes[i];
    for (int i = 0; i < DI_N_KINDS; i++) kinds += f.kinds[i].bytes;
    assert_int_equal(kinds, f.bytes);
    assert_int_equal(layers, f.bytes - f.kinds[DI_KIND_EMBED].bytes - f.kinds[DI_KIND_HEAD].bytes -
                                 f.kinds[DI_KIND_VISION].bytes);
    assert_true(f.layer_bytes[14] > f.layer_bytes[15] + UINT64_C(101000000000));
    assert_int_equal(f.resident_bytes, f.bytes - f.kinds[DI_KIND_VISION].bytes);
    /* one layer's 384 experts, what else it has, the head; but no table */
    assert_true(f.released_bytes > UINT64_C(8700000000) && f.released_bytes < UINT64_C(9000000000));
    /* 6 of 384 experts, 24 of 384 million rows: */
    uint64_t rest = f.kinds[DI_KIND_ATTENTION].bytes + f.kinds[DI_KIND_COMPRESSOR].bytes +
                    f.kinds[DI_KIND_INDEXER].bytes + f.kinds[DI_KIND_SHARED].bytes +
                    f.kinds[DI_KIND_HEAD].bytes;
    uint64_t wkv = UINT64_C(25600) * 6144 + 800 * 192 + 2 * 4 * 5120 * 2; /* and q, k weights */
    assert_int_equal(f.decode_bytes,
                     rest + UINT64_C(40) * 6 * 18800640 + 5120 * 2 + 2 * (wkv + 24 * (256 + 8)));
    assert_false(f.has_files);
}

static void with_files(void **state) {
    (void)state;
    di_config c;
    di_checkpoint *checkpoint = NULL;
    di_inspect f, alone;
    di_error error;
    if (di_config_load(TINY_B "/config.json", &c, &error) != DI_OK ||
        di_checkpoint_open(TINY_B, &c, &checkpoint, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(di_inspect_make(&c, checkpoint, &f, &error), DI_OK);
    assert_int_equal(di_inspect_make(&c, NULL, &alone, &error), DI_OK);
    assert_true(f.has_files);
    assert_int_equal(f.n_shards, 3);
    assert_int_equal(f.file_bytes, 852255 + 931356 + 789146);
    assert_int_equal(f.unknown, 3); /* image vectors without a tower */
    assert_int_equal(f.unknown_bytes, 3 * 96 * 2);
    assert_int_equal(f.tensors, alone.tensors);
    assert_int_equal(f.bytes, alone.bytes);
    assert_int_equal(f.bytes + f.unknown_bytes, 2495061); /* total_size of the index */
    assert_int_equal(f.missing, 0);
    di_checkpoint_close(checkpoint);
}

/* A checkpoint without its vision tower is whole as far as text goes, and says what is not there.
 */
static void missing_vision(void **state) {
    (void)state;
    di_config c;
    di_checkpoint *checkpoint = NULL;
    di_inspect f;
    di_error error;
    char *text = temp_read(TINY_B "/config.json", NULL);
    char *with = temp_replace(text, "\"text_config\"",
                              "\"vision_config\": {\"num_hidden_layers\": 2, \"hidden_size\": 32, "
                              "\"num_attention_heads\": 2, \"intermediate_size\": 64, "
                              "\"patch_size\": 4, \"downsample_ratio\": 2}, \"text_config\"");
    if (di_config_parse(with, strlen(with), "c", &c, &error) != DI_OK ||
        di_checkpoint_open(TINY_B, &c, &checkpoint, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(di_inspect_make(&c, checkpoint, &f, &error), DI_OK);
    assert_int_equal(f.missing, 2 + 2 * 8 + 1 + 4);
    assert_int_equal(f.kinds[DI_KIND_VISION].tensors, 3); /* the image vectors are known now */
    assert_int_equal(f.unknown, 0);
    di_checkpoint_close(checkpoint);
    free(with);
    free(text);
}

/* As inspect asked for once, whose numbers are held here. */
static di_status state_of(const di_config *c, const di_backend *backend, int64_t context,
                          int32_t batch, di_context_bytes *out, di_error *error) {
    di_context_options options = {.n_slots = batch,
                                  .max_context = context,
                                  .max_rows = batch > 256 ? batch : 256,
                                  .max_out = batch > 32 ? batch : 32,
                                  .penalties = true};
    return di_inspect_state(c, backend, &options, out, error);
}

static void state_bytes(void **state) {
    (void)state;
    di_config c = builtin("released");
    di_backend *backend;
    di_context_bytes one, many;
    di_error error;
    assert_int_equal(di_backend_create_ref(DI_NUMERICS_RELEASE, &backend, &error), DI_OK);
    assert_int_equal(state_of(&c, backend, 65536, 1, &one, &error), DI_OK);
    assert_int_equal(state_of(&c, backend, 65536, 500, &many, &error), DI_OK);
    assert_int_equal(one.pages, UINT64_C(65536) * 890 + 1024 * 4); /* and the page table */
    assert_int_equal(many.pages, 500 * one.pages);
    assert_true(one.windows >= 40 * 140 * 528 && one.windows < 44 * 140 * 528 + 65536);
    assert_int_equal(one.total, one.pages + one.windows + one.rings + one.counts + one.logits +
                                    one.activations + one.workspace);
    assert_int_equal(state_of(&c, backend, 1048577, 1, &one, &error), DI_ERR_USAGE);
    assert_string_equal(error.message, "a context of 1048577 tokens: the model takes 1 to 1048576");
    /* many and long enough to leave 64 bits */
    c.max_position_embeddings = INT64_C(1) << 30;
    c.head_dim = 1 << 16;
    assert_int_equal(state_of(&c, backend, INT64_C(1) << 30, INT32_MAX, &one, &error),
                     DI_ERR_MEMORY);
    assert_string_equal(error.message, "the bytes of 2147483647 sequences of 1073741824 tokens "
                                       "cannot be counted");
    backend->destroy(backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released),
        cmocka_unit_test(with_files),
        cmocka_unit_test(missing_vision),
        cmocka_unit_test(state_bytes),
    };
    return cmocka_run_group_tests_name("inspect", tests, NULL, NULL);
}
