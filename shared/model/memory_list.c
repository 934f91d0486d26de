#include "shared/model/memory_list.h"

#include <assert.h>
#include <string.h>

void memory_list_add(struct memory_list *list, const char *name, size_t bytes) {
    assert(*list->count < MEMORY_ITEMS);
    if (bytes) list->items[(*list->count)++] = (struct memory_item){name, bytes};
}

enum element memory_list_type(const char *precision) {
    return precision && strcmp(precision, "float32") == 0 ? ELEMENT_F32 : ELEMENT_BF16;
}

size_t memory_list_cache_bytes(struct heads heads, enum element type, int64_t rows) {
    return (size_t)(2 * (int64_t)heads.key * heads.size * rows) * element_size(type);
}
