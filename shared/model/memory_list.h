// The list of what a model needs of a GPU's memory, and what every architecture counts in the same way.
#ifndef SHARED_MODEL_MEMORY_LIST_H
#define SHARED_MODEL_MEMORY_LIST_H

#include <stdint.h>

#include "kernels/ops.h"

// An item of what a model needs of its device's memory.
struct memory_item {
    const char *name;
    uint64_t bytes;
};

enum { MEMORY_ITEMS = 12 };

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

#endif
