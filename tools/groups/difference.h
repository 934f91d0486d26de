// What differs between two groups as trees of JSON: value by value, and as text for a person.
#pragma once

#include "shared/base/json.h"

// A value that differs. An array that only one of the groups has is one value, and so is an element of an array; an
// object that only one has is gone through.
struct difference {
    const char *field; // the path without the last index: "rewards.bonus", "completions[2].logprobs"
    size_t index;      // of an element of the array that the field is
    bool element;      // it is such an element; otherwise the value of the field itself
    size_t then_count; // elements of that array
    size_t now_count;
    const struct json *then, *now; // NULL: absent or null
    const char *note;              // what text says instead of the values; NULL: the values
};

// In the order of the fields. A zeroed struct is empty.
struct differences {
    struct arena arena; // of the paths
    struct difference *list;
    size_t count;
};

// Adds every value that differs in two trees; absent is the same as null. Numbers and texts are compared by what is
// printed of them, so two groups that group_to_json has printed are compared to the bit. The trees must outlive the
// list.
void differences_find(struct differences *differences, const struct json *then, const struct json *now);

// Adds one whose field is `field`, with values of their own and a note, all of which must outlive the list.
void differences_add(struct differences *differences, const char *field, const struct json *then,
                     const struct json *now, const char *note);

// Frees the list and leaves an empty one.
void differences_release(struct differences *differences);

// Appends them as a JSON array of {"path", "then", "now"}.
void differences_json(const struct differences *differences, struct buf *out);

// Appends them as lines of at most `columns` characters: a table of the values that each of `completions` completions
// has, then what else differs; of long arrays how many elements differ, and by how much.
void differences_text(const struct differences *differences, size_t completions, int columns, struct buf *out);
