/* bench: how fast a model runs here. */
#include "cli/cli.h"

di_status di_cmd_bench(const di_args *args, di_error *error) {
    (void)args;
    return di_fail(error, DI_ERR_UNSUPPORTED, "this build has no bench");
}
