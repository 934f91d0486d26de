#include "shared/reward/words.h"

#include <string.h>
#include <utf8proc.h>

int32_t python_char_at(struct string whole, size_t at, size_t *step) {
    utf8proc_int32_t code;
    utf8proc_ssize_t rest = (utf8proc_ssize_t)(whole.size - at < 4 ? whole.size - at : 4);
    utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)whole.data + at, rest, &code);
    *step = bytes > 0 ? (size_t)bytes : 1;
    return bytes > 0 ? code : 0xfffd;
}

// Python takes the bidirectional classes WS, B and S and the category Zs.
bool python_isspace(int32_t code) {
    const utf8proc_property_t *property = utf8proc_get_property(code);
    return property->category == UTF8PROC_CATEGORY_ZS || property->bidi_class == UTF8PROC_BIDI_CLASS_WS ||
           property->bidi_class == UTF8PROC_BIDI_CLASS_B || property->bidi_class == UTF8PROC_BIDI_CLASS_S;
}

struct string python_strip(struct string whole) {
    size_t from = 0, to = whole.size, step;
    while (from < to && python_isspace(python_char_at(whole, from, &step))) from += step;
    while (to > from) {
        size_t last = to - 1;
        while (last > from && ((unsigned char)whole.data[last] & 0xc0) == 0x80) last--;
        if (!python_isspace(python_char_at(whole, last, &step))) break;
        to = last;
    }
    return string_slice(whole, from, to);
}

static size_t next_word(struct string whole, size_t at, struct string *word) {
    size_t step;
    while (at < whole.size && python_isspace(python_char_at(whole, at, &step))) at += step;
    size_t from = at;
    while (at < whole.size && !python_isspace(python_char_at(whole, at, &step))) at += step;
    *word = string_slice(whole, from, at);
    return at;
}

status python_split(struct arena *arena, struct string whole, struct string_array *words) {
    struct string word;
    size_t count = 0;
    for (size_t at = next_word(whole, 0, &word); word.size; at = next_word(whole, at, &word)) count++;
    words->count = count;
    words->data = arena_alloc(arena, (count + 1) * sizeof *words->data);
    if (!words->data) return fail_oom();
    size_t at = 0;
    for (size_t i = 0; i < count; i++) at = next_word(whole, at, &words->data[i]);
    return OK;
}
