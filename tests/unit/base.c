// The base: failures, memory, files, clocks, log lines, random numbers, the pool.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/unit/unit.h"

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/base/pool.h"
#include "shared/base/rng.h"

TEST(failure_text_nests) {
    assert_int_equal(fail(DATAERR, "line %d: broken", 3), DATAERR);
    assert_int_equal(fail_prefix(DATAERR, "data.jsonl"), DATAERR);
    assert_string_equal(fail_text(), "data.jsonl: line 3: broken");
    assert_int_equal(fail_oom(), UNAVAILABLE);
    assert_string_equal(fail_text(), "out of memory");
}

TEST(a_buffer_grows_as_it_is_appended_to) {
    SCOPED(struct buf, buf_release) buf = {0};
    for (int i = 0; i < 1000; i++) buf_printf(&buf, "%d,", i);
    assert_int_equal(buf.size, 3890);
    assert_int_equal(strlen(buf.data), buf.size);
}

TEST(arena_is_zeroed_and_aligned) {
    SCOPED(struct arena, arena_release) arena = {0};
    for (size_t size = 1; size < 200000; size = size * 3 + 1) {
        unsigned char *data = arena_alloc(&arena, size);
        assert_non_null(data);
        assert_int_equal((uintptr_t)data % 16, 0);
        for (size_t i = 0; i < size; i++) assert_int_equal(data[i], 0);
        memset(data, 255, size);
    }
}

TEST(philox_gives_the_authors_known_answer) {
    // The all-zero vector of the authors' known-answer file: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    assert_true(rng_bits(0, 0, 0) == 0xe169c58d6627e8d5u);
}

TEST(numbers_below_a_bound_are_even) {
    int seen[5] = {0};
    for (uint64_t i = 0; i < 50000; i++) seen[rng_below(7, 1, i, 5)]++;
    for (int i = 0; i < 5; i++) assert_in_range(seen[i], 9600, 10400);
}

static void *read_slowly(void *argument) {
    int fd = *(int *)argument;
    static char sum[1];
    char piece[5000];
    ssize_t got;
    for (size_t i = 0; (got = fd_read(fd, piece, sizeof piece)) > 0; i++) {
        if (i % 50 == 0) usleep(1000);
        for (ssize_t j = 0; j < got; j++) sum[0] = (char)(sum[0] ^ piece[j]);
    }
    close(fd);
    return sum;
}

TEST(writes_to_a_full_pipe_wait) {
    enum { size = 1 << 20 };
    int ends[2];
    void *sum;
    char *data = malloc(size), wanted = 0;
    assert_non_null(data);
    for (size_t i = 0; i < size; i++) wanted = (char)(wanted ^ (data[i] = (char)(i * 31)));
    assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[0], F_SETFL, 0), 0);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &ends[0]), 0);
    assert_true(fd_write_all(ends[1], data, size));
    close(ends[1]);
    assert_int_equal(pthread_join(thread, &sum), 0);
    assert_int_equal(*(char *)sum, wanted);
    free(data);
}

TEST(reads_and_writes_at_an_offset) {
    char path[] = "/tmp/caravan-fd-XXXXXX", back[8];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(fd_pwrite_all(fd, "caravan", 7, 3));
    assert_true(fd_pread_all(fd, back, 5, 5));
    assert_memory_equal(back, "ravan", 5);
    assert_false(fd_pread_all(fd, back, 6, 5));
    assert_int_equal(errno, ENODATA);
    assert_int_equal(fd_pread(fd, back, 8, 8), 2);
    assert_int_equal(fd_pread(fd, back, 8, 10), 0);
    close(fd);
    unlink(path);
    assert_false(fd_write_all(-1, "x", 1));
    assert_int_equal(errno, EBADF);
}

TEST(a_shared_file_is_not_written_over) {
    char path[] = "/tmp/caravan-file-XXXXXX";
    int made = mkstemp(path), held, fd, none;
    assert_true(made >= 0);
    assert_int_equal(write(made, "old", 3), 3);
    close(made);
    assert_int_equal(file_lock_exclusive(path, &fd), OK); // nobody reads it: its content is still there
    assert_int_equal(lseek(fd, 0, SEEK_END), 3);
    assert_int_equal(file_lock_shared(path, &none), DATAERR);
    close(fd);
    assert_int_equal(file_lock_shared(path, &held), OK);
    assert_int_equal(file_lock_exclusive(path, &fd), OK); // one reads it: the new file is another
    assert_int_equal(lseek(fd, 0, SEEK_END), 0);
    assert_int_equal(file_lock_shared(path, &none), DATAERR);
    char content[3];
    assert_int_equal(read(held, content, 3), 3);
    assert_memory_equal(content, "old", 3);
    close(fd);
    close(held);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(file_lock_shared(path, &none), DATAERR);
}

TEST(only_files_are_replaced) {
    char dir[] = "/tmp/caravan-base-XXXXXX", got[4] = "";
    assert_non_null(mkdtemp(dir));
    SCOPED(struct arena, arena_release) arena = {0};
    struct stat info;
    char *file = path_join(&arena, dir, "file"), *link = path_join(&arena, dir, "link");
    char *pipe = path_join(&arena, dir, "pipe"), *to_pipe = path_join(&arena, dir, "to-pipe");
    assert_int_equal(file_write_atomic(file, "one", 3), OK);
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(file_write_atomic(link, "two", 3), OK);
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    file_read_tail(file, got, sizeof got);
    assert_string_equal(got, "two");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    assert_int_equal(symlink("pipe", to_pipe), 0);
    const int fd = open(pipe, O_RDWR); // a reader
    const char *const paths[] = {pipe, to_pipe};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(file_write_atomic(paths[i], "abc", 3), OK);
        assert_int_equal(lstat(pipe, &info), 0);
        assert_true(S_ISFIFO(info.st_mode));
        assert_int_equal(read(fd, got, 3), 3);
        assert_string_equal(got, "abc");
    }
    assert_int_equal(lstat(to_pipe, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    close(fd);
    assert_int_equal(dir_remove(dir), OK);
}

TEST(files_are_written_atomically) {
    char dir[] = "/tmp/caravan-base-XXXXXX";
    assert_non_null(mkdtemp(dir));
    SCOPED(struct arena, arena_release) arena = {0};
    char *path = path_join(&arena, dir, "a/b/file");
    assert_int_equal(file_write_atomic(path, "x", 1), UNAVAILABLE);
    assert_int_equal(dir_make(path_join(&arena, dir, "a/b")), OK);
    assert_int_equal(file_write_atomic(path, "one", 3), OK);
    assert_int_equal(file_write_atomic(path, "two", 3), OK);
    struct buf content = {0};
    assert_int_equal(file_read(path, &content), OK);
    assert_string_equal(content.data, "two");
    buf_release(&content);
    // Another machine may be writing the same file: its temporary file, whatever its name, is not touched.
    char *others = arena_printf(&arena, "%s.tmp", path);
    assert_int_equal(file_write_atomic(others, "other", 5), OK);
    assert_int_equal(file_write_atomic(path, "two", 3), OK);
    assert_true(path_exists(others));
    assert_int_equal(unlink(others), 0);
    char tail[4], short_tail[3];
    file_read_tail(path, tail, sizeof tail);
    assert_string_equal(tail, "two");
    file_read_tail(path, short_tail, sizeof short_tail);
    assert_string_equal(short_tail, "wo");
    char *newest = path_join(&arena, dir, "weights-2"), *older = path_join(&arena, dir, "weights-1");
    char *part = path_join(&arena, dir, "weights-2.1");
    assert_int_equal(file_write_atomic(newest, "", 0) | file_write_atomic(older, "", 0), OK);
    assert_int_equal(file_write_atomic(part, "", 0), OK);
    dir_remove_old(dir, "weights-", "weights-2", 600);
    assert_true(path_exists(older));
    dir_remove_old(dir, "weights-", "weights-2", 0);
    assert_true(path_exists(newest) && path_exists(part) && path_exists(path) && !path_exists(older));
    assert_int_equal(dir_remove(dir), OK);
    assert_false(path_exists(dir));
    assert_int_equal(file_read(path, &content), DATAERR);
    file_read_tail(path, tail, sizeof tail);
    assert_string_equal(tail, "");
}

// A disk or a network that fails may work again in a moment; what the user has named wrongly stays so.
TEST(a_failing_disk_is_not_bad_input) {
    SCOPED(struct buf, buf_release) content = {0};
    struct file_map map;
    struct rlimit before, none;
    assert_int_equal(file_read("/proc/self/mem", &content), UNAVAILABLE); // EIO: nothing is mapped at 0
    assert_string_equal(fail_text(), "/proc/self/mem: Input/output error");
    assert_int_equal(file_read("/", &content), DATAERR);
    assert_int_equal(file_map_open(&map, "/"), DATAERR);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    const status read = file_read("/dev/null", &content), mapped = file_map_open(&map, "/dev/null");
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(read, UNAVAILABLE);
    assert_int_equal(mapped, UNAVAILABLE);
    const int gone[] = {ENOENT, EACCES, EISDIR, ENOTDIR, ENAMETOOLONG, ELOOP};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) assert_int_equal(file_read_status(gone[i]), DATAERR);
    assert_int_equal(file_read_status(ESTALE), UNAVAILABLE);
    assert_int_equal(file_read_status(ENOTCONN), UNAVAILABLE);
}

// Sets line[] to what log_info writes to standard error for "TEXT 7".
static void read_logged_line(char line[256], const char *text) {
    int ends[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    log_info("%s %d", text, 7);
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    ssize_t size = read(ends[0], line, 255);
    assert_true(size > 0);
    line[size] = 0;
    close(ends[0]), close(ends[1]), close(saved);
}

// What does not fit is not begun: a later line must not follow half a line.
TEST(appending_is_all_or_nothing) {
    char path[] = "/tmp/caravan-append-XXXXXX";
    SCOPED(struct buf, buf_release) content = {0};
    struct rlimit before, small;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(file_append(path, "first\n", 6), OK);
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 10;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const status part = file_append(path, "second\n", 7), none = file_append("/proc/caravan", "x", 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(part, UNAVAILABLE);
    assert_int_equal(none, UNAVAILABLE);
    assert_int_equal(file_append(path, "third\n", 6), OK);
    assert_int_equal(file_read(path, &content), OK);
    assert_string_equal(content.data, "first\nthird\n");
    unlink(path);
}

TEST(a_log_line_has_its_program_and_suffix) {
    char line[256];
    log_open("caravan-test");
    read_logged_line(line, "text");
    assert_string_equal(line, "caravan-test: text 7\n");
    log_suffix("-2@gpu1");
    read_logged_line(line, "text");
    assert_string_equal(line, "caravan-test-2@gpu1: text 7\n");
    assert_string_equal(log_name(), "caravan-test");
    log_timestamps(true);
    const double before = clock_realtime();
    read_logged_line(line, "text");
    int year, month, day, hour, minute, second, ms, end = 0;
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3dZ caravan-test-2@gpu1: text 7\n%n", &year, &month, &day,
                            &hour, &minute, &second, &ms, &end),
                     7);
    assert_int_equal(end, strlen(line));
    struct tm utc = {.tm_year = year - 1900,
                     .tm_mon = month - 1,
                     .tm_mday = day,
                     .tm_hour = hour,
                     .tm_min = minute,
                     .tm_sec = second};
    double written = (double)timegm(&utc) + ms / 1000.0;
    assert_true(written <= clock_realtime() && written > before - 0.01);
    log_timestamps(false);
    log_suffix(NULL);
    read_logged_line(line, "text");
    assert_string_equal(line, "caravan-test: text 7\n");
}

TEST(a_log_line_is_one_line_whatever_it_names) {
    char line[256];
    log_open("caravan-test");
    read_logged_line(line, "a\nb\r\t\033[2Jc\177 \303\251");
    assert_string_equal(line, "caravan-test: a?b???[2Jc? \303\251 7\n");
}

TEST(clocks_run_forward) {
    double before = clock_monotonic();
    int64_t before_ms = clock_monotonic_ms();
    double after = clock_monotonic(), wall = clock_realtime(), wall_ns = (double)clock_realtime_ns();
    assert_true(wall_ns > (wall - 0.1) * 1e9 && wall_ns < (clock_realtime() + 0.1) * 1e9);
    assert_true((double)before_ms > before * 1000 - 2 && (double)before_ms < after * 1000 + 2);
    usleep(2000);
    assert_true(clock_monotonic() >= before + 0.002);
    assert_true(clock_monotonic_ms() >= before_ms + 2);
    assert_true(wall > 1.6e9); // seconds since 1970
}

struct waiting {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
};

static void *signal_waiting(void *argument) {
    struct waiting *waiting = argument;
    pthread_mutex_lock(&waiting->lock);
    waiting->done = true;
    pthread_cond_signal(&waiting->cond);
    pthread_mutex_unlock(&waiting->lock);
    return NULL;
}

TEST(timed_waits_use_the_monotonic_clock) {
    struct waiting waiting = {.lock = PTHREAD_MUTEX_INITIALIZER};
    cond_init_monotonic(&waiting.cond);
    pthread_mutex_lock(&waiting.lock);
    double deadline = clock_monotonic() + 0.05;
    while (cond_wait_until(&waiting.cond, &waiting.lock, deadline)) {
    }
    assert_true(clock_monotonic() >= deadline); // on the real-time clock this deadline passed in 1970
    assert_false(cond_wait_until(&waiting.cond, &waiting.lock, 0));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, signal_waiting, &waiting), 0);
    deadline = clock_monotonic() + 20;
    while (!waiting.done) assert_true(cond_wait_until(&waiting.cond, &waiting.lock, deadline));
    pthread_mutex_unlock(&waiting.lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_cond_destroy(&waiting.cond);
    pthread_mutex_destroy(&waiting.lock);
}

TEST(blocks_are_zeroed_and_grow) {
    int64_t *numbers = NULL;
    NEW(&numbers, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(numbers[i], 0);
    numbers[2] = 7;
    RESIZE(&numbers, 1000);
    assert_int_equal(numbers[2], 7);
    int64_t *kept = numbers;
    assert_int_equal(RESIZE_LARGE(&numbers, SIZE_MAX / 8 + 1), UNAVAILABLE);
    assert_ptr_equal(numbers, kept);
    free(numbers);
    assert_int_equal(NEW_LARGE(&numbers, SIZE_MAX / 2), UNAVAILABLE);
    assert_null(numbers);
}

// Runs `run` in a process of its own, which must end with code 69 and say `said`.
static void expect_end(void (*run)(void), const char *said) {
    char text[200] = "";
    int pipe_ends[2], state;
    assert_int_equal(pipe(pipe_ends), 0);
    const pid_t child = fork();
    if (!child) {
        dup2(pipe_ends[1], STDERR_FILENO);
        log_open("caravan");
        run();
        _exit(0);
    }
    close(pipe_ends[1]);
    assert_int_equal(waitpid(child, &state, 0), child);
    assert_true(read(pipe_ends[0], text, sizeof text - 1) >= 0);
    close(pipe_ends[0]);
    assert_true(WIFEXITED(state));
    assert_int_equal(WEXITSTATUS(state), UNAVAILABLE);
    assert_string_equal(text, said);
}

static void grow_an_array(void) {
    int64_t *numbers = NULL;
    RESIZE(&numbers, SIZE_MAX / 8 + 1);
}

static void check_a_librarys_memory(void) {
    mem_checked(NULL);
}

TEST(small_memory_that_is_short_ends_the_process) {
    expect_end(grow_an_array, "caravan: out of memory: 2305843009213693952 x 8 bytes\n");
    expect_end(check_a_librarys_memory, "caravan: out of memory\n");
}

TEST(strings_are_compared_found_and_checked_as_utf8) {
    struct string text = string_of("a,b,");
    assert_true(string_equals(text, "a,b,"));
    assert_false(string_equals((struct string){0}, ""));
    assert_int_equal(string_find(text, ",", 2), 3);
    assert_true(string_find(text, "c", 0) == SIZE_MAX && string_find(text, ",", 5) == SIZE_MAX);
    assert_true(string_equals((struct string){string_slice(text, 2, 3).data, 1}, "b"));
    assert_int_equal(utf8_step("\xf0\x9f\x98\x80", 4), 4);
    assert_int_equal(utf8_step("\xf0\x9f\x98", 3), -3);
    assert_int_equal(utf8_step("\xed\xa0\x80", 3), -1);
    SCOPED(struct buf, buf_release) out = {0};
    utf8_replace("a\xff\xc3\xa9", 4, &out);
    assert_string_equal(out.data, "a\xef\xbf\xbd\xc3\xa9");
}

TEST(text_breaks_between_words) {
    static const char line[] = "step 12, 4.2 groups/min, reward 1.906; frames works";
    SCOPED(struct buf, buf_release) text = {0};
    text_wrap("the first line is  short, the\nsecond longer-than-that grün so", 3, 2, 12, &text);
    assert_string_equal(text.data, "the first\n  line is\n  short, the\n  second\n  longer-than-that\n  grün so");
    assert_int_equal(text_cut(line, strlen(line), 80), strlen(line));
    assert_int_equal(text_cut(line, strlen(line), (int)strlen(line)), strlen(line));
    assert_int_equal(text_cut(line, strlen(line), 45), strlen("step 12, 4.2 groups/min, reward 1.906"));
    assert_int_equal(text_cut(line, strlen(line), 23), strlen("step 12, 4.2 groups/min"));
    assert_int_equal(text_cut(line, strlen(line), 22), strlen("step 12"));
    assert_int_equal(text_cut(line, strlen(line), 6), strlen("step"));
    assert_int_equal(text_cut(line, strlen(line), 4), strlen("step"));
    assert_int_equal(text_cut(line, strlen(line), 3), strlen("ste"));
    assert_int_equal(text_cut("grün und", strlen("grün und"), 4), strlen("grün"));
}

TEST(paths_are_joined_at_one_slash) {
    SCOPED(struct arena, arena_release) arena = {0};
    assert_string_equal(path_join(&arena, "a", "b"), "a/b");
    assert_string_equal(path_join(&arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(&arena, "a", "/b"), "/b");
    assert_string_equal(path_join(&arena, NULL, "b"), "b");
    assert_string_equal(path_parent(&arena, "a/b/c"), "a/b");
    assert_string_equal(path_parent(&arena, "/c"), "/");
    assert_string_equal(path_parent(&arena, "c"), ".");
}

struct tally {
    int count[997];
    int threads;
};

static void count_task(void *context, int task, int thread) {
    struct tally *tally = context;
    tally->count[task]++;
    if (thread >= tally->threads) abort();
}

// Writes a line to a file of a directory, which is made.
static void write_line(const char *root, const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", root, dir);
    assert_int_equal(dir_make(path), OK);
    snprintf(path, sizeof path, "%s/%s/%s", root, dir, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text)), OK);
}

static int quota_of(const char *root, const char *cgroups) {
    char self[300];
    write_line(root, ".", "self", cgroups);
    snprintf(self, sizeof self, "%s/self", root);
    return pool_quota(root, self);
}

TEST(a_containers_quota_bounds_the_processors) {
    const char *root = unit_new_directory();
    write_line(root, ".", "cpu.max", "max 100000\n");
    write_line(root, "pods", "cpu.max", "250000 100000\n");
    write_line(root, "pods/one", "cpu.max", "max 100000\n");
    write_line(root, "pods/two", "cpu.max", "200000 100000\n");
    assert_int_equal(quota_of(root, "0::/pods/one\n"), 3); // that of the one above, rounded up
    assert_int_equal(quota_of(root, "0::/pods/two\n"), 2);
    assert_int_equal(quota_of(root, "0::/other\n"), INT_MAX);
    assert_int_equal(quota_of(root, "0::/\n"), INT_MAX);
    assert_int_equal(quota_of(root, "nonsense\n\n:\n0:\n"), INT_MAX);
    write_line(root, "cpu", "cpu.cfs_quota_us", "-1\n"); // the first version
    write_line(root, "cpu", "cpu.cfs_period_us", "100000\n");
    write_line(root, "cpu/a", "cpu.cfs_quota_us", "50000\n");
    write_line(root, "cpu/a", "cpu.cfs_period_us", "100000\n");
    assert_int_equal(quota_of(root, "5:memory:/a\n4:cpu,cpuacct:/a\n3:cpuset:/b\n"), 1);
    assert_int_equal(quota_of(root, "5:cpuset:/a\n2:cpuacct,cpu:/\n1:name=a,cpu,b:/\n0::/pods/one\n"), 3);
    assert_int_equal(pool_quota(root, "/nowhere/self"), INT_MAX);
}

TEST(pool_runs_each_task_once) {
    for (int threads = 1; threads <= 4; threads++) {
        struct pool *pool;
        assert_int_equal(pool_new(&pool, threads), OK);
        struct tally tally = {.threads = threads};
        for (int loop = 0; loop < 200; loop++) {
            if (loop % 50 == 0) usleep(2000); // long enough for the workers to sleep
            pool_run(pool, loop % 3 ? 997 : 1, count_task, &tally);
        }
        for (int i = 1; i < 997; i++) assert_int_equal(tally.count[i], 133);
        assert_int_equal(tally.count[0], 200);
        pool_free(&pool);
        assert_null(pool);
    }
}
