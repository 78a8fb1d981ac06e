#include "cli/synth_args.h"

#include <stdlib.h>
#include <string.h>

#include "cli/config_source.h"
#include "model/synth.h"

/* "4": the first four; "0,2,20": these. Free *layers. */
static di_status read_layers(const char *text, int32_t *n, int32_t **layers, di_error *error) {
    *n = 0;
    *layers = calloc(DI_MAX_LAYERS, sizeof **layers);
    if (!*layers) return di_fail(error, DI_ERR_MEMORY, "out of memory reading --layers");
    for (const char *at = text;;) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || *at == ' ' || *at == '+' || value < 0 || value > DI_MAX_LAYERS ||
            *n == DI_MAX_LAYERS || (*end != ',' && *end != '\0')) {
            return di_fail(error, DI_ERR_USAGE,
                           "--layers: '%.60s' is neither a number of layers nor layers of the full "
                           "model separated by commas",
                           text);
        }
        (*layers)[(*n)++] = (int32_t)value;
        if (*end == '\0') break;
        at = end + 1;
    }
    if (strchr(text, ',')) return DI_OK;
    *n = (*layers)[0];
    free(*layers);
    *layers = NULL;
    return *n > 0 ? DI_OK : di_fail(error, DI_ERR_USAGE, "--layers: expected at least one layer");
}

static bool takes(const di_args *args, di_option_id id) {
    return di_option_is_taken(args->verb, &di_options[id]);
}

di_status di_args_synth_config(const di_args *args, di_buffer *out, di_error *error) {
    const char *given = di_args_text(args, DI_OPT_CONFIG), *layers = NULL;
    if (!given) {
        return di_fail(error, DI_ERR_USAGE,
                       "--config is missing: a config.json, or the word released or tiny");
    }
    di_synth_overrides o = di_synth_overrides_none();
    int32_t *chosen = NULL;
    di_config_source source;
    di_status status = di_config_source_read(given, &source, error);
    if (status == DI_OK && (layers = di_args_text(args, DI_OPT_LAYERS)) != NULL) {
        status = read_layers(layers, &o.n_layers, &chosen, error);
        o.layers = chosen;
    }
    if (di_args_given(args, DI_OPT_DRAFT_LAYERS)) {
        o.draft_layers = (int32_t)di_args_int(args, DI_OPT_DRAFT_LAYERS);
    }
    if (di_args_given(args, DI_OPT_EXPERTS)) o.experts = (int32_t)di_args_int(args, DI_OPT_EXPERTS);
    if (di_args_given(args, DI_OPT_ENGRAM_ROWS))
        o.engram_rows = di_args_int(args, DI_OPT_ENGRAM_ROWS);
    o.no_vision = !takes(args, DI_OPT_VISION) || !di_args_flag(args, DI_OPT_VISION);
    if (takes(args, DI_OPT_TOKENIZER)) o.tokenizer = di_args_text(args, DI_OPT_TOKENIZER);
    o.set = di_args_list(args, DI_OPT_SET, &o.n_set);
    if (status == DI_OK) status = di_synth_config(source.json, source.size, given, &o, out, error);
    free(chosen);
    di_config_source_free(&source);
    return status;
}
