// Manual pages, made from the tables of options.
#ifndef TOOLS_REFERENCE_MAN_PAGE_H
#define TOOLS_REFERENCE_MAN_PAGE_H

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Appends the manual page of a program, "caravan" or "caravan-STAGE", as troff with the macros of man(7). USAGE for
// another name, UNAVAILABLE.
status man_page(const char *program, struct buf *out);

#endif
