#include "shared/reward/accuracy.h"

#include <math.h>
#include <string.h>

#include "shared/reward/number.h"
#include "shared/reward/rouge.h"
#include "shared/reward/words.h"

static const char *const names[PROBLEM_TYPES] = {"multiple choice", "numerical", "OCR", "free-form", "regression"};

const char *problem_type_name(enum problem_type type) {
    return names[type];
}

bool problem_type_parse(struct string name, enum problem_type *out) {
    for (int type = 0; type < PROBLEM_TYPES; type++) {
        if (!string_equals(name, names[type])) continue;
        *out = (enum problem_type)type;
        return true;
    }
    return false;
}

struct string answer_extract(struct string whole) {
    size_t open = string_find(whole, "<answer>", 0);
    size_t close = open == SIZE_MAX ? SIZE_MAX : string_find(whole, "</answer>", open + 8);
    if (close == SIZE_MAX) return (struct string){whole.data, 0};
    return python_strip(string_slice(whole, open + 8, close));
}

// Some </think> must be followed by <answer>, with white space between alone, and that by the </answer> at the end.
bool format_matches(struct string whole) {
    static const char begin[] = "<think>", end[] = "</answer>";
    const size_t begin_size = sizeof begin - 1, end_size = sizeof end - 1;
    if (whole.size < begin_size + end_size || memcmp(whole.data, begin, begin_size) != 0 ||
        memcmp(whole.data + whole.size - end_size, end, end_size) != 0)
        return false;
    size_t last = whole.size - end_size, step;
    for (size_t at = string_find(whole, "</think>", begin_size); at != SIZE_MAX;
         at = string_find(whole, "</think>", at)) {
        at += 8;
        size_t open = at;
        while (open < last && python_isspace(python_char_at(whole, open, &step))) open += step;
        if (open + 8 <= last && !memcmp(whole.data + open, "<answer>", 8)) return true;
    }
    return false;
}

static bool has_decimals(struct string number) {
    return memchr(number.data, '.', number.size) || memchr(number.data, ',', number.size);
}

static status numerical(struct string truth, struct string answer, double *accuracy) {
    bool readable, truth_readable;
    double number, true_number;
    *accuracy = 0;
    if (has_decimals(truth) != has_decimals(answer)) return OK;
    TRY(python_float(truth, &truth_readable, &true_number));
    TRY(python_float(answer, &readable, &number));
    if (!readable || !truth_readable || !isfinite(number) || !isfinite(true_number)) return OK;
    *accuracy = python_round2(number) == python_round2(true_number);
    return OK;
}

static status regression(struct string truth, struct string answer, double *accuracy) {
    bool readable, truth_readable;
    double number, true_number;
    *accuracy = 0;
    TRY(python_float(truth, &truth_readable, &true_number));
    TRY(python_float(answer, &readable, &number));
    if (!readable || !truth_readable || isnan(number)) return OK;
    double distance = (fabs(number - true_number) + 1e-9) / (fabs(true_number) + 1e-9);
    *accuracy = 1 - fmin(1, fmax(0, distance));
    return OK;
}

status solution_check(enum problem_type type, struct string solution) {
    bool readable;
    double number;
    struct string truth = answer_extract(solution);
    if (type != PROBLEM_REGRESSION) return OK;
    TRY(python_float(truth, &readable, &number));
    if (!readable || isfinite(number)) return OK;
    return fail(DATAERR, "the solution of a regression is not a finite number: %.*s", (int)truth.size, truth.data);
}

status accuracy_compute(enum problem_type type, struct string solution, struct string completion, double *accuracy) {
    struct string truth = answer_extract(solution), answer = answer_extract(completion);
    double rate = 0;
    switch (type) {
    case PROBLEM_CHOICE:
        *accuracy = truth.size == answer.size && !memcmp(truth.data, answer.data, truth.size);
        return OK;
    case PROBLEM_NUMERICAL:
        return numerical(truth, answer, accuracy);
    case PROBLEM_OCR:
        TRY(word_error_rate(truth, answer, &rate));
        *accuracy = fmax(0, fmin(1, 1 - rate));
        return OK;
    case PROBLEM_FREE_FORM:
        TRY(rouge_mean(truth, answer, accuracy));
        *accuracy = fmax(0, fmin(1, *accuracy));
        return OK;
    case PROBLEM_REGRESSION:
        TRY(solution_check(type, solution));
        return regression(truth, answer, accuracy);
    default:
        return fail(BUG, "problem type %d", (int)type);
    }
}
