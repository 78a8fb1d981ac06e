/* help: the tables as text, as manual pages and as completion scripts. */
#include "cli/cli.h"

di_status di_cmd_help(const di_args *args, di_error *error) {
    const di_verb *verb = NULL;
    if (args->n_positional > 0) {
        verb = di_verb_find(args->positional[0]);
        if (!verb) {
            return di_fail(error, DI_ERR_USAGE,
                           "there is no verb '%.60s'; 'deepinfer help' lists them",
                           args->positional[0]);
        }
    }
    di_buffer out = DI_BUFFER_EMPTY;
    const char *shell = di_args_text(args, DI_OPT_COMPLETION);
    if (shell) {
        di_completion(shell, &out);
    } else if (di_args_flag(args, DI_OPT_MAN)) {
        di_manual(verb, &out);
    } else if (verb) {
        di_help_verb(verb, &out);
    } else {
        di_help_overview(&out);
    }
    if (!out.failed) fwrite(out.data, 1, out.size, stdout);
    bool failed = out.failed;
    di_buffer_free(&out);
    return failed ? di_fail(error, DI_ERR_MEMORY, "out of memory writing help") : DI_OK;
}
