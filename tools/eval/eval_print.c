// The figures of `caravan eval` side by side: as text for people, as JSON and comma-separated values for programs.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "tools/eval/eval.h"

static const char *const eval_section_names[EVAL_SECTIONS] = {"", "categories", "consistency"};

void eval_path(const struct eval_figure *figure, struct buf *out) {
    if (figure->section != EVAL_TOTALS) {
        buf_printf(out, "%s.", eval_section_names[figure->section]);
        buf_append(out, figure->name.data, figure->name.size);
        buf_puts(out, ".");
    }
    buf_puts(out, eval_keys(figure->section)[figure->key]);
}

// Whether programs get the figure, too.
static bool eval_is_public(const struct eval_figure *figure) {
    return figure->section != EVAL_CONSISTENCY || figure->key != EVAL_NOT_JUDGED;
}

// *rows = the figures that any column has, each once, in order; their values mean nothing. The caller frees *rows.
static void eval_union(const struct eval_column *columns, size_t count, struct eval_figure **rows, size_t *row_count) {
    size_t total = 0, kept = 0;
    for (size_t c = 0; c < count; c++) total += columns[c].figure_count;
    NEW(rows, total);
    total = 0;
    for (size_t c = 0; c < count; c++)
        for (size_t i = 0; i < columns[c].figure_count; i++) (*rows)[total++] = columns[c].figures[i];
    qsort(*rows, total, sizeof **rows, eval_compare);
    for (size_t i = 0; i < total; i++)
        if (!kept || eval_compare(&(*rows)[kept - 1], &(*rows)[i])) (*rows)[kept++] = (*rows)[i];
    *row_count = kept;
}

// ---- JSON ----

// Appends the figures of a section, those of one name in braces behind it.
static void eval_print_section(const struct eval_column *column, enum eval_section section, struct buf *out) {
    const char *name = NULL;
    for (size_t i = 0; i < column->figure_count; i++) {
        const struct eval_figure *figure = &column->figures[i];
        if (figure->section != section || !eval_is_public(figure)) continue;
        if (section == EVAL_TOTALS || figure->name.data == name) {
            buf_puts(out, ",");
        } else {
            buf_puts(out, name ? "}," : "");
            json_print_string(out, figure->name.data, figure->name.size);
            buf_puts(out, ":{");
            name = figure->name.data;
        }
        buf_printf(out, "\"%s\":", eval_keys(section)[figure->key]);
        json_print_double(out, figure->value);
    }
    buf_puts(out, name ? "}" : "");
}

status eval_print_json(const struct eval_column *columns, size_t count, struct buf *out) {
    buf_puts(out, "{\"files\":[");
    for (size_t c = 0; c < count; c++) {
        buf_puts(out, c ? ",\n{\"name\":" : "{\"name\":");
        json_print_string(out, columns[c].name.data, columns[c].name.size);
        eval_print_section(&columns[c], EVAL_TOTALS, out);
        for (enum eval_section section = EVAL_CATEGORIES; section < EVAL_SECTIONS; section++) {
            buf_printf(out, ",\"%s\":{", eval_section_names[section]);
            eval_print_section(&columns[c], section, out);
            buf_puts(out, "}");
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "]}\n");
    return OK;
}

// ---- comma-separated values ----

void eval_print_field(struct buf *out, struct string text) {
    bool plain = true;
    for (size_t i = 0; i < text.size && plain; i++) plain = !strchr(",\"\r\n", text.data[i]) || !text.data[i];
    if (plain) {
        buf_append(out, text.data, text.size);
        return;
    }
    buf_puts(out, "\"");
    for (size_t i = 0; i < text.size; i++)
        buf_append(out, text.data[i] == '"' ? "\"\"" : &text.data[i], text.data[i] == '"' ? 2 : 1);
    buf_puts(out, "\"");
}

static void eval_print_row(const struct eval_column *columns, size_t count, const struct eval_figure *row,
                           struct buf *out) {
    struct buf path = {0};
    eval_path(row, &path);
    eval_print_field(out, (struct string){path.data, path.size});
    buf_release(&path);
    for (size_t c = 0; c < count; c++) {
        const double value = eval_value(&columns[c], row->section, row->name, row->key);
        buf_puts(out, ",");
        if (!isnan(value)) json_print_double(out, value);
    }
    buf_puts(out, "\n");
}

status eval_print_csv(const struct eval_column *columns, size_t count, struct buf *out) {
    struct eval_figure *rows;
    size_t row_count;
    eval_union(columns, count, &rows, &row_count);
    buf_puts(out, "name");
    for (size_t c = 0; c < count; c++) {
        buf_puts(out, ",");
        eval_print_field(out, columns[c].name);
    }
    buf_puts(out, "\n");
    for (size_t i = 0; i < row_count; i++)
        if (eval_is_public(&rows[i])) eval_print_row(columns, count, &rows[i], out);
    free(rows);
    return OK;
}

// ---- text ----

void eval_print_cell(struct buf *out, struct string text, size_t width, bool right) {
    size_t shown = 0;
    for (size_t i = 0; i < text.size; i++) shown += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    const int padding = shown < width ? (int)(width - shown) : 0;
    if (right) buf_printf(out, "%*s", padding, "");
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        buf_append(out, c < 0x20 || c == 0x7f ? "?" : &text.data[i], 1);
    }
    if (!right) buf_printf(out, "%*s", padding, "");
}

// How the text shows a figure.
enum eval_form { FORM_NONE, FORM_COUNT, FORM_NUMBER, FORM_SHARE, FORM_INTERVAL, FORM_OF_RECORDS };

static enum eval_form eval_form_of(const struct eval_figure *figure) {
    if (figure->section == EVAL_CATEGORIES) return figure->key == EVAL_OF_MEAN ? FORM_OF_RECORDS : FORM_NONE;
    if (figure->section == EVAL_CONSISTENCY)
        return figure->key == EVAL_RATE || figure->key == EVAL_RATE_CORRECT ? FORM_SHARE : FORM_COUNT;
    switch (figure->key) {
    case EVAL_ACCURACY:
    case EVAL_LETTER:
        return FORM_INTERVAL;
    case EVAL_MRA:
    case EVAL_MEAN:
    case EVAL_MACRO_MEAN:
        return FORM_SHARE;
    case EVAL_TOKENS_MEAN:
        return FORM_NUMBER;
    default:
        return figure->key < EVAL_ACCURACY ? FORM_COUNT : FORM_NONE;
    }
}

// Writes what a column has for a row: shares in percent, "-" for what it does not have.
static void eval_format(char *cell, size_t size, const struct eval_column *column, const struct eval_figure *row) {
    const double value = eval_value(column, row->section, row->name, row->key);
    const enum eval_form form = eval_form_of(row);
    if (isnan(value))
        snprintf(cell, size, "-");
    else if (form == FORM_INTERVAL)
        snprintf(cell, size, "%.1f %% (%.1f..%.1f)", 100 * value,
                 100 * eval_value(column, row->section, row->name, row->key + 1),
                 100 * eval_value(column, row->section, row->name, row->key + 2));
    else if (form == FORM_OF_RECORDS)
        snprintf(cell, size, "%.1f %% of %.0f", 100 * value,
                 eval_value(column, row->section, row->name, EVAL_OF_RECORDS));
    else if (form == FORM_SHARE)
        snprintf(cell, size, "%.1f %%", 100 * value);
    else
        snprintf(cell, size, form == FORM_NUMBER ? "%.1f" : "%.0f", value);
}

// The widths of the text's columns, in characters.
struct eval_layout {
    size_t label, column;
};

// Appends a row of the text, below its heading if it is the first of the categories or of a judge.
static void eval_print_line(const struct eval_column *columns, size_t count, const struct eval_figure *row, bool first,
                            const struct eval_layout *layout, struct buf *out) {
    const struct string key = string_of(eval_keys(row->section)[row->key]);
    if (first && row->section == EVAL_CATEGORIES) buf_puts(out, "mean by category\n");
    if (first && row->section == EVAL_CONSISTENCY) {
        buf_puts(out, "consistency by ");
        eval_print_cell(out, row->name, 0, false);
        buf_puts(out, "\n");
    }
    const size_t indent = row->section == EVAL_TOTALS ? 0 : 2;
    buf_puts(out, indent ? "  " : "");
    eval_print_cell(out, row->section == EVAL_CATEGORIES ? row->name : key, layout->label - indent, false);
    for (size_t c = 0; c < count; c++) {
        char cell[128];
        eval_format(cell, sizeof cell, &columns[c], row);
        eval_print_cell(out, string_of(cell), layout->column, true);
    }
    buf_puts(out, "\n");
}

// Appends the samples of a column that failed.
static void eval_print_failures(const struct eval_column *column, struct buf *out) {
    if (!column->failures.size) return;
    buf_puts(out, "\nquarantined in ");
    eval_print_cell(out, column->name, 0, false);
    buf_puts(out, "\n");
    buf_append(out, column->failures.data, column->failures.size);
}

status eval_print_text(const struct eval_column *columns, size_t count, struct buf *out) {
    struct eval_figure *rows;
    size_t row_count;
    eval_union(columns, count, &rows, &row_count);
    struct eval_layout layout = {22, 24}; // at least
    for (size_t i = 0; i < row_count; i++)
        if (rows[i].section == EVAL_CATEGORIES && rows[i].name.size + 2 > layout.label)
            layout.label = rows[i].name.size + 2;
    for (size_t c = 0; c < count; c++)
        if (columns[c].name.size + 2 > layout.column) layout.column = columns[c].name.size + 2;
    eval_print_cell(out, (struct string){"", 0}, layout.label, false);
    for (size_t c = 0; c < count; c++) eval_print_cell(out, columns[c].name, layout.column, true);
    buf_puts(out, "\n");
    const struct eval_figure *before = NULL; // the row that was printed last
    for (size_t i = 0; i < row_count; i++) {
        const struct eval_figure *row = &rows[i];
        if (eval_form_of(row) == FORM_NONE) continue;
        const bool first =
            !before || before->section != row->section || (row->section == EVAL_CONSISTENCY && row->key == 0);
        eval_print_line(columns, count, row, first, &layout, out);
        before = row;
    }
    for (size_t c = 0; c < count; c++) eval_print_failures(&columns[c], out);
    free(rows);
    return OK;
}
