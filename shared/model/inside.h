// What the files of the model share. Callers see model.h alone.
#ifndef SHARED_MODEL_INSIDE_H
#define SHARED_MODEL_INSIDE_H

#include "shared/model/desk.h"
#include "shared/model/model.h"
#include "shared/model/sequence.h"
#include "shared/model/tower.h"
#include "shared/model/weights.h"

typedef struct trainer trainer;

// A cache that grows with what is asked of it.
typedef struct shelf {
    cache *cache;
    int64_t rows;
} shelf;

struct model {
    arena texts;
    backend *backend;
    model_options options;
    const char *folder;
    model_config config;
    parameter_table *table;
    safetensors *store; // training: kept open, for its names, types and first values
    weights *weights;
    model_facts facts;
    int64_t version;
    desk desk;
    shelf text_shelf, vision_shelf; // one layer each, for scoring and training
    trainer *trainer;               // NULL unless training
};

// At least `rows` rows of one layer in the shelf.
status shelf_fit(shelf *shelf, backend *backend, int64_t rows, heads heads);

#endif
