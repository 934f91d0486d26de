// The pipeline as a type: its keys and its lifetime. Reading a file is pipeline_read.c's.
#include "shared/config/pipeline.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct pipeline_key *key_list_find(const struct key_list *keys, const char *name) {
    for (struct pipeline_key *key = keys->first; key; key = key->next)
        if (!strcmp(key->name, name)) return key;
    return NULL;
}

size_t key_list_count(const struct key_list *keys) {
    size_t count = 0;
    for (const struct pipeline_key *key = keys->first; key; key = key->next) count++;
    return count;
}

struct pipeline_key *key_list_set(struct key_list *keys, struct arena *arena, const char *name, const char *value,
                                  struct location name_at, struct location value_at) {
    assert(name && value);
    const char *value_copy = arena_strndup(arena, value, strlen(value));
    struct pipeline_key **end = &keys->first;
    while (*end && strcmp((*end)->name, name) != 0) end = &(*end)->next;
    if (!*end) {
        struct pipeline_key *fresh = arena_alloc(arena, sizeof *fresh);
        if (fresh) fresh->name = arena_strndup(arena, name, strlen(name));
        if (!fresh || !fresh->name) return NULL;
        *end = fresh;
    }
    (*end)->value = value_copy;
    (*end)->name_at = name_at;
    (*end)->value_at = value_at;
    return value_copy ? *end : NULL;
}

void pipeline_free(struct pipeline **pipeline) {
    if (!*pipeline) return;
    struct arena arena = (*pipeline)->arena;
    free(*pipeline);
    arena_release(&arena);
    *pipeline = NULL;
}

struct pipeline_stage *pipeline_find_stage(const struct pipeline *pipeline, const char *name) {
    for (size_t i = 0; i < pipeline->stage_count; i++)
        if (!strcmp(pipeline->stages[i].name, name)) return &pipeline->stages[i];
    return NULL;
}

const char *pipeline_value(const struct pipeline_stage *stage, const char *key) {
    const struct pipeline_key *found = key_list_find(&stage->keys, key);
    return found ? found->value : NULL;
}

status pipeline_set(struct pipeline *pipeline, struct pipeline_stage *stage, const char *key, const char *value) {
    const struct location nowhere = {0, 0};
    struct pipeline_key *set = key_list_set(&stage->keys, &pipeline->arena, key, value, nowhere, nowhere);
    return set ? OK : fail_oom();
}

status pipeline_options(const struct pipeline_stage *stage, struct options *options, void *values) {
    assert(stage->kind);
    status result = options_init(options, &stage->kind->options, values);
    for (const struct pipeline_key *key = stage->keys.first; key && result == OK; key = key->next)
        result = options_set(options, key->name, key->value);
    if (result == OK) result = options_check(options);
    return result == OK ? OK : fail_prefix(result, "%s", stage->name);
}
