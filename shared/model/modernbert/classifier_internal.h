// What the files of the classifier share. Callers include classifier.h only.
#ifndef SHARED_MODEL_CLASSIFIER_INTERNAL_H
#define SHARED_MODEL_CLASSIFIER_INTERNAL_H

#include "shared/model/classifier.h"
#include "shared/model/training_state.h"
#include "shared/model/modernbert/classifier_weights.h"
#include "shared/model/workspace.h"

enum { CLASSIFIER_PASS_ROWS = 8192 }; // most of a scoring pass with several texts; they bound the working memory

struct classifier {
    struct arena arena; // the strings below
    struct backend *backend;
    struct backend_info backend_info;
    const char *dir;
    bool training;
    struct classifier_config config; // in training with the labels that it trains
    struct classifier_parameters *params;
    struct safetensors *store; // training: stays open for its types
    struct classifier_weights *weights;
    struct classifier_info info;
    struct workspace workspace;
    struct rope_angles global_rope, local_rope;
    struct kv_scratch kv;
    struct optimizer optimizer; // training
};

// Makes the optimizer, and draws what the checkpoint lacks as transformers does: classifier.weight from N(0, C^-1/2),
// with PART_HEAD also head.dense.weight from N(0, 0.02 / sqrt(2 L)), both cut at two standard deviations;
// head.norm.weight is 1, biases stay 0. Each number is a function of the seed, the tensor's name and the index.
status classifier_start_training(struct classifier *classifier, enum classifier_part fresh, uint64_t seed);

// Texts in one pass, packed one behind the other: T rows, S texts.
struct classifier_pass {
    struct forward_state fwd;
    struct attention_plan *global_plan, *local_plan;
    size_t texts;
    struct tensor token_ids;      // I32 [T,1]
    struct tensor begins;         // I32 [S+1,1]: the first row of each text, then T
    struct tensor final_norm;     // statistics, F32 [T,2]; of training, as those of the embedding's norm below
    struct tensor embedding_norm; // F32 [T,2]
    struct tensor pooled;         // [S,C]
    struct tensor dense_out;      // [S,C]: of the head's first layer
    struct tensor gelu_out;       // [S,C]
    struct tensor head_norm;      // statistics, F32 [S,2]
    struct tensor head_out;       // [S,C]
    struct tensor logits;         // F32 [S,K]
};

// BAD_SAMPLE: a text is empty or has a token outside the vocabulary.
status classifier_check_texts(const struct classifier *classifier, const struct classifier_text *texts, size_t count);

// Returns how many of the texts, at least one, make a pass of not many more than `rows` rows.
size_t classifier_pass_texts(const struct classifier_text *texts, size_t count, int64_t rows);

// Returns the bytes of working memory that a scoring pass over the rows of so many texts needs.
size_t classifier_pass_bytes(const struct transformer *encoder, enum element type, int64_t rows, int64_t texts,
                             int64_t labels, int64_t chunk_rows);

// *logits [S,K] = the logits of the texts, in the arena, as is the rest of the host's part. What the backward pass
// needs is kept in the workspace if the classifier is training. The caller calls classifier_pass_release, also after a
// failure.
status classifier_forward(struct classifier_pass *pass, struct classifier *classifier, struct arena *arena,
                          const struct classifier_text *texts, size_t count, float **logits);

// Adds the gradients of all parameters, given that of the logits, F32 [S,K] on the host.
status classifier_backward(struct classifier_pass *pass, struct classifier *classifier, const float *grad_logits);

// Frees what is not in the arena, and empties the workspace. A zeroed pass is fine.
void classifier_pass_release(struct classifier_pass *pass, struct classifier *classifier);

#endif
