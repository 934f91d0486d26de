// The Porter stemmer in the variant that NLTK uses by default and rouge_score with it.
#ifndef SHARED_REWARD_PORTER_H
#define SHARED_REWARD_PORTER_H

#include <stddef.h>

// Stems word[0..size), ASCII lower-case letters and digits, in place. Returns the new size, which is at most `size`.
size_t porter_stem(char *word, size_t size);

#endif
