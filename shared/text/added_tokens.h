// Added tokens: tokens that are found in the text as a whole, before it is split into words. Special tokens are among
// them.
//
// There are two sets, as in Hugging Face: tokens that match the text as it is, and tokens that match it normalized.
// Within a set the leftmost match counts, and of several at the same position the longest.
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
    bool single_word; // does not match inside a word
    bool lstrip;      // takes the white space before it
    bool rstrip;      // takes the white space after it
    bool normalized;  // matches the normalized text
    bool special;
};

struct added_token {
    const char *content;
    size_t size;
    int32_t id;
    struct added_token_flags flags;
};

struct added_token_set {
    const struct added_token **tokens; // sorted by content
    size_t count;
    uint32_t first[257]; // tokens whose first byte is b are first[b] to first[b + 1] - 1
};

// A zeroed struct has no tokens.
struct added_tokens {
    struct arena memory;
    struct added_token *tokens; // in the order of added_tokens_add
    size_t count;
    size_t capacity;
    struct added_token_set raw, normalized;
    struct regex *word, *space; // one character of a word, one of white space
};

// Frees the memory and leaves an empty struct.
void added_tokens_release(struct added_tokens *a);

// Adds a token. A token whose content is there already gets the new flags, but stays special if it was.
void added_tokens_add(struct added_tokens *a, const char *content, size_t size, int32_t id,
                      struct added_token_flags flags);

// Returns the token with this content, NULL if there is none. The next added_tokens_add invalidates the pointer.
const struct added_token *added_tokens_find(const struct added_tokens *a, const char *content, size_t size);

// Sorts the tokens into their sets, once, after all have been added. Normalizes those that match normalized text.
status added_tokens_build(struct added_tokens *a, enum normalize_form form);

struct added_token_match {
    size_t start, end; // of the match with the white space that it takes
    size_t resume;     // where the search continues
    int32_t id;
};

// Finds the next token of the set in text[from..size): sets *found, and *match if it is true. `taken` is the end of the
// last match, which a match that takes white space does not overlap. DATAERR as in regex_find.
status added_tokens_next(const struct added_tokens *a, const struct added_token_set *set, const char *text, size_t size,
                         size_t from, size_t taken, bool *found, struct added_token_match *match);

#endif
