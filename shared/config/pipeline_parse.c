// Reading a pipeline file from the first byte to the finished pipeline: YAML, which node may stand where, and the order
// of the stages; pipeline_validate.c checks what the names and values mean. The stages are a line that begins with the
// source: a group goes one way, so no stage has two readers. Where groups are trained, the line ends with optim.
#include "shared/config/pipeline_parse.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"

// ---- yaml ----

enum { YAML_TREE_DEPTH = 100 }; // libyaml's time grows with the square of the depth

static status yaml_tree_error(const yaml_parser_t *parser, const char *data, size_t size, struct location *at) {
    if (parser->error == YAML_MEMORY_ERROR) return fail_oom();
    const char *problem = parser->problem ? parser->problem : "it cannot be read";
    const bool utf8 = parser->encoding == YAML_UTF8_ENCODING;
    yaml_mark_t mark = parser->error == YAML_READER_ERROR ? parser->mark : parser->problem_mark;
    *at = (struct location){mark.line + 1, mark.column + 1};
    if (parser->error == YAML_READER_ERROR && utf8 && parser->problem_offset < size) {
        *at = (struct location){1, 1}; // the reader is ahead of its mark
        for (size_t i = 0; i < parser->problem_offset; i++) {
            if (data[i] == '\n')
                *at = (struct location){at->line + 1, 1};
            else
                at->column += ((unsigned char)data[i] & 0xC0) != 0x80; // a character counts once
        }
        if (strstr(problem, "UTF-8"))
            return fail(DATAERR, "%zu:%zu: not YAML: the byte 0x%02X is not UTF-8: save the file as UTF-8", at->line,
                        at->column, (unsigned char)data[parser->problem_offset]);
    }
    size_t i = 0; // of the character at that place
    for (size_t line = 1; i < size && line < at->line; i++) line += data[i] == '\n';
    for (size_t column = 1; i < size && column < at->column; column++) do
            i++;
        while (i < size && ((unsigned char)data[i] & 0xC0) == 0x80);
    if (utf8 && i < size && data[i] == '\t') problem = "a tab; YAML is indented with spaces";
    return fail(DATAERR, "%zu:%zu: not YAML: %s", at->line, at->column, problem);
}

status yaml_tree_read(struct yaml_tree *tree, const char *data, size_t size, struct location *at) {
    *tree = (struct yaml_tree){0};
    yaml_parser_t parser;
    yaml_event_t event;
    yaml_document_t more;
    status result = OK;
    int depth = 0;
    // The first time, all of the text is read without keeping it.
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    for (bool ended = false; !ended && result == OK;) {
        if (!yaml_parser_parse(&parser, &event)) {
            result = yaml_tree_error(&parser, data, size, at);
            break;
        }
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        ended = event.type == YAML_STREAM_END_EVENT;
        if (depth > YAML_TREE_DEPTH) {
            *at = (struct location){event.start_mark.line + 1, event.start_mark.column + 1};
            result = fail(DATAERR, "%zu:%zu: nested more than %d deep", at->line, at->column, YAML_TREE_DEPTH);
        }
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (result != OK) return result;
    if (!yaml_parser_initialize(&parser)) return fail_oom();
    yaml_parser_set_input_string(&parser, (const unsigned char *)data, size);
    if (!yaml_parser_load(&parser, &tree->yaml)) {
        result = yaml_tree_error(&parser, data, size, at);
        goto done;
    }
    tree->root = yaml_document_get_root_node(&tree->yaml);
    if (!tree->root) {
        yaml_document_delete(&tree->yaml);
    } else if (!yaml_parser_load(&parser, &more)) {
        result = yaml_tree_error(&parser, data, size, at);
    } else {
        const yaml_node_t *second = yaml_document_get_root_node(&more);
        if (second) {
            *at = yaml_node_location(second);
            result = fail(DATAERR, "%zu:%zu: a second YAML document", at->line, at->column);
        }
        yaml_document_delete(&more);
    }
    if (result != OK) yaml_tree_release(tree);
done:
    yaml_parser_delete(&parser);
    return result;
}

void yaml_tree_release(struct yaml_tree *tree) {
    if (tree->root) yaml_document_delete(&tree->yaml);
    tree->root = NULL;
}

struct location yaml_node_location(const yaml_node_t *node) {
    return (struct location){node->start_mark.line + 1, node->start_mark.column + 1};
}

const char *yaml_node_string(const yaml_node_t *node) {
    if (!node || node->type != YAML_SCALAR_NODE) return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

const char *yaml_node_kind(const yaml_node_t *node) {
    static const char *const kinds[] = {[YAML_NO_NODE] = "nothing",
                                        [YAML_SCALAR_NODE] = "a string",
                                        [YAML_SEQUENCE_NODE] = "an array",
                                        [YAML_MAPPING_NODE] = "a mapping"};
    const char *kind = kinds[node ? node->type : YAML_NO_NODE];
    return node && node->type == YAML_SCALAR_NODE && !yaml_node_string(node) ? "a string with a NUL" : kind;
}

// ---- which node stands where ----

// A copy of a name with '_' for '-', so that max-frames is max_frames, as on the command line.
static const char *pipeline_parse_name(struct parsed_file *file, const char *name, size_t length) {
    char *copy = arena_strndup(&file->pipeline->arena, name, length);
    for (char *at = copy; *at; at++)
        if (*at == '-') *at = '_';
    return copy;
}

// `as_written`: the name keeps its '-'.
static void pipeline_parse_key(struct parsed_file *file, struct key_list *keys, const yaml_node_t *name_node,
                               const yaml_node_t *value_node, bool as_written) {
    const char *name = yaml_node_string(name_node), *value = yaml_node_string(value_node);
    struct location name_at = yaml_node_location(name_node), value_at = yaml_node_location(value_node);
    struct key *items = NULL, **link = &items;
    if (!name || !*name) {
        diagnostic_add(&file->diagnostics, name_at, "a key must be a name, not %s",
                       name ? "empty" : yaml_node_kind(name_node));
        return;
    }
    const bool group = keys == &file->pipeline->machine_groups;
    if (!as_written) name = pipeline_parse_name(file, name, strlen(name));
    if (value_node->type == YAML_SEQUENCE_NODE && (group || !strcmp(name, "on"))) { // an array of strings
        const yaml_node_item_t *item = value_node->data.sequence.items.start,
                               *end = value_node->data.sequence.items.top;
        if (item == end) diagnostic_add(&file->diagnostics, value_at, "%s: the array is empty", name);
        for (; item < end; item++) {
            const yaml_node_t *item_node = yaml_document_get_node(&file->tree.yaml, *item);
            const struct location item_at = yaml_node_location(item_node);
            value = yaml_node_string(item_node);
            if (!value) {
                diagnostic_add(&file->diagnostics, item_at, "%s: expected a name, not %s", name,
                               yaml_node_kind(item_node));
                break;
            }
            struct key *key = *link = arena_alloc(&file->pipeline->arena, sizeof *key);
            *key = (struct key){.name = name,
                                .value = arena_strndup(&file->pipeline->arena, value, strlen(value)),
                                .value_at = item_at};
            link = &key->next;
        }
        if (value && items) value = items->value;
    } else if (!value) {
        diagnostic_add(&file->diagnostics, value_at, "%s: expected a value, not %s", name, yaml_node_kind(value_node));
    }
    if (key_list_find(keys, name)) {
        diagnostic_add(&file->diagnostics, name_at, "%s is given twice", name);
        return;
    }
    // Without a value it is given, although wrong: it is not reported as missing.
    key_list_set(keys, &file->pipeline->arena, name, value, name_at, value_at)->items = items;
}

// Reads a mapping of plain values; `owner` names it.
static void pipeline_parse_keys(struct parsed_file *file, struct key_list *keys, const yaml_node_t *node,
                                const char *owner) {
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0) return; // `reward:` alone
    if (node->type != YAML_MAPPING_NODE) {
        diagnostic_add(&file->diagnostics, yaml_node_location(node), "%s: expected a mapping of keys, not %s", owner,
                       yaml_node_kind(node));
        return;
    }
    yaml_node_pair_t *const first = node->data.mapping.pairs.start, *const end = node->data.mapping.pairs.top;
    bool as_written = keys == &file->pipeline->machine_groups;
    for (yaml_node_pair_t *pair = first; pair < end; pair++) {
        const char *name = yaml_node_string(yaml_document_get_node(&file->tree.yaml, pair->key));
        as_written |= name && !strcmp(name, "program"); // the other keys are its own
    }
    for (yaml_node_pair_t *pair = first; pair < end; pair++)
        pipeline_parse_key(file, keys, yaml_document_get_node(&file->tree.yaml, pair->key),
                           yaml_document_get_node(&file->tree.yaml, pair->value), as_written);
}

static void pipeline_parse_stages(struct parsed_file *file, const yaml_node_t *node) {
    struct pipeline *pipeline = file->pipeline;
    pipeline->stages_at = yaml_node_location(node);
    if (node->type != YAML_SEQUENCE_NODE) {
        diagnostic_add(&file->diagnostics, pipeline->stages_at, "stages: expected an array of stages, not %s",
                       yaml_node_kind(node));
        return;
    }
    const yaml_node_item_t *item = node->data.sequence.items.start, *end = node->data.sequence.items.top;
    pipeline->stages = arena_alloc(&pipeline->arena, (size_t)(end - item + 1) * sizeof *pipeline->stages);
    for (; item < end; item++) {
        // `- frames: {fps: 2}`, or `- reward` for a stage at its defaults.
        const yaml_node_t *stage_node = yaml_document_get_node(&file->tree.yaml, *item), *keys = NULL;
        const char *name = yaml_node_string(stage_node);
        struct location at = yaml_node_location(stage_node);
        if (stage_node->type == YAML_MAPPING_NODE) {
            yaml_node_pair_t *pair = stage_node->data.mapping.pairs.start;
            int names = (int)(stage_node->data.mapping.pairs.top - pair);
            if (names != 1)
                diagnostic_add(&file->diagnostics, at,
                               "expected one name with its keys, as in `- frames: {fps: 2}`, not %d names", names);
            if (!names) continue;
            name = yaml_node_string(yaml_document_get_node(&file->tree.yaml, pair->key));
            keys = yaml_document_get_node(&file->tree.yaml, pair->value);
        }
        if (!name || !*name) {
            diagnostic_add(&file->diagnostics, at, "a stage must have a name");
            continue;
        }
        struct pipeline_stage *stage = &pipeline->stages[pipeline->stage_count++];
        *stage = (struct pipeline_stage){.name = arena_strndup(&pipeline->arena, name, strlen(name)), .at = at};
        if (keys) pipeline_parse_keys(file, &stage->options.given, keys, stage->name);
    }
}

// Fills the pipeline from the file's tree: checks which node stands where, not what it means.
static void pipeline_parse_tree(struct parsed_file *file) {
    enum { STAGES, MACHINES, MACHINE_GROUPS, SECTIONS };
    static const char *const sections[SECTIONS] = {"stages", "machines", "machine_groups"};
    struct pipeline *pipeline = file->pipeline;
    const yaml_node_t *root = file->tree.root, *nodes[SECTIONS] = {0};
    if (!root || root->type != YAML_MAPPING_NODE) {
        diagnostic_add(&file->diagnostics, (struct location){1, 1},
                       "a pipeline file is a mapping with `run` and `stages`, not %s", yaml_node_kind(root));
        return;
    }
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name_node = yaml_document_get_node(&file->tree.yaml, pair->key);
        const yaml_node_t *value_node = yaml_document_get_node(&file->tree.yaml, pair->value);
        const char *name = yaml_node_string(name_node);
        int section = 0;
        while (section < SECTIONS && !(name && !strcmp(name, sections[section]))) section++;
        if (section == SECTIONS) {
            pipeline_parse_key(file, &pipeline->keys, name_node, value_node, false);
        } else if (nodes[section]) {
            diagnostic_add(&file->diagnostics, yaml_node_location(name_node), "%s is given twice", name);
        } else {
            nodes[section] = value_node;
            if (section == STAGES) pipeline_parse_stages(file, value_node);
        }
    }
    const yaml_node_t *groups_node = nodes[MACHINE_GROUPS], *machines_node = nodes[MACHINES];
    if (!nodes[STAGES]) diagnostic_add(&file->diagnostics, yaml_node_location(root), "missing: stages");
    if (groups_node) pipeline_parse_keys(file, &pipeline->machine_groups, groups_node, "machine_groups");
    if (!machines_node) return;
    pipeline->machines_at = yaml_node_location(machines_node);
    const char *machines = yaml_node_string(machines_node);
    if (machines && !strcmp(machines, "slurm")) {
        parse_slurm_machines(file);
        return;
    }
    if (machines_node->type != YAML_MAPPING_NODE) {
        diagnostic_add(&file->diagnostics, pipeline->machines_at, "machines: expected a mapping of machines, not %s",
                       yaml_node_kind(machines_node));
        return;
    }
    yaml_node_pair_t *pair = machines_node->data.mapping.pairs.start, *end = machines_node->data.mapping.pairs.top;
    for (; pair < end; pair++) {
        const yaml_node_t *name_node = yaml_document_get_node(&file->tree.yaml, pair->key);
        const char *name = yaml_node_string(name_node);
        struct location at = yaml_node_location(name_node);
        if (!name || !*name) {
            diagnostic_add(&file->diagnostics, at, "a machine must have a name");
            continue;
        }
        struct key_list keys = {0};
        pipeline_parse_keys(file, &keys, yaml_document_get_node(&file->tree.yaml, pair->value), name);
        parse_machines(file, name, at, &keys);
    }
}

// Applies one --set: "stage.key=value", "key=value" for a key of the file.
static void pipeline_parse_override(struct parsed_file *file, const char *set) {
    const struct location typed = {0, 0};
    struct pipeline *pipeline = file->pipeline;
    const char *equals = strchr(set, '=');
    const char *dot = equals ? memchr(set, '.', (size_t)(equals - set)) : NULL;
    const char *start = dot ? dot + 1 : set;
    if (!equals || equals == start) {
        diagnostic_add(&file->diagnostics, typed, "%s: not of the form stage.key=value", set);
        return;
    }
    struct key_list *keys = &pipeline->keys;
    if (dot) {
        const char *owner = arena_strndup(&pipeline->arena, set, (size_t)(dot - set));
        struct pipeline_stage *stage = pipeline_find_stage(pipeline, owner);
        if (!stage) {
            diagnostic_add(&file->diagnostics, typed, "%s: the file has no stage %s", set, owner);
            return;
        }
        keys = &stage->options.given;
    }
    const size_t length = (size_t)(equals - start);
    const char *name = key_list_find(keys, "program") ? arena_strndup(&pipeline->arena, start, length)
                                                      : pipeline_parse_name(file, start, length);
    const struct key *run = dot ? NULL : key_list_find(keys, "run");
    if (run && run->value_at.line && !strcmp(name, "run")) file->written_run = run->value;
    key_list_set(keys, &pipeline->arena, name, equals + 1, typed, typed);
}

// ---- the order of the stages ----

// Moves the stages into the order of the flow. `from` has the index of the stage before each, or -1. Those that the
// source does not reach go to the end and are diagnosed.
static void pipeline_move_stages(struct parsed_file *file, int *from, size_t source) {
    enum { MOVED = -2 }; // instead of the stage before it
    struct pipeline *pipeline = file->pipeline;
    struct pipeline_stage *sorted = arena_alloc(&pipeline->arena, pipeline->stage_count * sizeof *sorted);
    size_t count = 0;
    for (int at = (int)source, next; at >= 0; at = next) {
        sorted[count++] = pipeline->stages[at];
        from[at] = MOVED;
        next = (int)pipeline->stage_count - 1; // its only reader
        while (next >= 0 && from[next] != at) next--;
    }
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        if (from[i] == MOVED) continue;
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct key *key = key_list_find(&stage->options.given, "from");
        sorted[count++] = *stage;
        if (!key || key->value) // otherwise it is diagnosed already
            diagnostic_add(&file->diagnostics, stage->at, "%s: no group of source reaches this stage", stage->name);
    }
    assert(count == pipeline->stage_count);
    pipeline->stages = sorted;
}

// Sorts the stages along the flow, from the source, each stage once. A stage that does not fit is diagnosed.
static void pipeline_sort(struct parsed_file *file) {
    struct pipeline *pipeline = file->pipeline;
    int *from = arena_alloc(&pipeline->arena, pipeline->stage_count * sizeof *from);
    size_t before = file->diagnostics.count;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct key *key = key_list_find(&stage->options.given, "from");
        bool is_source = !strcmp(stage->name, stage_kinds[STAGE_SOURCE].name);
        // An index into the file's order; -1 also where the key names no stage.
        from[i] = is_source || (key && key->value) ? -1 : (int)i - 1;
        if (!key || !key->value) continue;
        const struct pipeline_stage *parent = pipeline_find_stage(pipeline, key->value);
        if (is_source) {
            diagnostic_add(&file->diagnostics, key->name_at, "%s: from: no stage comes before source", stage->name);
        } else if (!parent) {
            struct nearest nearest = nearest_to(key->value);
            for (size_t k = 0; k < pipeline->stage_count; k++) nearest_offer(&nearest, pipeline->stages[k].name);
            diagnostic_add(&file->diagnostics, key->value_at, "%s: from: no stage is named %s%s", stage->name,
                           key->value, nearest_question(&nearest));
        } else {
            from[i] = (int)(parent - pipeline->stages);
            if (parent == stage) diagnostic_add(&file->diagnostics, key->value_at, "%s: from: itself", stage->name);
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
        const struct key *key = key_list_find(&stage->options.given, "from");
        size_t j = 0; // another reader of the same stage
        while (j < i && (from[i] < 0 || from[i] != from[j] || from[i] == (int)i || from[i] == (int)j)) j++;
        if (j < i)
            diagnostic_add(&file->diagnostics, key ? key->value_at : stage->at,
                           "%s: reads from %s, but %s reads from it already", stage->name,
                           pipeline->stages[from[i]].name, pipeline->stages[j].name);
    }
    if (source && file->diagnostics.count == before)
        pipeline_move_stages(file, from, (size_t)(source - pipeline->stages));
    // Known stages stand in the order of stage_kinds[].
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

// ---- reading ----

// Takes a key out of the list and returns its value, NULL if it is not there.
static const char *pipeline_take_key(struct key_list *keys, const char *name) {
    struct key **link = &keys->first;
    while (*link && strcmp((*link)->name, name) != 0) link = &(*link)->next;
    if (!*link) return NULL;
    const char *value = (*link)->value;
    *link = (*link)->next;
    return value;
}

status pipeline_parse(struct pipeline **out, const char *path, bool alone, const char *text, size_t size,
                      const char *const *sets, size_t count, struct buf *diagnostics) {
    struct parsed_file file = {.files_may_be_missing = alone};
    struct location at = {1, 1};
    char resolved[PATH_MAX];
    status result;
    *out = NULL;
    NEW(&file.pipeline, 1);
    struct pipeline *pipeline = file.pipeline;
    struct arena *arena = &pipeline->arena;
    if (!realpath(path_parent(arena, path), resolved))
        TRY_TO(result, done, fail(DATAERR, "%s: %s", path, strerror(errno)));
    pipeline->dir = arena_strndup(arena, resolved, strlen(resolved));
    if (!getcwd(resolved, sizeof resolved))
        TRY_TO(result, done, fail(UNAVAILABLE, "the current directory: %s", strerror(errno)));
    file.current_dir = arena_strndup(arena, resolved, strlen(resolved));
    result = yaml_tree_read(&file.tree, text, size, &at);
    if (result == OK) {
        pipeline_parse_tree(&file);
    } else if (result == DATAERR) {                    // a file that is not YAML gets one diagnostic
        const char *reason = strchr(fail_text(), ' '); // behind "LINE:COLUMN:"
        diagnostic_add(&file.diagnostics, at, "%s", reason ? reason + 1 : fail_text());
    } else {
        goto done;
    }
    if (file.diagnostics.count == 0 || pipeline->stages_at.line) {
        file.files_may_be_missing |= pipeline->machine_count > 1; // where each stage runs is not known yet
        for (size_t i = 0; i < count; i++) pipeline_parse_override(&file, sets[i]);
        validate_pipeline(&file);
        validate_machines(&file);
        pipeline_sort(&file);
        validate_placement(&file);
        validate_method(&file);
        validate_combinations(&file);
    }
    TRY_TO(result, done, diagnostics_report(&file.diagnostics, path, diagnostics));
    // The file has no mistakes. The fields that have a type of their own, from its keys:
    const char *base = path_base_name(path);
    const size_t stem = strcspn(base, ".");
    const struct key *run = key_list_find(&pipeline->keys, "run");
    assert(run && pipeline->stage_count > 0);
    pipeline->run_at = run->value_at;
    pipeline->run = pipeline_take_key(&pipeline->keys, "run");
    pipeline->name = pipeline_take_key(&pipeline->keys, "name");
    const char *give_up_after = pipeline_take_key(&pipeline->keys, "give_up_after");
    pipeline->give_up_after = give_up_after ? atof(give_up_after) : 0; // NOLINT: validated
    if (!pipeline->name) pipeline->name = arena_strndup(arena, base, stem ? stem : strlen(base));
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        pipeline_take_key(&stage->options.given, "replicas");
        pipeline_take_key(&stage->options.given, "on");
        pipeline_take_key(&stage->options.given, "from");
        stage->program = pipeline_take_key(&stage->options.given, "program");
        const char *timeout = pipeline_take_key(&stage->options.given, "timeout");
        stage->timeout = timeout ? atof(timeout) : 0; // NOLINT: validated
    }
    *out = pipeline;
done:
    yaml_tree_release(&file.tree);
    diagnostics_release(&file.diagnostics);
    if (result != OK) pipeline_free(&file.pipeline);
    return result;
}

status pipeline_parse_unchecked(struct pipeline **out, const char *text, size_t size) {
    struct parsed_file file = {0};
    struct location at;
    NEW(&file.pipeline, 1);
    status result = yaml_tree_read(&file.tree, text, size, &at);
    if (result == OK) pipeline_parse_tree(&file);
    if (file.diagnostics.count) {
        const struct diagnostic *first = file.diagnostics.list;
        result = fail(DATAERR, "%zu:%zu: %s", first->at.line, first->at.column, first->text);
    }
    yaml_tree_release(&file.tree);
    diagnostics_release(&file.diagnostics);
    if (result != OK) pipeline_free(&file.pipeline);
    *out = file.pipeline;
    return result;
}

status pipeline_read(struct pipeline **out, const char *path, bool alone, const char *const *sets, size_t count,
                     struct buf *diagnostics) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK) result = pipeline_parse(out, path, alone, content.data, content.size, sets, count, diagnostics);
    buf_release(&content);
    return result;
}
