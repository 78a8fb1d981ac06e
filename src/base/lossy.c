#include "base/lossy.h"

#include "base/json.h"
#include "base/utf8.h"

void di_lossy_write(di_buffer *out, const char *text, size_t size) {
    di_buffer whole = DI_BUFFER_EMPTY;
    while (size > 0) {
        size_t n = di_utf8_valid_prefix(text, size);
        di_buffer_append(&whole, text, n);
        text += n;
        size -= n;
        if (size > 0) {
            di_buffer_puts(&whole, "\xEF\xBF\xBD");
            text++;
            size--;
        }
    }
    if (whole.failed) out->failed = true;
    di_json_write_string(out, whole.data ? whole.data : "", whole.size);
    di_buffer_free(&whole);
}
