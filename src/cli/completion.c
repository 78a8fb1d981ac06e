/* Completion scripts for bash, zsh and fish, made from the tables. */
#include <string.h>

#include "cli/cli.h"

/* `text` with every c in `special` behind `escape`. */
static void quoted(di_buffer *out, const char *text, const char *special, const char *escape) {
    for (; *text; text++) {
        if (strchr(special, *text)) di_buffer_puts(out, escape);
        di_buffer_putc(out, *text);
    }
}

/* Inside a zsh string of single quotes. */
static void zsh_quoted(di_buffer *out, const char *text, const char *special) {
    for (; *text; text++) {
        if (*text == '\'') {
            di_buffer_puts(out, "'\\''");
        } else {
            if (strchr(special, *text)) di_buffer_putc(out, '\\');
            di_buffer_putc(out, *text);
        }
    }
}

/* The first sentence of an option's help, without its full stop; di_buffer_free it. */
static di_buffer sentence(const di_option *option) {
    const char *end = strstr(option->help, ". ");
    size_t size = end ? (size_t)(end - option->help) : strlen(option->help) - 1;
    di_buffer out = DI_BUFFER_EMPTY;
    di_buffer_append(&out, option->help, size);
    if (out.failed) di_buffer_free(&out);
    return out;
}

/* "cpu|ref" as "cpu ref" */
static void words(di_buffer *out, const char *choices) {
    for (; *choices; choices++) di_buffer_putc(out, *choices == '|' ? ' ' : *choices);
}

static void option_names(di_buffer *out, const di_verb *verb) {
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        const di_option *option = &di_options[i];
        if (!di_option_is_taken(verb, option)) continue;
        di_buffer_printf(out, " --%s", option->name);
        if (option->type == DI_TYPE_SWITCH) di_buffer_printf(out, " --no-%s", option->name);
    }
}

static void verb_names(di_buffer *out) {
    for (int i = 0; i < di_n_verbs; i++) di_buffer_printf(out, " %s", di_verbs[i].name);
}

/* ---- bash ---- */

static void bash(di_buffer *out) {
    di_buffer_puts(out,
                   "# bash completion for deepinfer, made by 'deepinfer help --completion bash'\n"
                   "_deepinfer() {\n"
                   "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
                   "    COMPREPLY=()\n"
                   "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                   "        mapfile -t COMPREPLY < <(compgen -W \"");
    verb_names(out);
    di_buffer_puts(out, " --help --version\" -- \"$word\")\n        return\n    fi\n"
                        "    case $before in\n");
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        const di_option *option = &di_options[i];
        if (!di_option_has_value(option)) continue;
        di_buffer_printf(out, "    --%s) ", option->name);
        if (option->type == DI_TYPE_CHOICE) {
            di_buffer_puts(out, "mapfile -t COMPREPLY < <(compgen -W \"");
            words(out, option->choices);
            di_buffer_puts(out, "\" -- \"$word\"); ");
        } else if (option->type == DI_TYPE_FILE) {
            di_buffer_puts(out, "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); ");
        } else if (option->type == DI_TYPE_DIR) {
            di_buffer_puts(out, "mapfile -t COMPREPLY < <(compgen -d -- \"$word\"); ");
        }
        di_buffer_puts(out, "return ;;\n");
    }
    di_buffer_puts(out, "    esac\n    case $word in\n    -*)\n        case ${COMP_WORDS[1]} in\n");
    for (int i = 0; i < di_n_verbs; i++) {
        di_buffer_printf(out, "        %s) mapfile -t COMPREPLY < <(compgen -W \"",
                         di_verbs[i].name);
        option_names(out, &di_verbs[i]);
        di_buffer_puts(out, "\" -- \"$word\") ;;\n");
    }
    di_buffer_puts(out, "        esac ;;\n    *)\n        case ${COMP_WORDS[1]} in\n"
                        "        help) mapfile -t COMPREPLY < <(compgen -W \"");
    verb_names(out);
    di_buffer_puts(out, "\" -- \"$word\") ;;\n"
                        "        *) mapfile -t COMPREPLY < <(compgen -f -- \"$word\") ;;\n"
                        "        esac ;;\n    esac\n}\n"
                        "complete -o filenames -F _deepinfer deepinfer\n");
}

/* ---- zsh ---- */

/* One argument of _arguments, in single quotes: '--name=[help]:VALUE:action'. */
static void zsh_option(di_buffer *out, const di_option *option, const char *prefix) {
    di_buffer_printf(out, " \\\n            '%s--%s%s%s[", option->type == DI_TYPE_LIST ? "*" : "",
                     prefix, option->name, di_option_has_value(option) ? "=" : "");
    di_buffer text = sentence(option);
    zsh_quoted(out, text.data ? text.data : "", "[]:");
    di_buffer_free(&text);
    di_buffer_putc(out, ']');
    if (di_option_has_value(option)) {
        di_buffer_printf(out, ":%s:", option->value);
        if (option->type == DI_TYPE_CHOICE) {
            di_buffer_putc(out, '(');
            words(out, option->choices);
            di_buffer_putc(out, ')');
        } else if (option->type == DI_TYPE_FILE) {
            di_buffer_puts(out, "_files");
        } else if (option->type == DI_TYPE_DIR) {
            di_buffer_puts(out, "_files -/");
        }
    }
    di_buffer_putc(out, '\'');
}

static void zsh(di_buffer *out) {
    di_buffer_puts(out,
                   "#compdef deepinfer\n"
                   "# zsh completion for deepinfer, made by 'deepinfer help --completion zsh'\n"
                   "_deepinfer() {\n    local -a verbs\n    verbs=(\n");
    for (int i = 0; i < di_n_verbs; i++) {
        di_buffer_printf(out, "        '%s:", di_verbs[i].name);
        zsh_quoted(out, di_verbs[i].summary, ":");
        di_buffer_puts(out, "'\n");
    }
    di_buffer_puts(out, "    )\n    if (( CURRENT == 2 )); then\n"
                        "        _describe 'verb' verbs\n        return\n    fi\n"
                        "    local verb=${words[2]}\n    shift words\n    (( CURRENT-- ))\n"
                        "    case $verb in\n");
    for (int i = 0; i < di_n_verbs; i++) {
        const di_verb *verb = &di_verbs[i];
        di_buffer_printf(out, "    %s)\n        _arguments", verb->name);
        for (int j = 0; j < DI_N_OPTIONS; j++) {
            if (!di_option_is_taken(verb, &di_options[j])) continue;
            zsh_option(out, &di_options[j], "");
            if (di_options[j].type == DI_TYPE_SWITCH) zsh_option(out, &di_options[j], "no-");
        }
        if (verb->id == DI_VERB_HELP) {
            di_buffer_puts(out, " \\\n            '1:verb:(");
            verb_names(out);
            di_buffer_puts(out, ")'\n        ;;\n");
        } else {
            di_buffer_puts(out, " \\\n            '*:file:_files'\n        ;;\n");
        }
    }
    di_buffer_puts(out, "    esac\n}\n_deepinfer \"$@\"\n");
}

/* ---- fish ---- */

static void fish_option(di_buffer *out, const di_verb *verb, const di_option *option,
                        const char *prefix) {
    di_buffer_printf(out, "complete -c deepinfer -n '__fish_seen_subcommand_from %s' -l %s%s",
                     verb->name, prefix, option->name);
    if (option->letter && !*prefix) di_buffer_printf(out, " -s %c", option->letter);
    if (option->type == DI_TYPE_CHOICE) {
        di_buffer_puts(out, " -x -a '");
        words(out, option->choices);
        di_buffer_putc(out, '\'');
    } else if (option->type == DI_TYPE_FILE || option->type == DI_TYPE_DIR) {
        di_buffer_puts(out, " -r -F");
    } else if (di_option_has_value(option)) {
        di_buffer_puts(out, " -x");
    }
    di_buffer_puts(out, " -d '");
    di_buffer text = sentence(option);
    quoted(out, text.data ? text.data : "", "'\\", "\\");
    di_buffer_free(&text);
    di_buffer_puts(out, "'\n");
}

static void fish(di_buffer *out) {
    di_buffer_puts(out,
                   "# fish completion for deepinfer, made by 'deepinfer help --completion fish'\n");
    for (int i = 0; i < di_n_verbs; i++) {
        const di_verb *verb = &di_verbs[i];
        di_buffer_printf(out, "complete -c deepinfer -f -n __fish_use_subcommand -a %s -d '",
                         verb->name);
        quoted(out, verb->summary, "'\\", "\\");
        di_buffer_puts(out, "'\n");
        for (int j = 0; j < DI_N_OPTIONS; j++) {
            if (!di_option_is_taken(verb, &di_options[j])) continue;
            fish_option(out, verb, &di_options[j], "");
            if (di_options[j].type == DI_TYPE_SWITCH) {
                fish_option(out, verb, &di_options[j], "no-");
            }
        }
    }
    di_buffer_puts(out, "complete -c deepinfer -f -n '__fish_seen_subcommand_from help' -a '");
    verb_names(out);
    di_buffer_puts(out, "'\n");
}

bool di_completion(const char *shell, di_buffer *out) {
    if (strcmp(shell, "bash") == 0) {
        bash(out);
    } else if (strcmp(shell, "zsh") == 0) {
        zsh(out);
    } else if (strcmp(shell, "fish") == 0) {
        fish(out);
    } else {
        return false;
    }
    return true;
}
