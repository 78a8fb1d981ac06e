/* What a client asked for, whatever dialect it spoke: prompts as token ids, sampling values, and
 * how the answer is to be written. The readers of the dialects fill it; nothing here knows a socket
 * or an engine, so any thread may read a body.
 */
#ifndef DI_SERVER_REQUEST_H
#define DI_SERVER_REQUEST_H

#include "base/buffer.h"
#include "base/json.h"
#include "deepinfer.h"

typedef enum di_dialect {
    DI_DIALECT_CHAT,       /* OpenAI: /v1/chat/completions */
    DI_DIALECT_COMPLETION, /* OpenAI: /v1/completions */
    DI_DIALECT_RESPONSES,  /* OpenAI: /v1/responses */
    DI_DIALECT_MESSAGES    /* Anthropic: /v1/messages */
} di_dialect;

/* What the readers must know of the model. */
typedef struct di_request_env {
    const di_tokenizer *tokenizer;
    int32_t vocab_size, bos_token;
    int64_t context; /* tokens of the longest sequence */
    di_sampling sampling;
    struct di_grammars *grammars; /* for forms of answers (grammars.h); NULL in batch */
    struct di_turns *turns;       /* of the model, as they were sampled (turns.h); may be NULL */
} di_request_env;

di_request_env di_request_env_of(const di_engine *engine);

typedef struct di_gen_request {
    di_arena arena; /* what the pointers below point into, but for the ids */
    di_dialect dialect;
    const char *model; /* as named in the request; model_size 0: none was */
    size_t model_size;
    di_ids *prompts; /* n_prompts of them; one but in a completion. Each has n_choices answers */
    int32_t n_prompts;
    size_t n_begun; /* tokens at the end of the one prompt that the answer begins with (prefix) */
    bool thinking;  /* as in di_reader_options */
    di_sampling sampling;
    bool has_seed;
    int64_t max_tokens; /* 0: until the end or a full context; -1: none, with scores_prompt */
    int32_t n_choices, top_logprobs;
    bool logprobs;
    const char **stops;
    int n_stops;
    bool stream;
    bool include_usage;         /* a stream ends with the usage */
    bool scores_prompt;         /* the prompts' tokens are reported too, with log-probabilities */
    bool echo;                  /* a completion begins with its prompt */
    const char **echoes;        /* then: n_prompts texts */
    size_t *echo_sizes;         /* and their sizes */
    struct di_grammar *grammar; /* that the answer is held to, behind its thought; or NULL */
    bool has_tools;
    int n_turns, n_known_turns; /* that called tools; of them, put back as they were sampled */
    bool one_call;              /* the answer ends with its first tool call */
    const char *given;          /* Responses: what is given back, members of an object, or NULL */
    bool summary;               /* Responses: thoughts are told as summaries */
    bool stores;                /* Responses: the answer is kept, with: */
    const char *previous;       /* the id of the response that this goes on from, or "" */
    di_buffer items;            /* what came in `input`, JSON separated by commas */
} di_gen_request;

/* Start zeroed; free in any case. */
void di_gen_request_free(di_gen_request *request);

/* Room for n prompts; DI_ERR_MEMORY. */
di_status di_gen_request_prompts(di_gen_request *request, size_t n, di_error *error);

/* A copy in the request's arena, with a NUL. */
di_status di_gen_request_copy(di_gen_request *request, const char *text, size_t size,
                              const char **out, di_error *error);

/* DI_ERR_LIMIT with both numbers when a prompt and one token of answer do not fit. `what` is the
 * field that holds the prompt. */
di_status di_gen_request_fits(const di_gen_request *request, const di_request_env *env,
                              const char *what, di_error *error);

#endif
