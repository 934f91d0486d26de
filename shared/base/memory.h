// Strings, checked allocation, arenas, and a growing byte buffer. None of them may be shared by threads without a lock.
//
// When memory is short, small allocations end the process with one line and exit code 69: its state is safe, as after
// kill -9, and whoever started it starts it again. Only the functions with `large` in their names, for memory whose
// size a user or a file decides (weights, caches, clips, whole files), return a status.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

// ---- strings ----

// An immutable string with its length: UTF-8 unless a function says otherwise. It does not own its bytes: they live in
// an arena, a buffer, a JSON value or the program itself. May contain NULs; data == NULL means absent. A whole string
// of a group is NUL-terminated, a slice is not.
struct string {
    const char *data;
    size_t size;
};

// Returns the C string with its length, without a copy.
struct string string_of(const char *text);

// Whether a string is present and equals the C string.
bool string_equals(struct string string, const char *other);

// Returns the bytes [from, to) of a string, from <= to <= size.
struct string string_slice(struct string string, size_t from, size_t to);

// Returns the position of the first `part` at or after `from`, SIZE_MAX if there is none.
size_t string_find(struct string string, const char *part, size_t from);

// Returns the length of the well-formed UTF-8 sequence at data (1 to 4), or minus the length of the ill-formed part
// there (a maximal subpart in the Unicode Standard's sense, 1 to 3). size >= 1.
int utf8_step(const char *data, size_t size);

// Whether all of it is well-formed UTF-8.
bool utf8_valid(const char *data, size_t size);

// ---- the heap ----

// Sets the pointer at `pointer` (a T **) to `count` zeroed elements of `size` bytes, at least one byte. The caller
// releases it with free().
void mem_new(void *pointer, size_t count, size_t size);

// Resizes the block at `pointer` (a T **, NULL for none) to `count` elements of `size` bytes; new ones are not zeroed.
void mem_resize(void *pointer, size_t count, size_t size);

// mem_new, but UNAVAILABLE with the size when memory is short; the pointer is then NULL.
status mem_new_large(void *pointer, size_t count, size_t size);

// mem_resize, but UNAVAILABLE with the size when memory is short; the pointer and its block then stay.
status mem_resize_large(void *pointer, size_t count, size_t size);

// Makes room for one more element at `pointer` (a T **) behind the present `count`, in a block for which only this
// function has made room. The block doubles.
void mem_grow(void *pointer, size_t count, size_t size);

// These for elements of the pointer's own type: NEW(&rows, n); GROW(&rows, count); TRY(NEW_LARGE(&pixels, n)).
#define NEW(pointer, count)          mem_new((pointer), (count), sizeof **(pointer))
#define RESIZE(pointer, count)       mem_resize((pointer), (count), sizeof **(pointer))
#define GROW(pointer, count)         mem_grow((pointer), (count), sizeof **(pointer))
#define NEW_LARGE(pointer, count)    mem_new_large((pointer), (count), sizeof **(pointer))
#define RESIZE_LARGE(pointer, count) mem_resize_large((pointer), (count), sizeof **(pointer))

// Returns a copy of the text; the caller releases it with free().
char *mem_strdup(const char *text) __attribute__((returns_nonnull));

// Returns a NUL-terminated copy of text[0..size); the caller releases it with free().
char *mem_strndup(const char *text, size_t size) __attribute__((returns_nonnull));

// Returns `pointer`, the result of an allocation by a library. When it is NULL, ends the process as small allocations
// do.
void *mem_checked(void *pointer) __attribute__((returns_nonnull));

// ---- arenas ----

// Many blocks with one lifetime. A zeroed struct is an empty arena.
struct arena {
    struct arena_block *blocks;
};

// Returns `size` zeroed bytes, aligned to 16, valid until arena_release.
void *arena_alloc(struct arena *arena, size_t size) __attribute__((returns_nonnull));

// The same, but *pointer (a T **) is NULL and the result UNAVAILABLE when memory is short.
status arena_alloc_large(struct arena *arena, void *pointer, size_t size);

// Returns a NUL-terminated copy of text[0..size).
char *arena_strndup(struct arena *arena, const char *text, size_t size) __attribute__((returns_nonnull));

// Returns the formatted text.
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3), returns_nonnull));

// *out = a NUL-terminated copy of data[0..size).
void arena_string(struct arena *arena, struct string *out, const char *data, size_t size);

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

// Makes room for `more` bytes and a NUL behind the present ones; size does not change.
void buf_reserve(struct buf *buf, size_t more);

// The same, but UNAVAILABLE when memory is short. Appending up to `more` bytes then takes no memory.
status buf_reserve_large(struct buf *buf, size_t more);

// Appends `size` bytes, which must not lie in the buffer.
void buf_append(struct buf *buf, const void *data, size_t size);

// buf_append as msgpack-c calls it: returns 0. `buf` is a struct buf.
int buf_write(void *buf, const char *data, size_t size);

// Appends a NUL-terminated text.
void buf_puts(struct buf *buf, const char *text);

// Appends a text with a backslash before each character that is one of `special`.
void buf_escape(struct buf *buf, const char *text, const char *special);

// Appends a formatted text.
void buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Appends data[0..size) to `out` with U+FFFD in place of each ill-formed part.
void utf8_replace(const char *data, size_t size, struct buf *out);

// Empties the buffer and keeps its memory.
void buf_clear(struct buf *buf);

// Frees the memory and leaves an empty buffer.
void buf_release(struct buf *buf);

// ---- text ----

// Lines that break between words. Widths count characters of UTF-8.

// Appends the words of `text`, which stand one blank apart, on lines of at most `columns`. The first line begins at
// column `at`, the others with `indent` blanks. A longer word has a line of its own.
void text_wrap(const char *text, int at, int indent, int columns, struct buf *out);

// Returns how many bytes of the line text[0..size) to show in `columns`: all, or up to a comma or semicolon, else up to
// a blank, else as many characters as fit.
size_t text_cut(const char *text, size_t size, int columns);
