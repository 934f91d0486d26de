// Eight bytes of JSON text at a time, in one 64-bit number: its lowest byte is the text's first.
#ifndef SHARED_BASE_JSON_WORDS_H
#define SHARED_BASE_JSON_WORDS_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first byte must be the lowest");

// The number each of whose bytes is `byte`.
#define JSON_EVERY(byte) (UINT64_C(0x0101010101010101) * (byte))

static inline uint64_t json_word_load(const char *text) {
    uint64_t word;
    memcpy(&word, text, sizeof word);
    return word;
}

static inline void json_word_store(char *text, uint64_t word) {
    memcpy(text, &word, sizeof word);
}

// Whether one of the bytes ends a run of plain characters in a string: a quote, a backslash, a control character.
static inline bool json_word_has_special(uint64_t word) {
    const uint64_t quotes = word ^ JSON_EVERY('"'), backslashes = word ^ JSON_EVERY('\\');
    const uint64_t below = (word - JSON_EVERY(0x20)) & ~word;
    const uint64_t found =
        below | ((quotes - JSON_EVERY(1)) & ~quotes) | ((backslashes - JSON_EVERY(1)) & ~backslashes);
    return (found & JSON_EVERY(0x80)) != 0;
}

// Returns how many of the bytes, from the first on, are digits.
static inline size_t json_word_count_digits(uint64_t word) {
    const uint64_t values = word ^ JSON_EVERY('0'); // 0 to 9 for a digit
    // The highest bit of each byte that is no digit. Behind the first one there may be wrong ones.
    const uint64_t others = ((values + JSON_EVERY(0x76)) | values) & JSON_EVERY(0x80);
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
}

// Returns the number that the first `count` bytes, 1 to 8 digits, stand for.
static inline uint32_t json_word_to_number(uint64_t word, size_t count) {
    // Leading zeros fill the eight places; then two neighbours become one number, three times.
    uint64_t value = (word ^ JSON_EVERY('0')) << (64 - 8 * count);
    value = (value * 10 + (value >> 8)) & UINT64_C(0x00ff00ff00ff00ff);
    value = (value * 100 + (value >> 16)) & UINT64_C(0x0000ffff0000ffff);
    return (uint32_t)(value * 10000 + (value >> 32));
}

// Returns the eight decimal places of a number below 10^8, a byte each, the first one lowest.
static inline uint64_t json_word_from_number(uint32_t number) {
    // Four places in each half, two in each quarter, one in each byte. The quotients by 100 and by 10 are exact
    // products.
    uint64_t value = number / 10000 | (uint64_t)(number % 10000) << 32;
    const uint64_t hundreds = (value * 5243 >> 19) & UINT64_C(0x0000007f0000007f);
    value = hundreds | (value - hundreds * 100) << 16;
    const uint64_t tens = (value * 103 >> 10) & UINT64_C(0x000f000f000f000f);
    return tens | (value - tens * 10) << 8;
}

#endif
