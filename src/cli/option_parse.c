/* Command line to values, by the table alone. Strict: every value is checked here, so that verbs
 * need not look again, and a mistake is told with what would have been right.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/option_suggest.h"

/* ---- Describing ---- */

static void append_number(di_buffer *out, double value) {
    if (value == floor(value) && fabs(value) < 1e15) {
        di_buffer_printf(out, "%.0f", value);
    } else {
        di_buffer_printf(out, "%g", value);
    }
}

static void append_size(di_buffer *out, double bytes) {
    static const char suffixes[] = "KMGT";
    int i = -1;
    while (i < 3 && bytes >= 1024) {
        bytes /= 1024;
        i++;
    }
    di_buffer_printf(out, "%g", bytes);
    if (i >= 0) di_buffer_putc(out, suffixes[i]);
}

static void append_choices(di_buffer *out, const char *choices) {
    for (const char *c = choices; *c; c++) {
        if (*c == '|') {
            di_buffer_puts(out, ", ");
        } else {
            di_buffer_putc(out, *c);
        }
    }
}

void di_option_describe(const di_option *option, di_buffer *out) {
    switch (option->type) {
    case DI_TYPE_INT:
    case DI_TYPE_REAL:
        di_buffer_puts(out,
                       option->type == DI_TYPE_INT ? "a whole number from " : "a number from ");
        append_number(out, option->min);
        di_buffer_puts(out, " to ");
        append_number(out, option->max);
        if (option->unit) di_buffer_printf(out, " (%s)", option->unit);
        break;
    case DI_TYPE_SEED:
        di_buffer_printf(out, "a whole number from 0 to %" PRIu64, UINT64_MAX);
        break;
    case DI_TYPE_SIZE:
        di_buffer_puts(out, "a number of bytes from ");
        append_size(out, option->min);
        di_buffer_puts(out, " to ");
        append_size(out, option->max);
        di_buffer_printf(out, ", such as %s", option->max >= 8.0 * (1 << 30) ? "8G" : "8M");
        break;
    case DI_TYPE_CHOICE:
        di_buffer_puts(out, "one of ");
        append_choices(out, option->choices);
        break;
    case DI_TYPE_SWITCH: di_buffer_puts(out, "yes or no"); break;
    case DI_TYPE_FILE: di_buffer_puts(out, "a file name"); break;
    case DI_TYPE_DIR: di_buffer_puts(out, "a directory"); break;
    case DI_TYPE_TEXT:
    case DI_TYPE_LIST:
    case DI_TYPE_FLAG: di_buffer_puts(out, option->value ? option->value : "no value"); break;
    }
}

/* "WHAT: 'TEXT' is not DESCRIPTION" */
static di_status refuse(const di_option *option, const char *what, const char *text,
                        di_error *error) {
    di_buffer description = DI_BUFFER_EMPTY;
    di_option_describe(option, &description);
    di_status status = di_fail(error, DI_ERR_USAGE, "%s: '%.100s' is not %s", what, text,
                               description.data ? description.data : "accepted");
    di_buffer_free(&description);
    return status;
}

/* ---- Values ---- */

/* Plain decimal only: strtod alone would also take "nan", "inf", "0x10" and leading spaces. */
static bool read_real(const char *text, double *out, const char **end) {
    const char *c = text;
    if (*c == '-' || *c == '+') c++;
    if (!((*c >= '0' && *c <= '9') || (*c == '.' && c[1] >= '0' && c[1] <= '9'))) return false;
    if (*c == '0' && (c[1] == 'x' || c[1] == 'X')) return false;
    char *stop;
    errno = 0;
    *out = strtod(text, &stop);
    *end = stop;
    return isfinite(*out);
}

static bool read_integer(const char *text, int64_t *out) {
    const char *c = text + (*text == '-');
    if (!*c || strspn(c, "0123456789") != strlen(c)) return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

static bool read_seed(const char *text, uint64_t *out) {
    if (!*text || strspn(text, "0123456789") != strlen(text)) return false;
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return errno == 0;
}

static bool read_size(const char *text, double *out) {
    const char *end;
    if (!read_real(text, out, &end)) return false;
    if (*end == '\0') return true;
    static const char suffixes[] = "KMGT", small[] = "kmgt";
    const char *suffix = strchr(suffixes, *end);
    if (!suffix) {
        suffix = strchr(small, *end);
        if (!suffix) return false;
        suffix = suffixes + (suffix - small);
    }
    for (const char *s = suffixes; s <= suffix; s++) *out *= 1024;
    return end[1] == '\0' || strcmp(end + 1, "iB") == 0 || strcmp(end + 1, "B") == 0;
}

static bool in_choices(const char *choices, const char *text) {
    size_t length = strlen(text);
    for (const char *c = choices; c; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        size_t n = strcspn(c, "|");
        if (n == length && memcmp(c, text, n) == 0) return true;
    }
    return false;
}

static bool read_value(const di_option *option, const char *text, di_value *out) {
    const char *end;
    double size;
    switch (option->type) {
    case DI_TYPE_INT:
        return read_integer(text, &out->integer) && (double)out->integer >= option->min &&
               (double)out->integer <= option->max;
    case DI_TYPE_SEED: return read_seed(text, &out->unsigned_64);
    case DI_TYPE_REAL:
        return read_real(text, &out->real, &end) && *end == '\0' && out->real >= option->min &&
               out->real <= option->max;
    case DI_TYPE_SIZE:
        if (!read_size(text, &size) || size < option->min || size > option->max) return false;
        out->unsigned_64 = (uint64_t)size;
        return true;
    case DI_TYPE_CHOICE: out->text = text; return in_choices(option->choices, text);
    case DI_TYPE_SWITCH:
        out->flag = strcmp(text, "yes") == 0;
        return out->flag || strcmp(text, "no") == 0;
    case DI_TYPE_TEXT: out->text = text; return true;
    case DI_TYPE_FILE:
    case DI_TYPE_DIR: out->text = text; return *text != '\0';
    case DI_TYPE_FLAG:
    case DI_TYPE_LIST: break;
    }
    return false;
}

di_status di_option_read(const di_option *option, const char *what, const char *text, di_value *out,
                         di_error *error) {
    di_value value = *out;
    if (!read_value(option, text, &value)) return refuse(option, what, text, error);
    *out = value;
    return DI_OK;
}

/* ---- Finding ---- */

bool di_option_is_taken(const di_verb *verb, const di_option *option) {
    return (option->verbs & DI_VERB_BIT(verb->id)) != 0;
}

const di_option *di_option_find(const di_verb *verb, const char *name) {
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (di_option_is_taken(verb, &di_options[i]) && strcmp(di_options[i].name, name) == 0) {
            return &di_options[i];
        }
    }
    return NULL;
}

/* ---- The command line ---- */

typedef struct di_parse {
    const di_verb *verb;
    int argc, at;
    char *const *argv;
    di_args *args;
} di_parse;

bool di_option_has_value(const di_option *option) {
    return option->type != DI_TYPE_FLAG && option->type != DI_TYPE_SWITCH;
}

static di_status add_item(di_parse *parse, di_value *value, const char *text, di_error *error) {
    if (!value->items) {
        value->items = malloc((size_t)parse->argc * sizeof *value->items);
        if (!value->items) return di_fail(error, DI_ERR_MEMORY, "out of memory parsing options");
    }
    value->items[value->n_items++] = text;
    return DI_OK;
}

/* `inline_value` is what stood behind '=', or NULL. */
static di_status set_option(di_parse *parse, const di_option *option, const char *inline_value,
                            di_error *error) {
    di_value *value = &parse->args->values[option - di_options];
    if (!di_option_has_value(option)) {
        if (inline_value) {
            return di_fail(error, DI_ERR_USAGE, "--%s takes no value", option->name);
        }
        value->given = value->flag = true;
        return DI_OK;
    }
    const char *text = inline_value;
    if (!text) {
        if (parse->at == parse->argc) {
            di_buffer description = DI_BUFFER_EMPTY;
            di_option_describe(option, &description);
            di_status status = di_fail(error, DI_ERR_USAGE, "--%s needs a value: %s", option->name,
                                       description.data ? description.data : "");
            di_buffer_free(&description);
            return status;
        }
        text = parse->argv[parse->at++];
    }
    char what[DI_OPTION_NAME + 2] = "--";
    strncat(what, option->name, DI_OPTION_NAME - 1);
    value->given = true;
    if (option->type == DI_TYPE_LIST) return add_item(parse, value, text, error);
    return di_option_read(option, what, text, value, error);
}

static di_status parse_long(di_parse *parse, const char *given, di_error *error) {
    char name[2 * DI_OPTION_NAME];
    size_t length = strcspn(given + 2, "=");
    const char *inline_value = given[2 + length] == '=' ? given + 2 + length + 1 : NULL;
    if (length >= sizeof name) length = sizeof name - 1;
    memcpy(name, given + 2, length);
    name[length] = '\0';
    const di_option *option = di_option_find(parse->verb, name);
    if (option) return set_option(parse, option, inline_value, error);
    if (strncmp(name, "no-", 3) == 0) {
        option = di_option_find(parse->verb, name + 3);
        if (option && option->type == DI_TYPE_SWITCH && !inline_value) {
            di_value *value = &parse->args->values[option - di_options];
            value->given = true;
            value->flag = false;
            return DI_OK;
        }
    }
    return di_option_unknown(parse->verb, given, name, error);
}

static di_status parse_letter(di_parse *parse, const char *given, di_error *error) {
    for (int i = 0; i < DI_N_OPTIONS && given[2] == '\0'; i++) {
        const di_option *option = &di_options[i];
        if (di_option_is_taken(parse->verb, option) && option->letter == given[1]) {
            return set_option(parse, option, NULL, error);
        }
    }
    return di_option_unknown(parse->verb, given, given + 1, error);
}

static di_status check_positional(const di_args *args, di_error *error) {
    const di_verb *verb = args->verb;
    if (args->n_positional < verb->min_args) {
        return di_fail(error, DI_ERR_USAGE, "an argument is missing; usage: deepinfer %s %s",
                       verb->name, verb->arguments);
    }
    if (verb->max_args >= 0 && args->n_positional > verb->max_args) {
        return di_fail(error, DI_ERR_USAGE,
                       "unexpected argument '%.60s' (text of several words needs quotes); usage: "
                       "deepinfer %s %s",
                       args->positional[verb->max_args], verb->name, verb->arguments);
    }
    return DI_OK;
}

static di_status check_conflicts(const di_args *args, di_error *error) {
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        for (int j = 0; args->values[i].given && j < DI_N_OPTIONS; j++) {
            if (!args->values[j].given) continue;
            if (!in_choices(di_options[i].conflicts, di_options[j].name)) continue;
            return di_fail(error, DI_ERR_USAGE, "--%s means nothing with --%s; leave out one",
                           di_options[j].name, di_options[i].name);
        }
    }
    return DI_OK;
}

static void set_defaults(di_args *args) {
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (!di_options[i].default_value) continue;
        bool ok = read_value(&di_options[i], di_options[i].default_value, &args->values[i]);
        assert(ok);
        (void)ok;
    }
}

di_status di_args_parse(const di_verb *verb, int argc, char *const *argv, di_args *out,
                        di_error *error) {
    memset(out, 0, sizeof *out);
    out->verb = verb;
    set_defaults(out);
    out->positional = malloc(((size_t)argc + 1) * sizeof *out->positional);
    if (!out->positional) return di_fail(error, DI_ERR_MEMORY, "out of memory parsing options");
    di_parse parse = {verb, argc, 0, argv, out};
    bool options_ended = false;
    while (parse.at < argc) {
        const char *given = argv[parse.at++];
        if (options_ended || given[0] != '-' || given[1] == '\0') {
            out->positional[out->n_positional++] = given;
        } else if (strcmp(given, "--") == 0) {
            options_ended = true;
        } else if (given[1] == '-') {
            DI_TRY(parse_long(&parse, given, error));
        } else {
            DI_TRY(parse_letter(&parse, given, error));
        }
    }
    if (out->values[DI_OPT_HELP].flag) return DI_OK;
    DI_TRY(check_positional(out, error));
    return check_conflicts(out, error);
}

void di_args_free(di_args *args) {
    free(args->positional);
    for (int i = 0; i < DI_N_OPTIONS; i++) free(args->values[i].items);
    memset(args, 0, sizeof *args);
}

/* ---- Looking up ---- */

static const di_value *value_of(const di_args *args, di_option_id id) {
    assert(di_option_is_taken(args->verb, &di_options[id]));
    return &args->values[id];
}

bool di_args_given(const di_args *args, di_option_id id) { return args->values[id].given; }

bool di_args_flag(const di_args *args, di_option_id id) { return value_of(args, id)->flag; }

int64_t di_args_int(const di_args *args, di_option_id id) {
    assert(di_options[id].type == DI_TYPE_INT);
    return value_of(args, id)->integer;
}

uint64_t di_args_unsigned(const di_args *args, di_option_id id) {
    assert(di_options[id].type == DI_TYPE_SEED || di_options[id].type == DI_TYPE_SIZE);
    return value_of(args, id)->unsigned_64;
}

double di_args_real(const di_args *args, di_option_id id) {
    assert(di_options[id].type == DI_TYPE_REAL);
    return value_of(args, id)->real;
}

const char *di_args_text(const di_args *args, di_option_id id) { return value_of(args, id)->text; }

const char *const *di_args_list(const di_args *args, di_option_id id, int *n) {
    const di_value *value = value_of(args, id);
    *n = value->n_items;
    return value->items;
}
