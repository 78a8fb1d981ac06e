/* What there is to say about an answer afterwards: a line of speeds, or all of it as JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "cli/generate.h"

static double per_second(size_t n, double seconds) { return seconds > 0 ? (double)n / seconds : 0; }

/* The first token comes with the prompt. */
static size_t decoded(const di_answer *answer) {
    return answer->n_sampled > 0 ? answer->n_sampled - 1 : 0;
}

static double per_step(const di_answer *answer) {
    return answer->n_steps > 1 ? (double)decoded(answer) / (double)(answer->n_steps - 1) : 1;
}

void di_answer_print_speed(const di_answer *answer) {
    size_t n_read = answer->n_prompt - answer->n_reused;
    fprintf(stderr, "prompt: %zu tokens in %.2f s (%.1f tokens/s)", n_read, answer->prompt_s,
            per_second(n_read, answer->prompt_s));
    if (answer->n_reused > 0) fprintf(stderr, ", %zu cached", answer->n_reused);
    fprintf(stderr, "; answer: %zu tokens in %.2f s (%.1f tokens/s", answer->ids.size,
            answer->answer_s, per_second(decoded(answer), answer->answer_s));
    if (answer->drafted) fprintf(stderr, ", %.1f tokens a step", per_step(answer));
    fprintf(stderr, "); seed %" PRIu64 "\n", answer->seed);
}

static void write_string(di_buffer *out, const di_buffer *text) {
    di_json_write_string(out, text->data ? text->data : "", text->size);
}

static void write_tokens(const di_answer *answer, di_buffer *out) {
    di_buffer_puts(out, ", \"ids\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        di_buffer_printf(out, "%s%d", i ? ", " : "", answer->ids.data[i]);
    }
    di_buffer_puts(out, "], \"logprobs\": [");
    for (size_t i = 0; i < answer->ids.size; i++) {
        di_buffer_puts(out, i ? ", " : "");
        if (isfinite(answer->logprobs[i])) {
            di_buffer_printf(out, "%.7g", (double)answer->logprobs[i]);
        } else {
            di_buffer_puts(out, "null");
        }
    }
    di_buffer_putc(out, ']');
}

void di_answer_write_json(const di_answer *answer, di_buffer *out) {
    di_buffer_puts(out, "{\"text\": ");
    write_string(out, &answer->text);
    di_buffer_puts(out, ", \"thinking\": ");
    write_string(out, &answer->thought);
    di_buffer_puts(out, ", \"tool_calls\": [");
    for (int i = 0; i < answer->n_calls; i++) {
        di_buffer_puts(out, i ? ", {\"name\": " : "{\"name\": ");
        write_string(out, &answer->calls[i].name);
        di_buffer_puts(out, ", \"arguments\": ");
        write_string(out, &answer->calls[i].arguments);
        di_buffer_putc(out, '}');
    }
    di_buffer_printf(out, "], \"finish_reason\": \"%s\"", answer->finish);
    write_tokens(answer, out);
    di_buffer_printf(out,
                     ", \"usage\": {\"prompt_tokens\": %zu, \"reused_tokens\": %zu, "
                     "\"completion_tokens\": %zu}",
                     answer->n_prompt, answer->n_reused, answer->ids.size);
    di_buffer_printf(out,
                     ", \"timings\": {\"prompt_s\": %.6f, \"prompt_tokens_per_s\": %.3f, "
                     "\"answer_s\": %.6f, \"answer_tokens_per_s\": %.3f, "
                     "\"tokens_per_step\": %.3f}",
                     answer->prompt_s,
                     per_second(answer->n_prompt - answer->n_reused, answer->prompt_s),
                     answer->answer_s, per_second(decoded(answer), answer->answer_s),
                     per_step(answer));
    di_buffer_printf(out, ", \"seed\": %" PRIu64 "}\n", answer->seed);
}
