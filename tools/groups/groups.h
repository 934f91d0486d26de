// What the files of `caravan groups` share.
#ifndef TOOLS_GROUPS_GROUPS_H
#define TOOLS_GROUPS_GROUPS_H

#include "shared/config/options.h"
#include "tools/tools.h"

struct groups_options {
    const char *store, *state;
    struct string_list where; // conditions, all of which must hold
    int64_t per_group;        // 0: all
    struct option_keep keep;
    bool sections;
};

// caravan groups select: writes the completions for which each `where` holds, in the groups of the store and of each
// operand behind the first, as supervised data to standard output. USAGE, DATAERR, UNAVAILABLE.
status groups_select(const struct groups_options *options, const struct operands *operands);

#endif
