#include "shared/reward/verdict.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"

status verdict_init(struct group *group, const char *judge) {
    struct consistency *consistency = &group->consistency;
    const size_t count = group->completion_count;
    enum problem_type type;
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    group_doubles(group, &consistency->verdict, count);
    for (size_t i = 0; i < count; i++) consistency->verdict.data[i] = NAN;
    group_strings(group, &consistency->reason, count);
    consistency->present = true;
    group_string(group, &consistency->judge, judge, strlen(judge));
    return OK;
}

void verdict_set(struct group *group, size_t i, double verdict, const char *format, ...) {
    char reason[256];
    va_list arguments;
    assert(i < group->consistency.verdict.count && i < group->consistency.reason.count);
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    group->consistency.verdict.data[i] = verdict;
    group_string(group, &group->consistency.reason.data[i], reason, strlen(reason));
}

status verdict_check(const struct group *group) {
    const struct double_array *verdict = &group->consistency.verdict;
    if (!verdict->data) return OK;
    if (verdict->count != group->completion_count)
        return fail(DATAERR, "not a group: consistency.verdict: %zu for %zu completions", verdict->count,
                    group->completion_count);
    for (size_t i = 0; i < verdict->count; i++)
        if (verdict->data[i] != 0 && verdict->data[i] != 1 && !isnan(verdict->data[i]))
            return fail(DATAERR, "not a group: consistency.verdict[%zu]: not 0 or 1", i);
    return OK;
}

const char *verdict_obstacle(const struct group *group, size_t i, struct string *thinking, char *answer) {
    const struct prompt *prompt = &group->prompt;
    const struct string text = group->completions[i].text;
    if (!string_equals(prompt->problem_type, problem_type_name(PROBLEM_CHOICE)))
        return "the question is no multiple choice";
    if (!prompt->options.count) return "the question has no options";
    *thinking = thinking_extract(text);
    if (!thinking->data) return "there is no thinking";
    *answer = option_of_answer(answer_extract(text), &prompt->options);
    return *answer ? NULL : "the answer names no option";
}

// ---- option ----

bool is_word_character(int32_t code) {
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return code == '_';
    }
}

char option_letter(struct string answer) {
    size_t at = answer.size && (answer.data[0] == '(' || answer.data[0] == '['), length;
    if (at >= answer.size || answer.data[at] < 'A' || answer.data[at] > 'Z') return 0;
    if (at + 1 < answer.size && is_word_character(python_char_at(answer, at + 1, &length))) return 0;
    return answer.data[at];
}

char option_of_answer(struct string answer, const struct string_array *options) {
    const char letter = option_letter(answer);
    for (size_t i = 0; !letter && answer.size && i < options->count && i < 26; i++) {
        const struct string text = options->data[i];
        if (text.data && text.size == answer.size && !memcmp(text.data, answer.data, text.size)) return (char)('A' + i);
    }
    return letter;
}

// ---- scores ----

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
