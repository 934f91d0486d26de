// The ledger on LMDB: one record per group. The key is the group's seq as 8 bytes in big-endian order, so that LMDB
// iterates by seq. The states are also held in memory, one byte per group, and always up to date; the records follow
// with the next flush.
#include "shared/store/ledger.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_env.h"

enum { LEDGER_FORMAT = 2, DBI_META = 0, DBI_ENTRIES = 1 };
static const char *const ledger_dbis[] = {"meta", "groups", NULL};
static const int64_t ledger_max_seq = ((int64_t)1 << 40) - 1;
static const double ledger_flush_seconds = 0.05;
static const size_t ledger_max_changes = 1 << 20; // bytes in memory

// The value of the key "meta".
struct ledger_meta {
    int64_t format;
    uint64_t data;
    int64_t groups_per_step;
};

// The fixed part of an entry's value. The strings id, stage and reason follow, each with its NUL.
struct ledger_record {
    int64_t state, step, issues;
    double changed;
};

// A change of an entry in memory. The entry's strings follow as in its value on disk.
struct ledger_change {
    int64_t seq;
    struct ledger_record record; // issues: how many more
    bool keep_id;                // the stored id stays
};

// Records are stored as they are in memory.
static_assert(sizeof(struct ledger_meta) == 24, "the meta record is a format on disk");
static_assert(sizeof(struct ledger_record) == 32, "the entry is a format on disk");
static_assert(LEDGER_STATES <= UINT8_MAX, "a state fits one byte");

// ---- states in memory ----

enum ledger_state ledger_state_of(const struct ledger *ledger, int64_t seq) {
    return seq >= 0 && (size_t)seq < ledger->size ? (enum ledger_state)ledger->states[seq] : LEDGER_NEW;
}

static bool ledger_is_settled(enum ledger_state state) {
    return state >= LEDGER_TRAINED;
}

// Sets the state of the entry's group in memory. Also what ledger_open calls for each entry on the disk. DATAERR when
// the seq is out of range.
static status ledger_set_state(void *context, const struct ledger_entry *entry) {
    struct ledger *ledger = context;
    const int64_t seq = entry->seq;
    const enum ledger_state state = entry->state;
    if (seq < 0 || seq > ledger_max_seq) return lmdb_env_fail_damaged(ledger->env, "an entry is out of range");
    if ((size_t)seq >= ledger->capacity) {
        size_t capacity = ((size_t)seq + 1) * 2;
        RESIZE(&ledger->states, capacity);
        memset(ledger->states + ledger->capacity, LEDGER_NEW, capacity - ledger->capacity);
        ledger->capacity = capacity;
    }
    if ((size_t)seq >= ledger->size) ledger->size = (size_t)seq + 1;
    enum ledger_state before = (enum ledger_state)ledger->states[seq];
    if (before != LEDGER_NEW) ledger->counts[before]--;
    if (state != LEDGER_NEW) ledger->counts[state]++;
    assert(ledger->counts[before] >= 0);
    ledger->states[seq] = (uint8_t)state;
    while (ledger_is_settled(ledger_state_of(ledger, ledger->settled))) ledger->settled++;
    while (ledger_state_of(ledger, ledger->next_unissued) != LEDGER_NEW) ledger->next_unissued++;
    return OK;
}

// ---- entries on disk ----

// *entry points into `value`.
static status ledger_decode(struct lmdb_val value, int64_t seq, struct ledger_entry *entry) {
    struct ledger_record record;
    const char *strings[3];
    if (value.size < sizeof record) return fail(DATAERR, "entry %lld is truncated", (long long)seq);
    memcpy(&record, value.data, sizeof record);
    const char *at = (const char *)value.data + sizeof record, *end = (const char *)value.data + value.size;
    for (int i = 0; i < 3; i++) {
        const char *nul = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!nul) return fail(DATAERR, "entry %lld is truncated", (long long)seq);
        strings[i] = at;
        at = nul + 1;
    }
    if (record.state < LEDGER_NEW || record.state >= LEDGER_STATES)
        return fail(DATAERR, "entry %lld has the unknown state %lld", (long long)seq, (long long)record.state);
    *entry = (struct ledger_entry){.seq = seq,
                                   .state = (enum ledger_state)record.state,
                                   .step = record.step,
                                   .issues = record.issues,
                                   .changed = record.changed,
                                   .id = strings[0],
                                   .stage = strings[1],
                                   .reason = strings[2]};
    return OK;
}

static void ledger_append_strings(struct buf *value, const char *const strings[3]) {
    for (int i = 0; i < 3; i++) {
        const char *string = strings[i] ? strings[i] : "";
        buf_append(value, string, strlen(string) + 1);
    }
}

status ledger_flush(struct ledger *ledger) {
    struct lmdb_txn *txn;
    struct buf value = {0};
    status result;
    if (!ledger->changes.size) return OK;
    do {
        const char *at = ledger->changes.data, *end = at + ledger->changes.size, *strings[3]; // id, stage, reason
        result = lmdb_txn_begin_write(ledger->env, &txn);
        while (at < end && result == OK) { // puts one change into the entry on disk
            struct ledger_change change;
            struct ledger_entry before = {.id = ""};
            struct lmdb_val stored;
            uint8_t number[LMDB_NUMBER_SIZE];
            const struct lmdb_val key = {number, sizeof number};
            memcpy(&change, at, sizeof change);
            at += sizeof change;
            for (int i = 0; i < 3; i++, at += strlen(at) + 1) strings[i] = at;
            lmdb_number_write(number, change.seq);
            result = lmdb_txn_get(txn, DBI_ENTRIES, key, &stored);
            if (result == OK && stored.data && ledger_decode(stored, change.seq, &before) != OK)
                result = lmdb_txn_fail_damaged(txn, fail_text());
            if (result != OK) break;
            change.record.issues += before.issues;
            if (change.keep_id) strings[0] = before.id;
            buf_clear(&value);
            buf_append(&value, &change.record, sizeof change.record);
            ledger_append_strings(&value, strings);
            result = lmdb_txn_put(txn, DBI_ENTRIES, key, (struct lmdb_val){value.data, value.size});
        }
    } while (lmdb_txn_commit(&txn, &result));
    buf_release(&value);
    TRY(result);
    buf_clear(&ledger->changes);
    ledger->settled_on_disk = ledger->settled;
    return OK;
}

status ledger_tick(struct ledger *ledger, double now) {
    if (now - ledger->flushed_at < ledger_flush_seconds) return OK;
    ledger->flushed_at = now;
    return ledger_flush(ledger);
}

// Changes the entry, with one more issue if it is in flight, and the group's state in memory. keep_id: the stored id
// stays.
static status ledger_set_entry(struct ledger *ledger, const struct ledger_entry *entry, bool keep_id) {
    if (entry->seq < 0 || entry->seq > ledger_max_seq)
        return fail(BUG, "the ledger cannot hold group %lld", (long long)entry->seq);
    const struct ledger_change change = {
        .seq = entry->seq,
        .record = {entry->state, entry->step, entry->state == LEDGER_IN_FLIGHT, clock_realtime()},
        .keep_id = keep_id,
    };
    buf_append(&ledger->changes, &change, sizeof change);
    ledger_append_strings(&ledger->changes, (const char *[3]){entry->id, entry->stage, entry->reason});
    TRY(ledger_set_state(ledger, entry));
    return ledger->changes.size > ledger_max_changes ? ledger_flush(ledger) : OK;
}

status ledger_issue(struct ledger *ledger, int64_t seq, const char *id) {
    const struct ledger_entry entry = {.seq = seq, .state = LEDGER_IN_FLIGHT, .step = -1, .id = id};
    return ledger_set_entry(ledger, &entry, false);
}

status ledger_settle(struct ledger *ledger, const struct ledger_entry *entry, bool *newly_settled) {
    bool settles = !ledger_is_settled(ledger_state_of(ledger, entry->seq));
    if (newly_settled) *newly_settled = settles;
    if (!ledger_is_settled(entry->state)) return fail(BUG, "a group cannot be settled with state %d", entry->state);
    return settles ? ledger_set_entry(ledger, entry, entry->id == NULL) : OK;
}

// Forgets all groups from `seq` on. raise: the issue number rises by one. It is written first, in a transaction of its
// own: a process that dies in between has raised it for nothing.
static status ledger_forget(struct ledger *ledger, int64_t seq, bool raise) {
    const int64_t end = (int64_t)ledger->size, number = ledger->issue_number + 1;
    struct lmdb_txn *txn;
    status result;
    TRY(ledger_flush(ledger));
    if (raise) {
        const struct lmdb_val key = {"issue", 5}, value = {&number, sizeof number};
        TRY(lmdb_env_put(ledger->env, DBI_META, key, value));
        ledger->issue_number = number;
    }
    if (seq >= end) return OK;
    do {
        result = lmdb_txn_begin_write(ledger->env, &txn);
        for (int64_t i = seq; result == OK && i < end; i++) {
            uint8_t key[LMDB_NUMBER_SIZE];
            lmdb_number_write(key, i);
            result = lmdb_txn_del(txn, DBI_ENTRIES, (struct lmdb_val){key, sizeof key});
        }
    } while (lmdb_txn_commit(&txn, &result));
    TRY(result);
    for (int64_t i = seq; i < end; i++)
        TRY(ledger_set_state(ledger, &(struct ledger_entry){.seq = i, .state = LEDGER_NEW}));
    ledger->size = (size_t)seq;
    ledger->next_unissued = seq;
    if (ledger->settled > seq) ledger->settled = seq;
    ledger->settled_on_disk = ledger->settled;
    return OK;
}

status ledger_rewind_to(struct ledger *ledger, int64_t seq) {
    if (seq < 0) return fail(DATAERR, "optim's next group is %lld, which is negative", (long long)seq);
    const bool went_back = seq < ledger->settled;
    for (int64_t i = ledger->settled; i < seq; i++) {
        const struct ledger_entry entry = {.seq = i, .state = LEDGER_TRAINED, .step = -1};
        if (!ledger_is_settled(ledger_state_of(ledger, i))) TRY(ledger_set_entry(ledger, &entry, true));
    }
    return ledger_forget(ledger, seq, went_back);
}

// ---- reading ----

status ledger_each_from(struct ledger *ledger, int64_t seq,
                        status (*visit)(void *context, const struct ledger_entry *entry), void *context) {
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor;
    uint8_t first[LMDB_NUMBER_SIZE];
    assert(seq >= 0);
    lmdb_number_write(first, seq);
    TRY(ledger_flush(ledger));
    TRY(lmdb_txn_begin_read(ledger->env, &txn));
    status result = lmdb_cursor_init(&cursor, txn, DBI_ENTRIES);
    if (result == OK) result = lmdb_cursor_seek(&cursor, (struct lmdb_val){first, sizeof first});
    while (result == OK && cursor.key.data) {
        struct ledger_entry entry;
        if (cursor.key.size != LMDB_NUMBER_SIZE)
            result = fail(DATAERR, "a key of %zu bytes", cursor.key.size);
        else
            result = ledger_decode(cursor.value, lmdb_number_read(cursor.key.data), &entry);
        if (result == DATAERR) result = lmdb_env_fail_damaged(ledger->env, fail_text());
        if (result == OK) result = visit(context, &entry);
        if (result == OK) result = lmdb_cursor_next(&cursor);
    }
    lmdb_cursor_release(&cursor);
    lmdb_txn_end(&txn);
    return result == END ? OK : result;
}

status ledger_each(struct ledger *ledger, status (*visit)(void *context, const struct ledger_entry *entry),
                   void *context) {
    return ledger_each_from(ledger, 0, visit, context);
}

// *changed = when an entry was changed, 0 if there is none.
static status ledger_read_changed(struct ledger *ledger, int64_t seq, double *changed) {
    uint8_t number[LMDB_NUMBER_SIZE];
    struct buf value = {0};
    struct ledger_entry entry = {0};
    bool found;
    lmdb_number_write(number, seq);
    status result = lmdb_env_get(ledger->env, DBI_ENTRIES, (struct lmdb_val){number, sizeof number}, &value, &found);
    if (result == OK && found && ledger_decode((struct lmdb_val){value.data, value.size}, seq, &entry) != OK)
        result = lmdb_env_fail_damaged(ledger->env, fail_text());
    *changed = entry.changed;
    buf_release(&value);
    return result;
}

status ledger_refresh(struct ledger *ledger, int64_t *first) {
    double changed = 0;
    // A settled entry is not changed, but removed with all that follow.
    if (ledger->settled > 0) TRY(ledger_read_changed(ledger, ledger->settled - 1, &changed));
    const int64_t from = *first = changed == ledger->read_changed ? ledger->settled : 0;
    for (int64_t seq = from; seq < (int64_t)ledger->size; seq++)
        TRY(ledger_set_state(ledger, &(struct ledger_entry){.seq = seq, .state = LEDGER_NEW}));
    ledger->size = (size_t)from;
    ledger->settled = ledger->next_unissued = from;
    TRY(ledger_each_from(ledger, from, ledger_set_state, ledger));
    ledger->settled_on_disk = ledger->settled;
    return ledger->settled > 0 ? ledger_read_changed(ledger, ledger->settled - 1, &ledger->read_changed) : OK;
}

// ---- opening ----

const char *ledger_path(struct arena *arena, const char *run_dir, const char *store) {
    if (!store || !lmdb_network_file_system(run_dir)) return path_join(arena, run_dir, "ledger.lmdb");
    return arena_printf(arena, "%s/ledger-%016llx.lmdb", store,
                        (unsigned long long)XXH3_64bits(run_dir, strlen(run_dir)));
}

// *same: whether `value` is that of the key in DBI_META.
static status ledger_meta_equals(struct ledger *ledger, struct lmdb_val key, struct lmdb_val value, bool *same) {
    struct buf stored = {0};
    bool found;
    const status result = lmdb_env_get(ledger->env, DBI_META, key, &stored, &found);
    *same = result == OK && stored.size == value.size && !memcmp(stored.data, value.data, value.size);
    buf_release(&stored);
    return result;
}

// The failure for a ledger of another run: names what differs, as far as it is known.
static status ledger_refuse(struct ledger *ledger, const char *path, const struct ledger_meta *stored,
                            const struct ledger_config *config) {
    const struct lmdb_val key = {"data", 4};
    struct buf before = {0}, differences = {0};
    bool found;
    status result = OK;
    if (stored->groups_per_step != config->groups_per_step)
        buf_printf(&differences, "groups_per_step %lld -> %lld", (long long)stored->groups_per_step,
                   (long long)config->groups_per_step);
    TRY_TO(result, done, lmdb_env_get(ledger->env, DBI_META, key, &before, &found));
    // Appends "NAME VALUE -> VALUE" for each line that differs.
    const char *now = before.data && config->described ? config->described : "";
    for (size_t length; *now; now += length + (now[length] != 0)) {
        length = strcspn(now, "\n");
        const size_t name = strcspn(now, " ") + 1; // with the blank
        const char *line = before.data;
        while (*line && strncmp(line, now, name) != 0) line += strcspn(line, "\n") + (strchr(line, '\n') != NULL);
        const size_t size = strcspn(line, "\n");
        if (!*line || (size == length && !memcmp(line, now, size))) continue;
        buf_printf(&differences, "%s%.*s -> %.*s", differences.size ? ", " : "", (int)size, line, (int)(length - name),
                   now + name);
    }
    result = fail(DATAERR,
                  "%s: this run was started with other data or other settings of source%s%s; use another run directory",
                  path, differences.size ? ": " : "", differences.size ? differences.data : "");
done:
    buf_release(&before);
    buf_release(&differences);
    return result;
}

status ledger_open(struct ledger **out, const char *path, const struct ledger_config *config) {
    const struct ledger_meta expected = {LEDGER_FORMAT, config->data, config->groups_per_step};
    const struct lmdb_val key = {"meta", 4}, issue_key = {"issue", 5}, data_key = {"data", 4};
    const struct lmdb_val described = {config->described, config->described ? strlen(config->described) : 0};
    const int64_t now = clock_realtime_ns();
    struct ledger *ledger;
    struct ledger_meta stored = {0};
    struct buf value = {0};
    bool found;
    status result;
    *out = NULL;
    NEW(&ledger, 1);
    TRY_TO(result, done, lmdb_env_open(&ledger->env, path, ledger_dbis, NULL));
    TRY_TO(result, done, lmdb_env_get(ledger->env, DBI_META, key, &value, &found));
    if (!found) {
        const struct lmdb_val meta = {&expected, sizeof expected}, issue = {&now, sizeof now};
        // First the number: a ledger with meta has it.
        TRY_TO(result, done, lmdb_env_put(ledger->env, DBI_META, issue_key, issue));
        TRY_TO(result, done, lmdb_env_put(ledger->env, DBI_META, key, meta));
        stored = expected;
    }
    if (value.size == sizeof stored) memcpy(&stored, value.data, sizeof stored);
    if (stored.format != LEDGER_FORMAT) TRY_TO(result, done, fail(DATAERR, "%s: not a ledger of this version", path));
    if (stored.data != expected.data || stored.groups_per_step != expected.groups_per_step)
        TRY_TO(result, done, ledger_refuse(ledger, path, &stored, config));
    if (described.size) { // a file may have another name than at the last start
        TRY_TO(result, done, ledger_meta_equals(ledger, data_key, described, &found));
        if (!found) TRY_TO(result, done, lmdb_env_put(ledger->env, DBI_META, data_key, described));
    }
    buf_clear(&value);
    TRY_TO(result, done, lmdb_env_get(ledger->env, DBI_META, issue_key, &value, &found));
    if (value.size != sizeof ledger->issue_number)
        TRY_TO(result, done, fail(DATAERR, "%s: not a ledger of this version", path));
    memcpy(&ledger->issue_number, value.data, value.size);
    TRY_TO(result, done, ledger_each(ledger, ledger_set_state, ledger));
    ledger->settled_on_disk = ledger->settled;
    *out = ledger;
    ledger = NULL;
done:
    buf_release(&value);
    ledger_close(&ledger);
    return result;
}

status ledger_open_read_only(struct ledger **out, const char *path) {
    const struct lmdb_options options = {.read_only = true};
    const struct lmdb_val key = {"meta", 4};
    struct ledger *ledger;
    struct ledger_meta stored = {0};
    struct buf value = {0};
    int64_t first;
    bool found;
    status result;
    *out = NULL;
    NEW(&ledger, 1);
    TRY_TO(result, done, lmdb_env_open(&ledger->env, path, ledger_dbis, &options));
    TRY_TO(result, done, lmdb_env_get(ledger->env, DBI_META, key, &value, &found));
    if (value.size == sizeof stored) memcpy(&stored, value.data, sizeof stored);
    if (!found) stored.format = LEDGER_FORMAT; // a source has just created it
    if (stored.format != LEDGER_FORMAT) TRY_TO(result, done, fail(DATAERR, "%s: not a ledger of this version", path));
    TRY_TO(result, done, ledger_refresh(ledger, &first));
    *out = ledger;
    ledger = NULL;
done:
    buf_release(&value);
    ledger_close(&ledger);
    return result;
}

status ledger_set_settings(struct ledger *ledger, uint64_t settings, bool *changed) {
    const struct lmdb_val key = {"settings", 8}, value = {&settings, sizeof settings};
    bool same;
    *changed = false;
    TRY(ledger_meta_equals(ledger, key, value, &same));
    if (same) return OK;
    *changed = ledger->size > 0;
    TRY(ledger_forget(ledger, 0, *changed)); // first: if it is cut short, it is done again
    return lmdb_env_put(ledger->env, DBI_META, key, value);
}

void ledger_close(struct ledger **ledger) {
    if (!*ledger) return;
    if (ledger_flush(*ledger) != OK) log_info("%s", fail_text());
    lmdb_env_close(&(*ledger)->env);
    buf_release(&(*ledger)->changes);
    free((*ledger)->states);
    free(*ledger);
    *ledger = NULL;
}
