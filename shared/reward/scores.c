#include "shared/reward/scores.h"

#include <math.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/option_letter.h"
#include "shared/reward/python_text.h"

// Every comparison with NaN fails, as that of two infinite numbers does.
double mean_relative_accuracy(double truth, double number) {
    const float target = (float)truth, error = fabsf((float)number - target) / (fabsf(target) + 1e-8f);
    int below = 0;
    for (int k = 0; k < 10; k++) {
        const float bound = 1 - (float)(0.5 + 0.05 * k);
        below += error < bound;
    }
    return below / 10.0;
}

static status score_accuracy(enum problem_type type, bool released, struct string truth, struct string answer,
                             double *accuracy) {
    double number = NAN, target = NAN;
    bool found, target_found;
    *accuracy = 0;
    if (released && (type == PROBLEM_OCR || type == PROBLEM_FREE_FORM)) return OK;
    if (type != PROBLEM_REGRESSION) return accuracy_of_answer(type, truth, answer, accuracy);
    python_float(truth, &target_found, &target);
    python_float(answer, &found, &number);
    if (found && target_found) *accuracy = mean_relative_accuracy(target, number);
    return OK;
}

status score_group(struct group *group, bool released) {
    enum problem_type type;
    const size_t count = group->completion_count;
    struct scores *scores = &group->scores;
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    *scores = (struct scores){.present = true, .unknown = scores->unknown};
    group_doubles(group, &scores->accuracy, count);
    group_doubles(group, &scores->letter, count);
    group_doubles(group, &scores->correct, count);
    group_doubles(group, &scores->parsed, count);
    group_doubles(group, &scores->formatted, count);

    const struct string truth = answer_extract(group->prompt.solution);
    const char letter = type == PROBLEM_CHOICE ? option_letter(truth) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct string text = group->completions[i].text, content = answer_extract(text);
        const struct string answer = content.size ? content : python_strip(text);
        TRY(score_accuracy(type, released, truth, answer, &scores->accuracy.data[i]));
        scores->letter.data[i] = letter ? option_letter(content) == letter : NAN;
        scores->correct.data[i] = scores->accuracy.data[i] == 1;
        scores->parsed.data[i] = content.size > 0;
        scores->formatted.data[i] = format_matches(text);
    }
    return OK;
}
