// What the stages with a model share: where frames come from (the store, the frames stage, or the file, decoded with
// the options of the frames stage of the run), the input that they make of a group, and a model with optim's weights.
// No tensors here.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shared/config/stage_options.h"
#include "shared/group/group.h"
#include "shared/media/media.h"
#include "shared/model/model.h"
#include "shared/stage/stage.h"
#include "shared/text/tokenizer.h"

// ---- frames ----

// Returns how the frames stage with these options samples, or USAGE when two of them contradict each other.
status stage_media_sampling(struct sampling_config *sampling, const struct frames_options *options);

struct stage_media;

// Opens the store of the option `store`, or `frames_store` for reading only, if one is given. Frames are decoded with
// the options of the run's frames stage, the member `frames` of the stage's options. USAGE, DATAERR or UNAVAILABLE when
// two of these contradict each other or the store cannot be opened. Close in any case.
status stage_media_open(struct stage_media **out, struct stage_context *context);

// NULL is fine; sets *media to NULL.
void stage_media_close(struct stage_media **media);

// ---- inputs ----

// Makes inputs. A zeroed struct is empty.
struct input_builder {
    struct tokenizer *tokenizer;
    struct stage_media *media;
    // What the model says about itself: its vocabulary, its image sizes, and its first end-of-sequence token, which
    // ends a text with "finish": "eos". The stage sets it before the first stage_input_open.
    const struct model_info *info;
    size_t max_prompt_tokens; // a prompt whose text has more is not tokenized to its end: BAD_SAMPLE; 0: any number
};

// Reads the tokenizer of the option `model`'s directory and opens the frames. DATAERR or UNAVAILABLE when they cannot
// be opened. Close in any case.
status input_builder_open(struct input_builder *builder, struct stage_context *context);

// Closes them.
void input_builder_close(struct input_builder *builder);

enum input_parts {
    INPUT_PROMPT = 0,
    INPUT_COMPLETIONS = 1, // the completions' tokens too; a completion that has only a text is tokenized
};

// One group, ready for the model. A zeroed struct is empty.
struct stage_input {
    struct model_prompt prompt;
    struct int_array *completions; // the tokens of each completion of the group
    struct arena arena;            // of what is not the group's
    struct frames_view *views;
    size_t view_count;
};

// Fills `input` from the group: uses its prompt_tokens, or makes them and puts them into the group; finds its frames.
// DATAERR "not a group: ..." when it lacks what is needed, BAD_SAMPLE when its medium cannot be read or does not fit.
// Release `input` in any case, before the group is freed.
status stage_input_open(struct input_builder *builder, struct group *group, enum input_parts parts,
                        struct stage_input *input);

// Puts the results of a generator into the group, as its completions.
void stage_input_set_completions(const struct input_builder *builder, struct group *group,
                                 const struct generated *generated, int count);

// Releases the frames; a zeroed input is fine.
void stage_input_release(struct stage_input *input);

// ---- the model ----

// A model with its inputs, whose weights optim may train. The state of a stage that uses one begins with it and is on
// the heap, so that stage_model_hash, stage_model_load, stage_model_return, stage_model_intact and stage_model_close
// can be the stage's `fingerprint`, `load_weights`, `return_weights`, `weights_intact` and `close`.
struct stage_model {
    struct input_builder input;
    struct model *model;
    struct generator *generator; // the stage's own, closed with the model; NULL: none
    uint64_t hash;               // of the weights in use; 0: there are none
};

// Opens the tokenizer, the store and the model that the stage's options name. If the stage follows optim, the model has
// no weights before the first group: optim says which, and may lend its own. With the option `weights`, as `caravan
// replay` gives it, the weights are those of that file. USAGE, DATAERR or UNAVAILABLE as
// input_builder_open and model_open. Close in any case.
status stage_model_open(struct stage_model *model, struct stage_context *context);

// The same for a program that is no stage, with options that live as long. Frames come from the store of the options,
// from `request`, as that of a media_source, or from the file. `model` is on the heap; stage_model_close frees it.
status stage_model_open_alone(struct stage_model *model, const struct stage_model_options *options,
                              status (*request)(void *context, const char *key, struct buf *record, bool *found),
                              void *context);

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
