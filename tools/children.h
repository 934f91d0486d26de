// The processes of a run on this machine: started, watched, started again, stopped.
#ifndef TOOLS_CHILDREN_H
#define TOOLS_CHILDREN_H

#include <stdbool.h>
#include <sys/types.h>

#include "tools/deployment.h"

struct child {
    const struct replica *replica;
    const char *name; // "rollout-2"
    char *log;        // RUN/logs/NAME.log
    char **arguments; // of its program, ends with NULL
    pid_t pid;        // 0: not running
    double started;   // seconds; when it was started last
    double due;       // when it is to be started again
    int failures;     // in a row, of those that ended soon or by themselves
    bool ready;       // it has reported since it was started
};

struct children {
    struct child *list;
    size_t count;
    struct arena arena;
    const char *programs; // folder of the executables
};

// Makes the children of deployment->here and their wiring files; starts none. `log` names go to RUN/logs. Release with
// children_release.
status children_make(struct children *children, struct deployment *deployment);

// Frees what it holds; the processes go on.
void children_release(struct children *children);

// Starts every child that is due at `now`.
status children_start(struct children *children, double now);

// Takes note of one process that has ended: *ended is its child, NULL when there was none, and `how` says how it ended
// ("exit 65: its last line"), valid until the next call. USAGE, DATAERR, UNAVAILABLE or BUG when there is no sense in
// starting it again; it is due again otherwise.
status children_reap(struct children *children, double now, struct child **ended, const char **how);

// Sends a signal to all that run.
void children_signal(const struct children *children, int number);

// How many run.
size_t children_running(const struct children *children);

#endif
