// Strings and numbers as JSON.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/base/json_reader.h"

// ---- strings ----

// Appends what stands for a character that a string must not contain as it is.
static void json_print_escape(struct buf *out, unsigned char c) {
    static const char special[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *found = c ? strchr(special, c) : NULL;
    const char escape[2] = {'\\', found ? letters[found - special] : 'u'};
    buf_append(out, escape, sizeof escape);
    if (!found) buf_printf(out, "%04x", c);
}

void json_print_string(struct buf *out, const char *data, size_t size) {
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
        buf_append(out, data + copied, at - 1 - copied);
        json_print_escape(out, c);
        copied = at;
    }
    buf_append(out, data + copied, size - copied);
    buf_append(out, "\"", 1);
}

// ---- trees ----

void json_print(struct buf *out, const struct json *value) {
    static const char *const words[] = {"false", "true"};
    if (!value || value->type == JSON_NULL)
        buf_puts(out, "null");
    else if (value->type == JSON_BOOL)
        buf_puts(out, words[value->boolean]);
    else if (value->type == JSON_NUMBER)
        buf_append(out, value->text.data, value->text.size);
    else if (value->type == JSON_STRING)
        json_print_string(out, value->text.data, value->text.size);
    if (!value || value->type < JSON_ARRAY) return;
    const bool object = value->type == JSON_OBJECT;
    buf_puts(out, object ? "{" : "[");
    for (size_t i = 0; i < value->count; i++) {
        const struct json *item = &value->items[i];
        if (i) buf_puts(out, ",");
        if (object) json_print_string(out, item->key.data, item->key.size);
        if (object) buf_puts(out, ":");
        json_print(out, item);
    }
    buf_puts(out, object ? "}" : "]");
}

// ---- numbers ----

// A decimal number, digits * 10^-decimals.
struct json_decimal {
    uint64_t digits;
    int decimals;
    int exponent; // of its first digit
};

const double json_powers[JSON_POWERS] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                         1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// Sets *decimal to the shortest number that reads back as the positive float32, if that is easily found: with products
// of doubles, whose errors are far below the margin.
static bool json_shortest_float(double value, struct json_decimal *decimal) {
    static const double parts[] = {1, 1e-1, 1e-2, 1e-3}, margin = 1e-4;
    if (!(value >= 1e-10 && value < 1e6)) return false;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const bool power = !(bits << 12); // of two: the numbers below are closer together
    bits &= UINT64_C(0x7ff) << 52;
    double half;
    memcpy(&half, &bits, sizeof half);
    int exponent = 0;
    while (value >= json_powers[exponent + 1]) exponent++;
    while (exponent <= 0 && value * json_powers[-exponent] < 1) exponent--;
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

// Sets *decimal to the 15 digits that read back as the positive value, if there are such: of 15 digits only one number
// does. It takes a product and a quotient of two exact numbers.
static bool json_shortest_double(double value, struct json_decimal *decimal) {
    int exponent = 0;
    if (!(value >= 1e-4 && value < 1e15)) return false;
    while (value >= json_powers[exponent + 1]) exponent++;
    while (exponent <= 0 && value * json_powers[-exponent] < 1) exponent--;
    const int decimals = 14 - exponent;
    assert(decimals >= 0 && decimals < JSON_POWERS);
    const double digits = nearbyint(value * json_powers[decimals]);
    *decimal = (struct json_decimal){(uint64_t)digits, decimals, exponent};
    return digits >= json_powers[14] && digits < json_powers[15] && digits / json_powers[decimals] == value;
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

// Writes the number as %g does.
static char *json_put_decimal(char *at, struct json_decimal decimal) {
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

// Tries precisions until the text reads back as the same value. %g drops trailing zeros, so a value with a shorter text
// prints it at the first precision, and the text found is the shortest.
static char *json_put_slowly(char *at, double value, bool single) {
    int length = 0;
    for (int digits = single ? 6 : 15; digits <= (single ? 9 : 17); digits++) {
        length = snprintf(at, JSON_NUMBER_SIZE, "%.*g", digits, value);
        assert(length > 0 && length < JSON_NUMBER_SIZE);
        if (!single && strtod(at, NULL) == value) break;
        if (single && strtof(at, NULL) == (float)value && (float)strtod(at, NULL) == (float)value) break;
    }
    return at + length;
}

static char *json_put_number(char *at, double value, bool single) {
    struct json_decimal decimal;
    const char *special = !isfinite(value) ? "null" : value != 0 ? NULL : signbit(value) ? "-0.0" : "0";
    if (special) return stpcpy(at, special);
    const bool found =
        single ? json_shortest_float(fabs(value), &decimal) : json_shortest_double(fabs(value), &decimal);
    if (!found) return json_put_slowly(at, value, single);
    if (value < 0) *at++ = '-';
    return json_put_decimal(at, decimal);
}

char *json_put_int(char *at, int64_t value) {
    if (value >= 0 && value < JSON_EIGHT_PLACES) return json_put_eight_places(at, (uint32_t)value);
    if (value < 0) *at++ = '-';
    return json_put_digits(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

char *json_put_ints(char *at, const int64_t *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        at = json_put_int(at, values[i]);
        *at++ = ',';
    }
    return count ? at - 1 : at;
}

char *json_put_float(char *at, float value) {
    return json_put_number(at, (double)value, true);
}

char *json_put_double(char *at, double value) {
    return json_put_number(at, value, false);
}

void json_print_double(struct buf *out, double value) {
    char text[JSON_NUMBER_SIZE];
    buf_append(out, text, (size_t)(json_put_double(text, value) - text));
}

void json_print_float(struct buf *out, float value) {
    char text[JSON_NUMBER_SIZE];
    buf_append(out, text, (size_t)(json_put_float(text, value) - text));
}
