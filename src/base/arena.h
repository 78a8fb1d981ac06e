/* Arena: many allocations of one lifetime, freed in one go.
 *
 * For what is built once and dies together: a parsed document, a request. Not thread-safe; one
 * owner. Memory is 16-byte aligned. Grows by blocks; a block is never moved, so pointers stay.
 */
#ifndef DI_BASE_ARENA_H
#define DI_BASE_ARENA_H

#include <stddef.h>

typedef struct di_arena {
    struct di_arena_block *head; /* newest block; NULL when empty */
} di_arena;

#define DI_ARENA_EMPTY                                                                             \
    { NULL }

/* Uninitialised memory, or NULL when the system has none. size 0 gives a valid pointer. */
void *di_arena_alloc(di_arena *arena, size_t size);
/* Zeroed; NULL also when count * size overflows. */
void *di_arena_calloc(di_arena *arena, size_t count, size_t size);
/* A NUL-terminated copy of n bytes. */
char *di_arena_strndup(di_arena *arena, const char *text, size_t n);
/* Frees everything; the arena is empty and usable again. */
void di_arena_free(di_arena *arena);

#endif
