/* Manual pages as roff (man macros), made from the tables: deepinfer(1) and one page a verb. */
#include <string.h>

#include "cli/cli.h"
#include "cli/help_text.h"

/* Text with what roff would take for itself escaped: backslashes, hyphens that must stay hyphens,
 * quotes, which bound the arguments of a macro, and a dot or apostrophe at the start of a line. */
static void escaped(di_buffer *out, const char *text) {
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) di_buffer_puts(out, "\\&");
        line_start = *text == '\n';
        if (*text == '\\') {
            di_buffer_puts(out, "\\e");
        } else if (*text == '-') {
            di_buffer_puts(out, "\\-");
        } else if (*text == '"') {
            di_buffer_puts(out, "\\(dq");
        } else {
            di_buffer_putc(out, *text);
        }
    }
}

static void paragraphs(di_buffer *out, const char *text) {
    while (*text) {
        size_t n = strcspn(text, "\n");
        if (n == 0) {
            di_buffer_puts(out, ".PP\n");
        } else {
            di_buffer line = DI_BUFFER_EMPTY;
            di_buffer_append(&line, text, n);
            escaped(out, line.data ? line.data : "");
            di_buffer_putc(out, '\n');
            di_buffer_free(&line);
        }
        text += n + (text[n] == '\n');
    }
}

static void heading(di_buffer *out, const char *verb, const char *summary) {
    char upper[32] = "";
    size_t n = 0;
    for (; verb && verb[n] && n + 1 < sizeof upper; n++) {
        upper[n] = (char)(verb[n] >= 'a' && verb[n] <= 'z' ? verb[n] - 'a' + 'A' : verb[n]);
    }
    di_buffer_printf(out, ".TH DEEPINFER%s%s 1 \"\" \"deepinfer %s\"\n.SH NAME\ndeepinfer",
                     verb ? "\\-" : "", upper, di_version());
    if (verb) di_buffer_printf(out, "\\-%s", verb);
    di_buffer_puts(out, " \\- ");
    escaped(out, summary);
    di_buffer_puts(out, "\n.SH SYNOPSIS\n.B deepinfer\n");
}

static void option_entry(di_buffer *out, const di_option *option) {
    di_buffer text = DI_BUFFER_EMPTY;
    di_help_option_text(option, &text);
    di_buffer_puts(out, ".TP\n");
    if (option->letter) di_buffer_printf(out, "\\fB\\-%c\\fR, ", option->letter);
    di_buffer_printf(out, "\\fB\\-\\-%s", option->type == DI_TYPE_SWITCH ? "[no\\-]" : "");
    escaped(out, option->name);
    di_buffer_puts(out, "\\fR");
    if (option->value) di_buffer_printf(out, " \\fI%s\\fR", option->value);
    di_buffer_putc(out, '\n');
    escaped(out, text.data ? text.data : "");
    di_buffer_putc(out, '\n');
    di_buffer_free(&text);
}

static void verb_options(di_buffer *out, const di_verb *verb) {
    di_buffer_puts(out, ".SH OPTIONS\n");
    for (int group = 0; group < DI_N_GROUPS; group++) {
        bool titled = false;
        for (int i = 0; i < DI_N_OPTIONS; i++) {
            const di_option *option = &di_options[i];
            if ((int)option->group != group || !(option->verbs & DI_VERB_BIT(verb->id))) continue;
            if (!titled) di_buffer_printf(out, ".SS %s\n", di_help_group_title(option->group));
            titled = true;
            option_entry(out, option);
        }
    }
}

static void exit_status(di_buffer *out) {
    di_buffer_puts(out,
                   ".SH EXIT STATUS\n0 when done, 1 after a failure, 2 after a wrong option or "
                   "argument, 130 when stopped by Ctrl\\-C, 143 by SIGTERM. A failure is told in "
                   "one line on standard error.\n");
}

static void see_also(di_buffer *out, const di_verb *verb) {
    di_buffer_puts(out, ".SH SEE ALSO\n");
    bool first = true;
    if (verb) {
        di_buffer_puts(out, ".BR deepinfer (1)");
        first = false;
    }
    for (int i = 0; i < di_n_verbs; i++) {
        if (&di_verbs[i] == verb) continue;
        di_buffer_printf(out, "%s.BR deepinfer\\-%s (1)", first ? "" : ",\n", di_verbs[i].name);
        first = false;
    }
    di_buffer_putc(out, '\n');
}

static void overview_page(di_buffer *out) {
    heading(out, NULL, "inference for DeepSeek-V4.1-Flash");
    di_buffer_puts(out, ".I VERB\n[arguments] [options]\n.SH DESCRIPTION\n");
    escaped(out, "Runs DeepSeek-V4.1-Flash from the files of its release. MODEL is a directory as "
                 "the release ships it: config.json, tokenizer.json, *.safetensors.\n");
    di_buffer_puts(out, ".SH VERBS\n");
    for (int i = 0; i < di_n_verbs; i++) {
        di_buffer_printf(out, ".TP\n.BR deepinfer\\-%s (1)\n", di_verbs[i].name);
        escaped(out, di_verbs[i].summary);
        di_buffer_puts(out, ".\n");
    }
    exit_status(out);
    see_also(out, NULL);
}

void di_manual(const di_verb *verb, di_buffer *out) {
    if (!verb) {
        overview_page(out);
        return;
    }
    heading(out, verb->name, verb->summary);
    di_buffer_printf(out, ".B %s\n", verb->name);
    escaped(out, verb->arguments);
    di_buffer_puts(out, "\n[options]\n.SH DESCRIPTION\n");
    paragraphs(out, verb->description);
    verb_options(out, verb);
    if (verb->examples) {
        di_buffer_puts(out, ".SH EXAMPLES\n");
        for (const char *const *e = verb->examples; *e; e += 2) {
            di_buffer_puts(out, ".TP\n.B ");
            escaped(out, e[0]);
            di_buffer_putc(out, '\n');
            escaped(out, e[1]);
            di_buffer_puts(out, ".\n");
        }
    }
    exit_status(out);
    see_also(out, verb);
}
