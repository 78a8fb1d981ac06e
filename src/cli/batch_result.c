/* Results of a batch as JSON, one line each. All of it but `created` follows from the request. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/lossy.h"
#include "cli/batch_job.h"
#include "server/token_json.h"

static void write_string(di_buffer *out, const di_buffer *text) {
    di_json_write_string(out, text->data ? text->data : "", text->size);
}

/* ---- Log-probabilities: of all tokens of the answer, thoughts and markup included ---- */

static void write_chat_logprobs(const di_batch_job *job, const di_batch_choice *choice,
                                const di_tokenizer *tokenizer, di_buffer *out) {
    const di_answer *answer = &choice->answer;
    di_buffer_puts(out, "{\"content\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        if (i) di_buffer_puts(out, ", ");
        di_write_token_entry(out, tokenizer, answer->ids.data[i], answer->logprobs[i]);
        di_buffer_puts(out, ", \"top_logprobs\": [");
        for (size_t j = 0; j < (size_t)job->n_top; j++) {
            const di_top_token *top = &choice->top[i * (size_t)job->n_top + j];
            if (j) di_buffer_puts(out, ", ");
            di_write_token_entry(out, tokenizer, top->id, top->logprob);
            di_buffer_putc(out, '}');
        }
        di_buffer_puts(out, "]}");
    }
    di_buffer_puts(out, "]}");
}

static void write_completion_logprobs(const di_batch_job *job, const di_batch_choice *choice,
                                      const di_tokenizer *tokenizer, di_buffer *out) {
    const di_answer *answer = &choice->answer;
    di_buffer_puts(out, "{\"tokens\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        if (i) di_buffer_puts(out, ", ");
        di_write_token(out, tokenizer, answer->ids.data[i]);
    }
    di_buffer_puts(out, "], \"token_logprobs\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        if (i) di_buffer_puts(out, ", ");
        di_write_logprob(out, answer->logprobs[i]);
    }
    di_buffer_puts(out, "], \"top_logprobs\": ");
    if (job->n_top == 0) {
        di_buffer_puts(out, "null}");
        return;
    }
    /* Lists and no objects: tokens that are parts of characters would share a name. */
    for (size_t i = 0; i < answer->ids.size; i++) {
        di_buffer_puts(out, i ? ", [" : "[[");
        for (size_t j = 0; j < (size_t)job->n_top; j++) {
            const di_top_token *top = &choice->top[i * (size_t)job->n_top + j];
            if (j) di_buffer_puts(out, ", ");
            di_write_token_entry(out, tokenizer, top->id, top->logprob);
            di_buffer_putc(out, '}');
        }
        di_buffer_putc(out, ']');
    }
    di_buffer_puts(out, answer->ids.size ? "]}" : "[]}");
}

/* ---- Choices ---- */

static void write_calls(const di_batch_job *job, int32_t index, di_buffer *out) {
    const di_answer *answer = &job->choices[index].answer;
    char key[DI_BATCH_KEY_TEXT];
    di_batch_key_text(&job->key, key);
    di_buffer_puts(out, ", \"tool_calls\": [");
    for (int i = 0; i < answer->n_calls; i++) {
        di_buffer_printf(out, "%s{\"id\": \"call_%.16s_%d_%d\", \"type\": \"function\", ",
                         i ? ", " : "", key, index, i);
        di_buffer_puts(out, "\"function\": {\"name\": ");
        write_string(out, &answer->calls[i].name);
        di_buffer_puts(out, ", \"arguments\": ");
        write_string(out, &answer->calls[i].arguments);
        di_buffer_puts(out, "}}");
    }
    di_buffer_putc(out, ']');
}

static void write_message(const di_batch_job *job, int32_t index, di_buffer *out) {
    const di_answer *answer = &job->choices[index].answer;
    di_buffer_puts(out, "\"message\": {\"role\": \"assistant\", \"content\": ");
    if (answer->n_calls > 0 && answer->text.size == 0) {
        di_buffer_puts(out, "null");
    } else {
        write_string(out, &answer->text);
    }
    if (answer->thought.size > 0) {
        di_buffer_puts(out, ", \"reasoning_content\": ");
        write_string(out, &answer->thought);
    }
    if (answer->n_calls > 0) write_calls(job, index, out);
    di_buffer_putc(out, '}');
}

static void write_choice(const di_batch_job *job, int32_t index, const di_tokenizer *tokenizer,
                         di_buffer *out) {
    const di_batch_choice *choice = &job->choices[index];
    di_buffer_printf(out, "%s{\"index\": %d, ", index ? ", " : "", index);
    if (job->line.chat) {
        write_message(job, index, out);
    } else {
        di_buffer_puts(out, "\"text\": ");
        write_string(out, &choice->answer.text);
    }
    di_buffer_puts(out, ", \"logprobs\": ");
    if (!job->line.request.logprobs) {
        di_buffer_puts(out, "null");
    } else if (job->line.chat) {
        write_chat_logprobs(job, choice, tokenizer, out);
    } else {
        write_completion_logprobs(job, choice, tokenizer, out);
    }
    di_buffer_printf(out, ", \"finish_reason\": \"%s\"}", choice->answer.finish);
}

/* ---- Lines ---- */

static void write_head(const char *key, const char *custom_id, size_t size, di_buffer *out) {
    di_buffer_printf(out, DI_BATCH_LINE_HEAD "%s\", \"custom_id\": ", key);
    if (custom_id) {
        di_json_write_string(out, custom_id, size);
    } else {
        di_buffer_puts(out, "null");
    }
}

void di_batch_write_result(const di_batch_job *job, const di_tokenizer *tokenizer,
                           const char *model, di_buffer *out) {
    const di_batch_line *line = &job->line;
    size_t n_prompt = job->choices[0].answer.n_prompt, n_answer = 0;
    char key[DI_BATCH_KEY_TEXT];
    di_batch_key_text(&job->key, key);
    write_head(key, line->custom_id, line->custom_id_size, out);
    di_buffer_printf(out,
                     ", \"response\": {\"status_code\": 200, \"request_id\": \"%s\", \"body\": "
                     "{\"id\": \"%s-%s\", \"object\": \"%s\", \"created\": %lld, \"model\": ",
                     key, line->chat ? "chatcmpl" : "cmpl", key,
                     line->chat ? "chat.completion" : "text_completion", (long long)time(NULL));
    if (line->request.model_size > 0) {
        di_json_write_string(out, line->request.model, line->request.model_size);
    } else {
        di_lossy_write(out, model, strlen(model));
    }
    di_buffer_puts(out, ", \"choices\": [");
    for (int32_t i = 0; i < line->request.n_choices; i++) {
        write_choice(job, i, tokenizer, out);
        n_answer += job->choices[i].answer.ids.size;
    }
    di_buffer_printf(out,
                     "], \"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": %zu, "
                     "\"total_tokens\": %zu}, \"seed\": %" PRIu64 "}}, \"error\": null}\n",
                     n_prompt, n_answer, n_prompt + n_answer, line->request.sampling.seed);
}

void di_batch_write_error(const di_batch_key *key, const char *custom_id, size_t custom_id_size,
                          const di_error *why, di_buffer *out) {
    char text[DI_BATCH_KEY_TEXT];
    di_batch_key_text(key, text);
    write_head(text, custom_id, custom_id_size, out);
    di_buffer_printf(out, ", \"response\": null, \"error\": {\"code\": \"%s\", \"message\": ",
                     why->status == DI_ERR_UNSUPPORTED ? "unsupported"
                     : why->status == DI_ERR_LIMIT     ? "context_length_exceeded"
                                                       : "invalid_request");
    di_lossy_write(out, why->message, strlen(why->message));
    di_buffer_puts(out, "}}\n");
}
