// The page's routes over all groups: conditions, sorts and pages, what a search that is cut short goes on with, groups
// that are trained again or removed while somebody looks.
#include "tests/unit/unit.h"

#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "tests/support/groups.h"
#include "tools/view/view.h"

// Saves group `number` of steps of two, with `right` of four completions right; its reward says so.
static void save(struct group_store *store, int number, int right, const char *text) {
    SCOPED(struct buf, buf_release) json = {0};
    buf_printf(
        &json,
        "{\"id\":\"e0-%06d\",\"sample_id\":\"s%d\",\"prompt\":{\"messages\":[],\"solution\":\"\",\"question\":\"q%d\"},"
        "\"requires\":{\"policy\":0,\"reference\":0,\"exact\":1,\"order\":%d},\"completions\":[",
        number, 99 - number, number, number);
    for (int i = 0; i < 4; i++) buf_printf(&json, "%s{\"text\":\"%s\",\"finish\":\"eos\"}", i ? "," : "", text);
    buf_puts(&json, "],\"rewards\":{\"accuracy\":[");
    for (int i = 0; i < 4; i++) buf_printf(&json, "%s%d", i ? "," : "", i < right);
    buf_printf(&json, "],\"total\":[%d,%d]},\"advantages\":[1,1,-1,-1],\"trained\":{\"step\":%d}}", right, right,
               number / 2 + 1);
    SCOPED(struct group *, group_free) group = group_of_json(json.data);
    const struct group_record record = {.group = group, .section = -1};
    MUST(group_store_save_all(store, &record, 1));
}

// A view of a store of its own with ten groups, in which i % 5 completions are right.
struct seen {
    struct group_store *store; // to write
    struct view view;
    struct view_source source;
    struct arena arena; // of the answers
    int64_t column;
};

static void seen_open(struct seen *seen) {
    char *directory = unit_new_directory();
    *seen = (struct seen){.source = {.name = "run", .path = directory, .kind = VIEW_STORE}};
    seen->view = (struct view){.sources = &seen->source, .source_count = 1};
    MUST(group_store_open(&seen->store, directory, false));
    for (int i = 0; i < 10; i++) save(seen->store, i, i % 5, i == 7 ? "a Green shape" : "x");
    MUST(view_groups_open(&seen->source));
}

static void seen_close(struct seen *seen) {
    view_groups_close(&seen->source.groups);
    group_store_close(&seen->store);
    arena_release(&seen->arena);
}

// Calls a route with `count` pairs of names and values. Returns what it answers; NULL: it has failed with *result.
static const struct json *ask(struct seen *seen, view_route *route, status *result, size_t count,
                              const char *const *pairs) {
    struct http_argument arguments[8];
    struct json *answer = NULL;
    for (size_t i = 0; i < count; i++) arguments[i] = (struct http_argument){pairs[2 * i], pairs[2 * i + 1]};
    struct view_call call = {
        .view = &seen->view, .source = &seen->source, .arguments = arguments, .argument_count = count, .column = -1};
    MUST(view_groups_refresh(&seen->source.groups));
    *result = route(&call);
    seen->column = call.column;
    if (*result == OK) MUST(json_parse(&answer, &seen->arena, call.out.data, call.out.size));
    buf_release(&call.out);
    return answer;
}

#define PAIRS(...)                                                                                                     \
    sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *) / 2, (const char *const[]) {                                \
        __VA_ARGS__                                                                                                    \
    }

// Checks the numbers of the rows, as text: "3 8".
static void check_rows(const struct json *answer, const char *wanted) {
    SCOPED(struct buf, buf_release) numbers = {0};
    assert_non_null(answer);
    const struct json *rows = json_at(answer, "rows"), *list = json_at(rows, "number");
    buf_puts(&numbers, "");
    for (size_t i = 0; i < json_count(list); i++)
        buf_printf(&numbers, "%s%s", i ? " " : "", json_text(json_item(list, i)));
    assert_string_equal(numbers.data, wanted);
    JSON_EACH(column, rows) assert_int_equal(json_count(column), json_count(list));
}

static int64_t number_at(const struct json *answer, const char *key) {
    return json_int_or(json_at(answer, key), -1);
}

TEST(a_condition_holds_for_a_group_if_it_does_for_one_completion) {
    SCOPED(struct seen, seen_close) seen;
    status result;
    seen_open(&seen);
    static const struct {
        const char *where, *rows;
    } cases[] = {
        {"group.right = 4", "4 9"},
        {"group.right = 4 or group.right = 0", "0 4 5 9"},
        {"group.right >= 3 and group.step < 4", "3 4"},
        {"(group.right = 4 or group.right = 0) and group.number > 4", "5 9"},
        {"group.right=0 or group.right=4 and group.number>4", "0 5 9"}, // and binds closer
        {"accuracy = 1 and group.right < 2", "1 6"},
        {"accuracy = 1 and accuracy = 0", ""}, // not for the same completion
        {"text = a Green shape", "7"},
        {"group.std > 0", ""},
        {"  ", "0 1 2 3 4 5 6 7 8 9"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct json *answer = ask(&seen, view_groups_list, &result, PAIRS("where", cases[i].where));
        check_rows(answer, cases[i].rows);
        assert_int_equal(number_at(answer, "total"), 10);
        assert_int_equal(number_at(answer, "matched"), json_count(json_at(json_at(answer, "rows"), "number")));
    }
    const struct json *missing = ask(&seen, view_groups_list, &result, PAIRS("where", "bonus > 0"));
    assert_string_equal(json_text(json_item(json_at(missing, "missing"), 0)), "rewards.bonus");
    // A field is not missing because another part has decided.
    for (int either = 0; either < 2; either++) {
        missing = ask(&seen, view_groups_list, &result,
                      PAIRS("where", either ? "accuracy >= 0 or total > 9" : "group.right > 9 and total >= 0"));
        assert_int_equal(json_count(json_at(missing, "missing")), 0);
    }
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("text", "green")), "7");
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("text", "S92")), "7"); // the sample's id
}

TEST(a_mistake_in_a_condition_is_said_with_its_place) {
    SCOPED(struct seen, seen_close) seen;
    status result;
    seen_open(&seen);
    static const struct {
        const char *where, *message;
        int64_t column;
    } cases[] = {
        {"group.right = 4 and group.wrong = 1", "no figure of a group has the name 'wrong'", 20},
        {"group.right = x", "group.right is compared with a number, not with 'x'", 0},
        {"group.right", "expected =, !=, <, <=, > or >= behind group.right", 0},
        {"(group.right = 4", "expected )", 16},
        {"group.right = 4) or", "expected and, or or the end, not ') or'", 15},
        {"nothing = 1", "'nothing = 1': no field has the name 'nothing'", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_null(ask(&seen, view_groups_list, &result, PAIRS("where", cases[i].where)));
        assert_int_equal(result, USAGE);
        assert_string_equal(fail_text(), cases[i].message);
        assert_int_equal(seen.column, cases[i].column);
    }
    assert_null(ask(&seen, view_groups_list, &result, PAIRS("steps", "3")));
    assert_int_equal(result, USAGE);
    assert_null(ask(&seen, view_groups_list, &result, PAIRS("sort", "colour")));
    assert_string_equal(fail_text(), "sort: no column has the name 'colour'");
    assert_null(ask(&seen, view_groups_list, &result, PAIRS("limit", "201")));
    assert_string_equal(fail_text(), "limit: not an integer from 0 to 200");
}

TEST(pages_follow_each_other_in_the_order_of_a_column) {
    SCOPED(struct seen, seen_close) seen;
    status result;
    char cursor[32] = "";
    seen_open(&seen);
    static const char *const pages[] = {"4 9 3", "8 2 7", "1 6 0", "5"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        const struct json *answer =
            i ? ask(&seen, view_groups_list, &result, PAIRS("sort", "-right", "limit", "3", "after", cursor))
              : ask(&seen, view_groups_list, &result, PAIRS("sort", "-right", "limit", "3"));
        check_rows(answer, pages[i]);
        snprintf(cursor, sizeof cursor, "%s", json_text(json_at(answer, "cursor")));
        assert_true(json_is(json_at(answer, "cursor"), JSON_STRING) == (i < 3));
    }
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("sort", "sample", "limit", "2")), "9 8"); // s90, s91
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("sort", "sample", "limit", "2", "after", "8")), "7 6");
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("sort", "-id", "limit", "2")), "9 8");
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("steps", "2-3")), "2 3 4 5");
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("sort", "kl", "limit", "2")), "0 1"); // none has it
}

TEST(what_is_trained_again_or_removed_counts_once_or_not_at_all) {
    SCOPED(struct seen, seen_close) seen;
    status result;
    int64_t removed, freed;
    size_t index;
    SCOPED(struct group *, group_free) group = NULL;
    seen_open(&seen);
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1")), "1 2 3 4 6 7 8 9");
    save(seen.store, 8, 0, "x"); // optim went back, and group 8 has another end
    save(seen.store, 10, 2, "x");
    const struct json *answer = ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1"));
    check_rows(answer, "1 2 3 4 6 7 9 11");
    assert_int_equal(number_at(answer, "total"), 11);
    assert_int_equal(number_at(answer, "matched"), 8);
    assert_int_equal(view_block_at(&seen.source.groups, 0)->alive, 11);
    MUST(view_groups_find(&seen.source.groups, "e0-000008", &index));
    assert_int_equal(seen.source.groups.list[index].number, 10);
    MUST(view_groups_get(&seen.source.groups, index, &group));
    assert_string_equal(group->id.data, "e0-000008");
    MUST(group_store_prune(seen.store, &(struct group_keep){.steps = 2}, false, &removed, &freed));
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("limit", "200")), "9 10 11");
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("sort", "-number", "limit", "2")), "11 10");
    answer = ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1", "limit", "0"));
    assert_int_equal(number_at(answer, "matched"), 2);
    assert_int_equal(number_at(answer, "scanned"), 3);
    const struct view_block *block = view_block_at(&seen.source.groups, 0);
    assert_int_equal(block->alive, 3);
    assert_int_equal(block->first_step, 5);
    assert_int_equal(block->last_step, 6);
    MUST(view_groups_find(&seen.source.groups, "e0-000001", &index));
    assert_int_equal(index, SIZE_MAX);
}

TEST(the_groups_of_a_store_that_was_replaced_count_no_more) {
    SCOPED(struct seen, seen_close) seen;
    SCOPED(struct arena, arena_release) arena = {0};
    status result;
    size_t index;
    seen_open(&seen);
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1")), "1 2 3 4 6 7 8 9");
    group_store_close(&seen.store);
    assert_false(unlink(path_join(&arena, seen.source.path, "groups.lmdb")));
    assert_false(unlink(path_join(&arena, seen.source.path, "groups.lmdb-lock")));
    check_rows(ask(&seen, view_groups_list, &result, 0, NULL), "");
    assert_false(view_groups_trains(&seen.source));
    seen.source.groups.opened_at = 0; // it is tried again after a pause
    MUST(group_store_open(&seen.store, seen.source.path, false));
    for (int i = 0; i < 3; i++) save(seen.store, i, i, "anew");
    const struct json *answer = ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1"));
    check_rows(answer, "1 2");
    assert_int_equal(number_at(answer, "total"), 3);
    assert_int_equal(number_at(answer, "scanned"), 3);
    MUST(view_groups_find(&seen.source.groups, "e0-000002", &index));
    assert_int_equal(seen.source.groups.list[index].number, 2);
}

TEST(a_group_without_accuracy_is_not_all_wrong) {
    SCOPED(struct seen, seen_close) seen;
    status result;
    seen_open(&seen);
    SCOPED(struct group *, group_free)
    group = group_of_json("{\"id\":\"bad\",\"prompt\":{\"messages\":[],\"solution\":\"\"},"
                          "\"quarantine\":{\"stage\":\"frames\",\"reason\":\"no clip\"}}");
    MUST(group_store_save_all(seen.store, &(struct group_record){.group = group, .section = -1}, 1));
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("where", "group.right = 0")), "0 5");
    const struct json *rows =
        json_at(ask(&seen, view_groups_list, &result, PAIRS("sort", "-number", "limit", "1")), "rows");
    assert_null(json_item(json_at(rows, "right"), 0));
    assert_null(json_item(json_at(rows, "named"), 0));
}

TEST(the_map_counts_the_groups_of_each_step) {
    SCOPED(struct seen, seen_close) seen;
    SCOPED(struct buf, buf_release) text = {0};
    status result;
    seen_open(&seen);
    json_print(&text, ask(&seen, view_groups_map, &result, PAIRS("from", "2", "to", "3")));
    assert_string_equal(text.data,
                        "{\"size\":4,\"first\":[2,3],\"step\":[2,3],\"counts\":[[0,0,1,1,0,0],[1,0,0,0,1,0]]}");
    buf_clear(&text);
    json_print(&text, ask(&seen, view_groups_map, &result, PAIRS("columns", "2", "where", "group.right > 2")));
    assert_string_equal(text.data,
                        "{\"size\":4,\"first\":[1,4],\"step\":[3,5],\"counts\":[[0,0,0,1,1,0],[0,0,0,1,1,0]]}");
    // Groups of two completions: both right, and one.
    for (int right = 2; right > 0; right--) {
        SCOPED(struct group *, group_free)
        group = group_of_format("{\"id\":\"%d of two\",\"prompt\":{\"messages\":[],\"solution\":\"\"},\"completions\":"
                                "[{\"text\":\"x\"},{\"text\":\"x\"}],\"rewards\":{\"accuracy\":[1,%d],\"total\":[1,1]},"
                                "\"advantages\":[0,0],\"trained\":{\"step\":2}}",
                                right, right - 1);
        MUST(group_store_save_all(seen.store, &(struct group_record){.group = group, .section = -1}, 1));
    }
    buf_clear(&text);
    json_print(&text, ask(&seen, view_groups_map, &result, PAIRS("to", "2")));
    assert_string_equal(text.data,
                        "{\"size\":4,\"first\":[1,2],\"step\":[1,2],\"counts\":[[1,1,0,0,0,0],[0,0,2,1,1,0]]}");
}

TEST(a_file_of_groups_is_seen_as_a_store_is) {
    SCOPED(struct seen, seen_close) seen;
    SCOPED(struct buf, buf_release) lines = {0};
    struct arena arena = {0};
    status result;
    size_t index;
    seen_open(&seen);
    for (size_t i = 0; i < 3; i++) {
        SCOPED(struct group *, group_free) group = NULL;
        MUST(view_groups_get(&seen.source.groups, i + 4, &group));
        group_to_json(group, &lines);
        buf_puts(&lines, "\n");
    }
    const char *path = path_join(&arena, unit_directory(), "groups.jsonl");
    MUST(file_write_atomic(path, lines.data, lines.size));
    view_groups_close(&seen.source.groups);
    seen.source.path = path;
    seen.source.kind = VIEW_FILE;
    MUST(view_groups_open(&seen.source));
    check_rows(ask(&seen, view_groups_list, &result, PAIRS("where", "accuracy = 1")), "0 2"); // of 4 and 6
    MUST(view_groups_find(&seen.source.groups, "e0-000005", &index));
    assert_int_equal(index, 1);
    view_groups_close(&seen.source.groups);
    buf_puts(&lines, "{}\n");
    MUST(file_write_atomic(path, lines.data, lines.size));
    assert_int_equal(view_groups_open(&seen.source), DATAERR);
    assert_non_null(strstr(fail_text(), "groups.jsonl: line 4: not a group: "));
    arena_release(&arena);
}
