// Porter's stemmer with the departures from his 1980 paper that NLTK makes by default, which ROUGE scores are made
// with.
#ifndef SHARED_REWARD_PORTER_H
#define SHARED_REWARD_PORTER_H

#include <stddef.h>

// Stems word[0..size), ASCII lower-case letters and digits, in place; returns the new size, never more than `size`.
size_t porter_stem(char *word, size_t size);

#endif
