#include "tools/groups/condition.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "shared/base/json.h"

// The bits of a comparison say for which orders it holds.
enum { ORDER_LESS = 1, ORDER_EQUAL = 2, ORDER_GREATER = 4 };

static const struct {
    const char *sign;
    int orders;
} comparisons[] = {{"=", ORDER_EQUAL},   {"!=", ORDER_LESS | ORDER_GREATER},
                   {"<", ORDER_LESS},    {"<=", ORDER_LESS | ORDER_EQUAL},
                   {">", ORDER_GREATER}, {">=", ORDER_GREATER | ORDER_EQUAL}};

// ---- fields ----

// Whether the arrays of a section have one element for each completion.
static bool condition_by_completion(const struct field *outer) {
    return outer->section == SECTION_REFERENCE || outer->section == SECTION_CONSISTENCY ||
           outer->section == SECTION_REWARD || outer->section == SECTION_SCORES;
}

// Whether the fields inside `outer` have one value for the group or one for each completion.
static bool condition_has_inner(const struct field *outer) {
    return outer->type == FIELD_OBJECT || outer->section == SECTION_ROLLOUT;
}

status condition_parse(struct condition *condition, const char *text) {
    const char *const name = text + strspn(text, " ");
    const size_t size = strcspn(name, " =!<>");
    status result = OK;
    *condition = (struct condition){0};
    const char *const sign = name + size + strspn(name + size, " ");
    const size_t signs = strspn(sign, "=!<>");
    const char *const value = sign + signs + strspn(sign + signs, " ");
    size_t value_size = strlen(value);
    while (value_size && value[value_size - 1] == ' ') value_size--;
    if (!size) TRY_TO(result, done, fail(USAGE, "expected FIELD OP VALUE, as in accuracy = 1"));
    const char *const dot = memchr(name, '.', size);
    const size_t first = dot ? (size_t)(dot - name) : size;
    condition->outer = field_find(&group_table, name, first);
    if (condition->outer && condition->outer->table && dot)
        condition->inner = field_find(condition->outer->table, dot + 1, size - first - 1);
    for (size_t i = 0; !dot && !condition->outer && i < group_table.count; i++) { // the last key of a path alone
        const struct field *outer = &group_table.fields[i];
        if (outer->table && condition_has_inner(outer)) condition->inner = field_find(outer->table, name, size);
        if (condition->inner) condition->outer = outer;
    }
    const bool found = dot ? condition->inner != NULL : condition->outer != NULL;
    if (!found) TRY_TO(result, done, fail(USAGE, "no field has the name '%.*s'", size < 60 ? (int)size : 60, name));
    assert(condition->outer);
    const struct field *field = condition->inner ? condition->inner : condition->outer;
    if (field->type == FIELD_OBJECT || field->type == FIELD_SPANS || field->type == FIELD_TIMES ||
        (condition->inner && !condition_has_inner(condition->outer)))
        TRY_TO(result, done, fail(USAGE, "%.*s cannot be compared", (int)size, name));
    condition->text =
        field->type == FIELD_STRING || (field->type == FIELD_STRINGS && condition_by_completion(condition->outer));
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (strlen(comparisons[i].sign) == signs && !memcmp(sign, comparisons[i].sign, signs))
            condition->orders = comparisons[i].orders;
    if (!condition->orders)
        TRY_TO(result, done, fail(USAGE, "expected =, !=, <, <=, > or >= behind %.*s", (int)size, name));
    condition->string = (struct string){value, value_size};
    if (condition->text) goto done;
    struct json_reader reader = {.text = value, .size = value_size};
    struct json_number number;
    if (json_reader_number(&reader, &number) != OK || json_reader_end(&reader) != OK ||
        !json_number_double(&number, &condition->number))
        TRY_TO(result, done,
               fail(USAGE, "%.*s is compared with a number, not with '%.*s'", (int)size, name, (int)value_size, value));
done:
    return result == OK ? OK : fail_prefix(result, "'%s'", text);
}

// ---- values ----

bool condition_holds(struct condition *condition, const struct group *group, size_t completion) {
    const struct field *field = condition->outer;
    const void *object = group;
    double number = NAN;
    struct string string = {0};
    const struct string wanted = condition->string;
    if (condition->inner) {
        if (field->type == FIELD_OBJECTS && completion >= group->completion_count) return false;
        object = field->type == FIELD_OBJECTS ? (const void *)&group->completions[completion]
                                              : (const char *)group + field->offset;
        field = condition->inner;
    }
    if (!field_present(field, object)) return false;
    const char *at = (const char *)object + field->offset;
    const struct field_array array =
        field->type == FIELD_INT || field->type == FIELD_DOUBLE ? (struct field_array){0} : field_array_load(at);
    if (field->type == FIELD_INT) {
        number = (double)*(const int64_t *)(const void *)at;
    } else if (field->type == FIELD_DOUBLE) {
        number = *(const double *)(const void *)at;
    } else if (field->type == FIELD_STRING) {
        string = (struct string){array.data, array.count};
    } else if (!condition_by_completion(condition->outer)) {
        number = (double)array.count;
    } else if (completion >= array.count) {
        return false;
    } else if (field->type == FIELD_DOUBLES) {
        number = ((const double *)array.data)[completion];
    } else if (field->type == FIELD_STRINGS) {
        string = ((const struct string *)array.data)[completion];
    } else {
        assert(field->type == FIELD_ROWS);
        const struct float_array *row = (const struct float_array *)array.data + completion;
        if (!row->data) return false;
        number = (double)row->count;
    }
    if (condition->text ? !string.data : !isfinite(number)) return false;

    condition->seen = true;
    int order = (number > condition->number) - (number < condition->number);
    if (condition->text) {
        order = memcmp(string.data, wanted.data, string.size < wanted.size ? string.size : wanted.size);
        if (!order) order = (string.size > wanted.size) - (string.size < wanted.size);
    }
    return condition->orders & (order < 0 ? ORDER_LESS : order > 0 ? ORDER_GREATER : ORDER_EQUAL);
}

void condition_path(const struct condition *condition, struct buf *out) {
    buf_puts(out, condition->outer->name);
    if (condition->inner) buf_printf(out, ".%s", condition->inner->name);
}
