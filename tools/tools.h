// The subcommands of `caravan`, and what they share. A subcommand has a row in main.c's table.
#pragma once

#include <stddef.h>

#include "shared/config/options.h"
#include "shared/config/pipeline.h"
#include "shared/group/group.h"

struct subcommand;

// What a subcommand is called with, and what it gives back.
struct subcommand_call {
    void *given; // the struct of its options, filled in
    int count;   // of the operands
    char **list;
    struct pipeline *pipeline; // of a subcommand that reads one; `path` is its file
    const char *path;
    struct arena arena; // lives as long as the call
    struct buf out;     // is written to standard output when the call succeeds
    int code;           // the exit code then
};

// Calls a subcommand: reads its options, checks the number of its operands and, if it is of a pipeline, reads the file:
// for the directory of a run its pipeline.yaml. Diagnostics of the file are written to standard error. Returns the exit
// code; a failure was logged.
int subcommand_run(const struct subcommand *subcommand, int argc, char **argv);

// Replaces the file `name` in a directory atomically. UNAVAILABLE.
status subcommand_write_file(const char *dir, const char *name, const struct buf *content);

// Whether a file's name is that of a pipeline file: it ends in .yaml or .yml.
bool subcommand_is_pipeline(const char *path);

// Lists the directories with `file` ("groups.lmdb") that a RUN on the command line stands for: a store itself; the
// directory of a run, with RUN/store or RUN/store-MACHINE of each machine, and what its pipeline file names; or a
// pipeline file, whose models and data need not be there. They are in the arena. DATAERR if there is none; DATAERR or
// USAGE for a mistake in a pipeline file, whose diagnostics are written to standard error.
status subcommand_find_stores(const char *path, const char *file, struct arena *arena, struct string_list *stores);

// Calls visit with every group of `path`: what subcommand_find_stores takes, or a file of groups as JSON lines. The
// group is valid during the call. Stops when visit fails, and returns its failure. DATAERR, with the file and the line,
// for a line that is not a group, and for what cannot be read.
status subcommand_each_group(const char *path, status (*visit)(void *context, const struct group *group),
                             void *context);

// Reads the operand NAME=RUN[,RUN...] of a method and its trainings, into the arena. USAGE.
status subcommand_read_runs(const char *operand, struct arena *arena, struct string *name, struct string_list *runs);

// Returns the last part of a path, without what slashes stand behind it; it points into the path.
struct string subcommand_last_part(const char *path);

// Flushes standard output, logs a failure and returns the exit code: 0 for OK and END, that of UNAVAILABLE when the
// output could not be written. An empty fail_text() is not logged: it was said before.
int subcommand_exit(status result);

// A row of the table of a subcommand's options: the field of struct `owner` that it fills, its type and its help; then
// what else it says (.default_value = "1").
#define TOOL_OPTION(owner, field, kind, text, ...)                                                                     \
    { .name = #field, .offset = offsetof(struct owner, field), .type = kind, .help = (text), ##__VA_ARGS__ }

// The first member of the options of a subcommand that reads a pipeline file.
struct pipeline_file_options {
    struct string_list set;
};

// The option --set.
#define PIPELINE_SET                                                                                                   \
    TOOL_OPTION(pipeline_file_options, set, OPTION_STRING,                                                             \
                "replace a value of the file: stage.key=value; may be repeated", .repeatable = true)

// The options --machine and --key, members of `type`.
#define RUN_MACHINE(type)                                                                                              \
    TOOL_OPTION(type, machine, OPTION_STRING, "name of this machine in the file (default: the host's)"),               \
        TOOL_OPTION(type, key, OPTION_FILE, "key file of this machine (default: the file that caravan keygen writes)")

// The first members of the options of a subcommand that belongs to a run on this machine.
struct run_member_options {
    struct pipeline_file_options file;
    const char *machine, *key; // for deployment_init
};

// The options --set, --machine and --key.
#define RUN_MEMBER PIPELINE_SET, RUN_MACHINE(run_member_options)

// If the file does not set optim's `publish`, chooses it: the stages with weights use optim's memory where all of them,
// on its machine, name its precision and its device, or those of its ranks. A group may be under way while optim takes
// a step unless max_staleness is 0; then they copy.
void subcommand_set_publish(struct pipeline *pipeline);

// Tells the stages that need frames how the run's frames stage makes them, and its limit: they decode evicted frames
// again, and evict from the stores of their machines.
void subcommand_set_frames(struct pipeline *pipeline);

typedef status subcommand_main(struct subcommand_call *call);

subcommand_main agreement_main;
subcommand_main ask_main;
subcommand_main check_main;
subcommand_main make_demo_data_main;
subcommand_main compare_main;
subcommand_main curves_main;
subcommand_main data_main;
subcommand_main draw_main;
subcommand_main eval_main;
subcommand_main frames_main;
subcommand_main graph_main;
subcommand_main groups_main;
subcommand_main init_main;
subcommand_main judge_drawn_main;
subcommand_main keygen_main;
subcommand_main ls_main;
subcommand_main merge_main;
subcommand_main pairs_main;
subcommand_main plan_main;
subcommand_main reference_main;
subcommand_main replay_main;
subcommand_main report_main;
subcommand_main run_main;
subcommand_main serve_main;
subcommand_main stop_main;
subcommand_main tokenize_main;
subcommand_main top_main;
subcommand_main train_consistency_main;
subcommand_main view_main;

// What each takes.
extern const struct option_table agreement_table, ask_table, check_table, compare_table, curves_table, data_table,
    draw_table, eval_table, frames_tool_table, graph_table, groups_table, init_table, judge_drawn_table, keygen_table,
    ls_table, make_demo_data_table, merge_table, pairs_table, plan_table, reference_table, replay_table, report_table,
    run_table, serve_table, stop_table, tokenize_table, top_table, train_consistency_table, view_table;

// `caravan program`, which `caravan run` starts: it parses its command line as a stage. Returns the exit code.
int program_main(int argc, char **argv);

enum { MAX_REPORT_FILES = 16 }; // that `caravan report` compares

enum subcommand_pipeline {
    NO_PIPELINE,
    PIPELINE_FILE,   // FILE, with every --set; the struct of the options begins with pipeline_file_options
    PIPELINE_OR_RUN, // the same, or the directory of a run
    PIPELINE_ALONE   // the same, but the files and directories that the file names may be missing
};

struct subcommand {
    const char *name;
    subcommand_main *main;
    const struct option_table *options;
    const char *help;                  // for the list of `caravan --help`
    enum subcommand_pipeline pipeline; // then there is one operand
    int least, most;                   // otherwise how many there may be
    bool named;                        // its name stands before what has failed
};

// All but `program`, sorted by name. Ends with a NULL name.
extern const struct subcommand subcommands[];
