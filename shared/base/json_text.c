// The text of JSON: the grammar, which the reader takes apart, and the printing of strings and numbers.
#include "shared/base/json.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_JSON_DEPTH = 500, JSON_POWERS = 23 };

// The powers of ten from 1 to 1e22, which a double holds exactly.
static const double json_powers[JSON_POWERS] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

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

// ---- the reader ----

static bool json_is_digit(char c) {
    return c >= '0' && c <= '9';
}

static status json_reader_fail(struct json_reader *reader, const char *what, size_t at) {
    reader->failed = true;
    return fail(DATAERR, "not JSON: %s at byte %zu", what, at + 1);
}

char json_reader_peek(struct json_reader *reader) {
    while (reader->at < reader->size) {
        const char c = reader->text[reader->at];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return c;
        reader->at++;
    }
    return 0;
}

static status json_reader_unexpected(struct json_reader *reader) {
    const bool end = reader->at >= reader->size;
    return json_reader_fail(reader, end ? "unexpected end" : "unexpected character", reader->at);
}

status json_reader_enter(struct json_reader *reader, char open) {
    if (json_reader_peek(reader) != open) return json_reader_unexpected(reader);
    if (++reader->depth > MAX_JSON_DEPTH) return json_reader_fail(reader, "nesting too deep", reader->at);
    reader->at++;
    reader->first = true;
    return OK;
}

status json_reader_next(struct json_reader *reader, char open, bool *more) {
    const char c = json_reader_peek(reader), close = open == '[' ? ']' : '}';
    assert(reader->depth > 0);
    *more = c != close;
    if (!*more) {
        reader->at++;
        reader->depth--;
    } else if (!reader->first) {
        if (c != ',') return json_reader_unexpected(reader);
        reader->at++;
        if (json_reader_peek(reader) == close) return json_reader_unexpected(reader);
    }
    reader->first = false;
    return OK;
}

// ---- strings ----

// Returns where the plain characters at `at` end: at a quote, a backslash, a control character or the end of the text.
// The highest bits of their bytes are added to *high.
static size_t json_reader_plain_text(const struct json_reader *reader, size_t at, uint64_t *high) {
    const char *const text = reader->text;
    for (; reader->size - at >= 8; at += 8) {
        const uint64_t word = json_word_load(text + at);
        if (json_word_has_special(word)) break;
        *high |= word & JSON_EVERY(0x80);
    }
    for (; at < reader->size && text[at] != '"' && text[at] != '\\' && (unsigned char)text[at] >= 0x20; at++)
        *high |= (unsigned char)text[at] & 0x80;
    return at;
}

// Returns the UTF-16 unit of an escape \uXXXX at the beginning of text[0..size), -1 if there is none.
static int32_t json_reader_unit(const char *text, size_t size) {
    int32_t unit = 0;
    if (size < 6 || text[0] != '\\' || text[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        if (!isxdigit((unsigned char)text[i])) return -1;
        unit = unit * 16 + (json_is_digit(text[i]) ? text[i] - '0' : (text[i] | 0x20) - 'a' + 10);
    }
    return unit;
}

status json_reader_string(struct json_reader *reader, struct arena *arena, struct string *out) {
    static const char letters[] = "bfnrt\"\\/", characters[] = "\b\f\n\r\t\"\\/";
    uint64_t high = 0;
    bool escaped = false;
    if (json_reader_peek(reader) != '"') return json_reader_unexpected(reader);
    const size_t begin = reader->at + 1;
    size_t at = json_reader_plain_text(reader, begin, &high);
    while (at < reader->size && reader->text[at] == '\\') {
        escaped = true;
        at += 2; // also a quote or a backslash
        if (at < reader->size) at = json_reader_plain_text(reader, at, &high);
    }
    if (at >= reader->size) return json_reader_fail(reader, "unterminated string", reader->at);
    if (reader->text[at] != '"') return json_reader_fail(reader, "control character in a string", at);
    const struct string raw = *out = (struct string){reader->text + begin, at - begin};
    if (high && !utf8_valid(raw.data, raw.size)) return json_reader_fail(reader, "the string is not UTF-8", reader->at);
    reader->at = at + 1;
    if (!escaped) return OK;
    char *const text = arena_alloc(arena, raw.size + 1), *end = text; // an escape is longer than its character
    for (at = 0; at < raw.size;) {
        if (raw.data[at] != '\\') {
            *end++ = raw.data[at++];
            continue;
        }
        const char *const escape = raw.data + at, *const letter = strchr(letters, escape[1]);
        const size_t rest = raw.size - at;
        if (letter && *letter) {
            *end++ = characters[letter - letters];
            at += 2;
            continue;
        }
        int32_t code = json_reader_unit(escape, rest);
        if (code < 0) return json_reader_fail(reader, "invalid escape", begin + at);
        const int32_t low = rest > 6 ? json_reader_unit(escape + 6, rest - 6) : -1;
        const bool pair = code >= 0xd800 && code <= 0xdbff && low >= 0xdc00 && low <= 0xdfff;
        if (pair) code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
        if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
        end += utf8proc_encode_char(code, (utf8proc_uint8_t *)end);
        at += pair ? 12 : 6;
    }
    *out = (struct string){text, (size_t)(end - text)};
    assert(out->size <= raw.size);
    return OK;
}

status json_reader_key(struct json_reader *reader, struct arena *arena, struct string *out) {
    const size_t begin = reader->at;
    TRY(json_reader_string(reader, arena, out));
    if (out->size && memchr(out->data, 0, out->size)) return json_reader_fail(reader, "NUL in a key", begin);
    if (json_reader_peek(reader) != ':') return json_reader_unexpected(reader);
    reader->at++;
    return OK;
}

// ---- numbers ----

static const uint32_t json_reader_powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};

// Adds the digits at the reader to the number; returns how many there are.
static size_t json_reader_add_digits(struct json_reader *reader, struct json_number *number, bool fraction) {
    const size_t begin = reader->at;
    while (reader->size - reader->at >= 8 && number->digits < UINT64_C(10000000000)) { // eight more fit
        const uint64_t word = json_word_load(reader->text + reader->at);
        const size_t count = json_word_count_digits(word);
        if (!count) break;
        number->digits = number->digits * json_reader_powers[count] + json_word_to_number(word, count);
        number->exponent -= fraction ? (int)count : 0;
        reader->at += count;
        if (count < 8) return reader->at - begin;
    }
    for (; reader->at < reader->size && json_is_digit(reader->text[reader->at]); reader->at++) {
        if (number->digits >= 1000000000000000000u) { // one more may not fit
            number->exact = false;
            number->exponent += !fraction;
            continue;
        }
        number->digits = number->digits * 10 + (uint64_t)(reader->text[reader->at] - '0');
        number->exponent -= fraction;
    }
    return reader->at - begin;
}

status json_reader_number(struct json_reader *reader, struct json_number *out) {
    enum { EXPONENT_BOUND = 100000 }; // far above what a double can have
    const char *const text = reader->text;
    const size_t size = reader->size;
    (void)json_reader_peek(reader);
    const size_t begin = reader->at;
    *out = (struct json_number){.integral = true, .exact = true};
    out->negative = begin < size && text[begin] == '-';
    reader->at += out->negative;
    const bool zero = reader->at < size && text[reader->at] == '0';
    const size_t digits = json_reader_add_digits(reader, out, false);
    if (!digits || (zero && digits > 1)) return json_reader_fail(reader, "bad number", begin);
    if (reader->at < size && text[reader->at] == '.') {
        out->integral = false;
        reader->at++;
        if (!json_reader_add_digits(reader, out, true)) return json_reader_fail(reader, "bad number", begin);
    }
    if (reader->at < size && (text[reader->at] | 0x20) == 'e') {
        int exponent = 0;
        out->integral = false;
        reader->at++;
        const bool minus = reader->at < size && text[reader->at] == '-';
        reader->at += minus || (reader->at < size && text[reader->at] == '+');
        const size_t first = reader->at;
        for (; reader->at < size && json_is_digit(text[reader->at]); reader->at++)
            if (exponent < EXPONENT_BOUND) exponent = exponent * 10 + (text[reader->at] - '0');
        if (reader->at == first) return json_reader_fail(reader, "bad number", begin);
        out->exponent += minus ? -exponent : exponent;
    }
    out->text = (struct string){text + begin, reader->at - begin};
    return OK;
}

size_t json_reader_plain_ints(struct json_reader *reader, int64_t *out, size_t count) {
    const char *const text = reader->text;
    size_t taken = 0, at = reader->at;
    assert(reader->first);
    while (taken < count && at + 8 <= reader->size) {
        const uint64_t word = json_word_load(text + at);
        const size_t digits = json_word_count_digits(word);
        if (digits == 0 || digits == 8 || (digits > 1 && text[at] == '0')) break;
        const char end = (char)(word >> 8 * digits);
        if (end != ',' && end != ']') break;
        out[taken++] = json_word_to_number(word, digits);
        at += digits + 1;
        if (end == ']') break;
    }
    if (!taken) return 0;
    reader->at = at - 1;
    reader->first = false;
    return taken;
}

// Whether the value lies halfway between two neighbouring float32.
static bool json_number_is_tie(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x1fffffff) == 0x10000000;
}

size_t json_reader_plain_floats(struct json_reader *reader, float *out, size_t count) {
    enum { PLAIN_BYTES = 32, PLAIN_DIGITS = 15 }; // the longest such number and what is loaded behind it; exact digits
    const char *const text = reader->text;
    size_t taken = 0;
    assert(reader->first);
    for (size_t at = reader->at; taken < count && at + PLAIN_BYTES <= reader->size; at++) {
        const bool negative = text[at] == '-';
        at += negative;
        uint64_t word = json_word_load(text + at), digits;
        size_t added = json_word_count_digits(word), decimals = 0;
        if (added == 0 || added == 8 || (added > 1 && text[at] == '0')) break;
        digits = json_word_to_number(word, added);
        at += added;
        if (text[at] == '.') {
            const size_t whole = added;
            at++;
            do {
                word = json_word_load(text + at);
                added = json_word_count_digits(word);
                if (added) digits = digits * json_reader_powers[added] + json_word_to_number(word, added);
                at += added;
                decimals += added;
            } while (added == 8 && decimals == 8);
            if (decimals == 0 || whole + decimals > PLAIN_DIGITS) break;
        }
        const double value = (double)digits / json_powers[decimals];
        if ((text[at] != ',' && text[at] != ']') || json_number_is_tie(value)) break;
        out[taken++] = (float)(negative ? -value : value);
        reader->at = at;
        reader->first = false;
        if (text[at] == ']') break;
    }
    return taken;
}

// Sets *value to the correctly rounded double if it is one product or quotient of two exact numbers.
static bool json_number_quick(const struct json_number *number, double *value) {
    const int exponent = number->exponent;
    if (!number->exact || number->digits > UINT64_C(1) << 53 || abs(exponent) >= JSON_POWERS) return false;
    *value =
        exponent < 0 ? (double)number->digits / json_powers[-exponent] : (double)number->digits * json_powers[exponent];
    if (number->negative) *value = -*value;
    return true;
}

// Returns the number as strtod or strtof reads it.
static double json_number_slowly(const struct json_number *number, bool single) {
    char small[64], *text = small;
    const size_t size = number->text.size;
    if (size >= sizeof small) NEW(&text, size + 1);
    memcpy(text, number->text.data, size);
    text[size] = 0;
    const double value = single ? (double)strtof(text, NULL) : strtod(text, NULL);
    if (text != small) free(text);
    return value;
}

bool json_number_double(const struct json_number *number, double *out) {
    if (!json_number_quick(number, out)) *out = json_number_slowly(number, false);
    return isfinite(*out);
}

// A double that is not halfway between two float32 rounds to the same one as the number does.
bool json_number_float(const struct json_number *number, float *out) {
    double value;
    const bool quick =
        json_number_quick(number, &value) && !json_number_is_tie(value) && (value == 0 || fabs(value) > 1e-37);
    if (!quick) value = json_number_slowly(number, true);
    *out = (float)value;
    return isfinite(*out);
}

bool json_number_int(const struct json_number *number, int64_t *out) {
    double value;
    if (number->integral) {
        if (!number->exact || number->digits > (uint64_t)INT64_MAX + number->negative) return false;
        *out = (int64_t)(number->negative ? 0 - number->digits : number->digits);
        return true;
    }
    if (!json_number_double(number, &value) || fabs(value) > 0x1p53 || value != floor(value)) return false;
    *out = (int64_t)value;
    return true;
}

// ---- other values ----

status json_reader_literal(struct json_reader *reader, const char *literal) {
    const size_t size = strlen(literal);
    (void)json_reader_peek(reader);
    if (reader->size - reader->at < size || memcmp(reader->text + reader->at, literal, size) != 0)
        return json_reader_unexpected(reader);
    reader->at += size;
    return OK;
}

status json_reader_end(struct json_reader *reader) {
    (void)json_reader_peek(reader);
    return reader->at == reader->size ? OK : json_reader_unexpected(reader);
}

// ---- printing strings ----

void json_print_string(struct buf *out, const char *data, size_t size) {
    static const char special[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    size_t copied = 0, at = 0;
    buf_append(out, "\"", 1);
    while (at < size) {
        const unsigned char c = (unsigned char)data[at];
        if (size - at >= 8 && !json_word_has_special(json_word_load(data + at))) {
            at += 8;
            continue;
        }
        at++;
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        const char *found = c ? strchr(special, c) : NULL;
        buf_append(out, data + copied, at - 1 - copied);
        if (found)
            buf_append(out, (char[]){'\\', letters[found - special]}, 2);
        else
            buf_printf(out, "\\u%04x", c);
        copied = at;
    }
    buf_append(out, data + copied, size - copied);
    buf_append(out, "\"", 1);
}

// ---- printing numbers ----

// A decimal number, digits * 10^-decimals.
struct json_decimal {
    uint64_t digits;
    int decimals;
    int exponent; // of its first digit
};

// Sets *decimal to the shortest number that reads back as the positive value, if that is easily found: a float32 with
// products of doubles, whose errors are far below the margin.
static bool json_shortest(double value, bool single, struct json_decimal *decimal) {
    static const double parts[] = {1, 1e-1, 1e-2, 1e-3}, margin = 1e-4;
    int exponent = 0;
    if (single ? !(value >= 1e-10 && value < 1e6) : !(value >= 1e-4 && value < 1e15)) return false;
    while (value >= json_powers[exponent + 1]) exponent++;
    while (exponent <= 0 && value * json_powers[-exponent] < 1) exponent--;
    if (!single) { // of 15 digits only one number reads back: a product and a quotient of two exact numbers find it
        const int decimals = 14 - exponent;
        assert(decimals >= 0 && decimals < JSON_POWERS);
        const double digits = nearbyint(value * json_powers[decimals]);
        *decimal = (struct json_decimal){(uint64_t)digits, decimals, exponent};
        return digits >= json_powers[14] && digits < json_powers[15] && digits / json_powers[decimals] == value;
    }
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool power = !(bits << 12); // of two: the numbers below are closer together
    bits &= UINT64_C(0x7ff) << 52;
    double half;
    memcpy(&half, &bits, sizeof half);
    // The value in units of its ninth digit, and how far from it a number still reads back.
    const double scaled = value * json_powers[8 - exponent];
    half *= 0x1p-24 * json_powers[8 - exponent];
    for (int dropped = 3; dropped >= 0; dropped--) {
        const double part = scaled * parts[dropped];
        const int64_t digits = lrint(part);
        const double error = fabs((double)digits * json_powers[dropped] - scaled);
        if (error > half + margin) continue;
        // Two candidates are nearly as close, or the rounding decides.
        if (fabs(part - (double)digits) > 0.5 - 1e-6 || error > (power ? half / 2 : half) - margin) return false;
        *decimal = (struct json_decimal){(uint64_t)digits, 8 - exponent - dropped, exponent};
        return (double)digits >= json_powers[8 - dropped] && (double)digits < json_powers[9 - dropped];
    }
    return false;
}

enum { JSON_EIGHT_PLACES = 100000000 };

// Writes a number of up to eight places, and up to 7 bytes more behind it.
static inline char *json_put_eight_places(char *at, uint32_t number) {
    const uint64_t places = json_word_from_number(number);
    const size_t zeros =
        (size_t)__builtin_ctzll(places | UINT64_C(1) << 56) / 8; // in front; the last place always stays
    json_word_store(at, (places | JSON_EVERY('0')) >> 8 * zeros);
    return at + 8 - zeros;
}

// Writes at most 20 digits, and up to 7 bytes more behind them.
static char *json_put_digits(char *at, uint64_t digits) {
    if (digits < JSON_EIGHT_PLACES) return json_put_eight_places(at, (uint32_t)digits);
    at = json_put_digits(at, digits / JSON_EIGHT_PLACES);
    json_word_store(at, json_word_from_number((uint32_t)(digits % JSON_EIGHT_PLACES)) | JSON_EVERY('0'));
    return at + 8;
}

char *json_put_number(char *at, double value, bool single) {
    struct json_decimal decimal;
    const char *special = !isfinite(value) ? "null" : value != 0 ? NULL : signbit(value) ? "-0.0" : "0";
    if (special) return stpcpy(at, special);
    if (!json_shortest(fabs(value), single, &decimal)) {
        // Tries precisions until the text reads back as the same value. %g drops trailing zeros, so a value with a
        // shorter text prints it at the first precision, and the text found is the shortest.
        int length = 0;
        for (int digits = single ? 6 : 15; digits <= (single ? 9 : 17); digits++) {
            length = snprintf(at, JSON_NUMBER_SIZE, "%.*g", digits, value);
            assert(length > 0 && length < JSON_NUMBER_SIZE);
            if (!single && strtod(at, NULL) == value) break;
            if (single && strtof(at, NULL) == (float)value && (float)strtod(at, NULL) == (float)value) break;
        }
        return at + length;
    }
    // Writes it as %g does.
    if (value < 0) *at++ = '-';
    while (decimal.decimals > 0 && decimal.digits % 10 == 0) {
        decimal.digits /= 10;
        decimal.decimals--;
    }
    if (decimal.exponent >= -4 && decimal.decimals <= 0) return json_put_digits(at, decimal.digits);
    if (decimal.exponent < 0 && decimal.exponent >= -4) {
        memset(at, '0', 8);
        at[1] = '.';
        return json_put_digits(at + 1 - decimal.exponent, decimal.digits);
    }
    char digits[32];
    const size_t count = (size_t)(json_put_digits(digits, decimal.digits) - digits);
    const size_t whole = decimal.exponent < 0 ? 1 : (size_t)decimal.exponent + 1; // digits before the point
    memcpy(at, digits, whole);
    at += whole;
    if (count > whole) *at++ = '.';
    memcpy(at, digits + whole, count - whole);
    at += count - whole;
    if (decimal.exponent >= 0) return at;
    at = stpcpy(at, decimal.exponent > -10 ? "e-0" : "e-");
    return json_put_digits(at, (uint64_t)-decimal.exponent);
}

char *json_put_int(char *at, int64_t value) {
    if (value >= 0 && value < JSON_EIGHT_PLACES) return json_put_eight_places(at, (uint32_t)value);
    if (value < 0) *at++ = '-';
    return json_put_digits(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void json_print_double(struct buf *out, double value) {
    char text[JSON_NUMBER_SIZE];
    buf_append(out, text, (size_t)(json_put_number(text, value, false) - text));
}
