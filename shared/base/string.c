#include "shared/base/string.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "shared/base/memory.h"

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

int utf8_step(const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    if (at[0] < 0x80) return 1;
    // How many bytes follow a lead byte, and the range of the first of them (Unicode Standard, table 3-7).
    unsigned char lead = at[0], low = 0x80, high = 0xBF;
    if (lead < 0xC2 || lead > 0xF4) return -1;
    int follow = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (int i = 1; i <= follow; i++) {
        if ((size_t)i >= size || at[i] < low || at[i] > high) return -i;
        low = 0x80, high = 0xBF;
    }
    return follow + 1;
}

bool utf8_valid(const char *data, size_t size) {
    for (size_t at = 0; at < size;) {
        int step = utf8_step(data + at, size - at);
        if (step < 0) return false;
        at += (size_t)step;
    }
    return true;
}

void utf8_replace(const char *data, size_t size, struct buf *out) {
    size_t start = 0, at = 0;
    while (at < size) {
        int step = utf8_step(data + at, size - at);
        if (step > 0) {
            at += (size_t)step;
            continue;
        }
        buf_append(out, data + start, at - start);
        buf_append(out, "\xEF\xBF\xBD", 3);
        at += (size_t)-step;
        start = at;
    }
    buf_append(out, data + start, at - start);
}
