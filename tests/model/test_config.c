/* config.json: what the released file says, the roles that follow, and one exact message for each
 * way in which a file can be wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/config.h"
#include "support/temp.h"

static di_config parse_file(const char *path) {
    di_config c;
    di_error error;
    if (di_config_load(path, &c, &error) != DI_OK) fail_msg("%s", error.message);
    return c;
}

static di_config released(void) {
    di_config c;
    di_error error;
    size_t size;
    const char *text = di_config_released(&size);
    if (di_config_parse(text, size, "released", &c, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return c;
}

static void compiled_in_is_the_file(void **state) {
    (void)state;
    static const char *const names[] = {"released", "tiny"};
    for (int i = 0; i < 2; i++) {
        size_t n, size;
        char *path = temp_printf(DI_SOURCE_DIR "/models/%s/config.json", names[i]);
        char *file = temp_read(path, &n);
        const char *text = di_config_builtin(names[i], &size);
        assert_int_equal(size, n);
        assert_memory_equal(text, file, n);
        free(file);
        free(path);
    }
    size_t size;
    assert_null(di_config_builtin("huge", &size));
    assert_ptr_equal(di_config_builtin("released", &size), di_config_released(&size));
}

static void released_values(void **state) {
    (void)state;
    di_config c = released();
    assert_int_equal(c.vocab_size, 129280);
    assert_int_equal(c.hidden_size, 5120);
    assert_int_equal(c.num_hidden_layers, 40);
    assert_int_equal(c.num_nextn_predict_layers, 3);
    assert_int_equal(c.max_position_embeddings, 1048576);
    assert_true(c.rms_norm_eps == 1e-20 && c.hc_eps == 1e-6 && c.gate_temp == 1.0);
    assert_true(c.rope_theta == 10000 && c.compress_rope_theta == 160000);
    assert_true(c.rope_scaling.factor == 16 && c.rope_scaling.beta_fast == 32);
    assert_int_equal(c.rope_scaling.original_max_position_embeddings, 65536);
    assert_true(c.norm_topk_prob && c.routed_scaling_factor == 1.5 && c.swiglu_limit == 10);
    assert_int_equal(c.scoring_func, DI_SCORING_SQRTSOFTPLUS);
    assert_int_equal(c.n_engram_layers, 2);
    assert_int_equal(c.engram_num_embeddings[1], 384016682);
    assert_int_equal(c.engram_compressed_vocab_size, 99092);
    assert_int_equal(c.image_token_id, 129264);
    assert_int_equal(c.n_dspark_targets, 3);
    assert_int_equal(c.dspark_target_layer_ids[0], 37);
    assert_int_equal(c.vision.num_hidden_layers, 32);
    assert_int_equal(c.vision.downsample_ratio, 3);
    assert_int_equal(di_config_rollback(&c), 12);
    assert_int_equal(di_config_ring_slots(&c), 140);
    assert_int_equal(di_config_page_bytes(&c), 56960);
    assert_int_equal(di_config_page_bytes(&c) / DI_PAGE_TOKENS, 890);
}

/* The table of layer roles of the specification, one row a range of layers. */
static void released_roles(void **state) {
    (void)state;
    static const struct {
        int32_t from, to, ratio, kv, index;
    } rows[] = {{0, 1, 0, -1, -1},   {2, 7, 2, 2, 2},     {8, 13, 2, 8, 8},
                {14, 19, 2, 14, 14}, {20, 23, 1, 20, 20}, {24, 27, 1, 20, 24},
                {28, 31, 1, 20, 28}, {32, 35, 1, 20, 32}, {36, 39, 1, 20, 36}};
    di_config c = released();
    int32_t layers = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int32_t l = rows[i].from; l <= rows[i].to; l++, layers++) {
            const struct di_layer_role *role = &c.roles[l];
            assert_int_equal(role->ratio, rows[i].ratio);
            assert_int_equal(role->kv_source, rows[i].kv);
            assert_int_equal(role->index_source, rows[i].index);
            assert_int_equal(role->is_kv_source, l == rows[i].kv);
            assert_int_equal(role->is_index_source, l == rows[i].index);
            assert_int_equal(role->is_candidate_source, l == 20);
            assert_int_equal(role->uses_candidates, l == 24 || l == 28 || l == 32 || l == 36);
            assert_int_equal(role->engram, l == 1 ? 0 : l == 14 ? 1 : -1);
            assert_int_equal(role->dspark_target, l >= 37 ? l - 37 : -1);
        }
    }
    assert_int_equal(layers, 40);
}

static void other_configs(void **state) {
    (void)state;
    di_config a = parse_file(DI_SOURCE_DIR "/tests/data/golden/tiny-a/model/config.json");
    di_config b = parse_file(DI_SOURCE_DIR "/tests/data/golden/tiny-b/model/config.json");
    di_config demo = parse_file(DI_SOURCE_DIR "/models/demo/config.json");
    assert_int_equal(a.roles[7].index_source, 7);
    assert_true(a.roles[7].uses_candidates && !a.roles[4].uses_candidates);
    assert_int_equal(a.roles[4].kv_source, 2);
    assert_int_equal(b.roles[0].engram, 0);
    assert_int_equal(b.roles[2].ratio, 4);
    assert_int_equal(b.hc_mult, 2);
    assert_int_equal(b.image_token_id, -1);
    assert_int_equal(b.vision.num_hidden_layers, 0);
    assert_int_equal(di_config_rollback(&b), 10);
    /* 16, 32 and 64 entries a page of 32/2 + 32/16 + 64/2 + 64/32 bytes */
    assert_int_equal(di_config_page_bytes(&b), (16 + 32 + 64) * 52);
    assert_int_equal(demo.image_token_id, 2559);
}

/* A model without compressed caches, Engram, drafts and vision is allowed: the smallest slice. */
static void least_config(void **state) {
    (void)state;
    static const char text[] =
        "{\"text_config\": {\"vocab_size\": 10, \"hidden_size\": 32, \"num_hidden_layers\": 1,"
        "\"num_attention_heads\": 1, \"head_dim\": 32, \"qk_rope_head_dim\": 8,"
        "\"q_lora_rank\": 32, \"o_lora_rank\": 32, \"o_groups\": 1, \"moe_intermediate_size\": 32,"
        "\"n_routed_experts\": 1, \"num_experts_per_tok\": 1, \"rms_norm_eps\": 0,"
        "\"rope_theta\": 1e4, \"compress_rope_theta\": 1e4, \"max_position_embeddings\": 8,"
        "\"sliding_window\": 4, \"index_n_heads\": 1, \"index_head_dim\": 32, \"index_topk\": 1,"
        "\"norm_topk_prob\": false, \"routed_scaling_factor\": 1, \"swiglu_limit\": 0,"
        "\"hc_mult\": 1, \"hc_sinkhorn_iters\": 1, \"hc_eps\": 0, \"scoring_func\": \"sigmoid\","
        "\"num_nextn_predict_layers\": 0, \"compress_ratios\": [0], \"gate_temp\": 2}}";
    di_config c;
    di_error error;
    if (di_config_parse(text, sizeof text - 1, "t", &c, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(c.n_kv_sources, 0);
    assert_int_equal(c.candidate_source_layer_id, -1);
    assert_int_equal(c.bos_token_id, -1);
    assert_true(c.rope_scaling.factor == 0 && c.gate_temp == 2);
    assert_int_equal(c.roles[0].kv_source, -1);
    assert_int_equal(c.roles[0].engram, -1);
    assert_int_equal(di_config_page_bytes(&c), 0);
}

/* ---- Wrong files: one change to the released text, one message ---- */

typedef struct wrong {
    const char *from, *to, *message;
} wrong;

static void check_wrong(const wrong *w) {
    size_t size;
    char *text = temp_replace(di_config_released(&size), w->from, w->to);
    di_config c;
    di_error error;
    di_status status = di_config_parse(text, strlen(text), "config.json", &c, &error);
    if (status == DI_OK) fail_msg("accepted: %s", w->to);
    assert_int_equal(status, DI_ERR_INVALID);
    assert_string_equal(error.message, w->message);
    free(text);
}

static void wrong_fields(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"\"text_config\"", "\"text\"", "config.json: text_config is missing"},
        {"\"hidden_size\": 5120,", "", "config.json: text_config.hidden_size is missing"},
        {"\"hidden_size\": 5120", "\"hidden_size\": \"wide\"",
         "config.json: text_config.hidden_size is \"wide\", expected an integer from 1 to 262144"},
        {"\"hidden_size\": 5120", "\"hidden_size\": 5120.5",
         "config.json: text_config.hidden_size is 5120.5, expected an integer from 1 to 262144"},
        {"\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 0",
         "config.json: text_config.num_experts_per_tok is 0, expected an integer from 1 to 4096"},
        {"\"norm_topk_prob\": true", "\"norm_topk_prob\": 1",
         "config.json: text_config.norm_topk_prob is 1, expected true or false"},
        {"\"rms_norm_eps\": 1e-20", "\"rms_norm_eps\": -1",
         "config.json: text_config.rms_norm_eps is -1, expected a number from 0 to 1"},
        {"\"sqrtsoftplus\"", "\"relu\"",
         "config.json: text_config.scoring_func is \"relu\", expected \"sqrtsoftplus\", "
         "\"sigmoid\" or \"softmax\""},
        {"\"eos_token_id\": 1", "\"eos_token_id\": \"</s>\"",
         "config.json: eos_token_id is \"</s>\", expected a token id"},
        {"\"image_token_id\": 129264", "\"image_token_id\": 129280",
         "config.json: image_token_id is 129280, expected a token below text_config.vocab_size "
         "129280"},
        {"\"dspark_noise_token_id\": 128799", "\"dspark_noise_token_id\": 999999",
         "config.json: text_config.dspark_noise_token_id is 999999, expected a token below "
         "text_config.vocab_size 129280"},
        {"\"patch_size\": 14", "\"patch_size\": null",
         "config.json: vision_config.patch_size is null, expected an integer from 1 to 1024"},
        {"\"rope_scaling\": {", "\"rope_scaling\": 16, \"was\": {",
         "config.json: text_config.rope_scaling is 16, expected an object or null"},
        {"\"factor\": 16", "\"factor\": 0",
         "config.json: text_config.rope_scaling.factor is 0, expected a number from 1 to 1e+06"},
        {"\"beta_slow\": 1", "\"beta_slow\": 32",
         "config.json: text_config.rope_scaling.beta_fast is 32, expected more than beta_slow 32"},
        {"\"num_hidden_layers\": 40", "\"num_hidden_layers\": 254",
         "config.json: text_config.num_hidden_layers 254 and num_nextn_predict_layers 3 are more "
         "than 256 layers together"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_wrong(&cases[i]);
}

/* What the code has built in: another value would compute something else without saying so. */
static void wrong_fixed_values(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"\"model_type\": \"deepseek_v41\",", "\"model_type\": \"deepseek_v3\",",
         "config.json: model_type is \"deepseek_v3\", expected \"deepseek_v41\""},
        {"\"num_key_value_heads\": 1", "\"num_key_value_heads\": 8",
         "config.json: text_config.num_key_value_heads is 8, expected 1"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"",
         "config.json: text_config.hidden_act is \"gelu\", expected \"silu\""},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true",
         "config.json: text_config.tie_word_embeddings is true, expected false"},
        {"\"expert_dtype\": \"fp4\"", "\"expert_dtype\": \"fp8\"",
         "config.json: quantization_config.expert_dtype is \"fp8\", expected \"fp4\""},
        {"\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"",
         "config.json: text_config.rope_scaling.rope_type is \"linear\", expected \"yarn\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_wrong(&cases[i]);
}

static void wrong_lists(void **state) {
    (void)state;
#define KV "\"kv_source_layer_ids\": [\n      2,\n      8,\n      14,\n      20\n    ]"
#define INDEX                                                                                       \
    "\"index_source_layer_ids\": [\n      2,\n      8,\n      14,\n      20,\n      24,\n      28," \
    "\n      32,\n      36\n    ]"
#define RATIOS "\"compress_ratios\": [\n      0,\n      0,"
#define ENGRAM "\"engram_layer_ids\": [\n      1,\n      14\n    ]"
#define ROWS "\"engram_num_embeddings\": [\n      384006168,\n      384016682\n    ]"
#define TARGETS "\"dspark_target_layer_ids\": [\n      37,\n      38,\n      39\n    ]"
    static const wrong cases[] = {
        {RATIOS, "\"compress_ratios\": [\n      0,",
         "config.json: text_config.compress_ratios has 42 entries, expected 43 (num_hidden_layers "
         "+ num_nextn_predict_layers)"},
        {RATIOS, "\"compress_ratios\": [\n      0,\n      \"a\",",
         "config.json: text_config.compress_ratios[1] is \"a\", expected an integer from 0 to 64"},
        {RATIOS, "\"compress_ratios\": [\n      0,\n      3,",
         "config.json: text_config.compress_ratios[1] is 3, expected 0 or a divisor of the page of "
         "64 tokens"},
        {RATIOS, "\"compress_ratios\": [\n      0,\n      2,",
         "config.json: text_config.compress_ratios[1] is 2, but kv_source_layer_ids has no layer "
         "at or before 1"},
        {"1,\n      0,\n      0,\n      0\n    ]", "1,\n      0,\n      0,\n      2\n    ]",
         "config.json: text_config.compress_ratios[42] is 2, expected 0 for a draft layer"},
        {KV, "\"kv_source_layer_ids\": [2, 8, 14, 40]",
         "config.json: text_config.kv_source_layer_ids[3] is 40, expected an integer from 0 to "
         "39"},
        {KV, "\"kv_source_layer_ids\": [2, 8, 8, 20]",
         "config.json: text_config.kv_source_layer_ids[2] is 8 after 8, expected ascending layers"},
        {KV, "\"kv_source_layer_ids\": [1, 8, 14, 20]",
         "config.json: text_config.kv_source_layer_ids[0] is layer 1, which has compress ratio 0"},
        {KV, "\"kv_source_layer_ids\": [2, 8, 14]",
         "config.json: text_config.compress_ratios[20] is 1, but its KV source, layer 14, has "
         "ratio 2"},
        {ENGRAM, "\"engram_layer_ids\": [0, 1, 2, 3, 4, 5, 6, 7, 8]",
         "config.json: text_config.engram_layer_ids has 9 entries, at most 8 are allowed"},
        {KV, "\"kv_source_layer_ids\": 2",
         "config.json: text_config.kv_source_layer_ids is 2, expected a list of integers"},
        {INDEX, "\"index_source_layer_ids\": [2, 14, 20, 24]",
         "config.json: text_config.index_source_layer_ids has no layer from 8 to 8: layer 8 has no "
         "selection of the entries of KV source 8"},
        {INDEX, "\"index_source_layer_ids\": [0, 2, 8, 14, 20, 24]",
         "config.json: text_config.index_source_layer_ids[0] is layer 0, which has compress ratio "
         "0"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 21",
         "config.json: text_config.candidate_source_layer_id is 21, expected one of "
         "index_source_layer_ids, or -1"},
        {"\"candidate_source_layer_id\": 20", "\"candidate_source_layer_id\": 8",
         "config.json: text_config.candidate_source_layer_id is 8 with ratio 2, but index source 20 "
         "after it has ratio 1"},
        {ENGRAM, "\"engram_layer_ids\": [14, 1]",
         "config.json: text_config.engram_layer_ids[1] is 1 after 14, expected ascending layers"},
        {ROWS, "\"engram_num_embeddings\": [384006168]",
         "config.json: text_config.engram_num_embeddings has 1 entries, expected 2 (one for each "
         "of engram_layer_ids)"},
        {TARGETS, "\"dspark_target_layer_ids\": [37, 38, 41]",
         "config.json: text_config.dspark_target_layer_ids[2] is 41, expected an integer from 0 to "
         "39"},
        {TARGETS, "\"dspark_target_layer_ids\": []",
         "config.json: text_config.dspark_target_layer_ids is empty, expected a layer for the 3 "
         "draft layers to read"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_wrong(&cases[i]);
}

static void wrong_sizes(void **state) {
    (void)state;
    static const wrong cases[] = {
        {"\"q_lora_rank\": 1280", "\"q_lora_rank\": 1296",
         "config.json: text_config.q_lora_rank gives attn.wq_b a K of 1296, expected a multiple of "
         "32 (one quantisation group)"},
        {"\"moe_intermediate_size\": 2304", "\"moe_intermediate_size\": 2300",
         "config.json: text_config.moe_intermediate_size gives ffn.experts.w2 a K of 2300, "
         "expected a multiple of 32 (one quantisation group)"},
        {"\"hidden_size\": 5120", "\"hidden_size\": 5104",
         "config.json: text_config.hidden_size gives attn.wq_a a K of 5104, expected a multiple of "
         "32 (one quantisation group)"},
        {"\"o_lora_rank\": 1024", "\"o_lora_rank\": 1",
         "config.json: text_config.o_groups * o_lora_rank gives attn.wo_b a K of 8, expected a "
         "multiple of 32 (one quantisation group)"},
        {"\"engram_head_dim\": 256", "\"engram_head_dim\": 250",
         "config.json: text_config.engram_head_dim gives engram.embed a K of 250, expected a "
         "multiple of 32 (one quantisation group)"},
        {"\"head_dim\": 512", "\"head_dim\": 520",
         "config.json: text_config.head_dim is 520, expected a multiple of 32 (caches hold whole "
         "quantisation groups)"},
        {"\"index_head_dim\": 128", "\"index_head_dim\": 120",
         "config.json: text_config.index_head_dim is 120, expected a multiple of 32 (caches hold "
         "whole quantisation groups)"},
        {"\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 0",
         "config.json: text_config.qk_rope_head_dim is 0, expected an integer from 2 to 65536"},
        {"\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 63",
         "config.json: text_config.qk_rope_head_dim is 63, expected an even number"},
        {"\"qk_rope_head_dim\": 64", "\"qk_rope_head_dim\": 256",
         "config.json: text_config.qk_rope_head_dim is 256, expected at most index_head_dim 128"},
        {"\"o_groups\": 8", "\"o_groups\": 7",
         "config.json: text_config.o_groups is 7, expected a divisor of num_attention_heads 64"},
        {"\"num_experts_per_tok\": 6", "\"num_experts_per_tok\": 385",
         "config.json: text_config.num_experts_per_tok is 385, expected at most n_routed_experts "
         "384"},
        {"\"dspark_num_experts_per_tok\": 3", "\"dspark_num_experts_per_tok\": 129",
         "config.json: text_config.dspark_num_experts_per_tok is 129, expected at most "
         "dspark_n_routed_experts 128"},
        {"\"engram_n_heads\": 8", "\"engram_n_heads\": 43",
         "config.json: text_config.engram_n_heads is 43: (engram_max_ngram_size 4 - 1) * "
         "engram_n_heads gives 129 columns, expected at most 128"},
        {"\"engram_compressed_vocab_size\": 99092", "\"engram_compressed_vocab_size\": 129281",
         "config.json: text_config.engram_compressed_vocab_size is 129281, expected at most "
         "vocab_size 129280"},
        {"\"hidden_size\": 1024,\n    \"num_attention_heads\": 16",
         "\"hidden_size\": 1024,\n    \"num_attention_heads\": 15",
         "config.json: vision_config.num_attention_heads is 15, expected a divisor of hidden_size "
         "1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_wrong(&cases[i]);
}

static void wrong_files(void **state) {
    (void)state;
    di_config c;
    di_error error;
    assert_int_equal(di_config_load("/nonexistent/config.json", &c, &error), DI_ERR_IO);
    assert_string_equal(error.message,
                        "cannot open /nonexistent/config.json: No such file or directory");
    assert_int_equal(di_config_parse("[]", 2, "x", &c, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "x: expected a JSON object");
    assert_int_equal(di_config_parse("{\"a\": }", 7, "x", &c, &error), DI_ERR_INVALID);
    assert_string_equal(error.message, "x: line 1, column 7: expected a value");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiled_in_is_the_file),
        cmocka_unit_test(released_values),
        cmocka_unit_test(released_roles),
        cmocka_unit_test(other_configs),
        cmocka_unit_test(least_config),
        cmocka_unit_test(wrong_fields),
        cmocka_unit_test(wrong_fixed_values),
        cmocka_unit_test(wrong_lists),
        cmocka_unit_test(wrong_sizes),
        cmocka_unit_test(wrong_files),
    };
    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
