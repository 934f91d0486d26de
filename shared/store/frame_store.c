#include "shared/store/frame_store.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_env.h"

enum { TABLE_FRAMES, TABLE_USED, TABLE_FILES };
static const char *const dbis[] = {"frames", "used", "files", NULL};

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
    struct file_stamp facts;
    uint8_t hash[16];
};

// A small write that can wait for the next large one.
struct pending {
    int dbi;
    uint8_t key[key_bytes];
    union {
        struct use use;
        struct remembered remembered;
    };
};

struct frame_store {
    struct lmdb_env *env;
    uint64_t limit;
    bool read_only;
    pthread_mutex_t lock; // of the two below
    struct pending pending[most_pending];
    int pending_count;
};

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

static void key_print(char out[frame_key_size], const uint8_t key[key_bytes]) {
    for (int i = 0; i < key_bytes; i++) {
        out[2 * i] = "0123456789abcdef"[key[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[key[i] & 15];
    }
    out[2 * key_bytes] = 0;
}

static struct lmdb_val key_slice(const uint8_t key[key_bytes]) {
    return (struct lmdb_val){key, key_bytes};
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

status frame_store_open(struct frame_store **out, const char *folder, uint64_t limit, bool read_only) {
    *out = NULL;
    if (!read_only) TRY(dir_make(folder));
    struct frame_store *store;
    TRY(NEW(&store, 1));
    store->limit = limit;
    store->read_only = read_only;
    pthread_mutex_init(&store->lock, NULL);
    struct arena arena = {0};
    char *path = path_join(&arena, folder, "frames.lmdb");
    struct lmdb_options options = {.read_only = read_only, .lazy = true};
    status result = path ? lmdb_env_open(&store->env, path, dbis, &options) : fail(UNAVAILABLE, "memory is short");
    arena_release(&arena);
    *out = store;
    if (result != OK) frame_store_close(out);
    return result;
}

// Inside a write: what was waiting. The lock is held by the caller.
static status write_pending(struct lmdb_txn *txn, void *context) {
    struct frame_store *store = context;
    for (int i = 0; i < store->pending_count; i++) {
        struct pending *p = &store->pending[i];
        if (p->dbi == TABLE_FILES) {
            TRY(lmdb_txn_put(txn, TABLE_FILES, key_slice(p->key),
                             (struct lmdb_val){&p->remembered, sizeof p->remembered}));
            continue;
        }
        struct lmdb_val there;
        TRY(lmdb_txn_get(txn, TABLE_USED, key_slice(p->key), &there));
        if (!there.data || there.size != sizeof(struct use)) continue; // evicted meanwhile
        struct use use;
        memcpy(&use, there.data, sizeof use);
        if (p->use.when > use.when) use.when = p->use.when;
        TRY(lmdb_txn_put(txn, TABLE_USED, key_slice(p->key), (struct lmdb_val){&use, sizeof use}));
    }
    return OK;
}

// With the lock held.
static status flush(struct frame_store *store) {
    status result = store->pending_count ? lmdb_env_write(store->env, write_pending, store) : OK;
    store->pending_count = 0;
    return result;
}

// Notes a small write; one for the same key replaces the one that waits.
static status postpone(struct frame_store *store, const struct pending *note) {
    if (store->read_only) return OK;
    pthread_mutex_lock(&store->lock);
    int i = 0;
    while (i < store->pending_count &&
           (store->pending[i].dbi != note->dbi || memcmp(store->pending[i].key, note->key, key_bytes) != 0)) {
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

void frame_store_close(struct frame_store **place) {
    struct frame_store *store = *place;
    if (!store) return;
    if (store->env && !store->read_only) {
        pthread_mutex_lock(&store->lock);
        if (flush(store) != OK) log_info("%s", fail_text());
        pthread_mutex_unlock(&store->lock);
    }
    lmdb_env_close(&store->env);
    pthread_mutex_destroy(&store->lock);
    free(store);
    *place = NULL;
}

void frames_view_release(struct frames_view *view) {
    lmdb_txn_end(&view->snapshot);
    free(view->owned);
    *view = (struct frames_view){0};
}

status frame_store_get(struct frame_store *store, const char *key, struct frames_view *view, bool *found) {
    *view = (struct frames_view){0};
    *found = false;
    struct pending note = {.dbi = TABLE_USED, .use = {.when = clock_realtime_ns()}};
    TRY(key_parse(note.key, key));
    TRY(lmdb_txn_begin_read(store->env, &view->snapshot));
    struct lmdb_val record;
    status result = lmdb_txn_get(view->snapshot, TABLE_FRAMES, key_slice(note.key), &record);
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
    struct frame_store *store;
    uint8_t key[key_bytes];
    const struct frames *frames;
};

struct census {
    uint64_t total;
    int64_t oldest;
    uint8_t key[key_bytes]; // of the oldest
    uint64_t bytes;
};

static status count_use(void *context, struct lmdb_val key, struct lmdb_val value) {
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

static status make_room(struct lmdb_txn *txn, uint64_t limit, uint64_t needed) {
    for (;;) {
        struct census census = {.oldest = INT64_MAX};
        TRY(lmdb_txn_each(txn, TABLE_USED, (struct lmdb_val){0}, count_use, &census));
        if (census.total == 0 || census.total + needed <= limit) return OK;
        TRY(lmdb_txn_del(txn, TABLE_FRAMES, key_slice(census.key), NULL));
        TRY(lmdb_txn_del(txn, TABLE_USED, key_slice(census.key), NULL));
    }
}

static status put_frames(struct lmdb_txn *txn, void *context) {
    struct put_work *work = context;
    TRY(write_pending(txn, work->store));
    struct use use = {clock_realtime_ns(), record_size(work->frames)};
    struct lmdb_val there;
    TRY(lmdb_txn_get(txn, TABLE_FRAMES, key_slice(work->key), &there));
    struct frames known;
    if (!there.data || frames_from_record(&known, there.data, there.size) != OK) {
        if (work->store->limit) TRY(make_room(txn, work->store->limit, use.bytes));
        void *place;
        TRY(lmdb_txn_reserve(txn, TABLE_FRAMES, key_slice(work->key), use.bytes, &place));
        record_write(work->frames, place);
    }
    return lmdb_txn_put(txn, TABLE_USED, key_slice(work->key), (struct lmdb_val){&use, sizeof use});
}

status frame_store_put(struct frame_store *store, const char *key, const struct frames *frames) {
    struct put_work work = {.store = store, .frames = frames};
    TRY(key_parse(work.key, key));
    pthread_mutex_lock(&store->lock);
    status result = lmdb_env_write(store->env, put_frames, &work);
    if (result == OK) store->pending_count = 0;
    pthread_mutex_unlock(&store->lock);
    return result;
}

status frame_store_put_record(struct frame_store *store, const char *key, const void *record, size_t size) {
    struct frames frames;
    TRY(frames_from_record(&frames, record, size));
    return frame_store_put(store, key, &frames);
}

struct listing {
    struct lmdb_txn *txn;
    status (*visit)(void *, const char *, const struct frames *, uint64_t, double);
    void *context;
};

static status list_one(void *context, struct lmdb_val key, struct lmdb_val value) {
    struct listing *listing = context;
    struct use use = {0};
    struct lmdb_val used;
    struct frames frames;
    char text[frame_key_size];
    if (key.size != key_bytes || frames_from_record(&frames, value.data, value.size) != OK) return OK;
    TRY(lmdb_txn_get(listing->txn, TABLE_USED, key, &used));
    if (used.data && used.size == sizeof use) memcpy(&use, used.data, sizeof use);
    key_print(text, key.data);
    return listing->visit(listing->context, text, &frames, value.size, (double)use.when * 1e-9);
}

status frame_store_each(struct frame_store *store,
                        status (*visit)(void *context, const char *key, const struct frames *frames, uint64_t bytes,
                                        double used),
                        void *context) {
    struct listing listing = {.visit = visit, .context = context};
    TRY(lmdb_txn_begin_read(store->env, &listing.txn));
    status result = lmdb_txn_each(listing.txn, TABLE_FRAMES, (struct lmdb_val){0}, list_one, &listing);
    lmdb_txn_end(&listing.txn);
    return result;
}

struct evict_work {
    uint8_t key[key_bytes];
    bool *found;
};

static status evict_one(struct lmdb_txn *txn, void *context) {
    struct evict_work *work = context;
    TRY(lmdb_txn_del(txn, TABLE_FRAMES, key_slice(work->key), work->found));
    return lmdb_txn_del(txn, TABLE_USED, key_slice(work->key), NULL);
}

status frame_store_evict(struct frame_store *store, const char *key, bool *found) {
    struct evict_work work = {.found = found};
    TRY(key_parse(work.key, key));
    return lmdb_env_write(store->env, evict_one, &work);
}

static void path_key(uint8_t out[key_bytes], const char *path) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(path, strlen(path)));
    memcpy(out, canonical.digest, key_bytes);
}

status frame_store_recall_hash(struct frame_store *store, const char *path, const struct file_stamp *facts,
                               uint8_t hash[16], bool *found) {
    uint8_t key[key_bytes];
    path_key(key, path);
    *found = false;
    struct lmdb_txn *txn;
    TRY(lmdb_txn_begin_read(store->env, &txn));
    struct lmdb_val value;
    status result = lmdb_txn_get(txn, TABLE_FILES, key_slice(key), &value);
    struct remembered known;
    if (result == OK && value.data && value.size == sizeof known) {
        memcpy(&known, value.data, sizeof known);
        *found = memcmp(&known.facts, facts, sizeof *facts) == 0;
        if (*found) memcpy(hash, known.hash, sizeof known.hash);
    }
    lmdb_txn_end(&txn);
    return result;
}

status frame_store_remember_hash(struct frame_store *store, const char *path, const struct file_stamp *facts,
                                 const uint8_t hash[16]) {
    struct pending note = {.dbi = TABLE_FILES, .remembered.facts = *facts};
    path_key(note.key, path);
    memcpy(note.remembered.hash, hash, 16);
    return postpone(store, &note);
}
