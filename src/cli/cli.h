/* The command line: verbs, options and what they have in common.
 *
 * Two tables say everything: di_verbs (verbs.c) and di_options (option_table.c). Parsing, --help,
 * the man pages and shell completion all read them, so nothing is written twice. A verb is one
 * function in a file cmd_NAME.c; it uses the library through deepinfer.h, prints its results to
 * stdout and everything else to stderr, and returns a status. main.c turns a failure into one line
 * on stderr and an exit code: 0 done, 1 failed, 2 wrong usage (DI_ERR_USAGE), 130 stopped by Ctrl-C
 * and 143 by SIGTERM (DI_ERR_CANCELLED).
 *
 * To add a verb: an id below, a row in verbs.c, its function, its bit in the rows of its options.
 * To add an option: an id below and a row in option_table.c.
 */
#ifndef DI_CLI_CLI_H
#define DI_CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buffer.h"
#include "base/error.h"

/* ---- Verbs ---- */

typedef enum di_verb_id {
    DI_VERB_RUN,
    DI_VERB_CHAT,
    DI_VERB_SCORE,
    DI_VERB_BATCH,
    DI_VERB_SERVE,
    DI_VERB_BENCH,
    DI_VERB_EVAL,
    DI_VERB_TOKENIZE,
    DI_VERB_INSPECT,
    DI_VERB_SYNTH,
    DI_VERB_HELP
} di_verb_id;

typedef struct di_args di_args;

typedef struct di_verb {
    di_verb_id id;
    const char *name;
    const char *arguments;       /* as in the usage line: "MODEL [PROMPT]" */
    int min_args, max_args;      /* how many of them; max_args -1: any number */
    const char *summary;         /* one line without a full stop */
    const char *description;     /* paragraphs, separated by an empty line */
    const char *const *examples; /* pairs: command, what it does; ends with NULL. May be NULL */
    di_status (*run)(const di_args *args, di_error *error);
} di_verb;

extern const di_verb di_verbs[];
extern const int di_n_verbs;

const di_verb *di_verb_find(const char *name); /* NULL when there is none */

di_status di_cmd_run(const di_args *args, di_error *error);
di_status di_cmd_chat(const di_args *args, di_error *error);
di_status di_cmd_score(const di_args *args, di_error *error);
di_status di_cmd_batch(const di_args *args, di_error *error);
di_status di_cmd_serve(const di_args *args, di_error *error);
di_status di_cmd_bench(const di_args *args, di_error *error);
di_status di_cmd_eval(const di_args *args, di_error *error);
di_status di_cmd_tokenize(const di_args *args, di_error *error);
di_status di_cmd_inspect(const di_args *args, di_error *error);
di_status di_cmd_synth(const di_args *args, di_error *error);
di_status di_cmd_help(const di_args *args, di_error *error);

/* ---- Options ---- */

typedef enum di_option_id {
    /* model and machine */
    DI_OPT_BACKEND,
    DI_OPT_NUMERICS,
    DI_OPT_THREADS,
    DI_OPT_MEMORY,
    DI_OPT_GPU_MEMORY,
    DI_OPT_GPU_DEVICE,
    DI_OPT_GPU_LAYERS,
    DI_OPT_CONTEXT,
    DI_OPT_CHUNK,
    DI_OPT_BATCH,
    DI_OPT_DEEP,
    DI_OPT_MAX_BATCH,
    DI_OPT_REPLAY,
    DI_OPT_PREFIX_CACHE,
    DI_OPT_WINDOW_CACHE,
    DI_OPT_SPEC,
    DI_OPT_SPEC_SAMPLING,
    DI_OPT_PROFILE_STEPS,
    /* prompt */
    DI_OPT_SYSTEM,
    DI_OPT_THINKING,
    DI_OPT_EFFORT,
    DI_OPT_RAW,
    DI_OPT_MATCH_ADDED,
    DI_OPT_SHOW_PROMPT,
    /* sampling */
    DI_OPT_TEMPERATURE,
    DI_OPT_TOP_K,
    DI_OPT_TOP_P,
    DI_OPT_MIN_P,
    DI_OPT_REPETITION_PENALTY,
    DI_OPT_PRESENCE_PENALTY,
    DI_OPT_FREQUENCY_PENALTY,
    DI_OPT_LOGIT_BIAS,
    DI_OPT_SEED,
    DI_OPT_MAX_TOKENS,
    DI_OPT_STOP,
    /* batch */
    DI_OPT_INPUT,
    DI_OPT_OUTPUT,
    /* serve */
    DI_OPT_HOST,
    DI_OPT_PORT,
    DI_OPT_NAME,
    DI_OPT_ANY_NAME,
    DI_OPT_API_KEYS,
    DI_OPT_CORS,
    DI_OPT_PAGE,
    DI_OPT_MAX_QUEUE,
    DI_OPT_MAX_CONNECTIONS,
    DI_OPT_MAX_BODY,
    DI_OPT_MAX_UNSENT,
    DI_OPT_RESPONSE_STORE,
    DI_OPT_KEEP_ALIVE,
    DI_OPT_READ_TIMEOUT,
    DI_OPT_IDLE_TIMEOUT,
    DI_OPT_WRITE_TIMEOUT,
    DI_OPT_DRAIN_TIMEOUT,
    DI_OPT_METRICS,
    DI_OPT_DEBUG,
    DI_OPT_SLOW_STEP_MS,
    DI_OPT_SETTINGS,
    /* bench and eval */
    DI_OPT_SCENARIO,
    DI_OPT_PAIRS,
    DI_OPT_PROMPT_TOKENS,
    DI_OPT_BATCHES,
    DI_OPT_RATES,
    DI_OPT_WEIGHTS,
    DI_OPT_TASKS,
    DI_OPT_TEXT,
    DI_OPT_COMPARE,
    DI_OPT_LIMIT,
    /* input and output of score, tokenize, help */
    DI_OPT_IDS,
    DI_OPT_LOGITS,
    DI_OPT_STREAMS,
    DI_OPT_DECODE,
    DI_OPT_MAN,
    DI_OPT_COMPLETION,
    /* synth */
    DI_OPT_CONFIG,
    DI_OPT_TOKENIZER,
    DI_OPT_SHARDS,
    DI_OPT_SPARSE,
    DI_OPT_SET,
    DI_OPT_LAYERS,
    DI_OPT_DRAFT_LAYERS,
    DI_OPT_EXPERTS,
    DI_OPT_ENGRAM_ROWS,
    DI_OPT_VISION,
    /* every verb */
    DI_OPT_JSON,
    DI_OPT_QUIET,
    DI_OPT_HELP,
    DI_N_OPTIONS
} di_option_id;

typedef enum di_option_type {
    DI_TYPE_FLAG,   /* --name */
    DI_TYPE_SWITCH, /* --name or --no-name */
    DI_TYPE_INT,    /* a whole number in [min, max] */
    DI_TYPE_SEED,   /* a whole number, 64 bits unsigned */
    DI_TYPE_REAL,   /* a finite number in [min, max] */
    DI_TYPE_SIZE,   /* bytes, with K, M, G or T for powers of 1024: 8G, 1.5G */
    DI_TYPE_CHOICE, /* one of `choices` */
    DI_TYPE_TEXT,
    DI_TYPE_FILE, /* TEXT that names a file, a directory: for completion */
    DI_TYPE_DIR,
    DI_TYPE_LIST /* TEXT that may be given several times */
} di_option_type;

typedef enum di_option_group {
    DI_GROUP_PROMPT,
    DI_GROUP_SAMPLING,
    DI_GROUP_SERVER,
    DI_GROUP_MACHINE,
    DI_GROUP_OUTPUT,
    DI_N_GROUPS
} di_option_group;

typedef struct di_option {
    const char *name; /* without dashes */
    char letter;      /* one-letter form, or 0 */
    di_option_type type;
    di_option_group group;
    const char *value;         /* what stands for the value in help; NULL for FLAG and SWITCH */
    const char *unit;          /* of a number, or NULL */
    double min, max;           /* INT, REAL, SIZE; both inclusive */
    const char *choices;       /* CHOICE: "a|b|c" */
    const char *default_value; /* as it would be written ("yes"/"no" for SWITCH); NULL: none */
    const char *default_note;  /* what happens without it, in words; NULL: default_value says it */
    uint32_t verbs;            /* bits: DI_VERB_BIT(id) of the verbs that take it */
    const char *conflicts;     /* "a|b": options that would mean nothing with it; or NULL */
    const char *help;          /* a sentence or two with full stop */
} di_option;

#define DI_VERB_BIT(id) (1u << (unsigned)(id))

extern const di_option di_options[DI_N_OPTIONS];

/* ---- What was given ---- */

typedef struct di_value {
    bool given;           /* on the command line; otherwise the default, if there is one */
    bool flag;            /* FLAG, SWITCH */
    int64_t integer;      /* INT */
    uint64_t unsigned_64; /* SEED, SIZE */
    double real;          /* REAL */
    const char *text;     /* CHOICE, TEXT, FILE, DIR; NULL without a default */
    const char **items;   /* LIST: n_items of them */
    int n_items;
} di_value;

struct di_args {
    const di_verb *verb;
    di_value values[DI_N_OPTIONS];
    const char **positional;
    int n_positional;
};

/* Parses what follows the verb; argv strings must outlive *out. Whatever is wrong is DI_ERR_USAGE
 * with a message that names the option, what was found and what is accepted. With --help, missing
 * arguments and contradictions are fine. di_args_free also after a failure. */
di_status di_args_parse(const di_verb *verb, int argc, char *const *argv, di_args *out,
                        di_error *error);
void di_args_free(di_args *args);

/* One value, by the rules of its option: as on the command line, `what` naming it in messages
 * ("--top-k"). Not for FLAG and LIST. */
di_status di_option_read(const di_option *option, const char *what, const char *text, di_value *out,
                         di_error *error);

bool di_option_is_taken(const di_verb *verb, const di_option *option);
bool di_option_has_value(const di_option *option); /* not so for FLAG and SWITCH */
/* The option of that name that the verb takes, or NULL. */
const di_option *di_option_find(const di_verb *verb, const char *name);
/* "a whole number from 1 to 1024", "one of float, release": what a value of this option looks like. */
void di_option_describe(const di_option *option, di_buffer *out);

bool di_args_given(const di_args *args, di_option_id id);
bool di_args_flag(const di_args *args, di_option_id id);
int64_t di_args_int(const di_args *args, di_option_id id);
uint64_t di_args_unsigned(const di_args *args, di_option_id id);
double di_args_real(const di_args *args, di_option_id id);
const char *di_args_text(const di_args *args, di_option_id id); /* NULL: not given, no default */
const char *const *di_args_list(const di_args *args, di_option_id id, int *n);

/* ---- Documents made from the tables ---- */

void di_help_overview(di_buffer *out);
void di_help_verb(const di_verb *verb, di_buffer *out);
/* roff; verb NULL: the page deepinfer(1). */
void di_manual(const di_verb *verb, di_buffer *out);
/* shell: bash, zsh or fish; false for any other. */
bool di_completion(const char *shell, di_buffer *out);
/* Appends `text` filled to `columns`, each line behind `indent` spaces; empty lines stay. */
void di_help_fill(di_buffer *out, const char *text, int indent, int columns);

#endif
