// A stage's program as a filter: lines go in, lines come out, whatever it says goes into a log in memory.
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// A zeroed struct is one that does not run.
struct replay_process {
    pid_t pid;        // 0: not running
    bool started;     // the descriptors are open
    int in, out, log; // its standard input (-1: closed) and output, and a file in memory that has its standard error
    struct buf input; // what it gets; `written` bytes of it are written
    size_t written;
    bool input_ended;  // no more comes
    struct buf output; // what it has written; the first `start` bytes were taken
    size_t start;
};

// Starts argv[0], to be found as a shell does it, in a directory (NULL: this one). The kernel ends it with this
// process. UNAVAILABLE; it does not run then. Stop it in any case.
status replay_process_start(struct replay_process *process, char *const *argv, const char *directory);

// Adds a line to what it gets; the newline is added.
void replay_process_add(struct replay_process *process, const struct buf *line);

// Says that no more lines come: its input is closed when it has read all of them.
void replay_process_end_input(struct replay_process *process);

// Waits until it has written a line: *line[0..size), valid until the next call. *line is NULL when its output has
// ended. BAD_SAMPLE when `seconds` (0: any time) are over; STOPPED when this program is asked to stop (signals_open
// must have been called); UNAVAILABLE.
status replay_process_next(struct replay_process *process, double seconds, const char **line, size_t *size);

// Closes its input and waits for its end, whose output has ended. OK for exit code 0; STOPPED when this program is
// asked to stop. Otherwise fails with the last line of its log, without the program's name; the status is its exit
// code's if it has that meaning, else UNAVAILABLE.
status replay_process_wait(struct replay_process *process);

// Kills it if it runs, and frees everything.
void replay_process_stop(struct replay_process *process);
