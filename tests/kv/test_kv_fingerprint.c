/* The fingerprint against Python's hashlib, what it notices, and that size does not matter.
 *
 * Of a checkpoint it needs the paths of the shards alone, so this program brings its own: a list.
 * It stands in for the library's, whose object is then not linked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kv/kv.h"
#include "support/temp.h"

enum { MAX_SHARDS = 8 };

struct di_checkpoint {
    int32_t n_shards;
    char *paths[MAX_SHARDS];
};

int32_t di_checkpoint_n_shards(const di_checkpoint *checkpoint) { return checkpoint->n_shards; }

const char *di_checkpoint_shard_path(const di_checkpoint *checkpoint, int32_t shard) {
    return checkpoint->paths[shard];
}

static di_error error;
static char *directory;
static di_checkpoint checkpoint;

static char *path_of(const char *name) { return temp_printf("%s/%s", directory, name); }

static void write_file(const char *name, const void *bytes, size_t n) {
    char *path = path_of(name);
    temp_write(path, bytes, n);
    free(path);
}

static void add_shard(const char *header, const uint8_t *data, size_t n) {
    uint64_t length = strlen(header);
    uint8_t *file = calloc(1, 8 + length + n);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + 8, header, length);
    if (n) memcpy(file + 8 + length, data, n);
    char name[32];
    snprintf(name, sizeof name, "shard-%d", (int)checkpoint.n_shards);
    write_file(name, file, 8 + length + n);
    checkpoint.paths[checkpoint.n_shards++] = path_of(name);
    free(file);
}

static int set_up(void **state) {
    (void)state;
    directory = temp_dir_create();
    checkpoint.n_shards = 0;
    write_file("config.json", "{\"a\": 1}\n", 9);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int32_t i = 0; i < checkpoint.n_shards; i++) free(checkpoint.paths[i]);
    temp_dir_destroy(directory);
    return 0;
}

static di_kv_name fingerprint(void) {
    di_kv_name name;
    if (di_kv_fingerprint(directory, &checkpoint, &name, &error) != DI_OK) {
        fail_msg("%s", error.message);
    }
    return name;
}

static void expect(const char *want) {
    di_kv_name name = fingerprint();
    char hex[2 * sizeof name + 1];
    for (size_t i = 0; i < sizeof name; i++) snprintf(hex + 2 * i, 3, "%02x", name.bytes[i]);
    assert_string_equal(hex, want);
}

enum { SMALL = 1000, LARGE = 600000 };
static uint8_t small[SMALL], large[LARGE];

static void fill(void) {
    for (int i = 0; i < SMALL; i++) small[i] = (uint8_t)(i % 251);
    for (int i = 0; i < LARGE; i++) large[i] = (uint8_t)(i * 7 + (i >> 9));
}

/* A shard that is read whole and one that is sampled; then the other spelling of the token map. */
static void test_known_answers(void **state) {
    (void)state;
    fill();
    write_file("tokenizer.json", "{\"t\": []}", 9);
    add_shard("{\"__metadata__\":{}}", small, SMALL);
    add_shard("{\"x\":{}}", large, LARGE);
    expect("6b7740b1bdb1b979576a241587b5df0104012e1bd759372ad366331e8743934f");
    char *tokenizer = path_of("tokenizer.json");
    assert_int_equal(unlink(tokenizer), 0);
    free(tokenizer);
    write_file("token_map.json", "[]", 2);
    free(checkpoint.paths[--checkpoint.n_shards]);
    expect("a42e0233c6028250f2bdf25a30dc9f88895a0e116362b1537e47b032f6b46889");
}

/* A byte anywhere in what is read changes it, and so does the order of shards. */
static void test_what_it_notices(void **state) {
    (void)state;
    fill();
    add_shard("{}", small, SMALL);
    add_shard("{}", large, LARGE);
    di_kv_name before = fingerprint(), now;
    const int places[][2] = {{0, 0},  {0, 9},
                             {0, 10}, {0, 8 + 2 + SMALL - 1},
                             {1, 10}, {1, 8 + 2 + LARGE - 1}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = checkpoint.paths[places[i][0]];
        size_t n;
        char *bytes = temp_read(path, &n);
        if (places[i][1] != 0) {
            bytes[places[i][1]] ^= 1;
        } else { /* a header of one byte more, of the data */
            bytes[0]++;
        }
        temp_write(path, bytes, n);
        now = fingerprint();
        assert_false(di_kv_name_equal(&before, &now));
        bytes[places[i][1]] ^= 1;
        if (places[i][1] == 0) bytes[0] = 2;
        temp_write(path, bytes, n);
        free(bytes);
        now = fingerprint();
        assert_true(di_kv_name_equal(&before, &now));
    }
    char *swap = checkpoint.paths[0];
    checkpoint.paths[0] = checkpoint.paths[1];
    checkpoint.paths[1] = swap;
    now = fingerprint();
    assert_false(di_kv_name_equal(&before, &now));
    write_file("config.json", "{\"a\": 2}\n", 9);
    di_kv_name other = fingerprint();
    assert_false(di_kv_name_equal(&other, &now));
}

/* Sparse files of 500 GiB in all: reading them would take minutes. */
static void test_size_does_not_matter(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        add_shard("{}", NULL, 0);
        if (truncate(checkpoint.paths[i], (off_t)100 << 30) != 0) skip(); /* a small file system */
    }
    di_kv_name before = fingerprint();
    FILE *file = fopen(checkpoint.paths[4], "r+");
    assert_non_null(file);
    assert_int_equal(fseeko(file, ((off_t)100 << 30) - 1, SEEK_SET), 0);
    assert_int_equal(fputc(1, file), 1); /* the last byte of the last shard */
    fclose(file);
    di_kv_name now = fingerprint();
    assert_false(di_kv_name_equal(&before, &now));
}

static void expect_failure(di_status status, const char *part) {
    di_kv_name name;
    assert_int_equal(di_kv_fingerprint(directory, &checkpoint, &name, &error), status);
    assert_non_null(strstr(error.message, part));
}

static void test_errors(void **state) {
    (void)state;
    add_shard("{}", NULL, 0);
    temp_write(checkpoint.paths[0], "1234567", 7);
    expect_failure(DI_ERR_INVALID, "shard-0 is no safetensors file");
    temp_write(checkpoint.paths[0], "\3\0\0\0\0\0\0\0{}", 10);
    expect_failure(DI_ERR_INVALID, "shard-0: a header of 3 bytes");
    temp_write(checkpoint.paths[0], "\377\377\377\377\377\377\377\377{}", 10);
    expect_failure(DI_ERR_INVALID, "too large");
    assert_int_equal(unlink(checkpoint.paths[0]), 0);
    expect_failure(DI_ERR_IO, "shard-0");
    char *config = path_of("config.json");
    assert_int_equal(unlink(config), 0);
    free(config);
    expect_failure(DI_ERR_IO, "config.json");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_known_answers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_what_it_notices, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_size_does_not_matter, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_errors, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
