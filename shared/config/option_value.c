#include "shared/config/option_value.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static locale_t plain_locale;
static pthread_once_t plain_once = PTHREAD_ONCE_INIT;

static void make_plain_locale(void) {
    plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

bool parse_double(const char *text, double *number) {
    pthread_once(&plain_once, make_plain_locale);
    if (!*text || text[strspn(text, "0123456789+-.eE")] || !plain_locale) return false;
    char *end;
    *number = strtod_l(text, &end, plain_locale);
    return *end == 0 && isfinite(*number);
}

static bool read_whole(const char *text, int64_t *whole) {
    if (!*text || text[strspn(text, "0123456789+-")]) return false;
    char *end;
    errno = 0;
    *whole = strtoll(text, &end, 10);
    return *end == 0 && errno == 0;
}

int choice_index(const char *choices, const char *word) {
    size_t length = strlen(word);
    for (int index = 0; choices && *choices; index++) {
        size_t size = strcspn(choices, "|");
        if (size == length && !memcmp(choices, word, size)) return index;
        choices += size + (choices[size] == '|');
    }
    return -1;
}

static status out_of_range(const struct option *key, const char *text) {
    if (key->high >= 1e300) return fail(USAGE, "%s: %s is out of range: at least %.15g", key->name, text, key->low);
    return fail(USAGE, "%s: %s is out of range: %.15g to %.15g", key->name, text, key->low, key->high);
}

// What the key wants, for messages: " or none" behind a number with choices.
static status wrong(const struct option *key, const char *what, const char *text) {
    if (key->choices) return fail(USAGE, "%s: '%s' is neither %s nor one of %s", key->name, text, what, key->choices);
    return fail(USAGE, "%s: '%s' is not %s", key->name, text, what);
}

static status read_bool(struct value *value, const struct option *key, const char *text) {
    bool yes = choice_index("true|yes|on|1", text) >= 0;
    if (!yes && choice_index("false|no|off|0", text) < 0) return wrong(key, "true or false", text);
    value->truth = yes;
    return OK;
}

static status read_number(struct value *value, const struct option *key, const char *text) {
    if (!parse_double(text, &value->from)) return wrong(key, "a number", text);
    if (!(value->from >= key->low && value->from <= key->high)) return out_of_range(key, text);
    return OK;
}

static status read_int(struct value *value, const struct option *key, const char *text) {
    double number;
    if (!read_whole(text, &value->whole)) {
        if (parse_double(text, &number) && fabs(number) >= 0x1p63) return out_of_range(key, text);
        return wrong(key, "a whole number", text);
    }
    value->from = (double)value->whole;
    if (!(value->from >= key->low && value->from <= key->high)) return out_of_range(key, text);
    return OK;
}

// One end of a range from text[0..size); an empty one is `open`.
static bool read_end(const char *text, size_t size, double open, double *end) {
    char copy[64];
    *end = open;
    if (size == 0) return true;
    if (size >= sizeof copy) return false;
    memcpy(copy, text, size);
    copy[size] = 0;
    return parse_double(copy, end) && *end >= 0;
}

static status read_range(struct value *value, const struct option *key, const char *text) {
    const char *dots = strstr(text, "..");
    if (!dots || !read_end(text, (size_t)(dots - text), -INFINITY, &value->from) ||
        !read_end(dots + 2, strlen(dots + 2), INFINITY, &value->to))
        return wrong(key, "a range FROM..TO", text);
    if (value->from > value->to) return fail(USAGE, "%s: %s ends before it begins", key->name, text);
    return OK;
}

static status read_device(const struct option *key, const char *text) {
    if (choice_index("cpu|cuda", text) >= 0) return OK;
    size_t digits = strncmp(text, "cuda:", 5) ? 0 : strspn(text + 5, "0123456789");
    if (digits == 0 || digits > 3 || text[5 + digits]) return wrong(key, "cpu, cuda or cuda:N", text);
    return OK;
}

status value_read(struct value *value, const struct option *key, const char *text) {
    value->from = value->to = NAN;
    value->whole = INT64_MIN;
    value->is_choice = choice_index(key->choices, text) >= 0;
    if (value->is_choice) return OK;
    switch (key->type) {
    case OPTION_STRING:
        return OK;
    case OPTION_FILE:
    case OPTION_PATH:
        return *text ? OK : fail(USAGE, "%s: an empty path", key->name);
    case OPTION_INT:
        return read_int(value, key, text);
    case OPTION_NUMBER:
    case OPTION_NUMBER_OR:
        return read_number(value, key, text);
    case OPTION_BOOL:
        return read_bool(value, key, text);
    case OPTION_CHOICE:
        return fail(USAGE, "%s: '%s' is not one of %s", key->name, text, key->choices);
    case OPTION_RANGE:
        return read_range(value, key, text);
    case OPTION_DEVICE:
        return read_device(key, text);
    }
    return fail(BUG, "%s: a key of no type", key->name);
}

status option_check(const struct option *key, const char *text) {
    struct value value;
    return value_read(&value, key, text);
}
