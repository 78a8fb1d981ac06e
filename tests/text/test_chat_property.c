/* Random conversations: what the encoder writes for an assistant, both parsers read back, and
 * encoding that again gives the same prompt. Random markup: no cut changes the result, and no byte
 * is lost. The seed is printed; DI_TEST_SEED=N runs another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/chat_support.h"
#include "text/chat.h"

#define EOS "<｜end▁of▁sentence｜>"

static uint64_t seed;

static uint64_t start(uint64_t salt) {
    const char *given = getenv("DI_TEST_SEED");
    seed = given ? strtoull(given, NULL, 10) : 20260;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed * 1000003u + salt;
}

/* ---- Round trip ---- */

static const char *const words[] = {"a", " ",    "\\n",  "<",          "</",      "中",
                                    "😀", "\\\"", "\\\\", "\t",         "\\u0001", "name=",
                                    ">", "DSM",  "｜",   "parameter>", "é"};

/* A JSON string's inside: escapes included, so that it goes into messages as it is. */
static void random_text(uint64_t *r, di_buffer *out, uint32_t longest) {
    for (uint32_t n = chat_random(r, longest + 1); n > 0; n--) {
        const char *word = words[chat_random(r, sizeof words / sizeof *words)];
        di_buffer_puts(out, strcmp(word, "\t") == 0 ? "\\t" : word);
    }
}

static void random_value(uint64_t *r, di_buffer *out, int depth) {
    static const char *const scalars[] = {"0",     "-1",    "12345678901234567890123",
                                          "1.5",   "1e+22", "true",
                                          "false", "null",  "-0.0",
                                          "1e-07"};
    uint32_t kind = chat_random(r, depth > 2 ? 2 : 4);
    if (kind == 0) {
        di_buffer_puts(out, scalars[chat_random(r, sizeof scalars / sizeof *scalars)]);
    } else if (kind == 1) {
        di_buffer_putc(out, '"');
        random_text(r, out, 6);
        di_buffer_putc(out, '"');
    } else {
        di_buffer_putc(out, kind == 2 ? '[' : '{');
        for (uint32_t i = 0, n = chat_random(r, 3); i < n; i++) {
            if (i) di_buffer_putc(out, ',');
            if (kind == 3) di_buffer_printf(out, "\"k%u\" :", i);
            random_value(r, out, depth + 1);
        }
        di_buffer_putc(out, kind == 2 ? ']' : '}');
    }
}

static void random_call(uint64_t *r, di_buffer *out) {
    static const char *const names[] = {"f", "get_weather", "ns::tool", "ünï", "a b"};
    di_buffer_printf(out, "{\"name\":\"%s\",\"arguments\":{", names[chat_random(r, 5)]);
    for (uint32_t i = 0, n = chat_random(r, 4); i < n; i++) {
        di_buffer_printf(out, "%s\"p%u\":", i ? "," : "", i);
        random_value(r, out, 0);
    }
    di_buffer_puts(out, "}}");
}

static void random_assistant(uint64_t *r, bool thinking, di_buffer *out) {
    di_buffer_puts(out, "{\"role\":\"assistant\",\"content\":\"");
    random_text(r, out, 5);
    di_buffer_putc(out, '"');
    if (thinking) {
        di_buffer_puts(out, ",\"reasoning_content\":\"");
        random_text(r, out, 8);
        di_buffer_putc(out, '"');
    }
    uint32_t n = chat_random(r, 3);
    if (n) {
        di_buffer_puts(out, ",\"tool_calls\":[");
        for (uint32_t i = 0; i < n; i++) {
            if (i) di_buffer_putc(out, ',');
            random_call(r, out);
        }
        di_buffer_putc(out, ']');
    }
    di_buffer_putc(out, '}');
}

/* The message that the strict parser gave, as JSON again, arguments as text. */
static void write_message(const di_chat_message *message, di_buffer *out) {
    di_buffer_puts(out, "{\"role\":\"assistant\",\"content\":");
    di_json_write_string(out, message->content, message->content_size);
    di_buffer_puts(out, ",\"reasoning_content\":");
    di_json_write_string(out, message->reasoning, message->reasoning_size);
    di_buffer_puts(out, ",\"tool_calls\":[");
    for (size_t i = 0; i < message->n_calls; i++) {
        const di_chat_call *call = &message->calls[i];
        di_buffer_puts(out, i ? ",{" : "{");
        if (call->name_space) {
            di_buffer_puts(out, "\"namespace\":");
            di_json_write_string(out, call->name_space, strlen(call->name_space));
            di_buffer_putc(out, ',');
        }
        di_buffer_puts(out, "\"function\":{\"name\":");
        di_json_write_string(out, call->name, strlen(call->name));
        di_buffer_puts(out, ",\"arguments\":");
        di_json_write_string(out, call->arguments, strlen(call->arguments));
        di_buffer_puts(out, "}}");
    }
    di_buffer_puts(out, "]}");
}

static char *encode_after_user(const char *assistant, bool thinking) {
    di_buffer messages = DI_BUFFER_EMPTY;
    di_chat_options options = di_chat_options_defaults();
    options.thinking = thinking;
    di_buffer_printf(&messages, "[{\"role\":\"user\",\"content\":\"q\"},%s]", assistant);
    char *prompt = chat_encode_text(messages.data, NULL, &options);
    di_buffer_free(&messages);
    return prompt;
}

/* What the stream gives of a well-formed output: the same, but for the newlines it drops. */
static void compare_stream(const char *output, bool thinking, size_t step,
                           const di_chat_message *message) {
    chat_collected stream;
    assert_true(chat_collect(output, strlen(output), thinking, 0, step, &stream));
    const char *content = message->content;
    size_t size = message->content_size;
    while (size > 0 && *content == '\n') content++, size--;
    while (message->n_calls && size > 0 && content[size - 1] == '\n') size--;
    assert_int_equal(stream.content.size, size);
    assert_memory_equal(chat_buffer_text(&stream.content), content, size);
    size_t thought = message->reasoning_size;
    /* A thought whose end touches nothing: newlines before </think> stay. */
    assert_int_equal(stream.reasoning.size, thought);
    assert_memory_equal(chat_buffer_text(&stream.reasoning), message->reasoning, thought);
    di_buffer calls = DI_BUFFER_EMPTY;
    for (size_t i = 0; i < message->n_calls; i++) {
        const di_chat_call *call = &message->calls[i];
        if (call->name_space) di_buffer_printf(&calls, "%s::", call->name_space);
        di_buffer_printf(&calls, "%s %s\n", call->name, call->arguments);
    }
    assert_string_equal(chat_buffer_text(&stream.calls), chat_buffer_text(&calls));
    assert_false(stream.bad_event);
    di_buffer_free(&calls);
    chat_collected_free(&stream);
}

static void round_trip(void **state) {
    (void)state;
    uint64_t r = start(1);
    for (int i = 0; i < 600; i++) {
        bool thinking = chat_random(&r, 2);
        di_buffer assistant = DI_BUFFER_EMPTY, again = DI_BUFFER_EMPTY;
        random_assistant(&r, thinking, &assistant);
        char *prompt = encode_after_user(assistant.data, thinking);
        const char *mark = thinking ? "<think>" : "</think>";
        const char *output = strstr(prompt, mark) + strlen(mark);

        di_arena arena = DI_ARENA_EMPTY;
        di_chat_message message;
        di_error error = {0};
        di_status status =
            di_chat_parse(output, strlen(output), thinking, &arena, &message, &error);
        if (status != DI_OK)
            fail_msg("seed %llu, case %d: %s\n%s", (unsigned long long)seed, i, error.message,
                     output);
        compare_stream(output, thinking, 0, &message);
        compare_stream(output, thinking, 1 + chat_random(&r, 7), &message);
        write_message(&message, &again);
        char *prompt_again = encode_after_user(again.data, thinking);
        assert_string_equal(prompt_again, prompt);
        free(prompt_again);
        free(prompt);
        di_buffer_free(&assistant);
        di_buffer_free(&again);
        di_arena_free(&arena);
    }
}

/* ---- Random markup ---- */

static const char *const fragments[] = {
    "a",
    "\n",
    "\n\n",
    " ",
    "<",
    "</",
    "中",
    ">",
    "\"",
    "<｜",
    "｜DSML｜",
    "<｜DSML｜",
    "</｜DSML｜",
    "</think>",
    "<think>",
    EOS,
    "<｜DSML｜ calls>\n",
    "</｜DSML｜ calls>",
    "</｜DSML｜tool_calls>",
    "<｜DSML｜ invoke name=\"f\">\n",
    "</｜DSML｜ invoke>\n",
    " invoke",
    " parameter",
    " calls",
    "<｜DSML｜ parameter name=\"k\" string=\"true\">",
    "</｜DSML｜ parameter>",
    "<｜DSML｜ parameter name=\"l\" string=\"false\">",
    "{\"x\": 1}",
    "[1",
    "12",
    "<｜DSML｜ invoke name=\"",
    "<｜DSML｜ parameter name=\"m\" string=\"true\">v</｜DSML｜ parameter>\n",
    "<｜DSML｜ invoke name=\"g\"></｜DSML｜ invoke>",
};

/* Removes every </think>, what the parser may drop, and newlines, so that texts can be compared. */
static void strip(const char *text, size_t size, di_buffer *out) {
    for (size_t i = 0; i < size;) {
        size_t left = size - i;
        if (left >= 8 && memcmp(text + i, "</think>", 8) == 0) {
            i += 8;
        } else {
            if (text[i] != '\n') di_buffer_putc(out, text[i]);
            i++;
        }
    }
}

/* Without a completed call, thought and answer together are the input. */
static void check_nothing_lost(const di_buffer *text, const chat_collected *found) {
    if (found->has_calls) return;
    size_t size = text->size, eos = sizeof EOS - 1;
    if (size >= eos && memcmp(text->data + size - eos, EOS, eos) == 0) size -= eos;
    di_buffer both = DI_BUFFER_EMPTY, in = DI_BUFFER_EMPTY, out = DI_BUFFER_EMPTY;
    di_buffer_append(&both, found->reasoning.data, found->reasoning.size);
    di_buffer_append(&both, found->content.data, found->content.size);
    strip(text->data, size, &in);
    strip(chat_buffer_text(&both), both.size, &out);
    assert_string_equal(chat_buffer_text(&out), chat_buffer_text(&in));
    di_buffer_free(&both);
    di_buffer_free(&in);
    di_buffer_free(&out);
}

static void random_markup(void **state) {
    (void)state;
    uint64_t r = start(2);
    int n_calls = 0, n_broken = 0;
    for (int i = 0; i < 3000; i++) {
        di_buffer text = DI_BUFFER_EMPTY;
        for (uint32_t n = 1 + chat_random(&r, 14); n > 0; n--) {
            di_buffer_puts(&text, fragments[chat_random(&r, sizeof fragments / sizeof *fragments)]);
        }
        bool thinking = chat_random(&r, 2);
        chat_collected whole;
        assert_true(chat_collect(text.data, text.size, thinking, 0, 0, &whole));
        assert_false(whole.bad_event);
        for (int k = 0; k < 4; k++) {
            chat_collected cut;
            size_t first = 1 + chat_random(&r, (uint32_t)text.size);
            size_t step = k == 0 ? 1 : chat_random(&r, 20);
            assert_true(chat_collect(text.data, text.size, thinking, first, step, &cut));
            assert_string_equal(chat_buffer_text(&cut.log), chat_buffer_text(&whole.log));
            chat_collected_free(&cut);
        }
        check_nothing_lost(&text, &whole);
        n_calls += whole.has_calls;
        n_broken += strstr(chat_buffer_text(&whole.log), "X0") != NULL;
        chat_collected_free(&whole);
        di_buffer_free(&text);
    }
    /* The generator reaches what it is for. */
    print_message("%d outputs with calls, %d with broken ones\n", n_calls, n_broken);
    assert_true(n_calls > 100 && n_broken > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(random_markup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
