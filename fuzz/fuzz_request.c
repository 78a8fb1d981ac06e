/* Bodies of HTTP requests: any bytes, through every reader of the server. What is read is in range and
 * can be submitted; what is refused says why. The first byte chooses the reader. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo_engine.h"
#include "server/grammars.h"
#include "server/read_internal.h"
#include "server/turns.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const di_read_fn readers[] = {read_chat,        read_completion, read_responses,
                                     read_messages,    read_tokenize,   read_detokenize,
                                     read_count_tokens};
enum { N_READERS = sizeof readers / sizeof *readers };

static di_engine *engine;
static di_server server;

/* One that bodies can go on from. */
static void keep_response(void) {
    di_buffer given = DI_BUFFER_EMPTY, answer = DI_BUFFER_EMPTY;
    di_buffer_puts(&given, "{\"role\":\"user\",\"content\":\"Hi\"}");
    di_buffer_puts(&answer,
                   "{\"id\":\"rs_a_0\",\"type\":\"reasoning\",\"summary\":[{\"text\":\"Hm\"}]},"
                   "{\"id\":\"fc_a_0\",\"type\":\"function_call\",\"call_id\":\"call_a_0_0\","
                   "\"name\":\"f\",\"arguments\":\"{}\"}");
    server.stored = di_stored_create(1 << 20);
    REQUIRE(server.stored && !given.failed && !answer.failed);
    di_stored_put(server.stored, &(di_stored_response){.id = "resp_a",
                                                       .owner = "",
                                                       .previous = "",
                                                       .given = &given,
                                                       .answer = &answer,
                                                       .body = &answer});
    di_buffer_free(&given);
    di_buffer_free(&answer);
}

/* A turn that called a tool, which a conversation may come back with. */
static void keep_turn(void) {
    static const int32_t ids[] = {300, 301, 302};
    const di_turn_call call = {"f", "{\"a\": 1}", 1, 8};
    server.env.turns = di_turns_create(1 << 20);
    REQUIRE(server.env.turns);
    di_turns_put(server.env.turns, &(di_turn){.key = "a_0",
                                              .ids = ids,
                                              .n_ids = 3,
                                              .thought = "t",
                                              .thought_size = 1,
                                              .text = "b",
                                              .text_size = 1,
                                              .calls = &call,
                                              .n_calls = 1});
}

static void open_engine_once(void) {
    di_error error;
    if (engine) return;
    open_demo_engine(&engine, 1024);
    server.env = di_request_env_of(engine);
    server.options.response_store = server.options.max_body = 1 << 20;
    keep_response();
    keep_turn();
    REQUIRE(di_grammars_create(server.env.tokenizer, server.env.vocab_size,
                               di_engine_get_info(engine).eos_token, DI_GRAMMARS_BYTES,
                               &server.env.grammars, &error) == DI_OK);
}

static void check_request(const di_gen_request *r) {
    di_error error;
    REQUIRE(di_sampling_check(&r->sampling, server.env.vocab_size, &error) == DI_OK);
    REQUIRE(r->n_choices >= 1 && r->n_choices <= 128);
    REQUIRE(r->max_tokens >= (r->scores_prompt ? -1 : 0));
    REQUIRE(strlen(r->model) <= r->model_size);
    for (int i = 0; i < r->n_stops; i++) REQUIRE(r->stops[i][0]);
    for (int32_t i = 0; i < r->n_prompts; i++) {
        di_request request = {.ids = r->prompts[i].data,
                              .n_ids = r->prompts[i].size,
                              .n_given = r->scores_prompt ? r->prompts[i].size : 0,
                              .max_tokens = r->max_tokens,
                              .sampling = r->sampling,
                              .n_choices = r->n_choices,
                              .top_logprobs = r->top_logprobs};
        uint64_t id;
        REQUIRE(di_engine_submit(engine, &request, &id, &error) == DI_OK);
        REQUIRE(di_engine_cancel(engine, id));
    }
}

/* What goes back must be JSON. */
static void check_json(const char *text, size_t size) {
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *root;
    di_error error;
    REQUIRE(di_json_parse(text, size, "reply", &arena, &root, &error) == DI_OK);
    di_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_generation g = {.server = &server};
    di_arena arena = DI_ARENA_EMPTY;
    const di_json *body;
    di_error error = {DI_OK, ""};
    open_engine_once();
    if (size == 0) return 0;
    di_status status = di_json_parse((const char *)data + 1, size - 1, "", &arena, &body, &error);
    if (status == DI_OK && body->type == DI_JSON_OBJECT) {
        status = readers[(uint8_t)(data[0] - '0') % N_READERS](&g, body, &error);
        di_arena_free(&arena); /* the request must not need the tree */
        if (status != DI_OK) {
            REQUIRE(status == error.status && status != DI_ERR_MEMORY && error.message[0]);
        } else if (g.work_request.n_prompts > 0) {
            check_request(&g.work_request);
            if (g.work_request.given) {
                di_buffer text = DI_BUFFER_EMPTY;
                di_buffer_printf(&text, "{%s}", g.work_request.given);
                check_json(text.data, text.size);
                di_buffer_clear(&text);
                di_buffer_printf(&text, "[%s]",
                                 g.work_request.items.data ? g.work_request.items.data : "");
                check_json(text.data, text.size);
                di_buffer_free(&text);
            }
        } else {
            check_json(g.work_reply.data, g.work_reply.size);
        }
    }
    di_arena_free(&arena);
    di_gen_request_free(&g.work_request);
    di_buffer_free(&g.work_reply);
    return 0;
}
