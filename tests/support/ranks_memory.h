// Ranks that are threads of one process: the reference that other transports are compared with.
#pragma once

#include "shared/base/ranks.h"

// Seconds that ranks_check lets a rank wait.
extern double ranks_memory_timeout;

// Makes `count` ranks, out[r] for the thread of rank r, which frees it.
void ranks_memory_open(int count, struct ranks **out);
