/* The answer in the words of a dialect: events in, bytes of a stream or of one JSON body out.
 *
 * The HTTP thread's. Text of one kind that comes at once goes out as one piece, so a slow reader
 * gets fewer and larger ones. Nothing here knows a socket.
 */
#ifndef DI_SERVER_WRITER_H
#define DI_SERVER_WRITER_H

#include "server/job.h"

enum { DI_WRITER_MAX_KEPT = 32 << 20 }; /* bytes of an answer that are kept until its end */

typedef struct di_writer_call {
    char *name, *arguments; /* owned; arguments are the JSON of an object */
    size_t name_size, arguments_size;
} di_writer_call;

typedef struct di_writer_choice {
    /* What goes out next: text of one kind, and tokens. */
    di_event_kind kind;
    di_buffer piece, tokens;
    bool began; /* something went out */
    int n_calls;
    bool ended;
    di_end_record end;
    int64_t n_characters; /* Completions: of the text that was told with its tokens, */
    bool told;            /* of which there were some */
    /* All of it, where it is kept. */
    di_buffer thought, text, all_tokens, ids;
    di_writer_call *calls;
} di_writer_choice;

typedef struct di_writer_ops di_writer_ops;

typedef struct di_writer {
    const di_writer_ops *ops;
    const di_gen_request *request;
    const di_tokenizer *tokenizer;
    char id[33]; /* random, hexadecimal */
    int64_t created;
    const char *model; /* the name that was asked for, or the server's */
    size_t model_size;
    bool whole; /* all of it is needed in the end: it goes out as one, or at the end again */
    bool keep;  /* all of it is kept: for that, or to be known again as a turn that called tools; */
    size_t kept; /* bytes of it */
    bool let_go; /* of what was kept for a turn alone: it became too large */
    bool builds; /* pieces are made: for a stream, or to build items of */
    di_writer_choice *choices;
    int32_t n_choices, n_ended;
    /* Blocks and items of Messages and Responses. */
    int n_blocks, sequence;
    bool open; /* a block of text of this kind: */
    di_event_kind open_kind;
    size_t block_begin; /* where it begins in what is kept of its kind */
    di_buffer items;    /* whole blocks or items, separated by commas */
    bool failed;        /* a choice failed, or memory ran out: nothing more goes out but that */
    char failure[400];
} di_writer;

struct di_writer_ops {
    /* Streams. `begin` once before all; `piece` for text of a kind, with the tokens that waited;
     * `finish` once behind all. */
    void (*begin)(di_writer *w, di_buffer *out);
    void (*piece)(di_writer *w, int32_t choice, di_buffer *out);
    void (*call)(di_writer *w, int32_t choice, const di_writer_call *call, di_buffer *out);
    void (*end)(di_writer *w, int32_t choice, di_buffer *out);
    void (*finish)(di_writer *w, di_buffer *out);
    void (*failure)(di_writer *w, di_buffer *out); /* in place of finish */
    /* The body, all at once. */
    void (*whole)(di_writer *w, di_buffer *out);
    /* What keeps a stream that has nothing to say alive. */
    const char *keep_alive;
};

extern const di_writer_ops di_chat_writer, di_completion_writer, di_messages_writer,
    di_responses_writer;

/* `model` stands where the request names none, and must outlive the writer, as the job must.
 * DI_ERR_MEMORY; deinit in any case. */
di_status di_writer_init(di_writer *w, const di_job *job, const di_tokenizer *tokenizer,
                         const char *model, di_error *error);
void di_writer_deinit(di_writer *w);

/* The first bytes of a stream. */
void di_writer_begin(di_writer *w, di_buffer *out);
/* Takes in all events; what of a stream follows from them goes to *out. When `done` they were the
 * last, and the stream ends. */
void di_writer_events(di_writer *w, const di_buffer *events, bool done, di_buffer *out);
/* A stream ends here, as one that failed so; what came and was not told is lost. */
void di_writer_fail(di_writer *w, const char *message, di_buffer *out);
/* The body of what is no stream, after the last events and when `failed` is false. */
void di_writer_whole(di_writer *w, di_buffer *out);
/* Keeps those answers that called tools, for when they come back; sets `let_go` where that cannot be. */
void di_writer_keep_turns(di_writer *w, struct di_turns *turns);

/* For the dialects. */

/* Sums over all choices. */
typedef struct di_writer_usage {
    int64_t n_prompt, n_cached, n_answer, n_reasoning, n_accepted;
} di_writer_usage;
di_writer_usage di_writer_get_usage(const di_writer *w);
/* "usage":{...} as OpenAI and DeepSeek have it. */
void di_write_openai_usage(const di_writer *w, di_buffer *out);
/* The last events of a stream that failed. */
void di_write_openai_failure(di_writer *w, di_buffer *out);
void di_write_text(di_buffer *out, const di_buffer *text); /* as a JSON string */
/* Log-probabilities in the form of chat completions, [...]. */
void di_write_chat_tokens(const di_writer *w, const di_buffer *tokens, di_buffer *out);
/* {"error": {...}} as OpenAI has it. code, param: NULL for null. */
void di_write_openai_error(di_buffer *out, const char *message, const char *type, const char *param,
                           size_t param_size, const char *code);

#endif
