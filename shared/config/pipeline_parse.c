// The syntax of a pipeline file: which YAML node may stand where. pipeline_validate.c checks what the names and values
// mean.
#include <string.h>

#include "shared/config/parsed_file.h"

// A copy of a name with '_' for '-', so that max-frames is max_frames, as on the command line.
static const char *pipeline_parse_name(struct parsed_file *file, const char *name, size_t length) {
    char *copy = arena_strndup(&file->pipeline->arena, name, length);
    for (char *at = copy; *at; at++)
        if (*at == '-') *at = '_';
    return copy;
}

// Reads an array of strings. Returns the first one, NULL when it is not such an array, which is diagnosed.
static const char *pipeline_parse_array(struct parsed_file *file, struct yaml_tree *tree, const char *name,
                                        const yaml_node_t *node, struct pipeline_key **items) {
    const yaml_node_item_t *item = node->data.sequence.items.start, *end = node->data.sequence.items.top;
    struct pipeline_key **link = items;
    if (item == end) diagnostic_add(&file->diagnostics, yaml_node_location(node), "%s: the array is empty", name);
    for (; item < end; item++) {
        const yaml_node_t *value_node = yaml_tree_node(tree, *item);
        const char *value = yaml_node_string(value_node);
        struct pipeline_key *key = arena_alloc(&file->pipeline->arena, sizeof *key);
        *key = (struct pipeline_key){.name = name, .value_at = yaml_node_location(value_node)};
        if (!value) {
            diagnostic_add(&file->diagnostics, yaml_node_location(value_node), "%s: expected a name, not %s", name,
                           yaml_node_kind(value_node));
            return NULL;
        }
        key->value = arena_strndup(&file->pipeline->arena, value, strlen(value));
        *link = key;
        link = &key->next;
    }
    return *items ? (*items)->value : NULL;
}

static void pipeline_parse_key(struct parsed_file *file, struct yaml_tree *tree, struct key_list *keys,
                               const yaml_node_t *name_node, const yaml_node_t *value_node) {
    const char *name = yaml_node_string(name_node), *value = yaml_node_string(value_node);
    struct location name_at = yaml_node_location(name_node), value_at = yaml_node_location(value_node);
    struct pipeline_key *items = NULL;
    if (!name || !*name) {
        diagnostic_add(&file->diagnostics, name_at, "a key must be a name, not %s",
                       name ? "empty" : yaml_node_kind(name_node));
        return;
    }
    const bool group = keys == &file->pipeline->machine_groups;
    if (!group) name = pipeline_parse_name(file, name, strlen(name));
    const bool array = value_node->type == YAML_SEQUENCE_NODE;
    if (array && (group || !strcmp(name, "on")))
        value = pipeline_parse_array(file, tree, name, value_node, &items);
    else if (!value)
        diagnostic_add(&file->diagnostics, value_at, "%s: expected a value, not %s", name, yaml_node_kind(value_node));
    if (key_list_find(keys, name)) {
        diagnostic_add(&file->diagnostics, name_at, "%s is given twice", name);
        return;
    }
    struct pipeline_key *key = key_list_set(keys, &file->pipeline->arena, name, value ? value : "", name_at, value_at);
    if (!value) key->value = NULL; // given, although wrong: it is not reported as missing
    key->items = items;
}

// Reads a mapping of plain values; `owner` names it.
static void pipeline_parse_keys(struct parsed_file *file, struct yaml_tree *tree, struct key_list *keys,
                                const yaml_node_t *node, const char *owner) {
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0) return; // `reward:` alone
    if (node->type != YAML_MAPPING_NODE) {
        diagnostic_add(&file->diagnostics, yaml_node_location(node), "%s: expected a mapping of keys, not %s", owner,
                       yaml_node_kind(node));
        return;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++)
        pipeline_parse_key(file, tree, keys, yaml_tree_node(tree, pair->key), yaml_tree_node(tree, pair->value));
}

static void pipeline_parse_stages(struct parsed_file *file, struct yaml_tree *tree, const yaml_node_t *node) {
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
        const yaml_node_t *stage_node = yaml_tree_node(tree, *item), *keys = NULL;
        const char *name = yaml_node_string(stage_node);
        struct location at = yaml_node_location(stage_node);
        if (stage_node->type == YAML_MAPPING_NODE) {
            yaml_node_pair_t *pair = stage_node->data.mapping.pairs.start;
            int names = (int)(stage_node->data.mapping.pairs.top - pair);
            if (names != 1)
                diagnostic_add(&file->diagnostics, at,
                               "expected one name with its keys, as in `- frames: {fps: 2}`, not %d names", names);
            if (!names) continue;
            name = yaml_node_string(yaml_tree_node(tree, pair->key));
            keys = yaml_tree_node(tree, pair->value);
        }
        if (!name || !*name) {
            diagnostic_add(&file->diagnostics, at, "a stage must have a name");
            continue;
        }
        struct pipeline_stage *stage = &pipeline->stages[pipeline->stage_count++];
        *stage = (struct pipeline_stage){.name = arena_strndup(&pipeline->arena, name, strlen(name)), .at = at};
        if (keys) pipeline_parse_keys(file, tree, &stage->keys, keys, stage->name);
    }
}

void parse_tree(struct parsed_file *file, struct yaml_tree *tree) {
    struct pipeline *pipeline = file->pipeline;
    const yaml_node_t *root = tree->root, *machines_node = NULL, *groups_node = NULL;
    if (!root || root->type != YAML_MAPPING_NODE) {
        diagnostic_add(&file->diagnostics, (struct location){1, 1},
                       "a pipeline file is a mapping with `run` and `stages`, not %s", yaml_node_kind(root));
        return;
    }
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name_node = yaml_tree_node(tree, pair->key);
        const yaml_node_t *value_node = yaml_tree_node(tree, pair->value);
        const char *name = yaml_node_string(name_node);
        bool stages = name && !strcmp(name, "stages"), machines = name && !strcmp(name, "machines");
        bool machine_groups = name && !strcmp(name, "machine_groups");
        if ((stages && pipeline->stages_at.line) || (machines && pipeline->machines_at.line) ||
            (machine_groups && groups_node)) {
            diagnostic_add(&file->diagnostics, yaml_node_location(name_node), "%s is given twice", name);
        } else if (stages) {
            pipeline_parse_stages(file, tree, value_node);
        } else if (machines) {
            machines_node = value_node;
            pipeline->machines_at = yaml_node_location(value_node);
        } else if (machine_groups) {
            groups_node = value_node;
        } else {
            pipeline_parse_key(file, tree, &pipeline->keys, name_node, value_node);
        }
    }
    if (!pipeline->stages_at.line) diagnostic_add(&file->diagnostics, yaml_node_location(root), "missing: stages");
    if (groups_node) pipeline_parse_keys(file, tree, &pipeline->machine_groups, groups_node, "machine_groups");
    if (!machines_node) return;
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
        const yaml_node_t *name_node = yaml_tree_node(tree, pair->key);
        const char *name = yaml_node_string(name_node);
        struct location at = yaml_node_location(name_node);
        if (!name || !*name) {
            diagnostic_add(&file->diagnostics, at, "a machine must have a name");
            continue;
        }
        struct key_list keys = {0};
        pipeline_parse_keys(file, tree, &keys, yaml_tree_node(tree, pair->value), name);
        parse_machines(file, name, at, &keys);
    }
}

void parse_override(struct parsed_file *file, const char *set) {
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
        size_t length = (size_t)(dot - set), i = 0;
        while (i < pipeline->stage_count &&
               (strlen(pipeline->stages[i].name) != length || memcmp(pipeline->stages[i].name, set, length) != 0))
            i++;
        if (i == pipeline->stage_count) {
            diagnostic_add(&file->diagnostics, typed, "%s: the file has no stage %.*s", set, (int)length, set);
            return;
        }
        keys = &pipeline->stages[i].keys;
    }
    const char *name = pipeline_parse_name(file, start, (size_t)(equals - start));
    key_list_set(keys, &pipeline->arena, name, equals + 1, typed, typed);
}
