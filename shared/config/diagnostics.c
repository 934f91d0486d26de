#include "shared/config/diagnostics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void diagnostic_add(struct diagnostics *diagnostics, struct location at, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (diagnostics->count == diagnostics->room) {
        size_t room = diagnostics->room * 2 + 16;
        if (RESIZE(&diagnostics->list, room) != OK) {
            diagnostics->out_of_memory = true;
            return;
        }
        diagnostics->room = room;
    }
    const char *copy = arena_strndup(&diagnostics->arena, text, strlen(text));
    if (!copy) diagnostics->out_of_memory = true;
    diagnostics->list[diagnostics->count++] = (struct diagnostic){at, copy ? copy : ""};
}

static bool diagnostics_ordered(struct location a, struct location b) {
    return a.line < b.line || (a.line == b.line && a.column <= b.column);
}

// An insertion sort: equal locations keep their order.
static void diagnostics_sort(struct diagnostics *diagnostics) {
    for (size_t i = 1; i < diagnostics->count; i++) {
        struct diagnostic moved = diagnostics->list[i];
        size_t j = i;
        for (; j > 0 && !diagnostics_ordered(diagnostics->list[j - 1].at, moved.at); j--)
            diagnostics->list[j] = diagnostics->list[j - 1];
        diagnostics->list[j] = moved;
    }
}

status diagnostics_report(struct diagnostics *diagnostics, const char *path, struct buf *out) {
    if (diagnostics->out_of_memory) return fail_oom();
    if (diagnostics->count == 0) return OK;
    diagnostics_sort(diagnostics);
    status code = USAGE;
    for (size_t i = 0; i < diagnostics->count; i++) {
        const struct diagnostic *diagnostic = &diagnostics->list[i];
        if (diagnostic->at.line) {
            code = DATAERR;
            TRY(buf_printf(out, "%s:%zu:%zu: ", path, diagnostic->at.line, diagnostic->at.column));
        } else {
            TRY(buf_puts(out, "--set: "));
        }
        TRY(buf_printf(out, "%s\n", diagnostic->text));
    }
    return fail(code, "%s: %zu mistake%s", path, diagnostics->count, diagnostics->count == 1 ? "" : "s");
}

void diagnostics_release(struct diagnostics *diagnostics) {
    free(diagnostics->list);
    arena_release(&diagnostics->arena);
    *diagnostics = (struct diagnostics){0};
}
