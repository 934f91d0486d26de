// The LMDB file under every store: tables, snapshots, growing, a killed writer, two processes.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/store/database.h"

enum { TABLE_A, TABLE_B };
static const char *const tables[] = {"a", "b", NULL};
static char folder[64];
static char path[96];

static struct slice slice_of(const char *text) {
    return (struct slice){text, strlen(text)};
}

static int set_up(void **state) {
    (void)state;
    strcpy(folder, "/tmp/caravan-database-XXXXXX");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/test.lmdb", folder);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove(folder) != OK;
}

static void put_number(struct database *db, int table, uint32_t number, size_t size) {
    unsigned char *value = malloc(size);
    memset(value, (int)(number & 255), size);
    uint32_t key = __builtin_bswap32(number);
    assert_int_equal(database_put(db, table, (struct slice){&key, 4}, (struct slice){value, size}), OK);
    free(value);
}

static void test_put_get_delete(void **state) {
    (void)state;
    struct database *db, *again;
    assert_int_equal(database_open(&db, path, tables, NULL), OK);
    assert_int_equal(database_open(&again, path, tables, NULL), OK);
    assert_int_equal(database_put(db, TABLE_A, slice_of("k"), slice_of("one")), OK);
    struct buf value = {0};
    bool found;
    assert_int_equal(database_get(again, TABLE_B, slice_of("k"), &value, &found), OK);
    assert_false(found);
    assert_int_equal(database_get(again, TABLE_A, slice_of("k"), &value, &found), OK);
    assert_true(found);
    assert_string_equal(value.data, "one");
    database_close(&db);
    assert_int_equal(database_delete(again, TABLE_A, slice_of("k"), &found), OK);
    assert_true(found);
    assert_int_equal(database_delete(again, TABLE_A, slice_of("k"), &found), OK);
    assert_false(found);
    database_close(&again);
    database_close(&again);
    buf_release(&value);
}

static void test_map_grows_by_itself(void **state) {
    (void)state;
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, &(struct database_options){.map = 1 << 20}), OK);
    for (uint32_t i = 0; i < 100; i++) put_number(db, TABLE_A, i, 100000);
    struct transaction *snapshot;
    assert_int_equal(database_read(db, &snapshot), OK);
    size_t count;
    assert_int_equal(transaction_count(snapshot, TABLE_A, &count), OK);
    assert_int_equal(count, 100);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t key = __builtin_bswap32(i);
        struct slice value;
        assert_int_equal(transaction_get(snapshot, TABLE_A, (struct slice){&key, 4}, &value), OK);
        assert_int_equal(value.size, 100000);
        for (size_t b = 0; b < value.size; b += 999) assert_int_equal(((unsigned char *)value.data)[b], i);
    }
    transaction_end(&snapshot);
    size_t used, file;
    assert_int_equal(database_size(db, &used, &file), OK);
    assert_in_range(used, 100 * 100000, file);
    database_close(&db);
}

static void test_another_process_grows_it(void **state) {
    (void)state;
    fflush(stdout);
    int go[2], done[2];
    assert_int_equal(pipe(go) | pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        struct database *db;
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(1);
        if (database_open(&db, path, tables, NULL) != OK) _exit(2);
        char *big = calloc(1, 8 << 20);
        if (database_put(db, TABLE_A, slice_of("big"), (struct slice){big, 8 << 20}) != OK) _exit(3);
        free(big);
        database_close(&db);
        _exit(write(done[1], "x", 1) != 1);
    }
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, &(struct database_options){.map = 1 << 20}), OK);
    put_number(db, TABLE_A, 1, 100);
    char byte;
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(read(done[0], &byte, 1), 1);
    struct buf value = {0};
    bool found;
    assert_int_equal(database_get(db, TABLE_A, slice_of("big"), &value, &found), OK);
    assert_true(found);
    assert_int_equal(value.size, 8 << 20);
    int ended;
    waitpid(child, &ended, 0);
    assert_int_equal(ended, 0);
    buf_release(&value);
    database_close(&db);
    close(go[0]), close(go[1]), close(done[0]), close(done[1]);
}

static status add_then_fail(struct transaction *transaction, void *context) {
    (void)context;
    TRY(transaction_put(transaction, TABLE_A, slice_of("x"), slice_of("y")));
    return fail(BAD_SAMPLE, "changed my mind");
}

static void test_a_failed_write_leaves_nothing(void **state) {
    (void)state;
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, NULL), OK);
    assert_int_equal(database_write(db, add_then_fail, NULL), BAD_SAMPLE);
    struct transaction *snapshot;
    assert_int_equal(database_read(db, &snapshot), OK);
    struct slice key, value;
    assert_int_equal(transaction_last(snapshot, TABLE_A, &key, &value), OK);
    assert_null(key.data);
    transaction_end(&snapshot);
    database_close(&db);
}

static status die_inside(struct transaction *transaction, void *context) {
    (void)context;
    if (transaction_put(transaction, TABLE_A, slice_of("k"), slice_of("lost")) != OK) _exit(1);
    raise(SIGKILL);
    return OK;
}

static void test_killed_writer_and_reader(void **state) {
    (void)state;
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct database *db;
            struct transaction *held;
            if (database_open(&db, path, tables, NULL) != OK || database_read(db, &held) != OK) _exit(1);
            database_write(db, die_inside, NULL);
            _exit(2);
        }
        int ended;
        waitpid(child, &ended, 0);
        assert_true(WIFSIGNALED(ended));
    }
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, NULL), OK);
    struct buf value = {0};
    bool found;
    assert_int_equal(database_get(db, TABLE_A, slice_of("k"), &value, &found), OK);
    assert_false(found);
    put_number(db, TABLE_A, 1, 10);
    database_close(&db);
}

struct walk {
    uint32_t next;
    uint32_t end;
};

static status check_next(void *context, struct slice key, struct slice value) {
    (void)value;
    struct walk *walk = context;
    uint32_t number;
    memcpy(&number, key.data, 4);
    assert_int_equal(__builtin_bswap32(number), walk->next);
    return ++walk->next == walk->end ? END : OK;
}

static void test_walk_in_order(void **state) {
    (void)state;
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, NULL), OK);
    for (uint32_t i = 300; i-- > 0;) put_number(db, TABLE_B, i, 4);
    struct transaction *snapshot;
    assert_int_equal(database_read(db, &snapshot), OK);
    struct walk all = {0, 1000};
    assert_int_equal(transaction_each(snapshot, TABLE_B, (struct slice){0}, check_next, &all), OK);
    assert_int_equal(all.next, 300);
    struct walk some = {200, 210};
    uint32_t first = __builtin_bswap32(200);
    assert_int_equal(transaction_each(snapshot, TABLE_B, (struct slice){&first, 4}, check_next, &some), OK);
    assert_int_equal(some.next, 210);
    transaction_end(&snapshot);
    database_close(&db);
}

static void test_bad_files_are_named(void **state) {
    (void)state;
    struct database *db;
    assert_int_equal(database_open(&db, path, tables, &(struct database_options){.read_only = true}), DATAERR);
    assert_non_null(strstr(fail_text(), path));
    char junk[8192];
    memset(junk, 'x', sizeof junk);
    assert_int_equal(file_write_atomic(path, junk, sizeof junk), OK);
    assert_int_equal(database_open(&db, path, tables, NULL), DATAERR);
    assert_non_null(strstr(fail_text(), "not an LMDB file"));
    assert_null(db);
    assert_int_equal(database_open(&db, "/nowhere/at/all.lmdb", tables, NULL), UNAVAILABLE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_get_delete, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_map_grows_by_itself, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_another_process_grows_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_failed_write_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_killed_writer_and_reader, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_walk_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_bad_files_are_named, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
