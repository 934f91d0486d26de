// Files of a checkpoint that several ranks write and read in pieces: processes that meet over sockets. Each has its own
// pieces of the arrays, cut anywhere, and -7 elsewhere. On the CPU and on the emulated GPU.
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/model/training_state.h"

enum { MOST_RANKS = 8, PIECES = 5, ARRAYS = 4, NO_DEVICE = 200, DIFFERENT = 201 };

enum fault { NO_FAULT, DIES_BEFORE, DIES_AFTER, DIES_WRITING, DISK_FULL, FILE_LENGTHENED, PIECE_LEFT_OUT };

// What the ranks do: save the numbers of a step to a directory, or load them from there.
struct job {
    const char *device, *dir;
    int count, step;
    unsigned seed; // of the cuts
    bool loads;
    enum fault fault; // that of the victim, at one of its meetings
    int victim, meeting;
};

// What became of each rank.
static struct report {
    int code; // its status, or minus the signal that has ended it
    char text[400];
} * reports;

// ---- the arrays ----

struct arrays {
    struct backend *backend;
    struct parameter_table table;
    struct param_array list[ARRAYS];
    int64_t step;
    struct training_state state;
};

// Two matrices that are used as one, a matrix longer than what is copied at once, vectors, and a range that is not
// trained.
static status arrays_init(struct arrays *arrays, const char *device) {
    static struct fused_param fused[5];
    struct parameter_table *table = &arrays->table;
    TRY(backend_open(&arrays->backend, &(struct backend_options){.device = device, .threads = 1}));
    parameter_table_init(table, 8);
    parameter_table_single(table, &fused[0], PARAMETER_MATRIX, 13, 7, "embedding");
    parameter_table_start(table, &fused[1], 14, 5);
    parameter_table_append(table, &fused[1], PARAMETER_MATRIX, 11, 5, "query");
    parameter_table_append(table, &fused[1], PARAMETER_MATRIX, 3, 5, "key");
    parameter_table_single(table, &fused[2], PARAMETER_MATRIX, 701, 401, "long");
    parameter_table_close_range(table, true, 0);
    parameter_table_single(table, &fused[3], PARAMETER_NORM, 1, 9, "norm");
    parameter_table_close_range(table, false, 0);
    parameter_table_single(table, &fused[4], PARAMETER_MATRIX, 3, 33, "frozen");
    parameter_table_close_range(table, true, 1);
    TRY(parameter_table_finish(table, NULL, 0, NULL, 0));
    struct param_array *list = arrays->list;
    TRY(param_array_init(&list[0], arrays->backend, table, 3, ELEMENT_BF16, ELEMENT_BF16, NULL));
    TRY(param_array_add_remainders(&list[0], arrays->backend, NULL));
    TRY(param_array_init(&list[1], arrays->backend, table, 2, ELEMENT_BF16, ELEMENT_F32, NULL));
    TRY(param_array_init(&list[2], arrays->backend, table, 2, ELEMENT_F32, ELEMENT_F32, NULL));
    TRY(param_array_init(&list[3], arrays->backend, table, 3, ELEMENT_BF16, ELEMENT_BF16, NULL));
    TRY(param_array_add_remainders(&list[3], arrays->backend, NULL));
    arrays->state = (struct training_state){
        .backend = arrays->backend,
        .arrays = {{"master", &list[0]}, {"first", &list[1]}, {"second", &list[2]}, {"reference", &list[3]}},
        .counters = {{"step", &arrays->step}}};
    float *sevens = malloc((size_t)table->elements * sizeof *sevens);
    for (int64_t i = 0; i < table->elements; i++) sevens[i] = -7;
    for (int a = 0; a < ARRAYS; a++)
        for (int r = 0; r < list[a].ranges; r++)
            TRY(arrays->backend->ops->upload(arrays->backend, param_range(&list[a], r), sevens, ELEMENT_F32));
    free(sevens);
    return OK;
}

static void arrays_release(struct arrays *arrays) {
    for (int a = 0; a < ARRAYS; a++) param_array_release(&arrays->list[a], arrays->backend);
    parameter_table_release(&arrays->table);
    backend_close(&arrays->backend);
}

// Sets the elements in the share to the numbers of a step, whose bits bfloat16 does not hold.
static status arrays_fill(struct arrays *arrays, const struct param_share *share, int step) {
    const struct parameter_table *table = &arrays->table;
    arrays->step = step;
    for (int a = 0; a < ARRAYS; a++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (!param_array_has(&arrays->list[a], parameter)) continue;
            float *values = malloc((size_t)parameter->count * sizeof *values);
            for (int64_t e = 0; e < parameter->count; e++) {
                const uint64_t place = (uint64_t)(parameter->offset + e) * 8 + (uint64_t)a * 2 + (uint64_t)step;
                values[e] = (float)(place * 0x9e3779b97f4a7c15u >> 40) / (1 << 22) - 2;
            }
            for (size_t p = 0; p < share->count; p++)
                TRY(parameter_upload(arrays->backend, &arrays->list[a], parameter, share->pieces[p], values, 0,
                                     ELEMENT_F32));
            free(values);
        }
    }
    return OK;
}

// All bytes of the arrays: of each range its values, then its remainders.
static status arrays_bytes(struct arrays *arrays, struct buf *out) {
    for (int a = 0; a < ARRAYS; a++) {
        for (int r = 0; r < arrays->list[a].ranges; r++) {
            const struct tensor values = param_range(&arrays->list[a], r);
            const struct tensor parts[2] = {values, param_remainders(&arrays->list[a], values)};
            for (int i = 0; i < 2; i++) {
                if (!parts[i].buffer) continue;
                const size_t size = (size_t)parts[i].columns * element_size(parts[i].type);
                char *bytes = malloc(size);
                TRY(arrays->backend->ops->download(arrays->backend, bytes, parts[i].type, parts[i]));
                buf_append(out, bytes, size);
                free(bytes);
            }
        }
    }
    return OK;
}

static int compare_places(const void *left, const void *right) {
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a > b) - (a < b);
}

// Cuts the table at random elements of random parameters, so that some pieces are empty, and deals the pieces to the
// ranks in turn.
static void cut(const struct parameter_table *table, const struct job *job, int own, struct param_piece *pieces) {
    int64_t cuts[MOST_RANKS * PIECES + 1];
    const int count = job->count * PIECES;
    uint64_t state = job->seed;
    for (int i = 1; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const struct parameter *parameter = &table->list[(state >> 40) % table->count];
        cuts[i] = parameter->offset + (int64_t)((state >> 33) % (uint64_t)(parameter->count + 1));
    }
    cuts[0] = 0;
    cuts[count] = table->elements;
    qsort(cuts, (size_t)count, sizeof *cuts, compare_places);
    for (int p = 0; p < PIECES; p++) {
        const int i = p * job->count + own;
        pieces[p] = (struct param_piece){cuts[i], cuts[i + 1]};
    }
}

// ---- the ranks ----

struct test_ranks {
    struct file_ranks base; // meet gets its address
    const struct job *job;
    int sockets[MOST_RANKS]; // to the other ranks
    int meetings;            // so far
};

static status test_meet(struct file_ranks *base, uint64_t *all) {
    struct test_ranks *ranks = (struct test_ranks *)base;
    const struct job *job = ranks->job;
    const bool now = base->own == job->victim && ranks->meetings++ == job->meeting;
    if (now && job->fault == DIES_BEFORE) raise(SIGKILL);
    for (int r = 0; r < base->count; r++) // a rank that is gone is found below
        if (r != base->own) (void)send(ranks->sockets[r], &all[base->own], sizeof *all, MSG_NOSIGNAL);
    for (int r = 0; r < base->count; r++)
        if (r != base->own && recv(ranks->sockets[r], &all[r], sizeof *all, 0) != sizeof *all)
            return fail(UNAVAILABLE, "rank %d is gone", r);
    if (now && job->fault == DIES_AFTER) raise(SIGKILL);
    if (now && job->fault == FILE_LENGTHENED) {
        char path[300];
        snprintf(path, sizeof path, "%s/training.safetensors.tmp", job->dir);
        if (truncate(path, 9000000)) abort(); // not shorter: the others' writing might hide that again
    }
    return OK;
}

// No file may grow beyond a million bytes, a part of what is written.
static void limit_files(bool dies) {
    if (!dies) signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0})) abort();
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000000, 1000000})) abort();
}

static status rank_save(struct arrays *arrays, const struct param_share *share, const struct job *job) {
    TRY(arrays_fill(arrays, share, job->step));
    TRY(training_state_save(&arrays->state, job->dir));
    if (job->fault) return OK;
    // A file of weights, in another type, as it is published; one parameter has two names.
    SCOPED(struct arena, arena_release) arena = {0};
    const struct parameter_table *table = &arrays->table;
    struct tensor_list list = tensor_list_make(&arena, table->count + 1);
    list.share = *share;
    for (size_t i = 0; i < table->count; i++)
        tensor_list_add(&list, &arrays->list[0], &table->list[i], table->list[i].name, ELEMENT_BF16);
    tensor_list_add(&list, &arrays->list[0], &table->list[0], "head", ELEMENT_F32);
    return tensor_list_write(&list, arrays->backend, path_join(&arena, job->dir, "model.safetensors"), false);
}

static status rank_load(struct arrays *arrays, const struct param_share *share, const struct job *job) {
    static const struct param_share all = {.pieces = &param_whole, .count = 1};
    SCOPED(struct buf, buf_release) before = {0}, saved = {0}, got = {0};
    struct arrays whole = {0};
    TRY(arrays_init(&whole, job->device));
    TRY(arrays_bytes(&whole, &before));
    TRY(arrays_fill(&whole, &all, job->step));
    TRY(arrays_bytes(&whole, &saved));
    arrays_release(&whole);
    TRY(training_state_load(&arrays->state, job->dir));
    TRY(arrays_bytes(arrays, &got));
    size_t at = 0;
    bool same = arrays->step == job->step;
    for (int a = 0; a < ARRAYS; a++) {
        for (int r = 0; r < 2 * arrays->list[a].ranges; r++) { // values and remainders
            const struct parameter_range *range = &arrays->table.ranges[r / 2];
            const bool values = r % 2 == 0;
            if (!values && !arrays->list[a].remainders) continue;
            const size_t size = values ? element_size(arrays->list[a].types[r / 2]) : sizeof(uint16_t);
            for (int64_t e = range->offset; e < range->offset + range->count; e++, at += size) {
                bool own = false;
                for (size_t p = 0; p < share->count; p++)
                    own |= e >= share->pieces[p].first && e < share->pieces[p].end;
                same &= !memcmp(got.data + at, (own ? saved : before).data + at, size);
            }
        }
    }
    return same && at == got.size ? OK : fail((status)DIFFERENT, "other numbers than those saved");
}

static status rank_run(struct test_ranks *ranks) {
    const struct job *job = ranks->job;
    struct arrays arrays = {0};
    struct param_piece pieces[PIECES];
    struct param_share share = {.ranks = &ranks->base, .pieces = pieces, .count = PIECES};
    const bool faulty = ranks->base.own == job->victim;
    const status opened = arrays_init(&arrays, job->device);
    if (opened != OK) return arrays.backend ? opened : (status)NO_DEVICE;
    cut(&arrays.table, job, ranks->base.own, pieces);
    if (faulty && job->fault == PIECE_LEFT_OUT)
        for (int p = 0; p < PIECES; p++)
            if (pieces[p].end - pieces[p].first > 200) pieces[p].first++;
    arrays.state.share = &share;
    if (faulty && (job->fault == DIES_WRITING || job->fault == DISK_FULL)) limit_files(job->fault == DIES_WRITING);
    const status result = (job->loads ? rank_load : rank_save)(&arrays, &share, job);
    arrays_release(&arrays);
    return result;
}

// Runs a process for each rank, and fills the reports.
static void run(const struct job *job) {
    int sockets[MOST_RANKS][MOST_RANKS];
    pid_t processes[MOST_RANKS];
    memset(sockets, -1, sizeof sockets);
    for (int i = 0; i < job->count; i++) {
        for (int j = 0; j < i; j++) {
            int ends[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
            sockets[i][j] = ends[0], sockets[j][i] = ends[1];
        }
    }
    fflush(stdout);
    for (int own = 0; own < job->count; own++) {
        processes[own] = fork();
        if (processes[own]) continue;
        struct test_ranks ranks = {.base = {.own = own, .count = job->count, .meet = test_meet}, .job = job};
        memcpy(ranks.sockets, sockets[own], sizeof ranks.sockets);
        for (int i = 0; i < MOST_RANKS; i++)
            for (int j = 0; j < MOST_RANKS; j++)
                if (i != own && sockets[i][j] >= 0) close(sockets[i][j]);
        const status result = rank_run(&ranks);
        snprintf(reports[own].text, sizeof reports[own].text, "%s", result == OK ? "" : fail_text());
        _exit((int)result);
    }
    for (int i = 0; i < MOST_RANKS; i++)
        for (int j = 0; j < MOST_RANKS; j++)
            if (sockets[i][j] >= 0) close(sockets[i][j]);
    for (int own = 0; own < job->count; own++) {
        int how;
        assert_int_equal(waitpid(processes[own], &how, 0), processes[own]);
        reports[own].code = WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
    }
}

static void run_well(const struct job *job) {
    run(job);
    for (int r = 0; r < job->count; r++) {
        if (reports[r].code) print_error("rank %d of %d, cuts %u: %s\n", r, job->count, job->seed, reports[r].text);
        assert_int_equal(reports[r].code, OK);
    }
}

static void assert_same_file(const char *dir, const char *other, const char *name) {
    SCOPED(struct arena, arena_release) arena = {0};
    SCOPED(struct buf, buf_release) a = {0}, b = {0};
    MUST(file_read(path_join(&arena, dir, name), &a));
    MUST(file_read(path_join(&arena, other, name), &b));
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
}

// The file is as in the other directory, and nothing is left of an attempt to write another one.
static void assert_only_file(const char *dir, const char *other, const char *name) {
    SCOPED(struct arena, arena_release) arena = {0};
    assert_same_file(dir, other, name);
    assert_false(path_exists(arena_printf(&arena, "%s/%s.tmp", dir, name)));
}

// Returns a directory with the files that one process writes, in one piece.
static char *one_process(const char *device, int step) {
    char *dir = unit_new_directory();
    fflush(stdout);
    const pid_t process = fork();
    if (process == 0) {
        struct arrays arrays = {0};
        const struct param_share all = {.pieces = &param_whole, .count = 1};
        const struct job job = {.dir = dir, .step = step};
        status result = arrays_init(&arrays, device);
        if (result == OK) result = rank_save(&arrays, &all, &job);
        if (result != OK) fprintf(stderr, "%s\n", fail_text());
        _exit((int)result);
    }
    int how;
    assert_int_equal(waitpid(process, &how, 0), process);
    assert_int_equal(how, 0);
    return dir;
}

// ---- the tests ----

static const int counts[] = {1, 2, 3, 8};
enum { COUNTS = sizeof counts / sizeof *counts };

static void write_and_read(const char *device) {
    struct job probe = {.device = device, .dir = unit_new_directory(), .count = 1, .seed = 1, .victim = -1};
    run(&probe);
    if (reports[0].code == NO_DEVICE) {
        assert_string_not_equal(device, "cpu");
        print_message("left out: %s\n", reports[0].text);
        return;
    }
    char *one = one_process(device, 4);
    for (int n = 0; n < COUNTS; n++) {
        for (unsigned seed = 0; seed < 2; seed++) {
            struct job job = {.device = device,
                              .dir = unit_new_directory(),
                              .count = counts[n],
                              .step = 4,
                              .seed = seed,
                              .victim = -1};
            run_well(&job);
            assert_only_file(job.dir, one, "training.safetensors");
            assert_only_file(job.dir, one, "training.json");
            assert_only_file(job.dir, one, "model.safetensors");
            job.loads = true;
            job.count = counts[(n + 1) % COUNTS]; // of another number of ranks, with other cuts
            job.seed = seed + 100;
            run_well(&job);
            MUST(dir_remove(job.dir));
        }
    }
}

TEST(the_files_of_several_ranks_have_the_bytes_of_one_and_any_number_reads_them) {
    write_and_read("cpu");
    write_and_read("emulated");
}

// A rank fails while the files of step 5 are written over those of step 4. Returns their directory; each rank that is
// alive says in one line which file it is, and `said` if that is the victim.
static char *failed(struct job *job, status code, const char *said) {
    SCOPED(struct arena, arena_release) arena = {0};
    char *dir = one_process("cpu", 4), *path = path_join(&arena, dir, "training.safetensors");
    job->device = "cpu", job->dir = dir, job->step = 5, job->seed = 9;
    run(job);
    for (int r = 0; r < job->count; r++) {
        const char *text = reports[r].text;
        if (reports[r].code <= 0) continue;
        if (strncmp(text, path, strlen(path)) != 0) print_error("rank %d: %s\n", r, text);
        assert_int_equal(reports[r].code, code);
        assert_memory_equal(text, path, strlen(path));
        assert_null(strchr(text, '\n'));
        if (r == job->victim) assert_non_null(strstr(text, said));
    }
    return dir;
}

TEST(a_rank_that_is_killed_leaves_the_old_file_or_the_new_one) {
    SCOPED(struct arena, arena_release) arena = {0};
    static const enum fault faults[] = {DIES_BEFORE, DIES_AFTER, DIES_WRITING};
    char *old = one_process("cpu", 4), *new = one_process("cpu", 5);
    for (int victim = 0; victim < 3; victim++) {
        for (int f = 0; f < 3; f++) {
            for (int meeting = 0; meeting < (faults[f] == DIES_WRITING ? 1 : 3); meeting++) {
                struct job job = {.count = 3, .fault = faults[f], .victim = victim, .meeting = meeting};
                char *dir = failed(&job, UNAVAILABLE, "");
                const bool written = faults[f] == DIES_AFTER && meeting == 2; // all data
                assert_int_equal(reports[victim].code, faults[f] == DIES_WRITING ? -SIGXFSZ : -SIGKILL);
                for (int r = 0; r < 3; r++)
                    if (r != victim) assert_int_equal(reports[r].code, written ? OK : UNAVAILABLE);
                if (victim == 0) { // what it has left is not used again: another rank may still write into it
                    struct job next = {.device = "cpu", .dir = dir, .count = 2, .step = 5, .seed = 3, .victim = -1};
                    assert_same_file(dir, old, "training.safetensors");
                    const int late = open(path_join(&arena, dir, "training.safetensors.tmp"), O_WRONLY | O_CLOEXEC);
                    assert_true(late >= 0);
                    run_well(&next);
                    assert_int_equal(pwrite(late, "late", 4, 1000), 4);
                    close(late);
                }
                assert_only_file(dir, written || victim == 0 ? new : old, "training.safetensors");
                MUST(dir_remove(dir));
            }
        }
    }
}

TEST(a_full_disk_is_said_by_all_ranks_and_leaves_the_old_file) {
    char *old = one_process("cpu", 4);
    for (int victim = 0; victim < 3; victim++) {
        struct job job = {.count = 3, .fault = DISK_FULL, .victim = victim};
        char *dir = failed(&job, UNAVAILABLE, strerror(EFBIG)), said[40];
        snprintf(said, sizeof said, "rank %d could not write it", victim);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(reports[r].code, UNAVAILABLE);
            if (r != victim) assert_non_null(strstr(reports[r].text, said));
        }
        assert_only_file(dir, old, "training.safetensors");
        assert_only_file(dir, old, "training.json");
    }
}

TEST(a_file_that_another_process_lengthens_is_not_finished) {
    struct job job = {.count = 2, .fault = FILE_LENGTHENED, .victim = 1};
    char *old = one_process("cpu", 4), *dir = failed(&job, UNAVAILABLE, "it has 9000000 bytes, but rank 1 writes");
    assert_int_equal(reports[0].code, UNAVAILABLE);
    assert_int_equal(reports[1].code, UNAVAILABLE);
    assert_only_file(dir, old, "training.safetensors");
}

TEST(elements_that_no_rank_writes_are_a_bug) {
    struct job job = {.count = 3, .fault = PIECE_LEFT_OUT, .victim = 2};
    char *old = one_process("cpu", 4), *dir = failed(&job, BUG, "bytes of data were written instead of");
    for (int r = 0; r < 3; r++) assert_int_equal(reports[r].code, BUG);
    assert_only_file(dir, old, "training.safetensors");
}

TEST(every_rank_refuses_a_short_file) {
    SCOPED(struct arena, arena_release) arena = {0};
    char *dir = one_process("cpu", 4), *path = path_join(&arena, dir, "training.safetensors");
    struct job job = {.device = "cpu", .dir = dir, .count = 2, .step = 4, .seed = 1, .loads = true, .victim = -1};
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(truncate(path, info.st_size - 1), 0);
    run(&job);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(reports[r].code, DATAERR);
        assert_memory_equal(reports[r].text, path, strlen(path));
    }
}

static int map_reports(void **state) {
    (void)state;
    reports = mmap(NULL, MOST_RANKS * sizeof *reports, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return reports == MAP_FAILED;
}

int main(void) {
    return unit_run(map_reports, NULL);
}
