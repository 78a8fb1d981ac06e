#include "cli/config_source.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "model/config.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

di_status di_config_source_read(const char *given, di_config_source *out, di_error *error) {
    struct stat st;
    uint64_t n;
    memset(out, 0, sizeof *out);
    bool there = stat(given, &st) == 0;
    out->directory = there && S_ISDIR(st.st_mode);
    int length =
        snprintf(out->path, sizeof out->path, out->directory ? "%s/config.json" : "%s", given);
    if (length < 0 || length >= (int)sizeof out->path) {
        return di_fail(error, DI_ERR_USAGE, "the path of the config is too long");
    }
    if (!there && (out->json = di_config_builtin(given, &out->size)) != NULL) return DI_OK;
    DI_TRY(di_file_read(out->path, CONFIG_MAX_BYTES, &out->owned, &n, error));
    out->json = out->owned;
    out->size = (size_t)n;
    return DI_OK;
}

void di_config_source_free(di_config_source *source) {
    free(source->owned);
    source->owned = NULL;
}
