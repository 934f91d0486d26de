#include "shared/base/utf8.h"

// A lead byte's number of bytes to follow and the range of the first of them (Unicode Standard, table 3-7).
static int lead_facts(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = 0x80, *high = 0xBF;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    if (lead == 0xE0) *low = 0xA0;
    if (lead == 0xED) *high = 0x9F;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
}

int utf8_step(const char *data, size_t size) {
    const unsigned char *at = (const unsigned char *)data;
    if (at[0] < 0x80) return 1;
    unsigned char low, high;
    int follow = lead_facts(at[0], &low, &high);
    if (!follow) return -1;
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

status utf8_replace(const char *data, size_t size, struct buf *out) {
    size_t start = 0, at = 0;
    while (at < size) {
        int step = utf8_step(data + at, size - at);
        if (step > 0) {
            at += (size_t)step;
            continue;
        }
        TRY(buf_append(out, data + start, at - start));
        TRY(buf_append(out, "\xEF\xBF\xBD", 3));
        at += (size_t)-step;
        start = at;
    }
    return buf_append(out, data + start, at - start);
}
