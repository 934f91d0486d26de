#include "stages/frames/media_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void media_folder_init(struct media_folder *folder, const char *root) {
    folder->root = root;
    pthread_mutex_init(&folder->lock, NULL);
}

void media_folder_release(struct media_folder *folder) {
    pthread_mutex_destroy(&folder->lock);
}

void media_folder_add(struct media_folder *folder, const char *path) {
    const char *slash = strrchr(path, '/');
    const size_t length = slash ? (size_t)(slash - path) + 1 : 0; // with the slash
    size_t same = 0;
    if (!length || length >= sizeof folder->common) return;
    pthread_mutex_lock(&folder->lock);
    if (!*folder->common) {
        snprintf(folder->common, sizeof folder->common, "%.*s", (int)length, path);
    } else {
        for (size_t i = 0; i < length && path[i] == folder->common[i]; i++)
            if (path[i] == '/') same = i + 1;
        folder->common[same] = 0;
    }
    pthread_mutex_unlock(&folder->lock);
}

status media_folder_check(struct media_folder *folder) {
    char common[PATH_MAX];
    pthread_mutex_lock(&folder->lock);
    snprintf(common, sizeof common, "%s", folder->common);
    pthread_mutex_unlock(&folder->lock);
    if (folder->root && access(folder->root, X_OK))
        return fail(UNAVAILABLE, "media_root %s: %s", folder->root, strerror(errno));
    if (!*common) return OK;
    if (access(common, X_OK)) return fail(UNAVAILABLE, "the media's directory %s: %s", common, strerror(errno));
    DIR *dir = opendir(common);
    int count = 0;
    if (!dir && errno == EACCES) return OK; // it may be entered, not listed
    if (!dir) return fail(UNAVAILABLE, "the media's directory %s: %s", common, strerror(errno));
    while (count <= 2 && readdir(dir)) count++; // with . and ..
    closedir(dir);
    return count > 2 ? OK : fail(UNAVAILABLE, "the media's directory %s: it is empty now", common);
}
