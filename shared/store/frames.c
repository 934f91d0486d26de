#include "shared/store/frames.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/database.h"

enum { TABLE_FRAMES, TABLE_USED, TABLE_FILES };
static const char *const tables[] = {"frames", "used", "files", NULL};

enum {
    key_bytes = 16,
    pixel_alignment = 64,
    least_record = 4096, // larger than what LMDB keeps inside a page, so that values are aligned
    most_pending = 256,
};
static const char magic[8] = "caravanF";
static const uint32_t version = 1;

// A record: this, then timestamps (a clip's), then zeroes up to `pixels_at`, then the pixels, then zeroes.
struct record_header {
    char magic[8];
    uint32_t version;
    uint32_t video;
    uint32_t count, height, width;
    uint32_t pixels_at;
    double seconds_per_grid;
};

// What is kept about use, by key.
struct use {
    int64_t when; // nanoseconds since 1970
    uint64_t bytes;
};

struct remembered {
    struct file_facts facts;
    uint8_t hash[16];
};

// A small write that can wait for the next large one.
struct pending {
    int table;
    uint8_t key[key_bytes];
    union {
        struct use use;
        struct remembered remembered;
    };
};

struct frames_store {
    struct database *database;
    uint64_t limit;
    bool read_only;
    pthread_mutex_t lock; // of the two below
    struct pending pending[most_pending];
    int pending_count;
};

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

size_t frames_bytes(const struct frames *frames) {
    return (size_t)frames->count * (size_t)frames->height * (size_t)frames->width * 3;
}

static status key_parse(uint8_t out[key_bytes], const char *key) {
    for (int i = 0; i < 2 * key_bytes; i++) {
        char c = key[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return fail(DATAERR, "'%.40s' is no frame key (32 hex digits)", key);
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return key[2 * key_bytes] ? fail(DATAERR, "'%.40s' is no frame key (32 hex digits)", key) : OK;
}

static void key_print(char out[frames_key_size], const uint8_t key[key_bytes]) {
    for (int i = 0; i < key_bytes; i++) {
        out[2 * i] = "0123456789abcdef"[key[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[key[i] & 15];
    }
    out[2 * key_bytes] = 0;
}

static struct slice key_slice(const uint8_t key[key_bytes]) {
    return (struct slice){key, key_bytes};
}

static size_t round_up(size_t size, size_t unit) {
    return (size + unit - 1) / unit * unit;
}

static size_t pixels_at(const struct frames *frames) {
    return round_up(sizeof(struct record_header) + (frames->video ? (size_t)frames->count * sizeof(double) : 0),
                    pixel_alignment);
}

static size_t record_size(const struct frames *frames) {
    size_t size = pixels_at(frames) + frames_bytes(frames);
    return size < least_record ? least_record : size;
}

static void record_write(const struct frames *frames, uint8_t *out) {
    size_t at = pixels_at(frames);
    struct record_header header = {
        .version = version,
        .video = frames->video,
        .count = (uint32_t)frames->count,
        .height = (uint32_t)frames->height,
        .width = (uint32_t)frames->width,
        .pixels_at = (uint32_t)at,
        .seconds_per_grid = frames->video ? frames->seconds_per_grid : 0,
    };
    memcpy(header.magic, magic, sizeof magic);
    memset(out, 0, at);
    memcpy(out, &header, sizeof header);
    if (frames->video) memcpy(out + sizeof header, frames->timestamps, (size_t)frames->count * sizeof(double));
    memcpy(out + at, frames->pixels, frames_bytes(frames));
    size_t end = at + frames_bytes(frames);
    memset(out + end, 0, record_size(frames) - end);
}

status frames_to_record(const struct frames *frames, struct buf *out) {
    size_t size = record_size(frames);
    TRY(buf_reserve(out, size));
    record_write(frames, (uint8_t *)out->data + out->size);
    out->size += size;
    out->data[out->size] = 0;
    return OK;
}

status frames_from_record(struct frames *frames, const void *record, size_t size) {
    enum { most_side = 1 << 16, most_count = 1 << 20 };
    struct record_header header;
    if (size < sizeof header) return fail(DATAERR, "a frames record of %zu bytes is too short", size);
    memcpy(&header, record, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0) return fail(DATAERR, "not a frames record");
    if (header.version != version) {
        return fail(DATAERR, "a frames record of version %u, expected %u", header.version, version);
    }
    if (header.count < 1 || header.count > most_count || header.height < 1 || header.height > most_side ||
        header.width < 1 || header.width > most_side || header.video > 1 || (!header.video && header.count != 1)) {
        return fail(DATAERR, "a frames record with impossible sizes");
    }
    *frames = (struct frames){
        .video = header.video,
        .count = (int)header.count,
        .height = (int)header.height,
        .width = (int)header.width,
        .seconds_per_grid = header.video ? header.seconds_per_grid : NAN,
    };
    if (header.pixels_at != pixels_at(frames) || size != record_size(frames)) {
        return fail(DATAERR, "a frames record of %zu bytes, expected %zu", size, record_size(frames));
    }
    if (header.video) frames->timestamps = (const double *)((const char *)record + sizeof header);
    frames->pixels = (const uint8_t *)record + header.pixels_at;
    return OK;
}

status frames_store_open(struct frames_store **out, const char *folder, uint64_t limit, bool read_only) {
    *out = NULL;
    if (!read_only) TRY(dir_make(folder));
    struct frames_store *store;
    TRY(NEW(&store, 1));
    store->limit = limit;
    store->read_only = read_only;
    pthread_mutex_init(&store->lock, NULL);
    struct arena arena = {0};
    char *path = path_join(&arena, folder, "frames.lmdb");
    struct database_options options = {.read_only = read_only, .lazy = true};
    status result =
        path ? database_open(&store->database, path, tables, &options) : fail(UNAVAILABLE, "memory is short");
    arena_release(&arena);
    *out = store;
    if (result != OK) frames_store_close(out);
    return result;
}

// Inside a write: what was waiting. The lock is held by the caller.
static status write_pending(struct transaction *transaction, void *context) {
    struct frames_store *store = context;
    for (int i = 0; i < store->pending_count; i++) {
        struct pending *p = &store->pending[i];
        if (p->table == TABLE_FILES) {
            TRY(transaction_put(transaction, TABLE_FILES, key_slice(p->key),
                                (struct slice){&p->remembered, sizeof p->remembered}));
            continue;
        }
        struct slice there;
        TRY(transaction_get(transaction, TABLE_USED, key_slice(p->key), &there));
        if (!there.data || there.size != sizeof(struct use)) continue; // evicted meanwhile
        struct use use;
        memcpy(&use, there.data, sizeof use);
        if (p->use.when > use.when) use.when = p->use.when;
        TRY(transaction_put(transaction, TABLE_USED, key_slice(p->key), (struct slice){&use, sizeof use}));
    }
    return OK;
}

// With the lock held.
static status flush(struct frames_store *store) {
    status result = store->pending_count ? database_write(store->database, write_pending, store) : OK;
    store->pending_count = 0;
    return result;
}

// Notes a small write; one for the same key replaces the one that waits.
static status postpone(struct frames_store *store, const struct pending *note) {
    if (store->read_only) return OK;
    pthread_mutex_lock(&store->lock);
    int i = 0;
    while (i < store->pending_count &&
           (store->pending[i].table != note->table || memcmp(store->pending[i].key, note->key, key_bytes) != 0)) {
        i++;
    }
    status result = OK;
    if (i == most_pending) {
        result = flush(store);
        i = 0;
    }
    store->pending[i] = *note;
    if (i == store->pending_count) store->pending_count++;
    pthread_mutex_unlock(&store->lock);
    return result;
}

void frames_store_close(struct frames_store **place) {
    struct frames_store *store = *place;
    if (!store) return;
    if (store->database && !store->read_only) {
        pthread_mutex_lock(&store->lock);
        if (flush(store) != OK) log_info("%s", fail_text());
        pthread_mutex_unlock(&store->lock);
    }
    database_close(&store->database);
    pthread_mutex_destroy(&store->lock);
    free(store);
    *place = NULL;
}

void frames_view_release(struct frames_view *view) {
    transaction_end(&view->snapshot);
    free(view->owned);
    *view = (struct frames_view){0};
}

status frames_store_get(struct frames_store *store, const char *key, struct frames_view *view, bool *found) {
    *view = (struct frames_view){0};
    *found = false;
    struct pending note = {.table = TABLE_USED, .use = {.when = now()}};
    TRY(key_parse(note.key, key));
    TRY(database_read(store->database, &view->snapshot));
    struct slice record;
    status result = transaction_get(view->snapshot, TABLE_FRAMES, key_slice(note.key), &record);
    if (result == OK && record.data) {
        if (frames_from_record(&view->frames, record.data, record.size) == OK) {
            *found = true;
            return postpone(store, &note);
        }
        log_info("frames %s in the store: %s; computing them again", key, fail_text());
    }
    frames_view_release(view);
    return result;
}

struct put_work {
    struct frames_store *store;
    uint8_t key[key_bytes];
    const struct frames *frames;
};

struct census {
    uint64_t total;
    int64_t oldest;
    uint8_t key[key_bytes]; // of the oldest
    uint64_t bytes;
};

static status count_use(void *context, struct slice key, struct slice value) {
    struct census *census = context;
    struct use use;
    if (key.size != key_bytes || value.size != sizeof use) return fail(DATAERR, "the frames store is damaged");
    memcpy(&use, value.data, sizeof use);
    census->total += use.bytes;
    if (use.when < census->oldest) {
        census->oldest = use.when;
        census->bytes = use.bytes;
        memcpy(census->key, key.data, key_bytes);
    }
    return OK;
}

static status make_room(struct transaction *transaction, uint64_t limit, uint64_t needed) {
    for (;;) {
        struct census census = {.oldest = INT64_MAX};
        TRY(transaction_each(transaction, TABLE_USED, (struct slice){0}, count_use, &census));
        if (census.total == 0 || census.total + needed <= limit) return OK;
        TRY(transaction_delete(transaction, TABLE_FRAMES, key_slice(census.key), NULL));
        TRY(transaction_delete(transaction, TABLE_USED, key_slice(census.key), NULL));
    }
}

static status put_frames(struct transaction *transaction, void *context) {
    struct put_work *work = context;
    TRY(write_pending(transaction, work->store));
    struct use use = {now(), record_size(work->frames)};
    struct slice there;
    TRY(transaction_get(transaction, TABLE_FRAMES, key_slice(work->key), &there));
    struct frames known;
    if (!there.data || frames_from_record(&known, there.data, there.size) != OK) {
        if (work->store->limit) TRY(make_room(transaction, work->store->limit, use.bytes));
        void *place;
        TRY(transaction_reserve(transaction, TABLE_FRAMES, key_slice(work->key), use.bytes, &place));
        record_write(work->frames, place);
    }
    return transaction_put(transaction, TABLE_USED, key_slice(work->key), (struct slice){&use, sizeof use});
}

status frames_store_put(struct frames_store *store, const char *key, const struct frames *frames) {
    struct put_work work = {.store = store, .frames = frames};
    TRY(key_parse(work.key, key));
    pthread_mutex_lock(&store->lock);
    status result = database_write(store->database, put_frames, &work);
    if (result == OK) store->pending_count = 0;
    pthread_mutex_unlock(&store->lock);
    return result;
}

status frames_store_put_record(struct frames_store *store, const char *key, const void *record, size_t size) {
    struct frames frames;
    TRY(frames_from_record(&frames, record, size));
    return frames_store_put(store, key, &frames);
}

struct listing {
    struct transaction *transaction;
    status (*visit)(void *, const char *, const struct frames *, uint64_t, double);
    void *context;
};

static status list_one(void *context, struct slice key, struct slice value) {
    struct listing *listing = context;
    struct use use = {0};
    struct slice used;
    struct frames frames;
    char text[frames_key_size];
    if (key.size != key_bytes || frames_from_record(&frames, value.data, value.size) != OK) return OK;
    TRY(transaction_get(listing->transaction, TABLE_USED, key, &used));
    if (used.data && used.size == sizeof use) memcpy(&use, used.data, sizeof use);
    key_print(text, key.data);
    return listing->visit(listing->context, text, &frames, value.size, (double)use.when * 1e-9);
}

status frames_store_each(struct frames_store *store,
                         status (*visit)(void *context, const char *key, const struct frames *frames, uint64_t bytes,
                                         double used),
                         void *context) {
    struct listing listing = {.visit = visit, .context = context};
    TRY(database_read(store->database, &listing.transaction));
    status result = transaction_each(listing.transaction, TABLE_FRAMES, (struct slice){0}, list_one, &listing);
    transaction_end(&listing.transaction);
    return result;
}

struct evict_work {
    uint8_t key[key_bytes];
    bool *found;
};

static status evict_one(struct transaction *transaction, void *context) {
    struct evict_work *work = context;
    TRY(transaction_delete(transaction, TABLE_FRAMES, key_slice(work->key), work->found));
    return transaction_delete(transaction, TABLE_USED, key_slice(work->key), NULL);
}

status frames_store_evict(struct frames_store *store, const char *key, bool *found) {
    struct evict_work work = {.found = found};
    TRY(key_parse(work.key, key));
    return database_write(store->database, evict_one, &work);
}

static void path_key(uint8_t out[key_bytes], const char *path) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(path, strlen(path)));
    memcpy(out, canonical.digest, key_bytes);
}

status frames_store_recall(struct frames_store *store, const char *path, const struct file_facts *facts,
                           uint8_t hash[16], bool *found) {
    uint8_t key[key_bytes];
    path_key(key, path);
    *found = false;
    struct transaction *transaction;
    TRY(database_read(store->database, &transaction));
    struct slice value;
    status result = transaction_get(transaction, TABLE_FILES, key_slice(key), &value);
    struct remembered known;
    if (result == OK && value.data && value.size == sizeof known) {
        memcpy(&known, value.data, sizeof known);
        *found = memcmp(&known.facts, facts, sizeof *facts) == 0;
        if (*found) memcpy(hash, known.hash, sizeof known.hash);
    }
    transaction_end(&transaction);
    return result;
}

status frames_store_remember(struct frames_store *store, const char *path, const struct file_facts *facts,
                             const uint8_t hash[16]) {
    struct pending note = {.table = TABLE_FILES, .remembered.facts = *facts};
    path_key(note.key, path);
    memcpy(note.remembered.hash, hash, 16);
    return postpone(store, &note);
}
