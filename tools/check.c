// caravan check FILE: every mistake in a pipeline file at once. Starts nothing.
#include <stdio.h>

#include "shared/config/pipeline.h"
#include "tools/pipelines.h"
#include "tools/tools.h"

static const struct option check_options[] = {PIPELINE_SET, {0}};
static const struct option_table check_table = {.program = "caravan check",
                                                .operands = "FILE",
                                                .help = "finds every mistake in a pipeline file",
                                                .options = check_options,
                                                .size = sizeof(struct pipeline_file_options)};

int check_main(int argc, char **argv) {
    struct pipeline_file_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    const char *path;
    status result = pipelines_open(&pipeline, &options, &check_table, &given, argc, argv, &path);
    if (result == OK) {
        int processes = 0;
        for (size_t i = 0; i < pipeline->stage_count; i++) processes += pipeline->stages[i].replicas;
        printf("%s: no mistakes: %s, %zu stages in %d processes, run in %s\n", path, pipeline->name,
               pipeline->stage_count, processes, pipeline->run);
    }
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}
