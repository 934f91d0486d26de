#include "shared/config/option_value.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/config/name_list.h"

bool parse_double(const char *text, double *number) {
    if (!*text || text[strspn(text, "0123456789+-.eE")]) return false;
    locale_t locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); // the decimal point is a point in every locale
    if (!locale) return false;
    char *end;
    *number = strtod_l(text, &end, locale);
    bool parsed = *end == 0 && isfinite(*number);
    freelocale(locale);
    return parsed;
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

// Returns the failure of a number below or above the option's range. A bound that stands for none is not printed.
static status option_value_out_of_range(const struct option *option, const char *text) {
    double number;
    const bool below = parse_double(text, &number) && number < option->low;
    if (option->high >= 0x1p53 && below)
        return fail(USAGE, "%s: %s is out of range: at least %.15g", option->name, text, option->low);
    if (option->low <= -1e300)
        return fail(USAGE, "%s: %s is out of range: at most %.15g", option->name, text, option->high);
    return fail(USAGE, "%s: %s is out of range: %.15g to %.16g", option->name, text, option->low, option->high);
}

// `wanted` is what the option takes besides its choices.
static status option_value_mismatch(const struct option *option, const char *wanted, const char *text) {
    if (option->choices)
        return fail(USAGE, "%s: '%s' is neither %s nor one of %s", option->name, text, wanted, option->choices);
    return fail(USAGE, "%s: '%s' is not %s", option->name, text, wanted);
}

// Parses one end of a range from text[0..size); an empty one is `open`.
static bool option_value_range_end(const char *text, size_t size, double open, double *end) {
    char copy[64];
    *end = open;
    if (size == 0) return true;
    if (size >= sizeof copy) return false;
    memcpy(copy, text, size);
    copy[size] = 0;
    return parse_double(copy, end) && *end >= 0;
}

bool parse_bytes(const char *text, int64_t *bytes) {
    static const struct {
        const char *name;
        int64_t bytes;
    } units[] = {{"", 1},
                 {"B", 1},
                 {"KB", 1000},
                 {"MB", 1000000},
                 {"GB", 1000000000},
                 {"TB", 1000000000000},
                 {"KiB", INT64_C(1) << 10},
                 {"MiB", INT64_C(1) << 20},
                 {"GiB", INT64_C(1) << 30},
                 {"TiB", INT64_C(1) << 40}};
    const size_t digits = strspn(text, "0123456789");
    int64_t number = 0;
    if (!digits || digits > 18) return false;
    for (size_t i = 0; i < digits; i++) number = number * 10 + (text[i] - '0');
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(text + digits, units[i].name)) return !__builtin_mul_overflow(number, units[i].bytes, bytes);
    return false;
}

// Parses "N steps" or a size in bytes, which needs a unit. Returns false if the text is neither.
static bool option_value_keep(const char *text, struct option_keep *keep) {
    const size_t digits = strspn(text, "0123456789");
    const bool steps = !strcmp(text + digits, " steps") || !strcmp(text + digits, " step");
    *keep = (struct option_keep){0};
    if (!digits || digits > 15 || !text[digits]) return false;
    if (!steps) return parse_bytes(text, &keep->bytes) && keep->bytes > 0;
    for (size_t i = 0; i < digits; i++) keep->steps = keep->steps * 10 + (text[i] - '0');
    return keep->steps > 0;
}

status option_value_parse(struct option_value *value, const struct option *option, const char *text) {
    *value = (struct option_value){.range = {NAN, NAN}, .choice = choice_index(option->choices, text)};
    struct option_range *range = &value->range;
    if (value->choice >= 0) return OK;
    switch (option->type) {
    case OPTION_STRING:
        return OK;
    case OPTION_FILE:
    case OPTION_PATH:
        return *text ? OK : fail(USAGE, "%s: an empty path", option->name);
    case OPTION_NAME:
    case OPTION_CHOICE:
        return fail(USAGE, "%s: '%s' is not one of %s", option->name, text, option->choices);
    case OPTION_DEVICE:
        return device_is_valid(text) ? OK : option_value_mismatch(option, "cpu, cuda or cuda:N", text);
    case OPTION_INT: {
        char *end = NULL;
        errno = 0;
        if (*text && !text[strspn(text, "0123456789+-")]) value->integer = strtoll(text, &end, 10);
        if (!end || *end || errno) {
            double number;
            if (parse_double(text, &number) && fabs(number) >= 0x1p63) return option_value_out_of_range(option, text);
            return option_value_mismatch(option, "an integer", text);
        }
        range->from = (double)value->integer;
        return range->from >= option->low && range->from <= option->high ? OK : option_value_out_of_range(option, text);
    }
    case OPTION_NUMBER:
    case OPTION_NUMBER_OR:
        if (!parse_double(text, &range->from)) return option_value_mismatch(option, "a number", text);
        if (range->from >= option->low && range->from <= option->high) return OK;
        return option_value_out_of_range(option, text);
    case OPTION_RANGE: {
        const char *dots = strstr(text, "..");
        if (!dots || !option_value_range_end(text, (size_t)(dots - text), -INFINITY, &range->from) ||
            !option_value_range_end(dots + 2, strlen(dots + 2), INFINITY, &range->to))
            return option_value_mismatch(option, "a range FROM..TO", text);
        return range->from > range->to ? fail(USAGE, "%s: %s ends before it begins", option->name, text) : OK;
    }
    case OPTION_BOOL:
        value->boolean = choice_index("true|yes|on|1", text) >= 0;
        if (value->boolean || choice_index("false|no|off|0", text) >= 0) return OK;
        return option_value_mismatch(option, "true or false", text);
    case OPTION_SIZE:
        if (parse_bytes(text, &value->integer) && value->integer > 0) return OK;
        return option_value_mismatch(option, "a size in bytes such as 20GiB", text);
    case OPTION_KEEP:
        if (option_value_keep(text, &value->keep)) return OK;
        return fail(USAGE, "%s: '%s' is none of %s, a number of steps such as '100 steps' and a size such as 20GiB",
                    option->name, text, option->choices);
    }
    return fail(BUG, "%s: an option without a type", option->name);
}

status option_check(const struct option *option, const char *value) {
    struct option_value parsed;
    return option_value_parse(&parsed, option, value);
}
