// From a group to one line of JSON, by the table of fields: known keys in its order, then the unknown ones.
#include <string.h>

#include "shared/base/json.h"
#include "shared/group/fields.h"

static status write_object(struct buf *out, const struct field_table *table, const void *thing);

static status write_list(struct buf *out, const struct field *field, const struct list *list);

static status write_element(struct buf *out, const struct field *field, const void *at) {
    static const struct field floats = {.type = FIELD_FLOATS};
    const struct string *text = at;
    const struct span *span = at;
    const struct list *row = at;
    switch (field->type) {
    case FIELD_INTS:
        return buf_printf(out, "%lld", (long long)*(const int64_t *)at);
    case FIELD_FLOATS:
        return json_print_float(out, *(const float *)at);
    case FIELD_DOUBLES:
        return json_print_double(out, *(const double *)at);
    case FIELD_STRINGS:
        return text->data ? json_print_string(out, text->data, text->size) : buf_puts(out, "null");
    case FIELD_SPANS:
        return span->first < 0 ? buf_puts(out, "null")
                               : buf_printf(out, "[%lld,%lld]", (long long)span->first, (long long)span->end);
    case FIELD_ROWS:
        return row->data ? write_list(out, &floats, row) : buf_puts(out, "null");
    default:
        return write_object(out, field->table, at);
    }
}

static status write_list(struct buf *out, const struct field *field, const struct list *list) {
    size_t size = field_element(field);
    TRY(buf_puts(out, "["));
    for (size_t i = 0; i < list->count; i++) {
        if (i) TRY(buf_puts(out, ","));
        TRY(write_element(out, field, (const char *)list->data + i * size));
    }
    return buf_puts(out, "]");
}

static status write_content(struct buf *out, const struct field *field, const struct message *message) {
    if (message->plain) return json_print_string(out, message->parts[0].text.data, message->parts[0].text.size);
    return write_list(out, field, (const struct list *)&message->parts);
}

static status write_field(struct buf *out, const struct field *field, const void *thing) {
    const void *at = (const char *)thing + field->offset;
    const struct string *text = at;
    switch (field->type) {
    case FIELD_INT:
        return buf_printf(out, "%lld", (long long)*(const int64_t *)at);
    case FIELD_DOUBLE:
        return json_print_double(out, *(const double *)at);
    case FIELD_STRING:
        return json_print_string(out, text->data, text->size);
    case FIELD_OBJECT:
        return write_object(out, field->table, at);
    case FIELD_CONTENT:
        return write_content(out, field, thing);
    case FIELD_JSON:
        return buf_append(out, text->data, text->size);
    default:
        return write_list(out, field, at);
    }
}

static status write_key(struct buf *out, bool *first, const char *key, size_t size) {
    TRY(buf_puts(out, *first ? "" : ","));
    *first = false;
    TRY(json_print_string(out, key, size));
    return buf_puts(out, ":");
}

static status write_object(struct buf *out, const struct field_table *table, const void *thing) {
    bool first = true;
    TRY(buf_puts(out, "{"));
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        if (!field_present(field, thing)) continue;
        TRY(write_key(out, &first, field->name, strlen(field->name)));
        TRY(write_field(out, field, thing));
    }
    for (const struct unknown_field *u = ((const struct unknown_fields *)thing)->first; u; u = u->next) {
        TRY(write_key(out, &first, u->key.data, u->key.size));
        TRY(buf_append(out, u->json.data, u->json.size));
    }
    return buf_puts(out, "}");
}

status group_to_json(const struct group *group, struct buf *out) {
    return write_object(out, &group_table, group);
}
