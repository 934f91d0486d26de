// frames.lmdb: decoded, resized frames by key, shared by all processes that open the same store directory.
//
// A key is the hash, as 32 hex digits, of everything that the frames were computed from: the file's content and every
// parameter. So a stale record is never found. When the size limit is reached, the least recently used records are
// evicted.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// ---- frames, their keys, and the record in which they are stored and sent between processes ----

enum { FRAME_KEY_BYTES = 16, FRAME_KEY_SIZE = 2 * FRAME_KEY_BYTES + 1 }; // the size counts the NUL

// Writes the hash as a key.
void frame_key_print(char key[FRAME_KEY_SIZE], const uint8_t hash[FRAME_KEY_BYTES]);

// The frames of one image (count 1, no timestamps) or video.
struct frames {
    bool video;
    int count, height, width;
    double seconds_per_grid;  // of a video: two frames at the sampled rate; NaN for an image
    const double *timestamps; // [count] seconds from the video's first frame; NULL for an image
    const uint8_t *pixels;    // [count, height, width, RGB]
};

// Returns the size of the pixels in bytes.
size_t frames_bytes(const struct frames *frames);

// Returns the size of the record in bytes.
size_t frames_record_size(const struct frames *frames);

// Writes the record, frames_record_size bytes, as it is stored and sent: header, timestamps, pixels.
void frames_record_write(const struct frames *frames, uint8_t *out);

// *frames = the record's, pointing into `record`, which is aligned to 8 bytes. DATAERR when it is not a complete record
// of this version.
status frames_from_record(struct frames *frames, const void *record, size_t size);

// ---- the store ----

struct frame_store;

// Opens `directory`/frames.lmdb; creates both unless read_only. `limit`: bytes that the records may take, 0: no limit.
// UNAVAILABLE when the disk fails; DATAERR when the file is of another kind or, with read_only, missing; USAGE when it
// is on a network file system. The caller closes it with frame_store_close.
status frame_store_open(struct frame_store **out, const char *directory, uint64_t limit, bool read_only);

// Closes and frees; sets *store to NULL. NULL is fine.
void frame_store_close(struct frame_store **store);

// Frames and what keeps them valid: a read transaction of a store, or a block on the heap. A zeroed view is empty.
struct frames_view {
    struct frames frames;
    struct lmdb_txn *txn;
    void *owned;
};

// Frees what a view holds and zeroes it.
void frames_view_release(struct frames_view *view);

// Maps the frames of `key` into *view without a copy; *found says whether there are any. May be called by any thread.
// DATAERR when the key is not 32 hex digits. The caller releases the view with frames_view_release.
status frame_store_get(struct frame_store *store, const char *key, struct frames_view *view, bool *found);

// Appends up to `size` bytes of the record of `key` from `offset` on, as it is sent; *total is the size of the whole
// record, *found says whether there is one. DATAERR when the key is not 32 hex digits or the record has no byte there.
status frame_store_read(struct frame_store *store, const char *key, int64_t offset, size_t size, struct buf *out,
                        int64_t *total, bool *found);

// Stores frames under `key`, evicting others if need be; frames that are stored already are kept. UNAVAILABLE when the
// disk is full; the store is then unchanged. Does nothing to a store that is open for reading only.
status frame_store_put(struct frame_store *store, const char *key, const struct frames *frames);

// Calls visit for each key in order; `bytes` is the record's size, `used` the time of its last use in seconds since
// 1970. END from visit ends the iteration with OK, any other failure is returned.
status frame_store_each(struct frame_store *store,
                        status (*visit)(void *context, const char *key, const struct frames *frames, uint64_t bytes,
                                        double used),
                        void *context);

// Fields of stat's result. While they are the same, the hash of the file's content need not be computed again.
struct file_stamp {
    uint64_t device, inode, size;
    int64_t modified, changed; // nanoseconds since 1970
};

// *found, hash = the hash that was remembered for this path and stamp. UNAVAILABLE when the store cannot be read.
status frame_store_recall_hash(struct frame_store *store, const char *path, const struct file_stamp *stamp,
                               uint8_t hash[16], bool *found);

// Remembers the hash of the file's content. It is written to the disk with the next put, when too many wait, or at
// close. UNAVAILABLE when the disk fails.
status frame_store_remember_hash(struct frame_store *store, const char *path, const struct file_stamp *stamp,
                                 const uint8_t hash[16]);

// What a record was decoded from.
struct frame_origin {
    const char *path;
    bool video;
    double start, end, frame_rate; // of the part of the video that was decoded; NaN: not given
};

// *origin = what the frames of `key` were decoded from on this machine, also if they were evicted since; the path is in
// the arena. *found says whether it is known. Not for a store that is open for reading only. DATAERR when the key is
// not 32 hex digits, UNAVAILABLE when the store cannot be read.
status frame_store_recall_origin(struct frame_store *store, const char *key, struct arena *arena,
                                 struct frame_origin *origin, bool *found);

// Remembers it; does nothing if it is the same as before. DATAERR when the key is not 32 hex digits, UNAVAILABLE when
// the disk fails.
status frame_store_remember_origin(struct frame_store *store, const char *key, const struct frame_origin *origin);
