// From a file to frames: any image or video that FFmpeg opens, sampled and resized by a sampling_config. And from a
// group's prompt to frames: which images and videos it has, which file each one names, and where their frames come
// from.
#pragma once

#include <stdbool.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/group/group.h"
#include "shared/media/sampling_config.h"
#include "shared/store/frame_store.h"

// ---- files ----

// How a video is decoded. Every way gives the same frames.
struct media_options {
    bool sequential; // decode every packet from the first one on: no jump to a key frame, no frame skipped
    int threads;     // of the decoder; 0: one
};

// Decodes the file at `path`, or the directory of pictures, into *view, on the heap: the one frame of an image or the
// sampled frames of a video. options NULL: the fastest way with one thread. BAD_SAMPLE when the file is missing,
// damaged, too short or has too extreme an aspect ratio; UNAVAILABLE when the machine or the network fails, perhaps for
// a moment. fail_text() is then the reason without the path. The caller releases the view with frames_view_release.
status media_decode(struct frames_view *view, const char *path, bool video, const struct sampling_config *sampling,
                    const struct media_options *options);

// Computes the key of a file's frames: a hash of the file's content, or of the contents of the directory's pictures,
// and of all values of `sampling` that apply. `store` (NULL: none) caches the content's hash until the file changes.
// BAD_SAMPLE when the file cannot be read; UNAVAILABLE as media_decode.
status media_key(char key[FRAME_KEY_SIZE], const char *path, bool video, const struct sampling_config *sampling,
                 struct frame_store *store);

// Appends the frames as one PNG, side by side in rows, for a person. UNAVAILABLE when FFmpeg cannot encode it.
status contact_sheet_encode(const struct frames *frames, struct buf *out);

// The same into a file. UNAVAILABLE also when the file cannot be written.
status contact_sheet_write(const struct frames *frames, const char *path);

// ---- prompts ----

// Returns the index-th image or video of the group's messages, owned by the group; NULL when there are fewer.
const struct part *media_part(const struct group *group, size_t index);

// Returns the number of images and videos in the group's messages.
size_t media_part_count(const struct group *group);

// Returns the path or file:// address of an image or video as the prompt states it, owned by the group.
struct string media_uri(const struct part *part);

// Returns how an image or video of a prompt is sampled: as `sampling` says, but only the part of it that it names.
struct sampling_config media_sampling(const struct sampling_config *sampling, const struct part *part);

// *path, in the arena = the file that `uri` names: under `media_root` when relative (NULL: the working directory).
// Percent escapes of a file:// address are decoded unless a file with exactly that name exists. BAD_SAMPLE when no file
// can have the name or when it is an address of another kind.
status media_path(char **path, struct arena *arena, const char *media_root, struct string uri);

// BAD_SAMPLE when the file at `path`, or a picture of the directory at `path`, lies outside media_root (NULL: the
// working directory) after all links are followed, when it has no name there (missing or deleted), or when media_root
// is gone; UNAVAILABLE as media_decode. Another file may have the path when it is opened later: see media_open_inside.
status media_check_inside(const char *media_root, const char *path);

// Opens the file at `path` and checks it as media_check_inside, which the file then remains: /proc/self/fd/N with *fd
// as N is the path of what was checked, whatever `path` leads to later. The caller closes *fd, which cannot be read
// itself (O_PATH). Fails as media_check_inside, and then *fd is -1.
status media_open_inside(int *fd, const char *media_root, const char *path);

// Describes frames in the group's index-th medium, of those made by group_media. seconds_per_grid NaN: as measured.
void media_describe(struct group *group, size_t index, const char *key, const struct frames *frames,
                    double seconds_per_grid);

// Where frames may come from.
struct media_source {
    struct frame_store *store; // NULL: none
    // Requests a record from another process; NULL: there is no such process.
    status (*request)(void *context, const char *key, struct buf *record, bool *found);
    void *context;
    const char *media_root;                 // NULL: the working directory
    bool inside;                            // only files below media_root are opened
    const struct sampling_config *sampling; // NULL: the published one
    // Called when no source has the frames now, for the reason fail_text(). OK: they are looked for once more; any
    // other status is what media_get then returns. NULL: UNAVAILABLE.
    status (*wait)(void *context, const char *key);
};

// Maps the frames of the group's index-th image or video into *view. They are taken from the first source that has
// them: the store; `request`, which also fills the store; the file that the prompt names, if decoding it gives the same
// key, which also fills the store. UNAVAILABLE, naming the key and the last attempt, when no source has them and `wait`
// is NULL; DATAERR when their sizes differ from the group's. The caller releases the view with frames_view_release.
status media_get(struct frames_view *view, const struct media_source *source, const struct group *group, size_t index);
