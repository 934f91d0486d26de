// caravan graph FILE: the pipeline as a picture. Text on a terminal, Graphviz's dot otherwise.
#include <stdio.h>
#include <unistd.h>

#include "shared/config/pipeline.h"
#include "tools/pipelines.h"
#include "tools/tools.h"

struct graph_options {
    struct pipeline_file_options file;
    bool dot, text;
};

static const struct option graph_options[] = {
    {.name = "dot",
     .offset = offsetof(struct graph_options, dot),
     .type = OPTION_BOOL,
     .help = "Graphviz's dot (the default when standard output is no terminal)"},
    {.name = "text",
     .offset = offsetof(struct graph_options, text),
     .type = OPTION_BOOL,
     .help = "lines of text (the default on a terminal)"},
    PIPELINE_SET,
    {0},
};
static const struct option_table graph_table = {.program = "caravan graph",
                                                .operands = "FILE",
                                                .help = "draws a pipeline file",
                                                .options = graph_options,
                                                .size = sizeof(struct graph_options)};

int graph_main(int argc, char **argv) {
    struct graph_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct buf picture = {0};
    const char *path;
    status result = pipelines_open(&pipeline, &options, &graph_table, &given, argc, argv, &path);
    if (result == OK) {
        bool text = given.text || (isatty(STDOUT_FILENO) && !given.dot);
        result = text ? pipeline_text(pipeline, &picture) : pipeline_dot(pipeline, &picture);
    }
    if (result == OK) fwrite(picture.data, 1, picture.size, stdout);
    buf_release(&picture);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
