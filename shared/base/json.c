// Trees of JSON values, on top of the reader.
#include "shared/base/json.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"

// ---- members ----

static struct json *json_member(const struct json *object, struct string key) {
    for (size_t i = 0; i < object->count; i++) {
        const struct string own = object->items[i].key;
        if (own.size == key.size && !memcmp(own.data, key.data, key.size)) return &object->items[i];
    }
    return NULL;
}

struct json *json_push(struct json *value, struct arena *arena) {
    assert(value->type == JSON_ARRAY || value->type == JSON_OBJECT);
    if (value->count == value->capacity) {
        value->capacity = value->capacity ? 2 * value->capacity : 4;
        struct json *items = arena_alloc(arena, value->capacity * sizeof *items);
        if (value->items) memcpy(items, value->items, value->count * sizeof *items);
        value->items = items;
    }
    assert(value->items);
    struct json *added = &value->items[value->count++];
    *added = (struct json){.type = JSON_NULL};
    return added;
}

// The places of an object's members by their keys, while it is read. Objects with few members have none.
struct key_index {
    uint32_t *slots; // place + 1, 0: free
    size_t size;     // of `slots`, a power of two
};

static uint32_t *json_index_slot(const struct key_index *index, const struct json *object, struct string key) {
    size_t at = XXH3_64bits(key.data, key.size) & (index->size - 1);
    for (; index->slots[at]; at = (at + 1) & (index->size - 1)) {
        const struct string own = object->items[index->slots[at] - 1].key;
        if (own.size == key.size && !memcmp(own.data, key.data, key.size)) break;
    }
    return &index->slots[at];
}

// ---- reading ----

static status json_read_items(struct json_reader *reader, struct arena *arena, struct json *out, char open) {
    enum { FEW = 16 };
    struct key_index index = {0};
    struct string key = {0};
    bool more;
    status result = json_reader_enter(reader, open);
    while (result == OK) {
        TRY_TO(result, done, json_reader_next(reader, open, &more));
        if (!more) break;
        if (open == '{') TRY_TO(result, done, json_reader_key(reader, arena, &key));
        if (open == '{' && out->count >= FEW && 2 * out->count >= index.size) {
            free(index.slots);
            index.size = 8 * out->count;
            while (index.size & (index.size - 1)) index.size &= index.size - 1;
            NEW(&index.slots, index.size);
            for (size_t i = 0; i < out->count; i++) *json_index_slot(&index, out, out->items[i].key) = (uint32_t)i + 1;
        }
        uint32_t *slot = index.size ? json_index_slot(&index, out, key) : NULL;
        struct json *item = open == '[' ? NULL : !slot ? json_member(out, key) : *slot ? &out->items[*slot - 1] : NULL;
        if (!item) { // it moves when another one is added, not before it is read
            item = json_push(out, arena);
            if (open == '{') arena_string(arena, &item->key, key.data, key.size);
            if (slot) *slot = (uint32_t)out->count;
        }
        const struct string own = item->key;
        *item = (struct json){.key = own};
        result = json_reader_value(reader, arena, item);
    }
done:
    free(index.slots);
    return result;
}

status json_reader_value(struct json_reader *reader, struct arena *arena, struct json *out) {
    const char c = json_reader_peek(reader);
    struct json_number number;
    switch (c) {
    case '{':
        out->type = JSON_OBJECT;
        return json_read_items(reader, arena, out, c);
    case '[':
        out->type = JSON_ARRAY;
        return json_read_items(reader, arena, out, c);
    case '"':
        out->type = JSON_STRING;
        TRY(json_reader_string(reader, arena, &out->text));
        break;
    case 't':
    case 'f':
        out->type = JSON_BOOL;
        out->boolean = c == 't';
        return json_reader_literal(reader, out->boolean ? "true" : "false");
    case 'n':
        return json_reader_literal(reader, "null");
    default:
        out->type = JSON_NUMBER;
        TRY(json_reader_number(reader, &number));
        out->text = number.text;
    }
    arena_string(arena, &out->text, out->text.data, out->text.size);
    return OK;
}

status json_parse(struct json **out, struct arena *arena, const char *data, size_t size) {
    struct json_reader reader = {.text = data, .size = size};
    struct json *root = json_new(arena, JSON_NULL);
    *out = NULL;
    TRY(json_reader_value(&reader, arena, root));
    TRY(json_reader_end(&reader));
    if (root->type != JSON_NULL) *out = root;
    return OK;
}

status json_parse_object(struct json **out, struct arena *arena, const char *text, size_t size, const char *name) {
    status result = json_parse(out, arena, text ? text : "", size);
    if (result == OK && !json_is(*out, JSON_OBJECT)) result = fail(DATAERR, "not a JSON object");
    if (result == OK) return OK;
    *out = NULL;
    return fail_prefix(result, "%s", name);
}

status json_parse_file(struct json **out, struct arena *arena, const char *path) {
    struct buf content = {0};
    *out = NULL;
    status result = file_read(path, &content);
    if (result == OK && file_is_lfs_pointer(content.data, content.size))
        result = fail(DATAERR, "%s: a pointer of Git LFS, not the file: type git lfs pull in its directory", path);
    if (result == OK) result = json_parse_object(out, arena, content.data, content.size, path);
    buf_release(&content);
    return result;
}

bool json_is(const struct json *value, enum json_type type) {
    return value && value->type == type;
}

bool json_find(const struct json *object, const char *key, struct json **out) {
    struct json *found = json_is(object, JSON_OBJECT) ? json_member(object, string_of(key)) : NULL;
    if (out) *out = found && found->type != JSON_NULL ? found : NULL;
    return found != NULL;
}

struct json *json_at(const struct json *object, const char *key) {
    struct json *value;
    json_find(object, key, &value);
    return value;
}

size_t json_count(const struct json *value) {
    return value ? value->count : 0;
}

struct json *json_item(const struct json *array, size_t i) {
    assert(i < array->count);
    return array->items[i].type != JSON_NULL ? &array->items[i] : NULL;
}

status json_get(const struct json *object, const char *key, enum json_type type, struct json **out) {
    static const char *const names[] = {"null", "boolean", "number", "string", "array", "object"};
    if (!json_find(object, key, out) || !*out || (*out)->type == type) return OK;
    const enum json_type got = (*out)->type;
    *out = NULL;
    return fail(DATAERR, "%s: expected %s, not %s", key, names[type], names[got]);
}

status json_require(const struct json *object, const char *key, enum json_type type, struct json **out) {
    TRY(json_get(object, key, type, out));
    return *out ? OK : fail(DATAERR, "%s: missing", key);
}

status json_get_bool(const struct json *object, const char *key, bool otherwise, bool *out) {
    struct json *value;
    TRY(json_get(object, key, JSON_BOOL, &value));
    *out = value ? value->boolean : otherwise;
    return OK;
}

struct string json_string(const struct json *value) {
    return json_is(value, JSON_STRING) ? value->text : (struct string){0};
}

const char *json_text(const struct json *value) {
    static const char *const words[] = {"null", "a boolean", NULL, NULL, "an array", "an object"};
    if (json_is(value, JSON_BOOL)) return value->boolean ? "true" : "false";
    return !value ? words[0] : words[value->type] ? words[value->type] : value->text.data;
}

// Whether the value is a number, which *out then is.
static bool json_number_of(const struct json *value, struct json_number *out) {
    if (!json_is(value, JSON_NUMBER)) return false;
    struct json_reader reader = {.text = value->text.data, .size = value->text.size};
    return json_reader_number(&reader, out) == OK;
}

bool json_int(const struct json *value, int64_t *out) {
    struct json_number number;
    return json_number_of(value, &number) && json_number_int(&number, out);
}

bool json_double(const struct json *value, double *out) {
    struct json_number number;
    return json_number_of(value, &number) && json_number_double(&number, out);
}

bool json_float(const struct json *value, float *out) {
    struct json_number number;
    return json_number_of(value, &number) && json_number_float(&number, out);
}

int64_t json_int_or(const struct json *value, int64_t otherwise) {
    int64_t number;
    return json_int(value, &number) ? number : otherwise;
}

double json_double_or(const struct json *value, double otherwise) {
    double number;
    return json_double(value, &number) ? number : otherwise;
}

// ---- making ----

struct json *json_new(struct arena *arena, enum json_type type) {
    struct json *value = arena_alloc(arena, sizeof *value);
    value->type = type;
    return value;
}

struct json *json_set(struct json *object, struct arena *arena, const char *key) {
    assert(object->type == JSON_OBJECT);
    struct json *member = json_member(object, string_of(key));
    if (!member) {
        member = json_push(object, arena);
        arena_string(arena, &member->key, key, strlen(key));
    }
    *member = (struct json){.key = member->key};
    return member;
}

void json_set_string(struct json *object, struct arena *arena, const char *key, const char *text) {
    struct json *member = json_set(object, arena, key);
    member->type = JSON_STRING;
    arena_string(arena, &member->text, text, strlen(text));
}

void json_set_int(struct json *object, struct arena *arena, const char *key, int64_t value) {
    char text[JSON_NUMBER_SIZE];
    struct json *member = json_set(object, arena, key);
    member->type = JSON_NUMBER;
    arena_string(arena, &member->text, text, (size_t)(json_put_int(text, value) - text));
}

void json_remove(struct json *object, const char *key) {
    struct json *member = json_member(object, string_of(key));
    if (!member) return;
    const size_t behind = (size_t)(object->items + object->count - member) - 1;
    memmove(member, member + 1, behind * sizeof *member);
    object->count--;
}

void json_merge(struct json *object, struct arena *arena, const struct json *changes) {
    for (size_t i = 0; i < changes->count; i++) {
        const struct json *change = &changes->items[i];
        struct json *inner = json_at(object, change->key.data);
        if (change->type == JSON_OBJECT && json_is(inner, JSON_OBJECT)) {
            json_merge(inner, arena, change);
        } else {
            struct json *member = json_set(object, arena, change->key.data);
            const struct string key = member->key;
            *member = *change;
            member->key = key;
        }
    }
}

// ---- printing ----

void json_print(struct buf *out, const struct json *value) {
    static const char *const words[] = {"false", "true"};
    if (!value || value->type == JSON_NULL)
        buf_puts(out, "null");
    else if (value->type == JSON_BOOL)
        buf_puts(out, words[value->boolean]);
    else if (value->type == JSON_NUMBER)
        buf_append(out, value->text.data, value->text.size);
    else if (value->type == JSON_STRING)
        json_print_string(out, value->text.data, value->text.size);
    if (!value || value->type < JSON_ARRAY) return;
    const bool object = value->type == JSON_OBJECT;
    buf_puts(out, object ? "{" : "[");
    for (size_t i = 0; i < value->count; i++) {
        const struct json *item = &value->items[i];
        if (i) buf_puts(out, ",");
        if (object) json_print_string(out, item->key.data, item->key.size);
        if (object) buf_puts(out, ":");
        json_print(out, item);
    }
    buf_puts(out, object ? "}" : "]");
}
