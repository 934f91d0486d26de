// A pipeline while it is being read: what was written, where, and every mistake in it.
#ifndef SHARED_CONFIG_DRAFT_H
#define SHARED_CONFIG_DRAFT_H

#include "shared/config/document.h"
#include "shared/config/pipeline.h"

// One key as it was written.
typedef struct draft_key {
    struct draft_key *next;
    const char *name, *value;
    place name_place, value_place; // line 0: from the command line
} draft_key;

typedef struct draft_keys {
    draft_key *first;
} draft_keys;

typedef struct draft_stage {
    const char *name;
    place place;
    const key_table *table;
    bool is_program;
    draft_keys keys; // with from, replicas, on, program
} draft_stage;

typedef struct draft_machine {
    const char *name;
    place place;
    draft_keys keys;
} draft_machine;

typedef struct mistake {
    place place;
    const char *text;
} mistake;

typedef struct draft {
    pipeline *pipeline; // the result, and the arena of all texts
    const char *path;
    const char *folder;
    const char *current; // folder, that paths of --set start from
    draft_keys top;
    place stages_place, machines_place; // line 0: not there
    draft_stage *stages;
    size_t stage_count;
    draft_machine *machines;
    size_t machine_count;
    mistake *mistakes;
    size_t mistake_count, mistake_room;
    bool short_of_memory;
} draft;

// Notes a mistake at a place. Reading goes on.
void draft_mistake(draft *draft, place place, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The key of that name, NULL if it was not written.
draft_key *draft_find(const draft_keys *keys, const char *name);

// Sets or replaces one. NULL when memory is short.
draft_key *draft_set(draft *draft, draft_keys *keys, const char *name, const char *value, place name_place,
                     place value_place);

// Fills the draft from the file's tree: forms alone, no meaning.
void draft_parse(draft *draft, document *document);

// Puts "stage.key=value" on top.
void draft_override(draft *draft, const char *set);

// Checks the meaning and makes the pipeline of it; whatever is wrong becomes a mistake.
void draft_resolve(draft *draft);

#endif
