/* A request on its way: the one thing that the HTTP thread and the engine's thread share.
 *
 * The HTTP thread makes it, hands it to the runner (runner.h), gets its events back in order, and
 * frees it once `done` came with them, whether the client is still there or not. In between, each
 * part of the struct belongs to the thread that its comment names; what crosses does so under the
 * runner's lock, in `inbox`.
 *
 * Events are a string of records, so that a client that reads slowly costs bytes and no objects.
 */
#ifndef DI_SERVER_JOB_H
#define DI_SERVER_JOB_H

#include "base/buffer.h"
#include "grammar/grammar.h"
#include "server/metrics.h"
#include "server/request.h"

typedef struct di_job di_job;

/* ---- Events ---- */

typedef enum di_event_kind {
    DI_EVENT_THOUGHT, /* text */
    DI_EVENT_TEXT,    /* text */
    DI_EVENT_CALL,    /* name, NUL, arguments: a whole tool call */
    DI_EVENT_IDS,     /* int32_t each: all of an answer that called tools and ended by itself */
    DI_EVENT_TOKENS,  /* di_token_record, and n_top di_top_token behind each */
    DI_EVENT_END      /* di_end_record, then a message: the last one of a choice */
} di_event_kind;

typedef struct di_token_record {
    int32_t id;
    float logprob;
    int32_t n_top;
} di_token_record;

typedef enum di_finish_reason {
    DI_REASON_STOP,
    DI_REASON_LENGTH,
    DI_REASON_CALLS,
    DI_REASON_CANCELLED,
    DI_REASON_FAILED
} di_finish_reason;

typedef struct di_end_record {
    di_finish_reason reason;
    int stop; /* the stop text that ended it; -1: none */
    int64_t n_prompt, n_cached, n_answer, n_reasoning;
    int64_t n_found;    /* of the prompt, as in di_request_end */
    int64_t n_accepted; /* of the answer: drafts that stood */
    double seconds;     /* from its first token to its last */
} di_end_record;

typedef struct di_event {
    di_event_kind kind;
    int32_t choice;
    const char *data; /* unaligned */
    size_t size;
} di_event;

/* The event at *at of a string of them, and *at behind it; false at the end. */
bool di_event_next(const di_buffer *events, size_t *at, di_event *out);

/* ---- The job ---- */

/* One answer while it is made; the engine's thread's. */
typedef struct di_job_choice {
    di_job *job;
    di_reader *reader;
    di_grammar_matcher *matcher; /* of the request's grammar, or NULL */
    int64_t n_tokens, n_reasoning;
    bool thinking; /* in the thought */
    bool stopped, one_call_done;
    di_buffer call;            /* withheld until it is whole: name, NUL, arguments */
    di_ids ids;                /* of the answer, where there are tools */
    di_buffer tokens;          /* records of those that a stop text may yet cut off */
    size_t n_told, told_bytes; /* records that went out */
    size_t n_prompt;           /* tokens of the prompt that were reported, not answered */
    double first, last;        /* when these tokens came; 0: not yet */
    bool fed, ended;           /* the engine knows it; it is over */
} di_job_choice;

/* One prompt of it: a request to the engine. */
typedef struct di_job_unit {
    di_job *job;
    int32_t index; /* its choices are index * n_choices and on */
    uint64_t id;   /* of the engine; 0: not submitted */
} di_job_unit;

struct di_job {
    di_gen_request request; /* read-only once submitted */
    int32_t eos_token, think_end;
    size_t mask_words; /* of a mask over the vocabulary */

    /* The HTTP thread's. */
    void *owner;     /* the connection; NULL: the client left */
    uint32_t client; /* who asks, as a hash: clients take turns */
    double arrived;  /* seconds of the monotonic clock */

    /* The engine's thread's, until `done`. */
    di_job *next; /* in its lists */
    di_job_unit *units;
    di_job_choice *choices; /* n_prompts * n_choices */
    int32_t n_choices, n_fed, n_open;
    bool failed;
    di_error failure; /* then; status DI_OK: out of memory */
    bool dirty, cancelling;
    di_engine_metrics *metrics; /* the runner's */
    int64_t *n_served;          /* answers of its client that the engine has; the runner's */
    di_buffer pending;          /* events of this step */
    double submitted, started, first, last; /* into the engine; its prompt is being read; first and
                                                 last token; 0: not yet */

    /* Under the runner's lock. */
    di_buffer inbox;
    di_job *next_ready;
    bool ready, done, cancelled, taken_in;
    di_job *next_command, *next_cancel;
};

/* Takes the request over (it is zeroed). NULL when out of memory. */
di_job *di_job_create(di_gen_request *request, const di_request_env *env, int32_t eos_token,
                      di_error *error);
void di_job_destroy(di_job *job);

/* ---- The engine's thread: from the engine's callbacks ---- */

/* Submits the next prompt. */
di_status di_job_feed(di_job *job, di_engine *engine, di_error *error);
/* All that has not ended ends so; for what the engine does not know. */
void di_job_end_rest(di_job *job, di_finish_reason reason, const char *message);

double di_clock(void); /* seconds, monotonic */

#endif
