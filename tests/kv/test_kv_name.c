/* Names against values that Python's hashlib gave for the layout written here:
 *   root   = H("deepinfer.kv.root.1" fingerprint H(numerics) H(kernels) H(salt))
 *   page   = H("deepinfer.kv.page.1" parent int32[64] uint64[64]), little-endian
 *   replay = H("deepinfer.kv.replay.1" parent int64)
 * A change of these values orphans every page that any tier holds.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv.h"

static void expect(di_kv_name name, const char *want) {
    char hex[2 * sizeof name + 1];
    for (size_t i = 0; i < sizeof name; i++) snprintf(hex + 2 * i, 3, "%02x", name.bytes[i]);
    assert_string_equal(hex, want);
}

static di_kv_root plain_root(void) {
    di_kv_root root = {.numerics = "release", .kernels = "cpu-avx2"};
    for (size_t i = 0; i < sizeof root.fingerprint; i++) root.fingerprint.bytes[i] = (uint8_t)i;
    return root;
}

static void test_root(void **state) {
    (void)state;
    di_kv_root root = plain_root();
    expect(di_kv_name_root(&root),
           "68f3227253a8412e3d7cefad411510c27da78765c42f3d8bd027db529a0604fe");
    root.numerics = "float";
    root.kernels = "ref";
    root.salt = "tenant\0a";
    root.salt_bytes = 8;
    expect(di_kv_name_root(&root),
           "6c3f3f4c7b972dc2f2dcc9f090e58b20ef9fd21c4c5a4b407082a9df554b2aab");
}

static void test_page_and_replay(void **state) {
    (void)state;
    di_kv_root root = plain_root();
    int32_t ids[64];
    uint64_t content[64];
    for (int i = 0; i < 64; i++) ids[i] = i * 257 - 3;
    di_kv_name name = di_kv_name_root(&root);
    name = di_kv_name_page(&name, ids, NULL);
    expect(name, "e473eb9d521600b40d409ed51e5aaa167aa67c4586859e101bc6e18c32873dc6");
    for (int i = 0; i < 64; i++) {
        ids[i] = 129279 - i;
        content[i] = (uint64_t)i * 0x0123456789abcdef + 1;
    }
    name = di_kv_name_page(&name, ids, content);
    expect(name, "e807b14f8f3012f32a7dfdf4f40abb959d85e3a8ff57d3bbe043a0378ddbf1c7");
    name = di_kv_name_replay(&name, 128);
    expect(name, "70de4a371870eeb8fe8ccefa672460055abf3a7413407defd085e682bdc52ee7");
    for (int i = 0; i < 64; i++) ids[i] = 7;
    memset(content, 0, sizeof content);
    name = di_kv_name_page(&name, ids, content); /* zeros are what NULL means */
    expect(name, "d1ae53234eefff2df40bad287858ca2218b5a175f6c052d3bc76bb954159a258");
}

static void test_chain_is_pages_in_a_row(void **state) {
    (void)state;
    enum { N = 3 };
    di_kv_root root = plain_root();
    di_kv_name parent = di_kv_name_root(&root), names[N], plain[N];
    int32_t ids[64 * N];
    uint64_t content[64 * N];
    for (int i = 0; i < 64 * N; i++) {
        ids[i] = i;
        content[i] = (uint64_t)i << 40;
    }
    di_kv_name_chain(&parent, ids, content, N, names);
    di_kv_name_chain(&parent, ids, NULL, N, plain);
    di_kv_name before = parent;
    for (int i = 0; i < N; i++) {
        di_kv_name want = di_kv_name_page(&before, ids + 64 * i, content + 64 * i);
        assert_true(di_kv_name_equal(&names[i], &want));
        assert_false(di_kv_name_equal(&names[i], &plain[i]));
        before = want;
    }
}

/* Everything counts, and no byte can move from one part of a root to the next. */
static void test_all_parts_count(void **state) {
    (void)state;
    di_kv_root roots[8];
    for (int i = 0; i < 8; i++) roots[i] = plain_root();
    roots[1].fingerprint.bytes[31] ^= 1;
    roots[2].numerics = "float";
    roots[3].kernels = "cpu-avx512";
    roots[4].salt = "a";
    roots[4].salt_bytes = 1;
    roots[5].salt = "b";
    roots[5].salt_bytes = 1;
    roots[6].numerics = "releasecpu";
    roots[6].kernels = "-avx2";
    roots[7].salt = "a\0";
    roots[7].salt_bytes = 2;
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < i; k++) {
            di_kv_name a = di_kv_name_root(&roots[i]), b = di_kv_name_root(&roots[k]);
            assert_false(di_kv_name_equal(&a, &b));
        }
    }
    roots[5].salt_bytes = 0; /* no bytes are no salt */
    di_kv_name a = di_kv_name_root(&roots[5]), b = di_kv_name_root(&roots[0]);
    assert_true(di_kv_name_equal(&a, &b));
    di_kv_name near = di_kv_name_replay(&a, 64), far = di_kv_name_replay(&a, 128);
    assert_false(di_kv_name_equal(&near, &far));
    assert_false(di_kv_name_equal(&near, &a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root),
        cmocka_unit_test(test_page_and_replay),
        cmocka_unit_test(test_chain_is_pages_in_a_row),
        cmocka_unit_test(test_all_parts_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
