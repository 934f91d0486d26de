// Options as a table and as the struct that is filled from it.
#include "shared/config/options.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/config/option_value.h"

const struct option *options_next(const struct option_table *table, const struct option *option) {
    const struct option *next = option ? option + 1 : table->options ? table->options : table->common;
    if (next && !next->name) {
        const struct option *end = table->options;
        while (end && end->name) end++;
        next = next == end ? table->common : NULL;
    }
    return next && next->name ? next : NULL;
}

// The option's bit in `given` of struct options.
static uint64_t options_bit(const struct option_table *table, const struct option *option) {
    unsigned index = 0;
    for (const struct option *other = NULL; (other = options_next(table, other)) != option;) index++;
    assert(index < 64);
    return UINT64_C(1) << index;
}

// ---- names ----

static bool options_same_char(char a, char b) {
    return a == b || (a == '-' && b == '_') || (a == '_' && b == '-');
}

const struct option *option_find(const struct option_table *table, const char *name) {
    for (const struct option *option = NULL; (option = options_next(table, option));) {
        size_t i = 0;
        while (option->name[i] && options_same_char(option->name[i], name[i])) i++;
        if (!option->name[i] && !name[i]) return option;
    }
    return NULL;
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

const char *option_suggest(const struct option_table *table, const char *name) {
    struct nearest nearest = nearest_to(name);
    for (const struct option *option = NULL; (option = options_next(table, option));)
        if (!option->hidden) nearest_offer(&nearest, option->name);
    return nearest.name;
}

// ---- values ----

char *option_absolute(const struct option *option, const char *dir, const char *value, struct arena *arena) {
    bool path =
        option->type == OPTION_PATH || (option->type == OPTION_FILE && choice_index(option->choices, value) < 0);
    if (!path || !*value) return arena_strndup(arena, value, strlen(value));
    if (!dir || !*dir) dir = ".";
    while (value[0] == '.' && value[1] == '/') value += 2 + strspn(value + 2, "/");
    if (!*value || !strcmp(value, ".")) return arena_strndup(arena, dir, strlen(dir));
    return strcmp(dir, ".") ? path_join(arena, dir, value) : arena_strndup(arena, value, strlen(value));
}

// Parses a string and stores it in the option's field.
static status options_store(struct options *options, const struct option *option, const char *text) {
    struct option_value value;
    TRY(option_value_parse(&value, option, text));
    char *field = (char *)options->values + option->offset;
    assert(option->offset < options->table->size);
    switch (option->type) {
    case OPTION_STRING:
    case OPTION_FILE:
    case OPTION_PATH:
    case OPTION_NAME:
    case OPTION_DEVICE: {
        const char *copy = arena_strndup(&options->arena, text, strlen(text));
        if (option->repeatable) {
            struct string_list *list = (struct string_list *)(void *)field;
            const char **longer = arena_alloc(&options->arena, (list->count + 1) * sizeof *longer);
            if (list->count) memcpy(longer, list->data, list->count * sizeof *longer);
            longer[list->count++] = copy;
            list->data = longer;
        } else {
            memcpy(field, &copy, sizeof copy);
        }
        return OK;
    }
    case OPTION_CHOICE:
        memcpy(field, &value.choice, sizeof value.choice);
        return OK;
    case OPTION_INT:
    case OPTION_SIZE:
        memcpy(field, &value.integer, sizeof value.integer);
        return OK;
    case OPTION_NUMBER:
    case OPTION_NUMBER_OR:
        memcpy(field, &value.range.from, sizeof value.range.from);
        return OK;
    case OPTION_RANGE:
        memcpy(field, &value.range, sizeof value.range);
        return OK;
    case OPTION_BOOL:
        memcpy(field, &value.boolean, sizeof value.boolean);
        return OK;
    case OPTION_KEEP:
        memcpy(field, &value.keep, sizeof value.keep);
        return OK;
    }
    return fail(BUG, "%s: an option without a type", option->name);
}

status options_init(struct options *options, const struct option_table *table, void *values) {
    *options = (struct options){.table = table, .values = values};
    if (table->size) memset(values, 0, table->size);
    for (const struct option *option = NULL; (option = options_next(table, option));)
        if (option->default_value) TRY(options_store(options, option, option->default_value));
    return OK;
}

void options_release(struct options *options) {
    arena_release(&options->arena);
    *options = (struct options){0};
}

status options_set(struct options *options, const char *name, const char *value) {
    const struct option *option = option_find(options->table, name);
    if (!option) {
        const char *near = option_suggest(options->table, name);
        if (near) return fail(USAGE, "%s: no such key; did you mean %s?", name, near);
        return fail(USAGE, "%s: no such key", name);
    }
    TRY(options_store(options, option, value));
    options->given |= options_bit(options->table, option);
    if (option->type == OPTION_FILE && !options->any_files && choice_index(option->choices, value) < 0 &&
        access(value, F_OK))
        return fail(file_read_status(errno), "%s: %s: %s", option->name, value, strerror(errno));
    return OK;
}

// ---- reading the struct back ----

static const char *options_string(const struct options *options, const struct option *option) {
    const char *string;
    memcpy(&string, (const char *)options->values + option->offset, sizeof string);
    return string;
}

// A number's value or a range's lower end; NaN for one of the choices.
static double options_number(const struct options *options, const struct option *option) {
    const char *field = (const char *)options->values + option->offset;
    int64_t integer;
    double number;
    if (option->type == OPTION_INT) {
        memcpy(&integer, field, sizeof integer);
        return (double)integer;
    }
    assert(option->type == OPTION_NUMBER || option->type == OPTION_NUMBER_OR || option->type == OPTION_RANGE);
    memcpy(&number, field, sizeof number);
    return number;
}

static bool options_has_choice(const struct options *options, const struct option *option, const char *word) {
    assert(option && (option->type == OPTION_CHOICE || option->type == OPTION_NAME));
    if (option->type == OPTION_NAME) {
        const char *value = options_string(options, option);
        return value && !strcmp(value, word);
    }
    const void *field = (const char *)options->values + option->offset;
    return *(const int *)field == choice_index(option->choices, word);
}

status options_check(const struct options *options) {
    struct buf names = {0};
    status result = OK;
    for (const struct option *option = NULL; (option = options_next(options->table, option)) && result == OK;)
        if (option->required && !options_string(options, option))
            buf_printf(&names, "%s%s", names.size ? ", " : "", option->name);
    if (result == OK && names.size) result = fail(USAGE, "missing: %s", names.data);
    buf_release(&names);
    for (const struct option *option = NULL; (option = options_next(options->table, option)) && result == OK;) {
        const struct option_exclusion *excluded = &option->excludes;
        if (excluded->value && options_has_choice(options, option, excluded->value)) {
            const struct option *other = option_find(options->table, excluded->name);
            if (!excluded->other && !options_string(options, other))
                result = fail(USAGE, "missing: %s, for %s: %s", other->name, option->name, excluded->value);
            if (excluded->other && options_has_choice(options, other, excluded->other))
                result = fail(USAGE, "%s: %s does not go with %s: %s", option->name, excluded->value, excluded->name,
                              excluded->other);
        }
        if (option->instead_of) {
            const struct option *other = option_find(options->table, option->instead_of);
            uint64_t both = options_bit(options->table, option) | options_bit(options->table, other);
            if ((options->given & both) == both)
                result = fail(USAGE, "%s: cannot be given together with %s", option->name, other->name);
        }
        if (!option->not_above || result != OK) continue;
        const struct option *bound = option_find(options->table, option->not_above);
        assert(bound);
        double low = options_number(options, option), high = options_number(options, bound);
        if (low > high)
            result = fail(USAGE, "%s: %.15g is above %s, which is %.15g", option->name, low, bound->name, high);
    }
    return result;
}

void options_hash(const struct options *options, uint64_t *hash) {
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
            word = options_string(options, option);
            if (!word) continue;
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
    *hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
}
