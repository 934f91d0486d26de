// Internal to shared/text: the tokenizer's fields, for the files that read them from a model directory.
#ifndef SHARED_TEXT_TOKENIZER_INTERNAL_H
#define SHARED_TEXT_TOKENIZER_INTERNAL_H

#include <pthread.h>

#include "shared/base/json.h"
#include "shared/text/added_tokens.h"
#include "shared/text/bpe.h"
#include "shared/text/normalize.h"
#include "shared/text/post_processor.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/tokenizer.h"
#include "shared/text/vocab.h"

// What encoding changes, so that the tokenizer itself is constant once it has been read.
struct tokenizer_encoder {
    pthread_mutex_t lock; // over all of it
    struct bpe bpe;
    struct pre_tokenizer pre_tokenizer;
    struct buf normalized;
};

struct tokenizer {
    struct vocab vocab;
    size_t model_count; // tokens of the model's own vocabulary
    struct added_tokens added;
    enum normalize_form form;
    struct post_processor post_processor;
    bool byte_level_only; // pre_tokenizer is ByteLevel alone: add_prefix_space of tokenizer_config.json counts
    bool clean_up_spaces; // clean_up_tokenization_spaces of tokenizer_config.json
    struct tokenizer_encoder *encoder;
};

// Builds a tokenizer from a parsed tokenizer.json alone. DATAERR with the key and the error. Free with tokenizer_free.
status tokenizer_from_json(struct tokenizer **out, struct json *json);

// Reads a parsed tokenizer.json: model, added_tokens, normalizer, pre_tokenizer, post_processor. DATAERR with the key
// and the error.
status tokenizer_read_json(struct tokenizer *t, struct json *json);

// Reads vocab.json and merges.txt of a directory; normalizer and pattern are Qwen2's. DATAERR with the file.
status tokenizer_read_vocab_files(struct tokenizer *t, const char *dir);

// Reads tokenizer_config.json if the directory has one: added tokens and which of them are special. DATAERR with the
// file.
status tokenizer_read_config(struct tokenizer *t, const char *dir);

// Reads added_tokens of tokenizer.json. DATAERR with the index and the error.
status tokenizer_read_added_tokens(struct tokenizer *t, struct json *list);

#endif
