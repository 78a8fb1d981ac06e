/* The splitter. The three steps, each splitting what the one before left, every match a piece of
 * its own and what lies between matches too:
 *
 *   1. \p{N}{1,3}
 *   2. [一-龥぀-ゟ゠-ヿ]+   (U+4E00-9FA5, U+3040-309F, U+30A0-30FF)
 *   3. the first of these that matches at a position:
 *      a. one ASCII punctuation character, then ASCII letters
 *      b. [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
 *      c.  ?[\p{P}\p{S}]+[\r\n]*
 *      d. \s*[\r\n]+
 *      e. \s+(?!\S)
 *      f. \s+
 *
 * A step sees only its own piece: the end of a piece is an end of text for (?!\S), and a space
 * before a kana does not join it. Here that is a *segment*: a run of characters that are not
 * numbers and are all inside or all outside the set of step 2. Numbers never reach step 3 with
 * anything to match, so a piece of step 1 is final. No later step looks behind itself, so a piece
 * depends only on the text from its start on.
 *
 * \s is the property White_Space (Oniguruma, which the `tokenizers` library uses, takes it so for
 * UTF-8): U+0009-000D, 0020, 0085, 00A0, 1680, 2000-200A, 2028, 2029, 202F, 205F, 3000. Not
 * U+001C-001F (Python's isspace), U+180E (PCRE2), U+FEFF (JavaScript).
 */
#include "text/pretokenize.h"

#include <stdint.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode_class.h"

/* The third is too long for a line. */
#define STEP_3_WORDS                                                                               \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
#define STEP_3_OTHERS " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

const char *const di_pretokenize_patterns[3] = {
    "\\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    STEP_3_WORDS STEP_3_OTHERS,
};

enum { WORD = DI_UNICODE_LETTER | DI_UNICODE_MARK };

/* A segment ends before a character that differs from its first one in these bits. */
enum { SEGMENT = DI_UNICODE_NUMBER | DI_UNICODE_CJK };

/* Class of the character at `at`, and its length in bytes. */
static inline uint8_t class_at(const char *at, const char *end, size_t *length) {
    unsigned char c = (unsigned char)*at;
    if (c < 0x80) {
        *length = 1;
        return di_unicode_class_block[0][c]; /* the first block is ASCII */
    }
    uint32_t code;
    *length = di_utf8_decode(at, (size_t)(end - at), &code);
    if (*length == 0) {
        *length = 1;
        return 0;
    }
    return di_unicode_class(code);
}

/* Behind the run of characters from `at` on that have one of the bits `any` and belong to the
 * segment of a character of class `first`. */
static inline const char *skip(const char *at, const char *end, uint8_t any, uint8_t first) {
    size_t length;
    while (at < end) {
        uint8_t class = class_at(at, end, &length);
        if (!(class & any) || ((class ^ first) & SEGMENT)) break;
        at += length;
    }
    return at;
}

static const char *skip_ascii_letters(const char *at, const char *end) {
    while (at < end && (unsigned)((*at | 32) - 'a') < 26) at++;
    return at;
}

static const char *skip_newlines(const char *at, const char *end) {
    while (at < end && (*at == '\r' || *at == '\n')) at++;
    return at;
}

/* Step 1. */
static const char *numbers(const char *at, const char *end) {
    size_t length;
    for (int i = 0; i < 3 && at < end; i++, at += length) {
        if (!(class_at(at, end, &length) & DI_UNICODE_NUMBER)) break;
    }
    return at;
}

/* Alternatives d, e, f at a character of white space. */
static const char *blanks(const char *at, const char *end) {
    const char *newline = NULL, *last = at,
               *c = at; /* behind the last CR or LF; start of the last */
    size_t length;
    uint8_t class = DI_UNICODE_SPACE;
    while (c < end) {
        class = class_at(c, end, &length);
        if (!(class & DI_UNICODE_SPACE)) break;
        last = c;
        c += length;
        if (class & DI_UNICODE_NEWLINE) newline = c;
    }
    if (newline) return newline;
    bool segment_ends = c == end || (class & SEGMENT);
    return segment_ends || last == at ? c : last; /* (?!\S) leaves the last blank to what follows */
}

/* Characters that no alternative matches (controls, unassigned, private, formats, bad bytes) are a
 * piece together; the last of them goes to b as its optional first character if a word follows. */
static const char *unmatched(const char *at, const char *end, uint8_t first) {
    size_t length;
    const char *last = at, *c = at;
    while (c < end) {
        uint8_t class = class_at(c, end, &length);
        if ((class ^ first) & SEGMENT) break;
        if (class & ~SEGMENT) return class & WORD ? last : c;
        last = c;
        c += length;
    }
    return c;
}

/* Step 3 at a character of class `first` and `length` bytes, within its segment. */
static const char *third(const char *at, const char *end, uint8_t first, size_t length) {
    const char *next = at + length;
    size_t next_length;
    uint8_t second = next < end ? class_at(next, end, &next_length) : 0;
    bool joined = next < end && !((second ^ first) & SEGMENT);
    if (first & DI_UNICODE_ASCII_PUNCT) { /* a */
        const char *letters = skip_ascii_letters(next, end);
        if (letters > next) return letters;
    }
    if (first & WORD) return skip(next, end, WORD, first); /* b without its first character */
    if (!(first & (DI_UNICODE_NEWLINE | DI_UNICODE_SYMBOL)) && joined && (second & WORD)) {
        return skip(next, end, WORD, first);
    }
    if (first & DI_UNICODE_SYMBOL ||
        (*at == ' ' && joined && (second & DI_UNICODE_SYMBOL))) { /* c */
        const char *behind = skip(next, end, DI_UNICODE_SYMBOL, first);
        return first & DI_UNICODE_CJK ? behind : skip_newlines(behind, end);
    }
    return first & DI_UNICODE_SPACE ? blanks(at, end) : unmatched(at, end, first);
}

size_t di_pretokenize_next(const char *text, size_t size) {
    const char *end = text + size;
    size_t length;
    uint8_t first = class_at(text, end, &length);
    const char *behind =
        first & DI_UNICODE_NUMBER ? numbers(text, end) : third(text, end, first, length);
    return (size_t)(behind - text);
}

bool di_pretokenize_is_step(const char *pattern, size_t length, int step) {
    const char *want = di_pretokenize_patterns[step];
    for (size_t i = 0; i < length; i++) {
        char c = pattern[i];
        if (c == '\\' && i + 1 < length && pattern[i + 1] == '"') continue;
        if (c == '\r' || c == '\n') {
            if (want[0] != '\\' || want[1] != (c == '\r' ? 'r' : 'n')) return false;
            want += 2;
        } else if (c != *want++ || c == '\0') {
            return false;
        }
    }
    return *want == '\0';
}
