#include "shared/wire/orders.h"

#include <stdlib.h>

static const int64_t order_most = (int64_t)1 << 40; // none is so large

static int compare(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

status orders_write(int64_t *orders, size_t count, struct buf *out) {
    enum { MOST = 3900 };
    size_t begin = out->size;
    if (count) qsort(orders, count, sizeof *orders, compare);
    TRY(buf_puts(out, ""));
    while (count && orders[count - 1] >= order_most) count--;
    size_t i = 0;
    while (i < count && orders[i] < 0) i++;
    while (i < count) {
        size_t last = i;
        while (last + 1 < count && orders[last + 1] - orders[last] <= 1) last++;
        if (out->size - begin > MOST) return buf_puts(out, " +");
        if (out->size > begin) TRY(buf_puts(out, " "));
        TRY(buf_printf(out, "%lld", (long long)orders[i]));
        if (orders[last] != orders[i]) TRY(buf_printf(out, "-%lld", (long long)orders[last]));
        i = last + 1;
    }
    return OK;
}

static status add_range(int64_t first, int64_t last, int64_t **list, size_t *count) {
    enum { MOST = 1000000 };
    if (first < 0 || last < first || last >= order_most || last - first >= MOST ||
        *count + (size_t)(last - first) >= MOST)
        return fail(DATAERR, "orders: %lld-%lld", (long long)first, (long long)last);
    TRY(RESIZE(list, *count + (size_t)(last - first) + 1));
    for (int64_t order = first; order <= last; order++) (*list)[(*count)++] = order;
    return OK;
}

status orders_read(const char *text, int64_t **list, size_t *count, int *whole) {
    if (whole) *whole = 1;
    while (*text) {
        char *end;
        if (*text == ' ') {
            text++;
            continue;
        }
        if (*text == '+' && whole) *whole = 0;
        if (*text == '+') return OK;
        int64_t first = strtoll(text, &end, 10), last = first;
        if (end == text) return fail(DATAERR, "orders: '%s'", text);
        text = end;
        if (*text == '-') {
            last = strtoll(text + 1, &end, 10);
            if (end == text + 1) return fail(DATAERR, "orders: '%s'", text);
            text = end;
        }
        TRY(add_range(first, last, list, count));
    }
    return OK;
}
