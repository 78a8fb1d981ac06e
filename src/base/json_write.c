/* The writer: what Python's json.dumps(..., ensure_ascii=False) prints. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

void di_json_write_string(di_buffer *out, const char *text, size_t length) {
    di_buffer_putc(out, '"');
    size_t run = 0; /* start of the bytes that need no escape */
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        di_buffer_append(out, text + run, i - run);
        run = i + 1;
        switch (c) {
        case '"': di_buffer_puts(out, "\\\""); break;
        case '\\': di_buffer_puts(out, "\\\\"); break;
        case '\n': di_buffer_puts(out, "\\n"); break;
        case '\r': di_buffer_puts(out, "\\r"); break;
        case '\t': di_buffer_puts(out, "\\t"); break;
        case '\b': di_buffer_puts(out, "\\b"); break;
        case '\f': di_buffer_puts(out, "\\f"); break;
        default: di_buffer_printf(out, "\\u%04x", c);
        }
    }
    di_buffer_append(out, text + run, length - run);
    di_buffer_putc(out, '"');
}

/* Adds one unit in the last digit of "d.ddde+xx"; false when that would carry over all digits. */
static bool step_up(char *text) {
    char *e = strchr(text, 'e');
    for (char *c = e - 1; c >= text; c--) {
        if (*c < '0' || *c > '9') continue;
        if (*c != '9') {
            ++*c;
            return true;
        }
        *c = '0';
    }
    return false;
}

/* Writes the shortest digits that read back as `value`, in the form of %e. Rounding to the nearest
 * is enough but at powers of two: doubles lie half as far apart below them, so that the nearest
 * short number may be too far below while the next one above still reads back. */
static void shortest_digits(char *text, size_t size, double value) {
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, size, "%.*e", precision, value);
        if (strtod(text, NULL) == value) return;
        if (fabs(strtod(text, NULL)) < fabs(value) && step_up(text) &&
            strtod(text, NULL) == value) {
            return;
        }
    }
}

/* Python's repr of a finite double: the shortest digits that read back, as 1.5, 100000.0, 1e+16. */
static void write_double(di_buffer *out, double value) {
    char text[32];
    shortest_digits(text, sizeof text, value);
    /* text is [-]d[.ddd]e[+-]xx: take its digits and exponent apart. */
    char digits[24];
    int n = 0;
    char *e = strchr(text, 'e');
    for (char *c = text; c < e; c++) {
        if (*c >= '0' && *c <= '9') digits[n++] = *c;
    }
    int exponent = atoi(e + 1); /* of the first digit */
    if (signbit(value)) di_buffer_putc(out, '-');
    if (exponent < -4 || exponent >= 16) {
        di_buffer_append(out, digits, 1);
        if (n > 1) di_buffer_putc(out, '.');
        di_buffer_append(out, digits + 1, (size_t)n - 1);
        di_buffer_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    if (exponent < 0) {
        di_buffer_puts(out, "0.");
        for (int i = -1; i > exponent; i--) di_buffer_putc(out, '0');
        di_buffer_append(out, digits, (size_t)n);
        return;
    }
    for (int i = 0; i <= exponent; i++) di_buffer_putc(out, i < n ? digits[i] : '0');
    di_buffer_putc(out, '.');
    if (n > exponent + 1) {
        di_buffer_append(out, digits + exponent + 1, (size_t)(n - exponent - 1));
    } else {
        di_buffer_putc(out, '0');
    }
}

void di_json_write_number(di_buffer *out, const char *text, size_t length) {
    bool is_float = false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '.' || text[i] == 'e' || text[i] == 'E') is_float = true;
    }
    if (!is_float) {
        bool minus_zero = length == 2 && text[0] == '-' && text[1] == '0';
        di_buffer_append(out, text + minus_zero, length - minus_zero);
        return;
    }
    char *copy = malloc(length + 1);
    if (!copy) {
        out->failed = true;
        return;
    }
    memcpy(copy, text, length);
    copy[length] = '\0';
    double value = strtod(copy, NULL);
    free(copy);
    if (isinf(value)) {
        di_buffer_puts(out, value < 0 ? "-Infinity" : "Infinity"); /* as Python does for 1e999 */
    } else {
        write_double(out, value);
    }
}

void di_json_write(di_buffer *out, const di_json *value) {
    switch (value->type) {
    case DI_JSON_NULL: di_buffer_puts(out, "null"); return;
    case DI_JSON_FALSE: di_buffer_puts(out, "false"); return;
    case DI_JSON_TRUE: di_buffer_puts(out, "true"); return;
    case DI_JSON_NUMBER: di_json_write_number(out, value->text, value->length); return;
    case DI_JSON_STRING: di_json_write_string(out, value->text, value->length); return;
    case DI_JSON_ARRAY:
    case DI_JSON_OBJECT: break;
    }
    di_buffer_putc(out, value->type == DI_JSON_ARRAY ? '[' : '{');
    for (const di_json *item = value->first; item; item = item->next) {
        if (item != value->first) di_buffer_puts(out, ", ");
        if (value->type == DI_JSON_OBJECT) {
            di_json_write_string(out, item->key, item->key_length);
            di_buffer_puts(out, ": ");
        }
        di_json_write(out, item);
    }
    di_buffer_putc(out, value->type == DI_JSON_ARRAY ? ']' : '}');
}
