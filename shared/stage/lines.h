// Lines from a file descriptor, without waiting longer than asked and without a bound on their length.
#ifndef SHARED_STAGE_LINES_H
#define SHARED_STAGE_LINES_H

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct lines {
    int fd;
    struct buf buffer;
    size_t start;   // of the first line not handed out
    size_t scanned; // behind it no newline was found yet
    size_t number;  // of the line handed out last, from 1
    int ended;      // the descriptor's end was seen
};

// The next line that is not blank, without its newline, valid until the next call. Waits up to timeout_ms (-1: for
// ever), or until the program is asked to stop. OK with NULL in *line: none yet. END: the end. DATAERR: cannot read.
status lines_next(struct lines *lines, int timeout_ms, const char **line, size_t *size);

// Frees the buffer.
void lines_release(struct lines *lines);

#endif
