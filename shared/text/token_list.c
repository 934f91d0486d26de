#include "shared/text/token_list.h"

#include <assert.h>
#include <stdlib.h>

#include "shared/base/memory.h"

status token_list_append(struct token_list *list, int64_t id) {
    assert(list->count <= list->capacity);
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        TRY(RESIZE(&list->data, capacity));
        list->capacity = capacity;
    }
    list->data[list->count++] = id;
    return OK;
}

void token_list_release(struct token_list *list) {
    free(list->data);
    *list = (struct token_list){0};
}
