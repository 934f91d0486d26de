// JSON: numbers keep their text, strings their characters, and what is not JSON is refused.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/json.h"
#include "shared/base/json_reader.h"

static void assert_printed(const char *text, const char *wanted) {
    json_object *value = NULL;
    struct buf printed = {0};
    assert_int_equal(json_parse(&value, text, strlen(text)), OK);
    assert_int_equal(json_print(&printed, value), OK);
    assert_string_equal(printed.data, wanted);
    json_object_put(value);
    buf_release(&printed);
}

static void test_numbers_keep_their_text(void **state) {
    (void)state;
    static const char *const texts[] = {"0",
                                        "-0",
                                        "-0.0",
                                        "1.0",
                                        "2.50",
                                        "1E+2",
                                        "1e-000",
                                        "123456789012345678901234567890",
                                        "-9223372036854775809",
                                        "3.14159265358979323846",
                                        "1e400",
                                        "1e+000",
                                        "-2.50e+000",
                                        "1e+0000",
                                        "7e+00000",
                                        "7e+0005",
                                        "1E+000",
                                        "0e+000",
                                        "123456789012345678901234567890e+000",
                                        "[1e+000,-0,1e+0000]",
                                        "{\"e+000\":\"1e+000\",\"x\":5e+000}",
                                        "[\"\\\"\",1e+000]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) assert_printed(texts[i], texts[i]);
}

static void assert_int(const char *text, bool fits, int64_t wanted) {
    json_object *value = NULL;
    int64_t got;
    assert_int_equal(json_parse(&value, text, strlen(text)), OK);
    assert_int_equal(json_int(value, &got), fits);
    if (fits) assert_true(got == wanted);
    json_object_put(value);
}

static void test_integers(void **state) {
    (void)state;
    assert_int("1", true, 1);
    assert_int("-0", true, 0);
    assert_int("1e2", true, 100);
    assert_int("1e+000", true, 1);
    assert_int("9223372036854775807", true, INT64_MAX);
    assert_int("-9223372036854775808", true, INT64_MIN);
    assert_int("9223372036854775807e+000", true, INT64_MAX);
    assert_int("9223372036854775808", false, 0);
    assert_int("9223372036854775807e+0005", false, 0);
    assert_int("1.5", false, 0);
    assert_int("\"1\"", false, 0);
    assert_int("true", false, 0);
    assert_int("null", false, 0);
}

static void test_strings(void **state) {
    (void)state;
    assert_printed("\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"");
    assert_printed("\"\\uD876\\uDC00\"", "\"\xf0\xad\xa0\x80\""); // U+2D800
    assert_printed("\"\\ud83d\"", "\"\xef\xbf\xbd\"");
    assert_printed("\"\\u00e9/\\n\"", "\"\xc3\xa9/\\n\"");
    assert_printed("\"a\\u0000b\"", "\"a\\u0000b\"");
}

static void test_what_is_not_json(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        " ",
                                        "NaN",
                                        "1.",
                                        "01",
                                        "-",
                                        "1e",
                                        "+1",
                                        "'a'",
                                        "[1,]",
                                        "{,}",
                                        "{\"a\" 1}",
                                        "[1",
                                        "\"a",
                                        "a",
                                        "1 2",
                                        "\"\x01\"",
                                        "\"\xff\"",
                                        "{\"a\\u0000\":1}",
                                        "\"\\x\"",
                                        "tru",
                                        "nulll",
                                        "\"\\u12g4\""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        json_object *value = NULL;
        if (json_parse(&value, texts[i], strlen(texts[i])) != DATAERR) print_error("%s\n", texts[i]);
        assert_int_equal(json_parse(&value, texts[i], strlen(texts[i])), DATAERR);
        assert_null(value);
    }
}

static void test_keys_are_typed(void **state) {
    (void)state;
    static const char text[] = "{\"a\":[1],\"b\":true,\"n\":null}";
    json_object *object, *value;
    bool flag = false;
    assert_int_equal(json_parse_object(&object, text, strlen(text), "file"), OK);
    assert_int_equal(json_get(object, "a", json_type_array, &value), OK);
    assert_non_null(value);
    assert_int_equal(json_get(object, "a", json_type_string, &value), DATAERR);
    assert_string_equal(fail_text(), "a: expected string, not array");
    assert_int_equal(json_get(object, "n", json_type_string, &value), OK);
    assert_null(value);
    assert_int_equal(json_get_bool(object, "b", false, &flag), OK);
    assert_true(flag);
    assert_int_equal(json_get_bool(object, "missing", false, &flag), OK);
    assert_false(flag);
    json_object_put(object);
    assert_int_equal(json_parse_object(&object, "[]", 2, "file"), DATAERR);
    assert_string_equal(fail_text(), "file: not a JSON object");
}

static void test_floats_come_back(void **state) {
    (void)state;
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float value, back;
        memcpy(&value, &bits, 4);
        if (!isfinite(value)) continue;
        struct buf printed = {0};
        json_object *json = NULL;
        assert_int_equal(json_print_float(&printed, value), OK);
        assert_int_equal(json_parse(&json, printed.data, printed.size), OK);
        assert_true(json_float(json, &back));
        assert_memory_equal(&value, &back, 4);
        json_object_put(json);
        buf_release(&printed);
    }
}

// The shortest text of %g that reads back as the value.
static void shortest(char *text, size_t size, double value, bool single) {
    for (int digits = single ? 6 : 15; digits <= (single ? 9 : 17); digits++) {
        snprintf(text, size, "%.*g", digits, value);
        const bool same = single ? strtof(text, NULL) == (float)value && (float)strtod(text, NULL) == (float)value
                                 : strtod(text, NULL) == value;
        if (same) return;
    }
}

static void test_numbers_are_short(void **state) {
    (void)state;
    static const double parts[] = {1, 3, 4, 7, 10, 1000, 1e4, 1e6, 1e7, 1e9, 1e11, 1e-6, 1e-14};
    char got[64], wanted[64];
    uint32_t bits = 1;
    for (int i = 0; i < 60000; i++) {
        bits = bits * 1664525u + 1013904223u;
        const double value = ((double)(int)(bits >> 8) - 8e6) / parts[i % 13];
        if (value == 0) continue;
        *json_put_float(got, (float)value) = 0;
        shortest(wanted, sizeof wanted, (double)(float)value, true);
        assert_string_equal(got, wanted);
        *json_put_double(got, i % 2 ? value : (double)(float)value) = 0;
        shortest(wanted, sizeof wanted, i % 2 ? value : (double)(float)value, false);
        assert_string_equal(got, wanted);
    }
    *json_put_float(got, 480915.125f) = 0; // halfway between two numbers of eight digits
    assert_string_equal(got, "480915.12");
    *json_put_int(got, INT64_MIN) = 0;
    assert_string_equal(got, "-9223372036854775808");
    *json_put_double(got, -0.0) = 0;
    assert_string_equal(got, "-0.0");
    *json_put_double(got, (double)NAN) = 0;
    assert_string_equal(got, "null");
}

// The reader must round a number's text as strtof and strtod do, also halfway between two numbers.
static void assert_rounded(const char *text) {
    struct json_reader reader = {.text = text, .size = strlen(text)};
    struct json_number number;
    assert_int_equal(json_reader_number(&reader, &number), OK);
    assert_int_equal(reader.at, reader.size);
    const float single = strtof(text, NULL);
    const double whole = strtod(text, NULL);
    float got_single;
    double got;
    if (json_number_float(&number, &got_single) != (isfinite(single) != 0)) print_error("%s\n", text);
    assert_true(json_number_float(&number, &got_single) == (isfinite(single) != 0));
    assert_true(json_number_double(&number, &got) == (isfinite(whole) != 0));
    if (isfinite(single)) assert_memory_equal(&got_single, &single, sizeof single);
    if (isfinite(whole)) assert_memory_equal(&got, &whole, sizeof whole);
}

static void test_the_reader_rounds_once(void **state) {
    (void)state;
    char text[64];
    uint64_t bits = 88172645463325252u;
    for (int i = 0; i < 40000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        const uint32_t half = (uint32_t)(bits >> 32) & 0x7fffffff, after = half + 1;
        float below, above;
        memcpy(&below, &half, sizeof below);
        memcpy(&above, &after, sizeof above);
        if (!isfinite(below) || !isfinite(above)) continue;
        snprintf(text, sizeof text, "%.9g", (double)below);
        assert_rounded(text);
        snprintf(text, sizeof text, "-%.17g", ((double)below + (double)above) / 2);
        assert_rounded(text);
        snprintf(text, sizeof text, "%llu.%llue%d", (unsigned long long)(bits % 1000),
                 (unsigned long long)(bits >> (bits % 60)), (int)(bits % 61) - 30);
        assert_rounded(text);
        snprintf(text, sizeof text, "%llu", (unsigned long long)(bits >> (bits % 60)));
        assert_rounded(text);
    }
    assert_rounded("1e400");
    assert_rounded("1e-400");
    assert_rounded("0.00000000000000000000000000000000000000000000000000000000000000000000000000000001");
    assert_rounded("123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_keep_their_text),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_what_is_not_json),
        cmocka_unit_test(test_keys_are_typed),
        cmocka_unit_test(test_floats_come_back),
        cmocka_unit_test(test_numbers_are_short),
        cmocka_unit_test(test_the_reader_rounds_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
