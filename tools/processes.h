// The processes of a run on this machine: started, watched, started again, stopped.
#ifndef TOOLS_PROCESSES_H
#define TOOLS_PROCESSES_H

#include <stdbool.h>
#include <sys/types.h>

#include "tools/deployment.h"

struct process {
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

struct processes {
    struct process *list;
    size_t count;
    struct arena arena;
    const char *programs; // folder of the executables
};

// Makes the processes of deployment->here and their wiring files; starts none. `log` names go to RUN/logs. Release with
// processes_release.
status processes_init(struct processes *processes, struct deployment *deployment);

// Frees what it holds; the processes go on.
void processes_release(struct processes *processes);

// Starts every process that is due at `now`.
status processes_start(struct processes *processes, double now);

// Takes note of one process that has ended: *ended is its process, NULL when there was none, and `how` says how it
// ended
// ("exit 65: its last line"), valid until the next call. USAGE, DATAERR, UNAVAILABLE or BUG when there is no sense in
// starting it again; it is due again otherwise.
status processes_reap(struct processes *processes, double now, struct process **ended, const char **how);

// Sends a signal to all that run.
void processes_signal(const struct processes *processes, int number);

// How many run.
size_t processes_running(const struct processes *processes);

#endif
