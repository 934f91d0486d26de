// Reading a pipeline file from the first byte to the finished pipeline.
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/parsed_file.h"

// Takes a key out of the list and returns its value, NULL if it is not there.
static const char *read_take(struct key_list *keys, const char *name) {
    struct pipeline_key **link = &keys->first;
    while (*link && strcmp((*link)->name, name) != 0) link = &(*link)->next;
    if (!*link) return NULL;
    const char *value = (*link)->value;
    *link = (*link)->next;
    return value;
}

// Fills the fields that have a type of their own from the keys of a file without mistakes.
static status read_finish(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    const char *slash = strrchr(file->path, '/'), *base = slash ? slash + 1 : file->path;
    size_t stem = strcspn(base, ".");
    pipeline->run = read_take(&pipeline->keys, "run");
    pipeline->name = read_take(&pipeline->keys, "name");
    assert(pipeline->run && pipeline->stage_count > 0);
    if (!pipeline->name) pipeline->name = arena_strndup(&pipeline->arena, base, stem ? stem : strlen(base));
    if (!pipeline->name) return fail_oom();
    for (size_t i = 0; i < pipeline->machine_count; i++) {
        struct pipeline_machine *machine = &pipeline->machines[i];
        const char *port = read_take(&machine->keys, "port");
        machine->address = read_take(&machine->keys, "address");
        assert(machine->address);
        machine->key = read_take(&machine->keys, "key");
        machine->port = port ? atoi(port) : 0; // NOLINT: validated
    }
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        const char *replicas = read_take(&stage->keys, "replicas"), *on = read_take(&stage->keys, "on");
        read_take(&stage->keys, "from");
        stage->from = (int)i - 1;
        stage->program = read_take(&stage->keys, "program");
        stage->replicas = replicas ? atoi(replicas) : 1; // NOLINT: validated
        stage->on = -1;
        for (size_t m = 0; on && m < pipeline->machine_count; m++)
            if (!strcmp(pipeline->machines[m].name, on)) stage->on = (int)m;
    }
    return OK;
}

static status read_all(struct parsed_file *file, const char *text, size_t size, const char *const *sets, size_t count,
                       struct buf *diagnostics) {
    struct arena *arena = &file->pipeline->arena;
    struct yaml_tree tree;
    struct location at = {1, 1};
    char resolved[PATH_MAX];
    const char *slash = strrchr(file->path, '/');
    const char *dir =
        slash ? arena_strndup(arena, file->path, (size_t)(slash - file->path) + 1) : arena_strndup(arena, ".", 1);
    if (!dir) return fail_oom();
    if (!realpath(dir, resolved)) return fail(DATAERR, "%s: %s", file->path, strerror(errno));
    file->pipeline->dir = arena_strndup(arena, resolved, strlen(resolved));
    if (!getcwd(resolved, sizeof resolved)) return fail(UNAVAILABLE, "the current directory: %s", strerror(errno));
    file->current_dir = arena_strndup(arena, resolved, strlen(resolved));
    if (!file->pipeline->dir || !file->current_dir) return fail_oom();
    status result = yaml_tree_read(&tree, text, size, &at);
    if (result == OK) {
        parse_tree(file, &tree);
    } else if (result == DATAERR) {                    // a file that is not YAML gets one diagnostic
        const char *reason = strchr(fail_text(), ' '); // behind "LINE:COLUMN:"
        diagnostic_add(&file->diagnostics, at, "%s", reason ? reason + 1 : fail_text());
        result = OK;
    }
    yaml_tree_release(&tree);
    TRY(result);
    if (file->diagnostics.count == 0 || file->pipeline->stages_at.line) {
        for (size_t i = 0; i < count; i++) parse_override(file, sets[i]);
        validate_pipeline(file);
        topology_sort(file);
    }
    TRY(diagnostics_report(&file->diagnostics, file->path, diagnostics));
    return read_finish(file);
}

status pipeline_parse(struct pipeline **out, const char *path, const char *text, size_t size, const char *const *sets,
                      size_t count, struct buf *diagnostics) {
    struct parsed_file file = {.path = path};
    *out = NULL;
    TRY(NEW(&file.pipeline, 1));
    status result = read_all(&file, text, size, sets, count, diagnostics);
    diagnostics_release(&file.diagnostics);
    if (result != OK) pipeline_free(&file.pipeline);
    *out = file.pipeline;
    return result;
}

status pipeline_read(struct pipeline **out, const char *path, const char *const *sets, size_t count,
                     struct buf *diagnostics) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK) result = pipeline_parse(out, path, content.data, content.size, sets, count, diagnostics);
    buf_release(&content);
    return result;
}
