#include "tools/view/metric_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "tools/view/view.h"

// ---- reading ----

void metric_table_release(struct metric_table *table) {
    for (size_t i = 0; i < table->column_count; i++) free(table->columns[i].values);
    free(table->steps);
    arena_release(&table->arena);
    *table = (struct metric_table){0};
}

// Reads a line into the row behind the last one; *step is -1 if it has none.
static status metric_table_read_line(struct metric_table *table, struct json_reader *reader, struct arena *arena,
                                     char *device, size_t device_size, int64_t *step) {
    bool more;
    size_t guess = 0;
    *step = -1;
    TRY(json_reader_enter(reader, '{'));
    for (;;) {
        struct string name, text;
        struct json_number number;
        struct json other = {0};
        double value;
        TRY(json_reader_next(reader, '{', &more));
        if (!more) return json_reader_end(reader);
        TRY(json_reader_key(reader, arena, &name));
        const char next = json_reader_peek(reader);
        if (next == '"') {
            TRY(json_reader_string(reader, arena, &text));
            if (string_equals(name, "device")) snprintf(device, device_size, "%.*s", (int)text.size, text.data);
        } else if (next != '-' && (next < '0' || next > '9')) {
            TRY(json_reader_value(reader, arena, &other));
        } else {
            TRY(json_reader_number(reader, &number));
            if (string_equals(name, "step")) {
                if (!json_number_int(&number, step) || *step < 0) *step = -1;
                continue;
            }
            // Its column is often the one at `guess`. A new one has no numbers; more than METRIC_COLUMNS are left out.
            size_t at = guess;
            if (at >= table->column_count || !string_equals(name, table->columns[at].name)) at = 0;
            while (at < table->column_count && !string_equals(name, table->columns[at].name)) at++;
            if (at == METRIC_COLUMNS) continue;
            struct metric_column *column = &table->columns[at];
            if (at == table->column_count) {
                *column = (struct metric_column){.name = arena_strndup(&table->arena, name.data, name.size)};
                RESIZE(&column->values, table->capacity);
                for (size_t i = 0; i <= table->count; i++) column->values[i] = NAN;
                table->column_count++;
            }
            column->values[table->count] = json_number_double(&number, &value) ? value : NAN;
            guess = at + 1;
        }
    }
}

void metric_table_add(struct metric_table *table, const char *lines, size_t size) {
    for (size_t at = 0; at < size;) {
        const char *newline = memchr(lines + at, '\n', size - at);
        const size_t end = newline ? (size_t)(newline - lines) : size;
        struct json_reader reader = {.text = lines + at, .size = end - at};
        struct arena arena = {0};
        char device[sizeof table->device] = "";
        int64_t step;
        if (table->count == table->capacity) {
            table->capacity = table->capacity ? 2 * table->capacity : 256;
            RESIZE(&table->steps, table->capacity);
            for (size_t i = 0; i < table->column_count; i++) RESIZE(&table->columns[i].values, table->capacity);
        }
        for (size_t i = 0; i < table->column_count; i++) table->columns[i].values[table->count] = NAN;
        const bool known =
            metric_table_read_line(table, &reader, &arena, device, sizeof device, &step) == OK && step >= 0;
        arena_release(&arena);
        at = end + 1;
        if (!known) continue;
        const size_t row = metric_table_row(table, step);
        for (size_t i = 0; i < table->column_count && row < table->count; i++)
            table->columns[i].values[row] = table->columns[i].values[table->count];
        table->steps[row] = step;
        table->count = row + 1;
        snprintf(table->device, sizeof table->device, "%s", device);
    }
}

status metric_table_read(struct metric_table *table, const char *path) {
    struct buf lines = {0};
    bool anew;
    const status result = line_file_read(&table->file, path, &lines, &anew);
    if (anew) {
        table->count = 0;
        *table->device = 0;
    }
    if (result == OK) metric_table_add(table, lines.data, lines.size);
    buf_release(&lines);
    return result;
}

// ---- asking ----

const double *metric_table_find(const struct metric_table *table, const char *name) {
    for (size_t i = 0; i < table->column_count; i++)
        if (!strcmp(table->columns[i].name, name)) return table->columns[i].values;
    return NULL;
}

size_t metric_table_row(const struct metric_table *table, int64_t step) {
    size_t low = 0, high = table->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (table->steps[middle] < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// ---- printing ----

// What a bin is shown by.
enum metric_figure { METRIC_LAST, METRIC_MIN, METRIC_MAX, METRIC_MEAN, METRIC_FIGURES };

static const char *const metric_figures[METRIC_FIGURES] = {"last", "min", "max", "mean"};

// The rows first + [count * i / bins, count * (i + 1) / bins) are bin i.
struct metric_bins {
    size_t first, count, bins;
};

static size_t metric_bin_begin(const struct metric_bins *bins, size_t i) {
    return bins->first + bins->count * i / bins->bins;
}

static void metric_table_print_column(const struct metric_column *column, const struct metric_bins *bins,
                                      struct buf *out) {
    double(*figures)[METRIC_FIGURES];
    NEW(&figures, bins->bins);
    for (size_t i = 0; i < bins->bins; i++) {
        double sum = 0, last = NAN, low = INFINITY, high = -INFINITY;
        size_t known = 0; // of its numbers; without one all figures are NaN
        for (size_t row = metric_bin_begin(bins, i); row < metric_bin_begin(bins, i + 1); row++) {
            const double value = column->values[row];
            if (!isfinite(value)) continue;
            last = value;
            low = value < low ? value : low;
            high = value > high ? value : high;
            sum += value;
            known++;
        }
        figures[i][METRIC_LAST] = last;
        figures[i][METRIC_MIN] = known ? low : NAN;
        figures[i][METRIC_MAX] = known ? high : NAN;
        figures[i][METRIC_MEAN] = known > 1 ? sum / (double)known : last;
    }
    buf_puts(out, ", ");
    view_print_text(out, column->name);
    for (int figure = 0; figure < METRIC_FIGURES; figure++) {
        buf_printf(out, "%s\"%s\": [", figure ? "], " : ": {", metric_figures[figure]);
        for (size_t i = 0; i < bins->bins; i++) {
            buf_puts(out, i ? ", " : "");
            json_print_double(out, figures[i][figure]);
        }
    }
    buf_puts(out, "]}");
    free(figures);
}

void metric_table_print(const struct metric_table *table, int64_t from, int64_t to, size_t points,
                        const struct metric_column *more, size_t more_count, struct buf *out) {
    const size_t first = metric_table_row(table, from),
                 end = to < INT64_MAX ? metric_table_row(table, to + 1) : table->count;
    struct metric_bins bins = {.first = first, .count = end > first ? end - first : 0};
    bins.bins = bins.count < points ? bins.count : points;
    for (int last = 1; last >= 0; last--) {
        buf_puts(out, last ? "{\"step\": [" : "], \"first\": [");
        for (size_t i = 0; i < bins.bins; i++) {
            const size_t row = last ? metric_bin_begin(&bins, i + 1) - 1 : metric_bin_begin(&bins, i);
            buf_printf(out, "%s%lld", i ? ", " : "", (long long)table->steps[row]);
        }
    }
    buf_puts(out, "]");
    for (size_t i = 0; i < table->column_count; i++) {
        size_t row = first;
        while (row < first + bins.count && !isfinite(table->columns[i].values[row])) row++;
        if (row < first + bins.count) metric_table_print_column(&table->columns[i], &bins, out);
    }
    for (size_t i = 0; i < more_count; i++) metric_table_print_column(&more[i], &bins, out);
    buf_puts(out, "}");
}
