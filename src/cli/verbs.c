/* The verbs: what each is for, in the words of --help and the man pages. */
#include <string.h>

#include "cli/cli.h"

static const char *const help_examples[] = {
    "deepinfer help run", "the options of a verb",
    "deepinfer help --man run | man -l -", "its manual page",
    "source <(deepinfer help --completion bash)", "completion in this shell",
    NULL};

const di_verb di_verbs[] = {
    {DI_VERB_HELP, "help", "[VERB]", 0, 1, "what the verbs do and which options they take",
     "Without VERB, lists the verbs; with it, explains that verb and its options. The same text is "
     "printed by 'deepinfer VERB --help'.",
     help_examples, di_cmd_help},
};

const int di_n_verbs = (int)(sizeof di_verbs / sizeof di_verbs[0]);

const di_verb *di_verb_find(const char *name) {
    for (int i = 0; i < di_n_verbs; i++) {
        if (strcmp(di_verbs[i].name, name) == 0) return &di_verbs[i];
    }
    return NULL;
}
