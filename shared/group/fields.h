// The table of a group's fields, which is their only definition. JSON, msgpack, sections, validation and the reference
// page come from it.
//
// It counts on two layouts, which fields.c asserts: the struct of every table begins with `struct unknown_fields
// unknown`, and every array is {data, count}, a struct field_array.
#pragma once

#include "shared/group/group.h"

enum field_type {
    FIELD_INT,     // int64_t
    FIELD_DOUBLE,  // double, NaN: absent
    FIELD_STRING,  // struct string
    FIELD_INTS,    // struct int_array
    FIELD_RUNS,    // struct int_array of a completion, one for each of its tokens; msgpack has runs of equal ones
    FIELD_FLOATS,  // struct float_array
    FIELD_DOUBLES, // struct double_array
    FIELD_STRINGS, // struct string_array
    FIELD_SPANS,   // struct span_array
    FIELD_ROWS,    // {struct float_array *data; size_t count}; a row with data == NULL is null
    FIELD_OBJECT,  // a struct with its own table
    FIELD_OBJECTS, // {struct ... *data; size_t count}
    FIELD_CONTENT, // the parts of a message, or a plain string
    FIELD_TIMES,   // struct stage_times of a group: {"STAGE":[in,out,replica],...}, without a replica outside a run
};

enum { GROUP_EXT_JSON = 1 }; // msgpack: the ext type of an unknown key's JSON text

struct field_table;

struct field {
    const char *name;
    enum field_type type;
    size_t offset;
    bool required;
    int section;                     // enum group_section, of the group's own fields
    const struct field_table *table; // of FIELD_OBJECT, FIELD_OBJECTS, FIELD_CONTENT
    const char *doc;
};

struct field_table {
    const char *name;
    size_t size;    // of the struct
    size_t present; // offset of `bool present` in the struct of a FIELD_OBJECT
    const struct field *fields;
    size_t count;
};

// An array whose elements are of any type. It is copied from and to the typed arrays of a group, never cast.
struct field_array {
    void *data;
    size_t count;
};

// The path of a value, for messages: completions[2].text. A zeroed struct is the group itself.
struct field_path {
    const struct field_path *parent;
    const char *name; // NULL: the element `index` of an array
    size_t index;
};

extern const struct field_table group_table;

// Returns the field of that name, NULL if there is none.
const struct field *field_find(const struct field_table *table, const char *name, size_t size);

// Whether the field of `object` is present.
bool field_present(const struct field *field, const void *object);

// Returns the size of the field itself in its struct.
size_t field_size(const struct field *field);

// Returns the size of one element of an array field.
size_t field_element_size(const struct field *field);

// Whether an element of an array field stands for null.
bool field_element_is_null(const struct field *field, const void *element);

// Returns a copy of the {data, count} at `array`.
struct field_array field_array_load(const void *array);

// Makes every field of a zeroed object absent (NaN, ABSENT) and sets the group's version.
void fields_clear(const struct field_table *table, void *object);

// Checks that an object is complete: its required fields, and rules that no table expresses. Sets a part's kind.
// DATAERR.
status fields_check(const struct field_table *table, void *object, const struct field_path *path);

// Appends a key that no table knows, with its JSON text.
void fields_add_unknown(struct arena *arena, struct unknown_fields *unknown, struct string key, struct string json);

// Fails with DATAERR, "not a group: PATH: what".
status field_fail(const struct field_path *path, const char *what);
