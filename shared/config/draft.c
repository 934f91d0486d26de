// The forms of a pipeline file: which node may stand where. What the words mean is draft_resolve's.
#include "shared/config/draft.h"

#include <string.h>

struct draft_key *draft_find(const struct draft_keys *keys, const char *name) {
    for (struct draft_key *key = keys->first; key; key = key->next)
        if (!strcmp(key->name, name)) return key;
    return NULL;
}

static char *copy_text(struct draft *draft, const char *text, size_t length) {
    char *copy = arena_strndup(&draft->pipeline->arena, text, length);
    if (!copy) draft->short_of_memory = true;
    return copy;
}

struct draft_key *draft_set(struct draft *draft, struct draft_keys *keys, const char *name, const char *value,
                            struct place name_place, struct place value_place) {
    struct draft_key *key = draft_find(keys, name);
    if (!key) {
        struct draft_key **end = &keys->first;
        while (*end) end = &(*end)->next;
        key = arena_alloc(&draft->pipeline->arena, sizeof *key);
        char *copy = copy_text(draft, name, strlen(name));
        if (!key || !copy) {
            draft->short_of_memory = true;
            return NULL;
        }
        key->name = copy;
        *end = key;
    }
    key->value = copy_text(draft, value, strlen(value));
    key->name_place = name_place;
    key->value_place = value_place;
    return key->value ? key : NULL;
}

// "max-frames" is max_frames, as on the command line.
static const char *spell(struct draft *draft, const char *name) {
    char *copy = copy_text(draft, name, strlen(name));
    for (char *at = copy; at && *at; at++)
        if (*at == '-') *at = '_';
    return copy;
}

static void parse_key(struct draft *draft, struct draft_keys *keys, const yaml_node_t *name_node,
                      const yaml_node_t *value_node) {
    const char *name = document_text(name_node), *value = document_text(value_node);
    struct place at = document_place(name_node);
    if (!name || !*name) {
        draft_mistake(draft, at, "a key must be a name, not %s", name ? "empty" : document_kind(name_node));
        return;
    }
    name = spell(draft, name);
    if (!name) return;
    if (!value) {
        draft_mistake(draft, document_place(value_node), "%s: %s where a value belongs", name,
                      document_kind(value_node));
        value = ""; // given, though wrong: it is not missing as well
    }
    if (draft_find(keys, name)) {
        draft_mistake(draft, at, "%s is given twice", name);
        return;
    }
    struct draft_key *key = draft_set(draft, keys, name, value, at, document_place(value_node));
    if (key && !document_text(value_node)) key->value = NULL;
}

// A map of plain values; `what` names it.
static void parse_keys(struct draft *draft, struct document *document, struct draft_keys *keys, const yaml_node_t *node,
                       const char *what) {
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0) return; // `reward:` alone
    if (node->type != YAML_MAPPING_NODE) {
        draft_mistake(draft, document_place(node), "%s: %s where a map of keys belongs", what, document_kind(node));
        return;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++)
        parse_key(draft, keys, document_node(document, pair->key), document_node(document, pair->value));
}

static void parse_stage(struct draft *draft, struct document *document, const yaml_node_t *node) {
    struct place at = document_place(node);
    const yaml_node_t *keys = NULL;
    const char *name = document_text(node); // `- reward` alone is a stage at its defaults
    if (node->type == YAML_MAPPING_NODE) {
        yaml_node_pair_t *pair = node->data.mapping.pairs.start;
        if (node->data.mapping.pairs.top - pair != 1) {
            draft_mistake(draft, at, "a stage is one name with its keys, as in `- frames: {fps: 2}`, here are %d names",
                          (int)(node->data.mapping.pairs.top - pair));
            if (pair == node->data.mapping.pairs.top) return;
        }
        name = document_text(document_node(document, pair->key));
        keys = document_node(document, pair->value);
    }
    if (!name || !*name) {
        draft_mistake(draft, at, "a stage must have a name");
        return;
    }
    struct draft_stage *stage = &draft->stages[draft->stage_count++];
    *stage = (struct draft_stage){.name = copy_text(draft, name, strlen(name)), .place = at};
    if (stage->name && keys) parse_keys(draft, document, &stage->keys, keys, stage->name);
}

static void parse_stages(struct draft *draft, struct document *document, const yaml_node_t *node) {
    draft->stages_place = document_place(node);
    if (node->type != YAML_SEQUENCE_NODE) {
        draft_mistake(draft, draft->stages_place, "stages: %s where a list of stages belongs", document_kind(node));
        return;
    }
    size_t count = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
    draft->stages = arena_alloc(&draft->pipeline->arena, (count + 1) * sizeof *draft->stages);
    if (!draft->stages) draft->short_of_memory = true;
    for (size_t i = 0; i < count && draft->stages; i++)
        parse_stage(draft, document, document_node(document, node->data.sequence.items.start[i]));
}

static void parse_machines(struct draft *draft, struct document *document, const yaml_node_t *node) {
    draft->machines_place = document_place(node);
    if (node->type != YAML_MAPPING_NODE) {
        draft_mistake(draft, draft->machines_place, "machines: %s where a map of machines belongs",
                      document_kind(node));
        return;
    }
    yaml_node_pair_t *pair = node->data.mapping.pairs.start;
    size_t count = (size_t)(node->data.mapping.pairs.top - pair);
    draft->machines = arena_alloc(&draft->pipeline->arena, (count + 1) * sizeof *draft->machines);
    if (!draft->machines) draft->short_of_memory = true;
    for (; pair < node->data.mapping.pairs.top && draft->machines; pair++) {
        const yaml_node_t *name_node = document_node(document, pair->key);
        const char *name = document_text(name_node);
        struct place at = document_place(name_node);
        if (!name || !*name) {
            draft_mistake(draft, at, "a machine must have a name");
            continue;
        }
        struct draft_machine *machine = &draft->machines[draft->machine_count++];
        *machine = (struct draft_machine){.name = copy_text(draft, name, strlen(name)), .place = at};
        parse_keys(draft, document, &machine->keys, document_node(document, pair->value), name);
    }
}

void draft_parse(struct draft *draft, struct document *document) {
    const yaml_node_t *root = document->root;
    if (!root || root->type != YAML_MAPPING_NODE) {
        draft_mistake(draft, (struct place){1, 1}, "a pipeline file is a map with `run` and `stages`, not %s",
                      document_kind(root));
        return;
    }
    for (yaml_node_pair_t *pair = root->data.mapping.pairs.start; pair < root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name_node = document_node(document, pair->key);
        const yaml_node_t *value_node = document_node(document, pair->value);
        const char *name = document_text(name_node);
        bool stages = name && !strcmp(name, "stages"), machines = name && !strcmp(name, "machines");
        if ((stages && draft->stages_place.line) || (machines && draft->machines_place.line)) {
            draft_mistake(draft, document_place(name_node), "%s is given twice", name);
        } else if (stages) {
            parse_stages(draft, document, value_node);
        } else if (machines) {
            parse_machines(draft, document, value_node);
        } else {
            parse_key(draft, &draft->top, name_node, value_node);
        }
    }
    if (!draft->stages_place.line) draft_mistake(draft, document_place(root), "missing: stages");
}

static struct draft_stage *find_stage(struct draft *draft, const char *name, size_t length) {
    for (size_t i = 0; i < draft->stage_count; i++)
        if (strlen(draft->stages[i].name) == length && !memcmp(draft->stages[i].name, name, length))
            return &draft->stages[i];
    return NULL;
}

void draft_override(struct draft *draft, const char *set) {
    struct place typed = {0, 0};
    const char *equals = strchr(set, '=');
    const char *dot = equals ? memchr(set, '.', (size_t)(equals - set)) : NULL;
    const char *start = dot ? dot + 1 : set;
    if (!equals || equals == start) {
        draft_mistake(draft, typed, "%s: not of the form stage.key=value", set);
        return;
    }
    struct draft_keys *keys = &draft->top;
    if (dot) {
        struct draft_stage *stage = find_stage(draft, set, (size_t)(dot - set));
        if (!stage) {
            draft_mistake(draft, typed, "%s: the file has no stage %.*s", set, (int)(dot - set), set);
            return;
        }
        keys = &stage->keys;
    }
    const char *name = copy_text(draft, start, (size_t)(equals - start));
    name = name ? spell(draft, name) : NULL;
    if (name) draft_set(draft, keys, name, equals + 1, typed, typed);
}
