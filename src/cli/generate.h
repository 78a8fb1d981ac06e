/* One answer: from the ids of a prompt to text on the terminal, and everything there is to know
 * about it afterwards. What `run` and `chat` share.
 */
#ifndef DI_CLI_GENERATE_H
#define DI_CLI_GENERATE_H

#include "base/buffer.h"
#include "cli/progress.h"
#include "deepinfer.h"

typedef struct di_generation {
    di_engine *engine;     /* of requests, with nothing else to do */
    di_progress *progress; /* of the prompt */
    const di_ids *prompt;
    di_sampling sampling;
    int64_t max_tokens; /* 0: until the end or a full context */
    const char *const *stops;
    int n_stops;
    bool raw, thinking; /* as in di_reader_options */
    bool show;          /* stream to stdout; thoughts dimmed, and only on a terminal */
} di_generation;

typedef struct di_answer_call {
    di_buffer name, arguments;
} di_answer_call;

typedef struct di_answer {
    di_buffer thought, text;
    di_answer_call *calls;
    int n_calls;
    di_ids ids; /* without the end token, and without what a stop text cut off */
    float *logprobs;
    size_t logprob_capacity;
    bool failed;        /* out of memory for a part */
    const char *finish; /* "stop", "length", "tool_calls" or "cancelled" */
    uint64_t seed;
    size_t n_prompt, n_reused;
    size_t n_sampled;          /* tokens, the end token included */
    size_t n_steps;            /* that these came from */
    bool drafted;              /* there were drafts, so a step may give several */
    double prompt_s, answer_s; /* until the first token; from it to the last */
} di_answer;

/* Generates into *answer (zeroed by this; free it in any case). Ctrl-C is no failure: the answer is
 * what there was, finish "cancelled". Afterwards the engine has nothing to do again. */
di_status di_generate(const di_generation *generation, di_answer *answer, di_error *error);
void di_answer_free(di_answer *answer);

/* The pieces of that, for who gets tokens in another way: what a reader says, the tokens that went
 * to it, and its end, once `finish` is set. */
void di_answer_add_part(di_answer *answer, di_part part, const char *text, size_t size);
di_status di_answer_add_token(di_answer *answer, di_token token, di_error *error);
di_status di_answer_finish(di_answer *answer, di_reader *reader, di_error *error);

/* answer_report.c */

/* "prompt: 14 tokens in 0.02 s (...), 12 cached; answer: 10 tokens in 0.10 s (..., 2.9 tokens a
 * step); seed 7" to stderr. As in the JSON, the end token is not counted; in the speed it is. */
void di_answer_print_speed(const di_answer *answer);
/* The answer as one JSON object, newline included. */
void di_answer_write_json(const di_answer *answer, di_buffer *out);

#endif
