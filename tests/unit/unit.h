// cmocka with the headers that it needs, and without its macro fail(), which hides the library's.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#undef fail

// Defines a test: TEST(a_sentence_that_says_what_is_protected) { ... }. A file's tests run in the order in which they
// are defined. The variable `state` is cmocka's.
#define TEST(sentence) TEST_BETWEEN(sentence, NULL, NULL)

// As TEST, with cmocka's functions that set up and tear down this test; NULL: none.
#define TEST_BETWEEN(sentence, setup, teardown)                                                                        \
    static void sentence(void **state);                                                                                \
    __attribute__((constructor)) static void sentence##_add(void) {                                                    \
        const struct CMUnitTest test = {#sentence, sentence, setup, teardown, NULL};                                   \
        unit_add(&test);                                                                                               \
    }                                                                                                                  \
    static void sentence(__attribute__((unused)) void **state)

// A variable that `release` gets the address of when its block ends: SCOPED(struct buf, buf_release) text = {0};
#define SCOPED(type, release) __attribute__((cleanup(release))) __typeof__(type)

// The call must return OK; otherwise its message is printed.
#define MUST(expression)                                                                                               \
    do {                                                                                                               \
        status must_status = (expression);                                                                             \
        if (must_status != OK) print_error("%s:%d: %s\n", __FILE__, __LINE__, fail_text());                            \
        assert_int_equal(must_status, OK);                                                                             \
    } while (0)

// Returns the program's temporary directory. It is removed at the end of unit_run.
const char *unit_directory(void);

// Returns a new directory in it.
char *unit_new_directory(void);

// Adds a test to this program's.
void unit_add(const struct CMUnitTest *test);

// Runs the program's tests, after `setup` and before `teardown` (NULL: none). Returns how many failed. A program
// without a main of its own runs them without; it takes a pattern of the names of those to run.
int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown);
