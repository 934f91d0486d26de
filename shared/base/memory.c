#include "shared/base/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/log.h"

enum { ARENA_ALIGNMENT = 16, ARENA_FIRST_BLOCK = 1 << 10, MAX_ARENA_BLOCK = 1 << 16, BUF_FIRST_CAPACITY = 256 };

struct arena_block {
    struct arena_block *next;
    size_t used;
    size_t capacity;
    size_t padding;
    char data[];
};
static_assert(sizeof(struct arena_block) % ARENA_ALIGNMENT == 0, "data[] must be aligned as calloc's result is");
static_assert(_Alignof(max_align_t) >= ARENA_ALIGNMENT, "calloc must return blocks of the arena's alignment");
static_assert(ARENA_FIRST_BLOCK % ARENA_ALIGNMENT == 0, "a block must hold whole units");

// ---- the heap ----

static status memory_fail(size_t count, size_t size) {
    return fail(UNAVAILABLE, "out of memory: %zu x %zu bytes", count, size);
}

// Ends the process. Its state is safe at any time, as under kill -9, so nothing is released or written.
static _Noreturn void memory_end(void) {
    log_info("%s", fail_text());
    _exit(UNAVAILABLE);
}

// A T * is read and written by memcpy: accessing it as a void * would break the aliasing rules.
static_assert(sizeof(void *) == sizeof(struct arena *) && sizeof(void *) == sizeof(double *), "one size of pointers");

status mem_new_large(void *pointer, size_t count, size_t size) {
    const bool fits = !size || count <= SIZE_MAX / size; // the address sanitizer's calloc ends the program otherwise
    void *block = fits ? calloc(count ? count : 1, size ? size : 1) : NULL;
    memcpy(pointer, &block, sizeof block);
    return block ? OK : memory_fail(count, size);
}

status mem_resize_large(void *pointer, size_t count, size_t size) {
    void *block;
    memcpy(&block, pointer, sizeof block);
    if (size && count > SIZE_MAX / size) return memory_fail(count, size);
    block = realloc(block, count && size ? count * size : 1);
    if (!block) return memory_fail(count, size);
    memcpy(pointer, &block, sizeof block);
    return OK;
}

void mem_new(void *pointer, size_t count, size_t size) {
    if (mem_new_large(pointer, count, size) != OK) memory_end();
}

void mem_resize(void *pointer, size_t count, size_t size) {
    if (mem_resize_large(pointer, count, size) != OK) memory_end();
}

void mem_grow(void *pointer, size_t count, size_t size) {
    enum { LEAST = 8 };
    const bool full = count >= LEAST ? (count & (count - 1)) == 0 : count == 0; // every power of two was once the end
    if (full) mem_resize(pointer, count ? 2 * count : LEAST, size);
}

char *mem_strndup(const char *text, size_t size) {
    char *copy;
    mem_new(&copy, size + 1, 1);
    if (size) memcpy(copy, text, size);
    return copy;
}

char *mem_strdup(const char *text) {
    return mem_strndup(text, strlen(text));
}

void *mem_checked(void *pointer) {
    if (pointer) return pointer;
    fail_oom();
    memory_end();
}

// ---- arenas ----

status arena_alloc_large(struct arena *arena, void *pointer, size_t size) {
    void *data = NULL;
    memcpy(pointer, &data, sizeof data);
    if (size > SIZE_MAX - sizeof(struct arena_block) - ARENA_ALIGNMENT) return memory_fail(size, 1);
    size = (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    struct arena_block *block = arena->blocks;
    if (!block || block->capacity - block->used < size) {
        // Most arenas hold little; each further block is twice as large as the one before, up to a bound.
        size_t capacity = block ? 2 * block->capacity : ARENA_FIRST_BLOCK;
        if (capacity > MAX_ARENA_BLOCK) capacity = MAX_ARENA_BLOCK;
        if (capacity < size) capacity = size;
        TRY(mem_new_large(&block, 1, sizeof *block + capacity));
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    data = block->data + block->used;
    memcpy(pointer, &data, sizeof data);
    block->used += size;
    assert(block->used <= block->capacity && (uintptr_t)data % ARENA_ALIGNMENT == 0);
    return OK;
}

void *arena_alloc(struct arena *arena, size_t size) {
    void *data;
    if (arena_alloc_large(arena, &data, size) != OK) memory_end();
    return data;
}

char *arena_strndup(struct arena *arena, const char *text, size_t size) {
    char *copy = arena_alloc(arena, size + 1);
    if (size) memcpy(copy, text, size);
    return copy;
}

char *arena_printf(struct arena *arena, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    assert(length >= 0);
    char *text = arena_alloc(arena, (size_t)length + 1);
    va_start(arguments, format);
    vsnprintf(text, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return text;
}

void arena_string(struct arena *arena, struct string *out, const char *data, size_t size) {
    *out = (struct string){arena_strndup(arena, data, size), size};
}

void arena_adopt(struct arena *arena, struct arena *from) {
    struct arena_block **last = &arena->blocks;
    while (*last) last = &(*last)->next;
    *last = from->blocks;
    from->blocks = NULL;
}

void arena_release(struct arena *arena) {
    while (arena->blocks) {
        struct arena_block *next = arena->blocks->next;
        free(arena->blocks);
        arena->blocks = next;
    }
}

// ---- buffers ----

status buf_reserve_large(struct buf *buf, size_t more) {
    assert(buf->size <= buf->capacity);
    if (more > SIZE_MAX / 2 - buf->size) return memory_fail(more, 1);
    size_t needed = buf->size + more + 1;
    if (needed <= buf->capacity) return OK;
    size_t capacity = buf->capacity ? buf->capacity : BUF_FIRST_CAPACITY;
    while (capacity < needed) capacity *= 2;
    TRY(RESIZE_LARGE(&buf->data, capacity));
    buf->capacity = capacity;
    return OK;
}

void buf_reserve(struct buf *buf, size_t more) {
    if (buf_reserve_large(buf, more) != OK) memory_end();
}

void buf_append(struct buf *buf, const void *data, size_t size) {
    buf_reserve(buf, size);
    if (size) memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    buf->data[buf->size] = 0;
}

int buf_write(void *buf, const char *data, size_t size) {
    buf_append(buf, data, size);
    return 0;
}

void buf_puts(struct buf *buf, const char *text) {
    buf_append(buf, text, strlen(text));
}

void buf_escape(struct buf *buf, const char *text, const char *special) {
    for (; *text; text++) {
        if (strchr(special, *text)) buf_puts(buf, "\\");
        buf_append(buf, text, 1);
    }
}

void buf_printf(struct buf *buf, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    assert(length >= 0);
    buf_reserve(buf, (size_t)length);
    va_start(arguments, format);
    vsnprintf(buf->data + buf->size, (size_t)length + 1, format, arguments);
    va_end(arguments);
    buf->size += (size_t)length;
}

void buf_clear(struct buf *buf) {
    buf->size = 0;
    if (buf->data) buf->data[0] = 0;
}

void buf_release(struct buf *buf) {
    free(buf->data);
    *buf = (struct buf){0};
}

// ---- string ----

struct string string_of(const char *text) {
    return (struct string){text, strlen(text)};
}

bool string_equals(struct string string, const char *other) {
    return string.data && string.size == strlen(other) && !memcmp(string.data, other, string.size);
}

struct string string_slice(struct string string, size_t from, size_t to) {
    assert(from <= to && to <= string.size);
    return (struct string){string.data + from, to - from};
}

size_t string_find(struct string string, const char *part, size_t from) {
    if (from > string.size) return SIZE_MAX;
    const char *found = memmem(string.data + from, string.size - from, part, strlen(part));
    return found ? (size_t)(found - string.data) : SIZE_MAX;
}

int utf8_step(const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    if (at[0] < 0x80) return 1;
    // How many bytes follow a lead byte, and the range of the first of them (Unicode Standard, table 3-7).
    unsigned char lead = at[0], low = 0x80, high = 0xBF;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    int follow = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i <= follow; i++) {
        if ((size_t)i >= size || at[i] < low || at[i] > high) return -i;
        low = 0x80, high = 0xBF;
    }
    return follow + 1;
}

bool utf8_valid(const char *data, size_t size) {
    for (size_t at = 0; at < size;) {
        int step = utf8_step(data + at, size - at);
        if (step < 0) return false;
        at += (size_t)step;
    }
    return true;
}

void utf8_replace(const char *data, size_t size, struct buf *out) {
    size_t start = 0, at = 0;
    while (at < size) {
        int step = utf8_step(data + at, size - at);
        if (step > 0) {
            at += (size_t)step;
            continue;
        }
        buf_append(out, data + start, at - start);
        buf_append(out, "\xEF\xBF\xBD", 3);
        at += (size_t)-step;
        start = at;
    }
    buf_append(out, data + start, at - start);
}

// ---- text ----

// Whether the byte begins a character of UTF-8.
static bool text_is_character(char byte) {
    return ((unsigned char)byte & 0xC0) != 0x80;
}

void text_wrap(const char *text, int at, int indent, int columns, struct buf *out) {
    bool first = true; // of its line
    for (text += strspn(text, " \n"); *text; text += strspn(text, " \n")) {
        const size_t size = strcspn(text, " \n");
        int width = 0;
        for (size_t i = 0; i < size; i++) width += text_is_character(text[i]);
        if (!first && at + 1 + width > columns) {
            buf_printf(out, "\n%*s", indent, "");
            at = indent;
            first = true;
        }
        if (!first) buf_puts(out, " ");
        buf_append(out, text, size);
        at += width + !first;
        first = false;
        text += size;
    }
}

size_t text_cut(const char *text, size_t size, int columns) {
    size_t fits = 0, clause = 0, word = 0;
    for (int width = 0; fits < size; fits++) {
        if (text_is_character(text[fits]) && width++ == columns) break;
        if (text[fits] == ',' || text[fits] == ';') clause = fits;
        if (text[fits] == ' ' && fits && text[fits - 1] != ' ') word = fits;
    }
    if (fits == size) return size;
    if (text[fits] == ',' || text[fits] == ';') clause = fits;
    if (text[fits] == ' ') word = fits;
    return clause ? clause : word ? word : fits;
}
