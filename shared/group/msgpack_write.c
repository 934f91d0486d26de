// From a group to msgpack, by the table of fields. Lists of floats and doubles are flat: one bin of little-endian
// numbers. A key that the table does not know carries an ext of type 1 with its JSON text.
#include <math.h>
#include <msgpack.h>
#include <string.h>

#include "shared/group/fields.h"
#include "shared/group/msgpack.h"

static int add_bytes(void *context, const char *data, size_t size) {
    return buf_append(context, data, size) == OK ? 0 : -1;
}

static int pack_object(msgpack_packer *out, const struct field_table *table, const void *thing, int section);

static int pack_text(msgpack_packer *out, const struct string *text) {
    return text->data ? msgpack_pack_str_with_body(out, text->data, text->size) : msgpack_pack_nil(out);
}

static int pack_flat(msgpack_packer *out, const struct list *list, size_t element) {
    return list->data ? msgpack_pack_bin_with_body(out, list->data, list->count * element) : msgpack_pack_nil(out);
}

static int pack_span(msgpack_packer *out, const struct span *span) {
    if (span->first < 0) return msgpack_pack_nil(out);
    int failed = msgpack_pack_array(out, 2);
    failed |= msgpack_pack_int64(out, span->first);
    return failed | msgpack_pack_int64(out, span->end);
}

static int pack_element(msgpack_packer *out, const struct field *field, const void *at) {
    switch (field->type) {
    case FIELD_INTS:
        return msgpack_pack_int64(out, *(const int64_t *)at);
    case FIELD_STRINGS:
        return pack_text(out, at);
    case FIELD_SPANS:
        return pack_span(out, at);
    case FIELD_ROWS:
        return pack_flat(out, at, sizeof(float));
    default:
        return pack_object(out, field->table, at, ALL_SECTIONS);
    }
}

static int pack_list(msgpack_packer *out, const struct field *field, const struct list *list) {
    if (field->type == FIELD_FLOATS || field->type == FIELD_DOUBLES) return pack_flat(out, list, field_element(field));
    size_t size = field_element(field);
    int failed = msgpack_pack_array(out, list->count);
    for (size_t i = 0; i < list->count && !failed; i++)
        failed = pack_element(out, field, (const char *)list->data + i * size);
    return failed;
}

static int pack_field(msgpack_packer *out, const struct field *field, const void *thing) {
    const void *at = (const char *)thing + field->offset;
    const struct message *message = thing;
    switch (field->type) {
    case FIELD_INT:
        return msgpack_pack_int64(out, *(const int64_t *)at);
    case FIELD_DOUBLE:
        return msgpack_pack_double(out, *(const double *)at);
    case FIELD_STRING:
    case FIELD_JSON:
        return pack_text(out, at);
    case FIELD_OBJECT:
        return pack_object(out, field->table, at, ALL_SECTIONS);
    case FIELD_CONTENT:
        return message->plain ? pack_text(out, &message->parts[0].text) : pack_list(out, field, at);
    default:
        return pack_list(out, field, at);
    }
}

static bool packed(const struct field *field, const void *thing, int section) {
    return (section == ALL_SECTIONS || field->section == section) && field_present(field, thing);
}

static int pack_object(msgpack_packer *out, const struct field_table *table, const void *thing, int section) {
    const struct unknown_field *unknown =
        section == ALL_SECTIONS ? ((const struct unknown_fields *)thing)->first : NULL;
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) count += packed(&table->fields[i], thing, section);
    for (const struct unknown_field *u = unknown; u; u = u->next) count++;
    int failed = msgpack_pack_map(out, count);
    for (size_t i = 0; i < table->count && !failed; i++) {
        const struct field *field = &table->fields[i];
        if (!packed(field, thing, section)) continue;
        failed = msgpack_pack_str_with_body(out, field->name, strlen(field->name)) || pack_field(out, field, thing);
    }
    for (const struct unknown_field *u = unknown; u && !failed; u = u->next) {
        failed = msgpack_pack_str_with_body(out, u->key.data, u->key.size) ||
                 msgpack_pack_ext_with_body(out, u->json.data, u->json.size, EXT_JSON);
    }
    return failed;
}

static status pack(const struct group *group, int section, struct buf *out) {
    msgpack_packer packer;
    msgpack_packer_init(&packer, out, add_bytes);
    return pack_object(&packer, &group_table, group, section) ? fail_oom() : OK;
}

status group_to_msgpack(const struct group *group, struct buf *out) {
    return pack(group, ALL_SECTIONS, out);
}

status group_section_to_msgpack(const struct group *group, enum group_section section, struct buf *out) {
    return pack(group, (int)section, out);
}
