// What the files of the model share. Callers see model.h alone.
#ifndef SHARED_MODEL_INSIDE_H
#define SHARED_MODEL_INSIDE_H

#include "shared/model/desk.h"
#include "shared/model/model.h"
#include "shared/model/sequence.h"
#include "shared/model/tower.h"
#include "shared/model/weights.h"

struct trainer;

// A cache that grows with what is asked of it.
struct shelf {
    struct cache *cache;
    int64_t rows;
};

struct model {
    struct arena texts;
    struct backend *backend;
    struct model_options options;
    const char *folder;
    struct model_config config;
    struct parameter_table *table;
    struct safetensors *store; // training: kept open, for its names, types and first values
    struct weights *weights;
    struct model_facts facts;
    int64_t version;
    struct desk desk;
    struct shelf text_shelf, vision_shelf; // one layer each, for scoring and training
    struct trainer *trainer;               // NULL unless training
};

// At least `rows` rows of one layer in the shelf.
status shelf_fit(struct shelf *shelf, struct backend *backend, int64_t rows, struct heads heads);

#endif
