// config.json of a ModernBERT directory: an encoder, with a masked-LM head or with a classifier. Both layouts give the
// same struct: global_attn_every_n_layers and two theta keys, or layer_types and rope_parameters. Fields are named as
// their keys.
#ifndef SHARED_MODEL_CLASSIFIER_CONFIG_H
#define SHARED_MODEL_CLASSIFIER_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

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

// Parses the text of a config.json; `name` is used in messages. DATAERR names the key.
status classifier_config_parse(struct classifier_config *config, const char *text, size_t size, const char *name);

// DATAERR names the key unless the labels have one that says consistent.
status classifier_config_check_labels(const struct classifier_config *config, const char *dir);

#endif
