#include "shared/text/token_list.h"

#include <assert.h>
#include <stdlib.h>

#include "shared/base/memory.h"

void token_list_append(struct token_list *list, int64_t id) {
    assert(list->count <= list->capacity);
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 256;
        RESIZE(&list->data, capacity);
        list->capacity = capacity;
    }
    list->data[list->count++] = id;
}

void token_list_release(struct token_list *list) {
    free(list->data);
    *list = (struct token_list){0};
}
