#include "cli/option_suggest.h"

#include <stdio.h>
#include <string.h>

/* Levenshtein distance, both at most DI_OPTION_NAME - 1 long. */
static int distance(const char *a, const char *b) {
    size_t n = strlen(b);
    int row[DI_OPTION_NAME];
    for (size_t j = 0; j <= n; j++) row[j] = (int)j;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t j = 0; j < n; j++) {
            int change = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            int step = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            row[j + 1] = change < step ? change : step;
        }
    }
    return row[n];
}

/* What vLLM and llama.cpp call our options: for whoever types from habit, who is told ours. */
static const struct {
    const char *theirs, *ours;
} habits[] = {
    {"max-model-len", "context"},
    {"ctx-size", "context"},
    {"c", "context"},
    {"max-num-seqs", "max-batch"},
    {"parallel", "max-batch"},
    {"np", "max-batch"},
    {"max-num-batched-tokens", "chunk"},
    {"batch-size", "chunk"},
    {"ubatch-size", "chunk"},
    {"served-model-name", "name"},
    {"alias", "name"},
    {"allowed-origins", "cors"},
    {"n-gpu-layers", "gpu-layers"},
    {"ngl", "gpu-layers"},
    {"gpu-memory-utilization", "gpu-memory"},
    {"enable-prefix-caching", "prefix-cache"},
    {"t", "threads"},
    {"n-predict", "max-tokens"},
    {"n", "max-tokens"},
    {"repeat-penalty", "repetition-penalty"},
};

static bool begins_with(const char *option, const char *name) {
    return strncmp(name, option, strlen(name)) == 0;
}

/* The options that begin so, as "--a, --b or --c"; false where less than two do. */
static bool list_by_beginning(const di_verb *verb, const char *name, char *out, size_t size) {
    int n = 0, left = 0;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        left += di_option_is_taken(verb, &di_options[i]) && begins_with(di_options[i].name, name);
    }
    if (strlen(name) < 2 || left < 2) return false;
    out[0] = '\0';
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (!di_option_is_taken(verb, &di_options[i]) || !begins_with(di_options[i].name, name)) {
            continue;
        }
        size_t at = strlen(out);
        snprintf(out + at, size - at, "%s--%s",
                 n++ == 0    ? ""
                 : left == 1 ? " or "
                             : ", ",
                 di_options[i].name);
        left--;
    }
    return true;
}

/* The option that is meant: by habit, by its beginning, or by what was mistyped, of which there may be more in a
 * longer name. NULL: none. */
static const char *nearest(const di_verb *verb, const char *name) {
    const char *best = NULL;
    int best_distance = 4;
    size_t length = strlen(name);
    if (length >= DI_OPTION_NAME) return NULL;
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++) {
        if (strcmp(habits[i].theirs, name) == 0 && di_option_find(verb, habits[i].ours)) {
            return habits[i].ours;
        }
    }
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (!di_option_is_taken(verb, &di_options[i])) continue;
        if (length > 1 && begins_with(di_options[i].name, name)) return di_options[i].name;
        int d = distance(name, di_options[i].name);
        if (d < best_distance && 2 * d < (int)length) {
            best_distance = d;
            best = di_options[i].name;
        }
    }
    return best;
}

/* The option of other verbs that is called so, or begins so. NULL: none. */
static const char *elsewhere(const char *name) {
    const char *found = NULL;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (strcmp(di_options[i].name, name) == 0) return di_options[i].name;
        if (strlen(name) > 2 && begins_with(di_options[i].name, name)) found = di_options[i].name;
    }
    return found;
}

di_status di_option_unknown(const di_verb *verb, const char *given, const char *name,
                            di_error *error) {
    char several[400];
    const char *other = elsewhere(name);
    bool exactly = other && strcmp(other, name) == 0;
    if (!exactly && list_by_beginning(verb, name, several, sizeof several)) {
        return di_fail(error, DI_ERR_USAGE, "unknown option %.60s; did you mean %s?", given,
                       several);
    }
    const char *near = exactly ? NULL : nearest(verb, name);
    if (!near && other) {
        return di_fail(error, DI_ERR_USAGE,
                       "--%s is no option of '%s'; 'deepinfer help %s' lists its options", other,
                       verb->name, verb->name);
    }
    if (near) {
        return di_fail(error, DI_ERR_USAGE, "unknown option %.60s; did you mean --%s?", given,
                       near);
    }
    return di_fail(error, DI_ERR_USAGE,
                   "unknown option %.60s; usage: deepinfer %s %s [options], which 'deepinfer help "
                   "%s' lists",
                   given, verb->name, verb->arguments, verb->name);
}
