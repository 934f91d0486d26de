// Numbers as Python reads and rounds them.
#ifndef SHARED_REWARD_NUMBER_H
#define SHARED_REWARD_NUMBER_H

#include <stdbool.h>

#include "shared/base/status.h"
#include "shared/group/group.h"

// Whether float() takes the text with its commas taken out (white space around it, `1_000`, Unicode's decimal digits,
// `inf`, `nan`; not hexadecimal, not `1__0`): *found, and then *value. UNAVAILABLE when memory is short.
status python_float(struct string from, bool *found, double *value);

// round(value, 2): the nearest hundredth of the binary value, ties to even, and back. value must be finite.
double python_round2(double value);

#endif
