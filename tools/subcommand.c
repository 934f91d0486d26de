// The functions that all subcommands share: options, operands, pipeline files, exit codes.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_options.h"
#include "shared/base/signals.h"
#include "shared/store/group_store.h"
#include "tools/tools.h"

// Reads a pipeline file as `all` sets it; its diagnostics are written to standard error.
static status subcommand_read(struct pipeline **out, const char *path, bool alone, const struct string_list *all) {
    struct buf diagnostics = {0};
    const status result = pipeline_read(out, path, alone, all->data, all->count, &diagnostics);
    if (diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
    buf_release(&diagnostics);
    return result;
}

// Reads the pipeline of a call.
static status subcommand_open(struct subcommand_call *call, enum subcommand_pipeline kind) {
    const struct string_list none = {0}, *sets = &((const struct pipeline_file_options *)call->given)->set;
    struct pipeline *pipeline = NULL;
    struct stat here, there;
    const char **all = arena_alloc(&call->arena, (sets->count + 1) * sizeof *all);
    size_t count = 0;
    call->path = call->list[0];
    if (!stat(call->path, &here) && S_ISDIR(here.st_mode)) {
        if (kind == PIPELINE_FILE)
            return fail(USAGE, "%s: this is a directory: give the pipeline file that the run was started with",
                        call->path);
        char *directory = realpath(call->path, NULL);
        if (!directory) return fail(DATAERR, "%s: %s", call->path, strerror(errno));
        const char *set = arena_printf(&call->arena, "run=%s", directory);
        call->path = path_join(&call->arena, directory, "pipeline.yaml");
        free(directory);
        if (access(call->path, F_OK))
            return fail(DATAERR, "%s: %s", call->path,
                        errno == ENOENT ? "there is none: this is not the directory of a run" : strerror(errno));
        const status result = subcommand_read(&pipeline, call->path, kind == PIPELINE_ALONE, &none);
        // The file may say that the run is elsewhere, because the directory was moved.
        if (result == OK && (stat(pipeline->run, &there) || there.st_dev != here.st_dev || there.st_ino != here.st_ino))
            all[count++] = set;
        pipeline_free(&pipeline);
        TRY(result);
    }
    for (size_t i = 0; i < sets->count; i++) all[count++] = sets->data[i];
    const struct string_list given = {.data = all, .count = count};
    return subcommand_read(&call->pipeline, call->path, kind == PIPELINE_ALONE, &given);
}

int subcommand_run(const struct subcommand *subcommand, int argc, char **argv) {
    const struct option_table *table = subcommand->options;
    const bool reads = subcommand->pipeline != NO_PIPELINE;
    const int least = reads ? 1 : subcommand->least, most = reads ? 1 : subcommand->most;
    struct subcommand_call call = {0};
    struct options options = {0};
    int rest = argc;
    call.given = arena_alloc(&call.arena, table->size);
    options_init(&options, table, call.given);
    status result = options_parse(&options, argc, argv, &rest);
    call.list = argv + rest;
    call.count = argc - rest;
    if (result == OK && call.count < least)
        result = fail(USAGE, "an operand is missing; usage: %s %s", table->program, table->operands);
    if (result == OK && call.count > most)
        result = fail(USAGE, "unexpected operand '%s'; usage: %s %s", call.list[most], table->program, table->operands);
    for (int i = 0; i < least && result == OK; i++) // "$NAME" of a variable that is not set
        if (!*call.list[i]) result = fail(USAGE, "an operand is empty; usage: %s %s", table->program, table->operands);
    if (result == OK && reads) result = subcommand_open(&call, subcommand->pipeline);
    if (result == OK) result = subcommand->main(&call);
    if (result == OK && call.out.size) fwrite(call.out.data, 1, call.out.size, stdout);
    buf_release(&call.out);
    pipeline_free(&call.pipeline);
    options_release(&options);
    arena_release(&call.arena);
    if (result != OK && result != END && subcommand->named) fail_prefix(result, "%s", subcommand->name);
    const int code = subcommand_exit(result);
    return code ? code : call.code;
}

status subcommand_write_file(const char *dir, const char *name, const struct buf *content) {
    struct arena memory = {0};
    char *path = path_join(&memory, dir, name);
    status result = file_write_atomic(path, content->data, content->size);
    arena_release(&memory);
    return result;
}

// ---- a run, its pipeline file or its store on a command line ----

// Adds DIR/NAME, or DIR if NAME is NULL, to the list if it is a directory with the file and not in the list yet. An
// empty file is about to be made: LMDB cannot read it.
static void subcommand_add_store(const char *dir, const char *name, const char *file, struct arena *arena,
                                 struct string_list *stores) {
    const char *store = name ? path_join(arena, dir, name) : dir, *path = path_join(arena, store, file);
    struct stat info;
    if (stat(path, &info) || !info.st_size) return;
    for (size_t i = 0; i < stores->count; i++)
        if (!strcmp(stores->data[i], store)) return;
    const char **list = arena_alloc(arena, (stores->count + 1) * sizeof *list);
    if (stores->count) memcpy(list, stores->data, stores->count * sizeof *list);
    list[stores->count++] = store;
    stores->data = list;
}

// Adds what the run in a directory has: RUN/store, or RUN/store-MACHINE of each machine.
static void subcommand_add_stores_of_run(const char *run, const char *file, struct arena *arena,
                                         struct string_list *stores) {
    subcommand_add_store(run, "store", file, arena, stores);
    DIR *dir = opendir(run);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "store-", strlen("store-")) != 0) continue;
        const char *name = arena_strndup(arena, entry->d_name, strlen(entry->d_name));
        subcommand_add_store(run, name, file, arena, stores);
    }
    if (dir) closedir(dir);
}

// Adds the stores that a pipeline file names, and those of its run, which is in the directory `run`; NULL: in that
// which the file names. Mistakes in the file count only where no store is known yet.
static status subcommand_add_stores_of_file(const char *path, const char *run, const char *file, struct arena *arena,
                                            struct string_list *stores) {
    struct pipeline *pipeline = NULL;
    struct buf diagnostics = {0};
    status result = pipeline_read(&pipeline, path, true, NULL, 0, &diagnostics);
    if (result != OK && stores->count) {
        result = OK;
        goto done;
    }
    if (diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
    if (result != OK) goto done;
    if (!run) run = arena_strndup(arena, pipeline->run, strlen(pipeline->run));
    subcommand_add_stores_of_run(run, file, arena, stores);
    const size_t length = strlen(pipeline->run);
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const char *store = pipeline_value(&pipeline->stages[i], "store");
        if (!store) continue;
        const bool below = !strncmp(store, pipeline->run, length) && store[length] == '/'; // has moved with the run
        store = below ? path_join(arena, run, store + length + 1) : arena_strndup(arena, store, strlen(store));
        subcommand_add_store(store, NULL, file, arena, stores);
    }
    if (!stores->count) result = fail(DATAERR, "%s: there is no %s in %s", path, file, run);
done:
    buf_release(&diagnostics);
    pipeline_free(&pipeline);
    return result;
}

bool subcommand_is_pipeline(const char *path) {
    const char *dot = strrchr(path_base_name(path), '.');
    return dot && (!strcmp(dot, ".yaml") || !strcmp(dot, ".yml"));
}

status subcommand_find_stores(const char *path, const char *file, struct arena *arena, struct string_list *stores) {
    struct stat info;
    *stores = (struct string_list){0};
    if (stat(path, &info)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode)) {
        if (subcommand_is_pipeline(path)) return subcommand_add_stores_of_file(path, NULL, file, arena, stores);
        return fail(DATAERR, "%s: neither a directory with %s nor a pipeline file", path, file);
    }
    if (access(path, R_OK | X_OK)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    subcommand_add_store(path, NULL, file, arena, stores);
    if (stores->count) return OK;
    subcommand_add_stores_of_run(path, file, arena, stores);
    const char *own_file = path_join(arena, path, "pipeline.yaml");
    if (path_exists(own_file)) return subcommand_add_stores_of_file(own_file, path, file, arena, stores);
    return stores->count ? OK : fail(DATAERR, "%s: neither it nor its store has a %s", path, file);
}

status subcommand_each_group(const char *path, status (*visit)(void *context, const struct group *group),
                             void *context) {
    struct line_reader lines = {.fd = -1};
    struct group *group = NULL;
    struct arena arena = {0};
    struct string_list stores;
    struct stat info;
    status result = OK;
    if (stat(path, &info)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode) || subcommand_is_pipeline(path)) {
        result = subcommand_find_stores(path, "groups.lmdb", &arena, &stores);
        for (size_t i = 0; result == OK && i < stores.count; i++) {
            struct group_store *store = NULL;
            result = group_store_open(&store, stores.data[i], true);
            if (result == OK) result = group_store_each(store, visit, context);
            if (result == DATAERR && store) fail_prefix(result, "%s", stores.data[i]);
            group_store_close(&store);
        }
        arena_release(&arena);
        return result;
    }
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

status subcommand_read_runs(const char *operand, struct arena *arena, struct string *name, struct string_list *runs) {
    const char *equals = strchr(operand, '='), **list;
    if (!equals || equals == operand || !equals[1]) return fail(USAGE, "'%s' is not NAME=RUN[,RUN...]", operand);
    arena_string(arena, name, operand, (size_t)(equals - operand));
    *runs = (struct string_list){0};
    list = arena_alloc(arena, strlen(equals) * sizeof *list);
    for (const char *at = equals + 1, *end; at; at = *end ? end + 1 : NULL) {
        end = at + strcspn(at, ",");
        list[runs->count++] = arena_strndup(arena, at, (size_t)(end - at));
    }
    runs->data = list;
    return OK;
}

struct string subcommand_last_part(const char *path) {
    size_t end = strlen(path), begin;
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/';) begin--;
    return (struct string){path + begin, end - begin};
}

int subcommand_exit(status result) {
    if (result == OK && (fflush(stdout) || ferror(stdout)))
        result = fail(UNAVAILABLE, "cannot write to standard output");
    if (result == OK || result == END) return 0;
    if (*fail_text()) log_info("%s", fail_text());
    return status_exit_code(result);
}

// ---- how weights get from optim to the other stages ----

// The device of the stage's replica with that slot; NULL for the best one.
static const char *subcommand_device(const struct pipeline_stage *stage, int slot, struct arena *arena) {
    const char *device = pipeline_value(stage, "device");
    if (!device || device_of_slot(device, slot, arena, &device) != OK) return device; // invalid: said elsewhere
    return strcmp(device, "cuda:0") == 0 ? "cuda" : strcmp(device, "emulated:0") == 0 ? "emulated" : device;
}

static bool subcommand_same_value(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : !a && !b;
}

void subcommand_set_frames(struct pipeline *pipeline) {
    const struct pipeline_stage *frames = pipeline_find_stage(pipeline, stage_kinds[STAGE_FRAMES].name);
    if (!frames || frames->kind != &stage_kinds[STAGE_FRAMES]) return;
    for (const struct key *key = frames->options.given.first; key; key = key->next) {
        char name[64];
        const struct option *option = option_find(&frames->kind->options, key->name);
        snprintf(name, sizeof name, "frames.%s", key->name);
        for (size_t i = 0; i < pipeline->stage_count; i++) {
            struct pipeline_stage *stage = &pipeline->stages[i];
            const bool known = stage->kind && option_find_any(&stage->kind->options, name);
            if (known && (!option->not_hashed || !strcmp(option->name, "store_limit")))
                pipeline_set(stage, name, key->value);
        }
    }
}

// Whether each replica of the stage is on a device of optim, or of one of its ranks.
static bool subcommand_is_on_devices_of(const struct pipeline_stage *stage, const struct pipeline_stage *optim) {
    struct arena arena = {0};
    bool found = true;
    for (int slot = 0; slot < stage->replicas && found; slot++) {
        const char *device = subcommand_device(stage, slot, &arena);
        found = false;
        for (int rank = 0; rank < optim->replicas && !found; rank++)
            found = subcommand_same_value(device, subcommand_device(optim, rank, &arena));
    }
    arena_release(&arena);
    return found;
}

void subcommand_set_publish(struct pipeline *pipeline) {
    struct pipeline_stage *optim = pipeline_optim(pipeline);
    if (!optim || pipeline->stages[0].kind != &stage_kinds[STAGE_SOURCE] || pipeline_value(optim, "publish")) return;
    const char *device = pipeline_value(optim, "device");
    if (device && strcmp(device, "cpu") == 0) return;
    if (pipeline->slurm && !pipeline->slurm_job) return; // which nodes have the stages is not known yet
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (!stage->kind || !stage->kind->follows_weights) continue;
        if (!subcommand_is_on_devices_of(stage, optim) ||
            !subcommand_same_value(pipeline_value(stage, "precision"), pipeline_value(optim, "precision")) ||
            pipeline_stage_machine_count(stage) > 1 ||
            pipeline_stage_machine(stage, 0) != pipeline_stage_machine(optim, 0))
            return;
    }
    const struct source_options *source = pipeline_options(&pipeline->stages[0]);
    pipeline_set(optim, "publish", source->max_staleness ? "copy" : "lend");
}
