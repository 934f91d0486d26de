// Takes the place of shared/media's decoders and encoders in the programs that make gpu-pack links, so that these need
// no FFmpeg. The frames of the archive's clips are in its store.
#include "shared/media/decode.h"
#include "tools/demo/clip_writer.h"

static status no_media(void) {
    return fail(UNAVAILABLE, "this program was linked without FFmpeg");
}

status video_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                    const struct media_options *options) {
    (void)view, (void)path, (void)sampling, (void)options;
    return no_media();
}

status image_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    (void)view, (void)path, (void)sampling;
    return no_media();
}

status picture_clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling) {
    (void)view, (void)path, (void)sampling;
    return no_media();
}

status picture_list_read(struct picture_list *list, const char *path) {
    (void)list, (void)path;
    return no_media();
}

void picture_list_release(struct picture_list *list) {
    (void)list;
}

status contact_sheet_encode(const struct frames *frames, struct buf *out) {
    (void)frames, (void)out;
    return no_media();
}

status contact_sheet_write(const struct frames *frames, const char *path) {
    (void)frames, (void)path;
    return no_media();
}

status clip_writer_open(struct clip_writer **out, const char *path, int width, int height, int rate) {
    (void)path, (void)width, (void)height, (void)rate;
    *out = NULL;
    return no_media();
}

status clip_writer_add(struct clip_writer *writer, const uint8_t *rgb) {
    (void)writer, (void)rgb;
    return no_media();
}

status clip_writer_close(struct clip_writer **writer) {
    *writer = NULL;
    return OK;
}
