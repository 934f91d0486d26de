#include "shared/model/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/model/training_state.h"

status checkpoint_write_tensors(struct backend *backend, const struct param_array *values,
                                const struct param_array *remainders, const char *path,
                                const struct stored_tensor *tensors, const struct parameter *const *params,
                                size_t count, bool durable) {
    struct safetensors_writer *writer = NULL;
    status result = OK;
    TRY_TO(result, failed, safetensors_create(&writer, path, tensors, count, durable));
    for (size_t i = 0; i < count; i++)
        TRY_TO(result, failed,
               parameter_download(backend, values, remainders, params[i], tensors[i].type, safetensors_sink, writer));
    return safetensors_finish(&writer);
failed:
    safetensors_abort(&writer);
    return result;
}

static bool checkpoint_skips(const char *name, const struct safetensors *store, const char *const *except) {
    if (name[0] == '.' || strcmp(name, TRAINING_TENSORS) == 0 || strcmp(name, TRAINING_COUNTERS) == 0) return true;
    for (; except && *except; except++)
        if (strcmp(*except, name) == 0) return true;
    for (size_t i = 0; i < safetensors_count(store); i++)
        if (strcmp(path_base_name(safetensors_at(store, i)->file), name) == 0) return true;
    return false;
}

status checkpoint_copy_files(const char *from, const char *to, const struct safetensors *store,
                             const char *const *except) {
    struct arena arena = {0};
    status result = OK;
    DIR *entries = opendir(from);
    if (!entries) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
        if (!entry) break;
        if (checkpoint_skips(entry->d_name, store, except)) continue;
        char *source = path_join(&arena, from, entry->d_name), *target = path_join(&arena, to, entry->d_name);
        struct stat info;
        if (stat(source, &info)) TRY_TO(result, done, fail(DATAERR, "%s: %s", source, strerror(errno)));
        if (!S_ISREG(info.st_mode)) continue;
        struct file_map map;
        TRY_TO(result, done, file_map_open(&map, source));
        result = file_write_atomic(target, map.data, map.size);
        file_map_release(&map);
        if (result != OK) goto done;
    }
done:
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}
