// Text for a terminal: its size, and lines that break between words. Widths count characters of UTF-8.
#ifndef SHARED_BASE_TERMINAL_H
#define SHARED_BASE_TERMINAL_H

#include <stddef.h>

#include "shared/base/memory.h"

// Sets the size of the terminal at `fd`; 80 x 24 where it is no terminal or does not say. `rows` may be NULL.
void terminal_size(int fd, int *columns, int *rows);

// Appends the words of `text`, which stand one blank apart, on lines of at most `columns`. The first line begins at
// column `at`, the others with `indent` blanks. A longer word has a line of its own.
void text_wrap(const char *text, int at, int indent, int columns, struct buf *out);

// Returns how many bytes of the line text[0..size) to show in `columns`: all, or up to a comma or semicolon, else up to
// a blank, else as many characters as fit.
size_t text_cut(const char *text, size_t size, int columns);

#endif
