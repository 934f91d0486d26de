// A user's program as a child process: started, given a line, asked for a line, stopped. It leads a process group of
// its own, which ends as a whole with filter_stop, and when this process ends, however that happens.
#ifndef TOOLS_RUN_FILTER_H
#define TOOLS_RUN_FILTER_H

#include <stdbool.h>
#include <sys/types.h>

#include "shared/base/memory.h"

// A zeroed struct is one that does not run.
struct filter {
    char **argv;           // ends with NULL
    const char *directory; // the directory in which it starts
    pid_t pid;             // 0: not running
    pid_t guard;           // kills the group when this process ends
    int in, out;           // its standard input and output
    off_t log_start;       // size of the log, which is its standard error, when it was started
    struct buf output;
};

// Starts it. UNAVAILABLE; it does not run then.
status filter_start(struct filter *filter);

// Writes a line, with its newline, and waits for the line with which it answers: the first *size bytes of
// filter->output, without the newline, until filter_drop_answer. `timeout` is in seconds, 0: none. BAD_SAMPLE when it
// has ended, or has not answered in time and was killed: it does not run any more, fail_text() says how it ended
// ("ended with exit code 1: the last line of its log"), and *read whether it had taken any of the line. END when this
// process is asked to stop.
status filter_exchange(struct filter *filter, const struct buf *line, double timeout, size_t *size, bool *read);

// Removes an answer of `size` bytes and its newline from filter->output.
void filter_drop_answer(struct filter *filter, size_t size);

// Closes its input, waits a second for its end, and kills what is left of its process group. Does nothing if it does
// not run.
void filter_stop(struct filter *filter);

#endif
