// What all routes share: the arguments of a call, and how values are printed into its answer.
#include <math.h>
#include <string.h>

#include "shared/base/json.h"
#include "tools/view/view.h"

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
    struct arena arena = {0};
    struct string clean = {0};
    if (!text.data) {
        buf_puts(out, "null");
        return;
    }
    arena_string(&arena, &clean, text.data, text.size);
    json_print_string(out, clean.data, clean.size);
    arena_release(&arena);
}
