// The general video benchmarks, whose annotations have Video-R1's layout.
#ifndef SHARED_DATA_BENCHMARK_H
#define SHARED_DATA_BENCHMARK_H

#include <stddef.h>

#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/group/group.h"

// Sets the category of the group's prompt, which the benchmark's figures are counted by, where the record tells it.
// `path` is the path of its medium, one of whose directories names the benchmark; `index` is the record's place in the
// file, from 0. DATAERR "KEY: what is wrong", UNAVAILABLE.
status benchmark_set_category(struct group *group, struct json *record, struct string path, size_t index);

#endif
