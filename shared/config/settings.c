// A value for each key of a table. Getters abort on a key or type that the table lacks: the caller is wrong, not the
// user.
#include "shared/config/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/config/stage_kinds.h"
#include "shared/config/table.h"
#include "shared/config/option_value.h"

struct settings {
    const struct option_table *table;
    const struct option **keys; // the table's, then the common ones
    struct value *values;
    size_t count;
};

static bool same_name(const char *a, const char *b) {
    for (; *a && *b; a++, b++)
        if (*a != *b && !(*a == '_' && *b == '-')) return false;
    return *a == *b;
}

const struct option *option_find(const struct option_table *table, const char *name) {
    for (const struct option *key = table->options; key->name; key++)
        if (same_name(key->name, name)) return key;
    if (table->stage)
        for (const struct option *key = options_common(); key->name; key++)
            if (same_name(key->name, name)) return key;
    return NULL;
}

static size_t count_keys(const struct option *keys) {
    size_t count = 0;
    while (keys[count].name) count++;
    return count;
}

static void release_value(struct value *value) {
    for (size_t i = 0; i < value->count; i++) free(value->texts[i]);
    free(value->texts);
    free(value->text);
}

// Puts one more text behind the others.
static status add_text(struct value *value, const char *text) {
    TRY(RESIZE(&value->texts, value->count + 1));
    value->texts[value->count] = strdup(text);
    if (!value->texts[value->count]) return fail_oom();
    value->count++;
    return OK;
}

static status set_value(struct value *value, const struct option *key, const char *text) {
    struct value fresh = {0};
    TRY(value_read(&fresh, key, text));
    if (key->repeatable) TRY(add_text(value, text));
    fresh.text = strdup(text);
    if (!fresh.text) return fail_oom();
    free(value->text);
    fresh.texts = value->texts;
    fresh.count = value->count;
    *value = fresh;
    return OK;
}

static status set_standards(struct settings *settings) {
    for (size_t i = 0; i < settings->count; i++) {
        struct value *value = &settings->values[i];
        *value = (struct value){.from = NAN, .to = NAN, .whole = INT64_MIN};
        if (settings->keys[i]->default_value)
            TRY(set_value(value, settings->keys[i], settings->keys[i]->default_value));
    }
    return OK;
}

status settings_new_table(struct settings **out, const struct option_table *table) {
    *out = NULL;
    struct settings *fresh;
    TRY(NEW(&fresh, 1));
    status result;
    size_t own = count_keys(table->options), shared = table->stage ? count_keys(options_common()) : 0;
    fresh->table = table;
    TRY_TO(result, done, NEW(&fresh->keys, own + shared));
    TRY_TO(result, done, NEW(&fresh->values, own + shared));
    fresh->count = own + shared;
    for (size_t i = 0; i < own; i++) fresh->keys[i] = &table->options[i];
    for (size_t i = 0; i < shared; i++) fresh->keys[own + i] = &options_common()[i];
    TRY_TO(result, done, set_standards(fresh));
    *out = fresh;
    fresh = NULL;
done:
    settings_free(&fresh);
    return result;
}

status settings_new(struct settings **out, const char *stage) {
    *out = NULL;
    const struct stage_kind *kind = stage_kind_find(stage);
    if (!kind) return fail(BUG, "no stage is named %s", stage);
    return settings_new_table(out, &kind->options);
}

const struct option_table *settings_table(const struct settings *settings) {
    return settings->table;
}

void settings_free(struct settings **settings) {
    if (!*settings) return;
    for (size_t i = 0; i < (*settings)->count; i++) release_value(&(*settings)->values[i]);
    free((*settings)->values);
    free((*settings)->keys);
    free(*settings);
    *settings = NULL;
}

static status unknown_key(const struct settings *settings, const char *name) {
    const char *near = option_suggest(settings->table, name);
    if (near) return fail(USAGE, "%s: no such key; did you mean %s?", name, near);
    return fail(USAGE, "%s: no such key", name);
}

status settings_set(struct settings *settings, const char *name, const char *text) {
    const struct option *key = option_find(settings->table, name);
    if (!key) return unknown_key(settings, name);
    size_t i = 0;
    while (settings->keys[i] != key) i++;
    struct value *value = &settings->values[i];
    TRY(set_value(value, key, text));
    value->given = true;
    if (key->type == OPTION_FILE && !value->is_choice && access(text, F_OK))
        return fail(DATAERR, "%s: %s: %s", key->name, text, strerror(errno));
    return OK;
}

static const struct value *value_of(const struct settings *settings, const char *name, const struct option **key) {
    for (size_t i = 0; i < settings->count; i++) {
        if (strcmp(settings->keys[i]->name, name) != 0) continue;
        *key = settings->keys[i];
        return &settings->values[i];
    }
    fprintf(stderr, "bug: %s has no key %s\n", settings->table->program, name);
    abort();
}

static const struct value *typed_value(const struct settings *settings, const char *name, unsigned types) {
    const struct option *key;
    const struct value *value = value_of(settings, name, &key);
    if (types >> key->type & 1) return value;
    fprintf(stderr, "bug: key %s of %s asked for as another type\n", name, settings->table->program);
    abort();
}

bool settings_given(const struct settings *settings, const char *name) {
    const struct option *key;
    return value_of(settings, name, &key)->given;
}

const char *settings_text(const struct settings *settings, const char *name) {
    return typed_value(settings, name, ~(1u << OPTION_BOOL))->text;
}

const char *const *settings_texts(const struct settings *settings, const char *name, size_t *count) {
    const struct value *value = typed_value(settings, name, ~0u);
    *count = value->count;
    return (const char *const *)value->texts;
}

int64_t settings_int(const struct settings *settings, const char *name) {
    return typed_value(settings, name, 1u << OPTION_INT)->whole;
}

double settings_number(const struct settings *settings, const char *name) {
    return typed_value(settings, name, 1u << OPTION_INT | 1u << OPTION_NUMBER | 1u << OPTION_NUMBER_OR)->from;
}

bool settings_bool(const struct settings *settings, const char *name) {
    return typed_value(settings, name, 1u << OPTION_BOOL)->truth;
}

bool settings_is(const struct settings *settings, const char *name, const char *choice) {
    const struct option *key;
    const struct value *value = value_of(settings, name, &key);
    if (choice_index(key->choices, choice) < 0) {
        fprintf(stderr, "bug: key %s of %s has no choice %s\n", name, settings->table->program, choice);
        abort();
    }
    return value->text && !strcmp(value->text, choice);
}

void settings_range(const struct settings *settings, const char *name, double *from, double *to) {
    const struct value *value = typed_value(settings, name, 1u << OPTION_RANGE);
    *from = value->from;
    *to = value->to;
}

static const char *text_or(const struct settings *settings, const char *name) {
    const struct option *key;
    return value_of(settings, name, &key)->text;
}

static status check_required(const struct settings *settings) {
    struct buf names = {0};
    status result = OK;
    for (size_t i = 0; i < settings->count && result == OK; i++)
        if (settings->keys[i]->required && !settings->values[i].text)
            result = buf_printf(&names, "%s%s", names.size ? ", " : "", settings->keys[i]->name);
    if (result == OK && names.size) result = fail(USAGE, "missing: %s", names.data);
    buf_release(&names);
    return result;
}

status settings_complete(const struct settings *settings) {
    TRY(check_required(settings));
    for (size_t i = 0; i < settings->count; i++) {
        const struct option *key = settings->keys[i], *other;
        if (!key->not_above || !settings->values[i].text) continue;
        const struct value *bound = value_of(settings, key->not_above, &other);
        if (bound->text && settings->values[i].from > bound->from)
            return fail(USAGE, "%s: %s is above %s, which is %s", key->name, settings->values[i].text, key->not_above,
                        text_or(settings, key->not_above));
    }
    return OK;
}

uint64_t settings_hash(const struct settings *settings) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) abort();
    XXH3_64bits_reset(state);
    for (size_t i = 0; i < settings->count; i++) {
        const struct option *key = settings->keys[i];
        const struct value *value = &settings->values[i];
        if (key->not_hashed || !value->text) continue;
        XXH3_64bits_update(state, key->name, strlen(key->name) + 1);
        // Numbers by value, so that 1 and 1.0 find the same; the rest by their text.
        if (key->type == OPTION_BOOL) {
            XXH3_64bits_update(state, value->truth ? "1" : "0", 2);
        } else if (isnan(value->from)) {
            XXH3_64bits_update(state, value->text, strlen(value->text) + 1);
        } else {
            double ends[2] = {value->from + 0.0, isnan(value->to) ? 0.0 : value->to};
            XXH3_64bits_update(state, ends, sizeof ends);
        }
    }
    uint64_t hash = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return hash;
}
