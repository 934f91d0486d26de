// frames.lmdb: decoded, resized frames by key, shared by every process that opens the same store folder.
//
// A key is 32 hex digits: what the frames were computed from (content of the file and every parameter), so a stale
// record is never found. What has been unused longest goes first when the size limit is reached.
#ifndef SHARED_STORE_FRAME_STORE_H
#define SHARED_STORE_FRAME_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum { frame_key_size = 33 }; // with the NUL

// The frames of one image (count 1, no timestamps) or clip.
struct frames {
    bool video;
    int count, height, width;
    double seconds_per_grid;  // of a clip: two frames at the sampled rate; NaN for an image
    const double *timestamps; // [count] seconds from the clip's first frame; NULL for an image
    const uint8_t *pixels;    // [count, height, width, RGB]
};

// Bytes of the pixels.
size_t frames_bytes(const struct frames *frames);

// The record as it is stored and sent: header, timestamps, pixels.
status frames_to_record(const struct frames *frames, struct buf *out);

// *frames points into `record`. DATAERR when it is not a whole record of this version.
status frames_from_record(struct frames *frames, const void *record, size_t size);

struct frame_store;

// Opens FOLDER/frames.lmdb, and makes both unless read_only. `limit`: bytes that the records may take, 0: no limit.
// UNAVAILABLE when the disk refuses, DATAERR for a file that is none of ours or, read_only, is not there.
status frame_store_open(struct frame_store **out, const char *folder, uint64_t limit, bool read_only);

// Closes; NULL is fine; sets *store to NULL.
void frame_store_close(struct frame_store **store);

// Frames that someone else owns: mapped from a store, or on the heap. A zeroed view is an empty one.
struct frames_view {
    struct frames frames;
    struct lmdb_txn *snapshot;
    void *owned;
};

// Frees what stands behind a view and zeroes it.
void frames_view_release(struct frames_view *view);

// Maps the frames under `key` into *view (no copy), valid until frames_view_release; *found says whether they are
// there. May be called from any thread. DATAERR for a key that is not 32 hex digits.
status frame_store_get(struct frame_store *store, const char *key, struct frames_view *view, bool *found);

// Keeps frames under `key`; frames that are there already stay. Makes room by evicting what is unused longest.
// UNAVAILABLE when the disk is full: the store is as before.
status frame_store_put(struct frame_store *store, const char *key, const struct frames *frames);

// Keeps a record that came from another machine. DATAERR when it is no record.
status frame_store_put_record(struct frame_store *store, const char *key, const void *record, size_t size);

// Calls visit for each key in order; `bytes` of the record, `used` in seconds since 1970. END ends the walk.
status frame_store_each(struct frame_store *store,
                        status (*visit)(void *context, const char *key, const struct frames *frames, uint64_t bytes,
                                        double used),
                        void *context);

// Removes one record; *found says whether it was there.
status frame_store_evict(struct frame_store *store, const char *key, bool *found);

// A file's facts from stat and the hash of its content: spares hashing it again while the facts stay.
struct file_stamp {
    uint64_t device, inode, size;
    int64_t modified, changed; // nanoseconds
};

// *found, and hash, when this path with these very facts was remembered.
status frame_store_recall_hash(struct frame_store *store, const char *path, const struct file_stamp *facts,
                               uint8_t hash[16], bool *found);

// Remembers; written with the next put or at close.
status frame_store_remember_hash(struct frame_store *store, const char *path, const struct file_stamp *facts,
                                 const uint8_t hash[16]);

#endif
