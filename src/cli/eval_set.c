#include "cli/eval_set.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory: items to evaluate");
}

/* "folder/copy.jsonl" is "copy"; other endings stay. */
static const char *name_of(const char *path, di_arena *arena) {
    static const char ending[] = ".jsonl";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t size = strlen(name), end = sizeof ending - 1;
    if (size > end && strcmp(name + size - end, ending) == 0) size -= end;
    return di_arena_strndup(arena, name, size);
}

di_status di_eval_add_group(di_eval_set *set, const char *path, bool is_text, di_error *error) {
    di_eval_group *more = realloc(set->groups, (set->n_groups + 1) * sizeof *more);
    if (!more) return no_memory(error);
    set->groups = more;
    di_eval_group group = {.name = name_of(path, &set->arena),
                           .path = di_arena_strndup(&set->arena, path, strlen(path)),
                           .is_text = is_text,
                           .first = set->n_items};
    if (!group.name || !group.path) return no_memory(error);
    more[set->n_groups++] = group;
    return DI_OK;
}

di_status di_eval_add_item(di_eval_set *set, di_eval_item **out, di_error *error) {
    if (set->n_items == set->capacity) {
        size_t capacity = set->capacity ? 2 * set->capacity : 256;
        di_eval_item *more = realloc(set->items, capacity * sizeof *more);
        if (!more) return no_memory(error);
        set->items = more;
        set->capacity = capacity;
    }
    *out = &set->items[set->n_items++];
    **out = (di_eval_item){.group = set->n_groups - 1};
    set->groups[set->n_groups - 1].n_items++;
    return DI_OK;
}

/* A reason may quote the file, which must not move the reader's terminal. */
static void add_printable(di_buffer *out, const char *text) {
    for (; *text; text++) di_buffer_putc(out, (unsigned char)*text < 0x20 ? '?' : *text);
}

void di_eval_complain(di_eval_set *set, const di_eval_group *group, int64_t line, const char *why) {
    di_buffer *out = &set->complaints;
    add_printable(out, group->path);
    di_buffer_printf(out, ": %s %" PRId64 ": ", group->is_text ? "row" : "line", line);
    add_printable(out, why);
    di_buffer_putc(out, '\n');
    set->n_refused++;
}

void di_eval_set_free(di_eval_set *set) {
    for (size_t i = 0; i < set->n_items; i++) di_ids_free(&set->items[i].ids);
    free(set->items);
    free(set->groups);
    di_buffer_free(&set->complaints);
    di_arena_free(&set->arena);
    *set = (di_eval_set){0};
}
