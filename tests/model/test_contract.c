/* The list of tensors that a config implies: the release's counts to the last byte, and every
 * tensor of three real checkpoints, no more and no less. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/checkpoint.h"

typedef struct account {
    uint64_t tensors, bytes, kind_tensors[DI_N_KINDS], kind_bytes[DI_N_KINDS], optional;
    const di_checkpoint *checkpoint; /* may be NULL */
    const char *wanted;
    di_tensor_spec found;
} account;

static di_status count(void *user, const di_tensor_spec *spec, di_error *error) {
    account *a = user;
    uint64_t bytes = di_dtype_bytes(spec->dtype);
    (void)error;
    for (int32_t i = 0; i < spec->n_dims; i++) bytes *= (uint64_t)spec->shape[i];
    a->tensors++;
    a->bytes += bytes;
    a->kind_tensors[spec->kind]++;
    a->kind_bytes[spec->kind] += bytes;
    a->optional += !spec->required;
    if (a->checkpoint) assert_non_null(di_checkpoint_find(a->checkpoint, spec->name));
    if (a->wanted && strcmp(a->wanted, spec->name) == 0) a->found = *spec;
    return DI_OK;
}

static di_config released(void) {
    di_config c;
    di_error error;
    size_t size;
    const char *text = di_config_released(&size);
    assert_int_equal(di_config_parse(text, size, "released", &c, &error), DI_OK);
    return c;
}

static void released_counts(void **state) {
    (void)state;
    di_config c = released();
    di_error error;
    account a = {0};
    assert_int_equal(di_contract_each(&c, count, &a, &error), DI_OK);
    assert_int_equal(a.tensors, 96085);
    assert_int_equal(a.bytes, UINT64_C(510286023000));
    assert_int_equal(a.kind_tensors[DI_KIND_EXPERTS], 40 * 384 * 6);
    assert_int_equal(a.kind_bytes[DI_KIND_EXPERTS], UINT64_C(40) * 384 * 18800640);
    assert_int_equal(a.kind_tensors[DI_KIND_COMPRESSOR], 11);
    assert_int_equal(a.kind_tensors[DI_KIND_INDEXER], 32);
    assert_int_equal(a.kind_tensors[DI_KIND_ENGRAM], 12);
    assert_int_equal(a.kind_tensors[DI_KIND_EMBED] + a.kind_tensors[DI_KIND_HEAD], 3);
    assert_int_equal(a.kind_tensors[DI_KIND_DSPARK], 3 * 798 + 7);
    assert_int_equal(a.kind_tensors[DI_KIND_VISION], 266);
    assert_int_equal(a.optional, 266);
}

/* One row of each form in the specification's tables. */
static void released_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        di_dtype dtype;
        int64_t n, k;
    } rows[] = {
        {"embed.weight", DI_BF16, 129280, 5120},
        {"norm.weight", DI_BF16, 5120, 0},
        {"layers.39.attn.wq_b.scale", DI_F8_E8M0, 1024, 40},
        {"layers.0.attn.wo_a.weight", DI_F8_E4M3, 8192, 4096},
        {"layers.0.attn.attn_sink", DI_F32, 64, 0},
        {"layers.5.hc_ffn_fn", DI_F32, 24, 20480},
        {"layers.7.ffn.experts.383.w1.weight", DI_FP4_PAIR, 2304, 2560},
        {"layers.7.ffn.experts.383.w2.scale", DI_F8_E8M0, 5120, 72},
        {"layers.14.attn.compressor.wgate.weight", DI_BF16, 512, 5120},
        {"layers.36.attn.indexer.wq_b.weight", DI_F8_E4M3, 4096, 1280},
        {"layers.20.attn.indexer.wk.weight", DI_BF16, 128, 512},
        {"layers.14.engram.embed.weight", DI_F8_E4M3, 384016682, 256},
        {"layers.1.engram.embed.scale", DI_F8_E8M0, 384006168, 8},
        {"layers.1.engram.wkv.scale", DI_F8_E8M0, 800, 192},
        {"mtp.2.ffn.gate.bias_vl", DI_F32, 128, 0},
        {"mtp.0.main_proj.scale", DI_F8_E8M0, 160, 480},
        {"mtp.2.confidence_head.proj.weight", DI_BF16, 1, 5376},
        {"vision.patch_embed.proj.weight", DI_BF16, 1024, 588},
        {"vision.blocks.31.mlp.w1.weight", DI_BF16, 5632, 1024},
        {"aligner.w1.weight", DI_BF16, 5120, 9216},
    };
    static const char *const absent[] = {"layers.20.attn.compressor.wgate.weight",
                                         "layers.24.attn.indexer.wk.weight",
                                         "layers.40.attn_norm.weight", "mtp.1.norm.weight"};
    di_config c = released();
    di_error error;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        account a = {.wanted = rows[i].name};
        assert_int_equal(di_contract_each(&c, count, &a, &error), DI_OK);
        assert_string_equal(a.found.name, rows[i].name);
        assert_int_equal(a.found.dtype, rows[i].dtype);
        assert_int_equal(a.found.n_dims, rows[i].k ? 2 : 1);
        assert_int_equal(a.found.shape[0], rows[i].n);
        assert_int_equal(a.found.shape[1], rows[i].k);
    }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        account a = {.wanted = absent[i]};
        assert_int_equal(di_contract_each(&c, count, &a, &error), DI_OK);
        assert_string_equal(a.found.name, "");
    }
}

/* Opening checks shapes and dtypes; the counts show that the contract forgets nothing. `extra` are
 * the image vectors that the tiny checkpoints carry without a vision tower. */
static void check_model(const char *name, int64_t extra) {
    char path[512], config_path[600];
    di_config c;
    di_error error;
    di_checkpoint *checkpoint = NULL;
    snprintf(path, sizeof path, "%s/%s", DI_SOURCE_DIR, name);
    snprintf(config_path, sizeof config_path, "%s/config.json", path);
    if (di_config_load(config_path, &c, &error) != DI_OK ||
        di_checkpoint_open(path, &c, &checkpoint, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    account a = {.checkpoint = checkpoint};
    assert_int_equal(di_contract_each(&c, count, &a, &error), DI_OK);
    assert_int_equal(a.tensors + (uint64_t)extra, di_checkpoint_count(checkpoint));
    di_checkpoint_close(checkpoint);
}

static void real_checkpoints(void **state) {
    (void)state;
    check_model("tests/data/golden/tiny-a/model", 3);
    check_model("tests/data/golden/tiny-b/model", 3);
    check_model("models/demo", 0);
}

/* Scales of the last, partial tile: N = 40 rows take two scale rows. */
static void partial_tile(void **state) {
    (void)state;
    di_config c = released();
    di_error error;
    c.q_lora_rank = 1280;
    c.head_dim = 32 * 3;
    c.num_attention_heads = 1;
    c.o_groups = 1;
    c.moe_intermediate_size = 40; /* as N of w1; a config file with it would be refused as K */
    account a = {.wanted = "layers.0.ffn.shared_experts.w1.scale"};
    assert_int_equal(di_contract_each(&c, count, &a, &error), DI_OK);
    assert_int_equal(a.found.shape[0], 2);
    assert_int_equal(a.found.shape[1], 160);
}

static di_status stop_at_third(void *user, const di_tensor_spec *spec, di_error *error) {
    (void)spec, (void)error;
    return ++*(int *)user == 3 ? DI_ERR_CANCELLED : DI_OK;
}

static void stops_when_told(void **state) {
    (void)state;
    di_config c = released();
    di_error error;
    int calls = 0;
    assert_int_equal(di_contract_each(&c, stop_at_third, &calls, &error), DI_ERR_CANCELLED);
    assert_int_equal(calls, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(released_counts),  cmocka_unit_test(released_shapes),
        cmocka_unit_test(real_checkpoints), cmocka_unit_test(partial_tile),
        cmocka_unit_test(stops_when_told),
    };
    return cmocka_run_group_tests_name("contract", tests, NULL, NULL);
}
