/* eval: accuracy over task files, perplexity of a text. */
#include "cli/cli.h"

di_status di_cmd_eval(const di_args *args, di_error *error) {
    (void)args;
    return di_fail(error, DI_ERR_UNSUPPORTED, "this build has no eval");
}
