// A condition is parsed into steps in postfix order, so that evaluating it needs a small stack and no recursion.
#include "shared/group/condition.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/group/fields.h"

enum { CONDITION_MAX_DEPTH = 100 }; // of parentheses and `not`

// A literal, or a field: `inner` of the object or of the completion at `outer`, or `outer` itself.
struct condition_operand {
    const struct field *outer, *inner; // NULL: a literal; the field `outer`
    bool text;                         // its value is a string
    bool seen;                         // it had a value
    double number;
    struct string string;
};

enum step_kind { STEP_COMPARE, STEP_NOT, STEP_AND, STEP_OR };

// The bits of a comparison say for which orders it holds.
enum { ORDER_LESS = 1, ORDER_EQUAL = 2, ORDER_GREATER = 4 };

struct condition_step {
    enum step_kind kind;
    int orders;
    struct condition_operand left, right;
};

struct condition {
    struct arena arena;
    struct condition_step *steps;
    size_t count, capacity;
};

// ---- words ----

enum word_kind { WORD_END, WORD_NUMBER, WORD_STRING, WORD_NAME, WORD_SIGN };

// The parser's place in the text, and the word there.
struct condition_parser {
    struct condition *condition;
    const char *text;
    size_t at; // behind the word
    enum word_kind kind;
    struct string word; // as it is written
    int depth;
};

// Fails with USAGE and the column of a place in the text.
static status condition_fail(const struct condition_parser *parser, const char *at, const char *what) {
    size_t column = 1;
    for (const char *c = parser->text; c < at; c++) column += ((unsigned char)*c & 0xC0) != 0x80;
    return fail(USAGE, "column %zu: %s", column, what);
}

static status condition_next(struct condition_parser *parser) {
    const char *text = parser->text, *start = text + parser->at + strspn(text + parser->at, " \t\r\n");
    size_t size = strspn(start, "<=>!");
    if (!*start) {
        parser->kind = WORD_END;
    } else if (isalpha((unsigned char)*start) || *start == '_') {
        parser->kind = WORD_NAME;
        while (isalnum((unsigned char)start[size]) || start[size] == '_' || start[size] == '.') size++;
    } else if (isdigit((unsigned char)*start) || *start == '-') {
        parser->kind = WORD_NUMBER;
        size = strspn(start, "0123456789+-.eE");
    } else if (*start == '\'') {
        parser->kind = WORD_STRING;
        do {
            const char *end = strchr(start + size + 1, '\'');
            if (!end) return condition_fail(parser, start, "the string has no end");
            size = (size_t)(end - start) + 1;
        } while (start[size] == '\'');
    } else {
        parser->kind = WORD_SIGN;
        if (!size) size = 1;
        if (!strchr("()<=>!", *start)) return condition_fail(parser, start, "a character that no condition contains");
    }
    parser->word = (struct string){start, size};
    parser->at = (size_t)(start - text) + size;
    return OK;
}

// Whether the parser's word is this keyword or sign.
static bool condition_at(const struct condition_parser *parser, const char *word) {
    return (parser->kind == WORD_NAME || parser->kind == WORD_SIGN) && string_equals(parser->word, word);
}

// ---- operands ----

// Whether the arrays of a section have one element for each completion.
static bool condition_by_completion(const struct field *outer) {
    return outer->section == SECTION_REFERENCE || outer->section == SECTION_CONSISTENCY ||
           outer->section == SECTION_REWARD || outer->section == SECTION_SCORES;
}

// Whether the fields inside `outer` have one value for the group or one for each completion.
static bool condition_has_inner(const struct field *outer) {
    return outer->type == FIELD_OBJECT || outer->section == SECTION_ROLLOUT;
}

// Finds the first field with a name in the table of fields.
static bool condition_find_short(struct condition_operand *operand, struct string name) {
    for (size_t i = 0; i < group_table.count; i++) {
        const struct field *outer = &group_table.fields[i];
        const struct field *inner = NULL;
        if (outer->table && condition_has_inner(outer)) inner = field_find(outer->table, name.data, name.size);
        if (!inner) continue;
        operand->outer = outer;
        operand->inner = inner;
        return true;
    }
    return false;
}

// Sets the operand to the field whose name is the parser's word.
static status condition_find_field(const struct condition_parser *parser, struct condition_operand *operand) {
    const struct string name = parser->word;
    const int shown = name.size < 60 ? (int)name.size : 60;
    const char *dot = memchr(name.data, '.', name.size);
    const size_t first = dot ? (size_t)(dot - name.data) : name.size;
    char said[256];
    operand->outer = field_find(&group_table, name.data, first);
    if (operand->outer && operand->outer->table && dot)
        operand->inner = field_find(operand->outer->table, dot + 1, name.size - first - 1);
    const bool found = dot ? operand->inner != NULL : operand->outer || condition_find_short(operand, name);
    if (!found) {
        snprintf(said, sizeof said, "no field has the name %.*s (a string is written '%.*s')", shown, name.data, shown,
                 name.data);
        return condition_fail(parser, name.data, said);
    }
    assert(operand->outer);
    const struct field *field = operand->inner ? operand->inner : operand->outer;
    if (field->type == FIELD_OBJECT || field->type == FIELD_SPANS || field->type == FIELD_JSON ||
        (operand->inner && !condition_has_inner(operand->outer))) {
        snprintf(said, sizeof said, "%.*s cannot be compared", shown, name.data);
        return condition_fail(parser, name.data, said);
    }
    operand->text =
        field->type == FIELD_STRING || (field->type == FIELD_STRINGS && condition_by_completion(operand->outer));
    return OK;
}

// Reads an operand and the word behind it.
static status condition_parse_operand(struct condition_parser *parser, struct condition_operand *operand) {
    const struct string word = parser->word;
    const bool keyword = condition_at(parser, "and") || condition_at(parser, "or") || condition_at(parser, "not");
    json_object *json = NULL;
    *operand = (struct condition_operand){0};
    if (parser->kind == WORD_NUMBER) {
        const bool number = json_parse(&json, word.data, word.size) == OK && json_double(json, &operand->number);
        json_object_put(json);
        if (!number) return condition_fail(parser, word.data, "not a number");
    } else if (parser->kind == WORD_STRING) {
        char *text = arena_strndup(&parser->condition->arena, word.data + 1, word.size - 2), *end = text;
        for (const char *c = text; *c; c++) {
            *end++ = *c;
            c += *c == '\'';
        }
        operand->string = (struct string){text, (size_t)(end - text)};
        operand->text = true;
    } else if (parser->kind == WORD_NAME && !keyword) {
        TRY(condition_find_field(parser, operand));
    } else {
        return condition_fail(parser, word.data, "expected a number, a string or a field");
    }
    return condition_next(parser);
}

// ---- conditions ----

static void condition_add(struct condition *condition, struct condition_step step) {
    if (condition->count == condition->capacity) {
        size_t capacity = condition->capacity ? 2 * condition->capacity : 8;
        RESIZE(&condition->steps, capacity);
        condition->capacity = capacity;
    }
    condition->steps[condition->count++] = step;
}

static status condition_parse_comparison(struct condition_parser *parser) {
    static const struct {
        const char *sign;
        int orders;
    } comparisons[] = {{"=", ORDER_EQUAL},   {"!=", ORDER_LESS | ORDER_GREATER},
                       {"<", ORDER_LESS},    {"<=", ORDER_LESS | ORDER_EQUAL},
                       {">", ORDER_GREATER}, {">=", ORDER_GREATER | ORDER_EQUAL}};
    struct condition_step step = {.kind = STEP_COMPARE};
    TRY(condition_parse_operand(parser, &step.left));
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (condition_at(parser, comparisons[i].sign)) step.orders = comparisons[i].orders;
    if (!step.orders) return condition_fail(parser, parser->word.data, "expected =, !=, <, <=, > or >=");
    TRY(condition_next(parser));
    const char *right = parser->word.data;
    TRY(condition_parse_operand(parser, &step.right));
    if (step.left.text != step.right.text)
        return condition_fail(parser, right,
                              step.left.text ? "a number, but a string is on the left"
                                             : "a string, but a number is on the left");
    condition_add(parser->condition, step);
    return OK;
}

static status condition_parse_joined(struct condition_parser *parser, enum step_kind kind);

static status condition_parse_factor(struct condition_parser *parser) {
    const bool negated = condition_at(parser, "not"), nested = condition_at(parser, "(");
    if (!negated && !nested) return condition_parse_comparison(parser);
    if (parser->depth == CONDITION_MAX_DEPTH) return condition_fail(parser, parser->word.data, "nested too deeply");
    parser->depth++;
    TRY(condition_next(parser));
    if (negated) {
        TRY(condition_parse_factor(parser));
        condition_add(parser->condition, (struct condition_step){.kind = STEP_NOT});
    } else {
        TRY(condition_parse_joined(parser, STEP_OR));
        if (!condition_at(parser, ")")) return condition_fail(parser, parser->word.data, "expected ), and, or or");
        TRY(condition_next(parser));
    }
    parser->depth--;
    return OK;
}

// Reads factors that are joined by `and`, or terms that are joined by `or`.
static status condition_parse_joined(struct condition_parser *parser, enum step_kind kind) {
    const char *word = kind == STEP_OR ? "or" : "and";
    for (size_t count = 1;; count++) {
        TRY(kind == STEP_OR ? condition_parse_joined(parser, STEP_AND) : condition_parse_factor(parser));
        if (count > 1) condition_add(parser->condition, (struct condition_step){.kind = kind});
        if (!condition_at(parser, word)) return OK;
        TRY(condition_next(parser));
    }
}

status condition_parse(struct condition **out, const char *text) {
    NEW(out, 1);
    struct condition_parser parser = {.condition = *out, .text = text};
    status result = condition_next(&parser);
    if (result == OK) result = condition_parse_joined(&parser, STEP_OR);
    if (result == OK && parser.kind != WORD_END)
        result = condition_fail(&parser, parser.word.data, "expected and, or, or the end");
    if (result != OK) condition_free(out);
    return result;
}

void condition_free(struct condition **condition) {
    if (!*condition) return;
    arena_release(&(*condition)->arena);
    free((*condition)->steps);
    free(*condition);
    *condition = NULL;
}

// ---- values ----

// Sets the operand's number or string to its value. Returns whether it has one.
static bool condition_load(struct condition_operand *operand, const struct group *group, size_t completion) {
    if (!operand->outer) return true;
    const struct field *field = operand->outer;
    const void *object = group;
    if (operand->inner) {
        if (field->type == FIELD_OBJECTS && completion >= group->completion_count) return false;
        object = field->type == FIELD_OBJECTS ? (const void *)&group->completions[completion]
                                              : (const char *)group + field->offset;
        field = operand->inner;
    }
    if (!field_present(field, object)) return false;
    const char *at = (const char *)object + field->offset;
    const struct field_array array =
        field->type == FIELD_INT || field->type == FIELD_DOUBLE ? (struct field_array){0} : field_array_load(at);
    if (field->type == FIELD_INT) {
        operand->number = (double)*(const int64_t *)(const void *)at;
    } else if (field->type == FIELD_DOUBLE) {
        operand->number = *(const double *)(const void *)at;
    } else if (field->type == FIELD_STRING) {
        operand->string = (struct string){array.data, array.count};
    } else if (!condition_by_completion(operand->outer)) {
        operand->number = (double)array.count;
    } else if (completion >= array.count) {
        return false;
    } else if (field->type == FIELD_DOUBLES) {
        operand->number = ((const double *)array.data)[completion];
    } else if (field->type == FIELD_STRINGS) {
        operand->string = ((const struct string *)array.data)[completion];
    } else {
        assert(field->type == FIELD_ROWS);
        const struct float_array *row = (const struct float_array *)array.data + completion;
        if (!row->data) return false;
        operand->number = (double)row->count;
    }
    const bool present = operand->text ? operand->string.data != NULL : isfinite(operand->number);
    operand->seen |= present;
    return present;
}

static bool condition_compare(struct condition_step *step, const struct group *group, size_t completion) {
    const bool left = condition_load(&step->left, group, completion),
               right = condition_load(&step->right, group, completion);
    int order;
    if (!left || !right) return false;
    if (step->left.text) {
        const struct string a = step->left.string, b = step->right.string;
        order = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
        if (!order) order = (a.size > b.size) - (a.size < b.size);
    } else {
        order = (step->left.number > step->right.number) - (step->left.number < step->right.number);
    }
    return step->orders & (order < 0 ? ORDER_LESS : order > 0 ? ORDER_GREATER : ORDER_EQUAL);
}

bool condition_holds(struct condition *condition, const struct group *group, size_t completion) {
    bool stack[2 * (CONDITION_MAX_DEPTH + 1) + 1] = {
        0}; // a level of parentheses leaves a term and a factor open at most
    size_t top = 0;
    for (size_t i = 0; i < condition->count; i++) {
        struct condition_step *step = &condition->steps[i];
        if (step->kind == STEP_COMPARE) {
            assert(top < sizeof stack / sizeof *stack);
            stack[top++] = condition_compare(step, group, completion);
        } else if (step->kind == STEP_NOT) {
            assert(top >= 1);
            stack[top - 1] = !stack[top - 1];
        } else {
            assert(top >= 2);
            top--;
            stack[top - 1] = step->kind == STEP_AND ? stack[top - 1] && stack[top] : stack[top - 1] || stack[top];
        }
    }
    assert(top == 1);
    return stack[0];
}

void condition_missing(const struct condition *condition, struct buf *out) {
    for (size_t i = 0; i < condition->count; i++) {
        const struct condition_operand *operands[] = {&condition->steps[i].left, &condition->steps[i].right};
        for (int k = 0; k < 2; k++) {
            const struct field *outer = operands[k]->outer, *inner = operands[k]->inner;
            if (!outer || operands[k]->seen) continue;
            buf_printf(out, "%s%s%s%s", out->size ? ", " : "", outer->name, inner ? "." : "", inner ? inner->name : "");
        }
    }
}
