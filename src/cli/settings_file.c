#include "cli/settings_file.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { MAX_FILE = 1 << 20 };

/* The last --settings of the command line; NULL: none. */
static const char *find_file(int argc, char **argv) {
    static const char name[] = "--settings";
    size_t n = sizeof name - 1;
    const char *found = NULL;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], name, n) != 0) continue;
        if (argv[i][n] == '=') found = argv[i] + n + 1;
        if (argv[i][n] == '\0' && i + 1 < argc) found = argv[++i];
    }
    return found;
}

static di_status add(di_settings *s, const char *text, size_t size, uint32_t line,
                     di_error *error) {
    s->lines[s->argc] = line;
    s->argv[s->argc] = di_arena_strndup(&s->arena, text, size);
    if (!s->argv[s->argc]) return di_fail(error, DI_ERR_MEMORY, "out of memory: settings");
    s->argc++;
    return DI_OK;
}

/* Here, where its line is known. Lists take any text. */
static di_status check_value(const di_option *option, const di_json *value, const char *path,
                             di_error *error) {
    char what[400];
    di_value read = {0};
    if (option->type == DI_TYPE_LIST) return DI_OK;
    snprintf(what, sizeof what, "%.300s:%u: --%s", path, value->line, option->name);
    return di_option_read(option, what, value->text, &read, error);
}

/* One member with one value. */
static di_status add_value(di_settings *s, const di_option *option, const di_json *value,
                           const char *path, di_error *error) {
    di_buffer text = DI_BUFFER_EMPTY;
    bool on = false, is_bool = di_json_bool(value, &on);
    if (!di_option_has_value(option)) {
        if (!is_bool) {
            return di_fail(error, DI_ERR_USAGE, "%s:%u: %s: true or false is needed", path,
                           value->line, option->name);
        }
        if (!on && option->type == DI_TYPE_FLAG) return DI_OK;
        di_buffer_printf(&text, "--%s%s", on ? "" : "no-", option->name);
    } else if ((value->type == DI_JSON_STRING && strlen(value->text) == value->length) ||
               value->type == DI_JSON_NUMBER) {
        DI_TRY(check_value(option, value, path, error));
        di_buffer_printf(&text, "--%s=%s", option->name, value->text);
    } else {
        return di_fail(error, DI_ERR_USAGE, "%s:%u: %s: a text or a number is needed", path,
                       value->line, option->name);
    }
    di_status status = text.failed ? di_fail(error, DI_ERR_MEMORY, "out of memory: settings")
                                   : add(s, text.data, text.size, value->line, error);
    di_buffer_free(&text);
    return status;
}

static di_status add_member(di_settings *s, const di_verb *verb, const di_json *member,
                            const char *path, di_error *error) {
    const di_option *option =
        strlen(member->key) == member->key_length ? di_option_find(verb, member->key) : NULL;
    if (!option || option == &di_options[DI_OPT_SETTINGS] || option == &di_options[DI_OPT_HELP]) {
        return di_fail(error, DI_ERR_USAGE, "%s:%u: '%.60s' is no option of %s that a file may set",
                       path, member->line, member->key, verb->name);
    }
    if (member->type != DI_JSON_ARRAY) return add_value(s, option, member, path, error);
    if (option->type != DI_TYPE_LIST) {
        return di_fail(error, DI_ERR_USAGE, "%s:%u: %s: one value is needed, not a list", path,
                       member->line, option->name);
    }
    for (const di_json *item = member->first; item; item = item->next) {
        DI_TRY(add_value(s, option, item, path, error));
    }
    return DI_OK;
}

static size_t count(const di_json *object) {
    size_t n = 0;
    for (const di_json *m = object->first; m; m = m->next) {
        n += m->type == DI_JSON_ARRAY ? m->length : 1;
    }
    return n;
}

static di_status read_file(di_settings *s, const di_verb *verb, const char *path, int argc,
                           di_error *error) {
    char *text = NULL;
    uint64_t size;
    const di_json *root;
    DI_TRY(di_file_read(path, MAX_FILE, &text, &size, error));
    di_status status = di_json_parse(text, (size_t)size, path, &s->arena, &root, error);
    di_free(text);
    if (status != DI_OK) return status;
    if (root->type != DI_JSON_OBJECT) {
        return di_fail(error, DI_ERR_INVALID, "%s: no JSON object", path);
    }
    s->argv = di_arena_calloc(&s->arena, count(root) + (size_t)argc + 1, sizeof *s->argv);
    s->lines = di_arena_calloc(&s->arena, count(root) + 1, sizeof *s->lines);
    if (!s->argv || !s->lines) return di_fail(error, DI_ERR_MEMORY, "out of memory: settings");
    for (const di_json *m = root->first; m; m = m->next) {
        if (m->type != DI_JSON_NULL) DI_TRY(add_member(s, verb, m, path, error));
    }
    return DI_OK;
}

di_status di_settings_read(const di_verb *verb, int argc, char **argv, di_settings *out,
                           di_error *error) {
    bool taken = di_option_is_taken(verb, &di_options[DI_OPT_SETTINGS]);
    const char *path = taken ? find_file(argc, argv) : NULL;
    *out = (di_settings){.arena = DI_ARENA_EMPTY, .argv = argv, .argc = argc};
    if (!path) return DI_OK;
    out->argc = 0;
    out->path = path;
    DI_TRY(read_file(out, verb, path, argc, error));
    out->n_file = out->argc;
    for (int i = 0; i < argc; i++) out->argv[out->argc++] = argv[i];
    return DI_OK;
}

/* The last argument of argv[from..to) that sets the option; -1: none. */
static int find_option(char *const *argv, int from, int to, const char *name, size_t size) {
    for (int i = to - 1; i >= from; i--) {
        const char *a = argv[i];
        if (strncmp(a, "--", 2) != 0) continue;
        a += strncmp(a, "--no-", 5) == 0 && strncmp(a + 2, name, size) != 0 ? 5 : 2;
        if (strncmp(a, name, size) == 0 && (a[size] == '\0' || a[size] == '=')) return i;
    }
    return -1;
}

void di_settings_locate(const di_settings *s, di_error *error) {
    const char *name = error->message + 2;
    size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    if (s->n_file == 0 || strncmp(error->message, "--", 2) != 0 || size == 0) return;
    if (find_option(s->argv, s->n_file, s->argc, name, size) >= 0) return;
    int at = find_option(s->argv, 0, s->n_file, name, size);
    if (at < 0) return;
    di_error why = *error;
    (void)di_fail(error, why.status, "%.300s:%u: %s", s->path, s->lines[at], why.message);
}

void di_settings_free(di_settings *settings) { di_arena_free(&settings->arena); }
