// What the two files of the generator share: places where completions are decoded, and requests.
//
// One deep cache holds a region for each place's own rows, then an area in which each request at work has a region for
// its prompt. Every region starts at a multiple of 16 rows.
#ifndef SHARED_MODEL_GENERATE_H
#define SHARED_MODEL_GENERATE_H

#include "shared/model/inside.h"

typedef struct request {
    struct request *next;
    arena memory; // results, and the prompt's copy while it waits
    void *tag;
    model_prompt prompt; // while it waits
    int count;           // completions
    int max_new_tokens;
    sampling sampling;
    uint64_t key;
    int64_t first_row, rows; // the prompt's region
    int64_t prompt_rows;
    int32_t position; // of the first token of a completion
    generated *results;
    int placed, finished; // completions
} request;

typedef struct place {
    request *request; // NULL: free
    int completion;
} place;

struct generator {
    model *model;
    generator_options options;
    int64_t own_rows;  // of each place
    int64_t area_rows; // for prompts, after the places' rows
    cache *cache;
    place *places;    // options.rows
    request *working; // prefilled, not finished, oldest first
    request *waiting; // not prefilled: one at most
    request *done, *handed;
};

// Prefills a request's prompt into its region and draws the first token of each completion.
status generator_prefill(generator *generator, request *request, const model_prompt *prompt);

// Decodes one token for each place at work.
status generator_decode(generator *generator);

#endif
