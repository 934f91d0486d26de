#include "tools/pipelines.h"

#include <stdio.h>

#include "shared/base/log.h"

static status read_file(struct pipeline **pipeline, const struct settings *settings, const char *path) {
    struct buf mistakes = {0};
    size_t count;
    const char *const *sets = settings_texts(settings, "set", &count);
    status result = pipeline_read(pipeline, path, sets, count, &mistakes);
    if (mistakes.size) fwrite(mistakes.data, 1, mistakes.size, stderr);
    buf_release(&mistakes);
    return result;
}

status pipelines_open(struct pipeline **pipeline, struct settings **settings, const struct option_table *table,
                      int argc, char **argv, const char **path) {
    int rest = argc;
    status result = settings_new_table(settings, table);
    if (result == OK) result = settings_arguments(*settings, argc, argv, &rest);
    if (result == OK && argc - rest != 1) result = fail(USAGE, "one pipeline file is wanted: %s FILE", table->program);
    if (result == OK) {
        *path = argv[rest];
        result = read_file(pipeline, *settings, *path);
    }
    if (result != OK && result != END) log_info("%s", fail_text());
    return result;
}
