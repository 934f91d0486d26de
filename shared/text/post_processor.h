// The post_processor of tokenizer.json: which special tokens stand around a text, or around two texts.
#ifndef SHARED_TEXT_POST_PROCESSOR_H
#define SHARED_TEXT_POST_PROCESSOR_H

#include <stdbool.h>

#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/text/token_list.h"
#include "shared/text/vocab.h"

// A template is a list of ids, in which these stand for the tokens of the texts.
enum { POST_PROCESSOR_FIRST = -1, POST_PROCESSOR_SECOND = -2 };

// A zeroed struct adds no tokens: a second text follows the first one.
struct post_processor {
    bool is_template; // TemplateProcessing
    struct token_list single, pair;
};

// Frees the memory and leaves an empty struct.
void post_processor_release(struct post_processor *p);

// Reads a post_processor: ByteLevel, which adds no tokens, TemplateProcessing, or a Sequence of these with one template
// at most. DATAERR with the key and the error, also for a special token whose id is not in the vocabulary.
status post_processor_read(struct post_processor *p, struct json *json, const struct vocab *v);

// Appends the tokens of the first text, or of both unless `second` is NULL, with the special tokens.
void post_processor_run(const struct post_processor *p, const struct token_list *first, const struct token_list *second,
                        struct token_list *out);

#endif
