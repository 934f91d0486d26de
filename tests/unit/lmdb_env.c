// The LMDB file under every store: named databases, read transactions, a growing map, killed writers, two processes.
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_env.h"

enum { DBI_A, DBI_B };
static const char *const names[] = {"a", "b", NULL};
static char directory[64];
static char path[96];

// Stands in for the C library's: reports a file system of this type unless it is 0.
static uint32_t pretended_type;

int statfs(const char *file, struct statfs *out) {
    const int code = (int)syscall(SYS_statfs, file, out);
    if (pretended_type) out->f_type = pretended_type;
    return code;
}

static struct lmdb_val val_of(const char *text) {
    return (struct lmdb_val){text, strlen(text)};
}

// Returns the next of a sequence of random numbers (splitmix64).
static uint64_t mix(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static int set_up(void **state) {
    (void)state;
    strcpy(directory, "/tmp/caravan-lmdb-XXXXXX");
    if (!mkdtemp(directory)) return 1;
    snprintf(path, sizeof path, "%s/test.lmdb", directory);
    return 0;
}

// In memory where that is possible: the test writes the file hundreds of times, and syncs it.
static int set_up_in_memory(void **state) {
    strcpy(directory, "/dev/shm/caravan-lmdb-XXXXXX");
    if (!mkdtemp(directory)) return set_up(state);
    snprintf(path, sizeof path, "%s/test.lmdb", directory);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return dir_remove(directory) != OK;
}

static void put_number(struct lmdb_env *env, int dbi, uint32_t number, size_t size) {
    unsigned char *value = malloc(size);
    memset(value, (int)(number & 255), size);
    uint32_t key = __builtin_bswap32(number);
    assert_int_equal(lmdb_env_put(env, dbi, (struct lmdb_val){&key, 4}, (struct lmdb_val){value, size}), OK);
    free(value);
}

static status delete_key(struct lmdb_env *env, const char *key, bool *found) {
    struct lmdb_txn *txn;
    struct lmdb_val value = {0};
    status result;
    do {
        result = lmdb_txn_begin_write(env, &txn);
        if (result == OK) result = lmdb_txn_get(txn, DBI_A, val_of(key), &value);
        *found = value.data != NULL;
        if (result == OK) result = lmdb_txn_del(txn, DBI_A, val_of(key));
    } while (lmdb_txn_commit(&txn, &result));
    return result;
}

// Checks that the keys are the numbers from 0 to `end`.
static void check_numbers(struct lmdb_txn *txn, int dbi, uint32_t end) {
    struct lmdb_cursor cursor;
    assert_int_equal(lmdb_cursor_init(&cursor, txn, dbi), OK);
    uint32_t next = 0, number;
    for (; cursor.key.data; next++) {
        assert_int_equal(cursor.key.size, 4);
        memcpy(&number, cursor.key.data, 4);
        assert_int_equal(__builtin_bswap32(number), next);
        assert_int_equal(lmdb_cursor_next(&cursor), OK);
    }
    assert_int_equal(next, end);
    lmdb_cursor_release(&cursor);
}

TEST_BETWEEN(what_is_put_is_got_and_deleted, set_up, tear_down) {
    struct lmdb_env *env, *again;
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    assert_int_equal(lmdb_env_open(&again, path, names, NULL), OK);
    assert_int_equal(lmdb_env_put(env, DBI_A, val_of("k"), val_of("one")), OK);
    SCOPED(struct buf, buf_release) value = {0};
    bool found;
    assert_int_equal(lmdb_env_get(again, DBI_B, val_of("k"), &value, &found), OK);
    assert_false(found);
    assert_int_equal(lmdb_env_get(again, DBI_A, val_of("k"), &value, &found), OK);
    assert_true(found);
    assert_string_equal(value.data, "one");
    lmdb_env_close(&env);
    assert_int_equal(delete_key(again, "k", &found), OK);
    assert_true(found);
    assert_int_equal(delete_key(again, "k", &found), OK);
    assert_false(found);
    lmdb_env_close(&again);
    lmdb_env_close(&again);
}

TEST_BETWEEN(the_map_grows_by_itself, set_up, tear_down) {
    struct lmdb_env *env;
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.mapsize = 1 << 20}), OK);
    for (uint32_t i = 0; i < 100; i++) put_number(env, DBI_A, i, 100000);
    struct lmdb_txn *txn;
    assert_int_equal(lmdb_txn_begin_read(env, &txn), OK);
    check_numbers(txn, DBI_A, 100);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t key = __builtin_bswap32(i);
        struct lmdb_val value;
        assert_int_equal(lmdb_txn_get(txn, DBI_A, (struct lmdb_val){&key, 4}, &value), OK);
        assert_int_equal(value.size, 100000);
        for (size_t b = 0; b < value.size; b += 999) assert_int_equal(((const unsigned char *)value.data)[b], i);
    }
    lmdb_txn_end(&txn);
    lmdb_env_close(&env);
    struct stat file;
    assert_int_equal(stat(path, &file), 0);
    assert_in_range(file.st_size, 100 * 100000, 2 * 100 * 100000);
}

TEST_BETWEEN(another_process_may_grow_the_map, set_up, tear_down) {
    fflush(stdout);
    int go[2], done[2];
    assert_int_equal(pipe(go) | pipe(done), 0);
    pid_t child = fork();
    if (child == 0) {
        struct lmdb_env *env;
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(1);
        if (lmdb_env_open(&env, path, names, NULL) != OK) _exit(2);
        char *big = calloc(1, 8 << 20);
        if (lmdb_env_put(env, DBI_A, val_of("big"), (struct lmdb_val){big, 8 << 20}) != OK) _exit(3);
        free(big);
        lmdb_env_close(&env);
        _exit(write(done[1], "x", 1) != 1);
    }
    struct lmdb_env *env;
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.mapsize = 1 << 20}), OK);
    put_number(env, DBI_A, 1, 100);
    char byte;
    assert_int_equal(write(go[1], "x", 1), 1);
    assert_int_equal(read(done[0], &byte, 1), 1);
    SCOPED(struct buf, buf_release) value = {0};
    bool found;
    assert_int_equal(lmdb_env_get(env, DBI_A, val_of("big"), &value, &found), OK);
    assert_true(found);
    assert_int_equal(value.size, 8 << 20);
    int ended;
    waitpid(child, &ended, 0);
    assert_int_equal(ended, 0);
    lmdb_env_close(&env);
    close(go[0]), close(go[1]), close(done[0]), close(done[1]);
}

TEST_BETWEEN(a_failed_write_leaves_nothing, set_up, tear_down) {
    SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    struct lmdb_txn *txn;
    assert_int_equal(lmdb_txn_begin_write(env, &txn), OK);
    assert_int_equal(lmdb_txn_put(txn, DBI_A, val_of("x"), val_of("y")), OK);
    status result = fail(BAD_SAMPLE, "the work failed");
    assert_false(lmdb_txn_commit(&txn, &result));
    assert_int_equal(result, BAD_SAMPLE);
    assert_null(txn);
    assert_int_equal(lmdb_txn_begin_read(env, &txn), OK);
    check_numbers(txn, DBI_A, 0);
    lmdb_txn_end(&txn);
}

TEST_BETWEEN(a_killed_writer_or_reader_blocks_nobody, set_up, tear_down) {
    fflush(stdout);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct lmdb_env *env;
            struct lmdb_txn *held, *txn;
            if (lmdb_env_open(&env, path, names, NULL) != OK || lmdb_txn_begin_read(env, &held) != OK) _exit(1);
            if (lmdb_txn_begin_write(env, &txn) != OK) _exit(1);
            if (lmdb_txn_put(txn, DBI_A, val_of("k"), val_of("lost")) != OK) _exit(1);
            raise(SIGKILL);
            _exit(2);
        }
        int ended;
        waitpid(child, &ended, 0);
        assert_true(WIFSIGNALED(ended));
    }
    SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    struct buf value = {0};
    bool found;
    assert_int_equal(lmdb_env_get(env, DBI_A, val_of("k"), &value, &found), OK);
    assert_false(found);
    put_number(env, DBI_A, 1, 10);
}

TEST_BETWEEN(keys_come_in_order, set_up, tear_down) {
    SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    for (uint32_t i = 300; i-- > 0;) put_number(env, DBI_B, i, 4);
    struct lmdb_txn *txn;
    assert_int_equal(lmdb_txn_begin_read(env, &txn), OK);
    check_numbers(txn, DBI_B, 300);
    lmdb_txn_end(&txn);
}

TEST_BETWEEN(bad_files_are_named, set_up, tear_down) {
    struct lmdb_env *env;
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.read_only = true}), DATAERR);
    assert_non_null(strstr(fail_text(), path));
    char junk[8192];
    memset(junk, 'x', sizeof junk);
    assert_int_equal(file_write_atomic(path, junk, sizeof junk), OK);
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), DATAERR);
    assert_non_null(strstr(fail_text(), "test.lmdb: the file is damaged (page 0): remove it"));
    assert_null(env);
    assert_int_equal(lmdb_env_open(&env, "/nowhere/at/all.lmdb", names, NULL), UNAVAILABLE);
}

TEST_BETWEEN(network_file_systems_are_refused, set_up, tear_down) {
    static const struct {
        uint32_t type;
        const char *name;
    } systems[] = {{0x6969, "NFS"},      {0x0BD00BD0, "Lustre"}, {0x19830326, "BeeGFS"}, {0x47504653, "GPFS"},
                   {0xFF534D42, "CIFS"}, {0xFE534D42, "SMB2"},   {0x01021997, "9p"},     {0x65735546, "FUSE"},
                   {0x00C36400, "Ceph"}, {0x5346414F, "AFS"}};
    struct lmdb_env *env;
    assert_null(lmdb_network_file_system(directory));
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++) {
        pretended_type = systems[i].type;
        assert_string_equal(lmdb_network_file_system(directory), systems[i].name);
        assert_int_equal(lmdb_env_open(&env, path, names, NULL), USAGE);
        assert_non_null(strstr(fail_text(), path));
        assert_non_null(strstr(fail_text(), systems[i].name));
        assert_non_null(strstr(fail_text(), "`store:`"));
        assert_false(path_exists(path));
    }
    pretended_type = 0xEF53; // ext4
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    lmdb_env_close(&env);
    pretended_type = 0x6969; // nothing is written
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.read_only = true}), OK);
    lmdb_env_close(&env);
    pretended_type = 0;
    const char *line = "36 35 0:52 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/scratch/up,workdir=/w\n";
    char upper[64];
    assert_true(lmdb_overlay_upper(line, 0, 52, upper, sizeof upper));
    assert_string_equal(upper, "/scratch/up");
    assert_false(lmdb_overlay_upper(line, 0, 53, upper, sizeof upper));
    assert_false(lmdb_overlay_upper(line, 0, 52, upper, 5));
    assert_false(lmdb_overlay_upper("36 35 0:52 / / rw - ext4 /dev/vda rw\n", 0, 52, upper, sizeof upper));
    assert_false(lmdb_overlay_upper("", 0, 52, upper, sizeof upper));
}

// Kilobytes of the mapped files that this process has resident.
static long resident_file_kb(void) {
    FILE *status_file = fopen("/proc/self/status", "r");
    char line[128];
    long kb = -1;
    assert_non_null(status_file);
    while (fgets(line, sizeof line, status_file)) sscanf(line, "RssFile: %ld kB", &kb);
    fclose(status_file);
    assert_true(kb >= 0);
    return kb;
}

TEST_BETWEEN(pages_read_do_not_stay_resident, set_up, tear_down) {
    enum { count = 4000, size = 4000, bound_kb = 6000 };
    SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
    SCOPED(struct buf, buf_release) value = {0};
    bool found;
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.lazy = true}), OK);
    long before = resident_file_kb();
    for (uint32_t i = 0; i < count; i++) put_number(env, DBI_A, i, size);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = __builtin_bswap32(i);
        buf_clear(&value);
        assert_int_equal(lmdb_env_get(env, DBI_A, (struct lmdb_val){&key, 4}, &value, &found), OK);
        assert_true(found);
    }
    assert_true(resident_file_kb() - before < bound_kb);
}

// A process that creates the file is killed while it holds LMDB's lock, before the lock file has its contents.
TEST_BETWEEN(a_killed_creator_blocks_nobody, set_up, tear_down) {
    struct lmdb_env *env;
    char lock_path[sizeof path + 8];
    int ready[2];
    char byte;
    snprintf(lock_path, sizeof lock_path, "%s-lock", path);
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
        int fd = open(lock_path, O_RDWR | O_CREAT, 0666);
        if (fd < 0 || fcntl(fd, F_SETLK, &lock) || write(ready[1], "x", 1) != 1) _exit(1);
        usleep(50000); // the parent waits for the lock now
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    lmdb_env_close(&env);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(ready[0]);
    close(ready[1]);
}

TEST_BETWEEN(a_reader_finds_a_new_file_with_its_databases, set_up_in_memory, tear_down) {
    enum { FILES = 200 };
    char name[sizeof path + 16];
    bool over = false;
    int ended;
    fflush(stdout);
    const pid_t child = fork();
    for (int i = 0; i < FILES; i++) {
        struct lmdb_env *env;
        snprintf(name, sizeof name, "%s-%d", path, i);
        const struct lmdb_options options = {.read_only = child != 0, .lazy = true};
        while (child && access(name, F_OK)) {
            assert_false(over); // then no more files would come
            over = waitpid(child, &ended, WNOHANG) == child;
        }
        const status result = lmdb_env_open(&env, name, names, &options);
        if (!child && result != OK) _exit(1);
        if (result != OK) print_error("file %d: %s\n", i, fail_text());
        assert_int_equal(result, OK);
        lmdb_env_close(&env);
    }
    if (!child) _exit(0);
    if (!over) assert_int_equal(waitpid(child, &ended, 0), child);
    assert_int_equal(ended, 0);
}

// What a process leaves that was killed while it created the file.
TEST_BETWEEN(a_file_that_was_left_unfinished_is_created_again, set_up, tear_down) {
    char name[sizeof path + 8];
    struct lmdb_env *env;
    snprintf(name, sizeof name, "%s-new", path);
    assert_int_equal(file_write_atomic(name, "unfinished", 10), OK);
    assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
    put_number(env, DBI_B, 1, 10);
    lmdb_env_close(&env);
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(lmdb_env_open(&env, path, names, &(struct lmdb_options){.read_only = true}), OK);
    lmdb_env_close(&env);
}

// A file with every kind of page: `rounds` times it is opened, which checks it, and changed.
static void change_at_random(uint64_t seed, int rounds) {
    enum { keys = 600, changes = 200, small_size = 300, big_size = 9000 };
    char key[400];
    char *value = calloc(1, big_size);
    for (int round = 0; round < rounds; round++) {
        SCOPED(struct lmdb_env *, lmdb_env_close) env = NULL;
        struct lmdb_txn *txn;
        assert_int_equal(lmdb_env_open(&env, path, names, NULL), OK);
        status result = lmdb_txn_begin_write(env, &txn);
        for (int i = 0; i < changes && result == OK; i++) {
            const uint64_t number = mix(&seed) % keys, kind = mix(&seed) % 8, size = mix(&seed);
            const int length = snprintf(key, sizeof key, "%0*d", number % 4 ? 8 : 300, (int)number);
            const int dbi = number % 3 ? DBI_A : DBI_B;
            const struct lmdb_val k = {key, (size_t)length};
            if (kind < 2)
                result = lmdb_txn_del(txn, dbi, k);
            else
                result = lmdb_txn_put(txn, dbi, k, (struct lmdb_val){value, size % (kind < 7 ? small_size : big_size)});
        }
        assert_false(lmdb_txn_commit(&txn, &result));
        assert_int_equal(result, OK);
    }
    free(value);
}

// Opens the file, reads all that it has, and changes it. Returns the status; runs in a process of its own.
static status use_damaged(void) {
    struct lmdb_env *env;
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor = {0};
    uint64_t sum = 0;
    TRY(lmdb_env_open(&env, path, names, NULL));
    status result = lmdb_txn_begin_read(env, &txn);
    for (int dbi = DBI_A; dbi <= DBI_B && result == OK; dbi++) {
        result = lmdb_cursor_init(&cursor, txn, dbi);
        while (result == OK && cursor.key.data) {
            for (size_t i = 0; i < cursor.value.size; i++) sum += ((const uint8_t *)cursor.value.data)[i];
            result = lmdb_cursor_next(&cursor);
        }
        lmdb_cursor_release(&cursor);
    }
    if (sum == 1) result = fail(BUG, "the sum is read");
    lmdb_txn_end(&txn);
    if (result == OK) result = lmdb_txn_begin_write(env, &txn);
    for (int i = 0; i < 600 && result == OK; i++) {
        char key[16];
        const int length = snprintf(key, sizeof key, "%08d", i);
        const struct lmdb_val k = {key, (size_t)length};
        if (i % 3) result = lmdb_txn_put(txn, DBI_A, k, (struct lmdb_val){key, i % 2 ? 8 : 16});
        if (result == OK && i % 3 == 0) result = lmdb_txn_del(txn, DBI_B, k);
    }
    (void)lmdb_txn_commit(&txn, &result);
    if (result == OK) lmdb_env_close(&env);
    return result;
}

// Noise anywhere in the file is found, or touches values alone; it never ends a process by a signal.
TEST_BETWEEN(noise_is_found, set_up_in_memory, tear_down) {
    enum { rounds = 300, noise_max = 64 };
    SCOPED(struct buf, buf_release) sound = {0};
    int found = 0;
    uint64_t seed = 22;
    change_at_random(seed, 30);
    assert_int_equal(file_read(path, &sound), OK);
    for (int round = 0; round < rounds; round++) {
        uint8_t noise[noise_max];
        int ends[2], state_of_child = 0;
        char said[1024] = "";
        const size_t size = 1 + mix(&seed) % noise_max, pages = sound.size / 4096;
        // Every second time in the first bytes of a page, where its structure is.
        const size_t at = (mix(&seed) % (round % 4 ? pages : 2)) * 4096 + mix(&seed) % (round % 2 ? 4000 : 160);
        for (size_t i = 0; i < size; i++) noise[i] = (uint8_t)mix(&seed);
        const int fd = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
        assert_true(fd_pwrite_all(fd, sound.data, sound.size, 0));
        assert_true(fd_pwrite_all(fd, noise, at + size > sound.size ? sound.size - at : size, (off_t)at));
        close(fd);
        fflush(stdout);
        assert_int_equal(pipe(ends), 0);
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            const status result = use_damaged();
            if (result != OK) log_info("%s", fail_text());
            _exit((int)result);
        }
        close(ends[1]);
        const ssize_t got = read(ends[0], said, sizeof said - 1);
        close(ends[0]);
        assert_int_equal(waitpid(child, &state_of_child, 0), child);
        const bool fine = WIFEXITED(state_of_child) && (WEXITSTATUS(state_of_child) == OK ||
                                                        (WEXITSTATUS(state_of_child) == DATAERR && got > 0 &&
                                                         strstr(said, "the file is damaged") && strstr(said, path)));
        if (!fine)
            print_error("round %d: %zu bytes at %zu of %zu: state %x: %s\n", round, size, at, sound.size,
                        (unsigned)state_of_child, said);
        assert_true(fine);
        found += WEXITSTATUS(state_of_child) == DATAERR;
    }
    assert_true(found > rounds / 8);
}
