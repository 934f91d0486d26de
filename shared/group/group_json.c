// A group as one line of JSON, both ways, by the table of fields. Known keys are written in the table's order, then the
// unknown ones as they were read.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/group/fields.h"

static const struct field group_json_floats = {.type = FIELD_FLOATS};

// ---- reading ----

static status group_json_read_object(struct arena *arena, const struct field_table *table, void *object,
                                     json_object *json, const struct field_path *path);

static status group_json_read_string(struct arena *arena, struct string *out, json_object *json,
                                     const struct field_path *path) {
    struct string string = json_string(json);
    return string.data ? arena_string(arena, out, string.data, string.size) : field_fail(path, "not a string");
}

static status group_json_copy_text(struct arena *arena, struct string *out, json_object *json) {
    struct buf printed = {0};
    status result = json_print(&printed, json);
    if (result == OK) result = arena_string(arena, out, printed.data, printed.size);
    buf_release(&printed);
    return result;
}

static status group_json_read_array(struct arena *arena, const struct field *field, void *array, json_object *json,
                                    const struct field_path *path) {
    if (!json_object_is_type(json, json_type_array)) return field_fail(path, "not an array");
    size_t count = json_object_array_length(json), size = field_element_size(field);
    TRY(field_array_new(arena, array, count, size));
    char *data = field_array_load(array).data;
    for (size_t i = 0; i < count; i++) {
        const struct field_path element = {path, NULL, i};
        json_object *value = json_object_array_get_idx(json, i);
        void *at = data + i * size;
        struct span *span = at;
        switch (field->type) {
        case FIELD_INTS:
            if (!json_int(value, at)) return field_fail(&element, "not an integer");
            break;
        case FIELD_FLOATS:
            if (!value)
                *(float *)at = NAN;
            else if (!json_float(value, at))
                return field_fail(&element, "not a number in the range of a float32");
            break;
        case FIELD_DOUBLES:
            if (!value)
                *(double *)at = NAN;
            else if (!json_double(value, at))
                return field_fail(&element, "not a number in the range of a double");
            break;
        case FIELD_STRINGS:
            if (value) TRY(group_json_read_string(arena, at, value, &element));
            break;
        case FIELD_SPANS:
            *span = (struct span){-1, -1};
            if (!value) break;
            if (!json_object_is_type(value, json_type_array) || json_object_array_length(value) != 2 ||
                !json_int(json_object_array_get_idx(value, 0), &span->first) ||
                !json_int(json_object_array_get_idx(value, 1), &span->end) || span->first < 0 ||
                span->end < span->first)
                return field_fail(&element, "not [first, end] or null");
            break;
        case FIELD_ROWS:
            if (value) TRY(group_json_read_array(arena, &group_json_floats, at, value, &element));
            break;
        default:
            assert(field->table);
            TRY(group_json_read_object(arena, field->table, at, value, &element));
        }
    }
    return OK;
}

static status group_json_read_object(struct arena *arena, const struct field_table *table, void *object,
                                     json_object *json, const struct field_path *path) {
    if (!json_object_is_type(json, json_type_object)) return field_fail(path, "not an object");
    fields_clear(table, object);
    json_object_object_foreach(json, key, value) {
        const struct field *field = field_find(table, key, strlen(key));
        const struct field_path member = {path, key, 0};
        if (!field) {
            struct string name, text;
            TRY(arena_string(arena, &name, key, strlen(key)));
            TRY(group_json_copy_text(arena, &text, value));
            TRY(fields_add_unknown(arena, object, name, text));
            continue;
        }
        if (!value) continue;
        void *at = (char *)object + field->offset;
        struct message *message = object; // of FIELD_CONTENT
        switch (field->type) {
        case FIELD_INT:
            if (!json_int(value, at)) return field_fail(&member, "not an integer");
            break;
        case FIELD_DOUBLE:
            if (!json_double(value, at)) return field_fail(&member, "not a number");
            break;
        case FIELD_STRING:
            TRY(group_json_read_string(arena, at, value, &member));
            break;
        case FIELD_OBJECT:
            *(bool *)((char *)at + field->table->present) = true;
            TRY(group_json_read_object(arena, field->table, at, value, &member));
            break;
        case FIELD_CONTENT: // a plain string becomes one part
            message->plain = json_object_is_type(value, json_type_string);
            if (message->plain) {
                TRY(field_array_new(arena, at, 1, sizeof *message->parts));
                TRY(group_json_read_string(arena, &message->parts[0].text, value, &member));
            } else {
                TRY(group_json_read_array(arena, field, at, value, &member));
            }
            break;
        case FIELD_JSON:
            if (!json_object_is_type(value, json_type_object)) return field_fail(&member, "not an object");
            TRY(group_json_copy_text(arena, at, value));
            break;
        default:
            TRY(group_json_read_array(arena, field, at, value, &member));
        }
    }
    return fields_check(table, object, path);
}

status group_from_json(struct group **out, const char *json, size_t size) {
    *out = NULL;
    json_object *object = NULL;
    status result = json_parse(&object, json, size);
    if (result != OK) return fail_prefix(result, "not a group");
    TRY_TO(result, done, group_new(out));
    result = group_json_read_object(&(*out)->arena, &group_table, *out, object, &(struct field_path){0});
    if (result != OK) group_free(out);
done:
    json_object_put(object);
    return result;
}

// ---- writing ----

static status group_json_write_object(struct buf *out, const struct field_table *table, const void *object);

// Writes an array of numbers into memory that is reserved for all of them at once.
static status group_json_write_numbers(struct buf *out, enum field_type type, const struct field_array *array) {
    if (array->count > SIZE_MAX / 2 / (JSON_NUMBER_SIZE + 1)) return fail_oom();
    TRY(buf_reserve(out, (array->count + 1) * (JSON_NUMBER_SIZE + 1)));
    char *at = out->data + out->size;
    *at++ = '[';
    for (size_t i = 0; i < array->count; i++) {
        if (i) *at++ = ',';
        if (type == FIELD_INTS)
            at = json_put_int(at, ((const int64_t *)array->data)[i]);
        else if (type == FIELD_FLOATS)
            at = json_put_float(at, ((const float *)array->data)[i]);
        else
            at = json_put_double(at, ((const double *)array->data)[i]);
    }
    *at++ = ']';
    *at = 0;
    out->size = (size_t)(at - out->data);
    assert(out->size < out->capacity);
    return OK;
}

static status group_json_write_array(struct buf *out, const struct field *field, const void *array) {
    struct field_array loaded = field_array_load(array);
    size_t size = field_element_size(field);
    if (field->type == FIELD_INTS || field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES)
        return group_json_write_numbers(out, field->type, &loaded);
    TRY(buf_puts(out, "["));
    for (size_t i = 0; i < loaded.count; i++) {
        const void *at = (const char *)loaded.data + i * size;
        const struct string *string = at;
        const struct span *span = at;
        if (i) TRY(buf_puts(out, ","));
        switch (field->type) {
        case FIELD_STRINGS:
            TRY(string->data ? json_print_string(out, string->data, string->size) : buf_puts(out, "null"));
            break;
        case FIELD_SPANS:
            TRY(span->first < 0 ? buf_puts(out, "null")
                                : buf_printf(out, "[%lld,%lld]", (long long)span->first, (long long)span->end));
            break;
        case FIELD_ROWS:
            TRY(field_array_load(at).data ? group_json_write_array(out, &group_json_floats, at)
                                          : buf_puts(out, "null"));
            break;
        default:
            assert(field->table);
            TRY(group_json_write_object(out, field->table, at));
        }
    }
    return buf_puts(out, "]");
}

static status group_json_write_key(struct buf *out, bool *first, const char *key, size_t size) {
    TRY(buf_puts(out, *first ? "" : ","));
    *first = false;
    TRY(json_print_string(out, key, size));
    return buf_puts(out, ":");
}

static status group_json_write_object(struct buf *out, const struct field_table *table, const void *object) {
    bool first = true;
    TRY(buf_puts(out, "{"));
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (!field_present(field, object)) continue;
        TRY(group_json_write_key(out, &first, field->name, strlen(field->name)));
        const void *at = (const char *)object + field->offset;
        const struct string *string = at;
        const struct message *message = object; // of FIELD_CONTENT
        switch (field->type) {
        case FIELD_INT:
            TRY(buf_printf(out, "%lld", (long long)*(const int64_t *)at));
            break;
        case FIELD_DOUBLE:
            TRY(json_print_double(out, *(const double *)at));
            break;
        case FIELD_STRING:
            TRY(json_print_string(out, string->data, string->size));
            break;
        case FIELD_OBJECT:
            TRY(group_json_write_object(out, field->table, at));
            break;
        case FIELD_CONTENT:
            string = message->plain ? &message->parts[0].text : NULL;
            TRY(string ? json_print_string(out, string->data, string->size) : group_json_write_array(out, field, at));
            break;
        case FIELD_JSON:
            TRY(buf_append(out, string->data, string->size));
            break;
        default:
            TRY(group_json_write_array(out, field, at));
        }
    }
    for (const struct unknown_field *u = ((const struct unknown_fields *)object)->first; u; u = u->next) {
        TRY(group_json_write_key(out, &first, u->key.data, u->key.size));
        TRY(buf_append(out, u->json.data, u->json.size));
    }
    return buf_puts(out, "}");
}

status group_to_json(const struct group *group, struct buf *out) {
    return group_json_write_object(out, &group_table, group);
}
