#include "cli/eval_setting.h"

#include <stdlib.h>
#include <string.h>

static bool can_differ(const di_verb *verb, const di_option *option) {
    return option->group == DI_GROUP_MACHINE && di_option_is_taken(verb, option) &&
           di_option_has_value(option);
}

static di_status unknown(const di_verb *verb, const char *name, di_error *error) {
    di_buffer list = DI_BUFFER_EMPTY;
    for (int i = 0; i < DI_N_OPTIONS; i++) {
        if (!can_differ(verb, &di_options[i])) continue;
        di_buffer_printf(&list, "%s%s", list.size ? ", " : "", di_options[i].name);
    }
    di_status status =
        di_fail(error, DI_ERR_USAGE, "--compare: '%.60s' is nothing that can differ; that can: %s",
                name, list.data ? list.data : "");
    di_buffer_free(&list);
    return status;
}

/* "NAME=VALUE", which is cut into its two parts. */
static di_status read_option(char *text, di_args *args, di_error *error) {
    char *value = strchr(text, '=');
    if (!value || value == text) {
        return di_fail(error, DI_ERR_USAGE,
                       "--compare: '%.60s' is not OPTION=VALUE, such as replay=bounded", text);
    }
    *value++ = '\0';
    const di_option *option = di_option_find(args->verb, text);
    if (!option || !can_differ(args->verb, option)) return unknown(args->verb, text, error);
    di_buffer what = DI_BUFFER_EMPTY;
    di_buffer_printf(&what, "--compare: %s", text);
    di_value *place = &args->values[option - di_options];
    di_status status = what.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: settings")
                                   : di_option_read(option, what.data, value, place, error);
    di_buffer_free(&what);
    place->given = true;
    return status;
}

/* The text is cut up as it is read. */
static di_status read_setting(char *text, di_args *args, di_error *error) {
    for (char *next; text; text = next) {
        next = strchr(text, '+');
        if (next) *next++ = '\0';
        DI_TRY(read_option(text, args, error));
    }
    return DI_OK;
}

/* The list stays for the names; a copy of it behind is cut up for the values. */
static di_status read_list(const di_args *args, const char *list, di_eval_settings *out,
                           di_error *error) {
    size_t size = strlen(list) + 1;
    out->text = malloc(2 * size);
    out->items = calloc(size, sizeof *out->items);
    if (!out->text || !out->items) {
        return di_fail(error, DI_ERR_MEMORY, "out of memory: settings");
    }
    memcpy(out->text, list, size);
    memcpy(out->text + size, list, size);
    for (char *at = out->text; *(at += strspn(at, ", "));) {
        di_eval_setting *setting = &out->items[out->n++];
        size_t length = strcspn(at, ", ");
        bool last = at[length] == '\0';
        at[length] = at[length + size] = '\0';
        *setting = (di_eval_setting){.name = at, .args = *args};
        di_value *windows = &setting->args.values[DI_OPT_WINDOW_CACHE];
        if (!windows->given) windows->unsigned_64 = 0;
        DI_TRY(read_setting(at + size, &setting->args, error));
        at += length + !last;
    }
    if (out->n >= 2) return DI_OK;
    return di_fail(error, DI_ERR_USAGE,
                   "--compare: two settings at least are needed, such as "
                   "replay=exact,replay=bounded");
}

di_status di_eval_settings_read(const di_args *args, const char *list, di_eval_settings *out,
                                di_error *error) {
    if (list) return read_list(args, list, out, error);
    out->items = calloc(1, sizeof *out->items);
    if (!out->items) return di_fail(error, DI_ERR_MEMORY, "out of memory: settings");
    out->items[out->n++] = (di_eval_setting){.name = "", .args = *args};
    return DI_OK;
}

void di_eval_settings_free(di_eval_settings *settings) {
    free(settings->items);
    free(settings->text);
    *settings = (di_eval_settings){0};
}
