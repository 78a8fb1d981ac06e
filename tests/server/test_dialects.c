/* What an answer is must not depend on how it came: every answer here is spelled in tokens in many ways
 * (as the tokenizer has it, a byte at a time, cut in two at every byte, at random), handed on in steps
 * of several tokens, as accepted drafts come, and read by the client of every dialect, streamed and
 * whole. All must come to the same.
 *
 * Between the tokens and the bytes is everything that the server does with an answer: job.c, whose
 * door to the engine is replaced here, and the writers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deepinfer.h"

static di_status take_request(di_engine *engine, const di_request *request, uint64_t *id,
                              di_error *error);
#define di_engine_submit take_request
#include "server/job.c"
#undef di_engine_submit

#include "server/writer.h"
#include "support/answer_fold.h"
#include "support/chat_support.h"
#include "support/dsml_text.h"

#define OPEN "\n\n<" DSML " calls>\n"
#define CLOSE "\n</" DSML " calls>"

typedef struct answer_case {
    const char *said;                /* what the model says, markers and all */
    const char *want;                /* T:thought|A:text|C:calls|F:finish */
    bool thinking, one_call, length; /* length: it is cut off, and does not end by itself */
    bool summary;                    /* thoughts are told as summaries (responses) */
    const char *stops[4];
    const char *rest; /* with stops: where in `said` the text begins that is cut off */
} answer_case;

/* What is said; then what is wanted, and what else there is to say. */
#define CASE(s, ...) ((answer_case){.said = (s), .want = __VA_ARGS__})

static di_tokenizer *tokenizer;
static di_request taken; /* what job.c gave to the engine */

static di_status take_request(di_engine *engine, const di_request *request, uint64_t *id,
                              di_error *error) {
    (void)engine;
    (void)error;
    taken = *request;
    *id = 1;
    return DI_OK;
}

/* ---- Tokens ---- */

static void append_ids(const char *text, size_t size, bool added, di_ids *out) {
    di_error error;
    assert_int_equal(di_tokenizer_encode(tokenizer, text, size, added, out, &error), DI_OK);
}

/* The token of one byte. */
static int32_t byte_token(unsigned char byte) {
    static int32_t tokens[256];
    if (tokens['a'] == 0) {
        for (int32_t id = di_tokenizer_size(tokenizer) - 1; id >= 0; id--) {
            size_t size;
            const char *bytes = di_tokenizer_bytes(tokenizer, id, &size);
            if (bytes && size == 1) tokens[(unsigned char)bytes[0]] = id;
        }
    }
    return tokens[byte];
}

/* At each place any of the tokens that fit there. */
static void append_random(const char *text, size_t size, uint64_t *random, di_ids *out) {
    di_error error;
    while (size > 0) {
        int32_t fitting[256];
        uint32_t n = 0;
        for (int32_t id = 0; id < di_tokenizer_size(tokenizer) && n < 256; id++) {
            size_t length;
            const char *bytes = di_tokenizer_bytes(tokenizer, id, &length);
            if (!bytes || length == 0 || length > size || bytes[0] != text[0]) continue;
            if (memcmp(bytes, text, length) == 0) fitting[n++] = id;
        }
        int32_t id = fitting[chat_random(random, n)];
        size_t length;
        (void)di_tokenizer_bytes(tokenizer, id, &length);
        assert_int_equal(di_ids_append(out, &id, 1, &error), DI_OK);
        text += length;
        size -= length;
    }
}

enum { RANDOM_SPLITS = 12 };

/* Way number `way` to spell a text; false when there are no more. */
static bool spell(const char *text, size_t way, di_ids *out) {
    size_t size = strlen(text);
    di_error error;
    out->size = 0;
    if (way == 0) {
        append_ids(text, size, true, out);
    } else if (way == 1) {
        for (size_t i = 0; i < size; i++) {
            int32_t id = byte_token((unsigned char)text[i]);
            assert_int_equal(di_ids_append(out, &id, 1, &error), DI_OK);
        }
    } else if (way < 2 + RANDOM_SPLITS) {
        uint64_t random = way;
        append_random(text, size, &random, out);
    } else {
        size_t cut = way - 1 - RANDOM_SPLITS;
        if (cut >= size) return false;
        append_ids(text, cut, true, out);
        append_ids(text + cut, size - cut, true, out);
    }
    return true;
}

/* ---- A job without an engine ---- */

static di_job *make_job(const answer_case *c, di_dialect dialect, bool streamed, int n_choices) {
    di_gen_request r = {.dialect = dialect,
                        .model = "demo",
                        .model_size = 4,
                        .thinking = c->thinking,
                        .one_call = c->one_call,
                        .summary = c->summary,
                        .n_choices = n_choices,
                        .logprobs = dialect == DI_DIALECT_CHAT || dialect == DI_DIALECT_COMPLETION,
                        .stream = streamed,
                        .include_usage = true,
                        .has_tools = true,
                        .given = "\"instructions\":null",
                        .previous = ""};
    const di_request_env env = {.tokenizer = tokenizer, .vocab_size = di_tokenizer_size(tokenizer)};
    di_error error;
    const int32_t prompt = 3;
    assert_int_equal(di_gen_request_prompts(&r, 1, &error), DI_OK);
    assert_int_equal(di_ids_append(&r.prompts[0], &prompt, 1, &error), DI_OK);
    r.stops = di_arena_calloc(&r.arena, 4, sizeof *r.stops);
    while (r.n_stops < 4 && c->stops[r.n_stops]) {
        r.stops[r.n_stops] = c->stops[r.n_stops];
        r.n_stops++;
    }
    int32_t eos = di_tokenizer_added_id(tokenizer, "<｜end▁of▁sentence｜>");
    di_job *job = di_job_create(&r, &env, eos, &error);
    assert_non_null(job);
    return job;
}

typedef struct play {
    di_job *job;
    di_writer writer;
    di_buffer out;
    di_engine_metrics metrics;
    int64_t served;
} play;

static void begin_play(play *p, const answer_case *c, di_dialect dialect, bool streamed,
                       int n_choices) {
    di_error error;
    memset(p, 0, sizeof *p);
    p->job = make_job(c, dialect, streamed, n_choices);
    p->job->metrics = &p->metrics;
    p->job->n_served = &p->served;
    assert_int_equal(di_writer_init(&p->writer, p->job, tokenizer, "demo", &error), DI_OK);
    if (streamed) di_writer_begin(&p->writer, &p->out);
    assert_int_equal(di_job_feed(p->job, NULL, &error), DI_OK);
}

/* The end of a step: its events are written. */
static void end_step(play *p, bool done) {
    di_writer_events(&p->writer, &p->job->pending, done, &p->out);
    di_buffer_clear(&p->job->pending);
}

/* False: the engine is to give no more. */
static bool give_token(int32_t id, int32_t choice) {
    di_request_token t = {.choice = choice, .token = {id, -1.0F}};
    return taken.on_token(taken.user, &t);
}

static void give_end(di_end end, int32_t choice) {
    di_request_end e = {.choice = choice, .end = end, .n_prompt = 1};
    taken.on_end(taken.user, &e);
}

static void end_play(play *p, answer_fold *fold, int choice) {
    di_dialect dialect = p->job->request.dialect;
    assert_false(p->writer.failed);
    assert_false(p->out.failed);
    if (p->job->request.stream) {
        answer_fold_stream(dialect, choice, p->out.data, p->out.size, fold);
    } else {
        di_buffer_clear(&p->out);
        di_writer_whole(&p->writer, &p->out);
        answer_fold_whole(dialect, choice, p->out.data, p->out.size, fold);
    }
}

static void free_play(play *p) {
    di_writer_deinit(&p->writer);
    di_job_destroy(p->job);
    di_buffer_free(&p->out);
}

/* `per_step` tokens a step, as an accepted draft block comes; 0: all in one. */
static void play_case(const answer_case *c, const di_ids *ids, di_dialect dialect, bool streamed,
                      size_t per_step, answer_fold *fold) {
    play p;
    bool more = true;
    begin_play(&p, c, dialect, streamed, 1);
    for (size_t i = 0; i < ids->size && more; i++) {
        more = give_token(ids->data[i], 0);
        if (per_step > 0 && (i + 1) % per_step == 0) end_step(&p, false);
    }
    if (more && !c->length) (void)give_token(p.job->eos_token, 0);
    give_end(more && c->length ? DI_END_LENGTH : DI_END_STOP, 0);
    end_step(&p, true);
    end_play(&p, fold, 0);
    free_play(&p);
}

/* ---- What must hold ---- */

/* Tokens that begin before the text that is cut off. */
static int64_t tokens_before(const answer_case *c, const di_ids *ids) {
    size_t cut = c->rest ? (size_t)(strstr(c->said, c->rest) - c->said) : strlen(c->said), at = 0;
    int64_t n = 0;
    for (size_t i = 0; i < ids->size && at < cut; i++, n++) {
        size_t size;
        (void)di_tokenizer_bytes(tokenizer, ids->data[i], &size);
        at += size;
    }
    return n;
}

static void check_tokens(const answer_case *c, const di_ids *ids, const answer_fold *fold) {
    if (c->one_call) return; /* what comes behind the call is not asked for */
    assert_int_equal(fold->n_answer, tokens_before(c, ids));
    if (fold->dialect == DI_DIALECT_CHAT || fold->dialect == DI_DIALECT_COMPLETION) {
        assert_int_equal(fold->n_tokens, fold->n_answer);
    }
    if (fold->dialect != DI_DIALECT_CHAT) return;
    assert_true(fold->spelled.size <= strlen(c->said));
    if (fold->spelled.size > 0) {
        assert_memory_equal(fold->spelled.data, c->said, fold->spelled.size);
    }
}

static void check_fold(const answer_case *c, const answer_fold *fold, const char *how) {
    di_buffer got = DI_BUFFER_EMPTY, want = DI_BUFFER_EMPTY;
    answer_fold_write(fold, &got);
    di_buffer_puts(&want, c->want);
    /* Responses have no word of their own for an answer that calls. */
    char *calls = strstr(want.data, "|F:calls");
    if (calls && fold->dialect == DI_DIALECT_RESPONSES) {
        want.size = (size_t)(calls - want.data);
        want.data[want.size] = '\0';
        di_buffer_puts(&want, "|F:stop");
    }
    if (strcmp(got.data, want.data) != 0) print_error("%s\n", how);
    assert_string_equal(got.data, want.data);
    if (fold->dialect == DI_DIALECT_MESSAGES) {
        assert_int_equal(fold->stop[0] != '\0', c->rest != NULL);
    }
    di_buffer_free(&got);
    di_buffer_free(&want);
}

static const di_dialect dialects[] = {DI_DIALECT_CHAT, DI_DIALECT_RESPONSES, DI_DIALECT_MESSAGES};
static const char *const dialect_names[] = {"chat", "completion", "responses", "messages"};

static void check_way(const answer_case *c, const di_ids *ids, di_dialect dialect, size_t way) {
    static const size_t steps[] = {1, 2, 3, 5, 0};
    for (int streamed = 0; streamed < 2; streamed++) {
        /* Where nothing is streamed, only the end of a step can make a difference. */
        for (int s = streamed ? 0 : 4; s < 5; s++) {
            answer_fold fold;
            char how[200];
            if (way > 1 && s > 0 && s < 4) continue;
            snprintf(how, sizeof how, "%s, %s, way %zu, %zu a step", dialect_names[dialect],
                     streamed ? "streamed" : "whole", way, steps[s]);
            play_case(c, ids, dialect, streamed, steps[s], &fold);
            check_fold(c, &fold, how);
            check_tokens(c, ids, &fold);
            answer_fold_free(&fold);
        }
    }
}

static void check(answer_case c) {
    di_ids ids = {0};
    for (size_t way = 0; spell(c.said, way, &ids); way++) {
        c.summary = way % 2 == 1;
        for (int d = 0; d < 3; d++) check_way(&c, &ids, dialects[d], way);
    }
    di_ids_free(&ids);
}

/* The same without thought and calls, also as a completion. */
static void check_text(answer_case c) {
    di_ids ids = {0};
    check(c);
    for (size_t way = 0; spell(c.said, way, &ids); way++) {
        check_way(&c, &ids, DI_DIALECT_COMPLETION, way);
    }
    di_ids_free(&ids);
}

/* ---- The kinds ---- */

static void thoughts_and_answers(void **state) {
    (void)state;
    check(CASE("Add them.\n2 + 3</think>5", "T:Add them.\n2 + 3|A:5|C:|F:stop", .thinking = true));
    check(CASE("why</think>\n\n</think>\nso\n", "T:why|A:so\n|C:|F:stop", .thinking = true));
    check(CASE("no end to it", "T:no end to it|A:|C:|F:length", .thinking = true, .length = true));
    check(CASE("</think>", "T:|A:|C:|F:stop", .thinking = true));
    check(CASE("", "T:|A:|C:|F:stop"));
}

static void what_looks_like_a_marker(void **state) {
    (void)state;
    check_text(CASE("a < b <b> <<", "T:|A:a < b <b> <<|C:|F:stop"));
    check_text(CASE("x<", "T:|A:x<|C:|F:stop"));
    check_text(CASE("<", "T:|A:<|C:|F:length", .length = true));
    check(CASE("1 < 2 </thin</think>3 <" DSML " x", "T:1 < 2 </thin|A:3 <" DSML " x|C:|F:stop",
               .thinking = true));
    check(CASE("so <" DSML " calls> it is called</think>yes",
               "T:so <" DSML " calls> it is called|A:yes|C:|F:stop", .thinking = true));
}

static void calls(void **state) {
    (void)state;
    check(CASE("Look.</think>Yes." OPEN
                   INVOKE("get", STRING("at", "Rome") "\n" OTHER("n", "3")) "\n" INVOKE("put", "")
                       CLOSE,
               "T:Look.|A:Yes.|C:get {\"at\": \"Rome\", \"n\": 3}\nput {}\n|F:calls",
               .thinking = true));
    /* Closing tags in an argument, a lone "<" and what else a value may hold. */
    check(CASE(OPEN INVOKE("f", STRING("k", "a < b</think>\n</ parameter></" DSML " x>\"\\")) CLOSE,
               "T:|A:|C:f {\"k\": \"a < b</think>\\n</ parameter></" DSML
               " x>\\\"\\\\\"}\n|F:calls"));
    check(CASE(OPEN INVOKE("f", OTHER("k", "{\"a\": [1, {\"b\": null}]}")) CLOSE,
               "T:|A:|C:f {\"k\": {\"a\": [1, {\"b\": null}]}}\n|F:calls"));
    check(CASE(OPEN INVOKE("f", "") "\n" INVOKE("g", "") CLOSE, "T:|A:|C:f {}\n|F:calls",
               .one_call = true));
}

static void calls_in_a_thought(void **state) {
    (void)state;
    check(CASE("I need it." OPEN INVOKE("f", OTHER("n", "1")) CLOSE,
               "T:I need it.|A:|C:f {\"n\": 1}\n|F:calls", .thinking = true));
    check(CASE("I need it." OPEN INVOKE("f", "") CLOSE "\n</think>\n\ndone",
               "T:I need it.|A:done|C:f {}\n|F:calls", .thinking = true));
    check(CASE(OPEN INVOKE("f", "") CLOSE, "T:|A:|C:f {}\n|F:calls", .thinking = true));
}

/* What was no call, or was cut off, is text, and all of it. */
static void broken_calls(void **state) {
    (void)state;
    check(CASE("Yes" OPEN "<" DSML " invoke name=\"f\">\n<" DSML " parame",
               "T:|A:Yes" OPEN "<" DSML " invoke name=\"f\">\n<" DSML " parame|C:|F:length",
               .length = true));
    check(CASE("hm" OPEN "nothing of the kind" CLOSE " so",
               "T:|A:hm" OPEN "nothing of the kind" CLOSE " so|C:|F:stop"));
}

static void characters(void **state) {
    (void)state;
    check_text(CASE("汉字和日本語 한국어", "T:|A:汉字和日本語 한국어|C:|F:stop"));
    check_text(CASE("🦊🐉 🏳️‍🌈 é ñ ß Ω≈",
                    "T:|A:🦊🐉 🏳️‍🌈 é ñ ß Ω≈|C:|F:stop"));
    check(CASE("想一想🤔</think>好的" OPEN INVOKE("查", STRING("城市", "北京🦊")) CLOSE,
               "T:想一想🤔|A:好的|C:查 {\"城市\": \"北京🦊\"}\n|F:calls",
               .thinking = true));
}

/* Bytes that are no character become U+FFFD, and nothing around them is harmed; one that is only begun
 * does at the very end. */
static void bytes_that_are_no_characters(void **state) {
    (void)state;
    check_text(CASE("a\xFF"
                    "b",
                    "T:|A:a\xEF\xBF\xBD"
                    "b|C:|F:stop"));
    check_text(CASE("\xE6\xB1\x89\x80 c", "T:|A:汉\xEF\xBF\xBD c|C:|F:stop"));
    check_text(CASE("fox \xF0", "T:|A:fox \xEF\xBF\xBD|C:|F:stop"));
    check_text(CASE("fox \xF0\x9F\xA6", "T:|A:fox \xEF\xBF\xBD|C:|F:length", .length = true));
    check(CASE("t \xE6</think>x\xC3", "T:t \xEF\xBF\xBD|A:x\xEF\xBF\xBD|C:|F:stop",
               .thinking = true));
    check(CASE(OPEN INVOKE("f", STRING("k", "v\xE6\xB1")) CLOSE,
               "T:|A:|C:f {\"k\": \"v\xEF\xBF\xBD\"}\n|F:calls"));
}

static void stop_texts(void **state) {
    (void)state;
    check_text(CASE("12 + 13 = 25", "T:|A:12 + |C:|F:stop", .stops = {"13 ="}, .rest = "13 = 25"));
    check_text(CASE("12 + 13 = 25", "T:|A:|C:|F:stop", .stops = {"12"}, .rest = "12 +"));
    check_text(
        CASE("12 + 13 = 25", "T:|A:12 + 13 = |C:|F:stop", .stops = {"never", "25"}, .rest = "25"));
    check_text(CASE("aabaabaac", "T:|A:aab|C:|F:stop", .stops = {"aabaac"}, .rest = "aabaac"));
    /* The first to be complete ends it; one that is only begun comes out at the end. */
    check_text(CASE("one two three", "T:|A:one |C:|F:stop", .stops = {"two three", "two"},
                    .rest = "two three"));
    check_text(CASE("one two thr", "T:|A:one two thr|C:|F:stop", .stops = {"two three"}));
    check_text(
        CASE("说：好🦊的", "T:|A:说：好|C:|F:stop", .stops = {"🦊的"}, .rest = "🦊的"));
    check_text(CASE("a\n\nb", "T:|A:a|C:|F:stop", .stops = {"\n\n"}, .rest = "\n\nb"));
    check_text(CASE("a <b> c", "T:|A:a |C:|F:stop", .stops = {"<b>"}, .rest = "<b> c"));
    /* Not in the thought and not in calls; what is held back comes in front of a call. */
    check(CASE("EN" OPEN INVOKE("f", "") CLOSE "D", "T:|A:END|C:f {}\n|F:calls", .stops = {"END"}));
    check(CASE("a wise crow</think>Yes, a wise crow.", "T:a wise crow|A:Yes, a |C:|F:stop",
               .thinking = true, .stops = {"wise crow"}, .rest = "wise crow."));
    check(CASE(OPEN INVOKE("f", STRING("k", "END")) CLOSE, "T:|A:|C:f {\"k\": \"END\"}\n|F:calls",
               .stops = {"END"}));
    check(CASE("so</think>END it", "T:so|A:|C:|F:stop", .thinking = true, .stops = {"END"},
               .rest = "END it"));
}

/* Two answers whose tokens come by turns. */
static void several_answers(void **state) {
    (void)state;
    const answer_case cases[] = {CASE("汉</think>🦊 one" OPEN INVOKE("f", "") CLOSE,
                                      "T:汉|A:🦊 one|C:f {}\n|F:calls", .thinking = true),
                                 CASE("two < 3</think>é", "T:two < 3|A:é|C:|F:stop",
                                      .thinking = true)};
    for (int streamed = 0; streamed < 2; streamed++) {
        play p;
        di_ids ids[2] = {{0}, {0}};
        begin_play(&p, &cases[0], DI_DIALECT_CHAT, streamed, 2);
        for (int k = 0; k < 2; k++) spell(cases[k].said, 1, &ids[k]);
        for (size_t i = 0; i < ids[0].size || i < ids[1].size; i++) {
            for (int k = 0; k < 2; k++) {
                if (i < ids[k].size) assert_true(give_token(ids[k].data[i], k));
                if (i + 1 == ids[k].size) give_end(DI_END_STOP, k);
            }
            if (i % 3 == 0) end_step(&p, false);
        }
        end_step(&p, true);
        for (int k = 0; k < 2; k++) {
            answer_fold fold;
            end_play(&p, &fold, k);
            check_fold(&cases[k], &fold, "one of two");
            assert_int_equal(fold.n_tokens, ids[k].size);
            assert_int_equal(fold.n_answer, ids[0].size + ids[1].size);
            answer_fold_free(&fold);
        }
        for (int k = 0; k < 2; k++) di_ids_free(&ids[k]);
        free_play(&p);
    }
}

static int open_tokenizer(void **state) {
    di_error error;
    (void)state;
    return di_tokenizer_open(DI_SOURCE_DIR "/models/demo", &tokenizer, &error) == DI_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    di_tokenizer_destroy(tokenizer);
    return 0;
}

/* ---- What goes wrong ---- */

static void fails(play *p, const char *why) {
    end_step(p, true);
    assert_true(p->writer.failed);
    assert_non_null(strstr(p->writer.failure, why));
    if (p->job->request.stream) assert_non_null(strstr(p->out.data, why));
    free_play(p);
}

/* What was kept of a stream for its turn alone is let go, and it ends as others do. */
static void goes_on(play *p) {
    put_event(p->job, DI_EVENT_CALL, p->job->choices, "g\0{}", 4);
    put_event(p->job, DI_EVENT_IDS, p->job->choices, "abcd", 4);
    give_end(DI_END_STOP, 0);
    end_step(p, true);
    assert_false(p->writer.failed);
    assert_true(p->writer.let_go);
    assert_int_equal(p->writer.kept + p->writer.choices[0].text.size, 0);
    assert_int_equal(p->writer.choices[0].ids.size, 0); /* so there is no turn to keep */
    free_play(p);
}

static bool is_whole(const play *p) {
    return !p->job->request.stream || p->job->request.dialect == DI_DIALECT_RESPONSES;
}

/* Without memory for the event of an end the answer has none, and is not taken for one that stopped. */
static void lost_ends(void **state) {
    (void)state;
    const answer_case c = CASE("a", "");
    for (int d = 0; d < 8; d++) {
        play p;
        begin_play(&p, &c, (di_dialect)(d / 2), d % 2 == 1, 1);
        (void)give_token(byte_token('a'), 0);
        end_step(&p, false);
        p.job->pending.failed = true;
        give_end(DI_END_STOP, 0);
        assert_true(p.job->failed);
        assert_int_equal(p.job->pending.size, 0);
        fails(&p, "out of memory");
    }
}

/* A failure of the job's own is told in its words. */
static void told_failures(void **state) {
    (void)state;
    const answer_case c = CASE("a", "");
    for (int d = 0; d < 8; d++) {
        play p;
        begin_play(&p, &c, (di_dialect)(d / 2), d % 2 == 1, 2);
        (void)give_token(byte_token('a'), 1);
        p.job->failed = true;
        (void)di_fail(&p.job->failure, DI_ERR_INVALID, "the grammar and its token disagree");
        give_end(DI_END_STOP, 0);
        give_end(DI_END_STOP, 1);
        fails(&p, "the grammar and its token disagree");
    }
}

/* What is kept until the end is bounded. */
static void large_answers(void **state) {
    (void)state;
    enum { PIECE = 1 << 20, MOST = 32 };
    const answer_case c = CASE("a", "");
    char *piece = malloc(PIECE);
    assert_non_null(piece);
    memset(piece, 'a', PIECE);
    for (int d = 0; d < 8; d++) {
        play p;
        begin_play(&p, &c, (di_dialect)(d / 2), d % 2 == 1, 1);
        for (int i = 0; i <= MOST; i++) {
            assert_false(p.writer.failed);
            put_event(p.job, i % 2 ? DI_EVENT_TEXT : DI_EVENT_THOUGHT, p.job->choices, piece,
                      PIECE);
            end_step(&p, false);
            if (p.out.size > PIECE) di_buffer_clear(&p.out);
        }
        if (!is_whole(&p)) {
            goes_on(&p);
            continue;
        }
        give_end(DI_END_CANCELLED, 0);
        fails(&p, "too large");
    }
    free(piece);
}

/* Calls are kept like texts. A completion has none. */
static void large_calls(void **state) {
    (void)state;
    enum { PIECE = 1 << 20, MOST = 31 };
    const answer_case c = CASE("a", "");
    di_buffer one = DI_BUFFER_EMPTY;
    di_buffer_append(&one, "f\0", 2);
    di_buffer_printf(&one, "{\"a\": \"%0*d\"}", PIECE, 0);
    for (int d = 0; d < 8; d++) {
        play p;
        if (d / 2 == DI_DIALECT_COMPLETION) continue;
        begin_play(&p, &c, (di_dialect)(d / 2), d % 2 == 1, 1);
        for (int i = 0; i <= MOST; i++) {
            assert_false(p.writer.failed);
            put_event(p.job, DI_EVENT_CALL, p.job->choices, one.data, one.size);
            end_step(&p, false);
            if (p.out.size > PIECE) di_buffer_clear(&p.out);
        }
        if (!is_whole(&p)) {
            assert_int_equal(p.writer.choices[0].n_calls, MOST + 1); /* ids count on */
            goes_on(&p);
            continue;
        }
        give_end(DI_END_CANCELLED, 0);
        fails(&p, d % 2 == 1 ? "too large to be kept" : "ask for a stream");
    }
    di_buffer_free(&one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_and_answers),
        cmocka_unit_test(what_looks_like_a_marker),
        cmocka_unit_test(calls),
        cmocka_unit_test(calls_in_a_thought),
        cmocka_unit_test(broken_calls),
        cmocka_unit_test(characters),
        cmocka_unit_test(bytes_that_are_no_characters),
        cmocka_unit_test(stop_texts),
        cmocka_unit_test(several_answers),
        cmocka_unit_test(lost_ends),
        cmocka_unit_test(told_failures),
        cmocka_unit_test(large_answers),
        cmocka_unit_test(large_calls),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
