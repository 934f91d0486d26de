// The functions that all subcommands share: options, operands, pipeline files, exit codes.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/device_list.h"
#include "shared/config/stage_options.h"
#include "shared/stage/line_reader.h"
#include "shared/store/group_store.h"
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

// Calls visit with every group of the store in `directory`.
static status subcommand_each_in_store(const char *directory, status (*visit)(void *context, const struct group *group),
                                       void *context) {
    struct group_store *store = NULL;
    TRY(group_store_open(&store, directory, true));
    status result = group_store_each(store, visit, context);
    if (result == DATAERR) fail_prefix(result, "%s", directory);
    group_store_close(&store);
    return result;
}

// Calls visit with every group of the store in a directory, or of the stores of the run in it: RUN/store, or
// RUN/store-MACHINE of each machine.
static status subcommand_each_stored(const char *directory, status (*visit)(void *context, const struct group *group),
                                     void *context) {
    struct arena memory = {0};
    const char *own = path_join(&memory, directory, "groups.lmdb"), *of_run = path_join(&memory, directory, "store");
    const bool of_machines = own && of_run && !path_exists(own) && !path_exists(of_run);
    DIR *run = of_machines ? opendir(directory) : NULL;
    size_t count = 0;
    status result = own && of_run ? OK : fail_oom();
    for (struct dirent *entry; run && result == OK && (entry = readdir(run));) {
        const char *store = path_join(&memory, directory, entry->d_name);
        const char *file = store ? path_join(&memory, store, "groups.lmdb") : NULL;
        if (strncmp(entry->d_name, "store-", strlen("store-")) != 0 || (file && !path_exists(file))) continue;
        count++;
        result = file ? subcommand_each_in_store(store, visit, context) : fail_oom();
    }
    if (run) closedir(run);
    if (result == OK && !count)
        result = subcommand_each_in_store(path_exists(own) || of_machines ? directory : of_run, visit, context);
    arena_release(&memory);
    return result;
}

status subcommand_each_group(const char *path, status (*visit)(void *context, const struct group *group),
                             void *context) {
    struct line_reader lines = {.fd = -1};
    struct group *group = NULL;
    struct stat info;
    status result = OK;
    if (stat(path, &info)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return subcommand_each_stored(path, visit, context);
    lines.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (lines.fd < 0) return fail(DATAERR, "%s: %s", path, strerror(errno));
    while (result == OK) {
        const char *line = NULL;
        size_t size;
        result = line_reader_next(&lines, -1, &line, &size);
        if (line) result = group_from_json(&group, line, size);
        if (line && result == OK) result = visit(context, group);
        group_free(&group);
    }
    if (result == DATAERR) fail_prefix(result, "%s: line %zu", path, lines.number);
    close(lines.fd);
    line_reader_release(&lines);
    return result == END ? OK : result;
}

int subcommand_exit(status result) {
    if (result == OK && (fflush(stdout) || ferror(stdout)))
        result = fail(UNAVAILABLE, "cannot write to standard output");
    if (result == OK || result == END) return 0;
    if (*fail_text()) log_info("%s", fail_text());
    return status_exit_code(result);
}

// ---- how weights get from optim to the other stages ----

// The device that a stage names; NULL for the best one.
static const char *subcommand_device(const struct pipeline_stage *stage) {
    const char *device = pipeline_value(stage, "device");
    if (!device) return NULL;
    return strcmp(device, "cuda:0") == 0 ? "cuda" : strcmp(device, "emulated:0") == 0 ? "emulated" : device;
}

static bool subcommand_same_value(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

status subcommand_set_publish(struct pipeline *pipeline) {
    struct pipeline_stage *optim = pipeline_optim(pipeline);
    const char *device = optim ? subcommand_device(optim) : NULL;
    struct source_options source;
    struct options parsed = {0};
    if (!optim || pipeline->stages[0].kind != &stage_kinds[STAGE_SOURCE]) return OK;
    if (pipeline_value(optim, "publish") || (device && strcmp(device, "cpu") == 0)) return OK;
    if (device && device_is_list(device)) return OK; // other replicas have other GPUs
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (!stage->kind || !stage->kind->follows_weights) continue;
        if (!subcommand_same_value(subcommand_device(stage), device) ||
            !subcommand_same_value(pipeline_value(stage, "precision"), pipeline_value(optim, "precision")) ||
            pipeline_stage_machine_count(stage) > 1 ||
            pipeline_stage_machine(stage, 0) != pipeline_stage_machine(optim, 0))
            return OK;
    }
    status result = pipeline_options(&pipeline->stages[0], &parsed, &source);
    if (result == OK) result = pipeline_set(pipeline, optim, "publish", source.max_staleness ? "copy" : "lend");
    options_release(&parsed);
    return result;
}
