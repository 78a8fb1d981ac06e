/* A file of options: what could stand on the command line, as members of a JSON object.
 *
 *     {"port": 8000, "max-batch": 64, "name": ["a", "b"], "quiet": true, "api-keys": "keys.txt"}
 */
#ifndef DI_CLI_SETTINGS_FILE_H
#define DI_CLI_SETTINGS_FILE_H

#include "base/arena.h"
#include "cli/cli.h"

typedef struct di_settings {
    di_arena arena;
    char **argv; /* the file's options, then those that were given, which count where both are */
    int argc;
    const char *path; /* of the file; NULL: none */
    int n_file;       /* of argv, those that come from it, */
    uint32_t *lines;  /* and the lines where they stand there */
} di_settings;

/* Looks for --settings FILE in what follows the verb, and puts the file's options in front; where the
 * verb takes no such option or none is given, the result is what was given. The strings of argv and
 * the settings must outlive what is parsed of them. DI_ERR_INVALID, DI_ERR_USAGE naming file and member.
 * Free in any case. */
di_status di_settings_read(const di_verb *verb, int argc, char **argv, di_settings *out,
                           di_error *error);
/* A message that begins with an option which only the file sets gets "FILE:LINE: " in front. */
void di_settings_locate(const di_settings *settings, di_error *error);
void di_settings_free(di_settings *settings);

#endif
