// What the two files of the generator share: requests, and the slots in which completions are decoded.
//
// One cache with all layers holds first the cache rows of every slot, for generated tokens, and then the prompt area,
// where each running request has a region for its prompt. Every region starts at a multiple of BRANCH_ALIGNMENT. A
// generator that continues completions has no cache rows for slots: its request's region is the packed sequence of the
// prompt and the completions, with room behind each branch.
#ifndef SHARED_MODEL_GENERATOR_H
#define SHARED_MODEL_GENERATOR_H

#include "shared/model/qwen_vl/model_internal.h"

// A completion that is continued.
struct branch {
    int64_t cache_begin;
    size_t prefix_count;   // tokens of its prefix
    const int64_t *inputs; // the last tokens of the prefix, whose keys and values are not in the cache yet
    size_t input_count;    // 0: the completion is not continued
    size_t computed;       // of these
};

struct request {
    struct request *next;
    struct arena arena; // results, and the prompt's copy while the request waits
    void *tag;
    struct model_prompt prompt; // while the request waits
    int count;                  // completions
    int max_new_tokens;
    struct sampling sampling;
    uint64_t key;
    status (*stop)(void *tag, int completion, int64_t token, bool *stop);
    struct branch *branches;         // [count]; NULL: the completions begin behind the prompt
    int64_t cache_begin, cache_rows; // the prompt's region
    int64_t prompt_rows;
    int32_t next_position; // of the first token of a completion
    struct generated *results;
    int scheduled, finished; // completions that have or had a slot; completions that are complete
};

struct generator_slot {
    struct request *request; // NULL: free
    int completion;
    bool set;           // the decode batch has the completion
    int64_t first_step; // of the batch that counts for the slot
};

// A step as a graph, on a backend that records. It refers to the weights, the cache and the angles by their place.
struct step_graph {
    struct graph *graph;      // NULL: not recorded yet
    bool computed;            // a step has been computed with these:
    int64_t weights_replaced; // of the model, then
    int64_t positions;        // of the table of angles, which grows, then
};

struct generator {
    struct model *model;
    struct generator_options options;
    struct kv_cache *cache;
    int64_t cache_rows_per_slot; // for its generated tokens
    int64_t prompt_area_rows;
    int32_t *eos_ids; // [model->info.eos_count]
    struct decode_batch *batch;
    int64_t asked, read;          // steps of the batch that were asked for, and of these those that were read
    int64_t versions[2];          // the weights of the last two steps; of step i: versions[i % 2]
    struct generator_slot *slots; // [options.rows]
    int32_t *tokens;              // [options.rows]: what a step drew
    float *logprobs;              // [options.rows]
    struct workspace workspace;   // of a step
    struct step_graph graph;
    struct request *running;  // prefilled and not finished, the oldest first
    struct request *waiting;  // not prefilled; one at most
    struct request *finished; // not returned yet
    struct request *returned; // by the last generator_pop
};

// *out = a request without a region. USAGE: a setting is out of range. The caller frees it.
status generator_request_new(struct generator *generator, const struct generate_request *from, struct request **out);

// Whether a completion needs no more tokens.
bool request_is_complete(const struct request *request, int completion);

// Frees a list of requests and sets it to NULL.
void generator_free_requests(struct request **list);

// *cache_begin = the first of the cache rows in which a request's prompt can be computed now; -1: there are none. If
// nothing is running, a new cache is made if the request does not fit: with room for as many requests like this one as
// can be decoded side by side, or for the one that is continued.
status generator_find_cache_rows(struct generator *generator, const struct request *request, int64_t *cache_begin);

// Lets a computed request run: gives its completions slots.
void generator_run(struct generator *generator, struct request *request);

// Returns the cache rows of a generator whose requests have `count` completions and prompts of prompt_rows cache rows.
// *prompt_area_rows = those of the prompt area.
int64_t generator_cache_rows(int64_t slots, int64_t rows_per_slot, int64_t count, int64_t prompt_rows,
                             int64_t *prompt_area_rows);

// Prefills a request's prompt into its region and samples the first token of each completion. BAD_SAMPLE as in
// model_check; UNAVAILABLE when memory is short.
status generator_prefill(struct generator *generator, struct request *request, const struct model_prompt *prompt);

// Frees the graph of a step, if there is one. The next step is computed.
void generator_drop_graph(struct generator *generator);

// Asks the backend for one token for each slot with a request, and reads the step before, or this one if the backend is
// not asynchronous. UNAVAILABLE when memory is short.
status generator_decode(struct generator *generator);

#endif
