// groups.lmdb: sections by the hash of what they were computed from, complete groups by id.
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/store/group_store.h"

static char directory[] = "/tmp/caravan-groups-XXXXXX";

static struct group *make(const char *id, const char *more) {
    struct buf json = {0};
    struct group *group = NULL;
    assert_int_equal(buf_printf(&json, "{\"id\":\"%s\",\"prompt\":{\"messages\":[],\"solution\":\"\"}%s}", id, more),
                     OK);
    assert_int_equal(group_from_json(&group, json.data, json.size), OK);
    buf_release(&json);
    return group;
}

static void test_sections_and_groups(void **state) {
    (void)state;
    struct group_store *store = NULL;
    struct section_key first = {{1}}, second = {{2}};
    assert_int_equal(group_store_open(&store, directory, false), OK);
    struct group *given = make("e0-000001", ",\"advantages\":[1,-1],\"x\":1.50"), *bare = make("e0-000001", ""),
                 *back = NULL;
    bool found = true;
    assert_int_equal(group_store_find(store, &first, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(group_store_save(store, &first, SECTION_REWARD, given), OK);
    assert_int_equal(group_store_find(store, &second, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(group_store_find(store, &first, SECTION_REWARD, bare, &found), OK);
    assert_true(found);
    assert_int_equal(bare->advantages.count, 2);
    assert_int_equal(group_store_get(store, "e0-000001", &back), OK);
    assert_string_equal(back->unknown.first->json.data, "1.50");
    group_free(&back);
    // A slower process has the same section, but less of the group than has come since.
    struct group *less = make("e0-000001", ",\"advantages\":[1,-1]");
    assert_int_equal(group_store_save(store, &first, SECTION_REWARD, less), OK);
    group_free(&less);
    assert_int_equal(group_store_get(store, "e0-000001", &back), OK);
    assert_string_equal(back->unknown.first->json.data, "1.50");
    group_free(&back);
    assert_int_equal(group_store_get(store, "e0-000002", &back), OK);
    assert_null(back);
    group_free(&given);
    group_free(&bare);
    group_store_close(&store);
}

static void test_several_at_once(void **state) {
    (void)state;
    struct group_store *store = NULL;
    struct group_record records[3];
    struct group *back = NULL, *bare = make("e0-000101", "");
    bool found;
    assert_int_equal(group_store_open(&store, directory, false), OK);
    for (int i = 0; i < 3; i++)
        records[i] =
            (struct group_record){.group = make(i ? "e0-000102" : "e0-000101", i < 2 ? ",\"advantages\":[1]" : ""),
                                  .key = {{(unsigned char)(100 + i)}},
                                  .section = i ? -1 : SECTION_REWARD};
    assert_int_equal(group_store_save_all(store, records, 3), OK);
    assert_int_equal(group_store_find(store, &records[0].key, SECTION_REWARD, bare, &found), OK);
    assert_true(found && bare->advantages.count == 1);
    assert_int_equal(group_store_find(store, &records[1].key, SECTION_REWARD, bare, &found), OK);
    assert_false(found);
    assert_int_equal(group_store_get(store, "e0-000102", &back), OK); // the later one of the two
    assert_null(back->advantages.data);
    group_free(&back);
    for (int i = 0; i < 3; i++) group_free(&records[i].group);
    group_free(&bare);
    group_store_close(&store);
}

static status count_groups(void *context, const struct group *group) {
    int *count = context;
    ++*count;
    return string_equals(group->id, "stop") ? fail(END, "enough") : OK;
}

static void test_iteration_and_long_ids(void **state) {
    (void)state;
    struct group_store *store = NULL;
    char id[2001];
    int count = 0;
    memset(id, 'x', 2000);
    id[2000] = 0;
    assert_int_equal(group_store_open(&store, directory, false), OK);
    const char *const ids[] = {id, "", "stop"};
    for (int i = 0; i < 3; i++) {
        struct group *group = make(ids[i], ""), *back = NULL;
        assert_int_equal(group_store_save(store, NULL, SECTION_PROMPT, group), OK);
        assert_int_equal(group_store_save(store, NULL, SECTION_PROMPT, group), OK);
        assert_int_equal(group_store_get(store, ids[i], &back), OK);
        assert_string_equal(back->id.data, ids[i]);
        group_free(&group);
        group_free(&back);
    }
    assert_int_equal(group_store_each(store, count_groups, &count), END);
    assert_in_range(count, 1, 4);
    group_store_close(&store);
}

static void test_read_only_creates_nothing(void **state) {
    (void)state;
    struct group_store *store = NULL;
    assert_int_equal(group_store_open(&store, "/tmp/caravan-no-such-store", true), DATAERR);
    assert_null(store);
    assert_false(path_exists("/tmp/caravan-no-such-store"));
}

static int make_directory(void **state) {
    (void)state;
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
    (void)state;
    return dir_remove(directory) == OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sections_and_groups),
        cmocka_unit_test(test_iteration_and_long_ids),
        cmocka_unit_test(test_read_only_creates_nothing),
        cmocka_unit_test(test_several_at_once),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
