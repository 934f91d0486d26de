#include "shared/text/byte_alphabet.h"

#include <string.h>

enum { FIRST_MOVED = 0x100, END_MOVED = 0x144 };

static int stands_for_itself(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The bytes below `byte` that are moved: 0..32, 127..160, 173.
static unsigned moved_before(unsigned byte) {
    return byte <= 0x20 ? byte : byte <= 0xA0 ? 0x21 + (byte - 0x7F) : 0x21 + 0x22;
}

static int byte_of(unsigned character) {
    if (character < FIRST_MOVED) return stands_for_itself(character) ? (int)character : -1;
    if (character >= END_MOVED) return -1;
    unsigned moved = character - FIRST_MOVED;
    return (int)(moved <= 0x20 ? moved : moved < 0x43 ? moved - 0x21 + 0x7F : 0xAD);
}

size_t byte_to_unicode(unsigned char byte, char out[2]) {
    unsigned character = stands_for_itself(byte) ? byte : FIRST_MOVED + moved_before(byte);
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    out[0] = (char)(0xC0 | character >> 6);
    out[1] = (char)(0x80 | (character & 0x3F));
    return 2;
}

void unicode_to_bytes(const char *name, size_t size, char *out, size_t *written) {
    size_t count = 0;
    for (size_t at = 0; at < size;) {
        unsigned lead = (unsigned char)name[at];
        unsigned character = lead;
        size_t length = 1;
        if (lead >= 0x80) { // the alphabet ends at U+0143: two bytes at most
            length = 2;
            character =
                lead < 0xE0 && at + 1 < size ? (lead & 0x1F) << 6 | ((unsigned char)name[at + 1] & 0x3F) : END_MOVED;
        }
        int byte = byte_of(character);
        if (byte < 0) {
            memcpy(out, name, size);
            *written = size;
            return;
        }
        out[count++] = (char)byte;
        at += length;
    }
    *written = count;
}
