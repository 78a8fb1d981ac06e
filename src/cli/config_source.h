/* Where a config comes from: inspect and synth take the same three. */
#ifndef DI_CLI_CONFIG_SOURCE_H
#define DI_CLI_CONFIG_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct di_config_source {
    const char *json; /* the text, `size` bytes */
    size_t size;
    char *owned;     /* what json points to, or NULL: it is compiled in */
    bool directory;  /* it came from a directory's config.json */
    char path[4096]; /* of the file, or the name: for messages */
} di_config_source;

/* `given` is a directory with a config.json, such a file, or the word released or tiny where no
 * file has that name. Free in any case. */
di_status di_config_source_read(const char *given, di_config_source *out, di_error *error);
void di_config_source_free(di_config_source *source);

#endif
