// The ledger: the state of each group, after restarts and after optim went back to a checkpoint.
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/store/ledger.h"
#include "shared/store/lmdb_env.h"

static const char *dir;
static char path[96];
static const struct ledger_config config = {.data = 77, .groups_per_step = 2};

static int set_up(void **state) {
    (void)state;
    dir = unit_directory();
    return snprintf(path, sizeof path, "%s/ledger.lmdb", dir) < 0;
}

static struct ledger *open_ledger(void) {
    struct ledger *ledger = NULL;
    assert_int_equal(ledger_open(&ledger, path, &config), OK);
    return ledger;
}

static void settle(struct ledger *ledger, int64_t seq, enum ledger_state state, int64_t step) {
    const struct ledger_entry entry = {
        .seq = seq, .state = state, .step = step, .id = "g", .stage = "frames", .reason = "cut off"};
    assert_int_equal(ledger_settle(ledger, &entry, NULL), OK);
}

TEST(issued_groups_are_settled_once) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    for (int i = 0; i < 4; i++) assert_int_equal(ledger_issue(ledger, i, "g"), OK);
    assert_int_equal(ledger->next_unissued, 4);
    assert_int_equal(ledger->counts[LEDGER_IN_FLIGHT], 4);
    settle(ledger, 1, LEDGER_QUARANTINED, -1);
    assert_int_equal(ledger->settled, 0);
    settle(ledger, 0, LEDGER_TRAINED, 1);
    assert_int_equal(ledger->settled, 2);
    assert_int_equal(ledger->counts[LEDGER_IN_FLIGHT], 2);
    bool newly_settled = true;
    const struct ledger_entry twice = {.seq = 0, .state = LEDGER_TRAINED, .step = 9, .id = "g"};
    assert_int_equal(ledger_settle(ledger, &twice, &newly_settled), OK);
    assert_false(newly_settled);
    assert_int_equal(ledger->counts[LEDGER_TRAINED], 1);
    assert_int_equal(ledger->counts[LEDGER_QUARANTINED], 1);
}

struct seen {
    int count;
    struct ledger_entry last;
};

static status see(void *context, const struct ledger_entry *entry) {
    struct seen *seen = context;
    seen->count++;
    seen->last = *entry;
    if (entry->seq == 1) assert_string_equal(entry->reason, "cut off");
    if (entry->seq == 0) assert_int_equal(entry->step, 1);
    return OK;
}

static status see_first(void *context, const struct ledger_entry *entry) {
    struct seen *seen = context;
    seen->last = *entry;
    assert_string_equal(entry->id, "again");
    return END;
}

TEST(a_restart_finds_what_was_settled) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    assert_int_equal(ledger->settled, 2);
    assert_int_equal(ledger->next_unissued, 4);
    assert_int_equal(ledger->counts[LEDGER_IN_FLIGHT], 2);
    struct seen seen = {0};
    assert_int_equal(ledger_issue(ledger, 3, "g3"), OK);
    assert_int_equal(ledger_each(ledger, see, &seen), OK);
    assert_int_equal(seen.count, 4);
    assert_int_equal(seen.last.seq, 3);
    assert_int_equal(seen.last.issues, 2);
}

TEST(the_ledger_goes_back_to_where_optim_is) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    // Optim has trained 2, and its message was lost.
    const int64_t number = ledger->issue_number;
    assert_int_equal(ledger_rewind_to(ledger, 3), OK);
    assert_int_equal(ledger->issue_number, number);
    assert_int_equal(ledger->settled, 3);
    assert_int_equal(ledger->next_unissued, 3);
    assert_int_equal(ledger->counts[LEDGER_IN_FLIGHT], 0);
    assert_int_equal(ledger_state_of(ledger, 3), LEDGER_NEW);
    // Its checkpoint is older than its last message.
    assert_int_equal(ledger_rewind_to(ledger, 1), OK);
    assert_int_equal(ledger->issue_number, number + 1);
    assert_int_equal(ledger->settled, 1);
    assert_int_equal(ledger_state_of(ledger, 0), LEDGER_TRAINED);
    assert_int_equal(ledger->counts[LEDGER_TRAINED], 1);
    assert_int_equal(ledger->counts[LEDGER_QUARANTINED], 0);
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger->settled, 1);
    assert_int_equal(ledger->next_unissued, 1);
}

// The number rises only when groups that were settled are issued anew, and it is on the disk.
TEST(the_issue_number_rises_only_with_settled_groups) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    const int64_t first = ledger->issue_number;
    assert_int_equal(ledger_rewind_to(ledger, 3), OK);
    assert_int_equal(ledger_issue(ledger, 3, "g"), OK);
    assert_int_equal(ledger_rewind_to(ledger, 3), OK); // the source was restarted
    assert_int_equal(ledger->issue_number, first);
    assert_int_equal(ledger_rewind_to(ledger, 2), OK);
    assert_int_equal(ledger->issue_number, first + 1);
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger->issue_number, first + 1);
}

// Processes on other machines, which outlive the source, drop what is issued with a number that is not above theirs.
TEST(a_new_ledger_begins_above_an_earlier_one) {
    const int64_t begin = clock_realtime_ns();
    struct ledger *ledger = open_ledger();
    const int64_t earlier = ledger->issue_number;
    ledger_close(&ledger);
    char kept[128];
    snprintf(kept, sizeof kept, "%s/earlier.lmdb", dir);
    assert_int_equal(rename(path, kept), 0);
    ledger = open_ledger();
    const int64_t number = ledger->issue_number;
    assert_true(number > earlier);
    assert_in_range(number, begin, clock_realtime_ns());
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger->issue_number, number);
    ledger_close(&ledger);
    assert_int_equal(rename(kept, path), 0);
}

// Returns how many entries a copy of the file has.
static int64_t entries_on_disk(void) {
    char copy[128];
    SCOPED(struct buf, buf_release) bytes = {0};
    struct ledger *ledger = NULL;
    snprintf(copy, sizeof copy, "%s/copy.lmdb", dir);
    assert_int_equal(file_read(path, &bytes), OK);
    assert_int_equal(file_write_atomic(copy, bytes.data, bytes.size), OK);
    assert_int_equal(ledger_open(&ledger, copy, &config), OK);
    const int64_t count = ledger->next_unissued;
    ledger_close(&ledger);
    return count;
}

TEST(changes_are_written_together) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    assert_int_equal(ledger_rewind_to(ledger, 0), OK);
    assert_int_equal(ledger_tick(ledger, 100), OK);
    for (int i = 0; i < 5; i++) assert_int_equal(ledger_issue(ledger, i, "g"), OK);
    assert_int_equal(ledger_tick(ledger, 100.04), OK);
    assert_int_equal(entries_on_disk(), 0);
    assert_int_equal(ledger_tick(ledger, 100.06), OK);
    assert_int_equal(entries_on_disk(), 5);
    assert_int_equal(ledger_issue(ledger, 5, "g"), OK);
    assert_int_equal(entries_on_disk(), 5);
    ledger_close(&ledger);
    assert_int_equal(entries_on_disk(), 6);
    ledger = open_ledger();
    for (int i = 0; i < 3; i++) assert_int_equal(ledger_issue(ledger, 0, "again"), OK);
    const struct ledger_entry kept = {.seq = 0, .state = LEDGER_TRAINED, .step = 4};
    assert_int_equal(ledger_settle(ledger, &kept, NULL), OK);
    struct seen seen = {0};
    assert_int_equal(ledger_each(ledger, see_first, &seen), OK);
    assert_int_equal(seen.last.issues, 4);
    assert_int_equal(seen.last.step, 4);
}

static int writes, unsynced_writes; // since the test set them to 0

// These two stand in for the C library's, with which LMDB writes.
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    writes++;
    unsynced_writes += !(fcntl(fd, F_GETFL) & O_DSYNC);
    return syscall(SYS_pwrite64, fd, data, size, offset);
}

int fdatasync(int fd) {
    unsynced_writes = 0;
    return (int)syscall(SYS_fdatasync, fd);
}

// Processes on other machines, which are told what is written, outlive a power failure.
TEST(a_power_failure_undoes_nothing_that_is_written) {
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    assert_int_equal(ledger_rewind_to(ledger, 0), OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ledger_issue(ledger, i, "g"), OK);
        settle(ledger, i, LEDGER_TRAINED, 1);
        writes = unsynced_writes = 0;
        assert_int_equal(ledger_flush(ledger), OK);
        assert_int_equal(ledger->settled_on_disk, i + 1);
        assert_true(writes > 0);
        assert_int_equal(unsynced_writes, 0);
    }
}

// Stands in for the C library's: directories called "nfs" are on NFS.
int statfs(const char *file, struct statfs *out) {
    const int code = (int)syscall(SYS_statfs, file, out);
    if (strstr(file, "/nfs")) out->f_type = 0x6969;
    return code;
}

TEST(the_ledger_is_on_a_local_disk) {
    SCOPED(struct arena, arena_release) arena = {0};
    const char *shared = arena_printf(&arena, "%s/nfs", dir), *other = arena_printf(&arena, "%s/nfs-2", dir);
    const char *local = arena_printf(&arena, "%s/ledger.lmdb", dir), *on_nfs;
    struct ledger *ledger;
    assert_int_equal(dir_make(shared), OK);
    assert_int_equal(dir_make(other), OK);
    on_nfs = ledger_path(&arena, shared, dir);
    assert_string_equal(ledger_path(&arena, dir, "/elsewhere"), local);
    assert_int_equal(strncmp(on_nfs, local, strlen(dir) + strlen("/ledger")), 0);
    assert_string_not_equal(on_nfs, ledger_path(&arena, other, dir));
    assert_int_equal(ledger_open(&ledger, on_nfs, &config), OK);
    ledger_close(&ledger);
    assert_int_equal(ledger_open(&ledger, ledger_path(&arena, shared, NULL), &config), USAGE);
    assert_non_null(strstr(fail_text(), "NFS"));
}

// What is kept is done with the same settings.
TEST(other_settings_begin_anew) {
    bool changed = true;
    SCOPED(struct ledger *, ledger_close) ledger = open_ledger();
    assert_int_equal(ledger_rewind_to(ledger, 0), OK);
    assert_int_equal(ledger_set_settings(ledger, 5, &changed), OK);
    assert_false(changed); // there was nothing
    for (int i = 0; i < 4; i++) assert_int_equal(ledger_issue(ledger, i, "g"), OK);
    settle(ledger, 2, LEDGER_TRAINED, 0);
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger_set_settings(ledger, 5, &changed), OK);
    assert_false(changed);
    assert_int_equal(ledger->counts[LEDGER_TRAINED], 1);
    const int64_t number = ledger->issue_number;
    assert_int_equal(ledger_set_settings(ledger, 6, &changed), OK);
    assert_true(changed);
    assert_int_equal(ledger->issue_number, number + 1);
    assert_int_equal(ledger->next_unissued, 0);
    assert_int_equal(ledger->counts[LEDGER_TRAINED] + ledger->counts[LEDGER_IN_FLIGHT], 0);
    ledger_close(&ledger);
    ledger = open_ledger();
    assert_int_equal(ledger_set_settings(ledger, 6, &changed), OK);
    assert_false(changed);
    assert_int_equal(ledger->next_unissued, 0);
}

TEST(other_data_is_refused) {
    struct ledger *ledger = NULL;
    const struct ledger_config other = {.data = 78, .groups_per_step = 2};
    assert_int_equal(ledger_open(&ledger, path, &other), DATAERR);
    assert_non_null(strstr(fail_text(), "other data"));
    assert_null(ledger);
}

// Counts the quarantined groups from where the reader has to look again.
static status count_quarantined(void *context, const struct ledger_entry *entry) {
    if (entry->state == LEDGER_QUARANTINED) ++*(int *)context;
    return OK;
}

TEST(who_only_reads_sees_what_the_owner_writes_and_takes_back) {
    char other[96];
    int64_t first = -1;
    int quarantined = 0;
    SCOPED(struct ledger *, ledger_close) ledger = NULL;
    SCOPED(struct ledger *, ledger_close) reader = NULL;
    snprintf(other, sizeof other, "%s/read.lmdb", dir);
    assert_int_equal(ledger_open_read_only(&reader, other), DATAERR);
    assert_null(reader);
    assert_false(path_exists(other));
    SCOPED(struct lmdb_env *, lmdb_env_close) created = NULL; // a source has begun to make it
    MUST(lmdb_env_open(&created, other, (const char *const[]){"meta", "groups", NULL}, NULL));
    lmdb_env_close(&created);
    MUST(ledger_open_read_only(&reader, other));
    assert_int_equal(reader->size, 0);
    ledger_close(&reader);
    MUST(ledger_open(&ledger, other, &config));
    MUST(ledger_open_read_only(&reader, other));
    assert_int_equal(reader->settled + reader->counts[LEDGER_IN_FLIGHT], 0);

    for (int i = 0; i < 6; i++) MUST(ledger_issue(ledger, i, "g"));
    for (int i = 0; i < 4; i++) settle(ledger, i, i == 1 ? LEDGER_QUARANTINED : LEDGER_TRAINED, 1);
    MUST(ledger_refresh(reader, &first));
    assert_int_equal(reader->settled, 0); // it is not on the disk yet
    MUST(ledger_flush(ledger));
    MUST(ledger_refresh(reader, &first));
    assert_int_equal(first, 0);
    assert_int_equal(reader->settled, 4);
    assert_int_equal(reader->counts[LEDGER_TRAINED], 3);
    assert_int_equal(reader->counts[LEDGER_QUARANTINED], 1);
    assert_int_equal(reader->counts[LEDGER_IN_FLIGHT], 2);

    settle(ledger, 5, LEDGER_QUARANTINED, -1);
    MUST(ledger_flush(ledger));
    MUST(ledger_refresh(reader, &first));
    assert_int_equal(first, 4); // the settled ones are not read again
    MUST(ledger_each_from(reader, first, count_quarantined, &quarantined));
    assert_int_equal(quarantined, 1);
    assert_int_equal(ledger_state_of(reader, 5), LEDGER_QUARANTINED);

    // Optim goes back, and as many groups are settled as before when somebody looks again.
    MUST(ledger_rewind_to(ledger, 2));
    for (int i = 2; i < 4; i++) MUST(ledger_issue(ledger, i, "again"));
    for (int i = 2; i < 4; i++) settle(ledger, i, i == 2 ? LEDGER_QUARANTINED : LEDGER_TRAINED, 2);
    MUST(ledger_flush(ledger));
    MUST(ledger_refresh(reader, &first));
    assert_int_equal(first, 0);
    assert_int_equal(reader->settled, 4);
    assert_int_equal(ledger_state_of(reader, 2), LEDGER_QUARANTINED);
    assert_int_equal(ledger_state_of(reader, 4), LEDGER_NEW);
    assert_int_equal(reader->counts[LEDGER_IN_FLIGHT], 0);
}

TEST(a_key_of_another_size_is_refused) {
    static const char *const dbis[] = {"groups", NULL};
    char damaged[96];
    struct ledger *ledger = NULL;
    struct lmdb_env *env = NULL;
    snprintf(damaged, sizeof damaged, "%s/damaged.lmdb", dir);
    assert_int_equal(lmdb_env_open(&env, damaged, dbis, NULL), OK);
    assert_int_equal(lmdb_env_put(env, 0, (struct lmdb_val){"short", 5}, (struct lmdb_val){"", 0}), OK);
    lmdb_env_close(&env);
    assert_int_equal(ledger_open(&ledger, damaged, &config), DATAERR);
    assert_non_null(strstr(fail_text(), "damaged.lmdb: the file is damaged (a key of 5 bytes): remove it"));
    assert_null(ledger);
}

int main(void) {
    return unit_run(set_up, NULL);
}
