// Reads lines from a file descriptor, without waiting longer than asked and without a limit on their length.
#ifndef SHARED_BASE_LINE_READER_H
#define SHARED_BASE_LINE_READER_H

#include <stdbool.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// With `fd` set and everything else zeroed, it is at the beginning of the input.
struct line_reader {
    int fd;
    struct buf buffer;
    size_t start;   // of the first line that was not returned
    size_t scanned; // bytes from `start` on that contain no newline
    size_t number;  // of the line that was returned last, from 1
    bool ended;     // the end of the input was seen
};

// Returns the next line that is not blank, without its newline, valid until the next call. Waits up to timeout_ms (-1:
// for ever), or until the program is asked to stop. OK with NULL in *line: none yet. END: the end of the input.
// DATAERR: the input cannot be read.
status line_reader_next(struct line_reader *reader, int timeout_ms, const char **line, size_t *size);

// Frees the buffer; the descriptor stays open.
void line_reader_release(struct line_reader *reader);

#endif
