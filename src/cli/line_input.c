/* All bytes come through next_byte, which waits for the terminal and for Ctrl-C at the same time;
 * libedit gets its characters from there as well.
 */
#include "cli/line_input.h"

#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef DI_HAVE_EDIT
#include <histedit.h>
#endif

#include "cli/terminal.h"

struct di_line_input {
    char prompt[32];
    bool terminal;
    bool continued;   /* the next line belongs to the same message */
    int end;          /* why next_byte gave nothing: 0 the end, or an errno; EINTR: Ctrl-C */
    di_buffer line;   /* of the plain reader */
    char bytes[4096]; /* read from stdin, not taken yet: [at, size) */
    size_t at, size;
#ifdef DI_HAVE_EDIT
    EditLine *edit;
    History *history;
#endif
};

/* One byte of stdin; false with input->end set when there is none. `most` bytes are read ahead. */
static bool next_byte(di_line_input *input, size_t most, char *out) {
    while (input->at == input->size) {
        if (!di_interrupt_wait(STDIN_FILENO)) {
            input->end = EINTR;
            return false;
        }
        ssize_t n = read(STDIN_FILENO, input->bytes, most);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            input->end = n < 0 ? errno : 0;
            return false;
        }
        input->at = 0;
        input->size = (size_t)n;
    }
    *out = input->bytes[input->at++];
    return true;
}

/* ---- With libedit ---- */

#ifdef DI_HAVE_EDIT
static di_line_input *input_of(EditLine *edit) {
    void *data = NULL;
    el_get(edit, EL_CLIENTDATA, &data);
    return data;
}

static char *edit_prompt(EditLine *edit) {
    static char more[] = ". ";
    di_line_input *input = input_of(edit);
    return input->continued ? more : input->prompt;
}

/* One byte at a time: what comes after the line stays with the system, where poll sees it. */
static int edit_character(EditLine *edit, wchar_t *out) {
    di_line_input *input = input_of(edit);
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        char byte;
        if (!next_byte(input, 1, &byte)) return input->end ? -1 : 0;
        if (byte == '\0') continue; /* what becomes of a Ctrl-D typed before the prompt was there */
        size_t n = mbrtowc(out, &byte, 1, &state);
        if (n <= 1) return 1;
        if (n == (size_t)-1) memset(&state, 0, sizeof state); /* not a character: left out */
    }
}

static void open_editor(di_line_input *input) {
    HistEvent event;
    /* For the characters alone; a locale without UTF-8 would take multi-byte ones apart. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX < 4) setlocale(LC_CTYPE, "C.UTF-8");
    input->edit = el_init("deepinfer", stdin, stdout, stderr);
    input->history = history_init();
    if (!input->edit || !input->history) return;
    history(input->history, &event, H_SETSIZE, 1000);
    history(input->history, &event, H_SETUNIQUE, 1);
    el_set(input->edit, EL_CLIENTDATA, input);
    el_set(input->edit, EL_GETCFN, edit_character);
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
    di_buffer_free(&input->line);
    free(input);
}

/* ---- Lines and messages ---- */

static const char *plain_line(di_line_input *input, size_t *size) {
    char byte = 0;
    if (input->terminal) {
        fputs(input->continued ? ". " : input->prompt, stdout);
        fflush(stdout);
    }
    di_buffer_clear(&input->line);
    while (byte != '\n' && next_byte(input, sizeof input->bytes, &byte)) {
        di_buffer_putc(&input->line, byte);
    }
    if (input->line.failed) input->end = ENOMEM;
    *size = input->line.size;
    return *size > 0 && !input->line.failed && input->end != EINTR ? input->line.data : NULL;
}

/* One line with its newline, owned by the input; NULL when there is none, see input->end. */
static const char *read_line(di_line_input *input, size_t *size) {
    input->end = 0;
#ifdef DI_HAVE_EDIT
    if (input->edit) {
        int n = 0;
        el_resize(input->edit); /* the window may have changed during the answer */
        const char *line = el_gets(input->edit, &n);
        if (!line || n <= 0) return NULL;
        *size = (size_t)n;
        return line;
    }
#endif
    return plain_line(input, size);
}

/* More came with the same keystroke: only a paste does that. */
static bool more_is_waiting(const di_line_input *input) {
    struct pollfd one = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!input->terminal) return false;
    return input->at < input->size || (poll(&one, 1, 0) == 1 && (one.revents & POLLIN) != 0);
}

static di_line_result ended(const di_line_input *input, const di_buffer *out) {
    if (input->end == EINTR) {
        di_interrupt_clear();
        if (input->terminal) fputc('\n', stdout);
        return DI_LINE_INTERRUPTED;
    }
    if (input->end != 0 && input->end != EIO)
        return DI_LINE_FAILED;              /* EIO: the terminal has gone */
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
        size_t n;
        const char *line = read_line(input, &n);
        if (!line) return ended(input, out);
        if (input->continued) di_buffer_putc(out, '\n');
        bool newline = line[n - 1] == '\n';
        if (newline) n--;
        input->continued = n > 0 && line[n - 1] == '\\';
        di_buffer_append(out, line, n - (input->continued ? 1 : 0));
        if (out->failed) return DI_LINE_FAILED;
        if (!input->continued && newline) input->continued = more_is_waiting(input);
        if (!input->continued) break;
    }
    remember(input, out);
    return DI_LINE_TEXT;
}
