#include "server/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "prefixNUMBER]" at the beginning of *text, which then goes on behind it. */
static bool take_index(const char **text, const char *prefix, size_t *out) {
    size_t n = strlen(prefix);
    char *end;
    if (strncmp(*text, prefix, n) != 0 || (*text)[n] < '0' || (*text)[n] > '9') return false;
    *out = strtoul(*text + n, &end, 10);
    if (*end != ']') return false;
    *text = end + 1;
    return true;
}

void di_places_rename(di_place_name name, const void *user, di_error *error) {
    static const char content[] = ".content";
    const char *rest = error->message;
    di_place place = {.call = -1};
    size_t n = sizeof content - 1, call;
    char out[sizeof error->message], where[200];
    if (!take_index(&rest, "messages[", &place.message)) return;
    if (take_index(&rest, ".tool_calls[", &call)) {
        place.call = (int64_t)call;
    } else if (strncmp(rest, content, n) == 0 && strchr("[.:", rest[n])) {
        place.content = true;
        rest += n;
    }
    name(user, &place, where, sizeof where);
    snprintf(out, sizeof out, "%s%.*s", where, (int)(sizeof out - sizeof where), rest);
    memcpy(error->message, out, sizeof out);
}
