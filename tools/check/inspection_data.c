// The inspection of data: the first samples are read, their media are looked for, and one of them is opened.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/config/stage_options.h"
#include "shared/data/dataset.h"
#include "shared/media/media.h"
#include "shared/stage/stage_media.h"
#include "tools/check/inspection.h"

enum { INSPECTED_SAMPLES = 8 };

// What is looked at while the samples are visited.
struct inspected_data {
    struct inspection *inspection;
    const struct pipeline_stage *source;
    const struct pipeline_stage *needs_frames; // the first stage that needs them and has no stage before it; or NULL
    const char *media_root;                    // of frames; NULL: the current directory
    bool inside;                               // only files below media_root are opened
    bool look;                                 // at media: they are decoded on this machine
    struct sampling_config sampling;
    int samples, media, missing;
    bool opened;
    char first_missing[512]; // which medium and why
};

// Decodes the first and the last frame of a clip, or an image.
static status inspection_open_medium(const struct inspected_data *data, const struct part *part, const char *path) {
    struct sampling_config sampling = media_sampling(&data->sampling, part);
    struct frames_view view = {0};
    sampling.min_frames = sampling.max_frames = 2;
    const status result = media_decode(&view, path, part->kind == PART_VIDEO, &sampling, NULL);
    frames_view_release(&view);
    return result;
}

static status inspection_visit_part(struct inspected_data *data, const struct part *part) {
    struct arena arena = {0};
    char *path = NULL;
    status result = media_path(&path, &arena, data->media_root, media_uri(part));
    if (result == OK && data->inside) result = media_check_inside(data->media_root, path);
    if (result == OK && access(path, R_OK)) result = fail(BAD_SAMPLE, "%s", strerror(errno));
    data->media++;
    if (result == BAD_SAMPLE) {
        if (!data->missing++)
            snprintf(data->first_missing, sizeof data->first_missing, "%s: %s", path ? path : media_uri(part).data,
                     fail_text());
        result = OK;
    } else if (result == OK && !data->opened) {
        data->opened = true;
        result = inspection_open_medium(data, part, path);
        if (result == BAD_SAMPLE) {
            inspection_warning(data->inspection, data->source, "data",
                               "%s: %s; the samples of such media are quarantined", path, fail_text());
            result = OK;
        }
    }
    arena_release(&arena);
    return result;
}

static status inspection_visit_sample(void *context, const struct dataset_sample *sample) {
    struct inspected_data *data = context;
    if (data->samples == INSPECTED_SAMPLES) return END;
    data->samples++;
    if (!sample->group) return DATAERR; // fail_text() is dataset_each's
    const struct group *group = sample->group;
    if (data->needs_frames && media_part_count(group) && !group->media_count) {
        diagnostic_add(data->inspection->diagnostics, data->needs_frames->at,
                       "%s: the samples have images or videos, and no stage frames comes before it",
                       data->needs_frames->name);
        data->needs_frames = NULL;
    }
    const struct part *part;
    for (size_t i = 0; data->look && (part = media_part(group, i)); i++) TRY(inspection_visit_part(data, part));
    return OK;
}

// Finds the stage that would wait in vain for frames, or the frames stage with what it would open.
static void inspection_find_frames(struct inspected_data *data) {
    const struct pipeline *pipeline = data->inspection->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        if (stage->program) return; // it may write what it likes
        if (stage->kind == &stage_kinds[STAGE_FRAMES]) {
            const struct frames_options *frames = pipeline_options(stage);
            const status result = stage_media_sampling(&data->sampling, frames);
            data->media_root = frames->media_root;
            data->inside = frames->media_outside == MEDIA_OUTSIDE_REFUSE;
            data->look = result == OK && inspection_covers(data->inspection, stage);
            if (result != OK) inspection_mistake(data->inspection, stage, "min_frames", "%s", fail_text());
            return;
        }
        if (stage->kind->needs_frames) {
            data->needs_frames = stage;
            return;
        }
    }
}

void inspect_data(struct inspection *inspection) {
    const struct pipeline *pipeline = inspection->pipeline;
    struct inspected_data data = {.inspection = inspection, .source = &pipeline->stages[0]};
    size_t groups = 0;
    if (data.source->kind != &stage_kinds[STAGE_SOURCE] || !inspection_covers(inspection, data.source)) return;
    inspection_find_frames(&data);
    const struct source_options *source = pipeline_options(data.source);
    status result = dataset_count_groups(source, &groups);
    if (result == OK) result = dataset_each(source, inspection_visit_sample, &data);
    if (result != OK && result != END) {
        const char *template = source->template;
        const bool of_template = template && (!strncmp(fail_text(), "template:", strlen("template:")) ||
                                              !strncmp(fail_text(), template, strlen(template)));
        inspection_mistake(inspection, data.source, of_template ? "template" : "data", "%s", fail_text());
    } else if (pipeline_optim(pipeline) && groups < (size_t)source->groups_per_step) {
        inspection_mistake(inspection, data.source, source->limit ? "limit" : "data",
                           "%zu groups do not fill a step of %lld: nothing would be trained", groups,
                           (long long)source->groups_per_step);
    }
    const char *key = source->media_root ? "media_root" : "data";
    if (data.missing && data.missing == data.media)
        inspection_mistake(inspection, data.source, key,
                           "none of the %d images and videos of the first samples can be opened: %s", data.media,
                           data.first_missing);
    else if (data.missing)
        inspection_warning(inspection, data.source, key,
                           "%d of the %d images and videos of the first samples cannot be opened, and such samples "
                           "are quarantined: %s",
                           data.missing, data.media, data.first_missing);
}
