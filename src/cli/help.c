/* Help on the terminal, made from the tables: the overview, and one page a verb. */
#include <string.h>

#include "cli/cli.h"
#include "cli/help_text.h"

enum { COLUMNS = 80, INDENT = 28 };

static const char *const group_titles[DI_N_GROUPS] = {
    [DI_GROUP_PROMPT] = "Input",    [DI_GROUP_SAMPLING] = "Sampling", [DI_GROUP_SERVER] = "Server",
    [DI_GROUP_MACHINE] = "Machine", [DI_GROUP_OUTPUT] = "Output",
};

const char *di_help_group_title(di_option_group group) { return group_titles[group]; }

static void spaces(di_buffer *out, int n) {
    while (n-- > 0) di_buffer_putc(out, ' ');
}

/* Fills one paragraph, which starts at column `column` of a line that is begun already. */
static void fill_paragraph(di_buffer *out, const char *text, size_t size, int indent, int columns,
                           int column) {
    size_t at = 0;
    bool line_has_word = false;
    while (at < size) {
        size_t end = at;
        while (end < size && text[end] != ' ') end++;
        int width = (int)(end - at);
        if (line_has_word && column + 1 + width > columns) {
            di_buffer_putc(out, '\n');
            spaces(out, indent);
            column = indent;
            line_has_word = false;
        }
        if (line_has_word) {
            di_buffer_putc(out, ' ');
            column++;
        }
        di_buffer_append(out, text + at, end - at);
        column += width;
        line_has_word = true;
        at = end;
        while (at < size && text[at] == ' ') at++;
    }
    di_buffer_putc(out, '\n');
}

void di_help_fill(di_buffer *out, const char *text, int indent, int columns) {
    while (*text) {
        size_t size = strcspn(text, "\n");
        if (size > 0) {
            spaces(out, indent);
            fill_paragraph(out, text, size, indent, columns, indent);
        } else {
            di_buffer_putc(out, '\n');
        }
        text += size;
        if (*text == '\n') text++;
    }
}

/* "  -q, --quiet", "      --top-k N" */
static void option_head(di_buffer *out, const di_option *option) {
    if (option->letter) {
        di_buffer_printf(out, "  -%c, ", option->letter);
    } else {
        di_buffer_puts(out, "      ");
    }
    di_buffer_printf(out, "--%s%s", option->type == DI_TYPE_SWITCH ? "[no-]" : "", option->name);
    if (option->value) di_buffer_printf(out, " %s", option->value);
}

void di_help_option_text(const di_option *option, di_buffer *out) {
    di_buffer_puts(out, option->help);
    if (option->type == DI_TYPE_INT || option->type == DI_TYPE_REAL ||
        option->type == DI_TYPE_SIZE || option->type == DI_TYPE_CHOICE) {
        di_buffer range = DI_BUFFER_EMPTY;
        di_option_describe(option, &range);
        di_buffer_printf(out, " Value: %s.", range.data ? range.data : "");
        di_buffer_free(&range);
    }
    if (option->type == DI_TYPE_FLAG) return;
    const char *without = option->default_note ? option->default_note : option->default_value;
    if (without) di_buffer_printf(out, " Default: %s.", without);
}

static void option_entry(di_buffer *out, const di_option *option) {
    size_t before = out->size;
    option_head(out, option);
    int column = (int)(out->size - before);
    di_buffer text = DI_BUFFER_EMPTY;
    di_help_option_text(option, &text);
    if (column + 2 > INDENT) {
        di_buffer_putc(out, '\n');
        column = 0;
    }
    spaces(out, INDENT - column);
    if (text.data) fill_paragraph(out, text.data, text.size, INDENT, COLUMNS, INDENT);
    di_buffer_free(&text);
}

void di_help_verb(const di_verb *verb, di_buffer *out) {
    di_buffer_printf(out, "Usage: deepinfer %s %s%s[options]\n\n", verb->name, verb->arguments,
                     *verb->arguments ? " " : "");
    di_help_fill(out, verb->description, 0, COLUMNS);
    for (int group = 0; group < DI_N_GROUPS; group++) {
        bool titled = false;
        for (int i = 0; i < DI_N_OPTIONS; i++) {
            const di_option *option = &di_options[i];
            if ((int)option->group != group || !(option->verbs & DI_VERB_BIT(verb->id))) continue;
            if (!titled) di_buffer_printf(out, "\n%s\n", group_titles[group]);
            titled = true;
            option_entry(out, option);
        }
    }
    if (verb->examples) {
        di_buffer_puts(out, "\nExamples\n");
        for (const char *const *e = verb->examples; *e; e += 2) {
            di_buffer_printf(out, "  %s\n      %s\n", e[0], e[1]);
        }
    }
}

void di_help_overview(di_buffer *out) {
    di_buffer_puts(out, "deepinfer: inference for DeepSeek-V4.1-Flash\n\n"
                        "Usage: deepinfer VERB [arguments] [options]\n\n");
    for (int i = 0; i < di_n_verbs; i++) {
        di_buffer_printf(out, "  %-10s %s\n", di_verbs[i].name, di_verbs[i].summary);
    }
    di_buffer_puts(
        out,
        "\nMODEL is a directory as the release ships it: config.json, "
        "tokenizer.json,\n*.safetensors. 'deepinfer help VERB' explains a verb and its options,\n"
        "'deepinfer --version' tells the version.\n");
}
