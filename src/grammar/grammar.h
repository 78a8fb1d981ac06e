/* Grammars: what an answer may look like, and which tokens may come next.
 *
 * A *grammar* is compiled from one of the front ends below: a JSON Schema, any JSON object, a regular
 * expression, a grammar in GBNF, a list of choices, or the tool calls of the chat format. What a
 * front end cannot enforce exactly it refuses, in one line that names the keyword and where it stands
 * (a JSON pointer); nothing is ignored. docs/grammar.md lists what is taken and what is refused.
 *
 * A *matcher* follows one answer. It works on bytes, so a token may end in the middle of a character or
 * of a name. Every state that it can reach can be completed: a mask is never empty, and whatever is
 * sampled through masks and ends is in the grammar's language, and valid UTF-8.
 *
 * Threads. A grammar may be used by any number of threads at once: what it learns on the way (states,
 * masks) is behind a lock of its own. A matcher belongs to one thread at a time. Nothing here waits for
 * anything but that lock.
 *
 * Life. Grammars are counted: matchers hold one, and a server may keep one for the next request with
 * the same schema. The vocabulary outlives the grammar.
 */
#ifndef DI_GRAMMAR_GRAMMAR_H
#define DI_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/json.h"
#include "grammar/vocabulary.h"

typedef struct di_grammar di_grammar;
typedef struct di_grammar_matcher di_grammar_matcher;

/* Blanks between the tokens of JSON. */
typedef enum di_grammar_space {
    DI_GRAMMAR_SPACE_FREE,   /* anywhere JSON allows them, at most 32 in one place: a model that
                                writes blanks for ever is a known way to fail */
    DI_GRAMMAR_SPACE_PYTHON, /* one behind "," and ":", as json.dumps writes */
    DI_GRAMMAR_SPACE_NONE
} di_grammar_space;

typedef struct di_grammar_options {
    di_grammar_space space; /* default FREE */
    /* An object that says nothing about additionalProperties takes none, and an array that says
     * nothing about items behind prefixItems ends there. Narrower than JSON Schema, and what is
     * usually meant; where one of the two is given it is followed. An object without any "properties"
     * stays open. Default false: as JSON Schema says. */
    bool closed;
} di_grammar_options;

di_grammar_options di_grammar_options_defaults(void);

/* ---- Front ends ----
 *
 * vocabulary NULL: a grammar for bytes alone, without masks. options NULL: the defaults. On failure
 * *out is NULL and the message begins with the place: "/properties/a/contains: not supported ...".
 * DI_ERR_INVALID: malformed, or satisfied by no text. DI_ERR_UNSUPPORTED: well-formed, but cannot be
 * enforced. DI_ERR_LIMIT: time and memory are bounded whatever the input; this would pass the bounds. */

/* JSON texts that are valid under `schema` (draft 2020-12). Members of an object come in the order
 * of its "properties", then the rest. */
di_status di_grammar_compile_schema(const di_vocabulary *vocabulary,
                                    const di_grammar_options *options, const di_json *schema,
                                    di_grammar **out, di_error *error);
/* Any JSON object. */
di_status di_grammar_compile_json_object(const di_vocabulary *vocabulary,
                                         const di_grammar_options *options, di_grammar **out,
                                         di_error *error);
/* The whole answer matches the expression (it is anchored at both ends). */
di_status di_grammar_compile_regex(const di_vocabulary *vocabulary, const char *regex, size_t size,
                                   di_grammar **out, di_error *error);
/* GBNF, the form of llama.cpp; the rule "root" is the answer. */
di_status di_grammar_compile_ebnf(const di_vocabulary *vocabulary, const char *text, size_t size,
                                  di_grammar **out, di_error *error);
/* One of the strings of a non-empty JSON array. */
di_status di_grammar_compile_choices(const di_vocabulary *vocabulary, const di_json *choices,
                                     di_grammar **out, di_error *error);

/* One of the above, as a value. */
typedef enum di_grammar_form_kind {
    DI_GRAMMAR_SCHEMA,      /* source: the schema */
    DI_GRAMMAR_JSON_OBJECT, /* source: NULL */
    DI_GRAMMAR_REGEX,       /* source: a string */
    DI_GRAMMAR_EBNF,        /* source: a string */
    DI_GRAMMAR_CHOICES      /* source: an array of strings */
} di_grammar_form_kind;

typedef struct di_grammar_form {
    di_grammar_form_kind kind;
    const di_json *source;
} di_grammar_form;

di_status di_grammar_compile_form(const di_vocabulary *vocabulary,
                                  const di_grammar_options *options, const di_grammar_form *form,
                                  di_grammar **out, di_error *error);

typedef enum di_grammar_tool_choice {
    DI_GRAMMAR_TOOLS_NONE, /* any text, and no call */
    DI_GRAMMAR_TOOLS_AUTO, /* any text, then perhaps a block of calls; or a form, or such a block */
    DI_GRAMMAR_TOOLS_REQUIRED /* a block of calls, nothing else */
} di_grammar_tool_choice;

typedef struct di_grammar_tools {
    const di_json *tools; /* array of OpenAI tool objects, or of the inner function objects */
    di_grammar_tool_choice choice;
    const char *name; /* only this tool may be called (tool_choice named: with REQUIRED), or NULL */
    /* Parameters follow the tool's schema where the tool says "strict": true, or of every tool with
     * this. The others' are any names and values. */
    bool strict;
    /* The others follow theirs too where it can be enforced; where it cannot, they stay free. */
    bool follow;
    int32_t max_calls; /* in the block; 0: any number */
    /* AUTO: an answer without a call is of this form, one with calls says nothing else; NULL: any text. */
    const di_grammar_form *form;
} di_grammar_tools;

/* An answer with tool calls as the chat format writes them (spec chat.md 5): exactly the official
 * form, the markers as their tokens, the parameters in the order of "properties". */
di_status di_grammar_compile_tools(const di_vocabulary *vocabulary,
                                   const di_grammar_options *options, const di_grammar_tools *tools,
                                   di_grammar **out, di_error *error);

di_grammar *di_grammar_acquire(di_grammar *grammar);
void di_grammar_release(di_grammar *grammar); /* NULL is fine */
/* Bytes held now: program, states and masks. */
size_t di_grammar_memory(di_grammar *grammar);

/* ---- Following an answer ---- */

/* Holds the grammar. after_id: the grammar begins behind the first token with this id (</think>); before
 * it any ordinary token may come, but no end and no other marker: a call must not begin in a thought
 * that then cannot end. -1: it begins at once. NULL when out of memory. */
di_grammar_matcher *di_grammar_matcher_create(di_grammar *grammar, int32_t after_id);
/* An independent copy at the same place, without the history that rollback needs. NULL: no memory. */
di_grammar_matcher *di_grammar_matcher_fork(const di_grammar_matcher *matcher);
void di_grammar_matcher_destroy(di_grammar_matcher *matcher); /* NULL is fine */

/* Takes one token. DI_ERR_INVALID, and nothing changes, when the mask does not allow it; an end
 * token is taken where the grammar accepts, and nothing after it. DI_ERR_MEMORY: nothing changed. */
di_status di_grammar_matcher_advance(di_grammar_matcher *matcher, int32_t id, di_error *error);
/* Takes bytes, as one token would; a marker that the grammar names may be spelled out. *n_taken: how many
 * bytes were possible; when not all, DI_ERR_INVALID and nothing changes. */
di_status di_grammar_matcher_advance_bytes(di_grammar_matcher *matcher, const char *bytes, size_t n,
                                           size_t *n_taken, di_error *error);
/* Takes the last n advances back, of the DI_GRAMMAR_ROLLBACK last ones at most; false when there are
 * not so many. */
enum { DI_GRAMMAR_ROLLBACK = 64 };
bool di_grammar_matcher_rollback(di_grammar_matcher *matcher, size_t n);

/* True while it waits for after_id. */
bool di_grammar_matcher_waiting(const di_grammar_matcher *matcher);
/* What was taken is in the language: an end token is allowed. */
bool di_grammar_matcher_accepting(di_grammar_matcher *matcher);
/* Nothing but an end token may come. */
bool di_grammar_matcher_complete(di_grammar_matcher *matcher);
/* An end token was taken. */
bool di_grammar_matcher_ended(const di_grammar_matcher *matcher);

/* words: [di_vocabulary_words], bit id % 32 of word id / 32: the token may come next. Every word is
 * written. DI_ERR_USAGE after an end or without a vocabulary; DI_ERR_MEMORY; DI_ERR_LIMIT when the
 * grammar allows more readings of the text, or has more states, than the bounds let it follow. */
di_status di_grammar_matcher_mask(di_grammar_matcher *matcher, uint32_t *words, di_error *error);
/* The masks of a block of drafts: words[k * stride ..] is the mask behind ids[0..k), for k = 0 to *n_rows - 1,
 * where *n_rows is n + 1, or less: a draft that the mask before it does not allow ends the block, and so
 * does an end token. n at most DI_GRAMMAR_ROLLBACK; stride at least the words of a mask. The matcher
 * stays where it is; take the accepted ones by di_grammar_matcher_advance. */
di_status di_grammar_matcher_masks(di_grammar_matcher *matcher, const int32_t *ids, size_t n,
                                   uint32_t *words, size_t stride, size_t *n_rows, di_error *error);
/* Appends to `out` the bytes that must come next, at most max_bytes; none where there is a choice, an
 * end is possible or a marker must come. The matcher stays where it is. */
di_status di_grammar_matcher_forced(di_grammar_matcher *matcher, size_t max_bytes, di_buffer *out,
                                    di_error *error);
/* The same as tokens, at most max_ids: as the tokenizer cuts the forced text, without a last token
 * that could still grow, and markers. They are what the model would write if it cuts as the tokenizer
 * does: drafts, each allowed by the mask before it, to be verified like any. */
di_status di_grammar_matcher_forced_ids(di_grammar_matcher *matcher, size_t max_ids, di_ids *out,
                                        di_error *error);

#endif
