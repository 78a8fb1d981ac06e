/* JSON: a strict reader into a tree, and a writer in the form of Python's json.dumps.
 *
 * Why our own: the chat format must give numbers back as Python prints them, integers of any size
 * to the last digit, members in the order received. Libraries keep doubles or 64-bit integers.
 *
 * Reader: RFC 8259, nothing more (no NaN, comments or trailing commas). Text must be valid UTF-8
 * without lone surrogates in escapes; a duplicate key in an object is an error (but for
 * di_json_parse_last); nesting is limited to DI_JSON_MAX_DEPTH. The tree lives in the caller's arena; strings are NUL-terminated copies
 * that may contain NUL themselves, so use their length. No function here blocks or keeps state.
 */
#ifndef DI_BASE_JSON_H
#define DI_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/error.h"

enum { DI_JSON_MAX_DEPTH = 128 };

typedef enum di_json_type {
    DI_JSON_NULL,
    DI_JSON_FALSE,
    DI_JSON_TRUE,
    DI_JSON_NUMBER,
    DI_JSON_STRING,
    DI_JSON_ARRAY,
    DI_JSON_OBJECT
} di_json_type;

typedef struct di_json {
    di_json_type type;
    uint32_t line;    /* where the value begins in the text, from 1; 0: not read from one */
    const char *text; /* NUMBER: as written; STRING: decoded UTF-8 */
    size_t length;    /* bytes of text; ARRAY, OBJECT: number of items */
    const char *key;  /* when a member of an object */
    size_t key_length;
    struct di_json *first, *next; /* items of an array or object; siblings, in order */
} di_json;

/* Parses exactly one value. `what` names the source in messages ("model/config.json").
 * On failure: "WHAT: line L, column C: reason". */
di_status di_json_parse(const char *text, size_t size, const char *what, di_arena *arena,
                        const di_json **out, di_error *error);
/* The same, but of members with the same key only the last is there, as JSON.parse and Python read them: for
 * what a model wrote. */
di_status di_json_parse_last(const char *text, size_t size, const char *what, di_arena *arena,
                             const di_json **out, di_error *error);

/* Member by key, or NULL; also NULL when `object` is NULL or no object. Linear in the members. */
const di_json *di_json_get(const di_json *object, const char *key);

/* Value as int64: true only for an integer in range, also written as 1.0 or 1e3. */
bool di_json_int64(const di_json *value, int64_t *out);
/* Value as double: any number. Overflow to infinity is false. */
bool di_json_double(const di_json *value, double *out);
bool di_json_bool(const di_json *value, bool *out);
/* True when a string equal to `text`. */
bool di_json_is_string(const di_json *value, const char *text);

/* Appends `value` as Python's json.dumps(value, ensure_ascii=False) prints json.loads(text):
 * ", " and ": ", floats by repr, integers to the last digit, escapes \" \\ \n \r \t \b \f \u00XX.
 */
void di_json_write(di_buffer *out, const di_json *value);
/* A quoted string, the same way. */
void di_json_write_string(di_buffer *out, const char *text, size_t length);
/* A number as Python's repr of json.loads: "1E5" -> 100000.0, "-0" -> 0 ("-0.0" stays). */
void di_json_write_number(di_buffer *out, const char *text, size_t length);

#endif
