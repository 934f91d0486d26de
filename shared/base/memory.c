#include "shared/base/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { block_bytes = 1 << 16 };

struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t room;
    size_t padding; // keeps data[] aligned to 16
    char data[];
};

status mem_new(void *pointer, size_t count, size_t size) {
    void **place = pointer;
    *place = calloc(count ? count : 1, size ? size : 1);
    return *place ? OK : fail(UNAVAILABLE, "out of memory: %zu x %zu bytes", count, size);
}

status mem_resize(void *pointer, size_t count, size_t size) {
    void **place = pointer;
    if (size && count > SIZE_MAX / size) return fail(UNAVAILABLE, "out of memory: %zu x %zu bytes", count, size);
    void *moved = realloc(*place, count && size ? count * size : 1);
    if (!moved) return fail(UNAVAILABLE, "out of memory: %zu x %zu bytes", count, size);
    *place = moved;
    return OK;
}

void *arena_alloc(struct arena *arena, size_t bytes) {
    if (bytes > SIZE_MAX - sizeof(struct arena_block) - 15) return NULL;
    bytes = (bytes + 15) & ~(size_t)15;
    struct arena_block *block = arena->blocks;
    if (!block || block->room - block->used < bytes) {
        size_t room = bytes > block_bytes ? bytes : block_bytes;
        block = calloc(1, sizeof *block + room);
        if (!block) return NULL;
        block->room = room;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    void *data = block->data + block->used;
    block->used += bytes;
    arena->used += bytes;
    return data;
}

char *arena_strndup(struct arena *arena, const char *text, size_t length) {
    char *copy = arena_alloc(arena, length + 1);
    if (copy && length) memcpy(copy, text, length);
    return copy;
}

char *arena_printf(struct arena *arena, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *text = length < 0 ? NULL : arena_alloc(arena, (size_t)length + 1);
    if (!text) return NULL;
    va_start(arguments, format);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return text;
}

void arena_release(struct arena *arena) {
    while (arena->blocks) {
        struct arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
    arena->used = 0;
}

status buf_reserve(struct buf *bytes, size_t more) {
    if (more > SIZE_MAX / 2 - bytes->size) return fail(UNAVAILABLE, "out of memory: %zu bytes", more);
    size_t wanted = bytes->size + more + 1;
    if (wanted <= bytes->room) return OK;
    size_t room = bytes->room ? bytes->room : 256;
    while (room < wanted) room *= 2;
    TRY(RESIZE(&bytes->data, room));
    bytes->room = room;
    return OK;
}

status buf_append(struct buf *bytes, const void *data, size_t size) {
    TRY(buf_reserve(bytes, size));
    if (size) memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    bytes->data[bytes->size] = 0;
    return OK;
}

status buf_puts(struct buf *bytes, const char *text) {
    return buf_append(bytes, text, strlen(text));
}

status buf_printf(struct buf *bytes, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) return fail(BUG, "bad format");
    TRY(buf_reserve(bytes, (size_t)length));
    va_start(arguments, format);
    vsnprintf(bytes->data + bytes->size, (size_t)length + 1, format, arguments);
    va_end(arguments);
    bytes->size += (size_t)length;
    return OK;
}

void buf_clear(struct buf *bytes) {
    bytes->size = 0;
    if (bytes->data) bytes->data[0] = 0;
}

void buf_release(struct buf *bytes) {
    free(bytes->data);
    *bytes = (struct buf){0};
}
