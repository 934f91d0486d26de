// Splitting text into words before merging: the pre_tokenizer of tokenizer.json as a row of steps, the byte-level one
// last.
#ifndef SHARED_TEXT_PRE_TOKENIZER_H
#define SHARED_TEXT_PRE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/regex.h"

enum { PRE_TOKENIZER_STEPS = 8 };

// Qwen2's pattern, which folders without a tokenizer.json mean.
extern const char pre_tokenizer_qwen2[];

// What becomes of a step's matches and of the text between them.
enum split_behavior { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_REMOVED_INVERT };

struct pre_tokenizer_step {
    struct regex *pattern; // NULL: pieces stay whole
    enum split_behavior rule;
    bool prefix_space; // a space is put before a piece that has none
    struct buf spaced;
};

// A zeroed struct has no steps: the text is one word.
struct pre_tokenizer {
    struct pre_tokenizer_step steps[PRE_TOKENIZER_STEPS];
    size_t count;
};

// Frees all of it and leaves an empty one.
void pre_tokenizer_release(struct pre_tokenizer *s);

// Adds a step that makes each match of the regular expression a piece of its own, and so the text between two, unless
// `rule` drops it. DATAERR when it is no regular expression or there are too many steps.
status pre_tokenizer_add_split(struct pre_tokenizer *s, const char *regex, size_t size, enum split_behavior rule);

// Adds the byte-level step: a space before each piece if `prefix_space`, GPT-2's pattern if `gpt2_pattern`.
status pre_tokenizer_add_byte_level(struct pre_tokenizer *s, bool prefix_space, bool gpt2_pattern);

// Calls take(context, word, size) for each word of text[0..size), in order, none of them empty, until one fails.
status pre_tokenizer_run(struct pre_tokenizer *s, const char *text, size_t size,
                         status (*take)(void *context, const char *word, size_t size), void *context);

#endif
