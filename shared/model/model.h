// Qwen2.5-VL: open a version, prefill a prompt, generate, score, accumulate gradients, step, write.
// Callers never see a tensor. A model lives on one backend and belongs to one thread.
#ifndef SHARED_MODEL_MODEL_H
#define SHARED_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

typedef struct model model;

typedef struct model_options {
    const char *device;    // NULL: the best there is
    int threads;           // 0: all
    const char *precision; // "float32", "bfloat16"; NULL: the device's default
    bool training;         // gradients and a trainer will be wanted: float32 master weights are kept, nothing is packed
    bool train_vision;     // gradients of the vision tower too
    bool reference;        // training: a reference is averaged, from the opened weights on
    bool guarded;          // tests: buffers unreadable outside operations
    const char *scratch;   // a folder for what need not stay in memory (the float32 reference); NULL: /tmp
} model_options;

// What callers may need to know of config.json.
typedef struct model_facts {
    int64_t vocabulary, image_token, video_token, vision_start_token, vision_end_token;
    const int64_t *ends; // end-of-sequence tokens of generation_config.json (else of config.json)
    size_t end_count;
    int patch, merge, time; // 14, 2, 2
    const char *precision;  // the one in use
    uint64_t parameters;
} model_facts;

// Opens a model folder. INPUT names the file and what is wrong with it; USAGE an unknown device or precision; SERVICE
// a missing device or memory.
status model_open(model **out, const char *folder, const model_options *options);

// NULL is fine; sets *model to NULL.
void model_free(model **model);

// Valid as long as the model.
const model_facts *model_about(const model *model);

// A hash over config and weights as they are used (names, shapes, bits), the same in every process; the key under which
// what was computed with these weights is stored. Reads all weights after a step; else it is at hand.
status model_hash(model *model, uint64_t *hash);

// The version that the weights were given (0 after model_open).
int64_t model_version(const model *model);

// Replaces all weights by those of `path` (a safetensors file that model_publish wrote), whose hash must be `hash`. If
// they are not those (INPUT), the old ones stay in use. After SERVICE the model can only be freed.
status model_swap(model *model, const char *path, int64_t version, uint64_t hash);

// Goes back to the weights of the folder, version 0, whose hash must be `hash`.
status model_reset(model *model, uint64_t hash);

// One image or clip of a prompt, in the order of the placeholders in its tokens.
typedef struct model_medium {
    bool video;
    int frames, height, width;
    double seconds_per_grid; // of a clip
    const uint8_t *pixels;   // [frames, height, width, 3], read during the call
} model_medium;

typedef struct model_prompt {
    const int64_t *tokens; // one placeholder token a vision token
    size_t count;
    const model_medium *media;
    size_t media_count;
} model_prompt;

typedef struct model_completion {
    const int64_t *tokens;
    size_t count; // 1 at least
} model_completion;

// Whether the model can read these: DEFECT, with the reason, if tokens and media do not match, a token is outside the
// vocabulary or a completion is empty. Computes nothing.
status model_check(const model *model, const model_prompt *prompt, const model_completion *completions, size_t count);

// Log-probabilities of every token of `count` completions, each given the prompt and what is before it in its own
// completion: logprobs[i][t], arrays of the callers. The prompt is computed once. DEFECT if tokens and media do not
// match, or a token is outside the vocabulary.
status model_score(model *model, const model_prompt *prompt, const model_completion *completions, size_t count,
                   float *const *logprobs);

// ---- generation: several groups side by side ----

typedef struct generator generator;

typedef struct generator_options {
    int rows;           // completions decoded side by side at most (0: 64)
    int max_new_tokens; // of any request
} generator_options;

typedef struct generate_request {
    model_prompt prompt;
    int count; // completions
    float temperature, top_p;
    int top_k, max_new_tokens;
    uint64_t key; // keyed chance: of (key, completion, position)
    void *tag;    // handed back with the result
} generate_request;

typedef struct generated {
    int64_t *tokens; // the end-of-sequence token is last if there was one
    float *logprobs; // at temperature 1, over the whole vocabulary
    int64_t *versions;
    size_t count;
    bool ended; // by an end-of-sequence token
} generated;

// A generator over a model. Free it before the model.
status generator_new(generator **out, model *model, const generator_options *options);

// NULL is fine; sets *generator to NULL.
void generator_free(generator **generator);

// Whether another request may be added now (there are free rows or it would wait inside: at most one waits).
bool generator_room(const generator *generator);

// Prefills a prompt and queues its completions; their places are filled as others finish. DEFECT as in model_score.
status generator_add(generator *generator, const generate_request *request);

// Decodes one token for each row at work. Finished requests are kept for generator_done.
status generator_step(generator *generator);

// Whether anything is at work or waits.
bool generator_busy(const generator *generator);

// Takes one finished request: its tag, and an array of its completions in order, valid until the next call of
// generator_done or generator_free. NULL when none is finished.
const generated *generator_done(generator *generator, void **tag, int *count);

// ---- training ----

// What the loss needs of one completion besides its tokens.
typedef struct train_completion {
    model_completion completion;
    double advantage;
    const float *behaviour; // log-probabilities under the policy that sampled it; NULL: on-policy
    const float *reference; // log-probabilities under the reference, for the KL term; NULL: none
    bool stale;             // the clipped surrogate applies
} train_completion;

typedef struct train_loss {
    double kl; // coefficient beta
    double clip_low, clip_high;
} train_loss;

typedef struct train_result {
    double loss;       // of this group
    double nll;        // mean negative log-likelihood: over completions of the mean over tokens
    double difference; // mean |log-probability - behaviour|, 0 without
    double largest;    // the largest of these
    double kl;         // mean k3 estimate, 0 without
    int64_t tokens;    // of completions
    int64_t prompt_tokens;
} train_result;

typedef struct train_rates {
    double rate, beta1, beta2, epsilon, weight_decay;
    double clip_norm; // 0: off
} train_rates;

// Adds the gradient of `weight` times the group's loss (algorithms: 1.5 and 5) to the gradients: forward, loss,
// backward. The loss is the mean over the group's completions of the mean over its tokens.
status model_accumulate(model *model, const model_prompt *prompt, const train_completion *completions, size_t count,
                        const train_loss *loss, double weight, train_result *result);

// One AdamW step with all gradients since the last, after clipping; zeroes them. *norm is the norm before clipping.
// The version grows by one.
status model_step(model *model, const train_rates *rates, double *norm);

// Writes the gradients so far (before clipping), float32, under the checkpoint's tensor names, to a safetensors file.
status model_write_gradients(model *model, const char *path);

// reference <- decay * reference + (1 - decay) * weights, in float32. It starts as the opened weights, or as what
// model_read_state found. BUG unless the model was opened with `reference`.
status model_average(model *model, double decay);

// Writes a model folder in the layout and types it was opened with (config, tokenizer and the rest are copied).
status model_write_folder(model *model, const char *folder);

// Writes the training state (master weights, moments, reference, step, version) into `folder`, which must exist.
status model_write_state(model *model, const char *folder);

// Reads it back. INPUT names what is missing or does not fit.
status model_read_state(model *model, const char *folder);

// Writes one file with the weights as they are computed with, policy's or reference's, for model_swap; *hash is theirs.
// A model that is not opened for training can publish nothing: its weights are packed.
status model_publish(model *model, bool reference, const char *path, uint64_t *hash);

#endif
