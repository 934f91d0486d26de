// A condition on a completion and its group: FIELD OP VALUE, where OP is =, !=, <, <=, > or >=.
//
// A field is a path of keys (rewards.accuracy, completions.finish). Its last key is enough: it then stands for the
// first field of that name in the table of fields, so that accuracy is rewards.accuracy. A field has one value for the
// group (sample_id), or one for each completion, of which that of the tested completion counts. Of an array of another
// kind (completions.tokens, media) the number of its elements is compared. The value is a number as in JSON, or behind
// a field with strings all that follows; these compare byte by byte. A condition on a value that is absent or null does
// not hold, whatever the comparison.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/fields.h"
#include "shared/group/group.h"

struct condition {
    const struct field *outer, *inner; // `inner` of the object or of the completion at `outer`, NULL: `outer` itself
    int orders;                        // the bits of the comparison: for which orders it holds
    bool text;                         // its values are strings
    bool seen;                         // there was one
    double number;                     // what the field is compared with
    struct string string;
};

// Parses a condition; the text must outlive it. USAGE "'TEXT': what is wrong".
status condition_parse(struct condition *condition, const char *text);

// Returns whether the condition holds for a completion of the group, which need not exist: its values are then absent.
bool condition_holds(struct condition *condition, const struct group *group, size_t completion);

// Appends the path of the condition's field.
void condition_path(const struct condition *condition, struct buf *out);
