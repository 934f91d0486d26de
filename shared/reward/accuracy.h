// The answer and the format of a completion, how accurate the answer is, and its scores.
#pragma once

#include <stdbool.h>
#include <stdint.h>

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

// Sets *accuracy to how accurate the answer is, 0 to 1, by the rule of the problem's type; `truth` is the solution's
// answer. BUG for an unknown type.
status accuracy_of_answer(enum problem_type type, struct string truth, struct string answer, double *accuracy);

// ---- the option that an answer to a multiple choice question chooses, by its letter or by its text ----

// Returns whether the code point is part of a word: a letter, a digit, an underscore or a combining mark.
bool is_word_character(int32_t code);

// Returns the letter that the answer begins with, 0 if it begins with none: A to Z, behind at most one ( or [, and not
// followed by a character of a word.
char option_letter(struct string answer);

// Returns the letter of the option that the answer chooses: its own letter, else that of the first option whose text
// is the answer. 0 if it chooses none.
char option_of_answer(struct string answer, const struct string_array *options);

// Returns whether completion i, whose accuracy is given, names the right option of a multiple choice question and yet
// counts as wrong: "B green.</think><answer>B" is not "B", but what the model says is B.
bool answer_is_uncounted(const struct group *group, size_t i, double accuracy);

// ---- what an evaluation counts: the scores of each completion by the rules of the benchmarks ----

// Writes the group's scores. The answer is what answer_extract returns, or the whole completion where that is empty;
// the ground truth is what answer_extract returns for the solution. `accuracy` is that of accuracy_of_answer, but the
// mean relative accuracy of a regression; with `released`, it is 0 for OCR and free-form. `letter` is 1 if the answer
// has the letter of the ground truth, and NaN if that has none. `correct`: accuracy is 1. `parsed`: answer_extract
// finds something. `formatted`: format_matches. DATAERR when the problem type is unknown or a completion has no text.
status score_group(struct group *group, bool released);

// Returns the share, in tenths, of the ten bounds from 0.5 down to 0.05 that the relative error of `number` is below,
// computed in float32.
double mean_relative_accuracy(double truth, double number);

// ---- how near two texts are ----

// ROUGE-1, ROUGE-2 and ROUGE-L as Google's rouge_score computes them with use_stemmer, and the word error rate.

// Returns the mean of the three F-measures, 0 to 1. Tokens are runs of [a-z0-9] of the lower-cased text; those
// longer than 3 are stemmed. F = 2PR / (P + R), where P and R are the shares of the prediction's and of the target's
// n-grams (for ROUGE-L: of their longest common subsequence) that both have.
double rouge_mean(struct string target, struct string prediction);

// Returns the edit distance in words / max(1, words of the target).
double word_error_rate(struct string target, struct string prediction);

// The Porter stemmer in the variant that NLTK uses by default and rouge_score with it.
// Stems word[0..size), ASCII lower-case letters and digits, in place. Returns the new size, which is at most `size`.
size_t porter_stem(char *word, size_t size);
