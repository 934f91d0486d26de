// From JSON to a group, by the table of fields.
#include <math.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/group/fields.h"

static status read_object(struct arena *arena, const struct field_table *table, void *thing, json_object *json,
                          const struct place *place);

static status read_text(struct arena *arena, struct string *out, json_object *json, const struct place *place) {
    if (!json_object_is_type(json, json_type_string)) return refuse_at(place, "not a text");
    *out = json_string(json);
    out->data = arena_strndup(arena, out->data, out->size);
    return out->data ? OK : fail_oom();
}

static status keep_json(struct arena *arena, struct string *out, json_object *json) {
    struct buf printed = {0};
    status result = json_print(&printed, json);
    if (result == OK) {
        *out = (struct string){arena_strndup(arena, printed.data, printed.size), printed.size};
        if (!out->data) result = fail_oom();
    }
    buf_release(&printed);
    return result;
}

static status read_span(struct span *out, json_object *json, const struct place *place) {
    *out = (struct span){-1, -1};
    if (!json) return OK;
    if (!json_object_is_type(json, json_type_array) || json_object_array_length(json) != 2 ||
        !json_int(json_object_array_get_idx(json, 0), &out->first) ||
        !json_int(json_object_array_get_idx(json, 1), &out->end) || out->first < 0 || out->end < out->first)
        return refuse_at(place, "not [first, end] or null");
    return OK;
}

static status read_list(struct arena *arena, const struct field *field, void *at, json_object *json,
                        const struct place *place);

static status read_row(struct arena *arena, struct float_array *row, json_object *json, const struct place *place) {
    static const struct field floats = {.type = FIELD_FLOATS};
    return json ? read_list(arena, &floats, row, json, place) : OK;
}

static status read_element(struct arena *arena, const struct field *field, void *at, json_object *json,
                           const struct place *place) {
    switch (field->type) {
    case FIELD_INTS:
        return json_int(json, at) ? OK : refuse_at(place, "not a whole number");
    case FIELD_FLOATS:
        if (!json) *(float *)at = NAN;
        return !json || json_float(json, at) ? OK : refuse_at(place, "not a number in the range of a float32");
    case FIELD_DOUBLES:
        if (!json) *(double *)at = NAN;
        return !json || json_double(json, at) ? OK : refuse_at(place, "not a number in the range of a double");
    case FIELD_STRINGS:
        return json ? read_text(arena, at, json, place) : OK;
    case FIELD_SPANS:
        return read_span(at, json, place);
    case FIELD_ROWS:
        return read_row(arena, at, json, place);
    default:
        return read_object(arena, field->table, at, json, place);
    }
}

static status read_list(struct arena *arena, const struct field *field, void *at, json_object *json,
                        const struct place *above) {
    if (!json_object_is_type(json, json_type_array)) return refuse_at(above, "not a list");
    size_t count = json_object_array_length(json), size = field_element(field);
    TRY(list_new(arena, at, count, size));
    for (size_t i = 0; i < count; i++) {
        struct place place = {above, NULL, i};
        TRY(read_element(arena, field, (char *)((struct list *)at)->data + i * size, json_object_array_get_idx(json, i),
                         &place));
    }
    return OK;
}

// Content is a list of parts, or a plain string, which becomes one part.
static status read_content(struct arena *arena, const struct field *field, struct message *message, json_object *json,
                           const struct place *place) {
    if (!json_object_is_type(json, json_type_string)) return read_list(arena, field, &message->parts, json, place);
    TRY(list_new(arena, &message->parts, 1, sizeof *message->parts));
    message->plain = true;
    return read_text(arena, &message->parts[0].text, json, place);
}

static status read_field(struct arena *arena, const struct field *field, void *thing, json_object *json,
                         const struct place *place) {
    void *at = (char *)thing + field->offset;
    switch (field->type) {
    case FIELD_INT:
        return json_int(json, at) ? OK : refuse_at(place, "not a whole number");
    case FIELD_DOUBLE:
        return json_double(json, at) ? OK : refuse_at(place, "not a number");
    case FIELD_STRING:
        return read_text(arena, at, json, place);
    case FIELD_OBJECT:
        *(bool *)((char *)at + field->table->present) = true;
        return read_object(arena, field->table, at, json, place);
    case FIELD_CONTENT:
        return read_content(arena, field, thing, json, place);
    case FIELD_JSON:
        return json_object_is_type(json, json_type_object) ? keep_json(arena, at, json)
                                                           : refuse_at(place, "not an object");
    default:
        return read_list(arena, field, at, json, place);
    }
}

static status keep_unknown(struct arena *arena, struct unknown_fields *unknown, const char *key, json_object *json) {
    struct string name = {arena_strndup(arena, key, strlen(key)), strlen(key)}, value = {0};
    if (!name.data) return fail_oom();
    TRY(keep_json(arena, &value, json));
    return unknown_add(arena, unknown, name, value);
}

static status read_object(struct arena *arena, const struct field_table *table, void *thing, json_object *json,
                          const struct place *above) {
    if (!json_object_is_type(json, json_type_object)) return refuse_at(above, "not an object");
    fields_clear(table, thing);
    json_object_object_foreach(json, key, value) {
        const struct field *field = field_find(table, key, strlen(key));
        struct place place = {above, key, 0};
        if (!field)
            TRY(keep_unknown(arena, thing, key, value));
        else if (value)
            TRY(read_field(arena, field, thing, value, &place));
    }
    return fields_check(table, thing, above);
}

status group_from_json(struct group **out, const char *json, size_t size) {
    *out = NULL;
    json_object *object = NULL;
    status result = json_parse(&object, json, size);
    if (result != OK) return fail_prefix(result, "not a group");
    TRY_TO(result, done, group_new(out));
    struct place root = {0};
    result = read_object(&(*out)->arena, &group_table, *out, object, &root);
    if (result != OK) group_free(out);
done:
    json_object_put(object);
    return result;
}
