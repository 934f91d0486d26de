// A ModernBERT directory: an encoder, with a masked-LM head or with a classifier; its config.json, the table of its
// parameters, and these on a backend.
//
// Both layouts of config.json give the same struct: global_attn_every_n_layers and two theta keys, or layer_types and
// rope_parameters. Fields are named as their keys.
//
// Order of the parameters' array: the matrices, then the vectors. Tensors are read with or without "model." in front of
// the encoder's names, and a masked-LM head's decoder is ignored.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/model/transformer.h"
#include "shared/model/weights.h"

enum { MAX_CLASSIFIER_LAYERS = 1024, MAX_LABELS = 4096, DEFAULT_CLASSIFIER_VOCAB_SIZE = 50368 };

struct classifier_config {
    int64_t vocab_size, hidden_size, intermediate_size;
    int num_hidden_layers, num_attention_heads, head_dim;
    float norm_eps;
    bool norm_bias, attention_bias, mlp_bias, classifier_bias;
    bool full_attention[MAX_CLASSIFIER_LAYERS]; // of each layer; the others attend within the window
    int64_t window;                             // half of local_attention: to each side
    float global_rope_theta, local_rope_theta;
    bool pools_mean;      // classifier_pooling is mean, not cls
    int64_t pad_token_id; // whose embedding has no gradient; -1: none
    const char *dropout;  // the first key of a dropout other than 0; NULL: none
    int labels;           // K
    bool has_id2label;
    int consistent;     // the index of the label consistent, else entailment; -1: there is none
    bool trains_labels; // the labels are exactly 0 inconsistent, 1 consistent
};

// Reads DIR/config.json. DATAERR names the file and the key.
status classifier_config_read(struct classifier_config *config, const char *dir);

// Reads the config.json that `model` stands for (named_shape_read). DATAERR names the key.
status classifier_config_read_shape(struct classifier_config *config, const char *model);

// Reads the object of a config.json; `name` is used in messages. DATAERR names the key.
status classifier_config_fill(struct classifier_config *config, struct json *root, const char *name);

// DATAERR names the key unless the labels have one that says consistent.
status classifier_config_check_labels(const struct classifier_config *config, const char *dir);

// ---- weights ----

// The parameters, and their values on a backend once they are loaded.
struct classifier_weights {
    struct weights base;
    const struct classifier_config *config;
    struct fused_param embedding, dense, classifier;
    struct fused_param embedding_norm, final_norm, dense_bias, head_norm, classifier_bias;
    struct fused_param embedding_norm_bias, final_norm_bias, head_norm_bias;
    struct transformer encoder;
};

// What a checkpoint lacks and training begins with fresh values.
enum classifier_part {
    PART_NONE,
    PART_CLASSIFIER, // of a masked-LM checkpoint, or one with other labels, whose classifier is ignored
    PART_HEAD,       // the head too: of an encoder alone
};

// Makes the table for a configuration with its labels; a file may lack the fresh part. The configuration must outlive
// the weights, which must stay where they are. The caller releases the base. DATAERR when the model is too large for 64
// bits: then there is nothing to release.
status classifier_weights_init(struct classifier_weights *weights, const struct classifier_config *config,
                               enum classifier_part fresh);
