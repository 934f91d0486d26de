#include "tests/support/groups.h"

#include "tests/unit/unit.h"

struct group *group_of_json(const char *json) {
    struct group *group = NULL;
    status result = group_from_json(&group, json, strlen(json));
    if (result != OK) print_error("%s: %s\n", json, fail_text());
    assert_int_equal(result, OK);
    return group;
}

struct group *group_of_format(const char *format, ...) {
    char *json = NULL;
    va_list arguments;
    va_start(arguments, format);
    assert_true(vasprintf(&json, format, arguments) >= 0);
    va_end(arguments);
    struct group *group = group_of_json(json);
    free(json);
    return group;
}
