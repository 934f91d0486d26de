#include "shared/base/terminal.h"

#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>

void terminal_size(int fd, int *columns, int *rows) {
    struct winsize size = {0};
    const bool known = !ioctl(fd, TIOCGWINSZ, &size);
    *columns = known && size.ws_col ? size.ws_col : 80;
    if (rows) *rows = known && size.ws_row ? size.ws_row : 24;
}

// Whether the byte begins a character of UTF-8.
static bool terminal_is_character(char byte) {
    return ((unsigned char)byte & 0xC0) != 0x80;
}

void text_wrap(const char *text, int at, int indent, int columns, struct buf *out) {
    bool first = true; // of its line
    for (text += strspn(text, " \n"); *text; text += strspn(text, " \n")) {
        const size_t size = strcspn(text, " \n");
        int width = 0;
        for (size_t i = 0; i < size; i++) width += terminal_is_character(text[i]);
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
        if (terminal_is_character(text[fits]) && width++ == columns) break;
        if (text[fits] == ',' || text[fits] == ';') clause = fits;
        if (text[fits] == ' ' && fits && text[fits - 1] != ' ') word = fits;
    }
    if (fits == size) return size;
    if (text[fits] == ',' || text[fits] == ';') clause = fits;
    if (text[fits] == ' ') word = fits;
    return clause ? clause : word ? word : fits;
}
