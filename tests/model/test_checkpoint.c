/* A model directory: opened whole, and one exact message for each way in which it can be damaged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/checkpoint.h"
#include "support/temp.h"

#define TINY_A DI_SOURCE_DIR "/tests/data/golden/tiny-a/model"
#define TINY_B DI_SOURCE_DIR "/tests/data/golden/tiny-b/model"
#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define SHARD_1 "model-00001-of-00003.safetensors"
#define SHARD_2 "model-00002-of-00003.safetensors"
#define SHARD_3 "model-00003-of-00003.safetensors"

static char *directory;
static di_config config;

/* Each test works on a fresh copy. */
static void use_copy(const char *model) {
    di_error error;
    char *path = temp_printf("%s/config.json", model);
    directory = temp_dir_create();
    temp_copy_dir(model, directory);
    if (di_config_load(path, &config, &error) != DI_OK) fail_msg("%s", error.message);
    free(path);
}

static char *in(const char *name) { return temp_printf("%s/%s", directory, name); }

static void edit_header(const char *name, const char *from, const char *to) {
    char *path = in(name);
    temp_edit_header(path, from, to);
    free(path);
}

static void edit_text(const char *name, const char *from, const char *to) {
    char *path = in(name), *text = temp_read(path, NULL), *edited = temp_replace(text, from, to);
    temp_write(path, edited, strlen(edited));
    free(edited);
    free(text);
    free(path);
}

static di_checkpoint *open_whole(void) {
    di_checkpoint *checkpoint;
    di_error error;
    if (di_checkpoint_open(directory, &config, &checkpoint, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return checkpoint;
}

/* `expected` has a %s for the directory, then removes the copy. */
static void check_refused(di_status status, const char *before, const char *after) {
    di_checkpoint *checkpoint;
    di_error error;
    assert_int_equal(di_checkpoint_open(directory, &config, &checkpoint, &error), status);
    assert_null(checkpoint);
    char *message = temp_printf("%s%s%s", before, directory, after);
    assert_string_equal(error.message, message);
    free(message);
    temp_dir_destroy(directory);
}

static void opens_single_and_shards(void **state) {
    (void)state;
    use_copy(TINY_A);
    di_checkpoint *a = open_whole();
    assert_int_equal(di_checkpoint_n_shards(a), 1);
    assert_int_equal(di_checkpoint_count(a), 1288);
    const di_tensor *t = di_checkpoint_find(a, "layers.2.attn.compressor.wgate.weight");
    assert_int_equal(t->dtype, DI_BF16);
    assert_int_equal(t->shape[0], 64);
    assert_int_equal(t->bytes, 64 * 128 * 2);
    assert_null(di_checkpoint_find(a, "layers.5.attn.compressor.wgate.weight"));
    di_checkpoint_close(a);
    temp_dir_destroy(directory);

    use_copy(TINY_B);
    di_checkpoint *b = open_whole();
    di_error error;
    assert_int_equal(di_checkpoint_n_shards(b), 3);
    assert_int_equal(di_checkpoint_count(b), 813);
    char *path = in(SHARD_2);
    int32_t shard = di_checkpoint_find(b, "layers.4.attn_norm.weight")->shard;
    assert_string_equal(di_checkpoint_shard_path(b, shard), path);
    free(path);
    for (int64_t i = 0; i < 813; i++) {
        const di_tensor *at = di_checkpoint_at(b, i);
        assert_ptr_equal(at, di_checkpoint_find(b, at->name));
    }
    assert_int_equal(di_checkpoint_check_scales(b, true, &error), DI_OK);
    di_checkpoint_close(b);
    di_checkpoint_close(NULL);
    temp_dir_destroy(directory);
}

static void truncated_shard(void **state) {
    (void)state;
    use_copy(TINY_B);
    char *path = in(SHARD_2);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 1), 0);
    free(path);
    check_refused(DI_ERR_INVALID, "",
                  "/" SHARD_2
                  " is truncated: its header describes 904516 bytes of tensors, it holds "
                  "904515 (1 missing); fetch the file again");
}

static void missing_tensor(void **state) {
    (void)state;
    use_copy(TINY_A);
    edit_header(SINGLE, "\"layers.3.attn.kv_norm.weight\"", "\"layers.3.attn.kv_norm.wEight\"");
    check_refused(DI_ERR_INVALID, "",
                  ": tensor layers.3.attn.kv_norm.weight is missing, expected BF16 [64]");
    use_copy(TINY_A);
    edit_header(SINGLE, "\"layers.3.ffn.experts.7.w2.scale\"", "\"scale\"");
    check_refused(DI_ERR_INVALID, "",
                  ": tensor layers.3.ffn.experts.7.w2.scale is missing: the scale of "
                  "layers.3.ffn.experts.7.w2.weight, expected F8_E8M0 [128, 1]");
    use_copy(TINY_A);
    edit_header(SINGLE, "\"mtp.2.markov_head.head.weight\"", "\"mtp.2.head.weight\"");
    check_refused(DI_ERR_INVALID, "",
                  ": tensor mtp.2.markov_head.head.weight is missing, expected BF16 [384, 32]");
}

static void wrong_shape_and_dtype(void **state) {
    (void)state;
    use_copy(TINY_A);
    edit_header(SINGLE, "\"layers.0.attn.attn_sink\":{\"dtype\":\"F32\",\"shape\":[4]",
                "\"layers.0.attn.attn_sink\":{\"dtype\":\"F32\",\"shape\":[2,2]");
    check_refused(DI_ERR_INVALID, "",
                  "/" SINGLE ": tensor layers.0.attn.attn_sink has shape [2, 2], expected [4] by "
                  "config.json");
    use_copy(TINY_A);
    edit_header(SINGLE, "\"layers.0.attn.attn_sink\":{\"dtype\":\"F32\"",
                "\"layers.0.attn.attn_sink\":{\"dtype\":\"I32\"");
    check_refused(DI_ERR_INVALID, "",
                  "/" SINGLE ": tensor layers.0.attn.attn_sink is I32, expected F32");
    use_copy(TINY_A);
    config.moe_intermediate_size = 64; /* config of another model */
    check_refused(DI_ERR_INVALID, "",
                  "/" SINGLE ": tensor layers.0.ffn.shared_experts.w1.weight has shape [32, 128], "
                  "expected [64, 128] by config.json");
}

static void duplicate_tensor(void **state) {
    (void)state;
    use_copy(TINY_B); /* one that the contract does not know still counts */
    edit_header(SHARD_2, "\"layers.4.attn_norm.weight\"", "\"image_start\"");
    check_refused(DI_ERR_INVALID, "", ": tensor image_start is in " SHARD_1 " and in " SHARD_2);
}

static void wrong_index(void **state) {
    (void)state;
    use_copy(TINY_B);
    char *path = in(SHARD_3);
    assert_int_equal(unlink(path), 0);
    free(path);
    check_refused(DI_ERR_IO, "",
                  "/" INDEX " names " SHARD_3
                  " (for tensor layers.5.attn.kv_norm.weight), which cannot "
                  "be read: No such file or directory");
    use_copy(TINY_B);
    edit_text(INDEX, "\"norm.weight\": \"" SHARD_3 "\"", "\"norm.weight\": \"" SHARD_1 "\"");
    check_refused(DI_ERR_INVALID, "",
                  "/" INDEX " says that tensor norm.weight is in " SHARD_1
                  ", but it is in " SHARD_3);
    use_copy(TINY_B);
    edit_text(INDEX, "\"image_end\"", "\"image_wend\"");
    check_refused(DI_ERR_INVALID, "",
                  "/" INDEX " says that tensor image_wend is in " SHARD_1
                  ", which does not have it");
    use_copy(TINY_B);
    edit_text(INDEX, "\"norm.weight\": \"" SHARD_3 "\"", "\"norm.weight\": \"../" SHARD_3 "\"");
    check_refused(DI_ERR_INVALID, "",
                  "/" INDEX ": tensor norm.weight: its value is not the name of a file in the "
                  "directory");
    use_copy(TINY_B);
    edit_text(INDEX, "\"norm.weight\"", "\"norm\\n.weight\"");
    check_refused(DI_ERR_INVALID, "", "/" INDEX ": the name of a tensor has a control character");
    use_copy(TINY_B);
    edit_text(INDEX, "\"weight_map\"", "\"map\"");
    check_refused(DI_ERR_INVALID, "", "/" INDEX ": weight_map is missing or no object");
}

static void scale_byte_255(void **state) {
    (void)state;
    use_copy(TINY_A);
    char *path = in(SINGLE);
    di_checkpoint *checkpoint = open_whole();
    FILE *f = fopen(path, "r+b");
    const uint8_t *file_start = di_checkpoint_at(checkpoint, 0)->data; /* at offset 8 + header */
    size_t n, header = 0;
    uint8_t *bytes = (uint8_t *)temp_read(path, &n);
    for (int i = 0; i < 8; i++) header |= (size_t)bytes[i] << 8 * i;
    free(bytes);
    static const struct {
        const char *tensor;
        int64_t at;
        bool deep;
        const char *where;
    } cases[] = {{"layers.1.attn.wo_b.scale", 5, false, "[2, 1]"},
                 {"layers.0.ffn.experts.3.w1.scale", 6, true, "[1, 2]"},
                 {"layers.1.engram.embed.scale", 1915, true, "[1915, 0]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const di_tensor *t = di_checkpoint_find(checkpoint, cases[i].tensor);
        long offset = (long)(8 + header) + (long)(t->data - file_start) + (long)cases[i].at;
        uint8_t old = t->data[cases[i].at];
        di_error error;
        assert_int_equal(fseek(f, offset, SEEK_SET), 0);
        fputc(255, f);
        fflush(f);
        assert_int_equal(di_checkpoint_check_scales(checkpoint, true, &error), DI_ERR_INVALID);
        char *message = temp_printf("%s/" SINGLE ": tensor %s: scale %s is byte 255 (NaN)",
                                    directory, cases[i].tensor, cases[i].where);
        assert_string_equal(error.message, message);
        free(message);
        assert_int_equal(di_checkpoint_check_scales(checkpoint, false, &error),
                         cases[i].deep ? DI_OK : DI_ERR_INVALID);
        assert_int_equal(fseek(f, offset, SEEK_SET), 0);
        fputc(old, f);
        fflush(f);
    }
    fclose(f);
    free(path);
    di_checkpoint_close(checkpoint);
    temp_dir_destroy(directory);
}

static void unreadable_directory(void **state) {
    (void)state;
    use_copy(TINY_A);
    char *nested = in("absent"), *copy = directory;
    directory = nested;
    di_checkpoint *checkpoint;
    di_error error;
    assert_int_equal(di_checkpoint_open(nested, &config, &checkpoint, &error), DI_ERR_IO);
    char *message =
        temp_printf("cannot open model directory %s: No such file or directory", nested);
    assert_string_equal(error.message, message);
    free(message);
    free(nested);
    directory = copy;

    char *file = in("config.json");
    assert_int_equal(di_checkpoint_open(file, &config, &checkpoint, &error), DI_ERR_IO);
    message = temp_printf("%s is not a directory", file);
    assert_string_equal(error.message, message);
    free(message);
    free(file);

    file = in(SINGLE);
    if (geteuid() != 0) { /* root may read everything */
        assert_int_equal(chmod(directory, 0), 0);
        assert_int_equal(di_checkpoint_open(directory, &config, &checkpoint, &error), DI_ERR_IO);
        message = temp_printf("cannot open %s/" INDEX ": Permission denied", directory);
        assert_string_equal(error.message, message);
        free(message);
        assert_int_equal(chmod(directory, 0700), 0);
    }
    assert_int_equal(unlink(file), 0);
    free(file);
    check_refused(DI_ERR_IO, "", " has neither " SINGLE " nor " INDEX ": not a model directory");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_single_and_shards), cmocka_unit_test(truncated_shard),
        cmocka_unit_test(missing_tensor),          cmocka_unit_test(wrong_shape_and_dtype),
        cmocka_unit_test(duplicate_tensor),        cmocka_unit_test(wrong_index),
        cmocka_unit_test(scale_byte_255),          cmocka_unit_test(unreadable_directory),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
