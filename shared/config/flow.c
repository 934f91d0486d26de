#include "shared/config/flow.h"

#include <stdlib.h>
#include <string.h>

static int find_stage(const struct draft *draft, const char *name) {
    for (size_t i = 0; i < draft->stage_count; i++)
        if (!strcmp(draft->stages[i].name, name)) return (int)i;
    return -1;
}

// A stage's place among the known ones, -1 for a program.
static int rank(const struct draft_stage *stage) {
    const char *const *names = stage_names();
    for (int i = 0; stage->table && names[i]; i++)
        if (!strcmp(names[i], stage->table->stage)) return i;
    return -1;
}

static const char *nearest_stage(const struct draft *draft, const char *name) {
    const char **names = calloc(draft->stage_count + 1, sizeof *names);
    if (!names) return NULL;
    for (size_t i = 0; i < draft->stage_count; i++) names[i] = draft->stages[i].name;
    const char *near = nearest_name(names, name);
    free(names);
    return near;
}

// The stage that stage i reads from, -1: none, or it is unknown.
static int parent_of(struct draft *draft, int i, bool say) {
    const struct draft_stage *stage = &draft->stages[i];
    const struct draft_key *from = draft_find(&stage->keys, "from");
    bool source = !strcmp(stage->name, "source");
    if (!from || !from->value) return source ? -1 : i - 1;
    int parent = find_stage(draft, from->value);
    if (!say) return source ? -1 : parent;
    if (source) {
        draft_mistake(draft, from->name_place, "source: from: nothing stands before the source");
    } else if (parent < 0) {
        const char *near = nearest_stage(draft, from->value);
        if (near)
            draft_mistake(draft, from->value_place, "%s: from: no stage is named %s; did you mean %s?", stage->name,
                          from->value, near);
        else
            draft_mistake(draft, from->value_place, "%s: from: no stage is named %s", stage->name, from->value);
    } else if (parent == i) {
        draft_mistake(draft, from->value_place, "%s: from: itself", stage->name);
    }
    return source ? -1 : parent;
}

// A group goes one way: no stage has two readers.
static void check_readers(struct draft *draft, const int *parents) {
    for (size_t i = 0; i < draft->stage_count; i++) {
        for (size_t j = 0; j < i; j++) {
            if (parents[i] < 0 || parents[i] != parents[j] || parents[i] == (int)i || parents[j] == (int)j) continue;
            const struct draft_key *from = draft_find(&draft->stages[i].keys, "from");
            draft_mistake(draft, from ? from->value_place : draft->stages[i].place,
                          "%s: reads from %s, and so does %s; a group goes one way", draft->stages[i].name,
                          draft->stages[parents[i]].name, draft->stages[j].name);
            break;
        }
    }
}

static bool may_say(const char *before, const struct draft_stage *stage) {
    return before && stage->table;
}

// Known stages stand in the order in which they need each other.
static void check_ranks(struct draft *draft) {
    int highest = -1;
    const char *name = NULL;
    bool scored = false;
    for (size_t i = 0; i < draft->stage_count; i++) {
        const struct draft_stage *stage = &draft->stages[i];
        if (highest >= 0 && !strcmp(name, "optim"))
            draft_mistake(draft, stage->place, "%s: nothing stands behind optim", stage->name);
        else if (may_say(name, stage) && rank(stage) < highest)
            draft_mistake(draft, stage->place, "%s: stands behind %s; it belongs before it", stage->name, name);
        if (rank(stage) > highest) highest = rank(stage), name = stage->name;
        if (stage->is_program || !strcmp(stage->name, "refscore")) scored = true;
        const struct draft_key *method = draft_find(&stage->keys, "method");
        const char *value = method && method->value ? method->value : "care";
        if (stage->table && !strcmp(stage->name, "reward") && !scored &&
            (!strcmp(value, "care") || !strcmp(value, "densecons")))
            draft_mistake(draft, method ? method->value_place : stage->place,
                          "reward: method %s needs refscore before it", value);
    }
}

static void check_ends(struct draft *draft) {
    if (draft->stage_count && find_stage(draft, "source") < 0)
        draft_mistake(draft, draft->stages_place, "stages: missing: source, where groups come from");
    if (draft->stage_count && find_stage(draft, "optim") < 0)
        draft_mistake(draft, draft->stages_place, "stages: missing: optim, where groups end");
    if (!draft->stage_count && draft->stages_place.line)
        draft_mistake(draft, draft->stages_place, "stages: there are none");
}

static void check_on(struct draft *draft) {
    const char **names = calloc(draft->machine_count + 1, sizeof *names);
    if (!names) {
        draft->short_of_memory = true;
        return;
    }
    for (size_t i = 0; i < draft->machine_count; i++) names[i] = draft->machines[i].name;
    for (size_t i = 0; i < draft->stage_count; i++) {
        const struct draft_key *on = draft_find(&draft->stages[i].keys, "on");
        size_t m = 0;
        if (!on || !on->value) continue;
        while (m < draft->machine_count && strcmp(names[m], on->value) != 0) m++;
        if (m < draft->machine_count) continue;
        const char *near = nearest_name(names, on->value);
        if (near)
            draft_mistake(draft, on->value_place, "%s: on: no machine is named %s; did you mean %s?",
                          draft->stages[i].name, on->value, near);
        else
            draft_mistake(draft, on->value_place, "%s: on: no machine is named %s", draft->stages[i].name, on->value);
    }
    free(names);
}

// Moves the stages into the order of the flow. Stages that source does not reach stay behind it and are named.
static void sort_stages(struct draft *draft, const int *parents, int first) {
    struct draft_stage *sorted = calloc(draft->stage_count, sizeof *sorted);
    bool *moved = calloc(draft->stage_count, sizeof *moved);
    size_t count = 0;
    if (!sorted || !moved) {
        draft->short_of_memory = true;
        goto done;
    }
    for (int at = first; at >= 0;) {
        sorted[count++] = draft->stages[at];
        moved[at] = true;
        int next = -1;
        for (int i = (int)draft->stage_count - 1; i >= 0; i--)
            if (parents[i] == at && !moved[i]) next = i;
        at = next;
    }
    for (size_t i = 0; i < draft->stage_count; i++) {
        if (moved[i]) continue;
        sorted[count++] = draft->stages[i];
        const struct draft_key *from = draft_find(&draft->stages[i].keys, "from");
        if (!from || from->value) // else it is reported already
            draft_mistake(draft, draft->stages[i].place, "%s: no group from source ever comes here",
                          draft->stages[i].name);
    }
    memcpy(draft->stages, sorted, draft->stage_count * sizeof *sorted);
done:
    free(sorted);
    free(moved);
}

void flow_order(struct draft *draft) {
    size_t before = draft->mistake_count;
    int *parents = calloc(draft->stage_count + 1, sizeof *parents);
    if (!parents) {
        draft->short_of_memory = true;
        return;
    }
    for (size_t i = 0; i < draft->stage_count; i++) parents[i] = parent_of(draft, (int)i, true);
    check_ends(draft);
    check_on(draft);
    check_readers(draft, parents);
    int first = find_stage(draft, "source");
    if (first >= 0 && draft->mistake_count == before) sort_stages(draft, parents, first);
    check_ranks(draft);
    free(parents);
}

static const char *value_of(const struct draft_keys *keys, const char *name) {
    const struct draft_key *key = draft_find(keys, name);
    return key ? key->value : NULL;
}

static bool is_place_key(const char *name) {
    return !strcmp(name, "from") || !strcmp(name, "replicas") || !strcmp(name, "on") || !strcmp(name, "program");
}

static status build_stage(struct draft *draft, size_t index) {
    const struct draft_stage *made = &draft->stages[index];
    struct pipeline_stage *stage = &draft->pipeline->stages[index];
    const char *replicas = value_of(&made->keys, "replicas"), *on = value_of(&made->keys, "on");
    *stage = (struct pipeline_stage){.name = made->name, .table = made->table, .from = (int)index - 1, .on = -1};
    stage->program = value_of(&made->keys, "program");
    stage->replicas = replicas ? atoi(replicas) : 1; // NOLINT: checked against its range before
    for (size_t i = 0; on && i < draft->machine_count; i++)
        if (!strcmp(draft->machines[i].name, on)) stage->on = (int)i;
    for (const struct draft_key *key = made->keys.first; key; key = key->next)
        if (!is_place_key(key->name)) TRY(pipeline_set(draft->pipeline, stage, key->name, key->value));
    return OK;
}

static status build(struct draft *draft) {
    struct pipeline *pipeline = draft->pipeline;
    const char *slash = strrchr(draft->path, '/'), *base = slash ? slash + 1 : draft->path;
    size_t stem = strcspn(base, ".");
    pipeline->run = value_of(&draft->top, "run");
    pipeline->name = value_of(&draft->top, "name");
    if (!pipeline->name) pipeline->name = arena_strndup(&pipeline->arena, base, stem ? stem : strlen(base));
    pipeline->stages = arena_alloc(&pipeline->arena, (draft->stage_count + 1) * sizeof *pipeline->stages);
    pipeline->machines = arena_alloc(&pipeline->arena, (draft->machine_count + 1) * sizeof *pipeline->machines);
    if (!pipeline->name || !pipeline->stages || !pipeline->machines) return fail_oom();
    pipeline->stage_count = draft->stage_count;
    pipeline->machine_count = draft->machine_count;
    for (size_t i = 0; i < draft->machine_count; i++) {
        const struct draft_keys *keys = &draft->machines[i].keys;
        const char *port = value_of(keys, "port");
        pipeline->machines[i] =
            (struct pipeline_machine){draft->machines[i].name, value_of(keys, "address"), value_of(keys, "key"),
                                      port ? atoi(port) : 0}; // NOLINT: checked before
    }
    for (size_t i = 0; i < draft->stage_count; i++) TRY(build_stage(draft, i));
    return OK;
}

void flow_build(struct draft *draft) {
    if (build(draft) != OK) draft->short_of_memory = true;
}
