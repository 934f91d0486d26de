// What the verbs that take a pipeline file do alike.
#ifndef TOOLS_PIPELINES_H
#define TOOLS_PIPELINES_H

#include "shared/config/pipeline.h"

// The option --set, which may be given many times.
#define PIPELINE_SET                                                                                                   \
    {                                                                                                                  \
        .name = "set", .type = OPTION_STRING, .repeatable = true,                                                      \
        .help = "stage.key=value over what the file says; may be repeated"                                             \
    }

// Reads a verb's options and its FILE with every --set. What is wrong is written to standard error; END after
// --help. *path is FILE.
status pipelines_open(struct pipeline **pipeline, struct settings **settings, const struct option_table *table,
                      int argc, char **argv, const char **path);

#endif
