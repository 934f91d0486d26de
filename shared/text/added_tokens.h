// Added tokens: those that are found in the text as a whole, before any word is split (special tokens among them).
//
// Two sets, as in Hugging Face: tokens that match the text as it came, and those that match it normalised. Within a
// set the leftmost match counts, and of several at one place the longest.
#ifndef SHARED_TEXT_ADDED_TOKENS_H
#define SHARED_TEXT_ADDED_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/text/normalize.h"
#include "shared/text/regex.h"

struct added_token_flags {
    bool single_word; // not inside a word
    bool lstrip;      // takes the white space before it
    bool rstrip;      // and after it
    bool normalized;  // matches the normalised text
    bool special;
};

struct added_token {
    const char *content;
    size_t size;
    int32_t id;
    struct added_token_flags flags;
};

struct added_token_set {
    const struct added_token **tokens; // in the order of their bytes
    size_t count;
    uint32_t first[257]; // by first byte: tokens first[b] to first[b + 1]
};

// A zeroed struct has no tokens.
struct added_tokens {
    struct arena memory;
    struct added_token *tokens; // as declared
    size_t count;
    size_t room;
    struct added_token_set raw, normalized;
    struct regex *word, *space;
};

// Frees all of it and leaves an empty one.
void added_tokens_release(struct added_tokens *a);

// Declares a token; one that is there with this content gets the new flags, but stays special if it was.
status added_tokens_add(struct added_tokens *a, const char *content, size_t size, int32_t id,
                        struct added_token_flags flags);

// The token with that content, NULL if there is none.
const struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size);

// Sorts the tokens into their sets once all are declared; those that match normalised text are normalised themselves.
status added_tokens_build(struct added_tokens *a, enum normalize_form form);

struct added_token_match {
    size_t start, end; // what the token takes, stripped white space included
    size_t resume;     // where the search goes on
    int32_t id;
};

// The next token of the set in text[from..size); `taken` is where the last match's white space ended. Sets *found.
status added_tokens_next(const struct added_tokens *a, const struct added_token_set *set, const char *text, size_t size,
                         size_t from, size_t taken, bool *found, struct added_token_match *match);

#endif
