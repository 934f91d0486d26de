// Where a stage's frames come from: its store, the frames stage, or the file, decoded with the options of the frames
// stage of its run.
#ifndef SHARED_STAGE_STAGE_MEDIA_H
#define SHARED_STAGE_STAGE_MEDIA_H

#include "shared/config/stage_options.h"
#include "shared/media/media.h"
#include "shared/stage/stage.h"

// Returns how the frames stage with these options samples, or USAGE when two of them contradict each other.
status stage_media_sampling(struct sampling_config *sampling, const struct frames_options *options);

struct stage_media;

// Opens the store of the option `store`, if it is given. Frames are decoded with the options of the run's frames stage,
// the member `frames` of the stage's options. USAGE, DATAERR or UNAVAILABLE when two of these contradict each other or
// the store cannot be opened. Close with stage_media_close.
status stage_media_open(struct stage_media **out, struct stage_context *context);

// NULL is fine; sets *media to NULL.
void stage_media_close(struct stage_media **media);

// As media_get. In a run it waits, with a line in the log, until some source has the frames; END when the program is
// asked to stop.
status stage_media_get(struct stage_media *media, struct frames_view *view, const struct group *group, size_t index);

#endif
