// What the stages with a model share: the input that they make of a group, and a model with optim's weights. No tensors
// here.
#ifndef SHARED_STAGE_STAGE_MODEL_H
#define SHARED_STAGE_STAGE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "shared/group/group.h"
#include "shared/model/model.h"
#include "shared/stage/stage.h"
#include "shared/text/tokenizer.h"

// Makes inputs: has the tokenizer and finds frames. One per process.
struct input_builder;

// Reads the tokenizer of the option `model`'s directory and opens the store of the option `store`. Free with
// input_builder_free. DATAERR or UNAVAILABLE when they cannot be opened.
status input_builder_new(struct input_builder **out, struct stage_context *context);

// NULL is fine; sets *builder to NULL.
void input_builder_free(struct input_builder **builder);

// The tokenizer, valid as long as the builder.
const struct tokenizer *input_builder_tokenizer(const struct input_builder *builder);

// Sets what the model says about itself: its vocabulary, its image sizes, and its first end-of-sequence token, which
// ends a text with "finish": "eos". Before the first stage_input_open; `info` must outlive the builder.
void input_builder_set_model(struct input_builder *builder, const struct model_info *info);

enum input_parts {
    INPUT_PROMPT = 0,
    INPUT_COMPLETIONS = 1, // the completions' tokens too; a completion that has only a text is tokenized
};

// One group, ready for the model. A zeroed struct is empty.
struct stage_input {
    struct model_prompt prompt;
    struct int_array *completions; // the tokens of each completion of the group
    struct input_memory *memory;
};

// Fills `input` from the group: uses its prompt_tokens, or makes them and puts them into the group; finds its frames.
// DATAERR "not a group: ..." when it lacks what is needed, BAD_SAMPLE when its medium cannot be read or does not fit.
// Release `input` in any case, before the group is freed.
status stage_input_open(struct input_builder *builder, struct group *group, enum input_parts parts,
                        struct stage_input *input);

// Releases the frames; a zeroed input is fine.
void stage_input_release(struct stage_input *input);

// A model with its inputs, whose weights optim may train. The state of a stage that uses one begins with it and is on
// the heap, so that stage_model_hash, stage_model_load, stage_model_return, stage_model_intact and stage_model_close
// can be the stage's `fingerprint`, `load_weights`, `return_weights`, `weights_intact` and `close`.
struct stage_model {
    struct input_builder *input;
    struct model *model;
    uint64_t hash; // of the weights in use; 0: there are none
};

// Opens the tokenizer, the store and the model that the stage's options name. If the stage follows optim, the model has
// no weights before the first group: optim says which, and may lend its own. USAGE, DATAERR or UNAVAILABLE as
// input_builder_new and model_open. Close in any case.
status stage_model_open(struct stage_model *model, struct stage_context *context);

// Returns the hash of the weights in use; `model` is a struct stage_model.
uint64_t stage_model_hash(void *model);

// Loads other weights into the struct stage_model, between two groups; weights without a path are those of the model's
// directory, which are needed again when optim began anew. On failure (that of model_swap or model_reset) the old ones
// stay in use.
status stage_model_load(void *model, const struct stage_weights *weights);

// Gives back lent weights, as model_return_weights.
status stage_model_return(void *model);

// Whether the weights are still those that were loaded, as model_weights_intact.
bool stage_model_intact(void *model);

// Closes what stage_model_open has opened, and frees the stage's state. NULL is fine. Always OK.
status stage_model_close(void *state);

#endif
