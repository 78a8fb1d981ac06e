#include "support/tokenizer_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

void tokenizer_text_spell(unsigned char byte, char spelling[4]) {
    uint32_t code = 256; /* bytes that are not printable Latin-1 follow one another from there */
    for (unsigned b = 0; b <= byte; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte && itself) code = byte;
        if (b < byte && !itself) code++;
    }
    spelling[di_utf8_encode(code, spelling)] = '\0';
}

static void write_string(di_buffer *out, const char *text) {
    di_json_write_string(out, text, strlen(text));
}

static void write_split(di_buffer *out, const char *regex) {
    di_buffer_puts(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    write_string(out, regex);
    di_buffer_puts(out, "}, \"behavior\": \"Isolated\", \"invert\": false}, ");
}

static void write_form(di_buffer *out) {
    di_buffer_puts(out, "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": []},\n"
                        "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [");
    write_split(out, "\\p{N}{1,3}");
    write_split(out, "[一-龥぀-ゟ゠-ヿ]+");
    write_split(out, "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                     "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
                     "\\s*[\r\n]+|\\s+(?!\\S)|\\s+");
    di_buffer_puts(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                        "\"trim_offsets\": true, \"use_regex\": false}]},\n"
                        "\"post_processor\": {\"type\": \"ByteLevel\"},\n"
                        "\"decoder\": {\"type\": \"ByteLevel\"},\n");
}

static void write_model(di_buffer *out, const char *const *words, const char *const *merges) {
    di_buffer_puts(out, "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                        "\"byte_fallback\": false, \"ignore_merges\": false,\n\"vocab\": {");
    for (int byte = 0; byte < 256; byte++) {
        char spelling[4];
        tokenizer_text_spell((unsigned char)byte, spelling);
        if (byte) di_buffer_puts(out, ", ");
        write_string(out, spelling);
        di_buffer_printf(out, ": %d", byte);
    }
    for (int i = 0; words && words[i]; i++) {
        di_buffer_puts(out, ", ");
        write_string(out, words[i]);
        di_buffer_printf(out, ": %d", 256 + i);
    }
    di_buffer_puts(out, "},\n\"merges\": [");
    for (int i = 0; merges && merges[i]; i++) {
        if (i) di_buffer_puts(out, ", ");
        write_string(out, merges[i]);
    }
    di_buffer_puts(out, "]}");
}

char *tokenizer_text(const char *const *words, const char *const *merges,
                     const char *const *added) {
    di_buffer out = DI_BUFFER_EMPTY;
    di_buffer_puts(&out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n"
                         "\"added_tokens\": [");
    for (int i = 0; added && added[i]; i++)
        di_buffer_printf(&out, "%s{%s}", i ? ", " : "", added[i]);
    di_buffer_puts(&out, "],\n");
    write_form(&out);
    write_model(&out, words, merges);
    di_buffer_puts(&out, "}\n");
    if (out.failed) abort();
    return out.data;
}
