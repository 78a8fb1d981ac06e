/* What is compared: options of the verb that differ from run to run.
 *
 * "replay=exact,replay=bounded+chunk=64" are two settings, the second with two options changed. Every
 * machine option of the verb can stand there, by its name and rules on the command line.
 */
#ifndef DI_CLI_EVAL_SETTING_H
#define DI_CLI_EVAL_SETTING_H

#include "cli/cli.h"

typedef struct di_eval_setting {
    const char *name; /* as it was given; "" without a list */
    di_args args;     /* the command line's, with its values; shares their memory */
} di_eval_setting;

/* Start zeroed. */
typedef struct di_eval_settings {
    di_eval_setting *items;
    size_t n;
    char *text; /* what names and values point into */
} di_eval_settings;

/* list NULL: one setting, the command line's. Otherwise there must be two. Settings that say
 * nothing of --window-cache have none when the command line does not either: what is compared is
 * what happens behind a cached beginning, and a snapshot of its windows would hide it. */
di_status di_eval_settings_read(const di_args *args, const char *list, di_eval_settings *out,
                                di_error *error);
void di_eval_settings_free(di_eval_settings *settings);

#endif
