// caravan graph FILE: the pipeline as a picture. Text on a terminal, Graphviz's dot otherwise.
#include <stdio.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "shared/config/pipeline.h"
#include "tools/pipelines.h"
#include "tools/tools.h"

static const struct option graph_keys[] = {
    {.name = "dot", .type = OPTION_BOOL, .help = "Graphviz's dot (the default when standard output is no terminal)"},
    {.name = "text", .type = OPTION_BOOL, .help = "lines of text (the default on a terminal)"},
    PIPELINE_SET,
    {0},
};
static const struct option_table graph_table = {NULL, "caravan graph", "FILE", "draws a pipeline file", graph_keys};

int graph_main(int argc, char **argv) {
    struct settings *settings = NULL;
    struct pipeline *pipeline = NULL;
    struct buf picture = {0};
    const char *path;
    status result = pipelines_open(&pipeline, &settings, &graph_table, argc, argv, &path);
    if (result == OK) {
        bool text = settings_bool(settings, "text") || (isatty(STDOUT_FILENO) && !settings_bool(settings, "dot"));
        result = text ? pipeline_text(pipeline, &picture) : pipeline_dot(pipeline, &picture);
        if (result != OK) log_info("%s", fail_text());
    }
    if (result == OK) fwrite(picture.data, 1, picture.size, stdout);
    buf_release(&picture);
    pipeline_free(&pipeline);
    settings_free(&settings);
    return result == END ? 0 : result;
}
