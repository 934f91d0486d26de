// The store of frames on LMDB. Its databases: the records; their last use, their order by it and their total size; the
// hashes of files; which file each record was decoded from.
//
// The surprise: a read also has to write, namely the time of use. Such small writes are collected in memory and written
// with the next put, so that readers do not wait for the writer's lock.
#include "shared/store/frame_store.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/store/lmdb_env.h"

enum { DBI_FRAMES, DBI_USED, DBI_FILES, DBI_ORDER, DBI_TOTAL, DBI_ORIGINS };
static const char *const frame_store_dbis[] = {"frames", "used", "files", "order", "total", "origins", NULL};

enum { MAX_PENDING = 256 };

enum {
    PIXEL_ALIGNMENT = 64,
    MIN_RECORD_SIZE = 4096, // LMDB aligns only values that are larger than half a page
};
static const char frames_magic[8] = "caravanF";
static const uint32_t frames_version = 1;

// A record is this header, the timestamps of a video, zeros up to pixels_offset, the pixels, zeros up to the minimum.
struct frames_record_header {
    char magic[8];
    uint32_t version;
    uint32_t video;
    uint32_t count, height, width;
    uint32_t pixels_offset;
    double seconds_per_grid;
};

// The value of DBI_USED.
struct frame_usage {
    int64_t time; // of the last use, nanoseconds since 1970
    uint64_t bytes;
};

// The key of DBI_ORDER, whose values are empty: sorted by time.
struct frame_order_key {
    uint8_t time[LMDB_NUMBER_SIZE];
    uint8_t key[FRAME_KEY_BYTES];
};

// The fixed part of a value of DBI_ORIGINS; the path follows, with its NUL.
struct frame_origin_record {
    double start, end, frame_rate;
    uint64_t video;
};

// The value of DBI_FILES, whose key is the hash of the path.
struct remembered_hash {
    struct file_stamp stamp;
    uint8_t hash[16];
};

// These are stored, and records are sent, as they are in memory.
static_assert(sizeof(struct frames_record_header) == 40, "the header of a record is a format on disk");
static_assert(sizeof(struct frames_record_header) % sizeof(double) == 0, "timestamps follow the header");
static_assert(sizeof frames_magic == sizeof((struct frames_record_header){0}.magic), "the magic has no NUL");
static_assert(sizeof(struct frame_usage) == 16, "the usage is a format on disk");
static_assert(sizeof(struct frame_order_key) == 24, "the key of a record's use is a format on disk");
static_assert(sizeof(struct frame_origin_record) == 32, "the origin is a format on disk");
static_assert(sizeof(struct remembered_hash) == 56, "the hash of a file is a format on disk");

// A write that waits for the next put.
struct pending_write {
    int dbi; // DBI_USED or DBI_FILES
    uint8_t key[FRAME_KEY_BYTES];
    union {
        int64_t used;
        struct remembered_hash remembered;
    };
};

struct frame_store {
    struct lmdb_env *env;
    uint64_t limit;
    bool read_only;
    pthread_mutex_t lock; // of the two below
    struct pending_write pending[MAX_PENDING];
    int pending_count;
};

// ---- keys and records ----

// Sets the hash that the key states. DATAERR when it is not 32 hex digits.
static status frame_key_parse(uint8_t out[FRAME_KEY_BYTES], const char *key) {
    if (strspn(key, "0123456789abcdef") != 2 * FRAME_KEY_BYTES || key[2 * FRAME_KEY_BYTES])
        return fail(DATAERR, "'%.40s' is not a frame key (32 hex digits)", key);
    for (int i = 0; i < FRAME_KEY_BYTES; i++) sscanf(key + 2 * i, "%2hhx", &out[i]);
    return OK;
}

void frame_key_print(char key[FRAME_KEY_SIZE], const uint8_t hash[FRAME_KEY_BYTES]) {
    for (int i = 0; i < FRAME_KEY_BYTES; i++) snprintf(key + 2 * i, 3, "%02x", hash[i]);
}

size_t frames_bytes(const struct frames *frames) {
    return (size_t)frames->count * (size_t)frames->height * (size_t)frames->width * 3;
}

static size_t frames_pixels_offset(const struct frames *frames) {
    size_t times = frames->video ? (size_t)frames->count * sizeof(double) : 0;
    size_t end = sizeof(struct frames_record_header) + times;
    return (end + PIXEL_ALIGNMENT - 1) / PIXEL_ALIGNMENT * PIXEL_ALIGNMENT;
}

size_t frames_record_size(const struct frames *frames) {
    size_t size = frames_pixels_offset(frames) + frames_bytes(frames);
    return size < MIN_RECORD_SIZE ? MIN_RECORD_SIZE : size;
}

void frames_record_write(const struct frames *frames, uint8_t *out) {
    size_t offset = frames_pixels_offset(frames), end = offset + frames_bytes(frames);
    struct frames_record_header header = {
        .version = frames_version,
        .video = frames->video,
        .count = (uint32_t)frames->count,
        .height = (uint32_t)frames->height,
        .width = (uint32_t)frames->width,
        .pixels_offset = (uint32_t)offset,
        .seconds_per_grid = frames->video ? frames->seconds_per_grid : 0,
    };
    memcpy(header.magic, frames_magic, sizeof frames_magic);
    memset(out, 0, offset);
    memcpy(out, &header, sizeof header);
    if (frames->video) memcpy(out + sizeof header, frames->timestamps, (size_t)frames->count * sizeof(double));
    memcpy(out + offset, frames->pixels, end - offset);
    memset(out + end, 0, frames_record_size(frames) - end);
}

status frames_from_record(struct frames *frames, const void *record, size_t size) {
    enum { MAX_SIDE = 1 << 16, MAX_COUNT = 1 << 20 };
    struct frames_record_header header;
    if (size < sizeof header) return fail(DATAERR, "the frames record of %zu bytes is too short", size);
    memcpy(&header, record, sizeof header);
    if (memcmp(header.magic, frames_magic, sizeof frames_magic) != 0) return fail(DATAERR, "not a frames record");
    if (header.version != frames_version)
        return fail(DATAERR, "the frames record has version %u, expected %u", header.version, frames_version);
    if (header.count < 1 || header.count > MAX_COUNT || header.height < 1 || header.height > MAX_SIDE ||
        header.width < 1 || header.width > MAX_SIDE || header.video > 1 || (!header.video && header.count != 1)) {
        return fail(DATAERR, "the shape of the frames record is out of range");
    }
    *frames = (struct frames){
        .video = header.video,
        .count = (int)header.count,
        .height = (int)header.height,
        .width = (int)header.width,
        .seconds_per_grid = header.video ? header.seconds_per_grid : NAN,
    };
    if (header.pixels_offset != frames_pixels_offset(frames) || size != frames_record_size(frames))
        return fail(DATAERR, "the frames record has %zu bytes, expected %zu", size, frames_record_size(frames));
    const char *bytes = record;
    if (header.video) frames->timestamps = (const double *)(const void *)(bytes + sizeof header);
    frames->pixels = (const uint8_t *)bytes + header.pixels_offset;
    return OK;
}

static struct lmdb_val frame_key_val(const uint8_t key[FRAME_KEY_BYTES]) {
    return (struct lmdb_val){key, FRAME_KEY_BYTES};
}

static void frame_store_path_key(uint8_t out[FRAME_KEY_BYTES], const char *path) {
    XXH128_canonical_t canonical;
    static_assert(sizeof canonical.digest == FRAME_KEY_BYTES, "a path's hash is a key");
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(path, strlen(path)));
    memcpy(out, canonical.digest, FRAME_KEY_BYTES);
}

// ---- the last use of records, and the eviction of those that were not used for longest ----

static const struct lmdb_val frame_usage_total_key = {"bytes", 5};

static struct frame_order_key frame_usage_order_key(int64_t time, const uint8_t key[FRAME_KEY_BYTES]) {
    struct frame_order_key order;
    lmdb_number_write(order.time, time);
    memcpy(order.key, key, FRAME_KEY_BYTES);
    return order;
}

// Sets *total to the size of all records.
static status frame_usage_total(struct lmdb_txn *txn, uint64_t *total) {
    *total = 0;
    return lmdb_txn_get_fixed(txn, DBI_TOTAL, frame_usage_total_key, total, sizeof *total, NULL);
}

// Sets the usage of a record, its place in the order and the total; bytes 0: there is none any more. only_existing:
// nothing is done for a record that was evicted. A time before the last one is ignored. DATAERR when the store is
// damaged, UNAVAILABLE when the disk is full.
static status frame_usage_set(struct lmdb_txn *txn, const uint8_t key[FRAME_KEY_BYTES], struct frame_usage usage,
                              bool only_existing) {
    const struct lmdb_val id = {key, FRAME_KEY_BYTES};
    struct frame_usage before = {0};
    uint64_t total;
    TRY(frame_usage_total(txn, &total));
    TRY(lmdb_txn_get_fixed(txn, DBI_USED, id, &before, sizeof before, NULL));
    if (only_existing && !before.bytes) return OK;
    if (only_existing) usage.bytes = before.bytes;
    if (usage.bytes && usage.time < before.time) usage.time = before.time;
    const struct frame_order_key old = frame_usage_order_key(before.time, key),
                                 new = frame_usage_order_key(usage.time, key);
    if (before.bytes) TRY(lmdb_txn_del(txn, DBI_ORDER, (struct lmdb_val){&old, sizeof old}));
    if (usage.bytes) {
        TRY(lmdb_txn_put(txn, DBI_ORDER, (struct lmdb_val){&new, sizeof new}, (struct lmdb_val){"", 0}));
        TRY(lmdb_txn_put(txn, DBI_USED, id, (struct lmdb_val){&usage, sizeof usage}));
    } else {
        TRY(lmdb_txn_del(txn, DBI_USED, id));
    }
    total = total - before.bytes + usage.bytes;
    return lmdb_txn_put(txn, DBI_TOTAL, frame_usage_total_key, (struct lmdb_val){&total, sizeof total});
}

// Evicts the least recently used records until `bytes` more fit `limit`, or none is left. Fails as frame_usage_set.
static status frame_usage_make_room(struct lmdb_txn *txn, uint64_t limit, uint64_t bytes) {
    uint64_t total;
    for (;;) {
        struct frame_order_key oldest;
        struct lmdb_val key, value;
        TRY(frame_usage_total(txn, &total));
        if (total == 0 || total + bytes <= limit) return OK;
        TRY(lmdb_txn_first(txn, DBI_ORDER, &key, &value));
        if (key.size != sizeof oldest) return lmdb_txn_fail_damaged(txn, "the use of the frames");
        memcpy(&oldest, key.data, sizeof oldest);
        TRY(lmdb_txn_del(txn, DBI_FRAMES, (struct lmdb_val){oldest.key, sizeof oldest.key}));
        TRY(frame_usage_set(txn, oldest.key, (struct frame_usage){0}, false));
    }
}

// ---- pending writes ----

// The caller holds the store's lock.
static status frame_store_write_pending(const struct frame_store *store, struct lmdb_txn *txn) {
    for (int i = 0; i < store->pending_count; i++) {
        const struct pending_write *pending = &store->pending[i];
        const struct lmdb_val key = frame_key_val(pending->key);
        const struct lmdb_val value = {&pending->remembered, sizeof pending->remembered};
        if (pending->dbi == DBI_FILES)
            TRY(lmdb_txn_put(txn, DBI_FILES, key, value));
        else
            TRY(frame_usage_set(txn, pending->key, (struct frame_usage){.time = pending->used}, true));
    }
    return OK;
}

// The caller holds the store's lock. Afterwards nothing is pending, also after a failure.
static status frame_store_flush(struct frame_store *store) {
    struct lmdb_txn *txn;
    status result;
    if (!store->pending_count) return OK;
    do {
        result = lmdb_txn_begin_write(store->env, &txn);
        if (result == OK) result = frame_store_write_pending(store, txn);
    } while (lmdb_txn_commit(&txn, &result));
    store->pending_count = 0;
    return result;
}

// Adds a pending write; it replaces one of the same key.
static status frame_store_defer(struct frame_store *store, const struct pending_write *write) {
    if (store->read_only) return OK;
    pthread_mutex_lock(&store->lock);
    status result = OK;
    int i = 0;
    while (i < store->pending_count &&
           (store->pending[i].dbi != write->dbi || memcmp(store->pending[i].key, write->key, FRAME_KEY_BYTES) != 0)) {
        i++;
    }
    if (i == MAX_PENDING) {
        result = frame_store_flush(store);
        i = 0;
    }
    assert(i <= store->pending_count);
    store->pending[i] = *write;
    if (i == store->pending_count) store->pending_count++;
    pthread_mutex_unlock(&store->lock);
    return result;
}

// ---- the store ----

status frame_store_open(struct frame_store **out, const char *directory, uint64_t limit, bool read_only) {
    *out = NULL;
    if (!read_only) TRY(dir_make(directory));
    struct frame_store *store;
    NEW(&store, 1);
    store->limit = limit;
    store->read_only = read_only;
    pthread_mutex_init(&store->lock, NULL);
    struct arena arena = {0};
    char *path = path_join(&arena, directory, "frames.lmdb");
    struct lmdb_options options = {.read_only = read_only, .lazy = true};
    status result = lmdb_env_open(&store->env, path, frame_store_dbis, &options);
    arena_release(&arena);
    *out = store;
    if (result != OK) frame_store_close(out);
    return result;
}

void frame_store_close(struct frame_store **out) {
    struct frame_store *store = *out;
    if (!store) return;
    if (store->env && !store->read_only) {
        pthread_mutex_lock(&store->lock);
        if (frame_store_flush(store) != OK) log_info("%s", fail_text());
        pthread_mutex_unlock(&store->lock);
    }
    lmdb_env_close(&store->env);
    pthread_mutex_destroy(&store->lock);
    free(store);
    *out = NULL;
}

void frames_view_release(struct frames_view *view) {
    lmdb_txn_end(&view->txn);
    free(view->owned);
    *view = (struct frames_view){0};
}

status frame_store_get(struct frame_store *store, const char *key, struct frames_view *view, bool *found) {
    *view = (struct frames_view){0};
    *found = false;
    struct pending_write used = {.dbi = DBI_USED, .used = clock_realtime_ns()};
    TRY(frame_key_parse(used.key, key));
    TRY(lmdb_txn_begin_read(store->env, &view->txn));
    struct lmdb_val record;
    status result = lmdb_txn_get(view->txn, DBI_FRAMES, frame_key_val(used.key), &record);
    if (result == OK && record.data) {
        if (frames_from_record(&view->frames, record.data, record.size) == OK) {
            result = frame_store_defer(store, &used);
            *found = result == OK;
            if (*found) return OK;
        } else {
            log_info("the stored frames %s are damaged and will be decoded again: %s", key, fail_text());
        }
    }
    frames_view_release(view);
    return result;
}

status frame_store_read(struct frame_store *store, const char *key, int64_t offset, size_t size, struct buf *out,
                        int64_t *total, bool *found) {
    struct pending_write used = {.dbi = DBI_USED, .used = clock_realtime_ns()};
    struct lmdb_txn *txn;
    struct lmdb_val record;
    *found = false;
    TRY(frame_key_parse(used.key, key));
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_txn_get(txn, DBI_FRAMES, frame_key_val(used.key), &record);
    if (result == OK && record.data) {
        const size_t left = offset >= 0 && (uint64_t)offset < record.size ? record.size - (size_t)offset : 0;
        if (!left) result = fail(DATAERR, "frames %s: offset %lld of %zu bytes", key, (long long)offset, record.size);
        if (result == OK) buf_append(out, (const char *)record.data + offset, left < size ? left : size);
        if (result == OK && !offset) result = frame_store_defer(store, &used); // once for all pieces
        *total = (int64_t)record.size;
        *found = result == OK;
    }
    lmdb_txn_end(&txn);
    return result;
}

status frame_store_put(struct frame_store *store, const char *key, const struct frames *frames) {
    uint8_t bytes[FRAME_KEY_BYTES];
    struct frame_usage usage = {.bytes = frames_record_size(frames)};
    struct frames stored_frames;
    struct lmdb_txn *txn;
    status result;
    assert(frames->count > 0);
    TRY(frame_key_parse(bytes, key));
    if (store->read_only) return OK;
    pthread_mutex_lock(&store->lock);
    do {
        struct lmdb_val stored = {0};
        void *record = NULL;
        result = lmdb_txn_begin_write(store->env, &txn);
        if (result == OK) result = frame_store_write_pending(store, txn);
        usage.time = clock_realtime_ns();
        if (result == OK) result = lmdb_txn_get(txn, DBI_FRAMES, frame_key_val(bytes), &stored);
        bool valid = stored.data && frames_from_record(&stored_frames, stored.data, stored.size) == OK;
        if (result == OK && !valid && store->limit) result = frame_usage_make_room(txn, store->limit, usage.bytes);
        if (result == OK && !valid)
            result = lmdb_txn_reserve(txn, DBI_FRAMES, frame_key_val(bytes), usage.bytes, &record);
        if (result == OK && !valid) frames_record_write(frames, record);
        if (result == OK) result = frame_usage_set(txn, bytes, usage, false);
    } while (lmdb_txn_commit(&txn, &result));
    if (result == OK) store->pending_count = 0;
    pthread_mutex_unlock(&store->lock);
    return result;
}

status frame_store_each(struct frame_store *store,
                        status (*visit)(void *context, const char *key, const struct frames *frames, uint64_t bytes,
                                        double used),
                        void *context) {
    struct lmdb_txn *txn;
    struct lmdb_cursor cursor;
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_cursor_init(&cursor, txn, DBI_FRAMES);
    while (result == OK && cursor.key.data) {
        struct frame_usage usage = {0};
        struct frames frames;
        char key[FRAME_KEY_SIZE];
        bool valid = cursor.key.size == FRAME_KEY_BYTES &&
                     frames_from_record(&frames, cursor.value.data, cursor.value.size) == OK;
        if (valid) result = lmdb_txn_get_fixed(txn, DBI_USED, cursor.key, &usage, sizeof usage, NULL);
        if (valid) frame_key_print(key, cursor.key.data);
        if (valid && result == OK) result = visit(context, key, &frames, cursor.value.size, (double)usage.time * 1e-9);
        if (result == OK) result = lmdb_cursor_next(&cursor);
    }
    lmdb_cursor_release(&cursor);
    lmdb_txn_end(&txn);
    return result == END ? OK : result;
}

// ---- hashes of files ----

status frame_store_recall_hash(struct frame_store *store, const char *path, const struct file_stamp *stamp,
                               uint8_t hash[16], bool *found) {
    uint8_t key[FRAME_KEY_BYTES];
    struct remembered_hash remembered;
    struct lmdb_txn *txn;
    frame_store_path_key(key, path);
    *found = false;
    TRY(lmdb_txn_begin_read(store->env, &txn));
    status result = lmdb_txn_get_fixed(txn, DBI_FILES, frame_key_val(key), &remembered, sizeof remembered, found);
    lmdb_txn_end(&txn);
    *found = *found && memcmp(&remembered.stamp, stamp, sizeof *stamp) == 0;
    if (*found) memcpy(hash, remembered.hash, sizeof remembered.hash);
    return result;
}

status frame_store_remember_hash(struct frame_store *store, const char *path, const struct file_stamp *stamp,
                                 const uint8_t hash[16]) {
    struct pending_write write = {.dbi = DBI_FILES, .remembered.stamp = *stamp};
    frame_store_path_key(write.key, path);
    memcpy(write.remembered.hash, hash, sizeof write.remembered.hash);
    return frame_store_defer(store, &write);
}

// ---- the files of records ----

status frame_store_recall_origin(struct frame_store *store, const char *key, struct arena *arena,
                                 struct frame_origin *origin, bool *found) {
    uint8_t bytes[FRAME_KEY_BYTES];
    struct frame_origin_record record;
    struct buf value = {0};
    *found = false;
    TRY(frame_key_parse(bytes, key));
    const status result = lmdb_env_get(store->env, DBI_ORIGINS, frame_key_val(bytes), &value, found);
    *found = value.size > sizeof record && !value.data[value.size - 1];
    if (*found) {
        const char *path = value.data + sizeof record;
        memcpy(&record, value.data, sizeof record);
        *origin = (struct frame_origin){.path = arena_strndup(arena, path, strlen(path)),
                                        .video = record.video,
                                        .start = record.start,
                                        .end = record.end,
                                        .frame_rate = record.frame_rate};
    }
    buf_release(&value);
    return result;
}

status frame_store_remember_origin(struct frame_store *store, const char *key, const struct frame_origin *origin) {
    const struct frame_origin_record record = {
        .start = origin->start, .end = origin->end, .frame_rate = origin->frame_rate, .video = origin->video};
    uint8_t bytes[FRAME_KEY_BYTES];
    struct buf value = {0}, stored = {0};
    bool found;
    status result;
    TRY_TO(result, done, frame_key_parse(bytes, key));
    buf_append(&value, &record, sizeof record);
    buf_append(&value, origin->path, strlen(origin->path) + 1);
    TRY_TO(result, done, lmdb_env_get(store->env, DBI_ORIGINS, frame_key_val(bytes), &stored, &found));
    if (!found || stored.size != value.size || memcmp(stored.data, value.data, value.size) != 0)
        result = lmdb_env_put(store->env, DBI_ORIGINS, frame_key_val(bytes), (struct lmdb_val){value.data, value.size});
done:
    buf_release(&value);
    buf_release(&stored);
    return result;
}
