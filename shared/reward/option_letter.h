// The option that an answer to a multiple choice question chooses, by its letter or by its text.
#ifndef SHARED_REWARD_OPTION_LETTER_H
#define SHARED_REWARD_OPTION_LETTER_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/string.h"
#include "shared/group/group.h"

// Returns whether the code point is part of a word: a letter, a digit, an underscore or a combining mark.
bool is_word_character(int32_t code);

// Returns the letter that the answer begins with, 0 if it begins with none: A to Z, behind at most one ( or [, and not
// followed by a character of a word.
char option_letter(struct string answer);

// Returns the letter of the option that the answer chooses: its own letter, else that of the first option whose text
// is the answer. 0 if it chooses none.
char option_of_answer(struct string answer, const struct string_array *options);

#endif
