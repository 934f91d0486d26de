// The tokenizer's parts, for the files that build and use it.
#ifndef SHARED_TEXT_TOKENIZER_INTERNAL_H
#define SHARED_TEXT_TOKENIZER_INTERNAL_H

#include <pthread.h>

#include "shared/text/added_tokens.h"
#include "shared/base/json.h"
#include "shared/text/bpe.h"
#include "shared/text/normalize.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/tokenizer.h"
#include "shared/text/vocab.h"

struct tokenizer {
    struct vocab vocab;
    size_t model_count; // tokens of the model's own vocabulary
    struct bpe bpe;
    struct added_tokens added;
    enum normalize_form form;
    struct pre_tokenizer pre_tokenizer;
    bool plain_byte_level; // pre_tokenizer is ByteLevel alone: tokenizer_config.json decides on its add_prefix_space
    struct buf normal;     // the normalised piece under way
    pthread_mutex_t lock;  // over everything that encoding changes
    bool locked;           // the lock exists
};

// Reads a parsed tokenizer.json: model, added tokens, normalizer, pre_tokenizer. DATAERR with the key and what is
// wrong.
status load_tokenizer_json(struct tokenizer *t, struct json_object *json);

// Reads vocab.json and merges.txt of a folder; normalizer and pattern are Qwen2's. DATAERR with the file.
status load_vocab_files(struct tokenizer *t, const char *folder);

// Reads tokenizer_config.json if the folder has one: added tokens and which of them are special. DATAERR with the file.
status load_tokenizer_config(struct tokenizer *t, const char *folder);

// Declares an added token. Its id is the one its name has; a new name gets the next id, which must be `expected`
// unless that is -1. DATAERR when it is not.
status added_token_declare(struct tokenizer *t, const char *content, size_t size, struct added_token_flags flags,
                           int64_t expected);

// Reads the flags and the content of an added token's JSON object; `content` lives as long as `json`.
status added_token_parse(struct json_object *json, const char **content, size_t *size, struct added_token_flags *flags);

// Builds a tokenizer from a parsed tokenizer.json alone, without asking for the template's tokens.
status tokenizer_from_json(struct tokenizer **out, struct json_object *json);

#endif
