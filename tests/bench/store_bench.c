// What the page of a run costs the run that it shows: what groups.lmdb holds for it, the replicas in a group's `times`,
// and events.jsonl. See store.sh and page.sh.
//   store_bench save DIR < LINES     saves groups with and without what is for the page, in turn: processor time of
//   each store_bench tables STORE         bytes in the file of what is for the page, and of all store_bench events FILE
//   COUNT    processor time of an event
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "shared/store/group_store.h"
#include "shared/store/lmdb_env.h"
#include "tests/bench/usage.h"

static const char *const page_tables[] = {"summaries", "rows", "samples"};
enum { PAGE_TABLES = 3, PAGE_FIRST = 6 }; // the first one's index in the store's list of tables

// ---- the store without what is for the page ----

static bool bench_without;

status __real_lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value);
status __wrap_lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value);
void __real_group_summary_make(const struct group *group, struct group_summary *out);
void __wrap_group_summary_make(const struct group *group, struct group_summary *out);
void __real_group_row_make(const struct group *group, double issued, struct buf *out);
void __wrap_group_row_make(const struct group *group, double issued, struct buf *out);

status __wrap_lmdb_txn_put(struct lmdb_txn *txn, int dbi, struct lmdb_val key, struct lmdb_val value) {
    return bench_without && dbi >= PAGE_FIRST ? OK : __real_lmdb_txn_put(txn, dbi, key, value);
}

void __wrap_group_summary_make(const struct group *group, struct group_summary *out) {
    if (!bench_without) __real_group_summary_make(group, out);
}

void __wrap_group_row_make(const struct group *group, double issued, struct buf *out) {
    if (!bench_without) __real_group_row_make(group, issued, out);
}

// ---- tables ----

// Sums the bytes of the pages of a store's tables: *page of those for the page, *all of all.
static void bench_tables(const char *directory, double *page, double *all) {
    enum { TABLES = 16 };
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi main_table, table;
    MDB_cursor *cursor;
    MDB_val name, value;
    MDB_stat stat;
    char path[4096];
    snprintf(path, sizeof path, "%s/groups.lmdb", directory);
    *page = *all = 0;
    if (mdb_env_create(&env) || mdb_env_set_maxdbs(env, TABLES) ||
        mdb_env_open(env, path, MDB_RDONLY | MDB_NOSUBDIR, 0) || mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) ||
        mdb_dbi_open(txn, NULL, 0, &main_table) || mdb_cursor_open(txn, main_table, &cursor)) {
        log_info("%s: cannot be opened", path);
        exit(1);
    }
    while (!mdb_cursor_get(cursor, &name, &value, MDB_NEXT)) {
        char text[64];
        snprintf(text, sizeof text, "%.*s", (int)name.mv_size, (const char *)name.mv_data);
        if (mdb_dbi_open(txn, text, 0, &table) || mdb_stat(txn, table, &stat)) continue;
        const double bytes =
            (double)((stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages) * stat.ms_psize);
        *all += bytes;
        for (int i = 0; i < PAGE_TABLES; i++) *page += strcmp(text, page_tables[i]) ? 0 : bytes;
    }
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    mdb_env_close(env);
}

// ---- saving ----

struct bench_groups {
    struct group **list;
    size_t count;
};

static void bench_read(struct bench_groups *groups) {
    struct line_reader lines = {.fd = 0};
    const char *line;
    size_t size;
    while (line_reader_next(&lines, -1, &line, &size) == OK && line) {
        GROW(&groups->list, groups->count);
        if (group_from_json(&groups->list[groups->count++], line, size) != OK) {
            log_info("line %zu: %s", groups->count, fail_text());
            exit(1);
        }
    }
    line_reader_release(&lines);
}

// Sets the replica of every time to `replica`.
static void bench_set_replicas(const struct bench_groups *groups, int64_t replica) {
    for (size_t i = 0; i < groups->count; i++)
        for (size_t k = 0; k < groups->list[i]->times.count; k++) groups->list[i]->times.data[k].replica = replica;
}

// Saves the groups, as many at a time as a step has, into a new store. *seconds: processor time.
static status bench_save(const struct bench_groups *groups, const char *directory, bool without, double *seconds) {
    enum { AT_ONCE = 4 };
    struct group_store *store;
    status result = OK;
    bench_set_replicas(groups, without ? 0 : 1);
    bench_without = without;
    TRY(dir_remove(directory));
    TRY(dir_make(directory));
    TRY(group_store_open(&store, directory, false));
    const double begin = bench_processor_seconds();
    for (size_t i = 0; i < groups->count && result == OK; i += AT_ONCE) {
        struct group_record records[AT_ONCE] = {0};
        size_t count = 0;
        for (; count < AT_ONCE && i + count < groups->count; count++)
            records[count] = (struct group_record){.group = groups->list[i + count], .section = -1};
        result = group_store_save_all(store, records, count);
    }
    *seconds = bench_processor_seconds() - begin;
    group_store_close(&store);
    bench_without = false;
    return result;
}

static int bench_compare(const void *a, const void *b) {
    const double one = *(const double *)a, two = *(const double *)b;
    return (one > two) - (one < two);
}

static status bench_save_in_turn(const char *directory) {
    enum { ROUNDS = 15 };
    struct bench_groups groups = {0};
    double seconds[2][ROUNDS], difference[ROUNDS], page[2], all[2];
    char path[2][4096];
    bench_read(&groups);
    for (int without = 0; without < 2; without++)
        snprintf(path[without], sizeof path[without], "%s/%s", directory, without ? "without" : "with");
    for (int round = 0; round < ROUNDS; round++) {
        for (int turn = 0; turn < 2; turn++) {
            const int without = (round + turn) % 2;
            TRY(bench_save(&groups, path[without], without, &seconds[without][round]));
        }
        difference[round] = seconds[0][round] - seconds[1][round];
    }
    for (int without = 0; without < 2; without++) {
        bench_tables(path[without], &page[without], &all[without]);
        qsort(seconds[without], ROUNDS, sizeof *seconds[without], bench_compare);
    }
    qsort(difference, ROUNDS, sizeof *difference, bench_compare);
    if (!groups.count || page[1] > PAGE_TABLES * 4096.0 || page[0] <= page[1]) {
        log_info("the tables for the page are not those that were left out");
        exit(1);
    }
    const double count = (double)groups.count;
    printf("%.0f %.2f %.2f %.1f %.1f\n", count, 1e6 * seconds[0][ROUNDS / 2] / count,
           1e6 * difference[ROUNDS / 2] / count, all[0] / count, (all[0] - all[1]) / count);
    for (size_t i = 0; i < groups.count; i++) group_free(&groups.list[i]);
    free(groups.list);
    return OK;
}

// ---- events ----

static status bench_events(const char *path, int count) {
    static const char line[] = "{\"time\": 1764000300.125, \"kind\": \"restarted\", \"name\": \"rollout-2\", \"text\": "
                               "\"rollout-2 was killed by signal 9; it is started again\"}\n";
    struct append_queue events = {.path = mem_strdup(path)};
    const double begin = bench_processor_seconds();
    for (int i = 0; i < count; i++) TRY(append_queue_add(&events, line, sizeof line - 1));
    printf("%.2f\n", 1e6 * (bench_processor_seconds() - begin) / count);
    return append_queue_release(&events);
}

int main(int argc, char **argv) {
    status result = USAGE;
    double page, all;
    log_open("store_bench");
    if (argc == 3 && !strcmp(argv[1], "save")) {
        result = bench_save_in_turn(argv[2]);
    } else if (argc == 3 && !strcmp(argv[1], "tables")) {
        bench_tables(argv[2], &page, &all);
        printf("%.0f %.0f\n", page, all);
        result = OK;
    } else if (argc == 4 && !strcmp(argv[1], "events")) {
        result = bench_events(argv[2], atoi(argv[3]));
    }
    if (result != OK) log_info("%s", result == USAGE ? "save DIR | tables STORE | events FILE COUNT" : fail_text());
    return result == OK ? 0 : 1;
}
