#include "tests/unit/unit.h"

#include <ftw.h>
#include <sys/stat.h>

enum { MAX_TESTS = 64, MAX_DIRECTORIES = 1024 };

static struct CMUnitTest unit_tests[MAX_TESTS];
static size_t unit_count;

void unit_add(const struct CMUnitTest *test) {
    if (unit_count == MAX_TESTS) abort();
    unit_tests[unit_count++] = *test;
}

static char unit_top[32]; // "" until it is asked for
static char unit_directories[MAX_DIRECTORIES][sizeof unit_top + 12];
static int unit_directory_count;

const char *unit_directory(void) {
    if (!*unit_top) assert_non_null(mkdtemp(strcpy(unit_top, "/tmp/caravan-test-XXXXXX")));
    return unit_top;
}

char *unit_new_directory(void) {
    assert_in_range(unit_directory_count, 0, MAX_DIRECTORIES - 1);
    char *path = unit_directories[unit_directory_count];
    snprintf(path, sizeof *unit_directories, "%s/%d", unit_directory(), unit_directory_count++);
    assert_int_equal(mkdir(path, 0755), 0);
    return path;
}

static int unit_remove(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info, (void)kind, (void)place;
    return remove(path);
}

int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
    const int failed = _cmocka_run_group_tests("tests", unit_tests, unit_count, setup, teardown);
    if (!*unit_top) return failed;
    const int left = nftw(unit_top, unit_remove, 8, FTW_DEPTH | FTW_PHYS);
    *unit_top = 0;
    return failed + (left != 0);
}

__attribute__((weak)) int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return unit_run(NULL, NULL);
}
