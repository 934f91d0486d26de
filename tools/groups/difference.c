#include "tools/groups/difference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHORT = 3, FIELD_WIDTH = 40 }; // elements of an array that are shown one by one; of a column's title

// ---- finding them ----

static const struct json difference_null = {.type = JSON_NULL}; // what is absent, too

static const struct json *difference_value(const struct json *value) {
    return value ? value : &difference_null;
}

// Of two values that are neither arrays nor objects.
static bool difference_same(const struct json *a, const struct json *b) {
    if (a->type != b->type) return false;
    if (a->type == JSON_BOOL) return a->boolean == b->boolean;
    return a->type == JSON_NULL || (a->text.size == b->text.size && !memcmp(a->text.data, b->text.data, a->text.size));
}

// Where a value stands. The path of an element is that of its array, with an index.
struct difference_place {
    const char *field;
    size_t index, then_count, now_count;
    bool element;
};

static void difference_walk(struct differences *differences, const struct difference_place *place,
                            const struct json *then, const struct json *now);

static const char *difference_path(struct arena *arena, const struct difference_place *place) {
    return place->element ? arena_printf(arena, "%s[%zu]", place->field, place->index) : place->field;
}

static void difference_walk_member(struct differences *differences, const char *path, const char *key,
                                   const struct json *then, const struct json *now) {
    const struct difference_place place = {
        .field = arena_printf(&differences->arena, "%s%s%s", path, *path ? "." : "", key)};
    difference_walk(differences, &place, difference_value(then), difference_value(now));
}

static void difference_walk(struct differences *differences, const struct difference_place *place,
                            const struct json *then, const struct json *now) {
    const bool then_object = then->type == JSON_OBJECT, now_object = now->type == JSON_OBJECT;
    const bool alone = then->type == JSON_NULL || now->type == JSON_NULL;
    if ((then_object && now_object) || ((then_object || now_object) && alone && !place->element)) {
        // The keys of the one in its order, then those that only the other has.
        const char *path = difference_path(&differences->arena, place);
        JSON_EACH(member, then)
        difference_walk_member(differences, path, member->key.data, member, json_at(now, member->key.data));
        JSON_EACH(member, now)
        if (!json_find(then, member->key.data, NULL))
            difference_walk_member(differences, path, member->key.data, NULL, member);
        return;
    }
    if (then->type == JSON_ARRAY && now->type == JSON_ARRAY) {
        struct difference_place at = {.field = difference_path(&differences->arena, place),
                                      .then_count = then->count,
                                      .now_count = now->count,
                                      .element = true};
        for (; at.index < then->count || at.index < now->count; at.index++)
            difference_walk(differences, &at, at.index < then->count ? &then->items[at.index] : &difference_null,
                            at.index < now->count ? &now->items[at.index] : &difference_null);
        return;
    }
    if (then->type < JSON_ARRAY && now->type < JSON_ARRAY && difference_same(then, now)) return;
    GROW(&differences->list, differences->count);
    differences->list[differences->count++] = (struct difference){.field = place->field,
                                                                  .index = place->index,
                                                                  .element = place->element,
                                                                  .then_count = place->then_count,
                                                                  .now_count = place->now_count,
                                                                  .then = then->type == JSON_NULL ? NULL : then,
                                                                  .now = now->type == JSON_NULL ? NULL : now};
}

void differences_find(struct differences *differences, const struct json *then, const struct json *now) {
    const struct difference_place root = {.field = ""};
    difference_walk(differences, &root, difference_value(then), difference_value(now));
}

void differences_add(struct differences *differences, const char *field, const struct json *then,
                     const struct json *now, const char *note) {
    GROW(&differences->list, differences->count);
    differences->list[differences->count++] =
        (struct difference){.field = field, .then = then, .now = now, .note = note};
}

void differences_release(struct differences *differences) {
    free(differences->list);
    arena_release(&differences->arena);
    *differences = (struct differences){0};
}

void differences_json(const struct differences *differences, struct buf *out) {
    struct buf path = {0};
    buf_puts(out, "[");
    for (size_t i = 0; i < differences->count; i++) {
        const struct difference *at = &differences->list[i];
        buf_clear(&path);
        buf_puts(&path, at->field);
        if (at->element) buf_printf(&path, "[%zu]", at->index);
        buf_puts(out, i ? ",{\"path\":" : "{\"path\":");
        json_print_string(out, path.data, path.size);
        buf_puts(out, ",\"then\":");
        json_print(out, at->then);
        buf_puts(out, ",\"now\":");
        json_print(out, at->now);
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
    buf_release(&path);
}

// ---- text ----

// Appends a value: a number with so many digits (0: all of them); a string as JSON; of an array or object its size.
static void difference_print(const struct json *value, int digits, struct buf *out) {
    double number;
    if (!value)
        buf_puts(out, "-");
    else if (json_is(value, JSON_ARRAY))
        buf_printf(out, "%zu elements", value->count);
    else if (json_is(value, JSON_OBJECT))
        buf_printf(out, "%zu keys", value->count);
    else if (digits && json_double(value, &number))
        buf_printf(out, "%.*g", digits, number);
    else
        json_print(out, value);
}

// Appends "then -> now", with as many digits as tell them apart.
static void difference_print_change(const struct difference *at, struct buf *out) {
    static const int digits[] = {4, 6, 8, 10, 12, 0};
    struct buf then = {0}, now = {0};
    for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
        buf_clear(&then);
        buf_clear(&now);
        difference_print(at->then, digits[i], &then);
        difference_print(at->now, digits[i], &now);
        if (strcmp(then.data, now.data) != 0) break;
    }
    buf_printf(out, "%s -> %s", then.data, now.data);
    buf_release(&then);
    buf_release(&now);
}

// Appends a string as JSON, from a little before `from` on.
static void difference_print_string(struct string text, size_t from, struct buf *out) {
    enum { BEFORE = 16 };
    size_t start = from > BEFORE ? from - BEFORE : 0;
    while (start && start < text.size && ((unsigned char)text.data[start] & 0xc0) == 0x80)
        start--; // inside a character
    if (start) buf_puts(out, "...");
    json_print_string(out, text.data + start, text.size - start);
}

// Returns the end of the values of one field, those from `from` on.
static size_t difference_field_end(const struct differences *differences, size_t from) {
    const struct difference *list = differences->list;
    size_t end = from + 1;
    while (end < differences->count && list[end].field == list[from].field) end++;
    return end;
}

// Whether the values list[0..count) are of a field that has a number for each completion.
static bool difference_is_column(const struct difference *list, size_t count, size_t completions) {
    if (!list->element || list->then_count != completions || list->now_count != completions) return false;
    if (strchr(list->field, '[') || strlen(list->field) > FIELD_WIDTH) return false;
    for (size_t i = 0; i < count; i++) {
        if (list[i].then && list[i].then->type != JSON_NUMBER) return false;
        if (list[i].now && list[i].now->type != JSON_NUMBER) return false;
    }
    return true;
}

// Appends columns of the table, the fields that begin at starts[0..count), with a row for each completion that differs.
static void difference_print_columns(const struct differences *differences, const size_t *starts, const int *widths,
                                     size_t count, size_t completions, struct buf *out) {
    static const char title[] = "completion";
    struct buf line = {0}, cell = {0};
    buf_printf(&line, "  %s", title);
    for (size_t k = 0; k < count; k++) buf_printf(&line, "  %-*s", widths[k], differences->list[starts[k]].field);
    for (size_t i = 0; i <= completions; i++) {
        while (line.size && line.data[line.size - 1] == ' ') line.data[--line.size] = 0;
        if (line.size) buf_printf(out, "%s\n", line.data);
        bool any = false;
        if (i == completions) break;
        buf_clear(&line);
        buf_printf(&line, "  %*zu", (int)sizeof title - 1, i);
        for (size_t k = 0; k < count; k++) {
            const size_t end = difference_field_end(differences, starts[k]);
            buf_clear(&cell);
            buf_puts(&cell, "");
            for (size_t d = starts[k]; d < end; d++)
                if (differences->list[d].index == i) difference_print_change(&differences->list[d], &cell);
            any |= cell.size > 0;
            buf_printf(&line, "  %-*s", widths[k], cell.data);
        }
        if (!any) buf_clear(&line);
    }
    buf_release(&line);
    buf_release(&cell);
}

// Appends the table of all fields that are columns, in as many parts as the width needs.
static void difference_print_table(const struct differences *differences, size_t completions, int columns,
                                   struct buf *out) {
    enum { INDENT = 12, GAP = 2 }; // the column `completion`; before each other one
    size_t *starts, count = 0;
    int *widths, width = INDENT;
    struct buf cell = {0};
    NEW(&starts, differences->count);
    NEW(&widths, differences->count);
    for (size_t from = 0, end; from < differences->count; from = end) {
        end = difference_field_end(differences, from);
        const struct difference *first = &differences->list[from];
        if (!difference_is_column(first, end - from, completions)) continue;
        int needed = (int)strlen(first->field);
        for (size_t d = from; d < end; d++) {
            buf_clear(&cell);
            difference_print_change(&differences->list[d], &cell);
            if ((int)cell.size > needed) needed = (int)cell.size;
        }
        if (count && width + GAP + needed > columns) {
            difference_print_columns(differences, starts, widths, count, completions, out);
            count = 0;
            width = INDENT;
        }
        starts[count] = from;
        widths[count++] = needed;
        width += GAP + needed;
    }
    if (count) difference_print_columns(differences, starts, widths, count, completions, out);
    free(starts);
    free(widths);
    buf_release(&cell);
}

// Appends a line, cut where it is longer than the width, and clears it.
static void difference_print_line(struct buf *line, int columns, struct buf *out) {
    static const char more[] = "...";
    size_t shown = 0;
    for (int width = 0; shown < line->size && width < columns; width++)
        shown += (size_t)abs(utf8_step(line->data + shown, line->size - shown));
    const bool whole = shown >= line->size;
    for (int back = 0; !whole && back < (int)sizeof more - 1; back++) // room for the dots
        while (((unsigned char)line->data[--shown] & 0xc0) == 0x80) continue;
    for (size_t i = 0; i < shown; i++) // DEL; JSON has escaped the other control characters
        if (line->data[i] == 0x7f) line->data[i] = '?';
    buf_append(out, line->data, shown);
    buf_puts(out, whole ? "\n" : "...\n");
    buf_clear(line);
}

void differences_text(const struct differences *differences, size_t completions, int columns, struct buf *out) {
    struct buf line = {0};
    difference_print_table(differences, completions, columns, out);
    for (size_t from = 0, end; from < differences->count; from = end) {
        const struct difference *list = &differences->list[from];
        end = difference_field_end(differences, from);
        const size_t count = end - from;
        if (difference_is_column(list, count, completions)) continue;
        if (list->element && (count > SHORT || list->then_count != list->now_count)) {
            buf_printf(&line, "  %s  ", list->field);
            const size_t before = list->then_count, after = list->now_count, common = before < after ? before : after;
            size_t differing = 0;
            double largest = 0;
            bool measures = false, numbers = true; // integers are names of tokens, or counts
            for (size_t i = 0; i < count; i++) {
                double a, b;
                int64_t integer;
                if (list[i].index >= common) continue;
                differing++;
                numbers = numbers && json_double(list[i].then, &a) && json_double(list[i].now, &b);
                if (numbers && fabs(a - b) > largest) largest = fabs(a - b);
                measures =
                    measures || (numbers && !(json_int(list[i].then, &integer) && json_int(list[i].now, &integer)));
            }
            if (before != after) buf_printf(&line, "%zu -> %zu elements", before, after);
            if (before != after && differing) buf_printf(&line, ", %zu of %zu differ", differing, common);
            if (before == after) buf_printf(&line, "%zu of %zu differ", differing, before);
            if (numbers && measures) buf_printf(&line, " by up to %.4g", largest);
            difference_print_line(&line, columns, out);
            continue;
        }
        for (size_t i = 0; i < count; i++) {
            buf_printf(&line, "  %s", list[i].field);
            if (list[i].element) buf_printf(&line, "[%zu]", list[i].index);
            buf_puts(&line, "  ");
            const int indent = (int)line.size;
            if (list[i].note)
                buf_puts(&line, list[i].note);
            else
                difference_print_change(&list[i], &line);
            if ((int)line.size > columns && json_is(list[i].then, JSON_STRING) && json_is(list[i].now, JSON_STRING)) {
                const struct string then = list[i].then->text, now = list[i].now->text; // a line for each
                size_t same = 0;
                while (same < then.size && same < now.size && then.data[same] == now.data[same]) same++;
                line.size = (size_t)indent;
                line.data[indent] = 0;
                buf_puts(&line, "then ");
                difference_print_string(then, same, &line);
                difference_print_line(&line, columns, out);
                buf_printf(&line, "%*snow  ", indent, "");
                difference_print_string(now, same, &line);
            }
            difference_print_line(&line, columns, out);
        }
    }
    buf_release(&line);
}
