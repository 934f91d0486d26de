// JSON: numbers keep their text, strings their characters, and what is not JSON is refused.
#include <math.h>
#include "tests/unit/unit.h"

#include "shared/base/json.h"

// Copies the next of the words, which stand between '|', to `word`; returns false behind the last.
static bool next_word(const char **words, char word[64]) {
    const size_t size = strcspn(*words, "|");
    snprintf(word, 64, "%.*s", (int)size, *words);
    *words += size + ((*words)[size] == '|');
    return size > 0;
}

static void assert_printed(const char *text, const char *wanted) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *value = NULL;
    SCOPED(struct buf, buf_release) printed = {0};
    assert_int_equal(json_parse(&value, &arena, text, strlen(text)), OK);
    json_print(&printed, value);
    assert_string_equal(printed.data, wanted);
}

TEST(numbers_keep_their_text) {
    static const char texts[] = "0|-0|-0.0|1.0|2.50|1E+2|1e-000|123456789012345678901234567890|-9223372036854775809|"
                                "3.14159265358979323846|1e400|1e+000|-2.50e+000|1e+0000|7e+00000|7e+0005|1E+000|"
                                "0e+000|123456789012345678901234567890e+000|[1e+000,-0,1e+0000]|"
                                "{\"e+000\":\"1e+000\",\"x\":5e+000}|[\"\\\"\",1e+000]";
    char text[64];
    for (const char *at = texts; next_word(&at, text);) assert_printed(text, text);
}

static void assert_int(const char *text, bool fits, int64_t wanted) {
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *value = NULL;
    int64_t got;
    assert_int_equal(json_parse(&value, &arena, text, strlen(text)), OK);
    assert_int_equal(json_int(value, &got), fits);
    if (fits) assert_true(got == wanted);
}

TEST(integers_are_read_where_they_are_exact) {
    assert_int("1", true, 1);
    assert_int("-0", true, 0);
    assert_int("1e2", true, 100);
    assert_int("1e+000", true, 1);
    assert_int("9223372036854775807", true, INT64_MAX);
    assert_int("-9223372036854775808", true, INT64_MIN);
    assert_int("9223372036854775807e+000", false, 0);
    assert_int("9223372036854775808", false, 0);
    assert_int("9223372036854775807e+0005", false, 0);
    assert_int("1.5", false, 0);
    assert_int("\"1\"", false, 0);
    assert_int("true", false, 0);
    assert_int("null", false, 0);
}

TEST(strings_are_decoded_and_repaired) {
    assert_printed("\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"");
    assert_printed("\"\\uD876\\uDC00\"", "\"\xf0\xad\xa0\x80\""); // U+2D800
    assert_printed("\"\\ud83d\"", "\"\xef\xbf\xbd\"");
    assert_printed("\"\\u00e9/\\n\"", "\"\xc3\xa9/\\n\"");
    assert_printed("\"a\\u0000b\"", "\"a\\u0000b\"");
}

TEST(what_is_not_json_is_refused) {
    static const char texts[] = " |NaN|1.|01|-|1e|+1|'a'|[1,]|{,}|{\"a\" 1}|[1|\"a|a|1 2|\"\x01\"|\"\xff\"|"
                                "{\"a\\u0000\":1}|\"\\x\"|tru|nulll|\"\\u12g4\"";
    char text[64] = "";
    const char *at = texts;
    do {
        SCOPED(struct arena, arena_release) arena = {0};
        struct json *value = NULL;
        if (json_parse(&value, &arena, text, strlen(text)) != DATAERR) print_error("%s\n", text);
        assert_int_equal(json_parse(&value, &arena, text, strlen(text)), DATAERR);
        assert_null(value);
    } while (next_word(&at, text));
}

TEST(of_a_key_given_twice_the_last_value_counts) {
    SCOPED(struct buf, buf_release) text = {0}, wanted = {0};
    assert_printed("{\"a\":1,\"b\":2,\"a\":[3]}", "{\"a\":[3],\"b\":2}");
    buf_puts(&text, "{");
    for (int i = 0; i < 1000; i++) buf_printf(&text, "\"%d\":%d,", i % 700, i);
    buf_puts(&text, "\"x\":null}");
    buf_puts(&wanted, "{");
    for (int i = 0; i < 700; i++) buf_printf(&wanted, "\"%d\":%d,", i, i < 300 ? i + 700 : i);
    buf_puts(&wanted, "\"x\":null}");
    assert_printed(text.data, wanted.data);
}

TEST(trees_are_made_changed_and_merged) {
    static const char changes[] = "{\"b\":{\"y\":[true]},\"d\":\"e\"}";
    SCOPED(struct arena, arena_release) arena = {0};
    SCOPED(struct buf, buf_release) printed = {0};
    struct json *object = json_new(&arena, JSON_OBJECT), *changed;
    json_set_int(object, &arena, "a", 1);
    json_set(object, &arena, "b")->type = JSON_OBJECT;
    json_set_string(json_at(object, "b"), &arena, "x", "\"");
    for (int i = 0; i < 9; i++) json_set_int(object, &arena, (char[]){(char)('0' + i), 0}, i);
    for (int i = 1; i < 9; i++) json_remove(object, (char[]){(char)('0' + i), 0});
    json_set(object, &arena, "c")->type = JSON_ARRAY;
    json_push(json_at(object, "c"), &arena);
    json_set(object, &arena, "a"); // null
    assert_int_equal(json_parse(&changed, &arena, changes, strlen(changes)), OK);
    json_merge(object, &arena, changed);
    json_print(&printed, object);
    assert_string_equal(printed.data,
                        "{\"a\":null,\"b\":{\"x\":\"\\\"\",\"y\":[true]},\"0\":0,\"c\":[null],\"d\":\"e\"}");
    assert_true(json_find(object, "a", NULL));
    assert_null(json_at(object, "a"));
    assert_null(json_at(NULL, "a"));
}

TEST(keys_are_typed) {
    static const char text[] = "{\"a\":[1],\"b\":true,\"n\":null}";
    SCOPED(struct arena, arena_release) arena = {0};
    struct json *object, *value;
    bool flag = false;
    assert_int_equal(json_parse_object(&object, &arena, text, strlen(text), "file"), OK);
    assert_int_equal(json_get(object, "a", JSON_ARRAY, &value), OK);
    assert_non_null(value);
    assert_int_equal(json_get(object, "a", JSON_STRING, &value), DATAERR);
    assert_string_equal(fail_text(), "a: expected string, not array");
    assert_int_equal(json_get(object, "n", JSON_STRING, &value), OK);
    assert_null(value);
    assert_int_equal(json_get_bool(object, "b", false, &flag), OK);
    assert_true(flag);
    assert_int_equal(json_get_bool(object, "missing", false, &flag), OK);
    assert_false(flag);
    assert_int_equal(json_parse_object(&object, &arena, "[]", 2, "file"), DATAERR);
    assert_string_equal(fail_text(), "file: not a JSON object");
}

TEST(floats_come_back) {
    uint32_t bits = 1;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float value, back;
        memcpy(&value, &bits, 4);
        if (!isfinite(value)) continue;
        char printed[JSON_NUMBER_SIZE];
        SCOPED(struct arena, arena_release) arena = {0};
        struct json *json = NULL;
        const size_t size = (size_t)(json_put_number(printed, (double)value, true) - printed);
        assert_int_equal(json_parse(&json, &arena, printed, size), OK);
        assert_true(json_float(json, &back));
        assert_memory_equal(&value, &back, 4);
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

TEST(numbers_are_short) {
    static const double parts[] = {1, 3, 4, 7, 10, 1000, 1e4, 1e6, 1e7, 1e9, 1e11, 1e-6, 1e-14};
    char got[64], wanted[64];
    uint32_t bits = 1;
    for (int i = 0; i < 60000; i++) {
        bits = bits * 1664525u + 1013904223u;
        const double value = ((double)(int)(bits >> 8) - 8e6) / parts[i % 13];
        if (value == 0) continue;
        *json_put_number(got, (double)(float)value, true) = 0;
        shortest(wanted, sizeof wanted, (double)(float)value, true);
        assert_string_equal(got, wanted);
        *json_put_number(got, i % 2 ? value : (double)(float)value, false) = 0;
        shortest(wanted, sizeof wanted, i % 2 ? value : (double)(float)value, false);
        assert_string_equal(got, wanted);
    }
    *json_put_number(got, 480915.125, true) = 0; // halfway between two numbers of eight digits
    assert_string_equal(got, "480915.12");
    *json_put_int(got, INT64_MIN) = 0;
    assert_string_equal(got, "-9223372036854775808");
    *json_put_number(got, -0.0, false) = 0;
    assert_string_equal(got, "-0.0");
    *json_put_number(got, (double)NAN, false) = 0;
    assert_string_equal(got, "null");
}

static void assert_put_int(int64_t value) {
    char got[JSON_NUMBER_SIZE], wanted[32];
    snprintf(wanted, sizeof wanted, "%lld", (long long)value);
    *json_put_int(got, value) = 0;
    assert_string_equal(got, wanted);
}

TEST(integers_of_every_length_are_written) {
    for (int64_t power = 1; power <= INT64_MAX / 10; power *= 10)
        for (int64_t near = -1; near <= 1; near++)
            for (int64_t digit = 1; digit <= 9; digit++) {
                assert_put_int(power * digit + near);
                assert_put_int(-power * digit + near);
            }
    for (int64_t value = 0; value < 20000; value++) assert_put_int(value * 7919);
    assert_put_int(INT64_MAX);
    assert_put_int(INT64_MIN);
}

// Reads the elements of an array that begins with `text`; says how many were taken and what the last one is.
static void assert_plain_ints(const char *text, size_t taken, int64_t last, char next) {
    struct json_reader reader = {.text = text, .size = strlen(text)};
    int64_t values[8] = {0};
    assert_int_equal(json_reader_enter(&reader, '['), OK);
    assert_int_equal(json_reader_plain_ints(&reader, values, 8), taken);
    assert_int_equal(text[reader.at], next);
    if (taken) assert_true(values[taken - 1] == last);
}

TEST(runs_of_plain_integers_are_read) {
    assert_plain_ints("[0,7,42,151643,9999999]........", 5, 9999999, ']');
    assert_plain_ints("[1,2,3,4,5,6,7,8,9,10,11]", 8, 8, ',');
    assert_plain_ints("[1,10000000,3]........", 1, 1, ',');
    assert_plain_ints("[1,01]........", 1, 1, ',');
    assert_plain_ints("[1,00]........", 1, 1, ',');
    assert_plain_ints("[1,-2]........", 1, 1, ',');
    assert_plain_ints("[1,2.0]........", 1, 1, ',');
    assert_plain_ints("[1,2e0]........", 1, 1, ',');
    assert_plain_ints("[1,2 ,3]........", 1, 1, ',');
    assert_plain_ints("[1, 2]........", 1, 1, ',');
    assert_plain_ints("[1,,2]........", 1, 1, ',');
    assert_plain_ints("[1,2/]........", 1, 1, ',');
    assert_plain_ints("[1,2:]........", 1, 1, ',');
    assert_plain_ints("[1,2\xbc]........", 1, 1, ',');
    assert_plain_ints("[]........", 0, 0, ']');
    assert_plain_ints("[-1]........", 0, 0, '-');
    assert_plain_ints("[12345,6", 0, 0, '1'); // fewer than eight bytes
}

// Reads an array of this number, and asserts whether it is plain; if so, the value must be that of json_number_float.
static void assert_plain_float(const char *number, bool plain) {
    char text[128];
    struct json_number slow;
    float value, wanted;
    snprintf(text, sizeof text, "[%s,1]................................", number);
    struct json_reader reader = {.text = text, .size = strlen(text)}, other = reader;
    assert_int_equal(json_reader_enter(&reader, '['), OK);
    if (json_reader_plain_floats(&reader, &value, 1) != plain) print_error("%s\n", number);
    assert_int_equal(reader.at, plain ? 1 + strlen(number) : 1);
    assert_int_equal(reader.first, !plain);
    if (!plain) return;
    other.at = 1;
    assert_int_equal(json_reader_number(&other, &slow), OK);
    assert_int_equal(other.at, reader.at);
    assert_true(json_number_float(&slow, &wanted));
    assert_memory_equal(&value, &wanted, sizeof value);
}

TEST(plain_floats_are_read_to_the_bit) {
    static const char plain[] = "0|-0|7|-0.0|0.5|-0.3645937|1234567.5|0.12345678|0.123456789|-12.123456789012|"
                                "0.00000000000001";
    static const char other[] = "-|null|1e5|0.5e1|01|00|-01|1.|.5|-.5|1.,|+1|--1|1-|1 | 1|NaN|1.2.3|12345678|\"1\"|"
                                "16777217|0.1234567890123456|1234567.123456789|1.0000000596046448";
    char text[64];
    uint64_t bits = 88172645463325252u;
    for (const char *at = plain; next_word(&at, text);) assert_plain_float(text, true);
    for (const char *at = other; next_word(&at, text);) assert_plain_float(text, false);
    assert_plain_float("", false);
    for (int i = 0; i < 20000; i++) {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        snprintf(text, sizeof text, "%s%llu.%0*llu", i % 2 ? "-" : "",
                 (unsigned long long)(bits % (i % 3 ? 10 : 1000000)), 1 + i % 9,
                 (unsigned long long)((bits >> 20) % (uint64_t)pow(10, 1 + i % 9)));
        assert_plain_float(text, true);
    }
    // Halfway between two float32: one product of doubles may not decide.
    assert_plain_float("480915.140625", false);
}

TEST(strings_of_every_length_end_at_their_quote) {
    static const char *const special[] = {"\"", "\\", "\n", "\x1f", "\xc3\xa9", "\xff"};
    char text[40], wanted[64];
    SCOPED(struct buf, buf_release) printed = {0};
    for (size_t size = 0; size < 20; size++)
        for (size_t at = 0; at <= size; at++)
            for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
                struct json_reader reader = {.text = wanted};
                SCOPED(struct arena, arena_release) arena = {0};
                struct string read;
                snprintf(text, sizeof text, "%.*s%s%.*s", (int)at, "abcdefghijklmnopqrst", special[i], (int)(size - at),
                         "ABCDEFGHIJKLMNOPQRST");
                const char *escape[] = {"\\\"", "\\\\", "\\n", "\\u001f", "\xc3\xa9", "\xff"};
                snprintf(wanted, sizeof wanted, "\"%.*s%s%.*s\"", (int)at, "abcdefghijklmnopqrst", escape[i],
                         (int)(size - at), "ABCDEFGHIJKLMNOPQRST");
                buf_clear(&printed);
                json_print_string(&printed, text, strlen(text));
                assert_string_equal(printed.data, wanted);
                reader.size = strlen(wanted);
                const bool utf8 = special[i][0] != '\xff';
                assert_int_equal(json_reader_string(&reader, &arena, &read), utf8 ? OK : DATAERR);
                if (utf8) assert_int_equal(read.size, strlen(text));
                if (utf8) assert_memory_equal(read.data, text, read.size);
            }
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

TEST(the_reader_rounds_once) {
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
