#include "cli/lines.h"

#include <string.h>

static bool is_blank(const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    }
    return true;
}

bool di_lines_next(di_lines *lines, const char **text, size_t *size) {
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin UTF-8 with it */
    if (lines->at == 0 && lines->size >= 3 && memcmp(lines->data, mark, 3) == 0) lines->at = 3;
    while (lines->at < lines->size) {
        const char *begin = lines->data + lines->at;
        size_t left = lines->size - lines->at;
        const char *end = memchr(begin, '\n', left);
        *text = begin;
        *size = end ? (size_t)(end - begin) : left;
        lines->number++;
        lines->at += *size + (end != NULL);
        if (!is_blank(*text, *size)) return true;
    }
    return false;
}
