// The folder that holds the media: media_root, and below it (or anywhere, without media_root) the directory that all
// media have in common that were read so far. A file that is missing while its folder is gone says nothing about the
// sample: a network file system may be away for a moment.
#ifndef STAGES_FRAMES_MEDIA_FOLDER_H
#define STAGES_FRAMES_MEDIA_FOLDER_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>

#include "shared/base/status.h"

struct media_folder {
    const char *root;      // media_root, NULL: none
    pthread_mutex_t lock;  // of what follows
    char common[PATH_MAX]; // of the media that were read; "" before the first one
    double said;           // clock_monotonic() when the user was last told that it is gone
    bool gone;             // the user was told so, and not yet that it is back
};

// Sets a zeroed struct up. `root` must outlive it. Release it with media_folder_release.
void media_folder_init(struct media_folder *folder, const char *root);

// Frees what it holds.
void media_folder_release(struct media_folder *folder);

// Says that the file or directory at `path` was read. From any thread.
void media_folder_add(struct media_folder *folder, const char *path);

// UNAVAILABLE, naming the folder, when media_root or the common directory cannot be entered, or when the latter has no
// entry any more, as a mount point without its file system. From any thread.
status media_folder_check(struct media_folder *folder);

#endif
