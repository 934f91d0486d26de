// What the subcommands that take a pipeline file have in common.
#ifndef TOOLS_PIPELINES_H
#define TOOLS_PIPELINES_H

#include <stddef.h>

#include "shared/config/pipeline.h"

// The first member of the options of such a subcommand.
struct pipeline_file_options {
    struct string_list set;
};

// The option --set.
#define PIPELINE_SET                                                                                                   \
    {                                                                                                                  \
        .name = "set", .offset = offsetof(struct pipeline_file_options, set), .type = OPTION_STRING,                   \
        .repeatable = true, .help = "stage.key=value over what the file says; may be repeated"                         \
    }

// Parses a subcommand's options into `values`, the table's struct, which begins with pipeline_file_options; then reads
// its FILE with every --set. Diagnostics of the file are written to standard error; the failure itself is not. END
// after
// --help. *path is FILE. Release with
// pipeline_free and options_release.
status pipelines_open(struct pipeline **pipeline, struct options *options, const struct option_table *table,
                      void *values, int argc, char **argv, const char **path);

#endif
