// The stage processes of a run on this machine: started, watched, restarted, stopped.
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "tools/deployment.h"

struct process {
    const struct replica *replica;
    const char *name;      // "rollout-2"
    const char *log;       // RUN/logs/NAME.log
    char **argv;           // of its program, ends with NULL
    bool failed;           // its last end was none that a stage means
    int code;              // with which it last ended; 0: it was killed, too
    bool ended_by_other;   // killed because another rank of its stage had ended
    pid_t pid;             // also its process group; 0: not running
    double started;        // clock_monotonic() of the last start
    double start_after;    // clock_monotonic() before which it is not started
    int failures, kills;   // without progress of the run in between; kills: by SIGKILL. The first rank has all ranks'
    uint64_t failure_hash; // of how it last failed
    off_t log_start;       // size of its log at the last start
    int64_t settled;       // groups that the run was done with when it last failed
};

struct processes {
    struct process *list;
    size_t count;
    const char *logs; // the directory of the logs
    bool ending;      // the run is: none is started again
    struct arena arena;
};

// Lists the processes of deployment->here and writes their configuration files; starts none. The deployment must
// outlive the list. UNAVAILABLE. Release it with processes_release, after a failure too.
status processes_init(struct processes *processes, struct deployment *deployment);

// Frees what it holds; the processes go on.
void processes_release(struct processes *processes);

// Starts every process that does not run and whose start_after is not later than `now`. UNAVAILABLE when one cannot be
// started, which is tried again later, or has no log and runs without; fail_text() says which.
status processes_start(struct processes *processes, double now);

// Reaps one process that has ended, if there is one, and kills what it has left in its process group. *ended is the
// process, or NULL. `settled` is the number of groups that the run is done with. OK when the process shall be
// restarted; *how says how it ended and when it is started again, and is valid until the next call; it is NULL for a
// rank that processes_end_ranks has killed, and for a later rank that ended well. A rank that ends well, as it was
// asked to, has not failed. Else USAGE, DATAERR, UNAVAILABLE or BUG: the run must end. While it is ending, OK, and a
// failure is only described.
status processes_reap(struct processes *processes, double now, int64_t settled, struct process **ended,
                      const char **how);

// The end of a rank is the end of all: kills the ranks of a stage that were started at `before` at the latest, and
// returns how many. That counts as no failure of theirs. They are started again together, not before `start_after`.
size_t processes_end_ranks(struct processes *processes, const struct pipeline_stage *stage, double before,
                           double start_after);

// Moves the content of each log above 64 MB to LOG.1, where the last one was. The processes go on writing to the log; a
// line that one writes at that very moment may be lost. UNAVAILABLE when a log cannot be moved; it then stays.
status processes_rotate_logs(const struct processes *processes);

// Kills a running process with its process group: a user's program may have started others.
void process_kill(const struct process *process);

// Returns the number of running processes.
size_t processes_running(const struct processes *processes);
