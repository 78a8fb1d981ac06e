/* The tool preamble is wire format: held by the hashes of the release's text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/chat_support.h"
#include "support/sha256.h"
#include "text/tools_preamble.h"

static void hash_function(void **state) {
    (void)state;
    char hex[65], text[200];
    test_sha256("", 0, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    test_sha256("abc", 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    memset(text, 'a', sizeof text); /* two whole blocks and a tail that spills over */
    test_sha256(text, 187, hex);
    assert_string_equal(hex, "ee1af252d0c7b22336f29f8461a27fb70a3850e709e769b50402d1a8bda1ee03");
}

static void raw_text(void **state) {
    (void)state;
    char hex[65];
    assert_int_equal(strlen(di_tools_preamble), 1178);
    test_sha256(di_tools_preamble, strlen(di_tools_preamble), hex);
    assert_string_equal(hex, "9a239469af824bfaf81a341dbf46a4451b17b68dc659d0e198f7b553fd82cfeb");
}

/* As it comes out of the encoder, with the tool's line put back to the field's name. */
static void rendered_text(void **state) {
    (void)state;
    static const char schema[] = "{\"name\": \"f\"}", field[] = "{tool_schemas}";
    di_chat_options options = di_chat_options_defaults();
    options.thinking = false;
    char *prompt =
        chat_encode_text("[{\"role\":\"system\",\"tools\":[{\"name\":\"f\"}]}]", NULL, &options);
    char *begin = strstr(prompt, "## Tools"), *line = strstr(prompt, schema);
    assert_non_null(begin);
    assert_non_null(line);
    di_buffer text = DI_BUFFER_EMPTY;
    di_buffer_append(&text, begin, (size_t)(line - begin));
    di_buffer_puts(&text, field);
    di_buffer_puts(&text, line + strlen(schema));
    char hex[65];
    assert_int_equal(text.size, 997);
    test_sha256(text.data, text.size, hex);
    assert_string_equal(hex, "ed8774877c3b45a36654337a5036d51fe3db43cdf14c9d21ad185108fdc7784e");
    di_buffer_free(&text);
    free(prompt);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_function),
        cmocka_unit_test(raw_text),
        cmocka_unit_test(rendered_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
