#include "shared/base/json.h"
#include "shared/base/string.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { depth_limit = 500, longest_int = 18 };

// Appended to whole numbers too long for json-c, which then keeps their text as a double's; json_print takes it off.
static const char mark[] = "e+000";

static status refuse(const char *what, size_t at) {
    return fail(DATAERR, "not JSON: %s at byte %zu", what, at + 1);
}

static size_t skip_space(const char *text, size_t size, size_t at) {
    while (at < size && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n')) at++;
    return at;
}

// text[*at] is the opening quote; *at moves behind the closing one.
static status screen_string(const char *text, size_t size, size_t *at) {
    size_t first = *at + 1, end = first;
    bool nul = false;
    while (end < size && text[end] != '"') {
        if ((unsigned char)text[end] < 0x20) return refuse("control character in a string", end);
        if (text[end] == '\\') {
            nul |= size - end > 5 && !memcmp(text + end, "\\u0000", 6);
            end++;
        }
        end++;
    }
    if (end >= size) return refuse("unterminated string", *at);
    if (!utf8_valid(text + first, end - first)) return refuse("a string that is not UTF-8", *at);
    size_t next = skip_space(text, size, end + 1);
    if (nul && next < size && text[next] == ':') return refuse("NUL in a key", *at);
    *at = end + 1;
    return OK;
}

static size_t skip_digits(const char *text, size_t size, size_t at) {
    while (at < size && isdigit((unsigned char)text[at])) at++;
    return at;
}

// Moves *at behind a number of JSON's grammar; *marked: it is whole and needs the mark.
static status screen_number(const char *text, size_t size, size_t *at, bool *marked) {
    size_t first = *at + (text[*at] == '-'), end = skip_digits(text, size, first);
    *marked = end - first > longest_int || (first > *at && end - first == 1 && text[first] == '0');
    if (end == first || (text[first] == '0' && end - first > 1)) return refuse("bad number", *at);
    if (end < size && text[end] == '.') {
        *marked = false;
        size_t digits = end + 1;
        end = skip_digits(text, size, digits);
        if (end == digits) return refuse("bad number", *at);
    }
    if (end < size && (text[end] == 'e' || text[end] == 'E')) {
        *marked = false;
        size_t digits = end + 1;
        if (digits < size && (text[digits] == '+' || text[digits] == '-')) digits++;
        end = skip_digits(text, size, digits);
        if (end == digits) return refuse("bad number", *at);
    }
    *at = end;
    return OK;
}

static status screen_word(const char *text, size_t size, size_t *at) {
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if (size - *at >= length && !memcmp(text + *at, words[i], length)) {
            *at += length;
            return OK;
        }
    }
    return refuse("unexpected character", *at);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The UTF-16 unit of an escape \\uXXXX at text[0..size), -1 if there is none.
static long escaped_unit(const char *text, size_t size) {
    long unit = 0;
    if (size < 6 || text[0] != '\\' || text[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        if (hex_digit(text[i]) < 0) return -1;
        unit = unit << 4 | hex_digit(text[i]);
    }
    return unit;
}

// Copies a string token with its escaped surrogate pairs as UTF-8: json-c 0.16 takes a character whose low 16 bits look
// like a surrogate (U+2D800, say) for a lone one when it comes escaped, and gives U+FFFD.
static status add_string(struct buf *out, const char *text, size_t size) {
    size_t done = 0;
    for (const char *slash = text; (slash = memchr(slash, '\\', size - (size_t)(slash - text)));) {
        size_t at = (size_t)(slash - text);
        long high = escaped_unit(slash, size - at), low = size - at > 12 ? escaped_unit(slash + 6, 6) : -1;
        if (high < 0xD800 || high > 0xDBFF || low < 0xDC00 || low > 0xDFFF) {
            slash += 2; // a string token never ends in a backslash
            continue;
        }
        long code = 0x10000 + ((high & 0x3FF) << 10 | (low & 0x3FF));
        utf8proc_uint8_t character[4];
        utf8proc_encode_char((utf8proc_int32_t)code, character);
        TRY(buf_append(out, text + done, at - done));
        TRY(buf_append(out, character, sizeof character));
        slash += 12;
        done = at + 12;
    }
    return buf_append(out, text + done, size - done);
}

// Checks every token and copies the text to `out`, long whole numbers marked.
static status screen(const char *text, size_t size, struct buf *out) {
    TRY(buf_reserve(out, size + 16));
    size_t at = 0;
    while (at < size) {
        size_t from = at;
        bool marked = false;
        if (text[at] == '"') {
            TRY(screen_string(text, size, &at));
        } else if (text[at] == '-' || isdigit((unsigned char)text[at])) {
            TRY(screen_number(text, size, &at, &marked));
        } else if (text[at] && strchr("{}[],: \t\r\n", text[at])) {
            at++;
        } else {
            TRY(screen_word(text, size, &at));
        }
        TRY(text[from] == '"' ? add_string(out, text + from, at - from) : buf_append(out, text + from, at - from));
        if (marked) TRY(buf_puts(out, mark));
    }
    return OK;
}

static status parse(json_object **out, const struct buf *text) {
    json_tokener *tokener = json_tokener_new_ex(depth_limit + 1);
    if (!tokener) return fail_oom();
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    *out = json_tokener_parse_ex(tokener, text->data, (int)text->size + 1); // with the NUL, which ends a lone number
    enum json_tokener_error error = json_tokener_get_error(tokener);
    size_t at = json_tokener_get_parse_end(tokener);
    json_tokener_free(tokener);
    if (error == json_tokener_success) return OK;
    json_object_put(*out);
    *out = NULL;
    return refuse(error == json_tokener_continue ? "unexpected end" : json_tokener_error_desc(error), at);
}

status json_parse(json_object **out, const char *data, size_t size) {
    *out = NULL;
    if (size > INT32_MAX / 4) return fail(DATAERR, "not JSON: %zu bytes are too many", size);
    if (skip_space(data, size, 0) == size) return refuse("unexpected end", size);
    struct buf text = {0};
    status result = screen(data, size, &text);
    if (result == OK) result = parse(out, &text);
    buf_release(&text);
    return result;
}

// Appends json-c's text without the marks, which stand outside of strings alone.
static status add_unmarked(struct buf *out, const char *text, size_t size) {
    TRY(buf_reserve(out, size));
    bool quoted = false;
    size_t from = 0;
    for (size_t at = 0; at < size; at++) {
        if (text[at] == '"') quoted = !quoted;
        if (quoted && text[at] == '\\') at++;
        if (quoted || size - at < sizeof mark - 1 || memcmp(text + at, mark, sizeof mark - 1) != 0) continue;
        if (isdigit((unsigned char)text[at + sizeof mark - 1])) continue;
        TRY(buf_append(out, text + from, at - from));
        from = at + sizeof mark - 1;
    }
    return buf_append(out, text + from, size - from);
}

status json_print(struct buf *out, json_object *value) {
    size_t size;
    const char *text =
        json_object_to_json_string_length(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &size);
    return text ? add_unmarked(out, text, size) : fail_oom();
}

status json_print_string(struct buf *out, const char *data, size_t size) {
    if (size > INT32_MAX) return fail(DATAERR, "a text of %zu bytes is too long", size);
    json_object *value = json_object_new_string_len(data, (int)size);
    if (!value) return fail_oom();
    size_t length;
    const char *text =
        json_object_to_json_string_length(value, JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE, &length);
    status result = text ? buf_append(out, text, length) : fail_oom();
    json_object_put(value);
    return result;
}

// %g leaves zeros off, so the first precision that survives is the shortest; fewer than the type's sure digits need
// not be tried.
status json_print_float(struct buf *out, float value) {
    if (!isfinite(value)) return buf_puts(out, "null");
    if (value == 0) return buf_puts(out, signbit(value) ? "-0.0" : "0");
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value && (float)strtod(text, NULL) == value) break;
    }
    return buf_puts(out, text);
}

status json_print_double(struct buf *out, double value) {
    if (!isfinite(value)) return buf_puts(out, "null");
    if (value == 0) return buf_puts(out, signbit(value) ? "-0.0" : "0");
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    return buf_puts(out, text);
}

bool json_int(json_object *value, int64_t *out) {
    if (json_object_is_type(value, json_type_int)) {
        *out = json_object_get_int64(value);
        return true;
    }
    if (!json_object_is_type(value, json_type_double)) return false;
    double number = json_object_get_double(value);
    if (!(fabs(number) <= 9007199254740992.0) || number != floor(number)) {
        const char *text = json_object_get_string(value); // 19 digits may fit yet
        char *end;
        errno = 0;
        long long whole = text ? strtoll(text, &end, 10) : 0;
        if (!text || errno || strcmp(end, mark) != 0) return false;
        *out = whole;
        return true;
    }
    *out = (int64_t)number;
    return true;
}

bool json_double(json_object *value, double *out) {
    if (!json_object_is_type(value, json_type_int) && !json_object_is_type(value, json_type_double)) return false;
    *out = json_object_get_double(value);
    return isfinite(*out);
}

bool json_float(json_object *value, float *out) {
    if (json_object_is_type(value, json_type_int)) {
        *out = (float)json_object_get_int64(value);
        return true;
    }
    if (!json_object_is_type(value, json_type_double)) return false;
    const char *text = json_object_get_string(value);
    *out = text ? strtof(text, NULL) : NAN;
    return isfinite(*out);
}

struct string json_string(json_object *value) {
    if (!json_object_is_type(value, json_type_string)) return (struct string){0};
    return (struct string){json_object_get_string(value), (size_t)json_object_get_string_len(value)};
}
