#include "shared/reward/accuracy.h"

#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <utf8proc.h>

#include "shared/reward/python_text.h"

static const char *const problem_type_names[] = {"multiple choice", "numerical", "OCR", "free-form", "regression"};
static_assert(sizeof problem_type_names / sizeof *problem_type_names == PROBLEM_TYPES, "one name a type");

const char *problem_type_name(enum problem_type type) {
    assert(type < PROBLEM_TYPES);
    return problem_type_names[type];
}

bool problem_type_parse(struct string name, enum problem_type *out) {
    for (int type = 0; type < PROBLEM_TYPES; type++) {
        if (!string_equals(name, problem_type_names[type])) continue;
        *out = (enum problem_type)type;
        return true;
    }
    return false;
}

status problem_type_of(const struct group *group, enum problem_type *type) {
    const struct string *name = &group->prompt.problem_type;
    if (problem_type_parse(*name, type)) return OK;
    return fail(DATAERR, "sample %s: problem type '%s' is not one of " PROBLEM_TYPE_NAMES,
                group->sample_id.data ? group->sample_id.data : group->id.data, name->data ? name->data : "");
}

// Returns what stands between the first `begin` and the first `end` after it: a slice, absent without both.
static struct string accuracy_between(struct string text, const char *begin, const char *end) {
    size_t open = string_find(text, begin, 0);
    if (open == SIZE_MAX) return (struct string){0};
    open += strlen(begin);
    size_t close = string_find(text, end, open);
    return close == SIZE_MAX ? (struct string){0} : string_slice(text, open, close);
}

struct string answer_extract(struct string text) {
    struct string content = accuracy_between(text, "<answer>", "</answer>");
    return content.data ? python_strip(content) : (struct string){text.data, 0};
}

struct string thinking_extract(struct string text) {
    return accuracy_between(text, "<think>", "</think>");
}

// The regular expression matches if the text starts with <think>, ends with </answer>, and in between some </think> is
// followed by <answer> with only white space between them.
bool format_matches(struct string text) {
    static const char begin[] = "<think>", think_close[] = "</think>", answer_open[] = "<answer>", end[] = "</answer>";
    const size_t begin_size = sizeof begin - 1, open_size = sizeof answer_open - 1, end_size = sizeof end - 1;
    if (text.size < begin_size + end_size || memcmp(text.data, begin, begin_size) != 0 ||
        memcmp(text.data + text.size - end_size, end, end_size) != 0)
        return false;
    size_t last = text.size - end_size, length;
    for (size_t at = begin_size; (at = string_find(text, think_close, at)) != SIZE_MAX;) {
        at += sizeof think_close - 1;
        size_t open = at;
        while (open < last && python_isspace(python_char_at(text, open, &length))) open += length;
        if (open + open_size <= last && !memcmp(text.data + open, answer_open, open_size)) return true;
    }
    return false;
}

status solution_check(enum problem_type type, struct string solution) {
    double number;
    struct string truth = answer_extract(solution);
    if (type != PROBLEM_REGRESSION || !python_float(truth, &number) || isfinite(number)) return OK;
    return fail(DATAERR, "the solution of a regression is not a finite number: %.*s", (int)truth.size, truth.data);
}

static bool accuracy_has_decimals(struct string number) {
    return memchr(number.data, '.', number.size) || memchr(number.data, ',', number.size);
}

status accuracy_of_answer(enum problem_type type, struct string truth, struct string answer, double *accuracy) {
    double error, truth_number = NAN, number = NAN;
    const bool numbers = (type == PROBLEM_NUMERICAL || type == PROBLEM_REGRESSION) &&
                         python_float(truth, &truth_number) && python_float(answer, &number);
    *accuracy = 0;
    switch (type) {
    case PROBLEM_CHOICE:
        *accuracy = truth.size == answer.size && !memcmp(truth.data, answer.data, truth.size);
        return OK;
    case PROBLEM_NUMERICAL:
        if (numbers && isfinite(number) && isfinite(truth_number) &&
            accuracy_has_decimals(truth) == accuracy_has_decimals(answer))
            *accuracy = python_round2(number) == python_round2(truth_number);
        return OK;
    case PROBLEM_OCR:
        *accuracy = fmax(0, fmin(1, 1 - word_error_rate(truth, answer)));
        return OK;
    case PROBLEM_FREE_FORM:
        *accuracy = fmax(0, fmin(1, rouge_mean(truth, answer)));
        return OK;
    case PROBLEM_REGRESSION:
        if (!numbers || isnan(number)) return OK;
        error = (fabs(number - truth_number) + 1e-9) / (fabs(truth_number) + 1e-9); // the relative error
        *accuracy = 1 - fmin(1, fmax(0, error));
        return OK;
    default:
        return fail(BUG, "unknown problem type %d", (int)type);
    }
}

// ---- option ----

// The categories of letters, marks and numbers, which lie together.
static_assert(UTF8PROC_CATEGORY_LU == 1 && UTF8PROC_CATEGORY_NO == 11, "the category before is that of no character");

bool is_word_character(int32_t code) {
    const utf8proc_category_t category = utf8proc_category(code);
    return code == '_' || (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO);
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

bool answer_is_uncounted(const struct group *group, size_t i, double accuracy) {
    enum problem_type type;
    const struct string name = group->prompt.problem_type;
    if (accuracy != 0 || !name.data || !problem_type_parse(name, &type) || type != PROBLEM_CHOICE) return false;
    const char letter = option_letter(answer_extract(group->prompt.solution));
    return letter && option_of_answer(answer_extract(group->completions[i].text), &group->prompt.options) == letter;
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

status score_group(struct group *group, bool released) {
    enum problem_type type;
    const size_t count = group->completion_count;
    struct scores *scores = &group->scores;
    TRY(group_check(group, NEED_COMPLETIONS));
    TRY(problem_type_of(group, &type));
    *scores = (struct scores){.present = true, .unknown = scores->unknown};
    GROUP_ARRAY(group, &scores->accuracy, count);
    GROUP_ARRAY(group, &scores->letter, count);
    GROUP_ARRAY(group, &scores->correct, count);
    GROUP_ARRAY(group, &scores->parsed, count);
    GROUP_ARRAY(group, &scores->formatted, count);

    const struct string truth = answer_extract(group->prompt.solution);
    const char letter = type == PROBLEM_CHOICE ? option_letter(truth) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct string text = group->completions[i].text, content = answer_extract(text);
        const struct string answer = content.size ? content : python_strip(text);
        double *accuracy = &scores->accuracy.data[i], number, target; // 0
        if (type == PROBLEM_REGRESSION) {
            if (python_float(truth, &target) && python_float(answer, &number))
                *accuracy = mean_relative_accuracy(target, number);
        } else if (!released || (type != PROBLEM_OCR && type != PROBLEM_FREE_FORM)) {
            TRY(accuracy_of_answer(type, truth, answer, accuracy));
        }
        scores->letter.data[i] = letter ? option_letter(content) == letter : NAN;
        scores->correct.data[i] = scores->accuracy.data[i] == 1;
        scores->parsed.data[i] = content.size > 0;
        scores->formatted.data[i] = format_matches(text);
    }
    return OK;
}
