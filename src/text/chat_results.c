#include "text/chat_results.h"

#include <stdlib.h>
#include <string.h>

/* A call's id and its place; sorted by id, then place. */
typedef struct call_id {
    const char *text;
    size_t size, place;
} call_id;

typedef struct result {
    chat_part part;
    size_t place, original;
} result;

static int compare_text(const char *a, size_t a_size, const char *b, size_t b_size) {
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int compare_ids(const void *a, const void *b) {
    const call_id *x = a, *y = b;
    int order = compare_text(x->text, x->size, y->text, y->size);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static int compare_results(const void *a, const void *b) {
    const result *x = a, *y = b;
    if (x->place != y->place) return x->place < y->place ? -1 : 1;
    return (x->original > y->original) - (x->original < y->original);
}

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, "out of memory while encoding the conversation");
}

static const di_json *id_of(const di_json *call) {
    const di_json *id = di_json_get(call, "id");
    if (!id || id->type != DI_JSON_STRING || id->length == 0) {
        id = di_json_get(di_json_get(call, "function"), "id");
    }
    return id && id->type == DI_JSON_STRING && id->length > 0 ? id : NULL;
}

static di_status collect_ids(const di_json *calls, di_arena *arena, call_id **ids, size_t *n,
                             di_error *error) {
    *n = 0;
    *ids = di_arena_calloc(arena, calls->length, sizeof **ids);
    if (!*ids) return no_memory(error);
    size_t place = 0;
    for (const di_json *call = calls->first; call; call = call->next, place++) {
        const di_json *id = id_of(call);
        if (id) (*ids)[(*n)++] = (call_id){id->text, id->length, place};
    }
    if (*n) qsort(*ids, *n, sizeof **ids, compare_ids);
    return DI_OK;
}

/* The place of the last call with this id; 0 when there is none. */
static size_t place_of(const call_id *ids, size_t n, const chat_part *part) {
    size_t low = 0, high = n;
    while (low < high) { /* the first entry behind all equal ones */
        size_t middle = low + (high - low) / 2;
        bool behind = compare_text(ids[middle].text, ids[middle].size, part->text, part->size) > 0;
        if (behind)
            high = middle;
        else
            low = middle + 1;
    }
    bool found =
        low > 0 && compare_text(ids[low - 1].text, ids[low - 1].size, part->text, part->size) == 0;
    return found ? ids[low - 1].place : 0;
}

static di_status sort_turn(chat_turn *turn, const call_id *ids, size_t n_ids, di_arena *arena,
                           di_error *error) {
    size_t n = 0;
    for (const chat_part *part = turn->parts; part; part = part->next) {
        n += part->kind == CHAT_PART_RESULT;
    }
    if (n < 2 || n_ids == 0) return DI_OK;
    result *results = di_arena_calloc(arena, n, sizeof *results);
    if (!results) return no_memory(error);
    size_t i = 0;
    for (const chat_part *part = turn->parts; part; part = part->next) {
        if (part->kind != CHAT_PART_RESULT) continue;
        results[i] = (result){*part, place_of(ids, n_ids, part), i};
        i++;
    }
    qsort(results, n, sizeof *results, compare_results);
    i = 0;
    for (chat_part *part = turn->parts; part; part = part->next) {
        if (part->kind != CHAT_PART_RESULT) continue;
        chat_part *next = part->next;
        *part = results[i++].part;
        part->next = next;
    }
    return DI_OK;
}

di_status chat__sort_results(chat_turns *turns, di_arena *arena, di_error *error) {
    call_id *ids = NULL;
    size_t n_ids = 0;
    for (size_t i = 0; i < turns->n; i++) {
        chat_turn *turn = &turns->items[i];
        if (turn->calls) {
            DI_TRY(collect_ids(turn->calls, arena, &ids, &n_ids, error));
        } else if (turn->role == CHAT_ROLE_USER) {
            DI_TRY(sort_turn(turn, ids, n_ids, arena, error));
        }
    }
    return DI_OK;
}
