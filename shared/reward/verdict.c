#include "shared/reward/verdict.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "shared/reward/accuracy.h"
#include "shared/reward/option_letter.h"

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
