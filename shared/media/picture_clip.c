// A clip that is a directory of pictures: each sampled picture is decoded as an image and resized as a video's frame.
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/media/decode.h"

// ---- the list ----

static bool picture_is_named(const char *name) {
    static const char *const endings[] = {".jpg", ".jpeg", ".png", ".webp", ".bmp"};
    const char *dot = strrchr(name, '.');
    bool named = false;
    for (size_t i = 0; dot && dot != name && i < sizeof endings / sizeof *endings; i++)
        named |= strcasecmp(dot, endings[i]) == 0;
    return named && *name != '.';
}

static int picture_compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

status picture_list_read(struct picture_list *list, const char *path) {
    *list = (struct picture_list){0};
    DIR *dir = opendir(path);
    if (!dir) return fail(BAD_SAMPLE, "%s", strerror(errno));
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!picture_is_named(entry->d_name)) continue;
        if (list->count % 256 == 0) RESIZE(&list->paths, list->count + 256);
        list->paths[list->count++] = arena_printf(&list->memory, "%s/%s", path, entry->d_name);
    }
    closedir(dir);
    if (!list->count) return fail(BAD_SAMPLE, "the directory has no picture");
    qsort(list->paths, list->count, sizeof *list->paths, picture_compare_paths);
    return OK;
}

void picture_list_release(struct picture_list *list) {
    arena_release(&list->memory);
    free(list->paths);
    *list = (struct picture_list){0};
}

// ---- the clip ----

struct picture_clip {
    const struct sampling_config *sampling;
    struct frames frames;
    uint8_t *block; // the pixels, then the timestamps; NULL until the first picture is decoded
    size_t pixel_bytes;
    int index; // of the sample that is being decoded
};

static double picture_time(const void *context, int64_t index) {
    return (double)index / ((const struct picture_clip *)context)->sampling->frame_rate;
}

// The `use` of image_read: resizes the picture into its place. The first one decides the size of all.
static status picture_resize(void *context, const struct image_rows *rows) {
    enum { alignment = 64 };
    static_assert(alignment % sizeof(double) == 0, "timestamps follow the pixels in one block");
    struct picture_clip *clip = context;
    struct frames *frames = &clip->frames;
    if (!clip->block) {
        double max_pixels = sampling_frame_max_pixels(clip->sampling, frames->count);
        TRY(smart_resize(rows->height, rows->width, clip->sampling->min_pixels, max_pixels, &frames->height,
                         &frames->width));
        clip->pixel_bytes = (frames_bytes(frames) + alignment - 1) / alignment * alignment;
        TRY(NEW_LARGE(&clip->block, clip->pixel_bytes + (size_t)frames->count * sizeof(double)));
    }
    struct resizer *resizer = NULL;
    uint8_t *rgb;
    const size_t stride = (size_t)rows->width * 3;
    TRY(NEW_LARGE(&rgb, (size_t)rows->height * stride));
    status result = OK;
    for (int y = 0; result == OK && y < rows->height; y++) {
        const uint8_t *row = NULL;
        result = rows->row(rows->context, y, &row);
        if (result == OK) memcpy(rgb + (size_t)y * stride, row, stride);
    }
    if (result == OK) result = resizer_new(&resizer, rows->height, rows->width, frames->height, frames->width);
    const size_t bytes = (size_t)frames->height * (size_t)frames->width * 3;
    if (result == OK) resizer_run(resizer, rgb, (ptrdiff_t)stride, clip->block + (size_t)clip->index * bytes);
    resizer_free(&resizer);
    free(rgb);
    return result;
}

status picture_clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    struct picture_clip clip = {.sampling = sampling, .frames = {.video = true}};
    struct picture_list list;
    int64_t first, range;
    *view = (struct frames_view){0};
    status result;
    TRY_TO(result, done, picture_list_read(&list, path));
    TRY_TO(result, done, sampling_range(sampling, (int64_t)list.count, picture_time, &clip, &first, &range));
    TRY_TO(result, done, sampling_frame_count(sampling, range, sampling->frame_rate, &clip.frames.count));
    clip.frames.seconds_per_grid = 2 / ((double)clip.frames.count / (double)range * sampling->frame_rate);
    for (; clip.index < clip.frames.count; clip.index++) {
        const char *picture = list.paths[first + sampling_frame_index(range, clip.frames.count, clip.index)];
        result = image_read(picture, picture_resize, &clip);
        if (result == BAD_SAMPLE) result = fail_prefix(result, "%s", strrchr(picture, '/') + 1);
        if (result != OK) goto done;
    }
    double *timestamps = (double *)(void *)(clip.block + clip.pixel_bytes);
    for (int i = 0; i < clip.frames.count; i++)
        timestamps[i] = picture_time(&clip, first + sampling_frame_index(range, clip.frames.count, i));
    clip.frames.pixels = clip.block;
    clip.frames.timestamps = timestamps;
    *view = (struct frames_view){.frames = clip.frames, .owned = clip.block};
    clip.block = NULL;
done:
    free(clip.block);
    picture_list_release(&list);
    return result;
}
