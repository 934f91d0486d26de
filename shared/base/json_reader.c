#include "shared/base/json_reader.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { json_reader_depth = 500 };

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
        reader->rewritten = true;
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
    if (++reader->depth > json_reader_depth) return json_reader_fail(reader, "nesting too deep", reader->at);
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

// Takes a string: *raw is what stands between the quotes, *escaped whether a backslash is there.
static status json_reader_scan(struct json_reader *reader, struct string *raw, bool *escaped) {
    const size_t begin = reader->at + 1;
    uint64_t high = 0;
    *escaped = false;
    if (json_reader_peek(reader) != '"') return json_reader_unexpected(reader);
    size_t at = json_reader_plain_text(reader, begin, &high);
    while (at < reader->size && reader->text[at] == '\\') {
        *escaped = reader->rewritten = true;
        at += 2; // also a quote or a backslash
        if (at < reader->size) at = json_reader_plain_text(reader, at, &high);
    }
    if (at >= reader->size) return json_reader_fail(reader, "unterminated string", reader->at);
    if (reader->text[at] != '"') return json_reader_fail(reader, "control character in a string", at);
    *raw = (struct string){reader->text + begin, at - begin};
    if (high && !utf8_valid(raw->data, raw->size))
        return json_reader_fail(reader, "the string is not UTF-8", reader->at);
    reader->at = at + 1;
    return OK;
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

// Writes the character of the escape at raw[*at], moves *at behind the escape and returns where the character ends.
static char *json_reader_unescape(char *out, struct string raw, size_t *at) {
    static const char letters[] = "bfnrt\"\\/", characters[] = "\b\f\n\r\t\"\\/";
    const char *const escape = raw.data + *at, *const letter = strchr(letters, escape[1]);
    const size_t rest = raw.size - *at;
    if (letter && *letter) {
        *at += 2;
        *out = characters[letter - letters];
        return out + 1;
    }
    int32_t code = json_reader_unit(escape, rest);
    if (code < 0) return NULL;
    *at += 6;
    const int32_t low = rest > 6 ? json_reader_unit(escape + 6, rest - 6) : -1;
    if (code >= 0xd800 && code <= 0xdbff && low >= 0xdc00 && low <= 0xdfff) {
        code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
        *at += 6;
    }
    if (code >= 0xd800 && code <= 0xdfff) code = 0xfffd;
    return out + utf8proc_encode_char(code, (utf8proc_uint8_t *)out);
}

status json_reader_string(struct json_reader *reader, struct arena *arena, struct string *out) {
    bool escaped;
    TRY(json_reader_scan(reader, out, &escaped));
    if (!escaped) return OK;
    const struct string raw = *out;
    char *const text = arena_alloc(arena, raw.size + 1), *end = text; // an escape is longer than its character
    for (size_t at = 0; at < raw.size;) {
        if (raw.data[at] != '\\') {
            *end++ = raw.data[at++];
            continue;
        }
        end = json_reader_unescape(end, raw, &at);
        if (!end) return json_reader_fail(reader, "invalid escape", (size_t)(raw.data - reader->text) + at);
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
    if (number->integral && number->exact && number->digits <= INT64_MAX) {
        *out = number->negative ? -(int64_t)number->digits : (int64_t)number->digits;
        return true;
    }
    if (number->integral && number->exact && number->negative && number->digits == (uint64_t)INT64_MAX + 1) {
        *out = INT64_MIN;
        return true;
    }
    if (number->integral || !json_number_double(number, &value) || fabs(value) > 0x1p53 || value != floor(value))
        return false;
    *out = (int64_t)value;
    return true;
}

// ---- other values ----

static status json_reader_literal(struct json_reader *reader, const char *literal) {
    const size_t size = strlen(literal);
    (void)json_reader_peek(reader);
    if (reader->size - reader->at < size || memcmp(reader->text + reader->at, literal, size) != 0)
        return json_reader_unexpected(reader);
    reader->at += size;
    return OK;
}

status json_reader_null(struct json_reader *reader) {
    return json_reader_literal(reader, "null");
}

status json_reader_bool(struct json_reader *reader, bool *out) {
    *out = json_reader_peek(reader) == 't';
    return json_reader_literal(reader, *out ? "true" : "false");
}

static status json_reader_pass(struct json_reader *reader);

// The first keys of an object are kept, so that one given twice is found.
static status json_reader_pass_object(struct json_reader *reader) {
    struct string keys[16] = {{0}}, key = {0};
    const size_t most = sizeof keys / sizeof *keys;
    bool more, escaped;
    TRY(json_reader_enter(reader, '{'));
    for (size_t count = 0;; count++) {
        TRY(json_reader_next(reader, '{', &more));
        if (!more) return OK;
        TRY(json_reader_scan(reader, &key, &escaped));
        assert(key.data);
        if (json_reader_peek(reader) != ':') return json_reader_unexpected(reader);
        reader->at++;
        if (count >= most) reader->rewritten = true;
        for (size_t i = 0; i < count && i < most; i++)
            if (keys[i].size == key.size && !memcmp(keys[i].data, key.data, key.size)) reader->rewritten = true;
        if (count < most) keys[count] = key;
        TRY(json_reader_pass(reader));
    }
}

static status json_reader_pass(struct json_reader *reader) {
    struct json_number number;
    struct string string;
    bool more, escaped;
    const char c = json_reader_peek(reader);
    switch (c) {
    case '{':
        return json_reader_pass_object(reader);
    case '[':
        TRY(json_reader_enter(reader, '['));
        for (;;) {
            TRY(json_reader_next(reader, '[', &more));
            if (!more) return OK;
            TRY(json_reader_pass(reader));
        }
    case '"':
        return json_reader_scan(reader, &string, &escaped);
    case 't':
        return json_reader_literal(reader, "true");
    case 'f':
        return json_reader_literal(reader, "false");
    case 'n':
        return json_reader_literal(reader, "null");
    default:
        if (c != '-' && !json_is_digit(c)) return json_reader_unexpected(reader);
        return json_reader_number(reader, &number);
    }
}

status json_reader_skip(struct json_reader *reader, struct string *out, bool *plain) {
    (void)json_reader_peek(reader);
    const size_t begin = reader->at;
    reader->rewritten = false;
    TRY(json_reader_pass(reader));
    *out = (struct string){reader->text + begin, reader->at - begin};
    *plain = !reader->rewritten;
    return OK;
}

status json_reader_end(struct json_reader *reader) {
    (void)json_reader_peek(reader);
    return reader->at == reader->size ? OK : json_reader_unexpected(reader);
}
