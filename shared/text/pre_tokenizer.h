// Splits text into words, which are merged one by one: the pre_tokenizer of tokenizer.json as a sequence of steps, the
// last of which is ByteLevel.
#ifndef SHARED_TEXT_PRE_TOKENIZER_H
#define SHARED_TEXT_PRE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/regex.h"

enum { PRE_TOKENIZER_STEPS = 8 };

// Qwen2's pattern, which a model directory without tokenizer.json implies.
extern const char pre_tokenizer_qwen2[];

// GPT-2's pattern, which a ByteLevel step implies.
extern const char pre_tokenizer_gpt2[];

// What a Split step does with its matches and with the text between them.
enum split_behavior {
    SPLIT_ISOLATED,       // both become words
    SPLIT_REMOVED,        // the matches are dropped
    SPLIT_REMOVED_INVERT, // the text between the matches is dropped
};

struct pre_tokenizer_step {
    struct regex *regex; // NULL: words stay whole
    enum split_behavior behavior;
    bool add_prefix_space; // put a space before a word that does not start with one
    struct buf prefixed;
};

// A zeroed struct has no steps: the text is one word.
struct pre_tokenizer {
    struct pre_tokenizer_step steps[PRE_TOKENIZER_STEPS];
    size_t count;
};

// Frees the memory and leaves an empty pre-tokenizer.
void pre_tokenizer_release(struct pre_tokenizer *p);

// Adds a Split step. DATAERR when `pattern` is not a regular expression or there are too many steps.
status pre_tokenizer_add_split(struct pre_tokenizer *p, const char *pattern, size_t size, enum split_behavior behavior);

// Adds the ByteLevel step; with `use_regex` it splits by GPT-2's pattern. DATAERR when there are too many steps.
status pre_tokenizer_add_byte_level(struct pre_tokenizer *p, bool add_prefix_space, bool use_regex);

// Calls on_word(context, word, size) for each word of well-formed text[0..size) in order, until a call fails. No word
// is empty, and each is valid during its call only. Returns the failure. Not for several threads at once.
status pre_tokenizer_run(struct pre_tokenizer *p, const char *text, size_t size,
                         status (*on_word)(void *context, const char *word, size_t size), void *context);

#endif
