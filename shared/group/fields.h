// The table of a group's fields: the one place that knows them. JSON, msgpack, sections, validation and the reference
// page walk it.
//
// Layouts that it counts on: every struct of a table begins with `unknown_fields unknown`; arrays are {data, count}.
#ifndef SHARED_GROUP_FIELDS_H
#define SHARED_GROUP_FIELDS_H

#include "shared/group/group.h"

enum field_type {
    FIELD_INT,     // int64_t
    FIELD_DOUBLE,  // double, NaN: absent
    FIELD_STRING,  // text
    FIELD_INTS,    // int_array
    FIELD_FLOATS,  // float_array
    FIELD_DOUBLES, // double_array
    FIELD_STRINGS, // string_array
    FIELD_SPANS,   // span_array
    FIELD_ROWS,    // {float_array *data; size_t count}; a row with data == NULL is null
    FIELD_OBJECT,  // a struct with its own table
    FIELD_OBJECTS, // {struct *data; size_t count}
    FIELD_CONTENT, // parts of a message, or a plain string
    FIELD_JSON,    // text: any JSON object, kept as it is
};

struct field_table;

struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    bool required;
    int section;                     // of the group's own fields
    const struct field_table *table; // FIELD_OBJECT, FIELD_OBJECTS, FIELD_CONTENT
    const char *doc;
};

struct field_table {
    const char *name;
    size_t size;    // of the struct
    size_t present; // offset of `bool present` of a FIELD_OBJECT's struct
    const struct field *fields;
    size_t count;
};

// {data, count} as every array and list of structs begins.
struct list {
    void *data;
    size_t count;
};

// Where a value stands, for messages: completions[2].text.
struct place {
    const struct place *above;
    const char *name; // NULL: an element
    size_t index;
};

extern const struct field_table group_table;

// The field of that name, NULL if there is none.
const struct field *field_find(const struct field_table *table, const char *name, size_t size);

// Makes every field of a zeroed struct absent (NaN, ABSENT), but for the group's version.
void fields_clear(const struct field_table *table, void *thing);

// Whether the field is there.
bool field_present(const struct field *field, const void *thing);

// Size of one element of an array field.
size_t field_element(const struct field *field);

// `count` elements for a list, zeroed, in the arena; data is not NULL even for none.
status list_new(struct arena *arena, void *at, size_t count, size_t element);

// Whether what was read is complete: the required fields of `table`, and what no table can say. Sets a part's kind.
status fields_check(const struct field_table *table, void *thing, const struct place *place);

// Keeps a key that no table knows.
status unknown_add(struct arena *arena, struct unknown_fields *unknown, struct string key, struct string json);

// fail(DATAERR, "not a group: PLACE: what").
status refuse_at(const struct place *place, const char *what);

#endif
