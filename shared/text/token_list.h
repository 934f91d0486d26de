// A growing array of token ids.
#ifndef SHARED_TEXT_TOKEN_LIST_H
#define SHARED_TEXT_TOKEN_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

// A zeroed struct is an empty list.
struct token_list {
    int64_t *data;
    size_t count;
    size_t capacity;
};

// Appends one id.
void token_list_append(struct token_list *list, int64_t id);

// Frees the memory and leaves an empty list.
void token_list_release(struct token_list *list);

#endif
