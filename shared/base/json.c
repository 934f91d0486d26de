// json-c does the parsing. json_parse goes over the text first: it refuses what json-c would let pass, and rewrites
// what json-c would change (long integers, escaped surrogate pairs). JSON_TOKENER_STRICT is not used, because json-c
// 0.17 and 0.18 refuse every string with a character outside of ASCII under it.
#include "shared/base/json.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/base/file.h"
#include "shared/base/string.h"

enum {
    json_max_depth = 500,
    json_int_digits = 18, // always fit into an int64_t
    json_escape_size = 6, // of \uXXXX
    json_print_flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE,
};

// json-c keeps the text of doubles only. An integer that is too long for it gets this exponent and so becomes a double;
// json_print removes the exponent. A number that already ends in it, or in it and zeros, gets one more zero, which
// json_print removes too: what is printed is what was read.
static const char json_mark[] = "e+000";
enum { json_mark_size = sizeof json_mark - 1 };

// ---- screening ----

static status json_fail(const char *what, size_t at) {
    return fail(DATAERR, "not JSON: %s at byte %zu", what, at + 1);
}

static size_t json_skip_space(const char *text, size_t size, size_t at) {
    while (at < size && (text[at] == ' ' || text[at] == '\t' || text[at] == '\r' || text[at] == '\n')) at++;
    return at;
}

static size_t json_skip_digits(const char *text, size_t size, size_t at) {
    while (at < size && isdigit((unsigned char)text[at])) at++;
    return at;
}

// Returns the number of zeros behind a mark at text[0..size), -1 if there is no mark or other digits follow it.
static long json_mark_zeros(const char *text, size_t size) {
    if (size < json_mark_size || memcmp(text, json_mark, json_mark_size) != 0) return -1;
    size_t end = json_mark_size;
    while (end < size && text[end] == '0') end++;
    return end < size && isdigit((unsigned char)text[end]) ? -1 : (long)(end - json_mark_size);
}

// Returns the UTF-16 unit of an escape \uXXXX at text[0..size), -1 if there is none.
static long json_escaped_unit(const char *text, size_t size) {
    char digits[5] = {0}, *end;
    if (size < json_escape_size || text[0] != '\\' || text[1] != 'u') return -1;
    memcpy(digits, text + 2, 4);
    long unit = isxdigit((unsigned char)digits[0]) ? strtol(digits, &end, 16) : -1;
    return unit >= 0 && end == digits + 4 && digits[1] != 'x' && digits[1] != 'X' ? unit : -1;
}

// Checks the string at text[*at], copies it and moves *at behind it. Escaped surrogate pairs are written as UTF-8:
// json-c 0.16 takes an escaped character whose low 16 bits look like a surrogate (U+2D800) for a lone one.
static status json_screen_string(struct buf *out, const char *text, size_t size, size_t *at) {
    size_t first = *at + 1, end = first, copied = *at;
    bool nul = false;
    while (end < size && text[end] != '"') {
        if ((unsigned char)text[end] < 0x20) return json_fail("control character in a string", end);
        if (text[end] != '\\') {
            end++;
            continue;
        }
        long high = json_escaped_unit(text + end, size - end);
        long low = high >= 0 ? json_escaped_unit(text + end + json_escape_size, size - end - json_escape_size) : -1;
        nul |= high == 0;
        if (high >= 0xD800 && high <= 0xDBFF && low >= 0xDC00 && low <= 0xDFFF) {
            utf8proc_uint8_t character[4];
            long code = 0x10000 + ((high & 0x3FF) << 10 | (low & 0x3FF));
            utf8proc_ssize_t length = utf8proc_encode_char((utf8proc_int32_t)code, character);
            assert(length == sizeof character);
            buf_append(out, text + copied, end - copied);
            buf_append(out, character, (size_t)length);
            end += 2 * json_escape_size;
            copied = end;
        } else {
            end += 2;
        }
    }
    if (end >= size) return json_fail("unterminated string", *at);
    if (!utf8_valid(text + first, end - first)) return json_fail("the string is not UTF-8", *at);
    size_t next = json_skip_space(text, size, end + 1);
    if (nul && next < size && text[next] == ':') return json_fail("NUL in a key", *at);
    *at = end + 1;
    buf_append(out, text + copied, *at - copied);
    return OK;
}

// Checks the number at text[*at], copies it, with a mark if it needs one, and moves *at behind it.
static status json_screen_number(struct buf *out, const char *text, size_t size, size_t *at) {
    size_t start = *at, first = start + (text[start] == '-'), end = json_skip_digits(text, size, first);
    bool marked = end - first > json_int_digits || (first > start && end - first == 1 && text[first] == '0');
    bool has_mark = false;
    if (end == first || (text[first] == '0' && end - first > 1)) return json_fail("bad number", start);
    if (end < size && text[end] == '.') {
        marked = false;
        size_t digits = end + 1;
        end = json_skip_digits(text, size, digits);
        if (end == digits) return json_fail("bad number", start);
    }
    if (end < size && (text[end] == 'e' || text[end] == 'E')) {
        marked = false;
        has_mark = json_mark_zeros(text + end, size - end) >= 0;
        size_t digits = end + 1;
        if (digits < size && (text[digits] == '+' || text[digits] == '-')) digits++;
        end = json_skip_digits(text, size, digits);
        if (end == digits) return json_fail("bad number", start);
    }
    *at = end;
    buf_append(out, text + start, end - start);
    if (marked)
        buf_puts(out, json_mark);
    else if (has_mark)
        buf_puts(out, "0");
    return OK;
}

// ---- reading ----

status json_parse(json_object **out, const char *data, size_t size) {
    static const char *const literals[] = {"true", "false", "null"};
    *out = NULL;
    if (size > INT32_MAX / 4) return fail(DATAERR, "not JSON: the text of %zu bytes is too long", size);
    if (json_skip_space(data, size, 0) == size) return json_fail("unexpected end", size);
    struct buf text = {0}; // a copy of the data as json-c shall read it, after every token is checked
    json_tokener *tokener = NULL;
    status result;
    TRY_TO(result, done, buf_reserve_large(&text, size + 16));
    for (size_t at = 0; at < size;) {
        if (data[at] == '"') {
            TRY_TO(result, done, json_screen_string(&text, data, size, &at));
            continue;
        }
        if (data[at] == '-' || isdigit((unsigned char)data[at])) {
            TRY_TO(result, done, json_screen_number(&text, data, size, &at));
            continue;
        }
        size_t length = data[at] && strchr("{}[],: \t\r\n", data[at]) ? 1 : 0;
        for (size_t i = 0; i < 3 && !length; i++)
            if (size - at >= strlen(literals[i]) && !memcmp(data + at, literals[i], strlen(literals[i])))
                length = strlen(literals[i]);
        size_t next = data[at] == ',' ? json_skip_space(data, size, at + 1) : size;
        bool trailing = next < size && (data[next] == ']' || data[next] == '}'); // a comma before the end
        if (!length || trailing) TRY_TO(result, done, json_fail("unexpected character", trailing ? next : at));
        buf_append(&text, data + at, length);
        at += length;
    }
    tokener = mem_checked(json_tokener_new_ex(json_max_depth + 1));
    assert(text.size < INT32_MAX);
    *out = json_tokener_parse_ex(tokener, text.data, (int)text.size + 1); // with the NUL, which ends a lone number
    enum json_tokener_error error = json_tokener_get_error(tokener);
    size_t end = json_tokener_get_parse_end(tokener);
    if (error != json_tokener_success) {
        result = json_fail(error == json_tokener_continue ? "unexpected end" : json_tokener_error_desc(error), end);
    } else if ((end = json_skip_space(text.data, text.size, end)) < text.size) {
        result = json_fail("unexpected character", end);
    }
    if (result != OK) {
        json_object_put(*out);
        *out = NULL;
    }
done:
    if (tokener) json_tokener_free(tokener);
    buf_release(&text);
    return result;
}

status json_parse_object(json_object **out, const char *text, size_t size, const char *name) {
    status result = json_parse(out, text ? text : "", size);
    if (result == OK && !json_object_is_type(*out, json_type_object)) result = fail(DATAERR, "not a JSON object");
    if (result == OK) return OK;
    json_object_put(*out);
    *out = NULL;
    return fail_prefix(result, "%s", name);
}

status json_parse_file(json_object **out, const char *path) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK && file_is_lfs_pointer(content.data, content.size))
        result = fail(DATAERR, "%s: a pointer of Git LFS, not the file: type git lfs pull in its directory", path);
    if (result == OK) result = json_parse_object(out, content.data, content.size, path);
    buf_release(&content);
    return result;
}

status json_get(json_object *object, const char *key, enum json_type type, json_object **out) {
    if (!json_object_object_get_ex(object, key, out) || !*out) return OK; // a missing key sets *out to NULL
    if (json_object_is_type(*out, type)) return OK;
    enum json_type got = json_object_get_type(*out);
    *out = NULL;
    return fail(DATAERR, "%s: expected %s, not %s", key, json_type_to_name(type), json_type_to_name(got));
}

status json_get_bool(json_object *object, const char *key, bool otherwise, bool *out) {
    json_object *value;
    TRY(json_get(object, key, json_type_boolean, &value));
    *out = value ? json_object_get_boolean(value) : otherwise;
    return OK;
}

void json_merge(json_object *object, json_object *changes) {
    json_object_object_foreach(changes, key, value) {
        json_object *inner;
        if (json_object_is_type(value, json_type_object) && json_object_object_get_ex(object, key, &inner)) {
            json_merge(inner, value);
        } else {
            json_object_object_add(object, key, json_object_get(value));
        }
    }
}

struct string json_string(json_object *value) {
    if (!json_object_is_type(value, json_type_string)) return (struct string){0};
    return (struct string){json_object_get_string(value), (size_t)json_object_get_string_len(value)};
}

bool json_int(json_object *value, int64_t *out) {
    if (json_object_is_type(value, json_type_int)) {
        *out = json_object_get_int64(value);
        return true;
    }
    if (!json_object_is_type(value, json_type_double)) return false;
    double number = json_object_get_double(value);
    if (fabs(number) <= 0x1p53 && number == floor(number)) {
        *out = (int64_t)number;
        return true;
    }
    const char *text = json_object_get_string(value); // an integer of 19 digits may still fit
    char *end;
    if (!text) return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && json_mark_zeros(end, strlen(end)) >= 0;
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

// ---- writing ----

void json_print(struct buf *out, json_object *value) {
    size_t size, copied = 0;
    const char *text = json_object_to_json_string_length(value, json_print_flags, &size);
    assert(text);
    buf_reserve(out, size);
    bool quoted = false;
    for (size_t at = 0; at < size; at++) {
        if (text[at] == '"') quoted = !quoted;
        if (quoted && text[at] == '\\') at++;
        if (quoted || text[at] != json_mark[0]) continue;
        long zeros = json_mark_zeros(text + at, size - at);
        if (zeros < 0) continue;
        size_t kept = zeros ? json_mark_size + (size_t)zeros - 1 : 0;
        buf_append(out, text + copied, at + kept - copied);
        copied = at + (zeros ? kept + 1 : json_mark_size);
    }
    buf_append(out, text + copied, size - copied);
}
