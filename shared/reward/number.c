#include "shared/reward/number.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

#include "shared/reward/words.h"

// Unicode's decimal digits come in runs of ten from zero to nine, and runs may touch.
static int digit_of(int32_t code) {
    int32_t first = code;
    while (utf8proc_category(first) == UTF8PROC_CATEGORY_ND) first--;
    return first == code ? -1 : (code - first - 1) % 10;
}

// `from` in ASCII: white space as blanks, digits as digits, without commas; a '?' for all that no number has.
static void to_ascii(struct string from, char *out) {
    size_t step;
    for (size_t at = 0; at < from.size; at += step) {
        int32_t code = python_char_at(from, at, &step);
        int digit = code < 128 ? -1 : digit_of(code);
        if (code == ',') continue;
        if (code < 128)
            *out++ = code ? (char)code : '?';
        else if (python_isspace(code))
            *out++ = ' ';
        else
            *out++ = digit < 0 ? '?' : (char)('0' + digit);
    }
    *out = 0;
}

// float() strips ASCII's six, not U+001C..1F.
static char *strip(char *text) {
    while (*text && strchr(" \t\n\v\f\r", *text)) text++;
    char *end = text + strlen(text);
    while (end > text && strchr(" \t\n\v\f\r", end[-1])) end--;
    *end = 0;
    return text;
}

// Takes underscores out; false when one does not stand between two digits.
static bool drop_underscores(char *text) {
    char *out = text;
    char before = 0;
    for (char *at = text; *at; before = *at++) {
        if (*at == '_') {
            if (!isdigit((unsigned char)before) || !isdigit((unsigned char)at[1])) return false;
        } else {
            *out++ = *at;
        }
    }
    *out = 0;
    return true;
}

static const char *skip_digits(const char *at) {
    while (isdigit((unsigned char)*at)) at++;
    return at;
}

static bool is_decimal(const char *text) {
    const char *whole = text + (*text == '+' || *text == '-');
    if (!strcasecmp(whole, "inf") || !strcasecmp(whole, "infinity") || !strcasecmp(whole, "nan")) return true;
    const char *at = skip_digits(whole);
    size_t digits = (size_t)(at - whole);
    if (*at == '.') {
        const char *fraction = at + 1;
        at = skip_digits(fraction);
        digits += (size_t)(at - fraction);
    }
    if (!digits) return false;
    if (*at == 'e' || *at == 'E') {
        const char *exponent = at + 1 + (at[1] == '+' || at[1] == '-');
        at = skip_digits(exponent);
        if (at == exponent) return false;
    }
    return !*at;
}

status python_float(struct string from, bool *found, double *value) {
    char *ascii;
    TRY(NEW(&ascii, from.size + 1));
    to_ascii(from, ascii);
    char *number = strip(ascii);
    *found = drop_underscores(number) && is_decimal(number);
    if (*found) *value = strtod(number, NULL);
    free(ascii);
    return OK;
}

// The C library's decimals are exact, as Python's are.
double python_round2(double value) {
    char text[512];
    snprintf(text, sizeof text, "%.2f", value);
    return strtod(text, NULL);
}
