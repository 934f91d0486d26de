// What the two files of the generator share: requests, and the batch rows in which completions are decoded.
//
// One cache with all layers holds first the cache rows of every batch row, for generated tokens, and then the prompt
// area, where each running request has a region for its prompt. Every region starts at a multiple of BRANCH_ALIGNMENT.
#ifndef SHARED_MODEL_GENERATOR_H
#define SHARED_MODEL_GENERATOR_H

#include "shared/model/model_internal.h"

struct request {
    struct request *next;
    struct arena arena; // results, and the prompt's copy while the request waits
    void *tag;
    struct model_prompt prompt; // while the request waits
    int count;                  // completions
    int max_new_tokens;
    struct sampling sampling;
    uint64_t key;
    int64_t cache_begin, cache_rows; // the prompt's region
    int64_t prompt_rows;
    int32_t next_position; // of the first token of a completion
    struct generated *results;
    int scheduled, finished; // completions that have or had a batch row; completions that are complete
};

struct batch_row {
    struct request *request; // NULL: free
    int completion;
};

struct generator {
    struct model *model;
    struct generator_options options;
    struct kv_cache *cache;
    int64_t cache_rows_per_row; // for the generated tokens of each batch row
    int64_t prompt_area_rows;
    struct batch_row *batch;  // [options.rows]
    struct request *running;  // prefilled and not finished, the oldest first
    struct request *waiting;  // not prefilled; one at most
    struct request *finished; // not returned yet
    struct request *returned; // by the last generator_pop
};

// Prefills a request's prompt into its region and samples the first token of each completion. BAD_SAMPLE as in
// model_check; UNAVAILABLE when memory is short.
status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt);

// Decodes one token for each batch row with a request. UNAVAILABLE when memory is short.
status generator_decode(struct generator *generator);

#endif
