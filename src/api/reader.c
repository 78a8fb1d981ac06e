/* Tokens to the parts of an answer: detokeniser, chat parser, stop texts, one behind the other. */
#include <stdlib.h>
#include <string.h>

#include "api/stop_match.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct di_reader {
    const di_tokenizer *tokenizer;
    di_part_fn on_part;
    void *user;
    bool raw, failed; /* failed: out of memory in a callback */
    di_detokenizer detokenizer;
    di_chat_parser *parser; /* NULL when raw */
    di_stop_match stops;
    di_buffer text, answer; /* scratch: of one token; what goes out of the stop matcher */
    /* Where in the text each token begins, to tell which of them a stop text cuts off. Text is what
     * the detokeniser gives; a token that ends a character begins where that does. */
    uint64_t *begins;
    size_t n_tokens, n_kept, n_certain, capacity;
    uint64_t n_text;
};

di_reader_options di_reader_options_defaults(void) {
    return (di_reader_options){.raw = false,
                               .thinking = true,
                               .stops = NULL,
                               .n_stops = 0,
                               .on_part = NULL,
                               .user = NULL};
}

static void give(di_reader *reader, di_part part, int index, const char *text, size_t size) {
    if (reader->on_part) reader->on_part(reader->user, part, index, text, size);
}

static void give_answer(di_reader *reader) {
    if (reader->answer.failed) reader->failed = true;
    if (reader->answer.size > 0) {
        give(reader, DI_PART_ANSWER, 0, reader->answer.data, reader->answer.size);
    }
    di_buffer_clear(&reader->answer);
}

static void take_answer(di_reader *reader, const char *text, size_t size) {
    di_stop_match_push(&reader->stops, text, size, &reader->answer);
    give_answer(reader);
}

static void on_event(void *user, const di_chat_event *event) {
    static const di_part parts[] = {
        [DI_CHAT_REASONING] = DI_PART_THOUGHT,    [DI_CHAT_CONTENT] = DI_PART_ANSWER,
        [DI_CHAT_CALL_BEGIN] = DI_PART_CALL_NAME, [DI_CHAT_CALL_ARGUMENTS] = DI_PART_CALL_ARGUMENTS,
        [DI_CHAT_CALL_END] = DI_PART_CALL_END,    [DI_CHAT_CALL_BROKEN] = DI_PART_CALL_BROKEN,
    };
    di_reader *reader = user;
    if (reader->stops.stopped) {
        if (event->type == DI_CHAT_CONTENT) reader->stops.behind += event->size;
        return;
    }
    if (event->type == DI_CHAT_CONTENT) {
        take_answer(reader, event->text, event->size);
        return;
    }
    /* A stop text is looked for in one run of answer text only. */
    di_stop_match_flush(&reader->stops, &reader->answer);
    give_answer(reader);
    give(reader, parts[event->type], event->index, event->text, event->size);
}

di_status di_reader_create(const di_tokenizer *tokenizer, const di_reader_options *options,
                           di_reader **out, di_error *error) {
    di_reader *reader = calloc(1, sizeof *reader);
    if (!reader) return di_fail(error, DI_ERR_MEMORY, "out of memory: reader");
    reader->tokenizer = tokenizer;
    reader->on_part = options->on_part;
    reader->user = options->user;
    reader->raw = options->raw;
    di_status status = di_stop_match_init(&reader->stops, options->stops, options->n_stops, error);
    if (status == DI_OK && !options->raw) {
        reader->parser = di_chat_parser_create(options->thinking, on_event, reader);
        if (!reader->parser) status = di_fail(error, DI_ERR_MEMORY, "out of memory: reader");
    }
    if (status != DI_OK) {
        di_reader_destroy(reader);
        return status;
    }
    *out = reader;
    return DI_OK;
}

void di_reader_destroy(di_reader *reader) {
    if (!reader) return;
    di_chat_parser_destroy(reader->parser);
    di_stop_match_deinit(&reader->stops);
    di_buffer_free(&reader->text);
    di_buffer_free(&reader->answer);
    free(reader->begins);
    free(reader);
}

/* What the detokeniser gave goes on to the parser, or out. */
static di_status pass_on(di_reader *reader, di_error *error) {
    di_status status = DI_OK;
    reader->n_text += reader->text.size;
    if (reader->text.failed) return di_fail(error, DI_ERR_MEMORY, "out of memory: reader");
    if (reader->text.size > 0) {
        if (reader->raw) {
            take_answer(reader, reader->text.data, reader->text.size);
        } else {
            status =
                di_chat_parser_push(reader->parser, reader->text.data, reader->text.size, error);
        }
    }
    di_buffer_clear(&reader->text);
    if (status == DI_OK && reader->failed) {
        status = di_fail(error, DI_ERR_MEMORY, "out of memory: reader");
    }
    return status;
}

static di_status add_token(di_reader *reader, di_error *error) {
    if (reader->n_tokens == reader->capacity) {
        size_t capacity = reader->capacity ? 2 * reader->capacity : 256;
        uint64_t *more = realloc(reader->begins, capacity * sizeof *more);
        if (!more) return di_fail(error, DI_ERR_MEMORY, "out of memory: reader");
        reader->begins = more;
        reader->capacity = capacity;
    }
    reader->begins[reader->n_tokens++] = reader->n_text;
    reader->n_kept = reader->n_tokens;
    return DI_OK;
}

/* What the stop text cut off is what was taken in behind its beginning, and what had not even come
 * to the matcher. */
static void cut_tokens(di_reader *reader) {
    if (!reader->stops.stopped) return;
    uint64_t behind = reader->stops.behind;
    if (reader->parser) behind += di_chat_parser_held(reader->parser);
    uint64_t cut = reader->n_text > behind ? reader->n_text - behind : 0;
    while (reader->n_kept > 0 && reader->begins[reader->n_kept - 1] >= cut) reader->n_kept--;
}

di_status di_reader_push(di_reader *reader, int32_t token, bool *stopped, di_error *error) {
    size_t size;
    const char *bytes = di_tokenizer_bytes(reader->tokenizer, token, &size);
    if (!bytes) return di_fail(error, DI_ERR_INVALID, "there is no token with the id %d", token);
    if (!reader->stops.stopped) {
        DI_TRY(add_token(reader, error));
        di_detokenizer_push(&reader->detokenizer, bytes, size, &reader->text);
        DI_TRY(pass_on(reader, error));
        cut_tokens(reader);
    }
    *stopped = reader->stops.stopped;
    return DI_OK;
}

di_status di_reader_finish(di_reader *reader, di_error *error) {
    di_detokenizer_finish(&reader->detokenizer, &reader->text);
    if (!reader->stops.stopped) {
        DI_TRY(pass_on(reader, error));
        if (reader->parser) DI_TRY(di_chat_parser_finish(reader->parser, error));
        cut_tokens(reader);
    }
    di_stop_match_flush(&reader->stops, &reader->answer);
    give_answer(reader);
    return reader->failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: reader") : DI_OK;
}

size_t di_reader_kept(const di_reader *reader) { return reader->n_kept; }

/* Those that begin before all that is held back: a stop text cannot begin before it any more. */
size_t di_reader_certain(di_reader *reader) {
    uint64_t held = reader->stops.held.size;
    if (reader->stops.n_stops == 0) return reader->n_kept;
    if (reader->parser) held += di_chat_parser_held(reader->parser);
    uint64_t cut = reader->n_text > held ? reader->n_text - held : 0;
    while (reader->n_certain < reader->n_kept && reader->begins[reader->n_certain] < cut) {
        reader->n_certain++;
    }
    return reader->n_certain;
}

int di_reader_stop(const di_reader *reader) {
    return reader->stops.stopped ? reader->stops.which : -1;
}

bool di_reader_has_calls(const di_reader *reader) {
    return reader->parser && di_chat_parser_has_calls(reader->parser);
}
