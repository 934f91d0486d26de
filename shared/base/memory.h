// Checked allocation, an arena, and a growing byte buffer.
#ifndef SHARED_BASE_MEMORY_H
#define SHARED_BASE_MEMORY_H

#include <stdarg.h>
#include <stddef.h>

#include "shared/base/status.h"

// *pointer = count zeroed elements of `size` bytes (one byte at least), owned by the caller, released with free().
// UNAVAILABLE when memory is short; *pointer is then NULL.
status mem_new(void *pointer, size_t count, size_t size);

// Resizes *pointer to count elements (new ones not zeroed). UNAVAILABLE when memory is short; the old block stays.
status mem_resize(void *pointer, size_t count, size_t size);

// Zeroed memory for `count` elements of *pointer's type: TRY(NEW(&rows, n)).
#define NEW(pointer, count)    mem_new((pointer), (count), sizeof **(pointer))
#define RESIZE(pointer, count) mem_resize((pointer), (count), sizeof **(pointer))

// Many small blocks that live and die together. A zeroed struct is an empty arena.
struct arena {
    struct arena_block *blocks;
    size_t used; // bytes handed out, for accounting
};

// Zeroed memory, aligned to 16, valid until arena_release; NULL when memory is short.
void *arena_alloc(struct arena *arena, size_t bytes);

// A NUL-terminated copy of text[0..length).
char *arena_strndup(struct arena *arena, const char *text, size_t length);

// A formatted text.
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Frees every block and leaves an empty arena.
void arena_release(struct arena *arena);

// A byte buffer that grows. A zeroed struct is an empty one; `data` is NUL-terminated whenever it is not NULL.
struct buf {
    char *data;
    size_t size;
    size_t room;
};

// Appends `size` bytes. UNAVAILABLE when memory is short.
status buf_append(struct buf *bytes, const void *data, size_t size);

// Appends a NUL-terminated text.
status buf_puts(struct buf *bytes, const char *text);

// Appends a formatted text.
status buf_printf(struct buf *bytes, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Makes room for `more` bytes behind the present ones without changing size.
status buf_reserve(struct buf *bytes, size_t more);

// Empties it and keeps its memory.
void buf_clear(struct buf *bytes);

// Frees its memory and leaves an empty one.
void buf_release(struct buf *bytes);

#endif
