// An item of what a model needs of its device's memory.
#ifndef SHARED_MODEL_MEMORY_ITEM_H
#define SHARED_MODEL_MEMORY_ITEM_H

#include <stdint.h>

struct memory_item {
    const char *name;
    uint64_t bytes;
};

enum { MEMORY_ITEMS = 12 };

#endif
