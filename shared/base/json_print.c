// Strings and numbers as JSON.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/base/json_number.h"

// ---- strings ----

// Appends what stands for a character that a string must not contain as it is.
static status json_print_escape(struct buf *out, unsigned char c) {
    static const char special[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *found = c ? strchr(special, c) : NULL;
    return found ? buf_printf(out, "\\%c", letters[found - special]) : buf_printf(out, "\\u%04x", c);
}

status json_print_string(struct buf *out, const char *data, size_t size) {
    size_t copied = 0;
    TRY(buf_append(out, "\"", 1));
    for (size_t at = 0; at < size; at++) {
        const unsigned char c = (unsigned char)data[at];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        TRY(buf_append(out, data + copied, at - copied));
        TRY(json_print_escape(out, c));
        copied = at + 1;
    }
    TRY(buf_append(out, data + copied, size - copied));
    return buf_append(out, "\"", 1);
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

bool json_is_tie(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & 0x1fffffff) == 0x10000000;
}

// Whether digits read back as the value they were taken from. JSON_UNSURE: one rounding could decide.
enum json_reads_back { JSON_NO, JSON_YES, JSON_UNSURE };

// Sets *decimal to `count` digits of a positive value, by a product and a quotient of two exact numbers.
static enum json_reads_back json_round(double value, int exponent, int count, bool single,
                                       struct json_decimal *decimal) {
    const int decimals = count - 1 - exponent;
    assert(count <= 15 && decimals >= 0 && decimals < JSON_POWERS);
    const double scaled = value * json_powers[decimals], digits = nearbyint(scaled);
    const double back = digits / json_powers[decimals];
    if (digits < json_powers[count - 1] || digits >= json_powers[count]) return JSON_UNSURE;
    *decimal = (struct json_decimal){(uint64_t)digits, decimals, exponent};
    // Of 15 digits only one number reads back as the value.
    if (!single) return back == value ? JSON_YES : JSON_UNSURE;
    if (fabs(fabs(scaled - digits) - 0.5) < 1e-6 || json_is_tie(back)) return JSON_UNSURE;
    return (float)back == (float)value ? JSON_YES : JSON_NO;
}

// Sets *decimal to the shortest number that reads back as the positive value, if that is easily found.
static bool json_shortest(double value, bool single, struct json_decimal *decimal) {
    enum json_reads_back found = JSON_NO;
    int exponent = 0;
    if (!(value >= (single ? 1e-10 : 1e-4) && value < (single ? 1e6 : 1e15))) return false;
    while (value >= json_powers[exponent + 1]) exponent++;
    while (exponent <= 0 && value * json_powers[-exponent] < 1) exponent--;
    for (int count = single ? 6 : 15; count <= (single ? 9 : 15) && found == JSON_NO; count++)
        found = json_round(value, exponent, count, single, decimal);
    return found == JSON_YES;
}

static char *json_put_digits(char *at, uint64_t digits) {
    int size = 1;
    for (uint64_t limit = 10; size < 20 && digits >= limit; limit *= 10) size++;
    char *begin = at + size;
    for (; digits >= 100; digits /= 100) {
        const unsigned pair = (unsigned)(digits % 100);
        *--begin = (char)('0' + pair % 10);
        *--begin = (char)('0' + pair / 10);
    }
    *--begin = (char)('0' + digits % 10);
    if (digits >= 10) *--begin = (char)('0' + digits / 10);
    assert(begin == at);
    return at + size;
}

// Writes the number as %g does.
static char *json_put_decimal(char *at, struct json_decimal decimal) {
    while (decimal.decimals > 0 && decimal.digits % 10 == 0) {
        decimal.digits /= 10;
        decimal.decimals--;
    }
    if (decimal.exponent >= -4 && decimal.decimals <= 0) return json_put_digits(at, decimal.digits);
    char digits[24];
    const int count = (int)(json_put_digits(digits, decimal.digits) - digits);
    int whole = decimal.exponent < -4 ? 1 : count - decimal.decimals; // digits before the point
    if (whole <= 0) *at++ = '0';
    for (int i = 0; i < whole; i++) *at++ = digits[i];
    if (count > whole) *at++ = '.';
    for (int i = whole; i < 0; i++) *at++ = '0';
    for (int i = whole > 0 ? whole : 0; i < count; i++) *at++ = digits[i];
    if (decimal.exponent >= -4) return at;
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
    if (!json_shortest(fabs(value), single, &decimal)) return json_put_slowly(at, value, single);
    if (value < 0) *at++ = '-';
    return json_put_decimal(at, decimal);
}

char *json_put_int(char *at, int64_t value) {
    if (value < 0) *at++ = '-';
    return json_put_digits(at, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

char *json_put_float(char *at, float value) {
    return json_put_number(at, (double)value, true);
}

char *json_put_double(char *at, double value) {
    return json_put_number(at, value, false);
}

status json_print_double(struct buf *out, double value) {
    char text[JSON_NUMBER_SIZE];
    return buf_append(out, text, (size_t)(json_put_double(text, value) - text));
}

status json_print_float(struct buf *out, float value) {
    char text[JSON_NUMBER_SIZE];
    return buf_append(out, text, (size_t)(json_put_float(text, value) - text));
}
