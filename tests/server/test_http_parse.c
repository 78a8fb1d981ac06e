/* HTTP requests: what is read, what is refused, and that no cut of the bytes changes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/http_parse.h"

static int read_text(const char *text, http_head *head) {
    const char *why = NULL;
    size_t seen = 0;
    int64_t n = http_find_head(text, strlen(text), &seen);
    if (n < 0) return 400;
    assert_int_equal(n, strlen(text));
    int status = http_read_head(text, (size_t)n, head, &why);
    assert_true((status == 0) == (why == NULL));
    return status;
}

static void test_reads(void **state) {
    (void)state;
    http_head h;
    assert_int_equal(read_text("POST /v1/x?a=1&b HTTP/1.1\r\nHost: a\r\nContent-Length:  12 \r\n"
                               "X-Api-Key: k\r\nExpect: 100-Continue\r\n\r\n",
                               &h),
                     0);
    assert_true(http_text_is(h.method, "POST"));
    assert_true(http_text_is(h.path, "/v1/x"));
    assert_true(http_text_is(h.query, "a=1&b"));
    assert_true(http_text_is(http_get(&h, "x-api-key"), "k"));
    assert_int_equal(h.content_length, 12);
    assert_true(h.keep_alive && h.expects_continue);
    assert_null(http_get(&h, "x-api").data);
    assert_int_equal(read_text("GET / HTTP/1.1\r\nhost: a\r\nConnection: x, Close\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(read_text("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"
                               "Connection: close\r\n\r\n",
                               &h),
                     0);
    assert_false(h.keep_alive); /* one list in two lines */
    assert_int_equal(read_text("GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(read_text("GET / HTTP/1.0\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(read_text("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &h), 0);
    assert_true(h.keep_alive);
    assert_int_equal(read_text("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n",
                               &h),
                     0);
    assert_int_equal(h.content_length, -1);
    assert_int_equal(read_text("GET HTTP://a:80/x?y=/z HTTP/1.1\r\nHost: A:80\r\n\r\n", &h), 0);
    assert_true(http_text_is(h.path, "/x") && http_text_is(h.query, "y=/z"));
    assert_int_equal(read_text("GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n", &h), 0);
    assert_true(http_text_is(h.path, "/") && http_text_is(h.authority, "a"));
}

#define GET "GET / HTTP/1.1\r\nHost: a\r\n"

static void test_refuses(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *text;
    } cases[] = {
        {400, "\r\n"},
        {400, "GET\r\n\r\n"},
        {400, "GET /\r\n\r\n"},
        {400, "GET / \r\n\r\n"},
        {400, " GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "G(T / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET  / HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: a#b\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: \"a\"\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\nHost: \xC3\xA4\r\n\r\n"},
        {400, "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http:// HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a/x HTTP/1.0\r\n\r\n"},
        {400, "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET http://a?x/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET * HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET /\xC3\xA4 HTTP/1.1\r\nHost: a\r\n\r\n"},
        {400, "GET / http/1.1\r\nHost: a\r\n\r\n"},
        {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
        {505, "GET / HTTP/1.2\r\nHost: a\r\n\r\n"},
        {400, "GET / HTTP/1.1\r\n\r\n"},
        {400, GET "Host: b\r\n\r\n"},
        {400, "GET / HTTP/1.1\nHost: a\n\n"},
        {400, GET "A: b\n\r\n"},
        {400, GET " folded\r\n\r\n"},
        {400, GET "A : b\r\n\r\n"},
        {400, GET ": b\r\n\r\n"},
        {400, GET "A\r\n\r\n"},
        {400, GET "A: b\rc\r\n\r\n"},
        {400, GET "A: b\001c\r\n\r\n"},
        {400, GET "Content-Length: 1\r\nContent-Length: 1\r\n\r\n"},
        {400, GET "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, GET "Content-Length: +1\r\n\r\n"},
        {400, GET "Content-Length: -1\r\n\r\n"},
        {400, GET "Content-Length: 1,1\r\n\r\n"},
        {400, GET "Content-Length:\r\n\r\n"},
        {400, GET "Content-Length: 1234567890123456789\r\n\r\n"},
        {501, GET "Transfer-Encoding: gzip, chunked\r\n\r\n"},
        {501, GET "Transfer-Encoding: identity\r\n\r\n"},
        {400, GET "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"},
        {400, "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        http_head h;
        int status = read_text(cases[i].text, &h);
        if (status != cases[i].status) fail_msg("%d for: %s", status, cases[i].text);
    }
}

static void test_limits(void **state) {
    (void)state;
    http_head h;
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_puts(&text, "GET /");
    for (int i = 0; i < HTTP_MAX_TARGET; i++) di_buffer_putc(&text, 'a');
    di_buffer_puts(&text, " HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_int_equal(read_text(text.data, &h), 414);
    di_buffer_clear(&text);
    di_buffer_puts(&text, GET);
    for (int i = 0; i < HTTP_MAX_HEADERS; i++) di_buffer_printf(&text, "A%d: b\r\n", i);
    di_buffer_puts(&text, "\r\n");
    assert_int_equal(read_text(text.data, &h), 431);
    di_buffer_free(&text);
}

/* The head is found at the same place however it comes. */
static void test_head_in_pieces(void **state) {
    (void)state;
    static const char text[] = GET "A: b\r\n\r\nrest\r\n\r\n";
    size_t seen = 0;
    for (size_t n = 0; n < sizeof text; n++) {
        int64_t found = http_find_head(text, n, &seen);
        if (n < 33) assert_int_equal(found, 0);
        if (found > 0) {
            assert_int_equal(found, strstr(text, "rest") - text);
            return;
        }
    }
    fail();
}

/* ---- Bodies ---- */

static int64_t decode(const char *text, size_t size, bool chunked, uint64_t left, size_t step,
                      size_t max, di_buffer *out) {
    http_body body = {.chunked = chunked, .left = left};
    size_t at = 0;
    di_buffer_clear(out);
    while (at < size && !body.done) {
        size_t n = size - at < step ? size - at : step;
        int64_t taken = http_read_body(&body, text + at, n, max, out);
        if (taken < 0) return taken;
        assert_true((size_t)taken == n || body.done);
        at += (size_t)taken;
    }
    return body.done ? (int64_t)at : 0;
}

static void test_bodies(void **state) {
    (void)state;
    static const char chunked[] = "4;a=b\r\nabcd\r\n00A\r\n0123456789\r\n0\r\nT: x\r\n\r\nGET";
    di_buffer out = DI_BUFFER_EMPTY;
    for (size_t step = 1; step < sizeof chunked; step++) {
        int64_t n = decode(chunked, sizeof chunked - 1, true, 0, step, 100, &out);
        assert_int_equal(n, sizeof chunked - 4);
        assert_int_equal(out.size, 14);
        assert_memory_equal(out.data, "abcd0123456789", 14);
        n = decode("abcdef", 6, false, 4, step, 100, &out);
        assert_int_equal(n, 4);
        assert_int_equal(out.size, 4);
        assert_int_equal(decode(chunked, sizeof chunked - 1, true, 0, step, 13, &out), -2);
        assert_int_equal(decode("abcdef", 6, false, 6, step, 5, &out), -2);
    }
    static const char *const wrong[] = {
        "\r\n",        "g\r\n",         "-1\r\n",
        " 1\r\na\r\n", "1 \r\na\r\n",   "1\na\r\n",
        "1\r\nab\r\n", "1\r\na\n",      "1\r\nar\n",
        ";a\r\n",      "0\r\n\n",       "0\r\nA\n",
        "0\r\n\r\r",   "1;a\001\r\n",   "0x1\r\na\r\n",
        "1;a\n",       "0\r\nA: b\r\r", "1000000000000000\r\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int64_t n = decode(wrong[i], strlen(wrong[i]), true, 0, 1, 100, &out);
        if (n != -1) fail_msg("%d for: %s", (int)n, wrong[i]);
    }
    di_buffer_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads),  cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_head_in_pieces),
        cmocka_unit_test(test_bodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
