/* The streaming detokeniser: bytes in, whole characters out.
 *
 * Bytes that cannot become a character follow Unicode's recommended practice of "maximal subparts",
 * as Python's bytes.decode(errors="replace") does: a beginning that the next byte breaks is one
 * U+FFFD, and so is each byte that can begin nothing. The result does not depend on how the
 * bytes were cut into pushes.
 */
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

static void push_byte(di_detokenizer *stream, char byte, di_buffer *out) {
    for (;;) {
        size_t n = stream->n_held + 1;
        uint32_t code;
        stream->held[n - 1] = byte;
        if (di_utf8_decode(stream->held, n, &code) == n) {
            di_buffer_append(out, stream->held, n);
            stream->n_held = 0;
            return;
        }
        if (di_utf8_incomplete_tail(stream->held, n) == n) {
            stream->n_held = n;
            return;
        }
        di_buffer_puts(out, REPLACEMENT);
        stream->n_held = 0;
        if (n == 1) return; /* this byte itself begins nothing */
    }
}

void di_detokenizer_push(di_detokenizer *stream, const char *bytes, size_t size, di_buffer *out) {
    size_t at = 0;
    while (at < size) {
        if (stream->n_held == 0) {
            size_t whole = di_utf8_valid_prefix(bytes + at, size - at);
            di_buffer_append(out, bytes + at, whole);
            at += whole;
            if (at == size) return;
        }
        push_byte(stream, bytes[at++], out);
    }
}

void di_detokenizer_finish(di_detokenizer *stream, di_buffer *out) {
    if (stream->n_held) di_buffer_puts(out, REPLACEMENT);
    stream->n_held = 0;
}
