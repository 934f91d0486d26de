// What view_facts.c, view_live.c and view_run.c share: what is kept of each source, and how far its run is.
#pragma once

#include "shared/store/ledger.h"
#include "tools/run/run_status.h"
#include "tools/run/watcher.h"
#include "tools/view/metric_table.h"
#include "tools/view/run_files.h"
#include "tools/view/view.h"

// The quarantined groups of a source: those of the ledger or, without one, those in the store.
struct view_quarantine {
    struct quarantined {
        int64_t at; // its seq, or its index among the groups
        char *id, *stage, *reason;
    } * list; // in this order
    size_t count;
    bool of_ledger;
    int64_t next; // the first seq of the ledger, or index of the store, that was not looked at
};

// What is kept of a source that is a run. The other ones have empty ones.
struct view_facts {
    struct metric_table metrics;
    struct run_events events;
    struct ledger *ledger; // NULL: it cannot be read
    char *ledger_why;      // why not, on the heap; NULL: there is none, or it was not tried
    uint64_t ledger_device, ledger_inode;
    double ledger_tried; // clock_monotonic() of the last failure
    struct view_quarantine quarantine;
};

struct view_live {
    struct view_facts *facts;  // of each source
    struct pipeline *pipeline; // of the first source, where its settings were changed since it was opened; else NULL
    uint64_t settings_inode;   // of RUN/pipeline.yaml as it was read
    bool settings_seen;
    struct watcher watcher;
    bool open;       // the watcher is
    bool answers;    // a supervisor does
    double next_try; // clock_monotonic() before which nothing is tried again
    char why[256];   // why no supervisor can be asked, "": it can
    struct run_status *run_status;
    int64_t seq; // of what was last added to history and events
    struct view_moment {
        int64_t seq;
        double time;
        float *busy; // of each replica; NaN: it was not heard of
    } * history;
    size_t history_count;
    size_t replica_count; // of each moment
    double next_moment;   // clock_monotonic()
};

// How far a run is, as its supervisor reports or, without one, as its files say. NaN: unknown.
struct view_progress {
    const char *state; // NULL: it is no run
    double step, done, total, rate, left, in_flight, reissued, quarantined;
    double start, end; // seconds since 1970; of a run that is over
    struct run_counters counters;
};

// ---- view_facts.c ----

// Returns what is kept of the call's source.
struct view_facts *view_run_facts(const struct view_call *call);

// Returns the settings of the call's source as of the last start of its run, NULL if it is no run.
struct pipeline *view_run_pipeline(const struct view_call *call);

// Reads what is new in the files of the call's source. What cannot be read is missing. Returns false while it is only a
// part of what is new: the call is then unfinished.
bool view_run_refresh(struct view_call *call);

// *out = how far it is. Release it with view_run_progress_release.
void view_run_progress(struct view_call *call, struct view_progress *out);

// Frees what it holds.
void view_run_progress_release(struct view_progress *progress);

// Frees what is kept of a source.
void view_run_facts_release(struct view_facts *facts);

// The replicas of a pipeline in the order of the flow, numbered as tools/deployment.c does. A zeroed struct with
// `pipeline` is before the first one.
struct view_replica {
    const struct pipeline *pipeline;
    const struct pipeline_stage *stage;
    int number, machine; // machine -1: there is only one
    char name[96];
};

// Goes to the next replica; returns false behind the last one.
bool view_replica_next(struct view_replica *replica);

// Opens the ledger of the call's source, if it can be read, and takes over what is new.
void view_ledger_read(struct view_call *call);

// Takes over the quarantined groups that are new: of the ledger or, without one, of the source's store. Where they are
// very many the call is unfinished. DATAERR, UNAVAILABLE.
status view_quarantine_read(struct view_call *call);

// ---- view_live.c ----

// Returns view->live, which a view that never waited has not opened yet.
struct view_live *view_live_get(struct view *view);

// Returns whether the call's source is watched, and a supervisor answers.
bool view_live_answers(const struct view_call *call);
