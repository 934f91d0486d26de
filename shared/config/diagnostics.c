#include "shared/config/diagnostics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 4, 0))) static void diagnostics_append(struct diagnostics *diagnostics,
                                                                     struct location at, bool warning,
                                                                     const char *format, va_list arguments) {
    char text[1024];
    vsnprintf(text, sizeof text, format, arguments);
    if (diagnostics->count == diagnostics->capacity) {
        size_t capacity = diagnostics->capacity * 2 + 16;
        RESIZE(&diagnostics->list, capacity);
        diagnostics->capacity = capacity;
    }
    const char *copy = arena_strndup(&diagnostics->arena, text, strlen(text));
    diagnostics->list[diagnostics->count++] = (struct diagnostic){at, copy, warning};
}

void diagnostic_add(struct diagnostics *diagnostics, struct location at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    diagnostics_append(diagnostics, at, false, format, arguments);
    va_end(arguments);
}

void diagnostic_warn(struct diagnostics *diagnostics, struct location at, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    diagnostics_append(diagnostics, at, true, format, arguments);
    va_end(arguments);
}

size_t diagnostics_warnings(const struct diagnostics *diagnostics) {
    size_t count = 0;
    for (size_t i = 0; i < diagnostics->count; i++) count += diagnostics->list[i].warning;
    return count;
}

status diagnostics_report(struct diagnostics *diagnostics, const char *path, struct buf *out) {
    struct diagnostic *list = diagnostics->list;
    if (diagnostics->count == 0) return OK;
    for (size_t i = 1; i < diagnostics->count; i++) { // an insertion sort: those of one location keep their order
        struct diagnostic moved = list[i];
        size_t j = i;
        for (; j > 0; j--) {
            struct location before = list[j - 1].at;
            if (before.line < moved.at.line) break;
            if (before.line == moved.at.line && before.column <= moved.at.column) break;
            list[j] = list[j - 1];
        }
        list[j] = moved;
    }
    for (size_t i = 0; i < diagnostics->count; i++) {
        struct location at = list[i].at;
        if (at.line)
            buf_printf(out, "%s:%zu:%zu: ", path, at.line, at.column);
        else
            buf_puts(out, "--set: ");
        buf_printf(out, "%s%s\n", list[i].warning ? "warning: " : "", list[i].text);
    }
    const size_t warnings = diagnostics_warnings(diagnostics), mistakes = diagnostics->count - warnings;
    status code = USAGE;
    for (size_t i = 0; i < diagnostics->count; i++)
        if (!list[i].warning && list[i].at.line) code = DATAERR;
    if (!mistakes) return OK;
    if (!warnings) return fail(code, "%s: %zu mistake%s", path, mistakes, mistakes == 1 ? "" : "s");
    return fail(code, "%s: %zu mistake%s, %zu warning%s", path, mistakes, mistakes == 1 ? "" : "s", warnings,
                warnings == 1 ? "" : "s");
}

void diagnostics_release(struct diagnostics *diagnostics) {
    free(diagnostics->list);
    arena_release(&diagnostics->arena);
    *diagnostics = (struct diagnostics){0};
}
