#include "shared/reward/python_text.h"

#include <assert.h>
#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static_assert(sizeof(utf8proc_int32_t) == sizeof(int32_t), "code points are 32 bits wide");

int32_t python_char_at(struct string string, size_t at, size_t *length) {
    assert(at < string.size);
    utf8proc_int32_t code = (unsigned char)string.data[at];
    *length = 1;
    if (code < 0x80) return code;
    utf8proc_ssize_t rest = (utf8proc_ssize_t)(string.size - at < 4 ? string.size - at : 4);
    utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)string.data + at, rest, &code);
    *length = bytes > 0 ? (size_t)bytes : 1;
    return bytes > 0 ? code : 0xfffd;
}

// Python takes the bidirectional classes WS, B and S and the category Zs.
bool python_isspace(int32_t code) {
    const utf8proc_property_t *property = utf8proc_get_property(code);
    return property->category == UTF8PROC_CATEGORY_ZS || property->bidi_class == UTF8PROC_BIDI_CLASS_WS ||
           property->bidi_class == UTF8PROC_BIDI_CLASS_B || property->bidi_class == UTF8PROC_BIDI_CLASS_S;
}

struct string python_strip(struct string string) {
    size_t from = 0, to = string.size, length;
    while (from < to && python_isspace(python_char_at(string, from, &length))) from += length;
    while (to > from) {
        size_t last = to - 1;
        while (last > from && ((unsigned char)string.data[last] & 0xc0) == 0x80) last--;
        if (!python_isspace(python_char_at(string, last, &length))) break;
        to = last;
    }
    return string_slice(string, from, to);
}

// Sets *word to the next word at or after `at`, empty if there is none, and returns where it ends.
static size_t python_next_word(struct string string, size_t at, struct string *word) {
    size_t length;
    while (at < string.size && python_isspace(python_char_at(string, at, &length))) at += length;
    size_t from = at;
    while (at < string.size && !python_isspace(python_char_at(string, at, &length))) at += length;
    *word = string_slice(string, from, at);
    return at;
}

void python_split(struct arena *arena, struct string string, struct string_array *words) {
    struct string word;
    size_t count = 0;
    for (size_t at = python_next_word(string, 0, &word); word.size; at = python_next_word(string, at, &word)) count++;
    words->count = count;
    words->data = arena_alloc(arena, (count + 1) * sizeof *words->data);
    size_t at = 0;
    for (size_t i = 0; i < count; i++) at = python_next_word(string, at, &words->data[i]);
}

bool python_float(struct string string, double *value) {
    static const char ascii_space[] = " \t\n\v\f\r"; // float() strips these of ASCII, but not U+001C to U+001F
    char *ascii, *end, *kept;
    size_t length;
    NEW(&ascii, string.size + 1);
    end = ascii;
    for (size_t at = 0; at < string.size; at += length) { // a '?' is for all characters that no number has
        int32_t code = python_char_at(string, at, &length);
        int32_t before = code; // decimal digits come in runs of ten from zero to nine, and runs may be adjacent
        if (code == ',') continue;
        while (code >= 128 && utf8proc_category(before) == UTF8PROC_CATEGORY_ND) before--;
        if (before < code)
            *end++ = (char)('0' + (code - before - 1) % 10);
        else if (code < 128)
            *end++ = code ? (char)code : '?';
        else
            *end++ = python_isspace(code) ? ' ' : '?';
    }
    assert((size_t)(end - ascii) <= string.size);
    *end = 0;
    char *number = ascii + strspn(ascii, ascii_space);
    while (end > number && strchr(ascii_space, end[-1])) end--;
    *end = 0;
    bool found = true;
    kept = number;
    for (const char *at = number; *at; at++) { // an underscore must be between two digits
        if (*at != '_')
            *kept++ = *at;
        else if (at == number || !isdigit((unsigned char)at[-1]) || !isdigit((unsigned char)at[1]))
            found = false;
    }
    *kept = 0;
    const double parsed = strtod(number, &end);
    found = found && end > number && !*end && !strpbrk(number, "xX("); // float() has no hexadecimal and no nan(...)
    if (found) *value = parsed;
    free(ascii);
    return found;
}

// The C library prints the exact decimals of a double, as Python does.
double python_round2(double value) {
    char text[512];
    static_assert(sizeof text > 1 + (DBL_MAX_10_EXP + 1) + 3 + 1, "sign, digits, fraction and NUL fit");
    assert(isfinite(value));
    snprintf(text, sizeof text, "%.2f", value);
    return strtod(text, NULL);
}
