/* deepinfer: the public interface of libdeepinfer.
 *
 * From a model directory as the release ships it (config.json, tokenizer.json, *.safetensors) to
 * text, in five steps:
 *
 *     di_engine_options options = di_engine_options_defaults();
 *     di_engine_open("models/demo", &options, &engine, &error);      weights, memory, threads
 *     di_prompt_from_messages(tokenizer, json, ..., &ids, ...);      a conversation as token ids
 *     di_sequence_create(engine, &sequence, &error);                 what the model has read so far
 *     di_sequence_prompt(sequence, ids.data, ids.size, ...);
 *     while (...) di_sequence_next(sequence, &sampling, &token, &error);
 *
 * Rules that hold for every function here:
 * - What can fail returns a di_status and fills *error (never NULL) with one line for a person.
 *   Out pointers are set on success only, unless it is said otherwise.
 * - Strings are UTF-8. Text of given size may hold NUL and invalid bytes.
 * - The library prints nothing, never exits, and keeps no global state.
 * - An engine and its sequences belong to one thread at a time. A tokenizer may be shared by any
 *   number of threads.
 * - Destroying NULL is fine.
 */
#ifndef DEEPINFER_H
#define DEEPINFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors ---- */

/* What a call came to. 0 is success; everything else comes with a message in di_error. */
typedef enum di_status {
    DI_OK = 0,
    DI_ERR_USAGE = -1,       /* an option or argument is wrong: the caller can mend it */
    DI_ERR_INVALID = -2,     /* a file or a text is not what it must be */
    DI_ERR_IO = -3,          /* the system refused to open, read or write */
    DI_ERR_MEMORY = -4,      /* not enough memory, or not enough allowed */
    DI_ERR_LIMIT = -5,       /* longer than the context, more than a slot or page count */
    DI_ERR_UNSUPPORTED = -6, /* valid, but this build or machine cannot do it */
    DI_ERR_CANCELLED = -7    /* the caller asked to stop */
} di_status;

/* One failure, in one line fit for a person: what was being done, where, what to do about it. */
typedef struct di_error {
    di_status status;
    char message[1024];
} di_error;

/* "0.1.0", with the commit where it is known. */
const char *di_version(void);

/* Frees what a function here says is freed by it. */
void di_free(void *memory);

/* ---- Token ids ---- */

/* A growing list of token ids. Start zeroed; di_ids_free at the end. */
typedef struct di_ids {
    int32_t *data;
    size_t size, capacity;
} di_ids;

/* Appends; DI_ERR_MEMORY when out of memory. */
di_status di_ids_append(di_ids *ids, const int32_t *more, size_t n, di_error *error);
void di_ids_free(di_ids *ids);

/* ---- Tokenizer ---- */

typedef struct di_tokenizer di_tokenizer;

/* Reads the tokenizer.json of a model directory, or the file itself. Needs no weights. The caller
 * destroys *out. */
di_status di_tokenizer_open(const char *path, di_tokenizer **out, di_error *error);
void di_tokenizer_destroy(di_tokenizer *tokenizer);

/* Highest id + 1; ids without a token are possible below it. */
int32_t di_tokenizer_size(const di_tokenizer *tokenizer);

/* Appends the ids of `text`; nothing when it fails. With match_added, added tokens spelled out in
 * it (longest first) become their ids, as in prompts that are rendered already; without it all text
 * is ordinary. */
di_status di_tokenizer_encode(const di_tokenizer *tokenizer, const char *text, size_t size,
                              bool match_added, di_ids *out, di_error *error);

/* The bytes of n ids, NUL-terminated (not counted in *size); the caller frees *text with di_free.
 * With skip_special, tokens flagged special are left out. An id without a token is DI_ERR_INVALID.
 */
di_status di_tokenizer_text(const di_tokenizer *tokenizer, const int32_t *ids, size_t n,
                            bool skip_special, char **text, size_t *size, di_error *error);

/* The bytes of one token, owned by the tokenizer; NULL and *size 0 when there is no such id. */
const char *di_tokenizer_bytes(const di_tokenizer *tokenizer, int32_t id, size_t *size);
/* The token as the vocabulary spells it (byte-level alphabet), or NULL. */
const char *di_tokenizer_spelling(const di_tokenizer *tokenizer, int32_t id);
/* Id of an added token by its exact content, -1 when there is none. */
int32_t di_tokenizer_added_id(const di_tokenizer *tokenizer, const char *content);

/* ---- Conversations ---- */

typedef struct di_prompt_options {
    bool thinking; /* the model thinks before it answers; default true */
    /* none (thinking off), minimal and low (50), medium, high and xhigh (75), max and ultra (100),
     * or 1..100; default "high" */
    const char *effort;
    bool drop_thinking; /* leave out the thoughts before the last user turn; default true */
} di_prompt_options;

di_prompt_options di_prompt_options_defaults(void);

/* Appends the prompt of a conversation to *ids, ready for the model's answer; nothing when it
 * fails. `messages` is a JSON array as the OpenAI dialect writes it: [{"role": "user", "content":
 * "Hi"}]; `tools` a JSON array of tool objects, or NULL. Text in messages never becomes a marker.
 * *thinking (may be NULL): the answer begins with a thought, for di_reader_create. */
di_status di_prompt_from_messages(const di_tokenizer *tokenizer, const char *messages,
                                  const char *tools, const di_prompt_options *options, di_ids *ids,
                                  bool *thinking, di_error *error);

/* ---- Engine ---- */

typedef struct di_engine di_engine;

typedef enum di_phase {
    DI_PHASE_LOAD,   /* done, total: tensors; once with done == total */
    DI_PHASE_PROMPT, /* tokens of the prompt that were read */
    DI_PHASE_SCORE   /* tokens scored */
} di_phase;

/* Called between steps of long work, on the caller's thread. Returning false stops the work: the
 * function in progress returns DI_ERR_CANCELLED and leaves everything usable. */
typedef bool (*di_progress_fn)(void *user, di_phase phase, int64_t done, int64_t total);

/* The default of di_engine_options.numerics: what the model was trained and published with. */
#define DI_DEFAULT_NUMERICS "release"

typedef struct di_engine_options {
    /* "cpu": fast (AVX2); "cuda": a GPU (Hopper or later); "ref": the defining twins. "auto" (default):
     * the GPU where this build has CUDA, there is one that it can use and the model fits into its
     * memory; else the CPU. di_engine_info says which and why. */
    const char *backend;
    const char *numerics; /* "release": rounded where the release rounds; "float": nothing rounded
                             but what the caches store. Default DI_DEFAULT_NUMERICS */
    int32_t n_threads;    /* 0 (default): every core this process may use */
    int64_t context; /* tokens of the longest sequence; 0 (default): the model's, at most 32768 */
    int32_t n_sequences; /* that can exist at a time; default 1; ignored with max_batch */
    int32_t chunk;       /* prompt tokens of one step, 1..65536; default 256 */
    /* 0 (default): the engine serves sequences. Else it serves requests instead, so many choices at
     * once; a step has max(chunk, max_batch) rows. What follows is for requests alone. */
    int32_t max_batch;
    bool prefix_cache;     /* prompts that begin alike are read once; default true */
    const char *replay;    /* "exact" (default), "stable" or "bounded": how windows behind a cached
                              beginning are made; only exact gives the bits of a run alone */
    uint64_t window_cache; /* bytes for snapshots of windows; default 256 MiB */
    /* Drafts of the model's own draft layers, verified in the step that makes them: "off", "fixed"
     * (all that fit its rows), "scheduled" (as many as pay, none when none do); NULL (default):
     * scheduled where the model has draft layers. */
    const char *spec;
    /* What a sampled draft must be to stand. "coupled" (default): the token that would have been
     * sampled without drafts, so the answer is the same. "reject": rejection sampling, which
     * accepts a little more. The answer is then another sample of the same distribution, and not
     * repeatable from the seed: it depends on which drafts were verified, so on time and company.
     * Answers at temperature 0 are the same in any case. */
    const char *spec_sampling;
    bool profile_steps; /* measure what steps cost at start, for "scheduled"; default false */
    /* 1 (default): the next step is enqueued before the one before it is read, where that saves more
     * than what runs past the ends of answers; 0: always after; -1: as 1 on a GPU, else as 0.
     * Answers do not depend on it, but for sampled ones with "reject" (above). */
    int32_t steps_ahead;
    bool penalties; /* sequences keep counts for penalties: 4 bytes x vocabulary; default true */
    /* Upper bound in bytes of everything: program, state, workspace, buffers of a score, and the
     * weights that are resident at a time. Weights that do not fit are read again layer by layer;
     * single rows of the Engram tables and of the embedding do not count then, the system drops
     * them when it needs their pages. 0 (default): no bound, and the layers are given back only
     * when the weights exceed the machine's memory. With a GPU it bounds the rest: host memory
     * without what the driver takes, with the Engram tables that stay there. */
    uint64_t memory;
    int32_t gpu_device; /* number of the GPU; default 0 */
    /* Upper bound in bytes of device memory: weights, but for Engram tables larger than every other
     * tensor, state and workspace. 0 (default): what is free, less 512 MiB or 1 % of the device's,
     * whichever is more. */
    uint64_t gpu_memory;
    /* Layers, from the first on, that are whole on the GPU. Of the others the routed experts, most of
     * their weights, stay in host memory and are computed by the CPU, n_threads of it. -1 (default):
     * all, or where they do not fit with one context's pages, as many as fit. More than there are:
     * all. Answers do not depend on company or cuts in either case, but on this number. */
    int32_t gpu_layers;
    di_progress_fn progress; /* or NULL */
    void *user;
} di_engine_options;

di_engine_options di_engine_options_defaults(void);

/* Loads a model directory and takes all memory. *options is copied. Close what it gave. */
di_status di_engine_open(const char *directory, const di_engine_options *options, di_engine **out,
                         di_error *error);
void di_engine_close(di_engine *engine); /* after its sequences are destroyed */

typedef struct di_engine_info {
    const char *backend, *numerics; /* what computes: "cpu", "cuda" or "ref" */
    const char
        *why; /* with "auto": why it was taken, in a few words; and how a GPU shares the model
                        with the CPU, where it does; else NULL. The engine's */
    int32_t vocab_size, n_layers, n_streams, hidden_size;
    int32_t bos_token, eos_token; /* -1: none */
    int32_t gpu_layers;           /* that are whole on a GPU; without one 0 */
    int64_t context;              /* tokens of the longest sequence */
    int64_t context_model;        /* what the model itself allows */
    uint64_t weight_bytes;        /* in the files */
    uint64_t state_bytes;         /* state and workspace taken */
    bool releases_layers;         /* weights are given back after each layer's use */
} di_engine_info;

di_engine_info di_engine_get_info(const di_engine *engine);
/* Owned by the engine; NULL when the directory has a token map only. */
const di_tokenizer *di_engine_tokenizer(const di_engine *engine);

/* ---- Sampling ---- */

typedef struct di_token_bias {
    int32_t token;
    float value; /* added to the logit */
} di_token_bias;

/* The order: penalties, bias, never-sampled ids, temperature, top-k, top-p, min-p. Ids without a
 * token and image or placeholder tokens are never sampled. A token is a function of the logits,
 * these values, the seed and its position: not of threads, chunks or company. The one exception
 * is spec_sampling "reject". */
typedef struct di_sampling {
    uint64_t seed;     /* default 0 */
    float temperature; /* 0: the most likely token; default 1 */
    int32_t top_k;     /* the k most likely; 0 (default): off */
    float top_p;       /* the fewest tokens whose probabilities reach it; default 0.95; 1: off */
    float min_p;       /* against the likeliest token; 0 (default): off */
    float repetition_penalty; /* > 0; 1 (default): off. Tokens in prompt or answer */
    float presence_penalty, frequency_penalty; /* 0 (default): off. Tokens in the answer */
    const di_token_bias *biases;               /* n_biases of them, at most 16384; may be NULL */
    int32_t n_biases;
} di_sampling;

di_sampling di_sampling_defaults(void);
/* The defaults, with what the model's generation_config.json says. */
di_sampling di_engine_sampling(const di_engine *engine);
/* DI_ERR_USAGE naming the field that is not a finite number in its range. */
di_status di_sampling_check(const di_sampling *sampling, int32_t vocab_size, di_error *error);

/* ---- Sequences ---- */

/* What the model has read: token ids and the state that belongs to them. */
typedef struct di_sequence di_sequence;

/* Takes one of the engine's places; DI_ERR_LIMIT when all are taken. */
di_status di_sequence_create(di_engine *engine, di_sequence **out, di_error *error);
void di_sequence_destroy(di_sequence *sequence);

/* The tokens, sampled ones included; valid until the next call with this sequence. */
const int32_t *di_sequence_ids(const di_sequence *sequence, size_t *n);

/* Makes the sequence hold exactly these n >= 1 ids and computes all but the last. State for a
 * common beginning is kept where that is possible: always when nothing needs to be taken back, and
 * up to 2 x (draft block + 1) tokens otherwise; else the prompt is read from its start. *n_reused
 * (may be NULL): tokens that were not computed again. DI_ERR_LIMIT when it does not fit the
 * context. Cancelled or failed: the sequence is what was computed. */
di_status di_sequence_prompt(di_sequence *sequence, const int32_t *ids, size_t n, size_t *n_reused,
                             di_error *error);

typedef struct di_token {
    int32_t id;
    float logprob; /* natural log of the raw logits' softmax */
} di_token;

/* Computes what is not computed yet, samples one token and appends it. Needs at least one token.
 * DI_ERR_LIMIT when the context is full. It does not stop at the end token: compare with eos_token.
 */
di_status di_sequence_next(di_sequence *sequence, const di_sampling *sampling, di_token *out,
                           di_error *error);

/* ---- Scores ---- */

/* What a score reports; every pointer may be NULL. Each receives consecutive positions in
 * ascending order; data is valid during the call. A failure that they return ends the score. */
typedef struct di_score_sink {
    void *user;
    /* logprobs[i] is that of ids[first + i] after all ids before it; NAN at position 0. */
    di_status (*logprobs)(void *user, int64_t first, int64_t n, const float *logprobs,
                          di_error *error);
    /* float32 [n][vocab_size], of what follows position first + i */
    di_status (*logits)(void *user, int64_t first, int64_t n, const float *logits, di_error *error);
    /* float32 [n][n_streams][hidden_size], the residual streams after `layer` */
    di_status (*streams)(void *user, int32_t layer, int64_t first, int64_t n, const float *streams,
                         di_error *error);
} di_score_sink;

/* Reads n >= 1 ids from an empty sequence, as they are, and reports. The sequence then holds them.
 */
di_status di_sequence_score(di_sequence *sequence, const int32_t *ids, size_t n,
                            const di_score_sink *sink, di_error *error);

/* ---- Requests ---- */

/* Many at once, on an engine opened with max_batch. Tokens and log-probabilities of a request are
 * those that it has alone (with replay "exact"), whatever runs beside it; but for tokens that were
 * sampled with spec_sampling "reject". */

typedef struct di_top_token {
    int32_t id;
    float logprob;
} di_top_token;

/* One token of one choice, in order. Pointers are valid during the call. */
typedef struct di_request_token {
    int32_t choice; /* 0 .. n_choices - 1 */
    di_token token;
    const di_top_token *top; /* best first, n_top of them: as many as asked for */
    int32_t n_top;
} di_request_token;

typedef enum di_end {
    DI_END_STOP,      /* the end token, which was given, or on_token said so */
    DI_END_LENGTH,    /* max_tokens, or the context is full */
    DI_END_CANCELLED, /* di_engine_cancel */
    DI_END_FAILED     /* see message */
} di_end;

typedef struct di_request_end {
    int32_t choice;
    di_end end;
    int64_t n_prompt, n_cached; /* tokens; n_cached: of the prompt, not computed again */
    int64_t n_found;     /* of the prompt, in the cache; all may have to be computed again for
                                   their windows, which are not kept with them */
    int64_t n_accepted;  /* of the answer: drafts that stood */
    const char *message; /* DI_END_FAILED */
} di_request_end;

typedef struct di_request {
    const int32_t *ids; /* n_ids >= 1; copied, as the sampling values are */
    size_t n_ids;
    /* The last n_given <= n_ids of ids are no prompt but the beginning of the answer, as given:
     * on_token gets them too, with their log-probabilities (first choice only; NAN for a token
     * that nothing precedes), before what is sampled. They end nothing, whatever they are. */
    size_t n_given;
    int64_t max_tokens; /* sampled, of a choice; 0: until the end or a full context; -1: none, the
                           request is for the given tokens alone (n_choices 1) */
    di_sampling sampling;
    int32_t n_choices;    /* 1..128; the first has the seed itself, the others have derived ones */
    int32_t top_logprobs; /* 0..20 alternatives reported with each token */
    void *user;
    /* Between steps while it runs and has no token: how many of its ids were read, of all that were
     * not cached, given ones included. A request that had to give its place away begins again, so
     * `done` may fall back. False: the request is cancelled. May be NULL. None of these may call
     * the engine. */
    bool (*on_prompt)(void *user, int64_t done, int64_t total);
    /* Which tokens may come next, of a choice whose tokens so far were given to on_token: writes all
     * (vocab_size + 31) / 32 words, bit id % 32 of word id / 32: allowed. Ids that are never sampled
     * stay so. NULL: any may. */
    void (*mask)(void *user, int32_t choice, uint32_t *words);
    /* The same for n drafts in a row: writes the mask before the first and those behind each of them, one
     * after the other, as far as the drafts may come, and returns how many do: one less than there are
     * masks. NULL, with a mask: the request has no drafts. */
    int32_t (*mask_drafts)(void *user, int32_t choice, const int32_t *drafts, int32_t n,
                           uint32_t *words);
    /* What must come next as far as it is known, up to `most` ids; returns how many. They are verified as
     * drafts are, and cost no draft pass. With mask_drafts only; NULL: nothing is known. */
    int32_t (*foresee)(void *user, int32_t choice, int32_t *ids, int32_t most);
    /* False: this choice ends here, with this token. */
    bool (*on_token)(void *user, const di_request_token *token);
    /* Once a choice, the last call for it. */
    void (*on_end)(void *user, const di_request_end *end);
} di_request;

/* Checks and queues. DI_ERR_USAGE naming the field, DI_ERR_LIMIT when the prompt and one token of
 * answer do not fit the context. *id (may be NULL): for di_engine_cancel. */
di_status di_engine_submit(di_engine *engine, const di_request *request, uint64_t *id,
                           di_error *error);
/* Ends all choices; on_end comes before this returns. False: there is no such request any more. */
bool di_engine_cancel(di_engine *engine, uint64_t id);
/* One step for all; callbacks come from here. *busy false: nothing is left to do. A failure is the
 * engine's own. */
di_status di_engine_step(di_engine *engine, bool *busy, di_error *error);
/* di_engine_close drops what is still open, without callbacks. */

/* What an engine of requests has done since it was opened. */
typedef struct di_engine_stats {
    int64_t waiting, running;              /* choices, now */
    uint64_t steps, rows, prompt_rows;     /* a step's rows: prompt tokens, one for every
                                                    choice that decodes, drafts */
    uint64_t replayed_rows, preemptions;   /* rows that were computed again */
    uint64_t drafted, verified, accepted;  /* draft tokens: the first two counted when a step is
                                              enqueued, accepted ones when it is read */
    uint64_t draft_blocks;                 /* of a step and a choice: what verified some */
    uint64_t snapshots, snapshot_hits;     /* of windows */
    uint64_t prompt_tokens, cached_tokens; /* of prompts that were admitted; of those, found */
    int64_t pages, pages_used;             /* of the pool, now */
    double step_seconds;                   /* the device was computing steps */
    double gap_seconds;                    /* it was idle between two steps that followed each
                                                    other without a pause in the work */
    double host_seconds;                   /* processor time of the thread that calls
                                                    di_engine_step, in it */
} di_engine_stats;

/* Where the time of one step went. Of the host: when each part began, in seconds of the monotonic
 * clock. Of the device: seconds of its own clock, which may have another zero. With steps_ahead the
 * parts of two steps alternate: the next one is scheduled, built and enqueued before this one is
 * waited for. */
typedef struct di_step_trace {
    uint64_t step;                                        /* from 0 */
    int32_t rows, prompt_rows, blocks, verified, drafted; /* as in di_engine_stats; choices that
                                                             decode; choices drafted for */
    bool ahead;   /* enqueued before the results of the step before it were read */
    bool follows; /* there was work all the time since the end of the step before it */
    double schedule, build, enqueue, enqueued; /* the last: the end of that part */
    double wait, deliver, delivered;
    double begin, drafts, forward,
        end; /* of the device; between the last three: drafts, then rows */
} di_step_trace;

/* From now on `told` is called with every step that was read, inside of di_engine_step; it must not
 * call the engine. NULL: no more, and the host's clock is not looked at. Nothing for an engine of
 * sequences. */
void di_engine_trace(di_engine *engine, void (*told)(void *user, const di_step_trace *step),
                     void *user);

/* Zeroed for an engine of sequences. */
di_engine_stats di_engine_get_stats(const di_engine *engine);
/* Forgets every cached beginning and snapshot that no open request uses: a cold start without
 * loading again. */
void di_engine_forget(di_engine *engine);

/* ---- Reading the answer ---- */

typedef enum di_part {
    DI_PART_THOUGHT,
    DI_PART_ANSWER,
    DI_PART_CALL_NAME,      /* a tool call begins; index counts from 0 */
    DI_PART_CALL_ARGUMENTS, /* a piece of its JSON arguments */
    DI_PART_CALL_END,       /* no text */
    DI_PART_CALL_BROKEN     /* no text: it was no call after all, its markup follows as text */
} di_part;

/* Text is UTF-8 in whole characters, valid during the call. */
typedef void (*di_part_fn)(void *user, di_part part, int index, const char *text, size_t size);

/* Turns tokens into parts of an answer, as they come. */
typedef struct di_reader di_reader;

typedef struct di_reader_options {
    bool raw;                 /* no parts: all text is answer, as it comes. Default false */
    bool thinking;            /* as di_prompt_from_messages said. Default true */
    const char *const *stops; /* n_stops texts, each not empty, that end the answer before them */
    int n_stops;
    di_part_fn on_part; /* or NULL */
    void *user;
} di_reader_options;

di_reader_options di_reader_options_defaults(void);

/* The tokenizer must outlive the reader; stops are copied. */
di_status di_reader_create(const di_tokenizer *tokenizer, const di_reader_options *options,
                           di_reader **out, di_error *error);
void di_reader_destroy(di_reader *reader);
/* *stopped becomes true when a stop text was completed; nothing comes out after that. */
di_status di_reader_push(di_reader *reader, int32_t token, bool *stopped, di_error *error);
/* The end: what was held back comes out. Once. */
di_status di_reader_finish(di_reader *reader, di_error *error);
/* How many of the tokens pushed belong to the answer: all, or, once a stop text was completed,
 * those that begin before it. A token that begins before it and reaches into it is the last. */
size_t di_reader_kept(const di_reader *reader);
/* How many of them can be reported already: they belong to the answer whatever comes. Never fewer than
 * before; without stop texts all. */
size_t di_reader_certain(di_reader *reader);
/* Which of the stop texts was completed, or -1. */
int di_reader_stop(const di_reader *reader);
/* True when at least one tool call was completed. */
bool di_reader_has_calls(const di_reader *reader);

#ifdef __cplusplus
}
#endif

#endif
