// Internal to shared/text: the tokenizer's fields, which tokenizer_open.c reads from a model directory.
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/json.h"
#include "shared/text/bpe.h"
#include "shared/text/pre_tokenizer.h"
#include "shared/text/tokenizer.h"

// ---- added tokens ----

// Added tokens are found in the text as a whole, before it is split into words. Special tokens are among them.
//
// There are two sets, as in Hugging Face: tokens that match the text as it is, and tokens that match it normalized.
// Within a set the leftmost match counts, and of several at the same position the longest.

struct added_token_flags {
    bool single_word; // does not match inside a word
    bool lstrip;      // takes the white space before it
    bool rstrip;      // takes the white space after it
    bool normalized;  // matches the normalized text
    bool special;
};

struct added_token {
    const char *content; // in the vocabulary's memory
    size_t size;
    int32_t id;
    struct added_token_flags flags;
};

struct added_tokens {
    struct added_token *tokens; // in the order in which they were read
    size_t count;
    bool starts[256];           // a token starts with this byte
    struct regex *word, *space; // one character of a word, one of white space
};

// Returns the token with this content, NULL if there is none.
struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size);

// ---- the tokenizer ----

// The post_processor of tokenizer.json: which special tokens stand around a text, or around two texts. A template is a
// list of ids, in which these stand for the tokens of the texts.
enum { POST_PROCESSOR_FIRST = -1, POST_PROCESSOR_SECOND = -2 };

// A zeroed struct adds no tokens: a second text follows the first one.
struct post_processor {
    bool is_template; // TemplateProcessing
    struct token_list single, pair;
};

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
