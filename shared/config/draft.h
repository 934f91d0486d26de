// A pipeline while it is being read: what was written, where, and every mistake in it.
#ifndef SHARED_CONFIG_DRAFT_H
#define SHARED_CONFIG_DRAFT_H

#include "shared/config/document.h"
#include "shared/config/pipeline.h"

// One key as it was written.
struct draft_key {
    struct draft_key *next;
    const char *name, *value;
    struct place name_place, value_place; // line 0: from the command line
};

struct draft_keys {
    struct draft_key *first;
};

struct draft_stage {
    const char *name;
    struct place place;
    const struct option_table *table;
    bool is_program;
    struct draft_keys keys; // with from, replicas, on, program
};

struct draft_machine {
    const char *name;
    struct place place;
    struct draft_keys keys;
};

struct mistake {
    struct place place;
    const char *text;
};

struct draft {
    struct pipeline *pipeline; // the result, and the arena of all texts
    const char *path;
    const char *folder;
    const char *current; // folder, that paths of --set start from
    struct draft_keys top;
    struct place stages_place, machines_place; // line 0: not there
    struct draft_stage *stages;
    size_t stage_count;
    struct draft_machine *machines;
    size_t machine_count;
    struct mistake *mistakes;
    size_t mistake_count, mistake_room;
    bool short_of_memory;
};

// Notes a mistake at a place. Reading goes on.
void draft_mistake(struct draft *draft, struct place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// The key of that name, NULL if it was not written.
struct draft_key *draft_find(const struct draft_keys *keys, const char *name);

// Sets or replaces one. NULL when memory is short.
struct draft_key *draft_set(struct draft *draft, struct draft_keys *keys, const char *name, const char *value,
                            struct place name_place, struct place value_place);

// Fills the draft from the file's tree: forms alone, no meaning.
void draft_parse(struct draft *draft, struct document *document);

// Puts "stage.key=value" on top.
void draft_override(struct draft *draft, const char *set);

// Checks the meaning and makes the pipeline of it; whatever is wrong becomes a mistake.
void draft_resolve(struct draft *draft);

#endif
