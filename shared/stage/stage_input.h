// What the stages with a model make of a group: the prompt's tokens, its frames, the completions' tokens.
#ifndef SHARED_STAGE_STAGE_INPUT_H
#define SHARED_STAGE_STAGE_INPUT_H

#include <stddef.h>
#include <stdint.h>

#include "shared/group/group.h"
#include "shared/model/model.h"
#include "shared/stage/stage.h"
#include "shared/text/tokenizer.h"

// A tokenizer and the way to frames; one a process.
struct input_builder;

// Reads the tokenizer of the folder in key `model`, opens the store in key `store`. Free with input_builder_free.
status input_builder_new(struct input_builder **out, struct stage_context *context);

// NULL is fine; sets *inputs to NULL.
void input_builder_free(struct input_builder **inputs);

// The tokenizer, valid as long as the inputs.
const struct tokenizer *input_builder_tokenizer(const struct input_builder *inputs);

// What the model says of itself, for checks and for the token that ends a given text ("finish": "eos": its first
// end-of-sequence token). Before the first stage_input_open; `facts` must outlive the inputs.
void input_builder_set_model(struct input_builder *inputs, const struct model_info *facts);

enum input_parts {
    INPUT_PROMPT = 0,
    INPUT_COMPLETIONS = 1, // the completions' tokens too; one that has only a text is tokenized
};

// One group, ready for the model. Zeroed it is empty.
struct stage_input {
    struct model_prompt prompt;
    struct int_array *completions; // a count for each completion of the group
    struct input_memory *memory;
};

// Fills `input` from the group: uses its prompt_tokens, or makes them (and puts them into the group); finds its frames.
// DATAERR "not a group: ..." when it lacks what is needed, BAD_SAMPLE when its medium cannot be had or does not fit.
// `input` is to be released in any case, before the group is freed.
status stage_input_open(struct input_builder *inputs, struct group *group, enum input_parts parts,
                        struct stage_input *input);

// Gives the frames back; a zeroed input is fine.
void stage_input_release(struct stage_input *input);

#endif
