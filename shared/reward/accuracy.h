// The answer and the format of a completion, and how accurate the answer is.
#ifndef SHARED_REWARD_ACCURACY_H
#define SHARED_REWARD_ACCURACY_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"

enum problem_type {
    PROBLEM_CHOICE,
    PROBLEM_NUMERICAL,
    PROBLEM_OCR,
    PROBLEM_FREE_FORM,
    PROBLEM_REGRESSION,
    PROBLEM_TYPES,
};

// Returns the name in data sets: "multiple choice", "numerical", "OCR", "free-form" or "regression".
const char *problem_type_name(enum problem_type type);

// Returns whether the string is such a name, in exactly this spelling, and sets *out if it is.
bool problem_type_parse(struct string name, enum problem_type *out);

// The five names as a list, for messages.
#define PROBLEM_TYPE_NAMES "multiple choice, numerical, OCR, free-form, regression"

// Sets *type to the problem type of the group. DATAERR with the sample's name if it has none of the five.
status problem_type_of(const struct group *group, enum problem_type *type);

// Returns what the first <answer>\s*(.*?)\s*</answer> captures, stripped: a slice, empty if nothing matches.
struct string answer_extract(struct string text);

// Returns what stands between the first <think> and the first </think> after it: a slice, absent without both.
struct string thinking_extract(struct string text);

// Returns whether the whole text matches <think>.*?</think>\s*<answer>.*?</answer>.
bool format_matches(struct string text);

// Checks that the solution can be the ground truth of a problem of that type. DATAERR when that of
// a regression is infinite or NaN.
status solution_check(enum problem_type type, struct string solution);

// Sets *accuracy to how accurate the completion's answer is, 0 to 1, by the rule of the problem's type. DATAERR as
// solution_check.
status accuracy_compute(enum problem_type type, struct string solution, struct string completion, double *accuracy);

// The same for an answer and a ground truth that are already extracted.
status accuracy_of_answer(enum problem_type type, struct string truth, struct string answer, double *accuracy);

#endif
