// The grammar of JSON, strictly: no NaN, no 'single quotes', `1.`, control characters, surrogates in UTF-8 or NULs in
// keys. A reader makes no tree: the caller takes one value of the text after the other.
//
// A zeroed struct with `text` and `size` is at the beginning. After DATAERR, "not JSON: what at byte N", `failed` is
// set and the reader is of no more use.
#ifndef SHARED_BASE_JSON_READER_H
#define SHARED_BASE_JSON_READER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/base/string.h"

struct json_reader {
    const char *text;
    size_t size, at;
    int depth;      // arrays and objects that were entered
    bool first;     // nothing was taken of the one entered last
    bool rewritten; // json_print may print differently what was taken: white space, escapes, a key given twice
    bool failed;
};

// A number: its text, and its value as digits * 10^exponent.
struct json_number {
    struct string text;
    uint64_t digits;
    int exponent;
    bool negative;
    bool integral; // has neither a fraction nor an exponent
    bool exact;    // `digits` has all digits of the text
};

// Returns the first character of the next value, behind white space, or 0 at the end of the text.
char json_reader_peek(struct json_reader *reader);

// Takes the opening character of an array or an object, '[' or '{'. DATAERR, also when it is nested deeper than 500.
status json_reader_enter(struct json_reader *reader, char open);

// Goes to the next element of an array, or the next key of an object. *more is false when there is none: the closing
// character was taken. DATAERR.
status json_reader_next(struct json_reader *reader, char open, bool *more);

// Takes a string: a slice of the text, or, if it has escapes, a string in the arena. A lone \ud800 reads as U+FFFD.
// DATAERR, UNAVAILABLE.
status json_reader_string(struct json_reader *reader, struct arena *arena, struct string *out);

// Takes a key and its colon. DATAERR, UNAVAILABLE.
status json_reader_key(struct json_reader *reader, struct arena *arena, struct string *out);

// Takes a number. DATAERR.
status json_reader_number(struct json_reader *reader, struct json_number *out);

// Takes up to `count` elements of an array that was just entered, as long as they are plain: up to 7 digits, a comma or
// the array's end right behind them, and eight bytes of text from the first digit on. Returns how many it took.
size_t json_reader_plain_ints(struct json_reader *reader, int64_t *out, size_t count);

// The same for numbers without an exponent, of up to 15 digits, up to 7 of them before the point, with 32 bytes of text
// from the first on. Each is what json_number_float makes of it.
size_t json_reader_plain_floats(struct json_reader *reader, float *out, size_t count);

// Takes `null`, where json_reader_peek returned 'n'. DATAERR.
status json_reader_null(struct json_reader *reader);

// Takes `true` or `false`, where json_reader_peek returned 't' or 'f'. DATAERR.
status json_reader_bool(struct json_reader *reader, bool *out);

// Takes any value: *out is its text. If *plain, it is what json_print prints of it; otherwise only json_parse says
// whether its escapes are right. DATAERR.
status json_reader_skip(struct json_reader *reader, struct string *out, bool *plain);

// Takes the white space at the end of the text. DATAERR when something else follows.
status json_reader_end(struct json_reader *reader);

// Whether the number is an integer that fits: 1, 1.0 and 1e2 are; 1.5 is not.
bool json_number_int(const struct json_number *number, int64_t *out);

// Whether the number is finite as a double.
bool json_number_double(const struct json_number *number, double *out);

// Whether the number is finite as a float32. Its text is rounded once.
bool json_number_float(const struct json_number *number, float *out);

// ---- what reading shares with printing ----

// Both need only arithmetic where a double holds a power of ten exactly.
enum { JSON_POWERS = 23 };

// The powers of ten from 1 to 1e22, which are exact.
extern const double json_powers[JSON_POWERS];

// Eight bytes of text at a time, in one 64-bit number: its lowest byte is the text's first.
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
