// What attention and its gradient know before they see a layer: the spans of one pass, divided into tiles of query
// rows.
#ifndef KERNELS_CPU_ATTENTION_PLAN_H
#define KERNELS_CPU_ATTENTION_PLAN_H

#include "kernels/cpu/q_tile.h"

// The tiles of one key/value head; the other heads have the same ones.
struct q_tile_list {
    struct q_tile_start *starts;
    int count;
    int max_rows; // of a tile; any number gives the same bits
};

struct attention_plan {
    struct heads heads;
    struct attention_span *spans;
    size_t span_count;
    bool texts;                 // no span is causal or has a prefix
    int64_t rows;               // of the query
    int64_t kv_begin, kv_end;   // the cache rows that the spans name lie in between
    int64_t columns;            // of a row of scores
    struct tensor cache_slots;  // none: there is no gradient
    struct q_tile_list forward; // the tiles of attention
    struct q_tile_list grad;    // the tiles of attention_grad; empty if there is no gradient
};

#endif
