/* Putting a prompt together: text and markers in order, then one di_chat_prompt.
 *
 * Text that lies between two markers becomes one piece however many calls added it, because the
 * tokenizer merges across such seams. Out of memory is sticky and reported by chat__finish.
 */
#ifndef DI_TEXT_CHAT_PIECES_H
#define DI_TEXT_CHAT_PIECES_H

#include "base/buffer.h"
#include "text/chat.h"

typedef struct chat_pieces {
    di_buffer text;    /* the whole prompt, markers spelled */
    di_buffer markers; /* chat_marker_span each */
    di_buffer images;  /* const di_json * each */
} chat_pieces;

#define CHAT_PIECES_EMPTY                                                                          \
    { DI_BUFFER_EMPTY, DI_BUFFER_EMPTY, DI_BUFFER_EMPTY }

void chat__text(chat_pieces *pieces, const char *text, size_t size);
void chat__puts(chat_pieces *pieces, const char *text);
void chat__json(chat_pieces *pieces, const di_json *value);
void chat__marker(chat_pieces *pieces, const char *marker);
/* The image marker, and its record at the end of the list. */
void chat__image(chat_pieces *pieces, const di_json *record);

/* Copies everything to the arena. */
di_status chat__finish(const chat_pieces *pieces, di_arena *arena, di_chat_prompt *out,
                       di_error *error);
void chat__free(chat_pieces *pieces);

#endif
