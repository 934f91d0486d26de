// Where the texts of a completion's tokens end.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/group/group.h"
#include "shared/text/tokenizer.h"

// Sets cuts[i] to where the text of token i ends, in UTF-16 units of the completion's text. A token without text (a
// special one, or one with only a part of a character) ends where the one before it does; a character belongs to the
// token that has its last byte. Returns false if the completion has no tokens or no text, or if its tokens do not give
// its text; the cuts then mean nothing.
bool token_cuts_find(const struct tokenizer *tokenizer, const struct completion *completion, int64_t *cuts);
