#include "tools/eval/figures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"

// The figures of a name in a section.
struct figure_block {
    size_t section;
    struct string name;
    size_t count;                  // of the figures
    const struct figure *any;      // of some column
    const struct figure **columns; // of each column; NULL: it has none
};

double figure_ratio(long double sum, size_t count) {
    return count ? (double)(sum / (long double)count) : NAN;
}

double figure_wilson(double p, size_t n, int side) {
    const double z = 1.959963984540054, count = (double)n, z2 = z * z / count;
    const double half = z * sqrt(p * (1 - p) / count + z2 / (4 * count));
    return n ? fmin(1, fmax(0, (p + z2 / 2 + side * half) / (1 + z2))) : NAN;
}

double figure_half(const double *values, size_t count, double quantile) {
    long double sum = 0, squares = 0;
    for (size_t i = 0; i < count; i++) sum += values[i];
    const long double mean = sum / (long double)count;
    for (size_t i = 0; i < count; i++) squares += (values[i] - mean) * (values[i] - mean);
    return count < 2 ? NAN : quantile * sqrt((double)squares / (double)(count - 1) / (double)count);
}

int figure_compare_names(struct string a, struct string b) {
    const size_t size = a.size < b.size ? a.size : b.size;
    const int order = size ? memcmp(a.data, b.data, size) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

int figure_compare_numbers(const void *a, const void *b) {
    const double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static int figure_compare_blocks(const void *a, const void *b) {
    const struct figure_block *one = a, *other = b;
    if (one->section != other->section) return one->section < other->section ? -1 : 1;
    return figure_compare_names(one->name, other->name);
}

void figure_table_add(struct figure_table *table, size_t column, size_t section, struct string name,
                      const struct figure *figures, size_t count) {
    const struct figure_block wanted = {.section = section, .name = name, .count = count};
    size_t at = 0;
    while (at < table->count && figure_compare_blocks(&table->blocks[at], &wanted)) at++;
    if (at == table->count) {
        GROW(&table->blocks, table->count);
        table->blocks[table->count++] = wanted;
        table->blocks[at].columns = arena_alloc(&table->memory, table->columns * sizeof *table->blocks->columns);
    }
    struct figure *copy = arena_alloc(&table->memory, count * sizeof *copy);
    memcpy(copy, figures, count * sizeof *copy);
    table->blocks[at].any = table->blocks[at].columns[column] = copy;
}

// Appends the path of a figure.
static void figure_path(const struct figure_table *table, const struct figure_block *block, const char *key,
                        struct buf *out) {
    const char *section = table->sections[block->section].name;
    buf_clear(out);
    if (section) {
        buf_printf(out, "%s.", section);
        buf_append(out, block->name.data, block->name.size);
        buf_puts(out, ".");
    }
    buf_puts(out, key);
}

bool figure_table_find(const struct figure_table *table, size_t column, struct string path, double *value) {
    struct buf own = {0};
    bool found = false;
    for (size_t b = 0; b < table->count && !found; b++) {
        const struct figure_block *block = &table->blocks[b];
        const struct figure *figures = block->columns[column];
        for (size_t f = 0; figures && f < block->count && !found; f++) {
            figure_path(table, block, figures[f].key, &own);
            found = own.size == path.size && !memcmp(own.data, path.data, path.size);
            *value = figures[f].value;
        }
    }
    buf_release(&own);
    return found;
}

void figure_table_release(struct figure_table *table) {
    free(table->blocks);
    arena_release(&table->memory);
}

// ---- JSON and comma-separated values ----

void figure_print_list(struct buf *out, enum figure_output output, const struct figure *figures, size_t count) {
    for (size_t f = 0; f < count; f++) {
        if (figures[f].form == FIGURE_TEXT_COUNT) continue;
        buf_puts(out, ",");
        if (output == FIGURE_JSON) buf_printf(out, "\"%s\":", figures[f].key);
        if (output == FIGURE_JSON || !isnan(figures[f].value)) json_print_double(out, figures[f].value);
    }
}

void figure_print_field(struct buf *out, struct string text) {
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

static void figure_table_json(const struct figure_table *table, struct buf *out) {
    struct buf members = {0};
    buf_printf(out, "{\"%s\":[", table->columns_key ? table->columns_key : "files");
    for (size_t c = 0; c < table->columns; c++) {
        size_t b = 0;
        buf_puts(out, c ? ",\n{\"name\":" : "{\"name\":");
        json_print_string(out, table->names[c].data, table->names[c].size);
        for (size_t s = 0; s < table->section_count; s++) {
            const char *name = table->sections[s].name, *before = "";
            if (name) buf_printf(out, ",\"%s\":{", name);
            for (; b < table->count && table->blocks[b].section == s; b++) {
                const struct figure_block *block = &table->blocks[b];
                if (!block->columns[c]) continue;
                buf_clear(&members);
                figure_print_list(&members, FIGURE_JSON, block->columns[c], block->count);
                if (!name) {
                    buf_puts(out, members.data);
                    continue;
                }
                buf_puts(out, before);
                json_print_string(out, block->name.data, block->name.size);
                buf_printf(out, ":{%s}", members.data + 1); // without the first comma
                before = ",";
            }
            if (name) buf_puts(out, "}");
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "]}\n");
    buf_release(&members);
}

static void figure_table_csv(const struct figure_table *table, struct buf *out) {
    struct buf path = {0};
    buf_puts(out, "name");
    for (size_t c = 0; c < table->columns; c++) {
        buf_puts(out, ",");
        figure_print_field(out, table->names[c]);
    }
    buf_puts(out, "\n");
    for (size_t b = 0; b < table->count; b++) {
        const struct figure_block *block = &table->blocks[b];
        for (size_t f = 0; f < block->count; f++) {
            if (block->any[f].form == FIGURE_TEXT_COUNT) continue;
            figure_path(table, block, block->any[f].key, &path);
            figure_print_field(out, (struct string){path.data, path.size});
            for (size_t c = 0; c < table->columns; c++) {
                const double value = block->columns[c] ? block->columns[c][f].value : NAN;
                buf_puts(out, ",");
                if (!isnan(value)) json_print_double(out, value);
            }
            buf_puts(out, "\n");
        }
    }
    buf_release(&path);
}

// ---- text ----

void figure_print_cell(struct buf *out, struct string text, size_t width, bool right) {
    size_t shown = 0;
    for (size_t i = 0; i < text.size; i++) shown += ((unsigned char)text.data[i] & 0xc0) != 0x80;
    const int padding = shown < width ? (int)(width - shown) : right ? 1 : 0;
    if (right) buf_printf(out, "%*s", padding, "");
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        buf_append(out, c < 0x20 || c == 0x7f ? "?" : &text.data[i], 1);
    }
    if (!right) buf_printf(out, "%*s", padding, "");
}

static void figure_table_text(const struct figure_table *table, struct buf *out) {
    figure_print_cell(out, (struct string){"", 0}, table->label_width, false);
    for (size_t c = 0; c < table->columns; c++) figure_print_cell(out, table->names[c], table->column_width, true);
    buf_puts(out, "\n");
    for (size_t b = 0; b < table->count; b++) {
        const struct figure_block *block = &table->blocks[b];
        const struct figure_section *section = &table->sections[block->section];
        const size_t indent = section->name ? 2 : 0;
        if (section->heading && (section->by_name || !b || block[-1].section != block->section)) {
            buf_puts(out, section->heading);
            if (section->by_name) figure_print_cell(out, block->name, 0, false);
            buf_puts(out, "\n");
        }
        for (size_t f = 0; f < block->count; f++) {
            bool shown = !table->sparse;
            for (size_t c = 0; c < table->columns; c++)
                shown |= block->columns[c] && !isnan(block->columns[c][f].value);
            if (!shown || block->any[f].form == FIGURE_HIDDEN) continue;
            buf_puts(out, indent ? "  " : "");
            figure_print_cell(out, indent && !section->by_name ? block->name : string_of(block->any[f].key),
                              table->label_width - indent, false);
            for (size_t c = 0; c < table->columns; c++) {
                const struct figure *figure = block->columns[c] ? &block->columns[c][f] : NULL;
                char cell[128];
                if (!figure || isnan(figure->value))
                    snprintf(cell, sizeof cell, "-");
                else if (figure->form == FIGURE_INTERVAL)
                    snprintf(cell, sizeof cell, "%.1f %% (%.1f..%.1f)", 100 * figure->value, 100 * figure[1].value,
                             100 * figure[2].value);
                else if (figure->form == FIGURE_OF_RECORDS)
                    snprintf(cell, sizeof cell, "%.1f %% of %.0f", 100 * figure->value, block->columns[c]->value);
                else if (figure->form == FIGURE_SHARE)
                    snprintf(cell, sizeof cell, "%.1f %%", 100 * figure->value);
                else
                    snprintf(cell, sizeof cell, "%.*f",
                             figure->form == FIGURE_THOUSANDTHS ? 3
                             : figure->form == FIGURE_TENTHS    ? 1
                                                                : 0,
                             figure->value);
                figure_print_cell(out, string_of(cell), table->column_width, true);
            }
            buf_puts(out, "\n");
        }
    }
}

void figure_table_print(struct figure_table *table, enum figure_output output, struct buf *out) {
    static void (*const printers[])(const struct figure_table *, struct buf *) = {
        [FIGURE_TEXT] = figure_table_text, [FIGURE_JSON] = figure_table_json, [FIGURE_CSV] = figure_table_csv};
    qsort(table->blocks, table->count, sizeof *table->blocks, figure_compare_blocks);
    printers[output](table, out);
}

// ---- judged ----

void judged_add(struct judged *judged, double consistent, bool correct) {
    if (isnan(consistent))
        judged->not_judged++;
    else
        judged->counts[consistent >= 1][correct]++;
}

double judged_rate(const struct judged *judged) {
    const size_t(*counts)[2] = judged->counts, consistent = counts[1][0] + counts[1][1];
    return figure_ratio((long double)consistent, consistent + counts[0][0] + counts[0][1]);
}

void judged_list(const struct judged *judged, struct figure figures[JUDGED_FIGURES]) {
    const size_t(*counts)[2] = judged->counts;
    const size_t consistent = counts[1][0] + counts[1][1], inconsistent = counts[0][0] + counts[0][1];
    const struct figure list[JUDGED_FIGURES] = {
        {"judged", FIGURE_COUNT, (double)(consistent + inconsistent)},
        {"consistent", FIGURE_COUNT, (double)consistent},
        {"rate", FIGURE_SHARE, judged_rate(judged)},
        {"rate_correct", FIGURE_SHARE, figure_ratio((long double)counts[1][1], counts[0][1] + counts[1][1])},
        {"consistent_correct", FIGURE_COUNT, (double)counts[1][1]},
        {"inconsistent_correct", FIGURE_COUNT, (double)counts[0][1]},
        {"consistent_wrong", FIGURE_COUNT, (double)counts[1][0]},
        {"inconsistent_wrong", FIGURE_COUNT, (double)counts[0][0]},
        {"not_judged", FIGURE_TEXT_COUNT, (double)judged->not_judged},
    };
    memcpy(figures, list, sizeof list);
}
