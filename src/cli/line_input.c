#include "cli/line_input.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef DI_HAVE_EDIT
#include <histedit.h>
#endif

#include "cli/terminal.h"

struct di_line_input {
    char prompt[32];
    bool terminal, continued; /* continued: the next line belongs to the same message */
    char *line;               /* of getline */
    size_t capacity;
#ifdef DI_HAVE_EDIT
    EditLine *edit;
    History *history;
#endif
};

static const char *prompt_now(const di_line_input *input) {
    return input->continued ? ". " : input->prompt;
}

#ifdef DI_HAVE_EDIT
static char *edit_prompt(EditLine *edit) {
    void *data = NULL;
    el_get(edit, EL_CLIENTDATA, &data);
    const di_line_input *input = data;
    static char empty[] = "", more[] = ". ";
    if (!input) return empty;
    return input->continued ? more : (char *)(uintptr_t)input->prompt;
}

static void open_editor(di_line_input *input) {
    HistEvent event;
    input->edit = el_init("deepinfer", stdin, stdout, stderr);
    input->history = history_init();
    if (!input->edit || !input->history) return;
    history(input->history, &event, H_SETSIZE, 1000);
    history(input->history, &event, H_SETUNIQUE, 1);
    el_set(input->edit, EL_CLIENTDATA, input);
    el_set(input->edit, EL_PROMPT, edit_prompt);
    el_set(input->edit, EL_EDITOR, "emacs");
    el_set(input->edit, EL_SIGNAL, 0); /* Ctrl-C is ours */
    el_set(input->edit, EL_HIST, history, input->history);
    el_set(input->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(input->edit, NULL); /* the user's ~/.editrc */
}
#endif

di_line_input *di_line_input_create(const char *prompt) {
    di_line_input *input = calloc(1, sizeof *input);
    if (!input) return NULL;
    snprintf(input->prompt, sizeof input->prompt, "%s", prompt);
    input->terminal = di_terminal_is(stdin) && di_terminal_is(stdout);
#ifdef DI_HAVE_EDIT
    if (input->terminal) open_editor(input);
#endif
    return input;
}

void di_line_input_destroy(di_line_input *input) {
    if (!input) return;
#ifdef DI_HAVE_EDIT
    if (input->edit) el_end(input->edit);
    if (input->history) history_end(input->history);
#endif
    free(input->line);
    free(input);
}

/* One line with its newline, owned by the input; NULL and *length -1 at the end or when
 * interrupted. */
static const char *read_line(di_line_input *input, ssize_t *length) {
    errno = 0;
#ifdef DI_HAVE_EDIT
    if (input->edit) {
        int n = 0;
        const char *line = el_gets(input->edit, &n);
        *length = line && n > 0 ? n : -1;
        return *length > 0 ? line : NULL;
    }
#endif
    if (input->terminal) {
        fputs(prompt_now(input), stdout);
        fflush(stdout);
    }
    *length = getline(&input->line, &input->capacity, stdin);
    return *length < 0 ? NULL : input->line;
}

/* More came with the same keystroke: only a paste does that. */
static bool more_is_waiting(const di_line_input *input) {
    struct pollfd one = {.fd = STDIN_FILENO, .events = POLLIN};
    return input->terminal && poll(&one, 1, 0) == 1 && (one.revents & POLLIN) != 0;
}

static di_line_result ended(const di_line_input *input, const di_buffer *out) {
    if (di_interrupt_seen() || errno == EINTR) {
        di_interrupt_clear();
        clearerr(stdin);
        if (input->terminal) fputs("^C\n", stdout);
        return DI_LINE_INTERRUPTED;
    }
    if (ferror(stdin)) return DI_LINE_FAILED;
    if (out->size > 0) return DI_LINE_TEXT; /* the file ended inside a message */
    if (input->terminal) fputc('\n', stdout);
    return DI_LINE_END;
}

static void remember(di_line_input *input, const di_buffer *message) {
#ifdef DI_HAVE_EDIT
    HistEvent event;
    if (input->history && message->size > 0) {
        history(input->history, &event, H_ENTER, message->data);
    }
#else
    (void)input;
    (void)message;
#endif
}

di_line_result di_line_input_read(di_line_input *input, di_buffer *out) {
    di_buffer_clear(out);
    di_interrupt_clear();
    input->continued = false;
    for (;;) {
        ssize_t n;
        const char *line = read_line(input, &n);
        if (!line) return ended(input, out);
        if (input->continued) di_buffer_putc(out, '\n');
        bool newline = line[n - 1] == '\n';
        if (newline) n--;
        input->continued = n > 0 && line[n - 1] == '\\';
        di_buffer_append(out, line, (size_t)n - (input->continued ? 1 : 0));
        if (out->failed) return DI_LINE_FAILED;
        if (!input->continued && newline) input->continued = more_is_waiting(input);
        if (!input->continued) break;
    }
    remember(input, out);
    return DI_LINE_TEXT;
}
