/* What is refused when a tokenizer.json is read, with the exact line that says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/temp.h"
#include "support/tokenizer_text.h"
#include "text/tokenizer.h"

/* The file that the cases below change. */
static char *base_text(void) {
    static const char *const words[] = {"ab", "abc", "\xC4\xA0x", NULL};
    static const char *const merges[] = {"a b", "ab c", "\xC4\xA0 x", NULL};
    static const char *const added[] =
        {"\"id\": 259, \"content\": \"<s>\", \"lstrip\": false, \"special\": true",
         "\"id\": 260, \"content\": \"<\xEF\xBD\x9C>\"", NULL};
    return tokenizer_text(words, merges, added);
}

static di_status parse(const char *text, size_t size, di_error *error) {
    di_tokenizer *t;
    di_status status = di_tokenizer_parse(text, size, "t.json", &t, error);
    assert_int_equal(status == DI_OK, t != NULL);
    di_tokenizer_destroy(t);
    return status;
}

#define ADVICE ": only byte-level BPE as DeepSeek releases it is supported"
#define DAMAGED ": the file is damaged or was edited; fetch it again"

static const struct {
    const char *from, *to; /* text that occurs once, and what replaces it */
    di_status status;
    const char *message;
} refused[] = {
    {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", DI_ERR_UNSUPPORTED,
     "t.json: model.type is \"Unigram\", expected \"BPE\"" ADVICE},
    {"\"type\": \"BPE\", ", "", DI_ERR_UNSUPPORTED,
     "t.json: model.type is nothing, expected \"BPE\"" ADVICE},
    {"\"model\": {", "\"module\": {", DI_ERR_INVALID,
     "t.json: no \"model\" object: this is not a tokenizer.json of the tokenizers library"},
    {"\"dropout\": null", "\"dropout\": 0.1", DI_ERR_UNSUPPORTED,
     "t.json: \"dropout\" of model is set to 0.1, which is not supported" ADVICE},
    {"\"unk_token\": null", "\"unk_token\": \"<unk>\"", DI_ERR_UNSUPPORTED,
     "t.json: \"unk_token\" of model is set to \"<unk>\", which is not supported" ADVICE},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", DI_ERR_UNSUPPORTED,
     "t.json: \"byte_fallback\" of model is set to true, which is not supported" ADVICE},
    {"\"ignore_merges\": false", "\"ignore_merges\": true", DI_ERR_UNSUPPORTED,
     "t.json: \"ignore_merges\" of model is set to true, which is not supported" ADVICE},
    {"\"ignore_merges\"", "\"continuing_subword_prefix\": \"##\", \"ignore_merges\"",
     DI_ERR_UNSUPPORTED,
     "t.json: \"continuing_subword_prefix\" of model is set to \"##\", which is not supported" ADVICE},
    {"\"ignore_merges\"", "\"end_of_word_suffix\": \"</w>\", \"ignore_merges\"", DI_ERR_UNSUPPORTED,
     "t.json: \"end_of_word_suffix\" of model is set to \"</w>\", which is not supported" ADVICE},
    {"\"truncation\": null", "\"truncation\": {}", DI_ERR_UNSUPPORTED,
     "t.json: \"truncation\" is set to an object, which is not supported" ADVICE},
    {"\"padding\": null", "\"padding\": []", DI_ERR_UNSUPPORTED,
     "t.json: \"padding\" is set to a list, which is not supported" ADVICE},
    {"\"normalizers\": []", "\"normalizers\": [{\"type\": \"NFC\"}]", DI_ERR_UNSUPPORTED,
     "t.json: the file has a normalizer, \"NFC\", and none is supported" ADVICE},
    {"{\"type\": \"Sequence\", \"normalizers\": []}", "{\"type\": \"Lowercase\"}",
     DI_ERR_UNSUPPORTED,
     "t.json: the file has a normalizer, \"Lowercase\", and none is supported" ADVICE},
    {"{1,3}", "{1,2}", DI_ERR_UNSUPPORTED,
     "t.json: step 1 of pre_tokenizer splits by the regex \"\\p{N}{1,2}\", which is not DeepSeek's" ADVICE},
    {"|\\\\s+(?!\\\\S)", "", DI_ERR_UNSUPPORTED,
     "t.json: step 3 of pre_tokenizer splits by the regex \"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
     "[A-Za-z]+|[^\\x0d\\x0a\\p...\", which is not DeepSeek's" ADVICE},
    {"{\"Regex\": \"\\\\p{N}{1,3}\"}", "{\"String\": \" \"}", DI_ERR_UNSUPPORTED,
     "t.json: step 1 of pre_tokenizer splits by the regex nothing, which is not DeepSeek's" ADVICE},
    {"\"use_regex\": false}", "\"use_regex\": true}", DI_ERR_UNSUPPORTED,
     "t.json: ByteLevel in pre_tokenizer must have use_regex and add_prefix_space false" ADVICE},
    {"\"add_prefix_space\": false, ", "", DI_ERR_UNSUPPORTED,
     "t.json: ByteLevel in pre_tokenizer must have use_regex and add_prefix_space false" ADVICE},
    {"\"pre_tokenizer\": {\"type\": \"Sequence\"", "\"pre_tokenizer\": {\"type\": \"Metaspace\"",
     DI_ERR_UNSUPPORTED,
     "t.json: pre_tokenizer is \"Metaspace\" with 0 steps, expected a Sequence of three Splits and "
     "ByteLevel" ADVICE},
    {"\"pre_tokenizer\"", "\"post_tokenizer\": null, \"other\"", DI_ERR_UNSUPPORTED,
     "t.json: \"other\" is set to an object, which is not supported" ADVICE},
    {"\"post_processor\": {\"type\": \"ByteLevel\"}",
     "\"post_processor\": {\"type\": \"TemplateProcessing\"}", DI_ERR_UNSUPPORTED,
     "t.json: post_processor is \"TemplateProcessing\", expected \"ByteLevel\" or null" ADVICE},
    {"\"decoder\": {\"type\": \"ByteLevel\"}", "\"decoder\": null", DI_ERR_UNSUPPORTED,
     "t.json: decoder is nothing, expected \"ByteLevel\"" ADVICE},
    {"\"lstrip\": false", "\"lstrip\": true", DI_ERR_UNSUPPORTED,
     "t.json: added token \"<s>\" has lstrip set, which is not supported: only added tokens that match "
     "exactly are"},
    {"\"content\": \"<s>\"", "\"content\": \"\"", DI_ERR_INVALID,
     "t.json: added token 0 has no content, or a NUL in it" DAMAGED},
    {"\"content\": \"<s>\"", "\"content\": \"<\\u0000>\"", DI_ERR_INVALID,
     "t.json: added token 0 has no content, or a NUL in it" DAMAGED},
    {"\"content\": \"<s>\"", "\"content\": 7", DI_ERR_INVALID,
     "t.json: added token 0 has no content, or a NUL in it" DAMAGED},
    {"\"id\": 259", "\"id\": 260", DI_ERR_INVALID,
     "t.json: tokens \"<s>\" and \"<\xEF\xBD\x9C>\" have the same id 260" DAMAGED},
    {"\"id\": 259", "\"id\": 258", DI_ERR_INVALID,
     "t.json: tokens \"\xC4\xA0x\" and \"<s>\" have the same id 258" DAMAGED},
    {"\"id\": 259", "\"id\": -1", DI_ERR_INVALID,
     "t.json: token \"<s>\" has id -1, expected 0 to 1048575" DAMAGED},
    {"\"id\": 259", "\"id\": 1048576", DI_ERR_INVALID,
     "t.json: token \"<s>\" has id 1048576, expected 0 to 1048575" DAMAGED},
    {"\"id\": 259", "\"id\": 0.5", DI_ERR_INVALID,
     "t.json: token \"<s>\" has id 0.5, expected 0 to 1048575" DAMAGED},
    {"\"id\": 259, ", "", DI_ERR_INVALID,
     "t.json: token \"<s>\" has id nothing, expected 0 to 1048575" DAMAGED},
    {"<\xEF\xBD\x9C>", "<s>", DI_ERR_INVALID,
     "t.json: added token \"<s>\" has the two ids 259 and 260" DAMAGED},
    {"\"content\": \"<s>\"", "\"content\": \"abc\"", DI_ERR_INVALID,
     "t.json: added token \"abc\" has id 259, but 257 in the vocabulary" DAMAGED},
    {"\"id\": 259, \"content\": \"<s>\"", "\"id\": 258, \"content\": \"\xC4\xA0x\"",
     DI_ERR_UNSUPPORTED,
     "t.json: added token \"\xC4\xA0x\" is in the vocabulary too, where it stands for other bytes; such a "
     "file is not supported"},
    {"\"abc\": 257", "\"abc\": 256", DI_ERR_INVALID,
     "t.json: tokens \"ab\" and \"abc\" have the same id 256" DAMAGED},
    {"\"abc\": 257", "\"abc\": \"257\"", DI_ERR_INVALID,
     "t.json: token \"abc\" has id \"257\", expected 0 to 1048575" DAMAGED},
    {"\"abc\": 257", "\"a\\nc\": 257", DI_ERR_INVALID,
     "t.json: token \"a\\x0ac\" (id 257) is neither in the byte-level alphabet nor an added token" DAMAGED},
    {"\"abc\": 257", "\"\": 257", DI_ERR_INVALID,
     "t.json: token \"\" (id 257) is neither in the byte-level alphabet nor an added token" DAMAGED},
    {"\"abc\": 257", "\"ab\": 257", DI_ERR_INVALID, NULL},
    {"\"abc\": 257", "\"abd\": 257", DI_ERR_INVALID,
     "t.json: merge 1: \"ab\" and \"c\" give a token that is not in the vocabulary" DAMAGED},
    {", \"z\": 122", "", DI_ERR_INVALID,
     "t.json: the vocabulary has no token for byte 0x7A, so not every text has ids" DAMAGED},
    {"\"ab c\"", "\"ax c\"", DI_ERR_INVALID,
     "t.json: merge 1: \"ax\" is not in the vocabulary" DAMAGED},
    {"\"ab c\"", "[\"ab\", \"cx\"]", DI_ERR_INVALID,
     "t.json: merge 1: \"cx\" is not in the vocabulary" DAMAGED},
    {"\"ab c\"", "\"abc\"", DI_ERR_INVALID,
     "t.json: merge 1 is \"abc\", expected \"left right\" or [\"left\", \"right\"]" DAMAGED},
    {"\"ab c\"", "[\"ab\", \"c\", \"d\"]", DI_ERR_INVALID,
     "t.json: merge 1 is a list, expected \"left right\" or [\"left\", \"right\"]" DAMAGED},
    {"\"ab c\"", "[\"ab\", 5]", DI_ERR_INVALID,
     "t.json: merge 1 is a list, expected \"left right\" or [\"left\", \"right\"]" DAMAGED},
    {"\"ab c\"", "\"ab c \"", DI_ERR_INVALID,
     "t.json: merge 1: \"c \" is not in the vocabulary" DAMAGED},
    {"\"ab c\"", "\"a b\"", DI_ERR_INVALID,
     "t.json: merge 1 of \"a\" and \"b\" is there twice" DAMAGED},
    {"\"ab c\"", "\" abc\"", DI_ERR_INVALID,
     "t.json: merge 1: \"\" is not in the vocabulary" DAMAGED},
    {"\"merges\"", "\"merge\"", DI_ERR_UNSUPPORTED,
     "t.json: \"merge\" of model is set to a list, which is not supported" ADVICE},
    {"\"merges\": [", "\"merges\": {}, \"unused\": null, \"x\": [", DI_ERR_UNSUPPORTED,
     "t.json: \"x\" of model is set to a list, which is not supported" ADVICE},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *base = base_text(), *text;
        di_error error = {DI_OK, ""};
        /* The escaped spelling of two steps occurs in one place only. */
        text = temp_replace(base, refused[i].from, refused[i].to);
        assert_int_equal(parse(text, strlen(text), &error), refused[i].status);
        if (refused[i].message) assert_string_equal(error.message, refused[i].message);
        assert_null(strchr(error.message, '\n'));
        free(base);
        free(text);
    }
}

/* All of these mean "not used". */
static void test_what_is_off_is_accepted(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"\"dropout\": null", "\"dropout\": 0.0"},
        {"\"unk_token\": null, ", ""},
        {"\"ignore_merges\": false", "\"continuing_subword_prefix\": \"\", \"fuse_unk\": false"},
        {"\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []}", "\"normalizer\": null"},
        {"\"post_processor\": {\"type\": \"ByteLevel\"},\n", ""},
        {"\"ab c\"", "[\"ab\", \"c\"]"},
        {"\"version\": \"1.0\", ", ""},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char *base = base_text(), *text = temp_replace(base, pairs[i][0], pairs[i][1]);
        di_error error = {DI_OK, ""};
        if (parse(text, strlen(text), &error) != DI_OK) fail_msg("%s", error.message);
        free(base);
        free(text);
    }
}

static void test_added_tokens_may_be_absent(void **state) {
    (void)state;
    char *base = tokenizer_text(NULL, NULL, NULL);
    char *text = temp_replace(base, "\"added_tokens\": [],", "");
    di_error error;
    assert_int_equal(parse(text, strlen(text), &error), DI_OK);
    free(base);
    free(text);
}

/* Every file that breaks off is refused, in one line. */
static void test_truncated_files(void **state) {
    (void)state;
    char *text = base_text();
    size_t size = strlen(text) - 1; /* without the newline at the end */
    for (size_t n = 0; n < size; n++) {
        char *cut = malloc(n ? n : 1); /* exact, so that a sanitizer sees a step too far */
        assert_non_null(cut);
        memcpy(cut, text, n);
        di_error error;
        assert_int_equal(parse(cut, n, &error), DI_ERR_INVALID);
        assert_non_null(strstr(error.message, "t.json: line "));
        free(cut);
    }
    free(text);
}

static void test_a_file_that_is_absent(void **state) {
    (void)state;
    di_tokenizer *t;
    di_error error;
    assert_int_equal(di_tokenizer_load("/nonexistent/tokenizer.json", &t, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "/nonexistent/tokenizer.json"));
    assert_null(t);
    di_tokenizer_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_what_is_off_is_accepted),
        cmocka_unit_test(test_added_tokens_may_be_absent),
        cmocka_unit_test(test_truncated_files),
        cmocka_unit_test(test_a_file_that_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
