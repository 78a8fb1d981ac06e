/* Options, and the prompt as a string. */
#include "text/chat.h"

#include <string.h>

di_chat_options di_chat_options_defaults(void) {
    return (di_chat_options){.thinking = true,
                             .reasoning_effort = 75,
                             .drop_thinking = true,
                             .add_bos = true};
}

/* A decimal 1..100 without sign or leading zero; 0 otherwise. */
static int parse_level(const char *text) {
    int value = 0;
    size_t n = strlen(text);
    if (n < 1 || n > 3 || text[0] == '0') return 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return 0;
        value = value * 10 + (text[i] - '0');
    }
    return value <= 100 ? value : 0;
}

di_status di_chat_effort(const char *name, di_chat_options *options, di_error *error) {
    static const struct {
        const char *name;
        int level;
    } known[] = {{"minimal", 50}, {"low", 50},  {"medium", 75}, {"high", 75},
                 {"xhigh", 75},   {"max", 100}, {"ultra", 100}};
    if (strcmp(name, "none") == 0) {
        options->thinking = false;
        return DI_OK;
    }
    int level = parse_level(name);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i].name) == 0) level = known[i].level;
    }
    if (level == 0) {
        return di_fail(error, DI_ERR_USAGE,
                       "must be none, minimal, low, medium, high, xhigh, max, ultra or a number "
                       "1..100, not '%.60s'",
                       name);
    }
    options->reasoning_effort = level;
    return DI_OK;
}

void di_chat_render(const di_chat_prompt *prompt, di_buffer *out) {
    for (size_t i = 0; i < prompt->n_pieces; i++) {
        di_buffer_append(out, prompt->pieces[i].text, prompt->pieces[i].size);
    }
}
