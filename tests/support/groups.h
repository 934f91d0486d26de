// Groups for tests.
#pragma once

#include "shared/group/group.h"

// Returns the group of a line of JSON, owned by the caller. Fails the test when it is none.
struct group *group_of_json(const char *json);

// Returns the group of a formatted line of JSON, as group_of_json.
struct group *group_of_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
