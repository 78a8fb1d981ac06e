#include "server/token_json.h"

#include <math.h>

#include "base/lossy.h"

void di_write_logprob(di_buffer *out, float logprob) {
    if (isfinite(logprob)) {
        di_buffer_printf(out, "%.7g", (double)logprob);
    } else {
        di_buffer_puts(out, "null");
    }
}

void di_write_token(di_buffer *out, const di_tokenizer *tokenizer, int32_t id) {
    size_t size;
    const char *bytes = di_tokenizer_bytes(tokenizer, id, &size);
    di_lossy_write(out, bytes ? bytes : "", size);
}

void di_write_token_entry(di_buffer *out, const di_tokenizer *tokenizer, int32_t id,
                          float logprob) {
    size_t size;
    const char *bytes = di_tokenizer_bytes(tokenizer, id, &size);
    di_buffer_puts(out, "{\"token\": ");
    di_write_token(out, tokenizer, id);
    di_buffer_puts(out, ", \"logprob\": ");
    di_write_logprob(out, logprob);
    di_buffer_puts(out, ", \"bytes\": [");
    for (size_t i = 0; i < size; i++) {
        di_buffer_printf(out, "%s%u", i ? ", " : "", (unsigned)(unsigned char)bytes[i]);
    }
    di_buffer_putc(out, ']');
}
