#include "text/chat_pieces.h"

#include <string.h>

#include "text/chat_format.h"

typedef struct chat_marker_span {
    size_t start, size; /* bytes of chat_pieces.text */
} chat_marker_span;

void chat__text(chat_pieces *pieces, const char *text, size_t size) {
    di_buffer_append(&pieces->text, text, size);
}

void chat__puts(chat_pieces *pieces, const char *text) { di_buffer_puts(&pieces->text, text); }

void chat__json(chat_pieces *pieces, const di_json *value) { di_json_write(&pieces->text, value); }

void chat__marker(chat_pieces *pieces, const char *marker) {
    chat_marker_span span = {pieces->text.size, strlen(marker)};
    di_buffer_append(&pieces->text, marker, span.size);
    di_buffer_append(&pieces->markers, &span, sizeof span);
}

void chat__image(chat_pieces *pieces, const di_json *record) {
    chat__marker(pieces, CHAT_IMAGE);
    di_buffer_append(&pieces->images, &record, sizeof record);
}

static void add_piece(di_chat_prompt *out, bool is_marker, const char *text, size_t size) {
    if (size == 0) return;
    out->pieces[out->n_pieces++] = (di_chat_piece){is_marker, text, size};
}

di_status chat__finish(const chat_pieces *pieces, di_arena *arena, di_chat_prompt *out,
                       di_error *error) {
    memset(out, 0, sizeof *out);
    if (pieces->text.failed || pieces->markers.failed || pieces->images.failed) goto memory;
    size_t n_markers = pieces->markers.size / sizeof(chat_marker_span);
    size_t size = pieces->text.size;
    const char *text = di_arena_strndup(arena, size ? pieces->text.data : "", size);
    out->pieces = di_arena_calloc(arena, 2 * n_markers + 1, sizeof *out->pieces);
    out->images = di_arena_alloc(arena, pieces->images.size);
    if (!text || !out->pieces || !out->images) goto memory;

    size_t at = 0;
    for (size_t i = 0; i < n_markers; i++) {
        chat_marker_span span;
        memcpy(&span, pieces->markers.data + i * sizeof span, sizeof span);
        add_piece(out, false, text + at, span.start - at);
        add_piece(out, true, text + span.start, span.size);
        at = span.start + span.size;
    }
    add_piece(out, false, text + at, size - at);
    out->n_images = pieces->images.size / sizeof *out->images;
    if (out->n_images) memcpy(out->images, pieces->images.data, pieces->images.size);
    return DI_OK;
memory:
    return di_fail(error, DI_ERR_MEMORY, "out of memory while encoding the conversation");
}

void chat__free(chat_pieces *pieces) {
    di_buffer_free(&pieces->text);
    di_buffer_free(&pieces->markers);
    di_buffer_free(&pieces->images);
}
