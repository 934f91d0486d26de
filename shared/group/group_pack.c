// Writing a group as one msgpack map, by the table of fields. Arrays of floats and doubles are flat: one bin of
// little-endian numbers. So are arrays of integers, as 32 bits each, if all of them fit. Equal neighbours among the
// weight versions of a completion's tokens are one run [count, value]. A key that the table does not know carries an
// ext of type 1 with its JSON text.
#include <assert.h>
#include <msgpack.h>
#include <string.h>

#include "shared/group/fields.h"

enum { GROUP_ALL_SECTIONS = -1 }; // in place of an enum group_section: the whole group

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "flat arrays are written as they lie in memory");

// The pack functions return 0, as msgpack-c does: their buffer takes everything.

static int group_pack_object(msgpack_packer *out, const struct field_table *table, const void *object, int section);

static int group_pack_string(msgpack_packer *out, const struct string *string) {
    return string->data ? msgpack_pack_str_with_body(out, string->data, string->size) : msgpack_pack_nil(out);
}

static int group_pack_flat(msgpack_packer *out, struct field_array array, size_t element_size) {
    if (!array.data) return msgpack_pack_nil(out);
    return msgpack_pack_bin_with_body(out, array.data, array.count * element_size);
}

// Whether there are any, and all have 32 bits.
static bool group_ints_are_flat(const int64_t *integers, size_t count) {
    bool flat = count > 0;
    for (size_t i = 0; i < count; i++) flat &= integers[i] == (int32_t)integers[i];
    return flat;
}

static int group_pack_flat_ints(msgpack_packer *out, const int64_t *integers, size_t count) {
    int32_t part[256];
    int failed = msgpack_pack_bin(out, count * sizeof *part);
    for (size_t i = 0, size; i < count && !failed; i += size) {
        size = count - i < sizeof part / sizeof *part ? count - i : sizeof part / sizeof *part;
        for (size_t k = 0; k < size; k++) part[k] = (int32_t)integers[i + k];
        failed = msgpack_pack_bin_body(out, part, size * sizeof *part);
    }
    return failed;
}

static int group_pack_array(msgpack_packer *out, const struct field *field, const void *array) {
    struct field_array loaded = field_array_load(array);
    size_t size = field_element_size(field);
    if (field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES) return group_pack_flat(out, loaded, size);
    if (field->type == FIELD_INTS && group_ints_are_flat(loaded.data, loaded.count))
        return group_pack_flat_ints(out, loaded.data, loaded.count);
    int failed = msgpack_pack_array(out, loaded.count);
    for (size_t i = 0; i < loaded.count && !failed; i++) {
        const void *at = (const char *)loaded.data + i * size;
        const struct span *span = at;
        switch (field->type) {
        case FIELD_INTS:
        case FIELD_RUNS:
            failed = msgpack_pack_int64(out, *(const int64_t *)at);
            break;
        case FIELD_STRINGS:
            failed = group_pack_string(out, at);
            break;
        case FIELD_SPANS:
            if (span->first < 0)
                failed = msgpack_pack_nil(out);
            else
                failed = msgpack_pack_array(out, 2) || msgpack_pack_int64(out, span->first) ||
                         msgpack_pack_int64(out, span->end);
            break;
        case FIELD_ROWS:
            failed = group_pack_flat(out, field_array_load(at), sizeof(float));
            break;
        default:
            assert(field->table);
            failed = group_pack_object(out, field->table, at, GROUP_ALL_SECTIONS);
        }
    }
    return failed;
}

static int group_pack_runs(msgpack_packer *out, const struct completion *completion) {
    const struct int_array *versions = &completion->versions;
    size_t items = 0, length;
    for (size_t i = 0; i < versions->count; i++) items += !i || versions->data[i] != versions->data[i - 1];
    int failed = msgpack_pack_array(out, items);
    for (size_t i = 0; i < versions->count && !failed; i += length) {
        length = 1;
        while (i + length < versions->count && versions->data[i + length] == versions->data[i]) length++;
        failed = msgpack_pack_array(out, 2) || msgpack_pack_int64(out, (int64_t)length) ||
                 msgpack_pack_int64(out, versions->data[i]);
    }
    return failed;
}

static bool group_pack_wants(const struct field *field, const void *object, int section) {
    return (section == GROUP_ALL_SECTIONS || field->section == section) && field_present(field, object);
}

static int group_pack_object(msgpack_packer *out, const struct field_table *table, const void *object, int section) {
    const struct unknown_field *unknown =
        section == GROUP_ALL_SECTIONS ? ((const struct unknown_fields *)object)->first : NULL;
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) count += group_pack_wants(&table->fields[i], object, section);
    for (const struct unknown_field *u = unknown; u; u = u->next) count++;
    int failed = msgpack_pack_map(out, count);
    for (size_t i = 0; i < table->count && !failed; i++) {
        const struct field *field = &table->fields[i];
        if (!group_pack_wants(field, object, section)) continue;
        failed = msgpack_pack_str_with_body(out, field->name, strlen(field->name));
        if (failed) break;
        const void *at = (const char *)object + field->offset;
        const struct message *message = object; // of FIELD_CONTENT
        switch (field->type) {
        case FIELD_INT:
            failed = msgpack_pack_int64(out, *(const int64_t *)at);
            break;
        case FIELD_DOUBLE:
            failed = msgpack_pack_double(out, *(const double *)at);
            break;
        case FIELD_STRING:
        case FIELD_JSON:
            failed = group_pack_string(out, at);
            break;
        case FIELD_OBJECT:
            failed = group_pack_object(out, field->table, at, GROUP_ALL_SECTIONS);
            break;
        case FIELD_RUNS: {
            const struct completion *completion = object;
            const bool runs = completion->versions.count <= completion->tokens.count;
            failed = runs ? group_pack_runs(out, completion) : group_pack_array(out, field, at);
            break;
        }
        case FIELD_CONTENT:
            failed =
                message->plain ? group_pack_string(out, &message->parts[0].text) : group_pack_array(out, field, at);
            break;
        default:
            failed = group_pack_array(out, field, at);
        }
    }
    for (const struct unknown_field *u = unknown; u && !failed; u = u->next) {
        failed = msgpack_pack_str_with_body(out, u->key.data, u->key.size) ||
                 msgpack_pack_ext_with_body(out, u->json.data, u->json.size, GROUP_EXT_JSON);
    }
    return failed;
}

static void group_pack(const struct group *group, int section, struct buf *out) {
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, buf_write);
    group_pack_object(&packer, &group_table, group, section);
}

void group_to_msgpack(const struct group *group, struct buf *out) {
    group_pack(group, GROUP_ALL_SECTIONS, out);
}

void group_section_to_msgpack(const struct group *group, enum group_section section, struct buf *out) {
    group_pack(group, (int)section, out);
}
