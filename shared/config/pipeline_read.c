// Reading a pipeline file from the first byte to the finished pipeline. Its stages are a line that begins with the
// source: a group goes one way, so no stage has two readers. Where groups are trained, the line ends with optim.
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/parsed_file.h"

// ---- the order of the stages ----

// Moves the stages into the order of the flow. Those that the source does not reach go to the end and are diagnosed.
static void pipeline_move_stages(struct parsed_file *file, size_t source) {
    struct pipeline *pipeline = file->pipeline;
    struct pipeline_stage *sorted = NULL;
    bool *moved = NULL;
    size_t count = 0;
    NEW(&sorted, pipeline->stage_count);
    NEW(&moved, pipeline->stage_count);
    for (int at = (int)source; at >= 0;) {
        sorted[count++] = pipeline->stages[at];
        moved[at] = true;
        int next = -1;
        for (int i = (int)pipeline->stage_count - 1; i >= 0; i--)
            if (pipeline->stages[i].from == at && !moved[i]) next = i;
        at = next;
    }
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        if (moved[i]) continue;
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct pipeline_key *from = key_list_find(&stage->keys, "from");
        sorted[count++] = *stage;
        if (!from || from->value) // otherwise it is diagnosed already
            diagnostic_add(&file->diagnostics, stage->at, "%s: no group of source reaches this stage", stage->name);
    }
    assert(count == pipeline->stage_count);
    memcpy(pipeline->stages, sorted, pipeline->stage_count * sizeof *sorted);
    free(sorted);
    free(moved);
}

// Known stages stand in the order of stage_kinds[].
static void pipeline_check_order(struct parsed_file *file) {
    const struct pipeline *pipeline = file->pipeline;
    const struct pipeline_stage *latest = NULL; // of the stages so far, the last in stage_kinds[]
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (latest && latest->kind == &stage_kinds[STAGE_OPTIM])
            diagnostic_add(&file->diagnostics, stage->at, "%s: no stage may come after %s", stage->name, latest->name);
        else if (latest && stage->kind && stage->kind < latest->kind)
            diagnostic_add(&file->diagnostics, stage->at, "%s: comes after %s, but must come before it", stage->name,
                           latest->name);
        if (stage->kind && (!latest || stage->kind > latest->kind)) latest = stage;
    }
}

// Sorts the stages along the flow, from the source, each stage once. A stage that does not fit is diagnosed.
static void pipeline_sort(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    size_t before = file->diagnostics.count;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        const struct pipeline_key *from = key_list_find(&stage->keys, "from");
        bool is_source = !strcmp(stage->name, stage_kinds[STAGE_SOURCE].name);
        // An index into the file's order, until the stages are sorted; -1 also where `from` names no stage.
        stage->from = is_source || (from && from->value) ? -1 : (int)i - 1;
        if (!from || !from->value) continue;
        const struct pipeline_stage *parent = pipeline_find_stage(pipeline, from->value);
        if (is_source) {
            diagnostic_add(&file->diagnostics, from->name_at, "%s: from: no stage comes before source", stage->name);
        } else if (!parent) {
            struct nearest nearest = nearest_to(from->value);
            for (size_t k = 0; k < pipeline->stage_count; k++) nearest_offer(&nearest, pipeline->stages[k].name);
            diagnostic_add(&file->diagnostics, from->value_at, "%s: from: no stage is named %s%s", stage->name,
                           from->value, nearest_question(&nearest));
        } else {
            stage->from = (int)(parent - pipeline->stages);
            if (parent == stage) diagnostic_add(&file->diagnostics, from->value_at, "%s: from: itself", stage->name);
        }
    }
    const struct pipeline_stage *source = pipeline_find_stage(pipeline, stage_kinds[STAGE_SOURCE].name);
    if (pipeline->stage_count && !source)
        diagnostic_add(&file->diagnostics, pipeline->stages_at, "stages: missing: source, where groups come from");
    if (pipeline->stage_count == 1 && source)
        diagnostic_add(&file->diagnostics, pipeline->stages_at, "stages: no stage comes after source");
    if (!pipeline->stage_count && pipeline->stages_at.line)
        diagnostic_add(&file->diagnostics, pipeline->stages_at, "stages: empty");
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct pipeline_key *from = key_list_find(&stage->keys, "from");
        size_t j = 0; // another reader of the same stage
        while (j < i && (stage->from < 0 || stage->from != pipeline->stages[j].from || stage->from == (int)i ||
                         stage->from == (int)j))
            j++;
        if (j < i)
            diagnostic_add(&file->diagnostics, from ? from->value_at : stage->at,
                           "%s: reads from %s, but %s reads from it already", stage->name,
                           pipeline->stages[stage->from].name, pipeline->stages[j].name);
    }
    if (source && file->diagnostics.count == before) pipeline_move_stages(file, (size_t)(source - pipeline->stages));
    pipeline_check_order(file);
}

// ---- reading ----

// Takes a key out of the list and returns its value, NULL if it is not there.
static const char *pipeline_take_key(struct key_list *keys, const char *name) {
    struct pipeline_key **link = &keys->first;
    while (*link && strcmp((*link)->name, name) != 0) link = &(*link)->next;
    if (!*link) return NULL;
    const char *value = (*link)->value;
    *link = (*link)->next;
    return value;
}

// Fills the fields that have a type of their own from the keys of a file without mistakes.
static void pipeline_finish(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    const char *slash = strrchr(file->path, '/'), *base = slash ? slash + 1 : file->path;
    size_t stem = strcspn(base, ".");
    const struct pipeline_key *run = key_list_find(&pipeline->keys, "run");
    assert(run && pipeline->stage_count > 0);
    pipeline->run_at = run->value_at;
    pipeline->run = pipeline_take_key(&pipeline->keys, "run");
    pipeline->name = pipeline_take_key(&pipeline->keys, "name");
    const char *give_up_after = pipeline_take_key(&pipeline->keys, "give_up_after");
    pipeline->give_up_after = give_up_after ? atof(give_up_after) : 0; // NOLINT: validated
    if (!pipeline->name) pipeline->name = arena_strndup(&pipeline->arena, base, stem ? stem : strlen(base));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        pipeline_take_key(&stage->keys, "replicas");
        pipeline_take_key(&stage->keys, "on");
        pipeline_take_key(&stage->keys, "from");
        stage->from = (int)i - 1;
        stage->program = pipeline_take_key(&stage->keys, "program");
        const char *timeout = pipeline_take_key(&stage->keys, "timeout");
        stage->timeout = timeout ? atof(timeout) : 0; // NOLINT: validated
    }
}

static status pipeline_parse_content(struct pipeline **out, const char *path, bool files_may_be_missing,
                                     const char *text, size_t size, const char *const *sets, size_t count,
                                     struct buf *diagnostics) {
    struct parsed_file file = {.path = path, .files_may_be_missing = files_may_be_missing};
    struct yaml_tree tree = {0};
    struct location at = {1, 1};
    char resolved[PATH_MAX];
    const char *slash = strrchr(path, '/');
    status result;
    *out = NULL;
    NEW(&file.pipeline, 1);
    struct arena *arena = &file.pipeline->arena;
    const char *dir = slash ? arena_strndup(arena, path, (size_t)(slash - path) + 1) : arena_strndup(arena, ".", 1);
    if (!realpath(dir, resolved)) TRY_TO(result, done, fail(DATAERR, "%s: %s", path, strerror(errno)));
    file.pipeline->dir = arena_strndup(arena, resolved, strlen(resolved));
    if (!getcwd(resolved, sizeof resolved))
        TRY_TO(result, done, fail(UNAVAILABLE, "the current directory: %s", strerror(errno)));
    file.current_dir = arena_strndup(arena, resolved, strlen(resolved));
    result = yaml_tree_read(&tree, text, size, &at);
    if (result == OK) {
        parse_tree(&file, &tree);
    } else if (result == DATAERR) {                    // a file that is not YAML gets one diagnostic
        const char *reason = strchr(fail_text(), ' '); // behind "LINE:COLUMN:"
        diagnostic_add(&file.diagnostics, at, "%s", reason ? reason + 1 : fail_text());
    } else {
        goto done;
    }
    if (file.diagnostics.count == 0 || file.pipeline->stages_at.line) {
        for (size_t i = 0; i < count; i++) parse_override(&file, sets[i]);
        validate_pipeline(&file);
        validate_machines(&file);
        pipeline_sort(&file);
        validate_placement(&file);
        validate_method(&file);
        validate_combinations(&file);
    }
    TRY_TO(result, done, diagnostics_report(&file.diagnostics, path, diagnostics));
    pipeline_finish(&file);
    *out = file.pipeline;
done:
    yaml_tree_release(&tree);
    diagnostics_release(&file.diagnostics);
    if (result != OK) pipeline_free(&file.pipeline);
    return result;
}

status pipeline_parse(struct pipeline **out, const char *path, const char *text, size_t size, const char *const *sets,
                      size_t count, struct buf *diagnostics) {
    return pipeline_parse_content(out, path, false, text, size, sets, count, diagnostics);
}

static status pipeline_read_content(struct pipeline **out, const char *path, bool files_may_be_missing,
                                    const char *const *sets, size_t count, struct buf *diagnostics) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK)
        result = pipeline_parse_content(out, path, files_may_be_missing, content.data, content.size, sets, count,
                                        diagnostics);
    buf_release(&content);
    return result;
}

status pipeline_read(struct pipeline **out, const char *path, const char *const *sets, size_t count,
                     struct buf *diagnostics) {
    return pipeline_read_content(out, path, false, sets, count, diagnostics);
}

status pipeline_read_alone(struct pipeline **out, const char *path, const char *const *sets, size_t count,
                           struct buf *diagnostics) {
    return pipeline_read_content(out, path, true, sets, count, diagnostics);
}
