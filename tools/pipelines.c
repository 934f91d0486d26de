#include "tools/pipelines.h"

#include <stdio.h>

#include "shared/base/log.h"

status pipelines_open(struct pipeline **pipeline, struct options *options, const struct option_table *table,
                      void *values, int argc, char **argv, const char **path) {
    const struct string_list *sets = &((const struct pipeline_file_options *)values)->set;
    struct buf diagnostics = {0};
    int rest = argc;
    status result = options_init(options, table, values);
    if (result == OK) result = options_parse(options, argc, argv, &rest);
    if (result == OK && argc - rest != 1)
        result = fail(USAGE, "exactly one pipeline file is expected: %s FILE", table->program);
    if (result == OK) {
        *path = argv[rest];
        result = pipeline_read(pipeline, *path, sets->data, sets->count, &diagnostics);
        if (diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
        buf_release(&diagnostics);
    }
    if (result != OK && result != END) log_info("%s", fail_text());
    return result;
}
