#include "shared/base/string.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

struct string string_of(const char *text) {
    return (struct string){text, strlen(text)};
}

bool string_equals(struct string string, const char *other) {
    return string.data && string.size == strlen(other) && !memcmp(string.data, other, string.size);
}

struct string string_slice(struct string string, size_t from, size_t to) {
    assert(from <= to && to <= string.size);
    return (struct string){string.data + from, to - from};
}

size_t string_find(struct string string, const char *part, size_t from) {
    if (from > string.size) return SIZE_MAX;
    const char *found = memmem(string.data + from, string.size - from, part, strlen(part));
    return found ? (size_t)(found - string.data) : SIZE_MAX;
}
