// What the files of the model share. Callers see model.h alone.
#ifndef SHARED_MODEL_INSIDE_H
#define SHARED_MODEL_INSIDE_H

#include "shared/model/workspace.h"
#include "shared/model/model.h"
#include "shared/model/sequence.h"
#include "shared/model/transformer.h"
#include "shared/model/weights.h"

struct trainer;

// A cache that grows with what is asked of it.
struct kv_scratch {
    struct kv_cache *cache;
    int64_t rows;
};

struct model {
    struct arena arena;
    struct backend *backend;
    struct model_options options;
    const char *dir;
    struct model_config config;
    struct parameter_table *table;
    struct safetensors *store; // training: kept open, for its names, types and first values
    struct weights *weights;
    struct model_info facts;
    int64_t version;
    struct workspace workspace;
    struct kv_scratch text_kv, vision_kv; // one layer each, for scoring and training
    struct trainer *trainer;              // NULL unless training
};

// At least `rows` rows of one layer in the shelf.
status kv_scratch_reserve(struct kv_scratch *kv_scratch, struct backend *backend, int64_t rows, struct heads heads);

#endif
