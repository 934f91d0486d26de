// The functions that all subcommands share: options, operands, pipeline files, exit codes.
#include <stdio.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

status subcommand_parse(struct options *options, const struct option_table *table, void *values, int argc, char **argv,
                        struct operands *operands) {
    int rest = argc;
    TRY(options_init(options, table, values));
    TRY(options_parse(options, argc, argv, &rest));
    operands->list = argv + rest;
    operands->count = argc - rest;
    if (operands->count < operands->least)
        return fail(USAGE, "an operand is missing; usage: %s %s", table->program, table->operands);
    if (operands->count > operands->most)
        return fail(USAGE, "unexpected operand '%s'; usage: %s %s", operands->list[operands->most], table->program,
                    table->operands);
    return OK;
}

status subcommand_open_pipeline(struct pipeline **pipeline, struct options *options, const struct option_table *table,
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

status subcommand_write_file(const char *dir, const char *name, const struct buf *content) {
    struct arena memory = {0};
    char *path = path_join(&memory, dir, name);
    status result = path ? file_write_atomic(path, content->data, content->size) : fail_oom();
    arena_release(&memory);
    return result;
}

int subcommand_exit(status result) {
    if (result == OK && (fflush(stdout) || ferror(stdout)))
        result = fail(UNAVAILABLE, "cannot write to standard output");
    if (result == OK || result == END) return 0;
    log_info("%s", fail_text());
    return status_exit_code(result);
}
