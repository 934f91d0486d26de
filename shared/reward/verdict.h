// What the judges of consistency share: which completions can be judged, and how a verdict is written into the group.
#ifndef SHARED_REWARD_VERDICT_H
#define SHARED_REWARD_VERDICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"
#include "shared/base/memory.h"
#include "shared/group/group.h"

// Prepares the group for the verdicts of the judge of that name: makes every verdict NaN and every reason absent. The
// other fields of `consistency` stay. DATAERR when a completion has no text or the problem type is unknown.
status verdict_init(struct group *group, const char *judge);

// Sets the verdict of completion i (1: the thinking supports the answer, 0: it does not, NaN: not judged) and its
// reason.
void verdict_set(struct group *group, size_t i, double verdict, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Checks that the group's verdicts, if it has any, are 1, 0 or NaN for each completion. DATAERR.
status verdict_check(const struct group *group);

// Sets *thinking to the thinking of completion i and *answer to the letter of the option that it answers with. Returns
// NULL, or why the completion cannot be judged: no multiple choice with options, no thinking, no such option.
const char *verdict_obstacle(const struct group *group, size_t i, struct string *thinking, char *answer);

// ---- the option that an answer to a multiple choice question chooses, by its letter or by its text ----

// Returns whether the code point is part of a word: a letter, a digit, an underscore or a combining mark.
bool is_word_character(int32_t code);

// Returns the letter that the answer begins with, 0 if it begins with none: A to Z, behind at most one ( or [, and not
// followed by a character of a word.
char option_letter(struct string answer);

// Returns the letter of the option that the answer chooses: its own letter, else that of the first option whose text
// is the answer. 0 if it chooses none.
char option_of_answer(struct string answer, const struct string_array *options);

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

#endif
