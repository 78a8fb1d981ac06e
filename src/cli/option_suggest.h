/* What is said of an option that a verb does not take: which one is meant, as far as that shows. */
#ifndef DI_CLI_OPTION_SUGGEST_H
#define DI_CLI_OPTION_SUGGEST_H

#include "cli/cli.h"

enum { DI_OPTION_NAME = 32 }; /* of every name, with its NUL */

/* Always DI_ERR_USAGE. given: as it was typed, "--tempo=1"; name: of it, "tempo". */
di_status di_option_unknown(const di_verb *verb, const char *given, const char *name,
                            di_error *error);

#endif
