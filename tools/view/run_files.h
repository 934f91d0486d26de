// What a run's directory says without its processes: events.jsonl, metrics.prom, the settings, the ledger's reasons.
// Who reads again and again takes only what is new. Nothing is written.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/config/pipeline.h"

// ---- line_file ----

// A file that grows by lines, as far as it was read. A zeroed struct is at its beginning.
struct line_file {
    uint64_t device, inode;
    int64_t at; // in bytes
    bool more;  // the last call has left lines for the next one
};

enum { LINE_FILE_PIECE = 1 << 20 }; // bytes that are read at once, which takes about 10 ms to parse

// Appends the whole lines that the file has got since the last call, of very many the first ones; a last line without
// its end is left for later. A missing file has none. *anew: what was read before counts no more, because the file was
// replaced, removed or cut; `lines` then has all of it. DATAERR and UNAVAILABLE name the path.
status line_file_read(struct line_file *file, const char *path, struct buf *lines, bool *anew);

// ---- run_events ----

enum { RUN_EVENTS = 2000 }; // that are kept at least

struct run_event {
    double time; // seconds since 1970
    char *kind;
    const char *text;
    const char *name; // NULL: of no process, stage or machine
    int64_t seq;      // in the order in which they were read
    double order;     // `time`, but never before an earlier event of the same file: a clock may have been set back
};

// The events of a run: on several machines of those whose files are here. A zeroed struct has none.
struct run_events {
    bool found;             // there is a file
    struct run_event *list; // the newest ones; each has its strings behind `kind`, on the heap
    size_t count, noted;    // of these so many are in their order; the others are still being read
    double *starts;         // times at which the run was started and went on
    size_t start_count;
    double last;       // time of the last event
    bool done;         // the last event about the whole run says that it is done
    int64_t cut_count; // how often all was read anew
    struct line_file *files;
    size_t file_count;
};

// Reads what is new in RUN/events.jsonl or RUN/events-MACHINE.jsonl. Each event gets the next number of *seq. *more:
// only a part was read, and the events are complete after a further call. DATAERR, UNAVAILABLE.
status run_events_read(struct run_events *events, const struct pipeline *pipeline, int64_t *seq, bool *more);

// Frees and zeroes.
void run_events_release(struct run_events *events);

// ---- run_counters ----

// A replica's counters since its process started; NaN: unknown.
struct replica_counters {
    char stage[64];
    int number;
    double up, restarts, done, tokens, worked, work_seconds, busy, held, waiting;
};

// What a supervisor has last written to metrics.prom. NaN: unknown.
struct run_counters {
    bool known;  // there is such a file
    double time; // when it was written, seconds since 1970
    double step, reissued;
    double done, quarantined, unused, in_flight, unissued; // groups by what became of them; done: trained, where there
                                                           // is optim
    struct replica_counters *replicas;
    size_t count;
};

// Reads RUN/metrics.prom, of several machines the newest RUN/metrics-MACHINE.prom. The caller frees it with
// run_counters_release. DATAERR, UNAVAILABLE.
status run_counters_read(struct run_counters *counters, const struct pipeline *pipeline);

// Reads the text of such a file.
void run_counters_parse(struct run_counters *counters, const char *text);

// Returns the counters of a replica, NULL if there are none.
struct replica_counters *run_counters_find(const struct run_counters *counters, const char *stage, int number);

// Frees and zeroes.
void run_counters_release(struct run_counters *counters);

// ---- texts ----

// Whether the value of a setting must not be shown: its name has a word for a secret. Settings that count tokens are
// none.
bool setting_is_secret(const char *name, const char *value);

// Appends the settings of all stages as a JSON object: {"optim": {"lr": ["1e-5", false]}}, the second element says
// whether it is the default.
void run_print_settings(const struct pipeline *pipeline, struct buf *out);

// Appends the reason of a quarantine without its paths and numbers, so that equal ones are the same text.
void quarantine_reason(const char *reason, struct buf *out);
