// A text classifier: a ModernBERT encoder, pooling, and a head that says which of its labels a text has. Open a model
// directory, score, accumulate gradients, step, save.
// Callers never see a tensor. A classifier lives on one backend and belongs to one thread. Every function that returns
// a status returns UNAVAILABLE when memory is short or a file cannot be read or written.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/model/model.h" // optimizer_options, memory_item

struct classifier;

struct classifier_options {
    const char *device;    // NULL: the best one
    int threads;           // 0: all
    const char *precision; // "float32", "bfloat16"; NULL: the device's default, bfloat16 on a GPU
    bool training; // for classifier_accumulate and what follows: the float32 weights are kept, nothing is packed
    uint64_t seed; // training: of the parts that the directory lacks
};

// Tokens with their special ones, [CLS] first.
struct classifier_text {
    const int64_t *tokens;
    size_t count; // 1 at least
};

struct classifier_info {
    int64_t vocab_size;
    int labels;
    int consistent;        // the index of the label consistent, else entailment
    const char *precision; // the one in use
    uint64_t parameter_count;
};

// Opens a model directory. DATAERR names the file and what is wrong with it; USAGE: an unknown precision or device;
// UNAVAILABLE: no such device, or memory is short.
//
// Training needs no classifier in the directory: an encoder or a masked-LM model, or a classifier whose labels are not
// exactly 0 inconsistent and 1 consistent, gets a fresh one with these labels, and an encoder also gets a head. DATAERR
// if there is dropout, which training does not have.
status classifier_open(struct classifier **out, const char *dir, const struct classifier_options *options);

// Checks the files of a model directory as classifier_open does for scoring, but reads no weights and opens no device.
// *vocab_size is the configuration's. DATAERR as in classifier_open.
status classifier_check_files(const char *dir, int64_t *vocab_size);

// Computes from a configuration alone what scoring needs of its device's memory, the CPU's if `on_cpu`: out[0..*count),
// at most MEMORY_ITEMS. `model` is as in model_memory_needs. A text has at most text_tokens tokens, and those of one
// classifier_score at most `tokens`. `precision`: NULL is bfloat16. The memory of the driver is not included. DATAERR
// as in classifier_open.
status classifier_memory_needs(const char *model, const char *precision, bool on_cpu, int64_t text_tokens,
                               int64_t tokens, struct memory_item *out, size_t *count);

// NULL is fine; sets *classifier to NULL.
void classifier_free(struct classifier **classifier);

// Lives as long as the classifier.
const struct classifier_info *classifier_get_info(const struct classifier *classifier);

// *hash = a hash of the configuration and of the weights as they are used (names, shapes, bits), the same in every
// process. The first call after a step reads all weights; later calls return the same hash at once.
status classifier_hash(struct classifier *classifier, uint64_t *hash);

// probabilities[i] = softmax(logits)[consistent] of text i, the same bits alone or among others. BAD_SAMPLE: a text is
// empty or has a token outside the vocabulary; nothing is computed then. DATAERR: the logits are not finite.
status classifier_score(struct classifier *classifier, const struct classifier_text *texts, size_t count,
                        double *probabilities);

// ---- training; BUG unless the classifier was opened for it ----

// Adds the gradient of weight * the sum of the texts' cross entropies to the gradients; *loss += that sum, unweighted.
// labels[i] is 0 or 1. BAD_SAMPLE and DATAERR as in classifier_score.
status classifier_accumulate(struct classifier *classifier, const struct classifier_text *texts, const int *labels,
                             size_t count, double weight, double *loss);

// One AdamW step with all gradients since the last step, after clipping; then zeroes them. *norm = their norm before
// clipping; DATAERR if it is not finite.
status classifier_step(struct classifier *classifier, const struct optimizer_options *options, double *norm);

// Writes the gradients so far (before clipping), float32, to a safetensors file.
status classifier_save_grads(struct classifier *classifier, const char *path);

// Writes a model directory that transformers opens as ModernBertForSequenceClassification, in the types of the opened
// one; the tokenizer and the rest are copied.
status classifier_save(struct classifier *classifier, const char *dir);

// Writes the training state (float32 weights, moments, step) into `dir`, which must exist.
status classifier_save_state(struct classifier *classifier, const char *dir);

// Reads the training state from `dir`. DATAERR names what is missing or does not fit.
status classifier_load_state(struct classifier *classifier, const char *dir);
