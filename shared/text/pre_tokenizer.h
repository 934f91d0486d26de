// From text to words, which are merged one by one: the normalizer of tokenizer.json, and its pre_tokenizer as a
// sequence of steps, the last of which is ByteLevel.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum { MAX_PRE_TOKENIZER_STEPS = 8 };

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
    struct pre_tokenizer_step steps[MAX_PRE_TOKENIZER_STEPS];
    size_t count;
};

// Frees the memory and leaves an empty pre-tokenizer.
void pre_tokenizer_release(struct pre_tokenizer *p);

// Adds a step that splits words by `pattern`; NULL: they stay whole. DATAERR when it is not a regular expression or
// there are too many steps.
status pre_tokenizer_add(struct pre_tokenizer *p, const char *pattern, size_t size, enum split_behavior behavior,
                         bool add_prefix_space);

// Calls on_word(context, word, size) for each word of well-formed text[0..size) in order, until a call fails. No word
// is empty, and each is valid during its call only. Returns the failure. Not for several threads at once.
status pre_tokenizer_run(struct pre_tokenizer *p, const char *text, size_t size,
                         status (*on_word)(void *context, const char *word, size_t size), void *context);

// ---- normalize ----

// A form of Unicode.
enum normalize_form { NORMALIZE_NONE, NORMALIZE_NFC, NORMALIZE_NFD, NORMALIZE_NFKC, NORMALIZE_NFKD };

// Sets *out and *out_size to the well-formed text[0..size) in that form: to the text itself if it is ASCII, else to the
// contents of `buffer`, which the next call overwrites.
status normalize_text(enum normalize_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                      size_t *out_size);

// ---- regex ----

// A regular expression over UTF-8: PCRE2 with JIT, with the meaning that Oniguruma gives to the tokenizers' patterns:
// \s and \S are Unicode's White_Space, ^ and $ match at line ends. Not for several threads at once.
struct regex;

// Compiles `pattern`. DATAERR with the offset and the reason when it is not a regular expression. Free with regex_free.
status regex_new(struct regex **out, const char *pattern, size_t size);

// NULL is fine; sets *r to NULL.
void regex_free(struct regex **r);

// Prepares the regex for the characters of a text. Call it before the first regex_find in a text.
void regex_prepare(struct regex *r, const char *text, size_t size);

// Finds the first match at or after `from` in well-formed text: sets *found, and *start and *end if it is true. DATAERR
// when the match needs too much memory or time on this text.
status regex_find(struct regex *r, const char *text, size_t size, size_t from, bool *found, size_t *start, size_t *end);
