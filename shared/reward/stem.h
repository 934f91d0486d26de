// Porter's stemmer with the departures from his 1980 paper that NLTK makes by default, which ROUGE scores are made
// with.
#ifndef SHARED_REWARD_STEM_H
#define SHARED_REWARD_STEM_H

#include <stddef.h>

// Stems word[0..size), ASCII lower-case letters and digits, in place; returns the new size, never more than `size`.
size_t stem_word(char *word, size_t size);

#endif
