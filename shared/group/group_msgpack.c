// A group as one msgpack map, both ways, by the table of fields. Arrays of floats and doubles are flat: one bin of
// little-endian numbers. So are arrays of integers, as 32 bits each, if all of them fit. Equal neighbours among the
// weight versions of a completion's tokens are one run [count, value]. A key that the table does not know carries an
// ext of type 1 with its JSON text.
//
// What is read is not trusted: lengths are checked against the bytes present before msgpack-c allocates for them,
// strings must be UTF-8, unknown keys JSON. Integers may stand in it one by one, too.
#include <assert.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/group/fields.h"

enum { GROUP_ALL_SECTIONS = -1 }; // in place of an enum group_section: the whole group

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "flat arrays are written as they lie in memory");

// ---- writing ----

static void group_pack_object(msgpack_packer *out, const struct field_table *table, const void *object, int section);

static void group_pack_string(msgpack_packer *out, const struct string *string) {
    msgpack_pack_str_with_body(out, string->data, string->size);
}

static void group_pack_array(msgpack_packer *out, const struct field *field, const void *array) {
    const struct field_array loaded = field_array_load(array);
    const size_t size = field_element_size(field);
    if (field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES) {
        msgpack_pack_bin_with_body(out, loaded.data, loaded.count * size);
        return;
    }
    const int64_t *integers = loaded.data;
    const size_t count = field->type == FIELD_INTS ? loaded.count : 0;
    bool flat = count > 0;
    for (size_t i = 0; i < count; i++) flat &= integers[i] == (int32_t)integers[i];
    if (flat) { // all of them fit 32 bits
        int32_t part[256];
        msgpack_pack_bin(out, count * sizeof *part);
        for (size_t i = 0, length; i < count; i += length) {
            length = count - i < sizeof part / sizeof *part ? count - i : sizeof part / sizeof *part;
            for (size_t k = 0; k < length; k++) part[k] = (int32_t)integers[i + k];
            msgpack_pack_bin_body(out, part, length * sizeof *part);
        }
        return;
    }
    msgpack_pack_array(out, loaded.count);
    for (size_t i = 0; i < loaded.count; i++) {
        const void *at = (const char *)loaded.data + i * size;
        const struct span *span = at;
        const struct float_array *row = at;
        if (field_element_is_null(field, at)) {
            msgpack_pack_nil(out);
            continue;
        }
        switch (field->type) {
        case FIELD_INTS:
        case FIELD_RUNS:
            msgpack_pack_int64(out, *(const int64_t *)at);
            break;
        case FIELD_STRINGS:
            group_pack_string(out, at);
            break;
        case FIELD_SPANS:
            msgpack_pack_array(out, 2);
            msgpack_pack_int64(out, span->first);
            msgpack_pack_int64(out, span->end);
            break;
        case FIELD_ROWS:
            msgpack_pack_bin_with_body(out, row->data, row->count * sizeof *row->data);
            break;
        default:
            assert(field->table);
            group_pack_object(out, field->table, at, GROUP_ALL_SECTIONS);
        }
    }
}

static bool group_pack_wants(const struct field *field, const void *object, int section) {
    return (section == GROUP_ALL_SECTIONS || field->section == section) && field_present(field, object);
}

static void group_pack_object(msgpack_packer *out, const struct field_table *table, const void *object, int section) {
    const struct unknown_field *unknown =
        section == GROUP_ALL_SECTIONS ? ((const struct unknown_fields *)object)->first : NULL;
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) count += group_pack_wants(&table->fields[i], object, section);
    for (const struct unknown_field *u = unknown; u; u = u->next) count++;
    msgpack_pack_map(out, count);
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (!group_pack_wants(field, object, section)) continue;
        msgpack_pack_str_with_body(out, field->name, strlen(field->name));
        const void *at = (const char *)object + field->offset;
        const struct completion *completion = object; // of FIELD_RUNS
        const struct stage_times *times = at;
        const struct message *message = object; // of FIELD_CONTENT
        switch (field->type) {
        case FIELD_INT:
            msgpack_pack_int64(out, *(const int64_t *)at);
            break;
        case FIELD_DOUBLE:
            msgpack_pack_double(out, *(const double *)at);
            break;
        case FIELD_STRING:
            group_pack_string(out, at);
            break;
        case FIELD_TIMES:
            msgpack_pack_map(out, times->count);
            for (size_t k = 0; k < times->count; k++) {
                group_pack_string(out, &times->data[k].stage);
                msgpack_pack_array(out, times->data[k].replica ? 3 : 2);
                msgpack_pack_double(out, times->data[k].in);
                msgpack_pack_double(out, times->data[k].out);
                if (times->data[k].replica) msgpack_pack_int64(out, times->data[k].replica);
            }
            break;
        case FIELD_OBJECT:
            group_pack_object(out, field->table, at, GROUP_ALL_SECTIONS);
            break;
        case FIELD_RUNS:
            if (completion->versions.count > completion->tokens.count) {
                group_pack_array(out, field, at);
                break;
            }
            const int64_t *versions = completion->versions.data;
            size_t runs = 0, end = completion->versions.count;
            for (size_t k = 0; k < end; k++) runs += !k || versions[k] != versions[k - 1];
            msgpack_pack_array(out, runs);
            for (size_t k = 0, length; k < end; k += length) {
                length = 1;
                while (k + length < end && versions[k + length] == versions[k]) length++;
                msgpack_pack_array(out, 2);
                msgpack_pack_int64(out, (int64_t)length);
                msgpack_pack_int64(out, versions[k]);
            }
            break;
        case FIELD_CONTENT:
            if (message->plain)
                group_pack_string(out, &message->parts[0].text);
            else
                group_pack_array(out, field, at);
            break;
        default:
            group_pack_array(out, field, at);
        }
    }
    for (const struct unknown_field *u = unknown; u; u = u->next) {
        msgpack_pack_str_with_body(out, u->key.data, u->key.size);
        msgpack_pack_ext_with_body(out, u->json.data, u->json.size, GROUP_EXT_JSON);
    }
}

static void group_pack(const struct group *group, int section, struct buf *out) {
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, buf_write); // takes everything, so packing cannot fail
    group_pack_object(&packer, &group_table, group, section);
}

void group_to_msgpack(const struct group *group, struct buf *out) {
    group_pack(group, GROUP_ALL_SECTIONS, out);
}

void group_section_to_msgpack(const struct group *group, enum group_section section, struct buf *out) {
    group_pack(group, (int)section, out);
}

// ---- reading ----

static status group_unpack_object(struct arena *arena, const struct field_table *table, void *object,
                                  const msgpack_object *from, const struct field_path *path);

static status group_unpack_int(int64_t *out, const msgpack_object *from, const struct field_path *path) {
    if (from->type != MSGPACK_OBJECT_NEGATIVE_INTEGER &&
        (from->type != MSGPACK_OBJECT_POSITIVE_INTEGER || from->via.u64 > INT64_MAX))
        return field_fail(path, "not an integer");
    *out = from->via.i64;
    return OK;
}

static status group_unpack_string(struct arena *arena, struct string *out, const msgpack_object *from,
                                  const struct field_path *path) {
    if (from->type != MSGPACK_OBJECT_STR || !utf8_valid(from->via.str.ptr, from->via.str.size))
        return field_fail(path, "not a string");
    arena_string(arena, out, from->via.str.ptr, from->via.str.size);
    return OK;
}

// Infinities become NaN, which stands for null.
static status group_unpack_flat(struct arena *arena, enum field_type type, void *array, const msgpack_object *from,
                                const struct field_path *path) {
    assert(type == FIELD_FLOATS || type == FIELD_DOUBLES);
    size_t size = type == FIELD_FLOATS ? sizeof(float) : sizeof(double);
    if (from->type != MSGPACK_OBJECT_BIN || from->via.bin.size % size)
        return field_fail(path, "not an array of numbers");
    field_array_new(arena, array, from->via.bin.size / size, size);
    struct field_array loaded = field_array_load(array);
    float *floats = loaded.data;
    double *doubles = loaded.data;
    if (loaded.count) memcpy(loaded.data, from->via.bin.ptr, from->via.bin.size);
    for (size_t i = 0; i < loaded.count; i++) {
        if (type == FIELD_FLOATS && !isfinite(floats[i])) floats[i] = NAN;
        if (type == FIELD_DOUBLES && !isfinite(doubles[i])) doubles[i] = NAN;
    }
    return OK;
}

// Reads integers and runs of them; together they may be as many as the completion's tokens, which bounds the memory.
static status group_unpack_runs(struct arena *arena, struct completion *completion, const msgpack_object *from,
                                const struct field_path *path) {
    size_t count = 0;
    if (from->type != MSGPACK_OBJECT_ARRAY) return field_fail(path, "not an array");
    const msgpack_object_array *items = &from->via.array;
    for (size_t i = 0; i < items->size; i++) {
        const struct field_path element = {path, NULL, i};
        int64_t length = 1;
        if (items->ptr[i].type == MSGPACK_OBJECT_ARRAY) {
            if (items->ptr[i].via.array.size != 2) return field_fail(&element, "not [count, value]");
            TRY(group_unpack_int(&length, &items->ptr[i].via.array.ptr[0], &element));
            if (length < 1 || (uint64_t)length > completion->tokens.count)
                return field_fail(&element, "a run longer than the tokens");
        }
        count += (size_t)length;
        if (count > completion->tokens.count && count > items->size) return field_fail(path, "longer than the tokens");
    }
    field_array_new(arena, &completion->versions, count, sizeof *completion->versions.data);
    for (size_t i = 0, at = 0; i < items->size; i++) {
        const struct field_path element = {path, NULL, i};
        const msgpack_object *item = &items->ptr[i];
        const bool run = item->type == MSGPACK_OBJECT_ARRAY;
        int64_t value = 0;
        TRY(group_unpack_int(&value, run ? &item->via.array.ptr[1] : item, &element));
        for (int64_t left = run ? item->via.array.ptr[0].via.i64 : 1; left > 0; left--)
            completion->versions.data[at++] = value;
    }
    return OK;
}

static status group_unpack_array(struct arena *arena, const struct field *field, void *array,
                                 const msgpack_object *from, const struct field_path *path) {
    if (field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES)
        return group_unpack_flat(arena, field->type, array, from, path);
    if (field->type == FIELD_INTS && from->type == MSGPACK_OBJECT_BIN) { // 32 bits each
        const msgpack_object_bin *flat = &from->via.bin;
        int32_t value;
        if (flat->size % sizeof value) return field_fail(path, "not an array of integers");
        field_array_new(arena, array, flat->size / sizeof value, sizeof(int64_t));
        const struct field_array loaded = field_array_load(array);
        int64_t *integers = loaded.data;
        for (size_t i = 0; i < loaded.count; i++) {
            memcpy(&value, flat->ptr + i * sizeof value, sizeof value);
            integers[i] = value;
        }
        return OK;
    }
    if (from->type != MSGPACK_OBJECT_ARRAY) return field_fail(path, "not an array");
    size_t size = field_element_size(field);
    field_array_new(arena, array, from->via.array.size, size);
    char *data = field_array_load(array).data;
    for (size_t i = 0; i < from->via.array.size; i++) {
        const struct field_path element = {path, NULL, i};
        const msgpack_object *value = &from->via.array.ptr[i];
        bool nil = value->type == MSGPACK_OBJECT_NIL;
        void *at = data + i * size;
        struct span *span = at;
        switch (field->type) {
        case FIELD_INTS:
            TRY(group_unpack_int(at, value, &element));
            break;
        case FIELD_STRINGS:
            if (!nil) TRY(group_unpack_string(arena, at, value, &element));
            break;
        case FIELD_SPANS:
            *span = (struct span){-1, -1};
            if (nil) break;
            if (value->type != MSGPACK_OBJECT_ARRAY || value->via.array.size != 2)
                return field_fail(&element, "not [first, end]");
            TRY(group_unpack_int(&span->first, &value->via.array.ptr[0], &element));
            TRY(group_unpack_int(&span->end, &value->via.array.ptr[1], &element));
            if (span->first < 0 || span->end < span->first) return field_fail(&element, "not [first, end]");
            break;
        case FIELD_ROWS:
            if (!nil) TRY(group_unpack_flat(arena, FIELD_FLOATS, at, value, &element));
            break;
        default:
            assert(field->table);
            TRY(group_unpack_object(arena, field->table, at, value, &element));
        }
    }
    return OK;
}

static status group_unpack_pair(struct arena *arena, const struct field_table *table, void *object,
                                const msgpack_object_kv *pair, const struct field_path *parent) {
    const msgpack_object_str *name = &pair->key.via.str;
    const msgpack_object *value = &pair->val;
    if (pair->key.type != MSGPACK_OBJECT_STR || (name->size && memchr(name->ptr, 0, name->size)))
        return field_fail(parent, "bad key");
    const struct field *field = field_find(table, name->ptr, name->size);
    const struct field_path path = {parent, field ? field->name : "?", 0};
    if (!field) {
        struct unknown_fields *unknown = object;
        const msgpack_object_ext *ext = &value->via.ext;
        struct string key = {0}, json = {0};
        if (value->type != MSGPACK_OBJECT_EXT || ext->type != GROUP_EXT_JSON) return field_fail(&path, "unknown key");
        TRY(group_unpack_string(arena, &key, &pair->key, &path)); // has no NUL, see above
        for (const struct unknown_field *u = unknown->first; u; u = u->next)
            if (string_equals(u->key, key.data)) return field_fail(&path, "given twice");
        // Parses the JSON and prints it anew, so that group_to_json writes JSON whatever was sent.
        struct arena tree = {0};
        struct json *parsed;
        struct buf printed = {0};
        status result = json_parse(&parsed, &tree, ext->ptr, ext->size);
        if (result == DATAERR) result = field_fail(&path, "not JSON");
        if (result == OK) json_print(&printed, parsed);
        if (result == OK) arena_string(arena, &json, printed.data, printed.size);
        buf_release(&printed);
        arena_release(&tree);
        TRY(result);
        fields_add_unknown(arena, unknown, key, json);
        return OK;
    }
    if (field_present(field, object) && field->type != FIELD_INT) return field_fail(&path, "given twice");
    void *at = (char *)object + field->offset;
    struct message *message = object; // of FIELD_CONTENT
    switch (field->type) {
    case FIELD_RUNS:
        return group_unpack_runs(arena, object, value, &path);
    case FIELD_INT:
        return group_unpack_int(at, value, &path);
    case FIELD_DOUBLE:
        if (value->type != MSGPACK_OBJECT_FLOAT64 || !isfinite(value->via.f64))
            return field_fail(&path, "not a number");
        *(double *)at = value->via.f64;
        return OK;
    case FIELD_STRING:
        return group_unpack_string(arena, at, value, &path);
    case FIELD_OBJECT:
        *(bool *)((char *)at + field->table->present) = true;
        return group_unpack_object(arena, field->table, at, value, &path);
    case FIELD_CONTENT: // a plain string becomes one part
        if (value->type != MSGPACK_OBJECT_STR) return group_unpack_array(arena, field, at, value, &path);
        field_array_new(arena, at, 1, sizeof *message->parts);
        message->plain = true;
        return group_unpack_string(arena, &message->parts[0].text, value, &path);
    case FIELD_TIMES:
        if (value->type != MSGPACK_OBJECT_MAP) return field_fail(&path, "not an object");
        field_array_new(arena, at, 0, sizeof(struct stage_time));
        for (size_t i = 0; i < value->via.map.size; i++) {
            const msgpack_object *times = &value->via.map.ptr[i].val, *numbers = times->via.array.ptr;
            struct stage_time time = {0};
            TRY(group_unpack_string(arena, &time.stage, &value->via.map.ptr[i].key, &path));
            const uint32_t size = times->type == MSGPACK_OBJECT_ARRAY ? times->via.array.size : 0;
            bool right = size == 2 || size == 3;
            for (int k = 0; k < 2 && right; k++)
                right = numbers[k].type == MSGPACK_OBJECT_FLOAT64 && isfinite(numbers[k].via.f64);
            if (right && size == 3) {
                right = numbers[2].type == MSGPACK_OBJECT_POSITIVE_INTEGER && numbers[2].via.u64 - 1 < INT64_MAX;
                time.replica = (int64_t)numbers[2].via.u64;
            }
            if (!right) return field_fail(&path, "not [in, out] or [in, out, replica]");
            time.in = numbers[0].via.f64;
            time.out = numbers[1].via.f64;
            group_set_times(object, &time);
        }
        return OK;
    default:
        return group_unpack_array(arena, field, at, value, &path);
    }
}

static status group_unpack_object(struct arena *arena, const struct field_table *table, void *object,
                                  const msgpack_object *from, const struct field_path *path) {
    if (from->type != MSGPACK_OBJECT_MAP) return field_fail(path, "not a mapping");
    fields_clear(table, object);
    for (size_t i = 0; i < from->via.map.size; i++)
        TRY(group_unpack_pair(arena, table, object, &from->via.map.ptr[i], path));
    return fields_check(table, object, path);
}

// Reads the big-endian length of `bytes` bytes behind the head at `at`, of which `rest` bytes are there with the head.
static size_t group_unpack_length(const unsigned char *at, size_t bytes, size_t rest) {
    size_t length = 0;
    for (size_t i = 1; i <= bytes && i < rest; i++) length = length << 8 | at[i];
    return length;
}

// Reads one map into the group: a whole group, or some of its keys.
static status group_unpack(struct group *group, const void *data, size_t size, bool whole) {
    // Refuses an array or map that announces more items than there are bytes left: msgpack-c would allocate for all of
    // them first. Goes over the items without recursion.
    static const unsigned char fixed[32] = {0, 0, 0, 0, 1, 2, 4, 1, 2,  4, 4, 8, 1, 2, 4, 8,
                                            1, 2, 4, 8, 1, 2, 4, 8, 16, 1, 2, 4, 2, 4, 2, 4};
    for (size_t at = 0; at < size;) {
        const unsigned char *item = (const unsigned char *)data + at, head = *item;
        const size_t width = head >= 0xc0 && head <= 0xdf ? fixed[head - 0xc0] : 0, rest = size - at;
        size_t items = 0, skip = 1 + width;
        if (head >= 0x80 && head <= 0x9f)
            items = (head & 15u) * (head < 0x90 ? 2u : 1u);
        else if (head >= 0xa0 && head <= 0xbf)
            skip += head & 31u;
        else if (head >= 0xdc && head <= 0xdf)
            items = group_unpack_length(item, width, rest) * (head < 0xde ? 1u : 2u);
        else if ((head >= 0xc4 && head <= 0xc9) || (head >= 0xd9 && head <= 0xdb))
            skip += group_unpack_length(item, width, rest) + (head >= 0xc7 && head <= 0xc9 ? 1u : 0u);
        else if (head >= 0xd4 && head <= 0xd8)
            skip += 1; // the type of a fixed ext
        if (items > rest || skip > rest) return fail(DATAERR, "not a group: msgpack cut short");
        at += skip;
    }
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    size_t end = 0;
    const struct field_path root = {0};
    status result = OK;
    msgpack_unpack_return got = msgpack_unpack_next(&unpacked, data, size, &end);
    if (got != MSGPACK_UNPACK_SUCCESS || end != size)
        result = fail(DATAERR, "not a group: not one msgpack map");
    else if (whole)
        result = group_unpack_object(&group->arena, &group_table, group, &unpacked.data, &root);
    else if (unpacked.data.type != MSGPACK_OBJECT_MAP)
        result = field_fail(&root, "not a mapping");
    else
        for (size_t i = 0; i < unpacked.data.via.map.size && result == OK; i++)
            result = group_unpack_pair(&group->arena, &group_table, group, &unpacked.data.via.map.ptr[i], &root);
    msgpack_unpacked_destroy(&unpacked);
    return result;
}

status group_from_msgpack(struct group **out, const void *data, size_t size) {
    group_new(out);
    status result = group_unpack(*out, data, size, true);
    if (result != OK) group_free(out);
    return result;
}

status group_section_from_msgpack(struct group *group, enum group_section section, const void *data, size_t size) {
    for (size_t i = 0; i < group_table.count; i++) {
        const struct field *field = &group_table.fields[i];
        if (field->section != (int)section) continue;
        void *at = (char *)group + field->offset;
        memset(at, 0, field_size(field));
        if (field->type == FIELD_OBJECT) fields_clear(field->table, at);
    }
    group->v = 1;
    TRY(group_unpack(group, data, size, false));
    return section == SECTION_PROMPT ? fields_check(&group_table, group, &(struct field_path){0}) : OK;
}
