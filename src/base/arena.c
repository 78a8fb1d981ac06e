#include "base/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 * 1024, ALIGN = 16 };

typedef struct di_arena_block {
    struct di_arena_block *next;
    size_t used, capacity; /* of `data`, in bytes */
    _Alignas(16) unsigned char data[];
} di_arena_block;

static di_arena_block *push_block(di_arena *arena, size_t at_least) {
    size_t capacity = at_least > BLOCK_BYTES ? at_least : BLOCK_BYTES;
    if (capacity > SIZE_MAX - sizeof(di_arena_block)) return NULL;
    di_arena_block *block = malloc(sizeof *block + capacity);
    if (!block) return NULL;
    block->used = 0;
    block->capacity = capacity;
    block->next = arena->head;
    arena->head = block;
    return block;
}

void *di_arena_alloc(di_arena *arena, size_t size) {
    if (size > SIZE_MAX - ALIGN) return NULL;
    size_t rounded = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    di_arena_block *block = arena->head;
    if (!block || block->capacity - block->used < rounded) {
        block = push_block(arena, rounded);
        if (!block) return NULL;
    }
    void *memory = block->data + block->used;
    block->used += rounded;
    return memory;
}

void *di_arena_calloc(di_arena *arena, size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return NULL;
    void *memory = di_arena_alloc(arena, count * size);
    if (memory) memset(memory, 0, count * size);
    return memory;
}

char *di_arena_strndup(di_arena *arena, const char *text, size_t n) {
    if (n == SIZE_MAX) return NULL;
    char *copy = di_arena_alloc(arena, n + 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

void di_arena_free(di_arena *arena) {
    while (arena->head) {
        di_arena_block *next = arena->head->next;
        free(arena->head);
        arena->head = next;
    }
}
