// What a config.json alone says of a model: the shapes that have a name, the keys, and what is counted from them.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/model/model.h"

// Makes the config.json of a shape: a known one, such as tiny, or a file's. Sets *fixed if its vocabulary has a given
// size. USAGE when the shape is NULL, or neither a name nor a file. It lies in the arena.
status named_shape_find(struct json **out, struct arena *arena, const char *shape, bool *fixed);

// Whether a shape has that name.
bool named_shape_exists(const char *name);

// Reads the config.json that `model` stands for: a directory's, that file itself, or a known shape's. It lies in the
// arena. *name = what messages call it, likewise. DATAERR when it cannot be read.
status named_shape_read(struct json **out, struct arena *arena, const char *model, const char **name);

// ---- config ----

// The keys of a model directory's JSON files. A value of the wrong type or outside a range is refused with the key's
// name. A key that is null counts as missing.
//
// Where a key is looked up: in the inner object first, then in the outer one. Either may be NULL.
struct config_scope {
    struct json *inner, *outer;
    const char *prefix; // of the inner object's keys in messages: "vision_config."
};

// Returns the value of a key, or NULL. It lives as long as the objects.
struct json *config_find(struct config_scope scope, const char *key);

// *out = an integer in low..high, or `missing`. A key whose default is below `low` has no default: it must be there.
// DATAERR.
status config_int64(struct config_scope scope, const char *key, int64_t low, int64_t high, int64_t missing,
                    int64_t *out);

// The same for an int.
status config_int(struct config_scope scope, const char *key, int low, int high, int missing, int *out);

// *out = a number in low..high, or `missing`. DATAERR.
status config_float(struct config_scope scope, const char *key, double low, double high, double missing, float *out);

// *out = a boolean, false if it is missing. DATAERR.
status config_bool(struct config_scope scope, const char *key, bool *out);

// DATAERR if the key is there and is not the string `wanted`, the only value that is supported.
status config_require(struct config_scope scope, const char *key, const char *wanted);

// ---- memory ----

// The list of what a model needs of its device's memory, and what every architecture counts in the same way.
struct memory_list {
    struct memory_item *items; // room for MEMORY_ITEMS
    size_t *count;
};

// Adds an item unless it has no bytes.
void memory_list_add(struct memory_list *list, const char *name, size_t bytes);

// Returns the type that a precision names; NULL is bfloat16.
enum element memory_list_type(const char *precision);

// Returns the bytes of a cache of keys and values with one layer.
size_t memory_list_cache_bytes(struct heads heads, enum element type, int64_t rows);
