// A pipeline file: read, checked whole, and completed by what one key hands down to many stages.
//
// A stage is one of stage_names() or, under any other name, a `program`: its keys are its own and reach it as
// `--key value` arguments as they are written; the rest is known and checked. Paths of known keys are made absolute:
// relative ones start from the file's folder (on the command line, --set, from the current one).
#ifndef SHARED_CONFIG_PIPELINE_H
#define SHARED_CONFIG_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/config/options.h"

struct pipeline_key {
    const char *name;  // with underscores
    const char *value; // as it would be typed
};

struct pipeline_stage {
    const char *name;
    const struct option_table *table; // NULL: a program of the user's
    const char *program;              // of the user's: an absolute path; NULL otherwise
    int from;                         // the stage whose groups it reads, -1: the source
    int replicas;                     // 1 or more
    int on;                           // its machine, -1: none was named
    struct pipeline_key *keys;        // given or handed down
    size_t key_count;
};

struct pipeline_machine {
    const char *name;
    const char *address; // host name or IP address
    const char *key;     // its public key, NULL without one
    int port;            // the first port that it listens on, 0: not said
};

// All texts live in the arena.
struct pipeline {
    struct arena arena;
    const char *folder; // of the file, absolute
    const char *name;
    const char *run;               // absolute
    struct pipeline_stage *stages; // in the order of the flow: stages[i].from < i
    size_t stage_count;
    struct pipeline_machine *machines;
    size_t machine_count;
};

// Reads the file and then each of sets[0..count): "stage.key=value", "key=value" for a top-level one. DATAERR when
// there are mistakes: `mistakes` gets a line for each ("FILE:LINE:COLUMN: what is wrong", by line), fail_text() says
// how many; USAGE when they are in `sets` alone. Free with pipeline_free.
status pipeline_read(struct pipeline **out, const char *path, const char *const *sets, size_t count,
                     struct buf *mistakes);

// The same from a file's text; `path` tells the folder and names it in messages.
status pipeline_parse(struct pipeline **out, const char *path, const char *text, size_t size, const char *const *sets,
                      size_t count, struct buf *mistakes);

// NULL is fine; sets *pipeline to NULL.
void pipeline_free(struct pipeline **pipeline);

// The value of a stage's key as given or handed down, NULL if it is at its default.
const char *pipeline_value(const struct pipeline_stage *stage, const char *key);

// Sets or replaces a key of a stage, for what the supervisor adds. The texts are copied.
status pipeline_set(struct pipeline *pipeline, struct pipeline_stage *stage, const char *key, const char *value);

// The complete settings of a stage that is no user's program. Free with settings_free.
status pipeline_settings(const struct pipeline_stage *stage, struct settings **out);

// Appends the pipeline as YAML that reads back as the same one: all paths absolute, what was handed down written out.
status pipeline_write(const struct pipeline *pipeline, struct buf *out);

// Appends a picture of the flow: Graphviz's dot, or lines of text for a terminal.
status pipeline_dot(const struct pipeline *pipeline, struct buf *out);
// The same as text.
status pipeline_text(const struct pipeline *pipeline, struct buf *out);

#endif
