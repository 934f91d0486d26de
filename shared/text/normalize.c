// The tables of the published tokenizers are those of Unicode 9. A character that was assigned later is left as it is
// and separates the text before it from the text after it, whatever the newer tables of utf8proc say.
#include "shared/text/normalize.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <utf8proc.h>

struct normalize_range {
    utf8proc_int32_t first, last;
};

// Characters assigned after Unicode 9 that have a combining class or a decomposition today, in ascending order.
static const struct normalize_range normalize_after_unicode9[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

static_assert(sizeof(utf8proc_int32_t) == 4, "code points are 32 bits wide");

static bool normalize_is_newer(utf8proc_int32_t character) {
    const size_t count = sizeof normalize_after_unicode9 / sizeof *normalize_after_unicode9;
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (character > normalize_after_unicode9[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && character >= normalize_after_unicode9[low].first;
}

// Returns whether no character changes under NFC or composes with its neighbours. Decides by the characters' properties
// alone, so the answer may be no for text that is in NFC (Vietnamese letters, for example), but never the reverse.
static bool normalize_is_nfc(const char *text, size_t size) {
    utf8proc_ssize_t length;
    for (size_t at = 0; at < size; at += (size_t)length) {
        length = 1;
        if ((unsigned char)text[at] < 0xCC) continue; // U+0300 starts with CC
        utf8proc_int32_t character;
        length = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &character);
        assert(length > 0);
        if (character >= 0xAC00 && character <= 0xD7A3) continue;
        if (character >= 0x1100 && character <= 0x11FF) return false; // Hangul letters compose by rule, not by table
        if (character < 0x300 || normalize_is_newer(character)) continue;
        const utf8proc_property_t *property = utf8proc_get_property(character);
        if (property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX ||
            (property->comb_index != UINT16_MAX && property->comb_index & 0x8000))
            return false;
    }
    return true;
}

static const utf8proc_option_t normalize_options[] = {
    [NORMALIZE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NORMALIZE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NORMALIZE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NORMALIZE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

// Appends the normalized text[0..size), which has no newer character.
static status normalize_append(enum normalize_form form, const char *text, size_t size, struct buf *buffer) {
    utf8proc_uint8_t *mapped = NULL;
    if (size == 0) return OK;
    utf8proc_ssize_t length =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &mapped, normalize_options[form]);
    if (length < 0) return fail(UNAVAILABLE, "cannot normalize text: %s", utf8proc_errmsg(length));
    buf_append(buffer, mapped, (size_t)length);
    free(mapped);
    return OK;
}

status normalize_text(enum normalize_form form, const char *text, size_t size, struct buf *buffer, const char **out,
                      size_t *out_size) {
    assert((size_t)form < sizeof normalize_options / sizeof *normalize_options);
    *out = text;
    *out_size = size;
    if (form == NORMALIZE_NONE || (form == NORMALIZE_NFC && normalize_is_nfc(text, size))) return OK;
    buf_clear(buffer);
    size_t done = 0;
    for (size_t at = 0; at < size;) {
        utf8proc_int32_t character;
        utf8proc_ssize_t length =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &character);
        if (length < 1) return fail(UNAVAILABLE, "cannot normalize text: %s", utf8proc_errmsg(length));
        if (normalize_is_newer(character)) {
            TRY(normalize_append(form, text + done, at - done, buffer));
            buf_append(buffer, text + at, (size_t)length);
            done = at + (size_t)length;
        }
        at += (size_t)length;
    }
    TRY(normalize_append(form, text + done, size - done, buffer));
    *out = buffer->data;
    *out_size = buffer->size;
    return OK;
}
