// Checked allocation, arenas, and a growing byte buffer. None of them may be shared by threads without a lock.
#ifndef SHARED_BASE_MEMORY_H
#define SHARED_BASE_MEMORY_H

#include <stdarg.h>
#include <stddef.h>

#include "shared/base/status.h"
#include "shared/base/string.h"

// ---- the heap ----

// Sets the pointer at `pointer` (a T **) to `count` zeroed elements of `size` bytes, at least one byte. The caller
// releases it with free(). UNAVAILABLE when memory is short; the pointer is then NULL.
status mem_new(void *pointer, size_t count, size_t size);

// Resizes the block at `pointer` (a T **, NULL for none) to `count` elements of `size` bytes; new ones are not zeroed.
// UNAVAILABLE when memory is short; the pointer and its block then stay.
status mem_resize(void *pointer, size_t count, size_t size);

// mem_new and mem_resize for elements of the pointer's own type: TRY(NEW(&rows, n)).
#define NEW(pointer, count)    mem_new((pointer), (count), sizeof **(pointer))
#define RESIZE(pointer, count) mem_resize((pointer), (count), sizeof **(pointer))

// ---- arenas ----

// Many blocks with one lifetime. A zeroed struct is an empty arena.
struct arena {
    struct arena_block *blocks;
};

// Returns `size` zeroed bytes, aligned to 16, valid until arena_release; NULL when memory is short.
void *arena_alloc(struct arena *arena, size_t size);

// Returns a NUL-terminated copy of text[0..size), NULL when memory is short.
char *arena_strndup(struct arena *arena, const char *text, size_t size);

// Returns the formatted text, NULL when memory is short.
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

// *out = a NUL-terminated copy of data[0..size). UNAVAILABLE; *out is then absent.
status arena_string(struct arena *arena, struct string *out, const char *data, size_t size);

// Moves every block of `from` into `arena`: what lies in them lives as long as `arena` from then on. `from` is empty.
void arena_adopt(struct arena *arena, struct arena *from);

// Frees every block and leaves an empty arena.
void arena_release(struct arena *arena);

// ---- buffers ----

// A zeroed struct is an empty buffer. `data` is NUL-terminated behind its `size` bytes unless it is NULL.
struct buf {
    char *data;
    size_t size;
    size_t capacity;
};

// Makes room for `more` bytes and a NUL behind the present ones; size does not change. UNAVAILABLE.
status buf_reserve(struct buf *buf, size_t more);

// Appends `size` bytes, which must not lie in the buffer. UNAVAILABLE.
status buf_append(struct buf *buf, const void *data, size_t size);

// buf_append as msgpack-c calls it: returns 0, or -1 when memory is short. `buf` is a struct buf.
int buf_write(void *buf, const char *data, size_t size);

// Appends a NUL-terminated text. UNAVAILABLE.
status buf_puts(struct buf *buf, const char *text);

// Appends a formatted text. UNAVAILABLE.
status buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Empties the buffer and keeps its memory.
void buf_clear(struct buf *buf);

// Frees the memory and leaves an empty buffer.
void buf_release(struct buf *buf);

#endif
