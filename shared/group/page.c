// The reference page of the group's fields, from the table.
#include "shared/group/fields.h"

static const char *const type_names[] = {
    [FIELD_INT] = "whole number",   [FIELD_DOUBLE] = "number",   [FIELD_STRING] = "text",
    [FIELD_INTS] = "whole numbers", [FIELD_FLOATS] = "float32s", [FIELD_DOUBLES] = "numbers",
    [FIELD_STRINGS] = "texts",      [FIELD_SPANS] = "spans",     [FIELD_ROWS] = "lists of float32s",
    [FIELD_OBJECT] = "object",      [FIELD_OBJECTS] = "objects", [FIELD_CONTENT] = "objects or text",
    [FIELD_JSON] = "object",
};

static status print_table(struct buf *out, const struct field_table *table, const char *prefix) {
    for (size_t i = 0; i < table->count; i++) {
        const struct field *field = &table->fields[i];
        bool list = field->type == FIELD_OBJECTS || field->type == FIELD_CONTENT;
        TRY(buf_printf(out, "| `%s%s%s` | %s | %s | %s |\n", prefix, field->name, list ? "[]" : "",
                       type_names[field->type], field->required ? "yes" : "", field->doc));
        if (!field->table) continue;
        struct buf inner = {0};
        status result = buf_printf(&inner, "%s%s%s.", prefix, field->name, list ? "[]" : "");
        if (result == OK) result = print_table(out, field->table, inner.data);
        buf_release(&inner);
        if (result != OK) return result;
    }
    return OK;
}

status group_reference_page(struct buf *out) {
    TRY(buf_puts(out, "| key | type | required | what it is |\n|---|---|---|---|\n"));
    return print_table(out, &group_table, "");
}
