// A model that is talked to: found by the name that a user gives, with the frames, the chat template and the sampler of
// the pipeline. What a prompt is made of lies in a group, as in a run. caravan ask and caravan serve are built on it.
#pragma once

#include <pthread.h>

#include "shared/config/pipeline.h"
#include "shared/data/format.h"
#include "shared/group/group.h"
#include "shared/model/model.h"
#include "shared/stage/stage_model.h"
#include "tools/tools.h"

// ---- runs ----

// Whether a directory is a run's: it has a pipeline file. `arena` is for a path.
bool chat_is_run(struct arena *arena, const char *name);

// Reads the pipeline file of a run. DATAERR or USAGE with its first mistake. Free it with pipeline_free.
status chat_read_run(struct pipeline **out, struct arena *arena, const char *run);

// ---- the model ----

// What `caravan ask` and `caravan serve` take: the first member of their options.
struct chat_options {
    const char *device, *precision;
    struct string_list frames;
    int64_t threads, max_new_tokens, max_prompt_tokens;
};

// The rows of these.
#define CHAT_OPTIONS                                                                                                   \
    TOOL_OPTION(chat_options, max_new_tokens, OPTION_INT, "maximum tokens of an answer (default: the run's, or 768)",  \
                .low = 1, .high = 1 << 24),                                                                            \
        TOOL_OPTION(chat_options, max_prompt_tokens, OPTION_INT, "maximum tokens of a prompt",                         \
                    .default_value = "16384", .low = 1, .high = 1 << 24),                                              \
        TOOL_OPTION(chat_options, frames, OPTION_STRING,                                                               \
                    "key=value of the frames stage, such as fps=4; may be repeated (default: as the run has them)",    \
                    .repeatable = true),                                                                               \
        TOOL_OPTION(chat_options, device, OPTION_DEVICE, "cpu, cuda or cuda:N (default: cuda if available)"),          \
        TOOL_OPTION(chat_options, threads, OPTION_INT, "threads (default: all)", .low = 1, .high = 4096),              \
        TOOL_OPTION(chat_options, precision, OPTION_NAME,                                                              \
                    "type of the computation (default: float32 on the CPU, bfloat16 on CUDA)",                         \
                    .choices = "float32|bfloat16")

struct chat {
    struct arena arena;
    struct pipeline *pipeline; // of the run; NULL: the model is no run's
    const char *dir;           // of the model
    struct options frames;     // of the frames stage; fills given.frames
    struct stage_model_options given;
    struct stage_model *model;
    struct generator *generator;
    int rows; // of the generator
    int64_t max_new_tokens, max_prompt_tokens;
    pthread_mutex_t lock;             // over what follows
    const struct chat_prompt *prompt; // the one whose frames are looked for
};

// Opens the model of `name`: a model directory, one of adapters, which names its model, or a run's directory, of which
// it is the last checkpoint, and in an evaluation the model that was evaluated. `settings`: another run's directory,
// whose settings count where `name` is no run's; NULL: none. `rows`: the most answers that are decoded side by side.
// Says on standard error if the model was never trained. USAGE, DATAERR or UNAVAILABLE. Close it with chat_close in any
// case.
status chat_open(struct chat **out, const char *name, const char *settings, const struct chat_options *given, int rows);

// Makes the generator again, which was freed.
status chat_new_generator(struct chat *chat);

// NULL is fine; sets *chat to NULL.
void chat_close(struct chat **chat);

// Returns the options of a stage of the run, NULL if the model is no run's or the run has no such stage.
const void *chat_stage_options(const struct chat *chat, const char *stage);

// ---- prompts ----

// The id of a group that is made here: random numbers are those of rng_key(seed, CHAT_GROUP_ID), as a rollout's of a
// group with this id.
#define CHAT_GROUP_ID "chat"

struct chat_frames {
    char key[FRAME_KEY_SIZE];
    struct buf record;
};

struct chat_prompt {
    struct group *group;
    struct chat_frames *frames; // one for each medium that was decoded
    size_t frames_count;
    struct string *data; // the media that are no files, in base64
    size_t data_count;
    bool inside;              // only files below the media root are opened
    struct stage_input input; // what chat_prepare has made
};

// Makes an empty prompt. Release it with chat_prompt_release.
void chat_prompt_init(struct chat_prompt *prompt);

// Frees the frames and forgets the data. The prompt can be added, but not be prepared again.
void chat_prompt_drop_media(struct chat_prompt *prompt);

// Frees the group and the frames.
void chat_prompt_release(struct chat_prompt *prompt);

// Adds a message of `count` parts, and returns these: chat_set_text or chat_set_medium fills each. Pointers to parts of
// other messages stay valid. All messages of the prompt must have been added so.
struct part *chat_add_message(struct chat_prompt *prompt, const char *role, size_t count);

// Makes the part a text.
void chat_set_text(struct chat_prompt *prompt, struct part *part, const char *text, size_t size);

// Makes the part an image or a clip.
void chat_set_medium(struct chat_prompt *prompt, struct part *part, bool video, const char *path);

// The same of a file's content in base64, a text that must stay as long as the prompt. It is decoded by chat_prepare.
void chat_set_data(struct chat_prompt *prompt, struct part *part, bool video, struct string base64);

// Appends what a text of base64, with its padding, stands for. Returns whether it is one.
bool chat_decode_base64(struct string text, struct buf *out);

// Decodes the media of the prompt that were not decoded yet, and makes its tokens. BAD_SAMPLE, with the path of the
// medium, when it cannot be read, and when the prompt is too long; DATAERR. Several threads may call it, each with a
// prompt of its own, while another one generates.
status chat_prepare(struct chat *chat, struct chat_prompt *prompt);

// Adds a request with the prompt to the generator, once after chat_prepare. `request` is all but the prompt; a
// temperature below 1e-30 is taken as 0. Failures as generator_add.
status chat_add(struct chat *chat, struct chat_prompt *prompt, const struct generate_request *request);

// ---- texts of answers ----

// The text of an answer while its tokens come. A zeroed struct is empty.
struct chat_text {
    struct buf text; // as far as no other token can change it
    struct tokenizer_rest rest;
    size_t sent;  // bytes of `text` that were returned
    bool stopped; // `text` ends before one of the stops
};

// Adds a token. Returns the next part of the text, valid until the next call: as far as no other token can change it,
// and as far as it is not the beginning of one of the stops; with one of them, the text ends before it and `stopped` is
// set.
struct string chat_text_add(struct chat_text *text, const struct tokenizer *tokenizer, int64_t token,
                            const struct string *stops, size_t stop_count);

// No token follows. Returns the rest of the text, up to one of the stops; `text` has all of it then.
struct string chat_text_end(struct chat_text *text, const struct tokenizer *tokenizer, const struct string *stops,
                            size_t stop_count);

// Frees it.
void chat_text_release(struct chat_text *text);
