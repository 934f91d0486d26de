// The grammar of JSON, strictly: no NaN, no 'single quotes', `1.`, control characters, surrogates in UTF-8 or NULs in
// keys. A reader makes no tree: the caller takes one value of the text after the other.
//
// A zeroed struct with `text` and `size` is at the beginning. After DATAERR, "not JSON: what at byte N", `failed` is
// set and the reader is of no more use.
#ifndef SHARED_BASE_JSON_READER_H
#define SHARED_BASE_JSON_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

#endif
