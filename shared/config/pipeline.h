// A pipeline file: read, checked as a whole, and completed with the values that stages inherit.
//
// A stage is one of stage_kinds[] or, under any other name, a user's `program`. The keys of a program are its own: they
// are not checked, and it gets them as `--key value` arguments. Paths of known keys are absolute: in the file, relative
// ones start from its directory; on the command line (--set), from the current one.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/config/stage_kinds.h"

// ---- mistakes and warnings ----

// What is wrong in a pipeline file, and warnings of what is allowed but makes no sense, each with its location. All
// those of a file are collected, sorted and shown at once.
struct diagnostic {
    struct location at;
    const char *text;
    bool warning; // not a mistake
};

// A zeroed struct is an empty list.
struct diagnostics {
    struct arena arena; // of the texts
    struct diagnostic *list;
    size_t count;
};

// Adds a mistake. Returns it, valid until the next one is added: it may be made a warning.
struct diagnostic *diagnostic_add(struct diagnostics *diagnostics, struct location at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// Returns the number of warnings.
size_t diagnostics_warnings(const struct diagnostics *diagnostics);

// Sorts them by line and column, those of the command line first, and appends "PATH:LINE:COLUMN: TEXT" lines to `out`,
// with "warning: " before the text of a warning. OK without mistakes; USAGE when all mistakes are about the command
// line; DATAERR otherwise. UNAVAILABLE when memory was short at any time before.
status diagnostics_report(struct diagnostics *diagnostics, const char *path, struct buf *out);

// Frees the list and its texts and leaves an empty list.
void diagnostics_release(struct diagnostics *diagnostics);

// ---- the pipeline ----

enum { PIPELINE_MAX_STAGE = 63 }; // bytes of a stage's name, with which the names of its sockets begin

struct pipeline_stage {
    const char *name; // no blanks, no '/'
    struct location at;
    const struct stage_kind *kind; // NULL: a user's program
    const char *program;           // of a user: an absolute path, or a name that is not in PATH here; NULL otherwise
    int replicas;                  // on each of its machines, 1 or more; of optim its ranks
    int *machines;                 // indices of those that were named, in this order
    size_t machine_count;          // 0: none was named
    double timeout;                // of a user's program: seconds that it has for a group, 0: any time
    struct options options;        // given: or inherited; not from, replicas, on, program and timeout
};

struct pipeline_machine {
    const char *name;
    struct location at;
    const char *address; // host name or IP address
    const char *key;     // its public key, NULL without one
    const char *bind;    // the address that it listens on, NULL: all of its addresses
    int port;            // the first port that it listens on, 0: not given
    struct key_list keys;
};

// TCP ports. Each machine has a first port, that of its supervisor, and then PIPELINE_STAGE_PORTS ports for each stage
// in the order of the flow. So the ports of a process do not depend on the replicas and machines of other stages. Of
// ranks only the first one listens on a port of replicas; where they run on several machines, those of a machine listen
// for each other on the ports from the second one on.
enum { PIPELINE_FIRST_PORT = 5600, PIPELINE_STAGE_PORTS = 64 };

// All strings live in the arena, and what a stage was given in that of its options, too. The machines are on the heap.
struct pipeline {
    struct arena arena;
    const char *dir; // of the file, absolute
    const char *name;
    const char *run;                        // absolute
    struct location run_at;                 // where its value stands
    double give_up_after;                   // minutes to wait for a machine that is away, 0: for ever
    struct key_list keys;                   // of the file itself
    struct location stages_at, machines_at; // line 0: not given
    struct pipeline_stage *stages;          // in the order of the flow: each reads the groups of the one before
    size_t stage_count;
    struct pipeline_machine *machines;
    size_t machine_count;
    struct key_list machine_groups;
    bool slurm;     // `machines: slurm`: they are the nodes of a Slurm job
    bool slurm_job; // it was read inside of a job; otherwise one machine stands for all of them
};

// Reads the file and then applies each of sets[0..count): "stage.key=value", or "key=value" for a key of the file.
// `alone`: for what needs the file alone; models, data and programs that are missing are then no mistakes. Nor are they
// where the file has several machines, each of which needs those of its own stages (inspection.h). DATAERR when
// the file is wrong: `diagnostics` gets a line for each mistake ("FILE:LINE:COLUMN: what is wrong", by line),
// fail_text() says how many. USAGE when only `sets` are wrong. Free with pipeline_free.
status pipeline_read(struct pipeline **out, const char *path, bool alone, const char *const *sets, size_t count,
                     struct buf *diagnostics);

// As pipeline_read, from a file's content; `path` gives the directory and stands in the messages.
status pipeline_parse(struct pipeline **out, const char *path, bool alone, const char *text, size_t size,
                      const char *const *sets, size_t count, struct buf *diagnostics);

// Reads the content of a file without checking what its names and values mean: the keys of the file and of its stages
// are as they are written, and nothing else is set. DATAERR with "LINE:COLUMN: what is wrong" when it does not have the
// form of a pipeline file. Free with pipeline_free.
status pipeline_parse_unchecked(struct pipeline **out, const char *text, size_t size);

// Frees the pipeline and sets *pipeline to NULL; NULL is fine.
void pipeline_free(struct pipeline **pipeline);

// Returns the stage of that name, NULL if there is none.
struct pipeline_stage *pipeline_find_stage(const struct pipeline *pipeline, const char *name);

// Returns the last stage if it is optim, NULL in a pipeline that trains nothing.
struct pipeline_stage *pipeline_optim(const struct pipeline *pipeline);

// Returns the index of the stage's i-th machine. A stage that names none runs on machine 0.
int pipeline_stage_machine(const struct pipeline_stage *stage, size_t i);

// Returns on how many machines the stage runs, 1 or more.
size_t pipeline_stage_machine_count(const struct pipeline_stage *stage);

// Returns whether replicas of the stage run on that machine.
bool pipeline_stage_runs_on(const struct pipeline_stage *stage, int machine);

// Returns the first of the TCP ports of `stage` on a machine, or the port of the machine's supervisor for NULL. The
// stage's replicas there listen on that port and the next ones.
int pipeline_port(const struct pipeline *pipeline, const struct pipeline_machine *machine,
                  const struct pipeline_stage *stage);

// Appends a table with the address of each machine and the TCP ports that the others must reach there.
void pipeline_ports_text(const struct pipeline *pipeline, struct buf *out);

// Returns how many processes of the stage train together, its ranks on all its machines; 0 if it is no such stage or
// only one trains.
int pipeline_stage_ranks(const struct pipeline_stage *stage);

// Returns what to say of a file or directory that a key names and that is not there ("PATH: No such file or directory",
// then what may have been meant), in the arena; NULL if it is there, or if the option takes no file. `dir`: relative
// paths of this file start there.
const char *pipeline_missing_file(const struct option *option, const char *name, const char *dir, const char *path,
                                  struct arena *arena);

// The same for a stage's program: a path, or a bare name that was not found in PATH.
const char *pipeline_missing_program(const char *program, struct arena *arena);

// Whether a stage does without a file on a machine: it is not there, and the stage has its name from the source, which
// runs elsewhere. So it is with media_root, whose frames it is sent. Not frames itself, which reads there.
bool pipeline_does_without(const struct pipeline *pipeline, const struct pipeline_stage *stage, const struct key *key,
                           int machine);

// Returns the value of a stage's key as given or inherited, NULL if it is at its default.
const char *pipeline_value(const struct pipeline_stage *stage, const char *key);

// Sets or replaces a key of a stage, for what the supervisor adds. The strings are copied. The value must be one that
// the option takes.
void pipeline_set(struct pipeline_stage *stage, const char *key, const char *value);

// Gives a stage a key with the places of where its value comes from. Returns whether its option takes the value; what
// another key was diagnosed for need not be said again.
bool pipeline_set_at(struct pipeline_stage *stage, const char *name, const char *value, struct location name_at,
                     struct location value_at);

// Returns the options of a stage that is not a user's program: the struct of its kind.
const void *pipeline_options(const struct pipeline_stage *stage);

// Appends the pipeline as YAML that reads back as the same one: all paths absolute, inherited values written out.
// UNAVAILABLE.
status pipeline_write(const struct pipeline *pipeline, struct buf *out);

// Appends the reference of a pipeline file's own keys as Markdown tables.
void pipeline_keys_markdown(struct buf *out);

// Appends the flow as a graph in Graphviz's dot language.
void pipeline_dot(const struct pipeline *pipeline, struct buf *out);

// Appends the flow as lines of text for a terminal.
void pipeline_text(const struct pipeline *pipeline, struct buf *out);
