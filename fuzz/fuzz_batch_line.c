/* Lines of a batch: any bytes, each line by itself. What is read is in range and can be submitted;
 * what is refused says so, and its result is one line of JSON that a later run knows again. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The files whole: the program is not a library. */
#include "cli/batch_file.c"
#include "cli/batch_line.c"
#include "cli/batch_result.c"
#include "cli/json_prompt.c"
#include "cli/lines.c"
#include "demo_engine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static di_engine *engine;
static di_request_env env;

static void open_engine_once(void) {
    if (engine) return;
    open_demo_engine(&engine, 128);
    env = di_request_env_of(engine);
}

static void check_read(const di_batch_line *line) {
    di_engine_info info = di_engine_get_info(engine);
    di_error error;
    REQUIRE(di_sampling_check(&line->request.sampling, info.vocab_size, &error) == DI_OK);
    REQUIRE(line->request.prompts[0].size > 0 &&
            line->request.prompts[0].size < (size_t)info.context);
    for (size_t i = 0; i < line->request.prompts[0].size; i++) {
        REQUIRE(line->request.prompts[0].data[i] >= 0 &&
                line->request.prompts[0].data[i] < info.vocab_size);
    }
    REQUIRE(line->request.n_choices >= 1 && line->request.n_choices <= 128 &&
            line->request.max_tokens >= 0);
    REQUIRE(line->request.top_logprobs >= 0 && line->request.top_logprobs <= 20);
    for (int i = 0; i < line->request.n_stops; i++) REQUIRE(line->request.stops[i][0]);
    di_request request = {.ids = line->request.prompts[0].data,
                          .n_ids = line->request.prompts[0].size,
                          .max_tokens = line->request.max_tokens,
                          .sampling = line->request.sampling,
                          .n_choices = line->request.n_choices,
                          .top_logprobs = line->request.top_logprobs};
    uint64_t id;
    REQUIRE(di_engine_submit(engine, &request, &id, &error) == DI_OK);
    REQUIRE(di_engine_cancel(engine, id));
}

static void check_refused(const di_batch_line *line, const di_error *why) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_arena arena = DI_ARENA_EMPTY;
    di_batch_file file = {.fd = -1};
    const di_json *root;
    di_error error;
    di_batch_key key = di_batch_key_of_line(7);
    REQUIRE(why->status != DI_OK && why->status != DI_ERR_MEMORY && why->message[0]);
    di_batch_write_error(&key, line->custom_id, line->custom_id_size, why, &out);
    REQUIRE(memchr(out.data, '\n', out.size) == out.data + out.size - 1);
    REQUIRE(di_json_parse(out.data, out.size, "result", &arena, &root, &error) == DI_OK);
    const di_json *id = di_json_get(root, "custom_id");
    REQUIRE(line->custom_id ? id->length == line->custom_id_size &&
                                  memcmp(id->text, line->custom_id, id->length) == 0
                            : id->type == DI_JSON_NULL);
    REQUIRE(read_lines(&file, out.data, out.size, &error) == DI_OK);
    REQUIRE(di_batch_set_has(&file.done, &key));
    di_batch_set_free(&file.done);
    di_arena_free(&arena);
    di_buffer_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_lines lines = {.data = (const char *)data, .size = size};
    const char *text;
    size_t n;
    open_engine_once();
    while (di_lines_next(&lines, &text, &n)) {
        di_batch_line line = {.custom_id = NULL};
        di_error error;
        di_status status = di_batch_line_open(&line, text, n, "line 1 of the input", &error);
        if (status == DI_OK) status = di_batch_line_read(&line, &env, &error);
        if (status == DI_OK) {
            check_read(&line);
        } else {
            REQUIRE(status == error.status);
            check_refused(&line, &error);
        }
        di_batch_line_free(&line);
    }
    return 0;
}
