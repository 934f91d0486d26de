// What a completion answers, whether it has the form, and how right it is.
#ifndef SHARED_REWARD_ACCURACY_H
#define SHARED_REWARD_ACCURACY_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

enum problem_type {
    PROBLEM_CHOICE,
    PROBLEM_NUMERICAL,
    PROBLEM_OCR,
    PROBLEM_FREE_FORM,
    PROBLEM_REGRESSION,
    PROBLEM_TYPES,
};

// The names as they stand in data: "multiple choice", "numerical", "OCR", "free-form", "regression".
const char *problem_type_name(enum problem_type type);

// Whether the text is such a name, letter by letter.
bool problem_type_parse(struct string name, enum problem_type *out);

// The first <answer>\s*(.*?)\s*</answer>, trimmed; a slice, empty if there is none.
struct string answer_extract(struct string whole);

// Whether the whole text is <think>.*?</think>\s*<answer>.*?</answer>.
bool format_matches(struct string whole);

// DATAERR when the solution cannot be a ground truth of that type: a regression's that is infinite or not a number.
status solution_check(enum problem_type type, struct string solution);

// *accuracy = how right the completion is, 0 to 1, by the problem's type. DATAERR as solution_check.
status accuracy_compute(enum problem_type type, struct string solution, struct string completion, double *accuracy);

#endif
