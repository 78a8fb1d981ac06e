/* What help.c and manual.c say alike. */
#ifndef DI_CLI_HELP_TEXT_H
#define DI_CLI_HELP_TEXT_H

#include "cli/cli.h"

const char *di_help_group_title(di_option_group group);
/* The option's sentence, with its range and default. */
void di_help_option_text(const di_option *option, di_buffer *out);

#endif
