#include "tools/pipelines.h"

#include <stdio.h>

#include "tools/tools.h"

status pipelines_open(struct pipeline **pipeline, struct options *options, const struct option_table *table,
                      void *values, int argc, char **argv, const char **path) {
    const struct string_list *sets = &((const struct pipeline_file_options *)values)->set;
    struct buf diagnostics = {0};
    struct operands operands = {.least = 1, .most = 1};
    status result = subcommand_parse(options, table, values, argc, argv, &operands);
    if (result == OK) {
        *path = operands.list[0];
        result = pipeline_read(pipeline, *path, sets->data, sets->count, &diagnostics);
        if (diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
        buf_release(&diagnostics);
    }
    return result;
}
