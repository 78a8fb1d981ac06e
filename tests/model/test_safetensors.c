/* The header of a safetensors file, rule by rule: what is accepted, and the exact message for what
 * is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/checkpoint.h"
#include "support/temp.h"

static char *directory, *path;

static int setup(void **state) {
    (void)state;
    directory = temp_dir_create();
    path = temp_printf("%s/x.safetensors", directory);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(path);
    temp_dir_destroy(directory);
    return 0;
}

/* A file with this header and n data bytes 0, 1, 2, ... */
static void write_file(const char *header, size_t n) {
    size_t length = strlen(header);
    uint8_t *bytes = calloc(8 + length + n, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n; i++) bytes[8 + length + i] = (uint8_t)i;
    temp_write(path, bytes, 8 + length + n);
    free(bytes);
}

/* `expected` begins behind the path. */
static void check_refused(const char *expected) {
    di_safetensors *file;
    di_error error;
    if (di_safetensors_open(path, &file, &error) == DI_OK) fail_msg("accepted: %s", expected);
    assert_null(file);
    char *message = temp_printf("%s%s", path, expected);
    assert_string_equal(error.message, message);
    free(message);
}

#define A "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"

static void reads_tensors(void **state) {
    (void)state;
    di_safetensors *file;
    di_error error;
    write_file("{\"__metadata__\":{\"format\":\"pt\"},"
               "\"b\":{\"dtype\":\"BF16\",\"shape\":[3,1],\"data_offsets\":[8,14]}," A ","
               "\"empty\":{\"dtype\":\"U8\",\"shape\":[0,7],\"data_offsets\":[8,8]},"
               "\"scalar\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[14,15]}}   ",
               15);
    if (di_safetensors_open(path, &file, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_safetensors_count(file), 4);
    const di_tensor *b = di_safetensors_find(file, "b");
    assert_ptr_equal(b, di_safetensors_at(file, 0)); /* the header's order */
    assert_int_equal(b->dtype, DI_BF16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[0], 3);
    assert_int_equal(b->bytes, 6);
    assert_int_equal(b->data[0], 8);
    assert_int_equal(b->data[5], 13);
    assert_int_equal(di_safetensors_find(file, "a")->data[7], 7);
    assert_int_equal(di_safetensors_find(file, "empty")->bytes, 0);
    assert_int_equal(di_safetensors_find(file, "scalar")->n_dims, 0);
    assert_int_equal(di_safetensors_find(file, "scalar")->dtype, DI_FP4_PAIR);
    assert_null(di_safetensors_find(file, "__metadata__"));
    assert_null(di_safetensors_find(file, "c"));
    di_tensor_release(b); /* still readable afterwards: the file is read again */
    di_tensor_release(di_safetensors_find(file, "empty"));
    assert_int_equal(b->data[5], 13);
    di_safetensors_close(file);
    di_safetensors_close(NULL);
}

static void wrong_lengths(void **state) {
    (void)state;
    temp_write(path, "1234567", 7);
    check_refused(" has 7 bytes, too few for a safetensors file");
    temp_write(path, "", 0);
    check_refused(" has 0 bytes, too few for a safetensors file");
    temp_write(path, "\x03\0\0\0\0\0\0\0{}", 10);
    check_refused(": its header of 3 bytes is larger than the file of 10");
    temp_write(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
    check_refused(": its header of 18446744073709551615 bytes is larger than the file of 10");
    write_file("{" A "}", 8);
    di_safetensors *file;
    di_error error;
    assert_int_equal(di_safetensors_open(path, &file, &error), DI_OK);
    di_safetensors_close(file);
    write_file("{" A "}", 7);
    check_refused(" is truncated: its header describes 8 bytes of tensors, it holds 7 (1 missing); "
                  "fetch the file again");
    write_file("{" A "}", 0);
    check_refused(" is truncated: its header describes 8 bytes of tensors, it holds 0 (8 missing); "
                  "fetch the file again");
    write_file("{" A "}", 9);
    check_refused(": 1 bytes after the last tensor belong to no tensor");
}

static void wrong_places(void **state) {
    (void)state;
    write_file("{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12);
    check_refused(": tensors a and b overlap: bytes 4 to 8");
    write_file("{" A ",\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]}}", 8);
    check_refused(": tensors a and b overlap: bytes 4 to 6");
    write_file("{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]}}", 20);
    check_refused(": bytes 8 to 12 before tensor b belong to no tensor");
    write_file("{" A ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
               "\"data_offsets\":[1000000000000,1000000000004]}}",
               12);
    check_refused(": tensor b: data_offsets [1000000000000, 1000000000004] are out of range, the "
                  "file holds 12 bytes of tensors");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8);
    check_refused(": tensor a: data_offsets [8, 0] run backwards");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}", 8);
    check_refused(": tensor a: data_offsets are not two integers from 0");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8);
    check_refused(": tensor a: data_offsets are not two integers from 0");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,8]}}", 8);
    check_refused(": tensor a: data_offsets [0, 8] span 8 bytes, F32 [2, 2] needs 16");
}

static void wrong_entries(void **state) {
    (void)state;
    write_file("{" A "," A "}", 8);
    check_refused(": line 1, column 55: duplicate key in object");
    write_file("[]", 0);
    check_refused(": its header is no JSON object");
    write_file("{\"a\":1}", 0);
    check_refused(": tensor a: its entry is no object");
    write_file("{\"a\":{}}", 0);
    check_refused(": tensor a: dtype is missing or no string");
    write_file("{\"a\":{\"dtype\":\"F128\",\"shape\":[],\"data_offsets\":[0,0]}}", 0);
    check_refused(": tensor a: unknown dtype F128");
    write_file("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0);
    check_refused(": tensor a: shape is missing or no list");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,1]}}", 1);
    check_refused(": tensor a: more than 4 dimensions");
    write_file("{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1);
    check_refused(": tensor a: a dimension is no integer from 0");
    write_file("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
               "\"data_offsets\":[0,0]}}",
               0);
    check_refused(": tensor a: its size overflows 64 bits");
    write_file("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    check_refused(": the name of tensor 0 of the header has a control character");
    write_file("{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    check_refused(": the name of tensor 0 of the header has a control character");
    write_file("{\"a\":{\"dtype\":\"U\\u001b8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0);
    check_refused(": tensor a: dtype has a control character");
    write_file("{\"a\":", 0);
    check_refused(": line 1, column 6: unexpected end, expected a value");
}

static void wrong_paths(void **state) {
    (void)state;
    di_safetensors *file;
    di_error error;
    assert_int_equal(di_safetensors_open("/nonexistent/x", &file, &error), DI_ERR_IO);
    assert_string_equal(error.message, "cannot open /nonexistent/x: No such file or directory");
    assert_int_equal(di_safetensors_open(directory, &file, &error), DI_ERR_IO);
    char *message = temp_printf("%s is not a regular file", directory);
    assert_string_equal(error.message, message);
    free(message);
}

/* Test vectors have other dtypes than checkpoints; all of them open. */
static void reads_vectors(void **state) {
    (void)state;
    di_safetensors *file;
    di_error error;
    if (di_safetensors_open(DI_SOURCE_DIR "/tests/data/golden/tiny-a/golden.safetensors", &file,
                            &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    assert_int_equal(di_safetensors_count(file), 189);
    const di_tensor *t = di_safetensors_find(file, "p1/router_picks");
    assert_int_equal(t->dtype, DI_I16);
    assert_int_equal(t->bytes, 8 * 1 * 3 * 2);
    assert_int_equal(di_safetensors_find(file, "engram/multipliers")->dtype, DI_I64);
    di_safetensors_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_tensors), cmocka_unit_test(wrong_lengths),
        cmocka_unit_test(wrong_places),  cmocka_unit_test(wrong_entries),
        cmocka_unit_test(wrong_paths),   cmocka_unit_test(reads_vectors),
    };
    return cmocka_run_group_tests_name("safetensors", tests, setup, teardown);
}
