// The byte-level alphabet: each byte as one printable character, in which vocabularies and merges are written.
// Printable Latin-1 bytes stand for themselves; the other 68 are U+0100 onwards, in order.
#ifndef SHARED_TEXT_BYTE_ALPHABET_H
#define SHARED_TEXT_BYTE_ALPHABET_H

#include <stddef.h>

// Writes the character of `byte` as UTF-8 (1 or 2 bytes) and returns its length.
size_t byte_to_unicode(unsigned char byte, char out[2]);

// Translates name[0..size) into the bytes that it stands for, at most `size` of them, and sets *written. A name with
// any character added_only the alphabet (an added token with a space, say) stands for its own bytes.
void unicode_to_bytes(const char *name, size_t size, char *out, size_t *written);

#endif
