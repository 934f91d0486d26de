// Lists of names with ranges: those that Slurm writes, padding, order, and texts that are none.
#include "tests/unit/unit.h"

#include "shared/config/name_list.h"

TEST(lists_are_expanded) {
    static const struct {
        const char *text, *names;
    } cases[] = {
        {"a", "a"},
        {"a,b", "a b"},
        {" a , b", "a b"},
        {"a[1-3,7],b2", "a1 a2 a3 a7 b2"},
        {"gpu[08-11]", "gpu08 gpu09 gpu10 gpu11"},
        {"n[9-11]", "n9 n10 n11"},
        {"n[098-101]x", "n098x n099x n100x n101x"},
        {"r[1-2]n[0,3]", "r1n0 r1n3 r2n0 r2n3"},
        {"[2-4]", "2 3 4"},
        {"a[5]", "a5"},
        {"a[3,1]", "a3 a1"},
        {"login-1.example.org,10.0.0.[1-2]", "login-1.example.org 10.0.0.1 10.0.0.2"},
        {"a b", "a b"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct arena, arena_release) arena = {0};
        struct string_list list;
        SCOPED(struct buf, buf_release) text = {0};
        if (name_list_expand(cases[i].text, &arena, &list) != OK) assert_string_equal(cases[i].text, fail_text());
        for (size_t k = 0; k < list.count; k++) buf_printf(&text, "%s%s", k ? " " : "", list.data[k]);
        assert_string_equal(text.data, cases[i].names);
    }
}

TEST(mistakes_are_named) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "'': a name is empty"},
        {"a,", "'a,': a name is empty"},
        {",a", "a name is empty"},
        {"a,,b", "a name is empty"},
        {"a[", "'a[': a bracket is not closed"},
        {"a[1-2", "a bracket is not closed"},
        {"a]", "'a]': a bracket closes that is not open"},
        {"a[1]]", "a bracket closes that is not open"},
        {"a[]", "expected a number of 1 to 9 digits at ']'"},
        {"a[1,]", "expected a number of 1 to 9 digits at ']'"},
        {"a[-3]", "expected a number of 1 to 9 digits at '-3]'"},
        {"a[1-]", "expected a number of 1 to 9 digits at ']'"},
        {"a[x-y]", "expected a number of 1 to 9 digits at 'x-y]'"},
        {"a[1 -2]", "expected ',', '-' or ']' at ' -2]'"},
        {"a[1-2-3]", "expected ',', '-' or ']' at '-3]'"},
        {"a[3-1]", "'a[3-1]': 1 is below 3"},
        {"a[1-1234567890]", "expected a number of 1 to 9 digits"},
        {"a[1-999999999]", "more than 4096 names"},
        {"a[0-99]b[0-99]", "more than 4096 names"},
        {"a[1-[2]]", "expected a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct arena, arena_release) arena = {0};
        struct string_list list;
        assert_int_equal(name_list_expand(cases[i].text, &arena, &list), USAGE);
        if (!strstr(fail_text(), cases[i].says)) assert_string_equal(fail_text(), cases[i].says);
        assert_int_equal(list.count, 0);
    }
    char text[400];
    SCOPED(struct arena, arena_release) arena = {0};
    struct string_list list;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    assert_int_equal(name_list_expand(text, &arena, &list), USAGE);
    assert_string_equal(fail_text(), "a name is longer than 255 bytes");
}
