// Options as a table and as the struct that is filled from it.
#include "shared/config/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/config/name_list.h"

const struct option *options_next(const struct option_table *table, const struct option *option) {
    const struct option *next = option ? option + 1 : table->options ? table->options : table->common;
    if (next && !next->name) {
        const struct option *end = table->options;
        while (end && end->name) end++;
        next = next == end ? table->common : NULL;
    }
    return next && next->name ? next : NULL;
}

// ---- names ----

static bool options_same_char(char a, char b) {
    return a == b || (a == '-' && b == '_') || (a == '_' && b == '-');
}

static bool options_same_name(const char *a, const char *b) {
    while (*a && options_same_char(*a, *b)) a++, b++;
    return !*a && !*b;
}

const struct option *option_find(const struct option_table *table, const char *name) {
    for (const struct option *option = NULL; (option = options_next(table, option));)
        if (options_same_name(option->name, name)) return option;
    return NULL;
}

const struct option *option_find_any(const struct option_table *table, const char *name) {
    for (const struct option *option = table->internal; option && option->name; option++)
        if (options_same_name(option->name, name)) return option;
    return option_find(table, name);
}

static_assert(sizeof(struct option_range) == 2 * sizeof(double), "options_number reads the first of two");
static_assert(OPTION_CHOICE < OPTION_INT && OPTION_BOOL > OPTION_RANGE, "options_hash counts on this order");

enum { NEAREST_LENGTH = 48 };

struct nearest nearest_to(const char *typed) {
    return (struct nearest){.typed = typed, .distance = NEAREST_LENGTH};
}

void nearest_offer(struct nearest *nearest, const char *name) {
    assert(name && nearest->typed);
    // The edit distance, with two swapped neighbours counted as one edit.
    const char *a = name, *b = nearest->typed;
    int rows = (int)strlen(a), columns = (int)strlen(b);
    int cost[NEAREST_LENGTH + 1][NEAREST_LENGTH + 1];
    if (rows > NEAREST_LENGTH || columns > NEAREST_LENGTH) return;
    for (int i = 0; i <= rows; i++) cost[i][0] = i;
    for (int j = 0; j <= columns; j++) cost[0][j] = j;
    for (int i = 1; i <= rows; i++) {
        for (int j = 1; j <= columns; j++) {
            int least = cost[i - 1][j - 1] + !options_same_char(a[i - 1], b[j - 1]);
            if (cost[i - 1][j] + 1 < least) least = cost[i - 1][j] + 1;
            if (cost[i][j - 1] + 1 < least) least = cost[i][j - 1] + 1;
            bool swapped =
                i > 1 && j > 1 && options_same_char(a[i - 1], b[j - 2]) && options_same_char(a[i - 2], b[j - 1]);
            if (swapped && cost[i - 2][j - 2] + 1 < least) least = cost[i - 2][j - 2] + 1;
            cost[i][j] = least;
        }
    }
    int distance = cost[rows][columns], bound = columns / 3 + 1;
    if (distance > bound || distance >= nearest->distance) return;
    nearest->name = name;
    nearest->distance = distance;
}

const char *nearest_question(struct nearest *nearest) {
    if (!nearest->name) return "";
    snprintf(nearest->question, sizeof nearest->question, "; did you mean %s?", nearest->name);
    return nearest->question;
}

void nearest_offer_all(struct nearest *nearest, const struct option_table *table) {
    for (const struct option *option = NULL; (option = options_next(table, option));)
        nearest_offer(nearest, option->name);
}

// ---- values ----

// What a string says; the fields that the option's type does not use are NaN or zero.
struct option_value {
    const char *text;          // the string itself
    struct option_range range; // `from` is also the value of the other number types; NaN for one of the choices
    int64_t integer;
    int choice; // the index of the string among the choices, -1: not one of them
    bool boolean;
    struct option_keep keep;
};

// The part of a parsed value that the field of an option is a copy of.
#define PART(member)                                                                                                   \
    { offsetof(struct option_value, member), sizeof((struct option_value){0}).member }
static const struct option_part {
    size_t offset, size;
} option_parts[] = {
    [OPTION_STRING] = PART(text),  [OPTION_FILE] = PART(text),         [OPTION_PATH] = PART(text),
    [OPTION_NAME] = PART(text),    [OPTION_DEVICE] = PART(text),       [OPTION_CHOICE] = PART(choice),
    [OPTION_INT] = PART(integer),  [OPTION_NUMBER] = PART(range.from), [OPTION_RANGE] = PART(range),
    [OPTION_BOOL] = PART(boolean), [OPTION_SIZE] = PART(integer),      [OPTION_KEEP] = PART(keep),
};

// Parses a finite decimal number. Returns false if the string is not one. No program sets a locale.
static bool option_value_double(const char *text, double *number) {
    char *end;
    if (!*text || text[strspn(text, "0123456789+-.eE")]) return false;
    *number = strtod(text, &end);
    return *end == 0 && isfinite(*number);
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
    const bool below = option_value_double(text, &number) && number < option->low;
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
    return option_value_double(copy, end) && *end >= 0;
}

bool parse_bytes(const char *text, int64_t *bytes) {
    static const char letters[] = "KMGT";
    const size_t digits = strspn(text, "0123456789");
    const char *unit = text + digits, *letter = *unit ? strchr(letters, *unit) : NULL;
    const bool binary = letter && unit[1] == 'i';
    *bytes = 0;
    if (!digits || digits > 18 || (*unit && strcmp(letter ? unit + 1 + binary : unit, "B") != 0)) return false;
    for (size_t i = 0; i < digits; i++) *bytes = *bytes * 10 + (text[i] - '0');
    for (int power = letter ? (int)(letter - letters) + 1 : 0; power > 0; power--)
        if (__builtin_mul_overflow(*bytes, binary ? 1024 : 1000, bytes)) return false;
    return true;
}

// Parses a string as a value of the option, without looking for files or at the option's bounds. Numbers are read to
// the end of the string. USAGE with "NAME: what is wrong".
static status option_value_parse(struct option_value *value, const struct option *option, const char *text) {
    *value = (struct option_value){.text = text, .range = {NAN, NAN}, .choice = choice_index(option->choices, text)};
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
            if (option_value_double(text, &number) && fabs(number) >= 0x1p63)
                return option_value_out_of_range(option, text);
            return option_value_mismatch(option, "an integer", text);
        }
        range->from = (double)value->integer;
        return OK;
    }
    case OPTION_NUMBER:
        return option_value_double(text, &range->from) ? OK : option_value_mismatch(option, "a number", text);
    case OPTION_RANGE: {
        const char *dots = strstr(text, "..");
        if (!dots || !option_value_range_end(text, (size_t)(dots - text), -INFINITY, &range->from) ||
            !option_value_range_end(dots + 2, strlen(dots + 2), INFINITY, &range->to))
            return option_value_mismatch(option, "a range FROM..TO", text);
        return range->from > range->to ? fail(USAGE, "%s: %s ends before it begins", option->name, text) : OK;
    }
    case OPTION_BOOL:
        value->boolean = choice_index("true|True|TRUE|yes|Yes|YES|on|On|ON|1", text) >= 0; // as in YAML 1.1
        if (value->boolean || choice_index("false|False|FALSE|no|No|NO|off|Off|OFF|0", text) >= 0) return OK;
        return option_value_mismatch(option, "true or false", text);
    case OPTION_SIZE:
        if (parse_bytes(text, &value->integer) && value->integer > 0) return OK;
        return option_value_mismatch(option, "a size in bytes such as 20GiB", text);
    case OPTION_KEEP: { // "N steps", or a size with its unit
        const size_t digits = strspn(text, "0123456789");
        int64_t *const steps = &value->keep.steps;
        if (!strcmp(text + digits, " steps") || !strcmp(text + digits, " step"))
            for (size_t i = 0; digits <= 15 && i < digits; i++) *steps = *steps * 10 + (text[i] - '0');
        else if (digits <= 15 && text[digits] && !parse_bytes(text, &value->keep.bytes))
            value->keep.bytes = 0;
        if (*steps > 0 || value->keep.bytes > 0) return OK;
        return fail(USAGE, "%s: '%s' is none of %s, a number of steps such as '100 steps' and a size such as 20GiB",
                    option->name, text, option->choices);
    }
    }
    return fail(BUG, "%s: an option without a type", option->name);
}

bool option_same_value(const struct option *option, const char *a, const char *b) {
    const struct option_part *part = &option_parts[option->type];
    struct option_value x, y;
    if (!strcmp(a, b)) return true;
    if (option->type < OPTION_CHOICE || option_value_parse(&x, option, a) != OK ||
        option_value_parse(&y, option, b) != OK)
        return false;
    return !memcmp((const char *)&x + part->offset, (const char *)&y + part->offset, part->size);
}

// Checks a parsed value against the bounds of a number.
static status option_value_check_bounds(const struct option_value *value, const struct option *option,
                                        const char *text) {
    const bool number = option->type == OPTION_INT || option->type == OPTION_NUMBER;
    const double from = value->range.from;
    if (!number || value->choice >= 0 || (from >= option->low && from <= option->high)) return OK;
    return option_value_out_of_range(option, text);
}

status option_check(const struct option *option, const char *value) {
    struct option_value parsed;
    TRY(option_value_parse(&parsed, option, value));
    return option_value_check_bounds(&parsed, option, value);
}

bool option_file_exists(const struct option *option, const char *path) {
    struct stat info;
    if (stat(path, &info)) return false;
    errno = ENOTDIR;
    return !option->directory || S_ISDIR(info.st_mode);
}

static bool option_is_path(const struct option *option, const char *value) {
    return option->type == OPTION_PATH || (option->type == OPTION_FILE && choice_index(option->choices, value) < 0);
}

char *option_absolute(const struct option *option, const char *dir, const char *value, struct arena *arena) {
    if (!option_is_path(option, value) || !*value) return arena_strndup(arena, value, strlen(value));
    if (!dir || !*dir) dir = ".";
    while (value[0] == '.' && value[1] == '/') value += 2 + strspn(value + 2, "/");
    if (!*value || !strcmp(value, ".")) return arena_strndup(arena, dir, strlen(dir));
    return strcmp(dir, ".") ? path_join(arena, dir, value) : arena_strndup(arena, value, strlen(value));
}

// ---- keys ----

struct key *key_list_find(const struct key_list *keys, const char *name) {
    for (struct key *key = keys->first; key; key = key->next)
        if (!strcmp(key->name, name)) return key;
    return NULL;
}

size_t key_list_count(const struct key_list *keys) {
    size_t count = 0;
    for (const struct key *key = keys->first; key; key = key->next) count++;
    return count;
}

struct key *key_list_set(struct key_list *keys, struct arena *arena, const char *name, const char *value,
                         struct location name_at, struct location value_at) {
    struct key **link = &keys->first;
    while (*link && strcmp((*link)->name, name) != 0) link = &(*link)->next;
    struct key *key = *link;
    if (!key) {
        key = *link = arena_alloc(arena, sizeof *key);
        *key = (struct key){.name = arena_strndup(arena, name, strlen(name))};
    }
    key->value = value ? arena_strndup(arena, value, strlen(value)) : NULL;
    key->name_at = name_at;
    key->value_at = value_at;
    key->items = NULL;
    key->stored = false;
    return key;
}

// ---- options ----

// Stores a parsed value in the option's field. A string is not copied.
static void options_store(struct options *options, const struct option *option, const struct option_value *value) {
    char *field = (char *)options->values + option->offset;
    assert(option->offset < options->table->size);
    if (option->repeatable) {
        struct string_list *list = (struct string_list *)(void *)field;
        const char **longer = arena_alloc(&options->arena, (list->count + 1) * sizeof *longer);
        if (list->count) memcpy(longer, list->data, list->count * sizeof *longer);
        longer[list->count++] = value->text;
        list->data = longer;
        return;
    }
    const struct option_part *part = &option_parts[option->type];
    memcpy(field, (const char *)value + part->offset, part->size);
}

void options_init(struct options *options, const struct option_table *table, void *values) {
    const struct option *const lists[] = {table->options, table->common, table->internal};
    *options = (struct options){.table = table, .values = values};
    if (table->size) memset(values, 0, table->size);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        for (const struct option *option = lists[i]; option && option->name; option++) {
            struct option_value value;
            if (!option->default_value) continue;
            const status result = option_value_parse(&value, option, option->default_value);
            assert(result == OK);
            (void)result;
            options_store(options, option, &value);
        }
    }
}

void options_release(struct options *options) {
    arena_release(&options->arena);
    *options = (struct options){0};
}

status options_set(struct options *options, const char *name, const char *value) {
    const struct option *option = option_find_any(options->table, name);
    struct option_value parsed;
    assert(value);
    if (!option) {
        struct nearest nearest = nearest_to(name);
        nearest_offer_all(&nearest, options->table);
        return fail(USAGE, "%s: no such key%s", name, nearest_question(&nearest));
    }
    const struct key *before = key_list_find(&options->given, option->name);
    const struct location nowhere = {0, 0};
    struct key *key = key_list_set(&options->given, &options->arena, option->name, value,
                                   before ? before->name_at : nowhere, before ? before->value_at : nowhere);
    TRY(option_value_parse(&parsed, option, key->value));
    options_store(options, option, &parsed);
    key->stored = true;
    TRY(option_value_check_bounds(&parsed, option, value));
    if (option->type == OPTION_FILE && !options->any_files && choice_index(option->choices, value) < 0 &&
        !option_file_exists(option, value))
        return fail(file_read_status(errno), "%s: %s: %s", option->name, value, strerror(errno));
    return OK;
}

// ---- reading the struct back ----

double options_number(const struct options *options, const struct option *option) {
    const char *field = (const char *)options->values + option->offset;
    int64_t integer;
    double number;
    if (option->type == OPTION_INT) {
        memcpy(&integer, field, sizeof integer);
        return (double)integer;
    }
    assert(option->type == OPTION_NUMBER || option->type == OPTION_RANGE);
    memcpy(&number, field, sizeof number);
    return number;
}

// ---- rules ----

bool options_next_broken_rule(const struct options *options, struct broken_rule *broken) {
    while ((broken->option = options_next(options->table, broken->option))) {
        const struct option *option = broken->option;
        if (!option->rule) continue;
        const struct option *other = option_find(options->table, option->other);
        const struct key *key = key_list_find(&options->given, option->name),
                         *other_key = key_list_find(&options->given, other->name), *either = key ? key : other_key;
        // NULL: there is no default, or what was given has the wrong form.
        const char *value = key ? key->value : option->default_value,
                   *other_value = other_key ? other_key->value : other->default_value;
        const bool applies = value && option->this_value && !strcmp(value, option->this_value);
        const bool stored = (!key || key->stored) && (!other_key || other_key->stored);
        const size_t size = sizeof broken->text;
        if (either) broken->at = either->value_at;
        if (option->rule == RULE_NEEDS && applies && !other_key) {
            snprintf(broken->text, size, "missing: %s, for %s: %s", other->name, option->name, value);
        } else if (option->rule == RULE_CONFLICTS && applies && other_value &&
                   !strcmp(other_value, option->other_value)) {
            snprintf(broken->text, size, "%s: %s does not go with %s: %s", option->name, value, other->name,
                     other_value);
        } else if (option->rule == RULE_INSTEAD_OF && key && other_key) {
            broken->at = key->name_at;
            snprintf(broken->text, size, "%s: cannot be given together with %s", option->name, other->name);
        } else if (option->rule == RULE_NOT_ABOVE && either && stored &&
                   options_number(options, option) > options_number(options, other)) {
            snprintf(broken->text, size, "%s: %s is above %s, which is %s", option->name, value, other->name,
                     other_value);
        } else {
            continue;
        }
        return true;
    }
    return false;
}

// ---- hashes ----

uint64_t options_hash(const struct options *options, bool portable) {
    XXH3_state_t *state = mem_checked(XXH3_createState());
    XXH3_64bits_reset(state);
    for (const struct option *option = NULL; (option = options_next(options->table, option));) {
        if (option->not_hashed) continue;
        const char *field = (const char *)options->values + option->offset, *word = NULL;
        size_t length = 0;
        double ends[2] = {0, 0};
        assert(!option->repeatable && option->type != OPTION_KEEP && option->type != OPTION_SIZE);
        if (option->type == OPTION_BOOL) {
            word = *(const bool *)field ? "1" : "0";
            length = 1;
        } else if (option->type == OPTION_CHOICE) {
            word = option->choices;
            for (int index = *(const int *)(const void *)field; index > 0; index--) word += strcspn(word, "|") + 1;
            length = strcspn(word, "|");
        } else if (option->type >= OPTION_INT) {
            ends[0] = options_number(options, option) + 0.0; // -0 is hashed as 0
            if (option->type == OPTION_RANGE) memcpy(&ends[1], field + sizeof(double), sizeof ends[1]);
            if (ends[0] == 0 && !option->default_value) continue; // unset
            if (isnan(ends[0])) word = option->choices, length = strlen(word);
        } else {
            memcpy(&word, field, sizeof word);
            if (!word || (portable && (option->type == OPTION_DEVICE || option_is_path(option, word)))) continue;
            length = strlen(word);
        }
        XXH3_64bits_update(state, option->name, strlen(option->name) + 1);
        if (word) {
            XXH3_64bits_update(state, word, length);
            XXH3_64bits_update(state, "", 1);
        } else {
            XXH3_64bits_update(state, ends, sizeof ends); // by value, so that 1 and 1.0 are the same
        }
    }
    const uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}
