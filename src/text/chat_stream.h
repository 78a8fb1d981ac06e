/* The streaming parser's inside, shared by its two halves: chat_stream.c reads thought and answer
 * and sends events; chat_markup.c reads calls.
 *
 * One byte at a time decides everything, so the result cannot depend on where the input was cut.
 * Linear time: markup that fails is read again once, as text in which no call can begin.
 */
#ifndef DI_TEXT_CHAT_STREAM_H
#define DI_TEXT_CHAT_STREAM_H

#include "text/chat.h"
#include "text/chat_format.h"
#include "text/dsml.h"

enum {
    CHAT_MAX_TAG = 4096,  /* bytes of a tag, its name included; more is no markup */
    CHAT_MAX_MARKER = 32, /* longest marker in text: EOS, 31 bytes */
    CHAT_MAX_CLOSE = 64   /* bytes of a value's closing tag, blanks included */
};

typedef enum stream_state {
    STREAM_TEXT,   /* thought or answer */
    STREAM_BLOCK,  /* between calls */
    STREAM_INVOKE, /* in a call, between parameters */
    STREAM_TAG,    /* behind "<｜DSML｜" or "</｜DSML｜" */
    STREAM_VALUE   /* in a parameter */
} stream_state;

typedef enum stream_tag {
    TAG_CALLS_OPEN,
    TAG_CALLS_CLOSE,
    TAG_INVOKE_OPEN,
    TAG_INVOKE_CLOSE,
    TAG_PARAMETER_OPEN,
    TAG_UNKNOWN
} stream_tag;

typedef enum tag_phase { PHASE_WORD, PHASE_ATTRIBUTE, PHASE_NAME, PHASE_CLOSE } tag_phase;

struct di_chat_parser {
    di_chat_event_fn on_event;
    void *user;
    bool failed, finished;
    stream_state state;

    /* Text. What is held back is `newlines` newlines, then the beginning of a marker. */
    bool reasoning;      /* in the thought */
    bool answer_started; /* newlines count from here on */
    bool after_block;    /* newlines count only when text follows */
    bool calls_off;      /* reading failed markup again: no call begins */
    size_t newlines;
    char marker[CHAT_MAX_MARKER];
    size_t n_marker;

    /* Output that is waiting to be sent: the end of the input piece, or of a character. */
    di_buffer out;
    di_chat_event_type out_type;

    /* Calls. */
    di_buffer raw;       /* markup since the block began or a call ended */
    stream_state parent; /* where the tag stands */
    bool closing;        /* "</" */
    tag_phase phase;
    stream_tag tag;
    size_t n_tag;     /* bytes of the tag so far */
    size_t n_matched; /* of the attribute's literal */
    di_buffer name;   /* the tag's word, then what follows name=" */
    int index;        /* of the current or next call */
    bool in_call;     /* CALL_BEGIN is out */
    size_t n_block;   /* calls completed in this block */
    size_t n_calls;   /* and in all */
    size_t n_parameters;
    bool is_string;
    di_buffer value; /* of a parameter that is no string, behind a '[' */
    char close[CHAT_MAX_CLOSE];
    size_t n_close;
    di_buffer scratch;
    dsml_keys keys;
};

/* chat_stream.c */
void stream__emit(di_chat_parser *p, di_chat_event_type type, const char *text, size_t size);
/* Sends what waits, then an event that stands alone. */
void stream__event(di_chat_parser *p, di_chat_event_type type, const char *text, size_t size);
void stream__text_byte(di_chat_parser *p, char c);

/* chat_markup.c. Begins a block or call; the marker has just been read. */
void stream__begin_markup(di_chat_parser *p);
/* Reads at least one of size > 0 bytes in any state but STREAM_TEXT; returns how many. */
size_t stream__markup(di_chat_parser *p, const char *text, size_t size);
/* Whether the output may end here: behind a call, where at most the block's end is missing. */
bool stream__may_end(const di_chat_parser *p);
/* Back to text: everything in raw is text after all. */
void stream__fail_markup(di_chat_parser *p);

#endif
