#include "shared/text/normal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <utf8proc.h>

// Whether a character neither changes under NFC nor joins its neighbours, judged by its properties alone: it may say
// no where yes is true (Vietnamese letters, say), never the other way round.
static bool is_inert(utf8proc_int32_t character) {
    if (character < 0x300 || (character >= 0xAC00 && character <= 0xD7A3)) return true;
    if (character >= 0x1100 && character <= 0x11FF) return false; // Hangul's letters join by rule, not by table
    const utf8proc_property_t *property = utf8proc_get_property(character);
    return property->combining_class == 0 && property->decomp_seqindex == UINT16_MAX &&
           (property->comb_index == UINT16_MAX || !(property->comb_index & 0x8000));
}

static bool is_normal(const char *text, size_t size) {
    const unsigned char *at = (const unsigned char *)text, *end = at + size;
    while (at < end) {
        if (*at < 0xCC) { // U+0300 starts with CC
            at++;
            continue;
        }
        utf8proc_int32_t character;
        at += utf8proc_iterate(at, end - at, &character);
        if (!is_inert(character)) return false;
    }
    return true;
}

static const utf8proc_option_t options[] = {
    [NORMAL_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NORMAL_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NORMAL_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NORMAL_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

status normal_text(normal_form form, const char *text, size_t size, bytes *buffer, const char **out, size_t *out_size) {
    *out = text;
    *out_size = size;
    if (form == NORMAL_NONE || (form == NORMAL_NFC && is_normal(text, size))) return OK;
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &mapped, options[form]);
    if (length < 0) return fail(SERVICE, "cannot normalise a text: %s", utf8proc_errmsg(length));
    bytes_clear(buffer);
    status result = bytes_add(buffer, mapped, (size_t)length);
    free(mapped);
    TRY(result);
    *out = buffer->data;
    *out_size = buffer->size;
    return OK;
}
