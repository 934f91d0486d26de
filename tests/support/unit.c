#include "tests/unit/unit.h"

enum { MAX_TESTS = 64 };

static struct CMUnitTest unit_tests[MAX_TESTS];
static size_t unit_count;

void unit_add(const struct CMUnitTest *test) {
    if (unit_count == MAX_TESTS) abort();
    unit_tests[unit_count++] = *test;
}

int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    return _cmocka_run_group_tests("tests", unit_tests, unit_count, setup, teardown);
}

__attribute__((weak)) int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return unit_run(NULL, NULL);
}
