// From msgpack to a group, by the table of fields. What was sent is not trusted: lengths are checked against the bytes
// there are before msgpack-c allocates for them, texts must be UTF-8, unknown keys JSON.
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "shared/base/string.h"
#include "shared/base/json.h"
#include "shared/group/fields.h"
#include "shared/group/msgpack.h"

static status unpack_object(struct arena *arena, const struct field_table *table, void *thing,
                            const msgpack_object *from, const struct place *place);

static status unpack_int(int64_t *out, const msgpack_object *from, const struct place *place) {
    if (from->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ||
        (from->type == MSGPACK_OBJECT_POSITIVE_INTEGER && from->via.u64 <= INT64_MAX)) {
        *out = from->via.i64;
        return OK;
    }
    return refuse_at(place, "not a whole number");
}

static status unpack_double(double *out, const msgpack_object *from, const struct place *place) {
    if (from->type != MSGPACK_OBJECT_FLOAT64 || !isfinite(from->via.f64)) return refuse_at(place, "not a number");
    *out = from->via.f64;
    return OK;
}

static status unpack_text(struct arena *arena, struct string *out, const msgpack_object *from,
                          const struct place *place) {
    if (from->type != MSGPACK_OBJECT_STR || !utf8_valid(from->via.str.ptr, from->via.str.size))
        return refuse_at(place, "not a text");
    out->size = from->via.str.size;
    out->data = arena_strndup(arena, from->via.str.ptr, out->size);
    return out->data ? OK : fail_oom();
}

// Infinities become NaN, which is how null is kept.
static status unpack_flat(struct arena *arena, const struct field *field, void *at, const msgpack_object *from,
                          const struct place *place) {
    size_t size = field_element(field);
    if (from->type != MSGPACK_OBJECT_BIN || from->via.bin.size % size) return refuse_at(place, "not a list of numbers");
    TRY(list_new(arena, at, from->via.bin.size / size, size));
    struct list *list = at;
    if (list->count) memcpy(list->data, from->via.bin.ptr, from->via.bin.size);
    for (size_t i = 0; i < list->count; i++) {
        if (field->type == FIELD_FLOATS && !isfinite(((float *)list->data)[i])) ((float *)list->data)[i] = NAN;
        if (field->type == FIELD_DOUBLES && !isfinite(((double *)list->data)[i])) ((double *)list->data)[i] = NAN;
    }
    return OK;
}

static status unpack_span(struct span *out, const msgpack_object *from, const struct place *place) {
    *out = (struct span){-1, -1};
    if (from->type == MSGPACK_OBJECT_NIL) return OK;
    if (from->type != MSGPACK_OBJECT_ARRAY || from->via.array.size != 2) return refuse_at(place, "not [first, end]");
    TRY(unpack_int(&out->first, &from->via.array.ptr[0], place));
    TRY(unpack_int(&out->end, &from->via.array.ptr[1], place));
    return out->first >= 0 && out->end >= out->first ? OK : refuse_at(place, "not [first, end]");
}

static status unpack_element(struct arena *arena, const struct field *field, void *at, const msgpack_object *from,
                             const struct place *place) {
    static const struct field floats = {.type = FIELD_FLOATS};
    bool nil = from->type == MSGPACK_OBJECT_NIL;
    switch (field->type) {
    case FIELD_INTS:
        return unpack_int(at, from, place);
    case FIELD_STRINGS:
        return nil ? OK : unpack_text(arena, at, from, place);
    case FIELD_SPANS:
        return unpack_span(at, from, place);
    case FIELD_ROWS:
        return nil ? OK : unpack_flat(arena, &floats, at, from, place);
    default:
        return unpack_object(arena, field->table, at, from, place);
    }
}

static status unpack_list(struct arena *arena, const struct field *field, void *at, const msgpack_object *from,
                          const struct place *above) {
    if (field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES) return unpack_flat(arena, field, at, from, above);
    if (from->type != MSGPACK_OBJECT_ARRAY) return refuse_at(above, "not a list");
    size_t size = field_element(field);
    TRY(list_new(arena, at, from->via.array.size, size));
    for (size_t i = 0; i < from->via.array.size; i++) {
        struct place place = {above, NULL, i};
        TRY(unpack_element(arena, field, (char *)((struct list *)at)->data + i * size, &from->via.array.ptr[i],
                           &place));
    }
    return OK;
}

static status unpack_content(struct arena *arena, const struct field *field, struct message *message,
                             const msgpack_object *from, const struct place *place) {
    if (from->type != MSGPACK_OBJECT_STR) return unpack_list(arena, field, &message->parts, from, place);
    TRY(list_new(arena, &message->parts, 1, sizeof *message->parts));
    message->plain = true;
    return unpack_text(arena, &message->parts[0].text, from, place);
}

// Checked and laid out anew, so that what is written later is JSON whatever was sent.
static status unpack_json(struct arena *arena, struct string *out, const char *data, size_t size, bool object,
                          const struct place *place) {
    json_object *json = NULL;
    struct buf printed = {0};
    status result = json_parse(&json, data, size);
    if (result == DATAERR || (result == OK && object && !json_object_is_type(json, json_type_object)))
        result = refuse_at(place, "not JSON");
    if (result == OK) result = json_print(&printed, json);
    if (result == OK) {
        *out = (struct string){arena_strndup(arena, printed.data, printed.size), printed.size};
        if (!out->data) result = fail_oom();
    }
    buf_release(&printed);
    json_object_put(json);
    return result;
}

static status unpack_field(struct arena *arena, const struct field *field, void *thing, const msgpack_object *from,
                           const struct place *place) {
    void *at = (char *)thing + field->offset;
    switch (field->type) {
    case FIELD_INT:
        return unpack_int(at, from, place);
    case FIELD_DOUBLE:
        return unpack_double(at, from, place);
    case FIELD_STRING:
        return unpack_text(arena, at, from, place);
    case FIELD_OBJECT:
        *(bool *)((char *)at + field->table->present) = true;
        return unpack_object(arena, field->table, at, from, place);
    case FIELD_CONTENT:
        return unpack_content(arena, field, thing, from, place);
    case FIELD_JSON:
        if (from->type != MSGPACK_OBJECT_STR) return refuse_at(place, "not an object");
        return unpack_json(arena, at, from->via.str.ptr, from->via.str.size, true, place);
    default:
        return unpack_list(arena, field, at, from, place);
    }
}

static status unpack_unknown(struct arena *arena, struct unknown_fields *unknown, const msgpack_object_kv *pair,
                             const struct place *place) {
    const msgpack_object_ext *ext = &pair->val.via.ext;
    struct string key = {0}, json = {0};
    if (pair->val.type != MSGPACK_OBJECT_EXT || ext->type != EXT_JSON) return refuse_at(place, "unknown key");
    TRY(unpack_text(arena, &key, &pair->key, place));
    for (const struct unknown_field *u = unknown->first; u; u = u->next)
        if (key.data && u->key.size == key.size && !memcmp(u->key.data, key.data, key.size))
            return refuse_at(place, "given twice");
    TRY(unpack_json(arena, &json, ext->ptr, ext->size, false, place));
    return unknown_add(arena, unknown, key, json);
}

static status unpack_pair(struct arena *arena, const struct field_table *table, void *thing,
                          const msgpack_object_kv *pair, const struct place *above) {
    const msgpack_object_str *key = &pair->key.via.str;
    if (pair->key.type != MSGPACK_OBJECT_STR || (key->size && memchr(key->ptr, 0, key->size)))
        return refuse_at(above, "bad key");
    const struct field *field = field_find(table, key->ptr, key->size);
    struct place place = {above, field ? field->name : "?", 0};
    if (!field) return unpack_unknown(arena, thing, pair, &place);
    if (field_present(field, thing) && field->type != FIELD_INT) return refuse_at(&place, "given twice");
    return unpack_field(arena, field, thing, &pair->val, &place);
}

static status unpack_object(struct arena *arena, const struct field_table *table, void *thing,
                            const msgpack_object *from, const struct place *place) {
    if (from->type != MSGPACK_OBJECT_MAP) return refuse_at(place, "not a map");
    fields_clear(table, thing);
    for (size_t i = 0; i < from->via.map.size; i++) TRY(unpack_pair(arena, table, thing, &from->via.map.ptr[i], place));
    return fields_check(table, thing, place);
}

// A header's length of `bytes` big-endian bytes, cut off by the end of the data.
static size_t header_length(const unsigned char *at, size_t bytes, size_t rest) {
    size_t length = 0;
    for (size_t i = 1; i <= bytes && i < rest; i++) length = length << 8 | at[i];
    return length;
}

// Walks the items flat and refuses a list or map that says it has more items than bytes are left: msgpack-c would
// allocate for all of them first.
static status check_lengths(const unsigned char *data, size_t size) {
    static const unsigned char fixed[32] = {0, 0, 0, 0, 1, 2, 4, 1, 2,  4, 4, 8, 1, 2, 4, 8,
                                            1, 2, 4, 8, 1, 2, 4, 8, 16, 1, 2, 4, 2, 4, 2, 4};
    for (size_t at = 0; at < size;) {
        unsigned char head = data[at];
        size_t rest = size - at, items = 0, skip = 1;
        if (head >= 0x80 && head <= 0x9f)
            items = (size_t)(head & 15) * (head < 0x90 ? 2 : 1);
        else if (head >= 0xa0 && head <= 0xbf)
            skip += head & 31;
        else if (head >= 0xdc && head <= 0xdf)
            skip += fixed[head - 0xc0],
                items = header_length(data + at, fixed[head - 0xc0], rest) * (head < 0xde ? 1 : 2);
        else if ((head >= 0xc4 && head <= 0xc9) || (head >= 0xd9 && head <= 0xdb))
            skip += fixed[head - 0xc0] + header_length(data + at, fixed[head - 0xc0], rest) +
                    (head >= 0xc7 && head <= 0xc9);
        else if (head >= 0xc0 && head <= 0xdb)
            skip += fixed[head - 0xc0] + (head >= 0xd4 && head <= 0xd8);
        if (items > rest || skip > rest) return fail(DATAERR, "not a group: msgpack cut short");
        at += skip;
    }
    return OK;
}

static status unpack(struct group *group, const void *data, size_t size, bool whole) {
    TRY(check_lengths(data, size));
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t end = 0;
    struct place root = {0};
    status result = OK;
    msgpack_unpack_return got = msgpack_unpack_next(&unpacked, data, size, &end);
    if (got != MSGPACK_UNPACK_SUCCESS || end != size)
        result = fail(DATAERR, "not a group: not one msgpack map");
    else if (whole)
        result = unpack_object(&group->arena, &group_table, group, &unpacked.data, &root);
    else if (unpacked.data.type != MSGPACK_OBJECT_MAP)
        result = refuse_at(&root, "not a map");
    else
        for (size_t i = 0; i < unpacked.data.via.map.size && result == OK; i++)
            result = unpack_pair(&group->arena, &group_table, group, &unpacked.data.via.map.ptr[i], &root);
    msgpack_unpacked_destroy(&unpacked);
    return result;
}

status group_from_msgpack(struct group **out, const void *data, size_t size) {
    TRY(group_new(out));
    status result = unpack(*out, data, size, true);
    if (result != OK) group_free(out);
    return result;
}

static size_t field_size(const struct field *field) {
    switch (field->type) {
    case FIELD_INT:
    case FIELD_DOUBLE:
        return sizeof(int64_t);
    case FIELD_OBJECT:
        return field->table->size;
    default:
        return sizeof(struct list);
    }
}

status group_section_from_msgpack(struct group *group, enum group_section section, const void *data, size_t size) {
    for (size_t i = 0; i < group_table.count; i++) {
        const struct field *field = &group_table.fields[i];
        if (field->section != (int)section) continue;
        void *at = (char *)group + field->offset;
        memset(at, 0, field_size(field));
        if (field->table && field->type == FIELD_OBJECT) fields_clear(field->table, at);
    }
    group->v = 1;
    TRY(unpack(group, data, size, false));
    struct place root = {0};
    return section == SECTION_PROMPT ? fields_check(&group_table, group, &root) : OK;
}
