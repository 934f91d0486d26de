#include "shared/wire/seq_set.h"

#include <assert.h>
#include <stdlib.h>

static const int64_t seq_limit = (int64_t)1 << 40; // every seq is smaller

static int seq_set_compare(const void *a, const void *b) {
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return (left > right) - (left < right);
}

status seq_set_format(int64_t *seqs, size_t count, struct buf *out) {
    enum { SIZE_MAX_BYTES = 3900 };
    size_t begin = out->size;
    if (count) qsort(seqs, count, sizeof *seqs, seq_set_compare);
    TRY(buf_puts(out, ""));
    while (count && seqs[count - 1] >= seq_limit) count--;
    size_t i = 0;
    while (i < count && seqs[i] < 0) i++;
    while (i < count) {
        size_t last = i;
        assert(seqs[i] >= 0 && seqs[count - 1] < seq_limit);
        while (last + 1 < count && seqs[last + 1] - seqs[last] <= 1) last++;
        if (out->size - begin > SIZE_MAX_BYTES) return buf_puts(out, " +");
        if (out->size > begin) TRY(buf_puts(out, " "));
        TRY(buf_printf(out, "%lld", (long long)seqs[i]));
        if (seqs[last] != seqs[i]) TRY(buf_printf(out, "-%lld", (long long)seqs[last]));
        i = last + 1;
    }
    return OK;
}

status seq_set_parse(const char *text, int64_t **list, size_t *count, int *whole) {
    enum { COUNT_MAX = 1000000 };
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
        if (end == text) return fail(DATAERR, "seqs: expected a number at '%s'", text);
        text = end;
        if (*text == '-') {
            last = strtoll(text + 1, &end, 10);
            if (end == text + 1) return fail(DATAERR, "seqs: expected a number at '%s'", text);
            text = end;
        }
        if (first < 0 || last < first || last >= seq_limit || last - first >= COUNT_MAX ||
            *count + (size_t)(last - first) >= COUNT_MAX)
            return fail(DATAERR, "%lld-%lld is not a valid range of sequence numbers", (long long)first,
                        (long long)last);
        TRY(RESIZE(list, *count + (size_t)(last - first) + 1));
        for (int64_t seq = first; seq <= last; seq++) (*list)[(*count)++] = seq;
    }
    return OK;
}
