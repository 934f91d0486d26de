// Qwen2.5-VL and Qwen2-VL: open a model directory, generate, score, accumulate gradients, step, save.
// Callers never see a tensor. A model lives on one backend and belongs to one thread. Every function that returns a
// status returns UNAVAILABLE when memory is short or a file cannot be read or written.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

struct model;
struct ranks; // shared/base/ranks.h

enum { MAX_LORA = 4096 };

struct model_options {
    const char *device;    // NULL: the best one
    int threads;           // 0: all
    const char *precision; // "float32", "bfloat16"; NULL: the device's default, bfloat16 on a GPU
    const char *gradient_precision, *moment_precision; // training: of matrices, likewise; those of vectors are float32
    const char *sum_precision; // training: of the sums of the matrices' gradients; NULL: that of the gradients
    bool training;             // for model_accumulate and model_step: the float32 weights are kept, nothing is packed
    bool train_vision;         // training: the vision tower too
    bool ema;                  // training: a reference is kept, a moving average that starts as the opened weights
    // training: what each layer of the language model keeps of its forward pass, which need not be computed again then:
    // 0 its input, 1 also its attention, 2 also its MLP; -1: as much as the device's memory allows, on the CPU 0. The
    // results are the same.
    int kept_activations;
    // The rank of the adapters (LoRA) of the language model, 0: none; and alpha, 0: the rank. Then they alone are
    // trained, and have versions: what is swapped, published, lent and kept as state are theirs, and the reference is
    // the weights of the directory, the base, with other adapters. New ones, which change nothing, come from lora_seed.
    int64_t lora;
    double lora_alpha;
    uint64_t lora_seed;
    // A directory of PEFT's with adapters instead of new ones; lora and lora_alpha are 0 or what it says. NULL: none.
    const char *adapter;
    // The weights come with the first model_swap, model_reset or model_load_stored: until then none are loaded, and
    // nothing that needs them may be called. Those of the directory are only checked for being there. Not for training.
    bool no_weights;
    // training: the ranks that train this model together (see "training" below); NULL, or one: this process alone. The
    // caller frees them after the model, and uses them only between calls in which all ranks take part.
    struct ranks *ranks;
};

// What a model needs of the memory of its device, by item. `training`, `train_vision`, `ema` and the precisions are as
// in model_options; without training, the model scores, or generates.
struct memory_request {
    const char *precision, *gradient_precision, *moment_precision; // NULL: bfloat16
    const char *sum_precision;                                     // NULL: that of the gradients
    bool training, train_vision, ema, generates;
    bool on_cpu;                                   // the device is the CPU, not a GPU
    int threads;                                   // on the CPU: 1 or more
    int64_t medium_patches;                        // on the CPU: of the largest image or pair of frames
    bool borrows;                                  // its weights are in the memory of the process that trains
    bool borrows_base;                             // the base of adapters is there
    int64_t prompt_tokens, group_size, new_tokens; // of the largest group
    int64_t parts;                                 // training: in which a group is computed one after another; 0 is 1
    int64_t continued_tokens; // scoring: what generator_continue writes behind a completion at most
    int ranks;                // training: that train together, of which the needs are those of one; 0 is 1
    int64_t lora;             // the rank of the adapters; 0: none
};

// An item of what a model needs of its device's memory.
struct memory_item {
    const char *name;
    uint64_t bytes;
};

enum { MEMORY_ITEMS = 12 };

// Computes the items from a configuration alone: out[0..*count), at most MEMORY_ITEMS. `model` is a model directory, a
// config.json, or the name of a shape (model_shapes.h). The memory that the driver, or on the CPU the program itself,
// takes is not included. DATAERR as in model_open.
status model_memory_needs(const char *model, const struct memory_request *request, struct memory_item *out,
                          size_t *count);

// *rank = that of the adapters which these options (lora, lora_alpha, adapter) give a model, 0: none. `model` is as in
// model_memory_needs. USAGE as model_open; DATAERR when the directory `adapter` cannot be read or is another model's.
status model_check_adapter(const char *model, const struct model_options *options, int64_t *rank);

// DATAERR, which says what to do, if a directory has adapters, as PEFT writes them, where a model is wanted; OK for any
// other one.
status model_check_dir(const char *dir);

// *base, in the arena = the model directory that a directory of adapters names as its own; NULL if `dir` is no such
// directory. DATAERR when that is not there.
status model_find_base(const char **base, struct arena *arena, const char *dir);

// The sizes of files that a model in training writes.
struct model_file_bytes {
    uint64_t model, state; // of a checkpoint: the model directory's weights, and the training state
    uint64_t published;    // the weights that other stages read
};

// Computes the sizes from a configuration alone, as model_memory_needs; the headers of the files are not included. The
// model directory's weights count with the type that the configuration names, else with that of the products.
status model_disk_needs(const char *model, const struct memory_request *request, struct model_file_bytes *out);

// The values of the configuration that callers need.
struct model_info {
    int64_t vocab_size, image_token_id, video_token_id, vision_start_token_id, vision_end_token_id;
    const int64_t *eos_ids; // eos_token_id of generation_config.json, else of config.json
    size_t eos_count;
    int patch_size, spatial_merge_size, temporal_patch_size; // 14, 2, 2
    const char *precision;                                   // the one in use
    const char *device_kind;                                 // "cpu", or the name of the GPU
    const char *product_library; // that computes large products, with its version; NULL: the device's own kernels do
    uint64_t parameter_count;
};

// Opens a model directory. DATAERR names the file and what is wrong with it; USAGE: an unknown device or precision;
// UNAVAILABLE: no such device, or memory is short.
status model_open(struct model **out, const char *dir, const struct model_options *options);

// NULL is fine; sets *model to NULL.
void model_free(struct model **model);

// Lives as long as the model.
const struct model_info *model_get_info(const struct model *model);

// *hash = a hash of the configuration and of the weights as they are used (names, shapes, bits). It is the same in
// every process, and part of the key under which results computed with these weights are stored. The first call
// after a step reads all weights; later calls return the same hash at once.
status model_hash(struct model *model, uint64_t *hash);

// *hash = a hash of the configuration and of the weights as they stand in the directory's files, and of the adapters at
// version 0: the same with every precision. Reads all weights. DATAERR when the files cannot be read any more.
status model_hash_files(const struct model *model, uint64_t *hash);

// Returns a hash of which tensors stand in which files of the opened directory, and in which types. model_save of
// several ranks needs the same one on all of them.
uint64_t model_files_layout(const struct model *model);

// The version of the weights (0 after model_open).
int64_t model_version(const struct model *model);

// Replaces all weights with those of `path`, a file that model_publish or model_lend wrote. Their hash must be `hash`:
// otherwise DATAERR, and the old weights stay in use. After UNAVAILABLE the model can only be freed. BUG for a model in
// training, here and in model_reset.
//
// Lent weights are borrowed or copied on the device; the base of adapters is borrowed in any case, and takes the place
// of an own one. A file, and model_reset, leave a borrowed base in use. DATAERR when the process of lent weights is
// gone or they are another model's; BAD_SAMPLE when they are changing or are another version by now: the model is then
// not to be used before the next model_swap.
status model_swap(struct model *model, const char *path, int64_t version, uint64_t hash);

// Whether the weights are still those of the last model_swap. Borrowed weights change when the process that lent them
// takes a step: a result counts only if this holds after it was computed.
bool model_weights_intact(const struct model *model);

// Gives back memory that was borrowed, and copies of it: the model has no weights then, and can only be given others or
// be freed. Its generators must be freed first. Does nothing when the weights are the model's own.
void model_return_weights(struct model *model);

// Goes back to the weights of the directory, with the adapters that it was opened with, version 0. Their hash must be
// `hash`: otherwise DATAERR, and the present weights stay in use.
status model_reset(struct model *model, uint64_t hash);

// Replaces all weights with those of a file, whatever their hash is: one that model_publish wrote (`prefix` ""), or the
// tensors of a training state (training.safetensors) behind "master." or "reference.". They are converted to the type
// in use. DATAERR when the file does not have exactly the model's parameters; the old weights stay in use then. After
// UNAVAILABLE the model can only be freed. BUG for a model in training.
status model_load_stored(struct model *model, const char *path, const char *prefix, int64_t version);

// One image or clip of a prompt, in the order of the placeholders in its tokens.
struct model_medium {
    bool video;
    int frames, height, width;
    double seconds_per_grid; // of a clip
    const uint8_t *pixels;   // [frames, height, width, 3], read during the call
};

struct model_prompt {
    const int64_t *tokens; // one placeholder token a vision token
    size_t count;
    const struct model_medium *media;
    size_t media_count;
};

struct model_completion {
    const int64_t *tokens;
    size_t count; // 1 at least
};

// BAD_SAMPLE, with the reason, if tokens and media do not match, a token is outside the vocabulary or a completion is
// empty. Computes nothing else.
status model_check(const struct model *model, const struct model_prompt *prompt,
                   const struct model_completion *completions, size_t count);

// Tokens of a completion: those from `first` up to and without `end`.
struct token_range {
    size_t first, end;
};

// logprobs[i][t], arrays of the caller, = the log-probability of token t of completion i, given the prompt and the
// tokens before it in its completion. The prompt is computed once. With `wanted`, only the tokens wanted[i] of
// completion i are scored, and the others' log-probabilities stay as they are. BAD_SAMPLE as in model_check.
status model_score(struct model *model, const struct model_prompt *prompt, const struct model_completion *completions,
                   size_t count, const struct token_range *wanted, float *const *logprobs);

// Writes a model directory like `dir` to `to`, another directory, with the products of an adapter (model_options) added
// to its matrices, in float32 and rounded once to the type in which they are stored. Computes on the CPU with so many
// threads; 0: all. After a failure `to` has no weights. USAGE when `to` already has weights or an adapter; DATAERR when
// the files do not fit each other or a sum is not finite; UNAVAILABLE when memory is short or the file system refuses.
status model_merge(const char *dir, const char *adapter, const char *to, int threads);

// ---- generation: several groups side by side ----

struct generator;

enum { GENERATOR_ROWS = 64, MAX_GENERATOR_ROWS = 256 };

struct generator_options {
    int rows;           // the most completions that are decoded side by side (0: GENERATOR_ROWS)
    int max_new_tokens; // of any request
    bool continues;     // for generator_continue, and not for generator_add
};

struct generate_request {
    struct model_prompt prompt;
    int count; // completions
    float temperature, top_p;
    int top_k, max_new_tokens;
    uint64_t key; // each random number is a function of (key, completion, position)
    void *tag;    // returned with the result
    // Is called with each new token of a completion, but not with an end-of-sequence token: *stop = whether the
    // completion ends with it. NULL: only those tokens and max_new_tokens end it.
    status (*stop)(void *tag, int completion, int64_t token, bool *stop);
};

// What a completion is continued behind: its first `kept` tokens, and then `tokens` in place of its others. Without any
// it is not continued.
struct completion_prefix {
    size_t kept;
    const int64_t *tokens;
    size_t count;
};

struct generated {
    int64_t *tokens; // the end-of-sequence token is last if there was one
    float *logprobs; // at temperature 1, over the whole vocabulary
    int64_t *versions;
    size_t count;
    bool ended;   // with an end-of-sequence token
    bool stopped; // by the request's `stop`
};

// Makes a generator over a model, to be freed before the model. USAGE: max_new_tokens is not positive, or rows is above
// MAX_GENERATOR_ROWS.
status generator_new(struct generator **out, struct model *model, const struct generator_options *options);

// NULL is fine; sets *generator to NULL.
void generator_free(struct generator **generator);

// Whether another request may be added now: every completion of the earlier requests has a row, and no request waits.
bool generator_can_add(const struct generator *generator);

// Adds a request: prefills its prompt now, or lets it wait inside until its prompt fits. At most one waits (BUG
// otherwise). USAGE: a setting is out of range; BAD_SAMPLE as in model_check, for completions of max_new_tokens.
status generator_add(struct generator *generator, const struct generate_request *request);

// Computes the log-probabilities of model_score and, in the same pass, the prefix of each completion; then adds a
// request that continues them. Its count is that of the completions, and its results have the new tokens alone, whose
// positions count on from the prefix. No other request may run (BUG otherwise). USAGE and BAD_SAMPLE as generator_add.
status generator_continue(struct generator *generator, const struct generate_request *request,
                          const struct model_completion *completions, const struct completion_prefix *prefixes,
                          const struct token_range *wanted, float *const *logprobs);

// Decodes one token for each row with a completion. Finished requests are kept for generator_pop.
status generator_step(struct generator *generator);

// Whether a request is running or waiting.
bool generator_busy(const struct generator *generator);

// Returns the completions of one finished request in order, with its tag. They are valid until the next call of
// generator_pop or generator_free. NULL when no request is finished.
const struct generated *generator_pop(struct generator *generator, void **tag, int *count);

// ---- training ----

// Ranks that train a model together have the same bits as one process that adds the same leaves in the same order: turn
// after turn, and in a turn in the order of the ranks. Each has the whole policy and reference; the work on what else
// training keeps is divided between them. All of them call model_open, model_turn, model_step, model_update_ema,
// model_save, model_save_state and model_load_state, in the same order and with the same arguments, and wait for each
// other there. Every other function is of one rank alone. A failure is final for all: another rank gets UNAVAILABLE,
// which names the one that is missing, and then the model can only be freed.

// A completion and what the loss needs of it.
struct train_completion {
    struct model_completion completion;
    double advantage;
    const float *old_logprobs; // under the policy that sampled it; NULL: on-policy
    const float *ref_logprobs; // under the reference, for the KL term; NULL: no KL term
    bool stale;                // the clipped surrogate applies
    bool kl_excluded;          // the KL term of this completion counts 0
    bool has_answer;           // `answer` is set
    struct token_range answer; // the tokens of the answer, for kl_separate
};

struct loss_options {
    double kl_beta;
    double clip_low, clip_high;
    size_t group_size; // completions of the group, of which those that are given may be a part; 0: they are all
    bool kl_separate; // a completion's KL term is its mean over the thinking tokens and its mean over the answer tokens
    double token_weight; // the weight of each token's loss; 0: the mean over completions of the mean over their tokens
};

struct train_result {
    double loss;              // of this group; of a part of one, its share, as in nll
    double nll;               // negative log-likelihood, averaged as the loss is
    double logprob_diff_mean; // mean |log-probability - old_logprobs|, 0 without
    double logprob_diff_max;  // the largest of these
    double kl;                // mean k3 estimate over all tokens, whether the loss counts it or not; 0 without
    double entropy;           // mean over the tokens of minus their log-probability when they were sampled
    int64_t tokens;           // of completions
    int64_t compared;         // those of them that have old_logprobs
    int64_t prompt_tokens;
};

// Begins a turn, in which the ranks below `sources` have a leaf, 1 <= sources <= ranks. One with a leaf calls
// model_accumulate next, once, also for a leaf without gradient; one without takes part inside this call. Does nothing
// without ranks. BUG when sources is out of range, or when the leaf of the turn before is missing.
status model_turn(struct model *model, int sources);

// Adds the gradient of `weight` times the group's loss, or of a part of the group, to the sums of the step: forward,
// loss, backward. The sums depend on the order of the calls in their last bits (step_sums.h). BAD_SAMPLE as in
// model_check; DATAERR: the loss or a log-probability is not finite; BUG unless the model was opened for training, here
// and in all that follow.
status model_accumulate(struct model *model, const struct model_prompt *prompt,
                        const struct train_completion *completions, size_t count, const struct loss_options *loss,
                        double weight, struct train_result *result);

// What a caller says about one step of AdamW.
struct optimizer_options {
    double lr, beta1, beta2, eps, weight_decay;
    double max_grad_norm; // 0: off
};

// One AdamW step with all gradients since the last step, after clipping; then zeroes them. *norm = their norm before
// clipping; DATAERR if it is not finite. The version grows by one.
status model_step(struct model *model, const struct optimizer_options *options, double *norm);

// Writes the gradients so far (before clipping), float32, under the checkpoint's tensor names, to a safetensors file.
// USAGE with ranks: none has all of them.
status model_save_grads(struct model *model, const char *path);

// reference = decay * reference + (1 - decay) * weights, in float32. BUG unless the model was opened with `ema`.
status model_update_ema(struct model *model, double decay);

// Writes a model directory in the layout and types of the opened one (config, tokenizer and the rest are copied); of
// adapters a directory as PEFT writes it, in float32.
status model_save(struct model *model, const char *dir);

// Writes the training state (float32 weights, moments, reference, step, version) into `dir`, which must exist.
status model_save_state(struct model *model, const char *dir);

// Returns the bytes of the tensors that model_save_state writes, and, if `whole`, those of model_save.
uint64_t model_saved_bytes(struct model *model, bool whole);

// Reads the training state from `dir`. USAGE names a tensor that it lacks or has in another type, since the options of
// the model that saved it were others; DATAERR when it is damaged or another model's.
status model_load_state(struct model *model, const char *dir);

// Writes one file with the weights as they are computed with, the policy's or the reference's, for model_swap. *hash is
// their hash.
status model_publish(struct model *model, bool reference, const char *path, uint64_t *hash);

// OK if the model's device can share its weights with other processes: if model_lend works. *has_means: devices of this
// kind can share. UNAVAILABLE says why not.
status model_can_lend(const struct model *model, bool *has_means);

// Like model_publish, but the weights stay where they are: the file at `path` tells processes on this machine and this
// device where. They compute with them in place or, if `copied`, with copies of their own. The first call for the
// policy, or for the reference, writes the file; later ones must have the same arguments. model_step, model_update_ema
// and model_load_state change the weights; from then on until the next call nobody can take them over. Each of several
// ranks on a machine may lend, to processes on its device: with the same path, behind which a rank's file has a number.
status model_lend(struct model *model, bool reference, bool copied, const char *path, uint64_t *hash);
