// What all routes share: the arguments of a call, and how values are printed into its answer.
#include <math.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/json.h"
#include "tools/view/view.h"

bool view_may_go_on(struct view_call *call) {
    call->unfinished = clock_monotonic() > call->until;
    return !call->unfinished;
}

void view_call_release(struct view_call *call) {
    if (call->work) call->free_work(call->work);
    call->work = NULL;
    buf_release(&call->out);
}

const char *view_argument(const struct view_call *call, const char *name) {
    for (size_t i = 0; i < call->argument_count; i++)
        if (!strcmp(call->arguments[i].name, name)) return call->arguments[i].value;
    return NULL;
}

status view_number_argument(const struct view_call *call, const char *name, double *out) {
    const char *text = view_argument(call, name);
    struct json_reader reader = {.text = text, .size = text ? strlen(text) : 0};
    struct json_number number;
    *out = NAN;
    if (!text) return OK;
    if (json_reader_number(&reader, &number) == OK && json_reader_end(&reader) == OK &&
        json_number_double(&number, out))
        return OK;
    return fail(USAGE, "%s: not a number", name);
}

status view_int_argument(const struct view_call *call, const char *name, int64_t low, int64_t high, int64_t otherwise,
                         int64_t *out) {
    double number;
    *out = otherwise;
    TRY(view_number_argument(call, name, &number));
    if (isnan(number)) return OK;
    if (number != floor(number) || number < (double)low || number > (double)high)
        return fail(USAGE, "%s: not an integer from %lld to %lld", name, (long long)low, (long long)high);
    *out = (int64_t)number;
    return OK;
}

void view_print(struct buf *out, double value) {
    json_print_double(out, value);
}

void view_print_float(struct buf *out, float value) {
    char text[JSON_NUMBER_SIZE];
    buf_append(out, text, (size_t)(json_put_number(text, (double)value, true) - text));
}

void view_print_string(struct buf *out, struct string text) {
    struct buf clean = {0};
    if (!text.data) {
        buf_puts(out, "null");
        return;
    }
    utf8_replace(text.data, text.size, &clean);
    json_print_string(out, clean.data ? clean.data : "", clean.size);
    buf_release(&clean);
}

void view_print_text(struct buf *out, const char *text) {
    view_print_string(out, text ? string_of(text) : (struct string){0});
}

void view_print_marks(struct buf *out, const struct group_summary *summary) {
    buf_puts(out, "[");
    for (int i = 0; i < summary->completions && i < SUMMARY_MARKED; i++) {
        buf_puts(out, i ? ", " : "");
        if (isnan(summary->accuracy))
            buf_puts(out, "null");
        else
            buf_printf(out, "%u", (unsigned)(summary->marks >> 4 * i & 15));
    }
    buf_puts(out, "]");
}
