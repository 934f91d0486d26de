// One record an order, under its 8 bytes, greatest digit first, so that LMDB's order is theirs. The states stand in
// memory too, one byte an order.
#include "shared/store/ledger.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shared/base/memory.h"
#include "shared/store/database.h"

enum { FORMAT = 1, META = 0, ORDERS = 1 };
static const char *const tables[] = {"meta", "orders", NULL};

struct ledger {
    struct database *database;
    uint8_t *states; // of orders 0..known-1
    size_t known, room;
    int64_t settled, fresh;
    int64_t counts[LEDGER_LEFT + 1];
};

struct meta {
    int64_t format;
    uint64_t data;
    int64_t per_step;
};

// A record's fixed part; the texts id, who and why follow, each with its NUL.
struct record {
    int64_t state, step, issues;
    double changed;
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void make_key(int64_t order, uint8_t key[8]) {
    for (int i = 0; i < 8; i++) key[i] = (uint8_t)((uint64_t)order >> (56 - 8 * i));
}

static int64_t read_key(struct slice key) {
    const uint8_t *data = key.data;
    uint64_t order = 0;
    for (size_t i = 0; i < 8 && i < key.size; i++) order = order << 8 | data[i];
    return (int64_t)order;
}

// ---- the states in memory ----

enum ledger_state ledger_state_of(const struct ledger *ledger, int64_t order) {
    return order >= 0 && (size_t)order < ledger->known ? (enum ledger_state)ledger->states[order] : LEDGER_NEW;
}

static bool settled(enum ledger_state state) {
    return state >= LEDGER_TRAINED;
}

static status set_state(struct ledger *ledger, int64_t order, enum ledger_state state) {
    if ((size_t)order >= ledger->room) {
        size_t room = ((size_t)order + 1) * 2;
        TRY(RESIZE(&ledger->states, room));
        memset(ledger->states + ledger->room, LEDGER_NEW, room - ledger->room);
        ledger->room = room;
    }
    if ((size_t)order >= ledger->known) ledger->known = (size_t)order + 1;
    enum ledger_state before = (enum ledger_state)ledger->states[order];
    if (before != LEDGER_NEW) ledger->counts[before]--;
    if (state != LEDGER_NEW) ledger->counts[state]++;
    ledger->states[order] = (uint8_t)state;
    while (settled(ledger_state_of(ledger, ledger->settled))) ledger->settled++;
    if (state != LEDGER_NEW && order >= ledger->fresh) ledger->fresh = order + 1;
    return OK;
}

int64_t ledger_settled(const struct ledger *ledger) {
    return ledger->settled;
}

int64_t ledger_fresh(const struct ledger *ledger) {
    return ledger->fresh;
}

int64_t ledger_flying(const struct ledger *ledger) {
    return ledger->counts[LEDGER_FLYING];
}

int64_t ledger_count(const struct ledger *ledger, enum ledger_state state) {
    return ledger->counts[state];
}

// ---- records ----

static status encode(const struct ledger_entry *entry, struct buf *out) {
    const struct record record = {
        .state = entry->state, .step = entry->step, .issues = entry->issues, .changed = entry->changed};
    const char *texts[3] = {entry->id, entry->who, entry->why};
    TRY(buf_append(out, &record, sizeof record));
    for (int i = 0; i < 3; i++) TRY(buf_append(out, texts[i] ? texts[i] : "", texts[i] ? strlen(texts[i]) + 1 : 1));
    return OK;
}

static status decode(struct slice value, int64_t order, struct ledger_entry *entry) {
    struct record record;
    const char *texts[3];
    if (value.size < sizeof record) return fail(DATAERR, "the ledger's entry %lld is cut off", (long long)order);
    memcpy(&record, value.data, sizeof record);
    const char *at = (const char *)value.data + sizeof record, *end = (const char *)value.data + value.size;
    for (int i = 0; i < 3; i++) {
        const char *stop = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        if (!stop) return fail(DATAERR, "the ledger's entry %lld is cut off", (long long)order);
        texts[i] = at;
        at = stop + 1;
    }
    if (record.state < LEDGER_NEW || record.state > LEDGER_LEFT)
        return fail(DATAERR, "the ledger's entry %lld has no state that there is", (long long)order);
    *entry = (struct ledger_entry){.order = order,
                                   .state = (enum ledger_state)record.state,
                                   .step = record.step,
                                   .issues = record.issues,
                                   .changed = record.changed,
                                   .id = texts[0],
                                   .who = texts[1],
                                   .why = texts[2]};
    return OK;
}

struct update {
    struct ledger_entry entry;
    bool keep_id; // the entry's id is the one that stands there
};

static status write_update(struct transaction *transaction, void *context) {
    const struct update *update = context;
    struct ledger_entry entry = update->entry, before = {.id = ""};
    uint8_t key[8];
    struct slice old, name = {key, sizeof key};
    struct buf value = {0};
    make_key(entry.order, key);
    TRY(transaction_get(transaction, ORDERS, name, &old));
    if (old.data) TRY(decode(old, entry.order, &before));
    entry.issues = before.issues + (entry.state == LEDGER_FLYING ? 1 : 0);
    entry.changed = now();
    if (update->keep_id) entry.id = before.id;
    status result = encode(&entry, &value);
    if (result == OK) result = transaction_put(transaction, ORDERS, name, (struct slice){value.data, value.size});
    buf_release(&value);
    return result;
}

static status set_entry(struct ledger *ledger, struct update *update) {
    if (update->entry.order < 0 || update->entry.order >= (int64_t)1 << 40)
        return fail(BUG, "the ledger has no order %lld", (long long)update->entry.order);
    TRY(database_write(ledger->database, write_update, update));
    return set_state(ledger, update->entry.order, update->entry.state);
}

status ledger_issue(struct ledger *ledger, int64_t order, const char *id) {
    struct update update = {.entry = {.order = order, .state = LEDGER_FLYING, .step = -1, .id = id}};
    return set_entry(ledger, &update);
}

status ledger_settle(struct ledger *ledger, const struct ledger_entry *entry, bool *news) {
    bool fresh = !settled(ledger_state_of(ledger, entry->order));
    if (news) *news = fresh;
    if (!settled(entry->state)) return fail(BUG, "state %d settles nothing", entry->state);
    struct update update = {.entry = *entry, .keep_id = entry->id == NULL};
    return fresh ? set_entry(ledger, &update) : OK;
}

static status forget_from(struct transaction *transaction, void *context) {
    const struct { int64_t from, end; } *range = context;
    for (int64_t order = range->from; order < range->end; order++) {
        uint8_t key[8];
        make_key(order, key);
        TRY(transaction_delete(transaction, ORDERS, (struct slice){key, sizeof key}, NULL));
    }
    return OK;
}

status ledger_follow(struct ledger *ledger, int64_t order) {
    struct {
        int64_t from, end;
    } range = {order, (int64_t)ledger->known};
    if (order < 0) return fail(DATAERR, "optim stands at order %lld, which there is not", (long long)order);
    for (int64_t i = ledger->settled; i < order; i++) {
        struct update update = {.entry = {.order = i, .state = LEDGER_TRAINED, .step = -1}, .keep_id = true};
        if (!settled(ledger_state_of(ledger, i))) TRY(set_entry(ledger, &update));
    }
    if (range.from >= range.end) return OK;
    TRY(database_write(ledger->database, forget_from, &range));
    for (int64_t i = order; i < range.end; i++) TRY(set_state(ledger, i, LEDGER_NEW));
    ledger->known = (size_t)order;
    ledger->fresh = order;
    if (ledger->settled > order) ledger->settled = order;
    return OK;
}

// ---- reading ----

struct walk {
    status (*visit)(void *context, const struct ledger_entry *entry);
    void *context;
};

static status visit_record(void *context, struct slice key, struct slice value) {
    const struct walk *walk = context;
    struct ledger_entry entry;
    TRY(decode(value, read_key(key), &entry));
    return walk->visit(walk->context, &entry);
}

status ledger_each(struct ledger *ledger, int64_t first,
                   status (*visit)(void *context, const struct ledger_entry *entry), void *context) {
    struct transaction *transaction;
    uint8_t key[8];
    struct walk walk = {visit, context};
    make_key(first, key);
    TRY(database_read(ledger->database, &transaction));
    status result = transaction_each(transaction, ORDERS, (struct slice){key, sizeof key}, visit_record, &walk);
    transaction_end(&transaction);
    return result;
}

static status load_entry(void *context, const struct ledger_entry *entry) {
    if (entry->order >= (int64_t)1 << 40) return fail(DATAERR, "the ledger has an order that cannot be");
    return set_state(context, entry->order, entry->state);
}

static status check_meta(struct ledger *ledger, const char *path, const struct ledger_plan *plan) {
    const struct meta want = {.format = FORMAT, .data = plan->data, .per_step = plan->per_step};
    const struct slice key = {"meta", 4};
    struct buf value = {0};
    bool found;
    struct meta have = {0};
    status result = database_get(ledger->database, META, key, &value, &found);
    if (result == OK && !found) result = database_put(ledger->database, META, key, (struct slice){&want, sizeof want});
    if (result == OK && found) {
        if (value.size == sizeof have) memcpy(&have, value.data, sizeof have);
        if (have.format != FORMAT) {
            result = fail(DATAERR, "%s: not a ledger of this version", path);
        } else if (have.data != want.data || have.per_step != want.per_step) {
            result = fail(DATAERR,
                          "%s: this run was begun with other data or settings of source; give it another folder", path);
        }
    }
    buf_release(&value);
    return result;
}

status ledger_open(struct ledger **out, const char *path, const struct ledger_plan *plan) {
    struct ledger *ledger;
    struct database_options options = {.lazy = true};
    status result;
    *out = NULL;
    TRY(NEW(&ledger, 1));
    TRY_TO(result, fail, database_open(&ledger->database, path, tables, &options));
    TRY_TO(result, fail, check_meta(ledger, path, plan));
    TRY_TO(result, fail, ledger_each(ledger, 0, load_entry, ledger));
    *out = ledger;
    return OK;
fail:
    ledger_close(&ledger);
    return result;
}

void ledger_close(struct ledger **ledger) {
    if (!*ledger) return;
    database_close(&(*ledger)->database);
    free((*ledger)->states);
    free(*ledger);
    *ledger = NULL;
}
