// Requests to stop, and input that is read until one comes.
//
// SIGTERM and SIGINT ask to stop, however often they come: a service manager and the supervisor may both send one while
// optim writes its checkpoint. Only SIGKILL ends the program at once. SIGPIPE and SIGXFSZ are ignored: writers see
// EPIPE and EFBIG.
#pragma once

#include <stdbool.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Installs the handlers; called once. UNAVAILABLE when there is no pipe for signals_fd.
status signals_open(void);

// Whether the program was asked to stop.
bool signals_stopping(void);

// Readable from the moment on that the program is asked to stop, for poll().
int signals_fd(void);

// ---- input ----

// Reads lines from a file descriptor, without waiting longer than asked and without a limit on their length. With `fd`
// set and everything else zeroed, it is at the beginning of the input.
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
