// What the words of a pipeline file mean: every key against its table, every name against what it names; then what one
// key hands down to many stages: the stage's own value goes before the file's, that before the source's.
#include "shared/config/draft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/flow.h"
#include "shared/config/table.h"
#include "shared/config/values.h"

// Keys of the file that are no stage's.
static const struct option top_keys[] = {
    {.name = "name", .type = OPTION_STRING, .help = "of the run (default: the file's)"},
    {.name = "run",
     .type = OPTION_PATH,
     .required = true,
     .help = "folder of store, ledger, checkpoints, metrics, logs"},
    {0},
};
static const struct option_table top_table = {NULL, "pipeline", NULL, "keys of the file", top_keys};

// Keys of a stage's place in the pipeline, for every stage and program.
static const struct option place_keys[] = {
    {.name = "from", .type = OPTION_STRING, .help = "the stage before it, when that is not the one above"},
    {.name = "replicas",
     .type = OPTION_INT,
     .default_value = "1",
     .low = 1,
     .high = 256,
     .help = "processes that share the work"},
    {.name = "on", .type = OPTION_STRING, .help = "the machine that it runs on"},
    {.name = "program", .type = OPTION_FILE, .help = "a program of yours that filters JSON lines"},
    {0},
};
static const struct option_table place_table = {NULL, "pipeline", NULL, "a stage's place", place_keys};

static const struct option machine_keys[] = {
    {.name = "address", .type = OPTION_STRING, .required = true, .help = "host name or IP address"},
    {.name = "key", .type = OPTION_STRING, .help = "its public key, from `caravan keygen`"},
    {.name = "port", .type = OPTION_INT, .low = 1, .high = 65000, .help = "the first port that it listens on"},
    {0},
};
static const struct option_table machine_table = {NULL, "pipeline", NULL, "a machine", machine_keys};

// Given by the source or the file to every stage that has it.
static const char *const handed_by_source[] = {"group_size", "groups_per_step", "media_root", "seed", NULL};

static const struct option *find_in(const struct option *keys, const char *name) {
    for (; keys->name; keys++)
        if (!strcmp(keys->name, name)) return keys;
    return NULL;
}

// A key that several stages have may stand at the top of the file.
static const struct option *find_shared(const char *name) {
    const struct option *found = NULL;
    int stages = 0;
    for (const char *const *stage = stage_names(); *stage; stage++) {
        const struct option *key = option_find(options_of(*stage), name);
        if (!key || key->hidden) continue;
        found = key;
        stages++;
    }
    return stages > 1 && !value_among("stdio|config", name) ? found : NULL;
}

// The stage that has a key of that very name, NULL if there is none.
static const char *owner_of(const char *name) {
    for (const char *const *stage = stage_names(); *stage; stage++)
        if (option_find(options_of(*stage), name)) return *stage;
    return NULL;
}

static void unknown_key(struct draft *draft, const char *owner, const struct draft_key *key,
                        const struct option_table *table, const struct option_table *more) {
    const char *near = option_suggest(table, key->name);
    if (!near && more) near = option_suggest(more, key->name);
    if (owner_of(key->name)) {
        draft_mistake(draft, key->name_place, "%s: no such key: %s; it is one of %s", owner, key->name,
                      owner_of(key->name));
    } else if (near) {
        draft_mistake(draft, key->name_place, "%s: no such key: %s; did you mean %s?", owner, key->name, near);
    } else {
        draft_mistake(draft, key->name_place, "%s: no such key: %s", owner, key->name);
    }
}

// Checks a value and makes its path absolute. False if there was a mistake.
static bool check_value(struct draft *draft, const char *owner, struct draft_key *key, const struct option *rule) {
    if (!key->value) return false; // a list or a map, reported already
    if (option_check(rule, key->value) != OK) {
        draft_mistake(draft, key->value_place, "%s: %s", owner, fail_text());
        return false;
    }
    char *resolved = option_resolve(rule, key->value_place.line ? draft->folder : draft->current, key->value,
                                    &draft->pipeline->arena);
    if (!resolved) {
        draft->short_of_memory = true;
        return false;
    }
    if (rule->type == OPTION_FILE && !value_among(rule->choices, resolved) && access(resolved, F_OK)) {
        draft_mistake(draft, key->value_place, "%s: %s: %s: %s", owner, key->name, resolved, strerror(errno));
        return false;
    }
    key->value = resolved;
    return true;
}

// Checks a map against one table.
static void check_map(struct draft *draft, const char *owner, struct place place, struct draft_keys *keys,
                      const struct option_table *table) {
    for (struct draft_key *key = keys->first; key; key = key->next) {
        const struct option *rule = find_in(table->keys, key->name);
        if (rule)
            check_value(draft, owner, key, rule);
        else
            unknown_key(draft, owner, key, table, NULL);
    }
    for (const struct option *rule = table->keys; rule->name; rule++)
        if (rule->required && !draft_find(keys, rule->name))
            draft_mistake(draft, place, "%s: missing: %s", owner, rule->name);
}

static void check_top(struct draft *draft) {
    for (struct draft_key *key = draft->top.first; key; key = key->next) {
        const struct option *rule = find_in(top_keys, key->name);
        if (!rule) rule = find_shared(key->name);
        if (rule)
            check_value(draft, "pipeline", key, rule);
        else
            unknown_key(draft, "pipeline", key, &top_table, options_of("source"));
    }
    if (!draft_find(&draft->top, "run")) draft_mistake(draft, (struct place){1, 1}, "pipeline: missing: run");
}

static void name_program(struct draft *draft, struct draft_stage *stage) {
    const char *near = nearest_name(stage_names(), stage->name);
    if (near) {
        draft_mistake(draft, stage->place, "%s: no such stage; did you mean %s? (one of yours needs `program`)",
                      stage->name, near);
    } else {
        draft_mistake(draft, stage->place, "%s: no such stage; one of yours needs `program`", stage->name);
    }
}

// A program is a path from the file's folder; a bare name is looked for in PATH.
static void check_program(struct draft *draft, const struct draft_stage *stage, struct draft_key *key) {
    if (!key->value) return;
    struct arena *memory = &draft->pipeline->arena;
    const char *base = key->value_place.line ? draft->folder : draft->current;
    static const struct option file = {.name = "program", .type = OPTION_FILE};
    const char *path = strchr(key->value, '/') ? option_resolve(&file, base, key->value, memory) : NULL;
    const char *search = path ? NULL : getenv("PATH");
    while (search && *search && !path) {
        size_t length = strcspn(search, ":");
        char *folder = arena_strndup(memory, search, length);
        char *candidate = folder ? path_join(memory, folder, key->value) : NULL;
        if (candidate && *key->value && access(candidate, X_OK) == 0) path = candidate;
        search += length + (search[length] == ':');
    }
    if (!path) {
        draft_mistake(draft, key->value_place, "%s: program: %s is nowhere in PATH (a file beside this one: ./%s)",
                      stage->name, key->value, key->value);
    } else if (access(path, X_OK)) {
        draft_mistake(draft, key->value_place, "%s: program: %s: %s", stage->name, path, strerror(errno));
    } else {
        key->value = path;
    }
}

static void check_stage_key(struct draft *draft, struct draft_stage *stage, struct draft_key *key) {
    const struct option *rule = find_in(place_keys, key->name);
    if (rule && !strcmp(key->name, "program")) {
        check_program(draft, stage, key);
    } else if (rule) {
        check_value(draft, stage->name, key, rule);
    } else if (stage->table) {
        rule = option_find(stage->table, key->name);
        if (!rule || rule->hidden)
            unknown_key(draft, stage->name, key, stage->table, &place_table);
        else if (value_among("stdio|config", key->name))
            draft_mistake(draft, key->name_place, "%s: %s is for the command line", stage->name, key->name);
        else
            check_value(draft, stage->name, key, rule);
    }
}

static void check_stage(struct draft *draft, struct draft_stage *stage) {
    stage->is_program = draft_find(&stage->keys, "program") != NULL;
    stage->table = stage->is_program ? NULL : options_of(stage->name);
    if (!stage->table && !stage->is_program) name_program(draft, stage);
    for (struct draft_key *key = stage->keys.first; key; key = key->next) check_stage_key(draft, stage, key);
    for (struct draft_stage *other = draft->stages; other < stage; other++)
        if (!strcmp(other->name, stage->name))
            draft_mistake(draft, stage->place, "%s: a second stage of that name; the first is in line %zu", stage->name,
                          other->place.line);
    struct draft_key *replicas = draft_find(&stage->keys, "replicas");
    if (replicas && replicas->value && strcmp(replicas->value, "1") != 0 && value_among("source|optim", stage->name))
        draft_mistake(draft, replicas->value_place, "%s: replicas: there can be one only", stage->name);
}

static struct draft_stage *stage_named(struct draft *draft, const char *name) {
    for (size_t i = 0; i < draft->stage_count; i++)
        if (!strcmp(draft->stages[i].name, name)) return &draft->stages[i];
    return NULL;
}

// The file's or the source's value of a key that the stage lacks.
static struct draft_key *inherited(struct draft *draft, const struct draft_stage *stage, const char *name) {
    struct draft_key *top = draft_find(&draft->top, name);
    struct draft_stage *source = stage_named(draft, "source");
    if (top && find_shared(name)) return top;
    for (const char *const *handed = handed_by_source; *handed && source && source != stage; handed++)
        if (!strcmp(*handed, name)) return draft_find(&source->keys, name);
    return NULL;
}

static void inherit_path(struct draft *draft, struct draft_stage *stage, const char *name, const char *below) {
    const struct draft_key *run = draft_find(&draft->top, "run");
    if (!run || !run->value || draft_find(&stage->keys, name)) return;
    char *path = path_join(&draft->pipeline->arena, run->value, below);
    if (!path)
        draft->short_of_memory = true;
    else
        draft_set(draft, &stage->keys, name, path, run->name_place, run->value_place);
}

static void inherit_keys(struct draft *draft, struct draft_stage *stage, const struct option *rules) {
    for (const struct option *rule = rules; rule->name; rule++) {
        if (draft_find(&stage->keys, rule->name)) continue;
        const struct draft_key *key = inherited(draft, stage, rule->name);
        if (key && key->value)
            draft_set(draft, &stage->keys, rule->name, key->value, key->name_place, key->value_place);
        else if (key)
            continue; // wrong where it stands: not missing here as well
        else if (rule->required && strcmp(rule->name, "out") != 0)
            draft_mistake(draft, stage->place, "%s: missing: %s", stage->name, rule->name);
    }
}

// min above max, with the values that hold after all was handed down.
static void check_bounds(struct draft *draft, const struct draft_stage *stage) {
    for (const struct option *rule = stage->table->keys; rule->name; rule++) {
        if (!rule->not_above) continue;
        const struct option *other = option_find(stage->table, rule->not_above);
        const struct draft_key *low = draft_find(&stage->keys, rule->name),
                               *high = draft_find(&stage->keys, rule->not_above);
        const char *low_text = low ? low->value : rule->default_value,
                   *high_text = high ? high->value : other->default_value;
        double bottom, top;
        if ((!low && !high) || !low_text || !high_text) continue;
        if (value_number(low_text, &bottom) && value_number(high_text, &top) && bottom > top)
            draft_mistake(draft, (low ? low : high)->value_place, "%s: %s: %s is above %s, which is %s", stage->name,
                          rule->name, low_text, rule->not_above, high_text);
    }
}

// Source and another stage must mean the same by a key.
static void check_agreement(struct draft *draft, const char *stage_name, const char *name) {
    struct draft_stage *source = stage_named(draft, "source"), *stage = stage_named(draft, stage_name);
    if (!source || !stage || !source->table || !stage->table) return;
    const struct draft_key *there = draft_find(&source->keys, name), *here = draft_find(&stage->keys, name);
    const char *standard = option_find(source->table, name)->default_value;
    double a, b;
    if (!here || !here->value || (there && !there->value)) return;
    if (value_number(there ? there->value : standard, &a) && value_number(here->value, &b) && a != b)
        draft_mistake(draft, here->value_place, "%s: %s: %s here, but %s at source", stage_name, name, here->value,
                      there ? there->value : standard);
}

static void complete_stage(struct draft *draft, struct draft_stage *stage) {
    if (!stage->table) return;
    inherit_path(draft, stage, "store", "store");
    if (option_find(stage->table, "out")) inherit_path(draft, stage, "out", "checkpoints");
    inherit_keys(draft, stage, stage->table->keys);
    inherit_keys(draft, stage, options_common());
    check_bounds(draft, stage);
}

static void check_machine(struct draft *draft, struct draft_machine *machine) {
    check_map(draft, machine->name, machine->place, &machine->keys, &machine_table);
    for (struct draft_machine *other = draft->machines; other < machine; other++)
        if (!strcmp(other->name, machine->name))
            draft_mistake(draft, machine->place, "%s: a second machine of that name", machine->name);
}

void draft_resolve(struct draft *draft) {
    check_top(draft);
    for (size_t i = 0; i < draft->machine_count; i++) check_machine(draft, &draft->machines[i]);
    for (size_t i = 0; i < draft->stage_count; i++) check_stage(draft, &draft->stages[i]);
    for (size_t i = 0; i < draft->stage_count; i++) complete_stage(draft, &draft->stages[i]);
    check_agreement(draft, "rollout", "group_size");
    check_agreement(draft, "optim", "groups_per_step");
    flow_order(draft);
    if (draft->mistake_count == 0 && !draft->short_of_memory) flow_build(draft);
}
