// Conditions on a completion and its group, in a small language over the fields of groups:
//
//     condition  = term {"or" term}
//     term       = factor {"and" factor}
//     factor     = "not" factor | "(" condition ")" | operand comparison operand
//     comparison = "=" | "!=" | "<" | "<=" | ">" | ">="
//     operand    = number | string | field
//
// A number is written as in JSON, a string as 'text', with '' for a quote in it. A field is a path of keys
// (rewards.accuracy, completions.finish). Its last key is enough: it then stands for the first field of that name in
// the table of fields, so that accuracy is rewards.accuracy. A field has one value for the group (sample_id), or one
// for each completion, of which that of the tested completion counts. Of an array of another kind (completions.tokens,
// media) the number of its elements is compared. Numbers compare with numbers and strings, byte by byte, with strings.
// A comparison with a value that is absent or null is false, whatever the comparison.
#ifndef SHARED_GROUP_CONDITION_H
#define SHARED_GROUP_CONDITION_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"

struct condition;

// Parses a condition. USAGE "column N: what is wrong", where columns are characters from 1. Free with condition_free.
status condition_parse(struct condition **out, const char *text);

// Frees the condition and sets *condition to NULL; NULL is fine.
void condition_free(struct condition **condition);

// Returns whether the condition holds for a completion of the group, which need not exist: its values are then absent.
bool condition_holds(struct condition *condition, const struct group *group, size_t completion);

// Appends the paths of the fields that had no value in any call of condition_holds, separated by ", ".
void condition_missing(const struct condition *condition, struct buf *out);

#endif
