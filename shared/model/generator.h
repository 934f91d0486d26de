// What the two files of the generator share: places where completions are decoded, and requests.
//
// One deep cache holds a region for each place's own rows, then an area in which each request at work has a region for
// its prompt. Every region starts at a multiple of 16 rows.
#ifndef SHARED_MODEL_GENERATE_H
#define SHARED_MODEL_GENERATE_H

#include "shared/model/model_internal.h"

struct request {
    struct request *next;
    struct arena memory; // results, and the prompt's copy while it waits
    void *tag;
    struct model_prompt prompt; // while it waits
    int count;                  // completions
    int max_new_tokens;
    struct sampling sampling;
    uint64_t key;
    int64_t first_row, rows; // the prompt's region
    int64_t prompt_rows;
    int32_t position; // of the first token of a completion
    struct generated *results;
    int placed, finished; // completions
};

struct place {
    struct request *request; // NULL: free
    int completion;
};

struct generator {
    struct model *model;
    struct generator_options options;
    int64_t own_rows;  // of each place
    int64_t area_rows; // for prompts, after the places' rows
    struct kv_cache *cache;
    struct place *places;    // options.rows
    struct request *working; // prefilled, not finished, oldest first
    struct request *waiting; // not prefilled: one at most
    struct request *done, *handed;
};

// Prefills a request's prompt into its region and draws the first token of each completion.
status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt);

// Decodes one token for each place at work.
status generator_decode(struct generator *generator);

#endif
