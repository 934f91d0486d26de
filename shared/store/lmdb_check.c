// The structs are LMDB's format on disk, version 1 of its data, on a machine of 64 bits with the little end first. A
// file of another version is left to LMDB.
//
// A file has two heads, of which each transaction writes the older one. A head has the roots of two trees: that of the
// free pages and that of the names, whose leaves have the roots of the named databases.
#include "shared/store/lmdb_check.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"

enum { FULL_DISK_BYTES = 64 << 10 }; // with fewer free bytes an I/O error means a full disk
enum { PAGE_BRANCH = 0x01, PAGE_LEAF = 0x02, PAGE_OVERFLOW = 0x04, PAGE_META = 0x08, PAGE_KINDS = 0x6f };
enum { NODE_BIG = 0x01, NODE_DB = 0x02, MAX_KEY = 511, MAX_DEPTH = 32 };
enum { MIN_PAGE_SIZE = 512, MAX_PAGE_SIZE = 1 << 16 };
enum { DB_FREE, DB_NAMES, DB_COUNT };
enum { FREE_FLAGS = 0x08, FREE_FLAGS_MASK = 0x3fff }; // MDB_INTEGERKEY; the flags above are the environment's
static const uint32_t lmdb_magic = 0xBEEFC0DE, lmdb_data_version = 1;
static const uint64_t page_none = UINT64_MAX;

struct lmdb_page_header {
    uint64_t number;
    uint16_t pad, flags;
    uint16_t lower, upper; // of a tree's page: where the offsets of the nodes end, and where the nodes begin
};
struct lmdb_db_record {
    uint32_t pad; // of the first database: the size of a page
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};
struct lmdb_head {
    struct lmdb_page_header page;
    uint32_t magic, version;
    uint64_t address, map_size;
    struct lmdb_db_record dbs[DB_COUNT];
    uint64_t last_page, transaction;
};
struct lmdb_node {
    uint16_t low, high; // of a leaf: the size of the value; of a branch: the child's number, with `flags` above
    uint16_t flags, key_size;
};
static_assert(sizeof(struct lmdb_page_header) == 16, "LMDB's format");
static_assert(sizeof(struct lmdb_db_record) == 48 && sizeof(struct lmdb_node) == 8, "LMDB's format");
static_assert(offsetof(struct lmdb_head, last_page) == 136 && sizeof(struct lmdb_head) == 152, "LMDB's format");

struct lmdb_checker {
    const char *path;
    int fd;
    size_t page_size;
    uint64_t last_page, seen; // seen: pages of trees
    uint8_t *pages;           // one for each level of the trees
};

// ---- errors ----

status lmdb_fail_damaged(const char *path, const char *format, ...) {
    char what[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return fail(DATAERR, "%s: the file is damaged (%s): remove it, and what it had is computed again%s", path, what,
                strcmp(path_base_name(path), "groups.lmdb") ? "" : "; of a run without optim remove ledger.lmdb, too");
}

status lmdb_fail(const char *path, int code, const char *what) {
    struct statvfs disk;
    bool full = code == ENOSPC || code == EDQUOT;
    if (code == EIO) {
        struct arena arena = {0};
        const char *directory = path_parent(&arena, path); // the file itself may not exist yet
        if (statvfs(directory, &disk) == 0) full = (unsigned long long)disk.f_bavail * disk.f_frsize < FULL_DISK_BYTES;
        arena_release(&arena);
    }
    if (full) return fail(UNAVAILABLE, "%s: %s: no space left on the disk", path, what);
    if (code == MDB_INVALID || code == MDB_VERSION_MISMATCH)
        return lmdb_fail_damaged(path, "it is no LMDB file of version %d", MDB_VERSION_MAJOR);
    if (code == MDB_CORRUPTED || code == MDB_PAGE_NOTFOUND) return lmdb_fail_damaged(path, "%s", what);
    if (code == MDB_BAD_VALSIZE) return fail(BUG, "%s: %s: LMDB cannot store a key or value of this size", path, what);
    struct rlimit limit;
    if (code == ENOMEM && !getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY)
        return fail(UNAVAILABLE,
                    "%s: %s: the address space is limited to %llu MB (ulimit -v), but a process maps up to 2 TB of "
                    "files: type ulimit -v unlimited",
                    path, what, (unsigned long long)limit.rlim_cur >> 20);
    return fail(UNAVAILABLE, "%s: %s: %s", path, what, mdb_strerror(code));
}

static status lmdb_check_fail(const char *path, uint64_t page) {
    return lmdb_fail_damaged(path, "page %llu", (unsigned long long)page);
}

// ---- the heads ----

// Whether the head at `index` (0, 1) is sound, as far as it can be said without the rest.
static bool lmdb_check_head_is_sound(const struct lmdb_head *head, uint64_t index) {
    const size_t size = head->dbs[DB_FREE].pad;
    if (!(head->page.flags & PAGE_META) || head->magic != lmdb_magic || head->page.number != index) return false;
    if (head->version != lmdb_data_version) return true; // LMDB says what it thinks of it
    if (size < MIN_PAGE_SIZE || size > MAX_PAGE_SIZE || (size & (size - 1))) return false;
    if (head->last_page < 1 || head->last_page >= (UINT64_C(1) << 47) / size) return false;
    return !head->transaction || (head->transaction & 1) == index;
}

status lmdb_check_head(const char *path) {
    enum { TRIES = 5, PAUSE_NS = 10000000 };
    for (int i = 0;; i++) { // another process may be writing a head at this moment
        struct lmdb_head heads[2] = {0};
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) return errno == ENOENT ? OK : fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
        bool read = fd_pread_all(fd, &heads[0], sizeof heads[0], 0);
        const size_t size = heads[0].dbs[DB_FREE].pad;
        if (read && size >= MIN_PAGE_SIZE && size <= MAX_PAGE_SIZE) // or the first head alone is damaged enough
            read = fd_pread_all(fd, &heads[1], sizeof heads[1], (off_t)size);
        const int error = errno;
        close(fd);
        if (!read && error != ENODATA) return fail(UNAVAILABLE, "%s: %s", path, strerror(error));
        // A file that is too short for the heads is left to LMDB.
        if (!read || (lmdb_check_head_is_sound(&heads[0], 0) && lmdb_check_head_is_sound(&heads[1], 1))) return OK;
        if (i == TRIES) return lmdb_check_fail(path, lmdb_check_head_is_sound(&heads[0], 0));
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

// ---- the trees ----

static bool lmdb_check_read(const struct lmdb_checker *checker, void *out, size_t size, uint64_t page) {
    return fd_pread_all(checker->fd, out, size, (off_t)(page * checker->page_size));
}

// Whether the numbers of free pages are in the file and fall.
static bool lmdb_check_free_list(const struct lmdb_checker *checker, const uint8_t *value, uint64_t size) {
    uint64_t count, page, before = checker->last_page + 1;
    if (size < sizeof count || size % sizeof count) return false;
    memcpy(&count, value, sizeof count);
    if (count > size / sizeof count - 1) return false;
    for (uint64_t i = 1; i <= count; i++) {
        memcpy(&page, value + i * sizeof page, sizeof page);
        if (page < 2 || page >= before) return false;
        before = page;
    }
    return true;
}

// Checks the pages of a value that has its own.
static status lmdb_check_overflow(const struct lmdb_checker *checker, uint64_t first, uint64_t bytes, bool free_list) {
    struct {
        uint64_t number;
        uint16_t pad, flags;
        uint32_t pages;
    } header;
    uint8_t *value = NULL, last;
    const uint64_t end = checker->last_page + 1;
    static_assert(sizeof header == sizeof(struct lmdb_page_header), "LMDB's format");
    if (first < 2 || first >= end || !lmdb_check_read(checker, &header, sizeof header, first) ||
        header.number != first || (header.flags & PAGE_KINDS) != PAGE_OVERFLOW ||
        header.pages < (sizeof header - 1 + bytes) / checker->page_size + 1 || header.pages > end - first ||
        !fd_pread_all(checker->fd, &last, 1, (off_t)((first + header.pages) * checker->page_size - 1)))
        return lmdb_check_fail(checker->path, first);
    if (!free_list) return OK;
    TRY(NEW_LARGE(&value, bytes));
    const bool sound = fd_pread_all(checker->fd, value, bytes, (off_t)(first * checker->page_size + sizeof header)) &&
                       lmdb_check_free_list(checker, value, bytes);
    free(value);
    return sound ? OK : lmdb_check_fail(checker->path, first);
}

static status lmdb_check_db(struct lmdb_checker *checker, const struct lmdb_db_record *db, int kind, int level,
                            uint64_t page);

// Checks a page of a tree, and what is below it. `height`: 1 for a leaf; kind: DB_FREE, DB_NAMES or DB_COUNT.
static status lmdb_check_page(struct lmdb_checker *checker, uint64_t number, int kind, int level, int height) {
    struct lmdb_page_header header;
    const size_t size = checker->page_size;
    if (level >= MAX_DEPTH || number < 2 || number > checker->last_page || ++checker->seen > checker->last_page)
        return lmdb_check_fail(checker->path, number);
    uint8_t *page = checker->pages + (size_t)level * size;
    if (!lmdb_check_read(checker, page, size, number)) return lmdb_check_fail(checker->path, number);
    memcpy(&header, page, sizeof header);
    const bool leaf = height == 1;
    if (header.number != number || (header.flags & PAGE_KINDS) != (leaf ? PAGE_LEAF : PAGE_BRANCH) ||
        header.lower < sizeof header || header.lower % 2 || header.upper < header.lower || header.upper > size)
        return lmdb_check_fail(checker->path, number);
    const size_t count = (header.lower - sizeof header) / 2;
    size_t used = 0; // by the nodes
    if (!count) return lmdb_check_fail(checker->path, number);
    for (size_t i = 0; i < count; i++) {
        struct lmdb_node node;
        uint16_t at;
        memcpy(&at, page + sizeof header + 2 * i, sizeof at);
        if (at < header.upper || at % 2 || at + sizeof node > size) return lmdb_check_fail(checker->path, number);
        memcpy(&node, page + at, sizeof node);
        const uint64_t low = node.low | (uint32_t)node.high << 16, start = at + sizeof node + node.key_size;
        const bool big = leaf && node.flags & NODE_BIG, db = leaf && node.flags & NODE_DB;
        const uint64_t inside = !leaf ? 0 : big ? sizeof(uint64_t) : low;
        used += (sizeof node + node.key_size + inside + 1) / 2 * 2;
        if (node.key_size > MAX_KEY || (leaf && !node.key_size) || start + inside > size || used > size - header.upper)
            return lmdb_check_fail(checker->path, number);
        if (!leaf) {
            TRY(lmdb_check_page(checker, low | (uint64_t)node.flags << 32, kind, level + 1, height - 1));
            continue;
        }
        const uint8_t *value = page + start;
        uint64_t first;
        struct lmdb_db_record record;
        const bool own = db == (kind == DB_NAMES) && !(node.flags & ~(NODE_BIG | NODE_DB)) && !(big && db);
        if (!own || (kind == DB_FREE && node.key_size != sizeof(uint64_t)) || (db && low != sizeof record))
            return lmdb_check_fail(checker->path, number);
        if (db) {
            memcpy(&record, value, sizeof record);
            TRY(lmdb_check_db(checker, &record, DB_COUNT, level + 1, number));
        } else if (big) {
            memcpy(&first, value, sizeof first);
            TRY(lmdb_check_overflow(checker, first, low, kind == DB_FREE));
        } else if (kind == DB_FREE && !lmdb_check_free_list(checker, value, low)) {
            return lmdb_check_fail(checker->path, number);
        }
    }
    return OK;
}

// Checks a database, whose record is on `page`.
static status lmdb_check_db(struct lmdb_checker *checker, const struct lmdb_db_record *db, int kind, int level,
                            uint64_t page) {
    const bool empty = db->root == page_none;
    const bool flags_sound = kind == DB_FREE ? (db->flags & FREE_FLAGS_MASK) == FREE_FLAGS : !db->flags;
    if (!flags_sound || db->depth > MAX_DEPTH || empty != !db->depth || empty != !db->entries)
        return lmdb_check_fail(checker->path, page);
    return empty ? OK : lmdb_check_page(checker, db->root, kind, level, db->depth);
}

status lmdb_check_trees(MDB_env *mdb, const char *path) {
    struct lmdb_checker checker = {.path = path, .fd = -1};
    struct lmdb_head head;
    MDB_stat stat;
    MDB_txn *txn = NULL; // while it is open, no process writes over the pages that it can see
    const int code = mdb_txn_begin(mdb, NULL, MDB_RDONLY, &txn);
    status result = OK;
    if (code) return lmdb_fail(path, code, "cannot begin a transaction");
    mdb_env_stat(mdb, &stat);
    checker.page_size = stat.ms_psize;
    checker.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (checker.fd < 0) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    mem_new(&checker.pages, MAX_DEPTH, checker.page_size);
    const uint64_t transaction = mdb_txn_id(txn);
    if (!lmdb_check_read(&checker, &head, sizeof head, transaction & 1))
        TRY_TO(result, done, lmdb_check_fail(path, transaction & 1));
    if (head.version != lmdb_data_version || head.transaction != transaction) goto done;
    checker.last_page = head.last_page;
    for (int kind = DB_FREE; kind < DB_COUNT && result == OK; kind++)
        result = lmdb_check_db(&checker, &head.dbs[kind], kind, 0, transaction & 1);
done:
    mdb_txn_abort(txn);
    free(checker.pages);
    if (checker.fd >= 0) close(checker.fd);
    return result;
}
