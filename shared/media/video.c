// Decoding a video: its packets in the order of presentation, an even number of samples from them, which are decoded,
// rotated and resized.
//
// The surprise: a sample is known by the pts of its packet, so that only the packets from the last key frame on are
// decoded. Where packets have no pts of their own, or a packet gives no frame (fields, hidden frames), the whole file
// is decoded twice: once to count the frames, once to take the samples by their index among them.
#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/media/decode.h"
#include "shared/media/ffmpeg.h"

// ---- packets ----

// A packet, in the order of the file.
struct packet_info {
    int64_t pts;    // in the stream's time base
    bool displayed; // a player displays its frame
    bool keyframe;  // decoding from here on gives exactly the frames of this pts and later ones
};

struct displayed_packet {
    int64_t pts;
    size_t index; // into packets
};

// The packets of a video, known before anything is decoded: when each one is displayed and where decoding may start.
//
// The surprise: a container's key frame flags are not enough. They include open groups of pictures and gradual refresh,
// after which some frames differ. For H.264 and HEVC the NAL units themselves decide.
struct packet_index {
    struct packet_info *packets;
    size_t count;
    struct displayed_packet *displayed; // sorted by pts
    size_t displayed_count;
    bool unique_pts;   // every displayed packet has a pts of its own; if not, `displayed` is in the order of the file
    AVPacket **cached; // [count], the packets themselves while they need little memory; NULL: read the file again
};

enum { MAX_CACHED_BYTES = 64 << 20, VP8_SHOW_FRAME = 0x10 };
enum { H264_SLICE = 1, H264_IDR = 5, H264_SPS = 7, H264_PPS = 8 };
enum { HEVC_BLA = 16, HEVC_CRA = 21, HEVC_LAST_SLICE = 31, HEVC_VPS = 32, HEVC_SPS = 33, HEVC_PPS = 34 };

// Whether the packet refers to none before it and to none that is displayed after it. In H.264 and HEVC those are IDR
// and CRA pictures and the like; *parameter_sets collects whether any packet so far carried SPS or PPS: then a jump is
// only possible to packets that carry both.
static bool packet_index_is_keyframe(const AVPacket *packet, const AVCodecParameters *codec, bool *parameter_sets) {
    enum AVCodecID id = codec->codec_id;
    if (id == AV_CODEC_ID_VP8 || id == AV_CODEC_ID_VP9 || id == AV_CODEC_ID_AV1) return packet->flags & AV_PKT_FLAG_KEY;
    if (id != AV_CODEC_ID_H264 && id != AV_CODEC_ID_HEVC) {
        const AVCodecDescriptor *descriptor = ffmpeg.avcodec_descriptor_get(id);
        return descriptor && descriptor->props & AV_CODEC_PROP_INTRA_ONLY && id != AV_CODEC_ID_APNG;
    }
    bool hevc = id == AV_CODEC_ID_HEVC, sps = false, pps = false, vps = false;
    const uint8_t *at = packet->data, *end = at + packet->size;
    int box_size = hevc ? 23 : 7, length_offset = hevc ? 21 : 4; // of hvcC or avcC, which begins with its version, 1
    bool box = codec->extradata_size >= box_size && codec->extradata[0] == 1;
    int length_size = box ? (codec->extradata[length_offset] & 3) + 1 : 0; // bytes in front of each NAL unit
    for (;;) {
        const uint8_t *unit;
        if (length_size == 0) { // a start code is in front of each unit
            while (end - at > 3 && (at[0] || at[1] || at[2] != 1)) at++;
            if (end - at <= 3) break;
            unit = at += 3;
        } else {
            if (end - at <= length_size) break;
            size_t length = 0;
            for (int i = 0; i < length_size; i++) length = length << 8 | *at++;
            unit = at;
            if (length == 0 || length > (size_t)(end - at)) break;
            at += length;
        }
        int type = hevc ? *unit >> 1 & 63 : *unit & 31;
        sps |= type == (hevc ? HEVC_SPS : H264_SPS);
        pps |= type == (hevc ? HEVC_PPS : H264_PPS);
        vps |= hevc && type == HEVC_VPS;
        bool slice = hevc ? type <= HEVC_LAST_SLICE : type >= H264_SLICE && type <= H264_IDR;
        if (!slice) continue;
        bool complete = !*parameter_sets || (sps && pps);
        *parameter_sets |= sps || pps || vps;
        return complete && (hevc ? type >= HEVC_BLA && type <= HEVC_CRA : type == H264_IDR);
    }
    *parameter_sets |= sps || pps || vps;
    return false;
}

static void packet_index_drop_cache(struct packet_index *index) {
    for (size_t i = 0; index->cached && i < index->count; i++) ffmpeg.av_packet_free(&index->cached[i]);
    free(index->cached);
    index->cached = NULL;
}

static int packet_index_compare(const void *a, const void *b) {
    const struct displayed_packet *x = a, *y = b;
    if (x->pts != y->pts) return x->pts < y->pts ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

// Whether a GIF ends inside a block. FFmpeg takes the end of such a file for that of the block, and decodes what there
// is of its last picture. A GIF that lacks only its trailer is whole; blocks that are not GIF's are FFmpeg's to judge.
static bool packet_index_gif_is_cut(const struct demuxer *demuxer) {
    enum { HEADER_SIZE = 13, HEADER_FLAGS = 10, EXTENSION = 0x21, EXTENSION_SIZE = 2 };
    enum { PICTURE = 0x2c, PICTURE_FLAGS = 9, PICTURE_SIZE = 11, HAS_PALETTE = 0x80, PALETTE_BITS = 7 };
    const int fd = demuxer->fd;
    uint8_t byte;
    if (!fd_pread_all(fd, &byte, 1, HEADER_FLAGS)) return true;
    off_t at = HEADER_SIZE + (byte & HAS_PALETTE ? 3 * (2 << (byte & PALETTE_BITS)) : 0);
    while (at < demuxer->size) {
        if (!fd_pread_all(fd, &byte, 1, at)) return true;
        if (byte == EXTENSION) {
            at += EXTENSION_SIZE;
        } else if (byte == PICTURE) {
            if (!fd_pread_all(fd, &byte, 1, at + PICTURE_FLAGS)) return true;
            at += PICTURE_SIZE + (byte & HAS_PALETTE ? 3 * (2 << (byte & PALETTE_BITS)) : 0);
        } else {
            return false;
        }
        do { // the block's data: pieces with their length in front, up to an empty one
            if (!fd_pread_all(fd, &byte, 1, at)) return true;
            at += 1 + byte;
        } while (byte);
    }
    return at > demuxer->size;
}

// Reads the whole file through `demuxer`. BAD_SAMPLE when it is truncated.
static status packet_index_build(struct packet_index *index, struct demuxer *demuxer) {
    *index = (struct packet_index){0};
    // The header of an MP4 file lists its samples; those of a truncated file lie beyond its end.
    bool mp4 = strstr(demuxer->format->iformat->name, "mp4") != NULL;
    int count = mp4 ? ffmpeg.avformat_index_get_entries_count(demuxer->stream) : 0, missing = 0;
    for (int i = 0; i < count; i++) {
        const AVIndexEntry *entry = ffmpeg.avformat_index_get_entry(demuxer->stream, i);
        missing += entry->pos + entry->size > demuxer->size;
    }
    if (missing) return fail(BAD_SAMPLE, "the file is truncated: %d of its %d frames are missing", missing, count);
    if (!strcmp(demuxer->format->iformat->name, "gif") && packet_index_gif_is_cut(demuxer))
        return fail(BAD_SAMPLE, "the file is truncated");
    const AVCodecParameters *codec = demuxer->stream->codecpar;
    size_t cached_bytes = 0;
    bool started = false;            // a key frame was read; packets before the first one cannot be decoded
    bool parameter_sets = false;     // see packet_index_is_keyframe
    bool parameters_changed = false; // in the middle of the stream, so no packet may be jumped over
    AVPacket *packet = mem_checked(ffmpeg.av_packet_alloc());
    status result;
    for (; (result = demuxer_read(demuxer, packet)) == OK; index->count++, ffmpeg.av_packet_unref(packet)) {
        GROW(&index->packets, index->count);
        if (cached_bytes <= MAX_CACHED_BYTES) GROW(&index->cached, index->count);
        started |= packet->flags & AV_PKT_FLAG_KEY;
        parameters_changed |=
            index->count && (ffmpeg.av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL) ||
                             ffmpeg.av_packet_get_side_data(packet, AV_PKT_DATA_PARAM_CHANGE, NULL));
        bool hidden = codec->codec_id == AV_CODEC_ID_VP8 && packet->size > 0 && !(packet->data[0] & VP8_SHOW_FRAME);
        index->packets[index->count] = (struct packet_info){
            .pts = packet->pts,
            .displayed = started && !(packet->flags & AV_PKT_FLAG_DISCARD) && !hidden,
            .keyframe = packet_index_is_keyframe(packet, codec, &parameter_sets),
        };
        cached_bytes += (size_t)packet->size + sizeof *packet;
        if (cached_bytes > MAX_CACHED_BYTES) packet_index_drop_cache(index);
        if (!index->cached) continue;
        index->cached[index->count] = mem_checked(ffmpeg.av_packet_clone(packet));
    }
    ffmpeg.av_packet_free(&packet);
    if (result != END) return result;

    NEW(&index->displayed, index->count);
    index->unique_pts = true;
    for (size_t i = 0; i < index->count; i++) {
        if (parameters_changed) index->packets[i].keyframe = false;
        if (!index->packets[i].displayed) continue;
        index->displayed[index->displayed_count++] = (struct displayed_packet){index->packets[i].pts, i};
        index->unique_pts &= index->packets[i].pts != AV_NOPTS_VALUE;
    }
    assert(index->displayed_count <= index->count);
    if (!index->unique_pts) return OK;
    qsort(index->displayed, index->displayed_count, sizeof *index->displayed, packet_index_compare);
    for (size_t i = 1; i < index->displayed_count; i++) {
        index->unique_pts &= index->displayed[i].pts != index->displayed[i - 1].pts;
    }
    return OK;
}

// ---- frames ----

// What a player does to a decoded frame, and then the resampler: from its pixels to the final ones. A zeroed struct is
// ready. Not to be used by two threads at once.
struct frame_converter {
    int format, width, height, space, range; // of the frames that the rest was made for
    struct SwsContext *scaler;
    uint8_t *rgb, *rotated;
    int stride; // of `rgb`
    struct resizer *resizer;
};

struct frame_size {
    int height, width;
};

// Returns the frame's size after the rotation.
static struct frame_size frame_rotated_size(const AVFrame *frame, int rotation) {
    const bool upright = rotation == 0 || rotation == 180;
    return upright ? (struct frame_size){frame->height, frame->width}
                   : (struct frame_size){frame->width, frame->height};
}

static void frame_converter_release(struct frame_converter *converter) {
    ffmpeg.sws_freeContext(converter->scaler);
    ffmpeg.av_free(converter->rgb);
    free(converter->rotated);
    resizer_free(&converter->resizer);
    *converter = (struct frame_converter){0};
}

// out[size.height, size.width, RGB] = the frame. BAD_SAMPLE when it is damaged or cannot be converted, UNAVAILABLE when
// memory is short.
static status frame_convert(struct frame_converter *converter, const AVFrame *frame, int rotation,
                            struct frame_size size, uint8_t *out) {
    if (frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags)
        return ffmpeg_fail(0, "a sampled frame is damaged");
    assert(size.height > 0 && size.width > 0);
    const struct frame_size in = frame_rotated_size(frame, rotation);
    if (!converter->resizer || converter->format != frame->format || converter->width != frame->width ||
        converter->height != frame->height || converter->space != (int)frame->colorspace ||
        converter->range != (int)frame->color_range) { // it was not made for frames like this one
        frame_converter_release(converter);
        TRY(color_new_scaler(&converter->scaler, frame, AV_PIX_FMT_RGB24, SWS_BILINEAR));
        // swscale may write up to a vector's length past the end of a row.
        converter->stride = (frame->width * 3 + 127) / 64 * 64;
        converter->rgb = ffmpeg.av_malloc((size_t)converter->stride * (size_t)frame->height + 64);
        if (!converter->rgb) return fail_oom();
        if (rotation) TRY(NEW_LARGE(&converter->rotated, (size_t)in.height * (size_t)in.width * 3));
        converter->format = frame->format;
        converter->width = frame->width;
        converter->height = frame->height;
        converter->space = (int)frame->colorspace;
        converter->range = (int)frame->color_range;
        TRY(resizer_new(&converter->resizer, in.height, in.width, size.height, size.width));
    }
    const uint8_t *rgb = converter->rgb;
    ptrdiff_t stride = converter->stride;
    TRY(color_scale(converter->scaler, frame, (uint8_t *[4]){converter->rgb}, (int[4]){converter->stride}));
    if (rotation) { // clockwise, into rows without gaps
        assert(rotation == 90 || rotation == 180 || rotation == 270);
        int height = frame->height, width = frame->width;
        for (int y = 0; y < height; y++) {
            for (int x = 0; x < width; x++) {
                int out_y = rotation == 90 ? x : rotation == 180 ? height - 1 - y : width - 1 - x;
                int out_x = rotation == 90 ? height - 1 - y : rotation == 180 ? width - 1 - x : y;
                size_t pixel = (size_t)out_y * (size_t)in.width + (size_t)out_x;
                memcpy(converter->rotated + pixel * 3, rgb + y * stride + x * 3, 3);
            }
        }
        rgb = converter->rotated;
        stride = (ptrdiff_t)in.width * 3;
    }
    resizer_run(converter->resizer, rgb, stride, out);
    return OK;
}

// ---- the video ----

enum { MAX_VIDEO_THREADS = 8, VIDEO_ERROR_SIZE = 240 }; // more threads only need more memory

struct video_sample {
    int64_t pts;   // in the stream's time base; by_index: the frame's index
    size_t packet; // its packet's index
    double time;   // in seconds from the first frame
    bool done;
};

// What one thread needs to decode.
struct video_decoder {
    struct video *video;
    AVCodecContext *codec;
    AVFrame *frame;
    struct frame_converter converter;
    char error[VIDEO_ERROR_SIZE]; // the first error of the codec, empty: none
};

struct video {
    const char *path;
    const struct sampling_config *sampling;
    struct media_options options; // threads: at most MAX_VIDEO_THREADS
    struct demuxer demuxer;
    struct packet_index index;
    struct demuxer second_demuxer; // reads the file again when its packets were too large to keep
    size_t second_position;        // the index of its next packet
    double fps;
    int rotation;                 // 0, 90, 180 or 270
    struct video_sample *samples; // [frames.count], sorted by pts
    struct frames frames;
    uint8_t *pixels;              // [frames.count, height, width, RGB]; NULL until the first sample is decoded
    double *timestamps;           // [frames.count], behind the pixels in one block
    bool by_index;                // samples are known by their index among the decoded frames
    int64_t decoded_count;        // frames decoded so far (by_index)
    double *decoded_times;        // [decoded_count] in seconds, NaN: unknown (by_index, first pass)
    bool times_rise;              // the decoded times are known and rise (by_index)
    struct video_decoder decoder; // of the calling thread
};

// Returns the index of the sample with this pts that is still to be decoded, -1: none.
static int video_find_sample(const struct video *video, int64_t pts) {
    for (int i = 0; i < video->frames.count; i++)
        if (video->samples[i].pts == pts && !video->samples[i].done) return i;
    return -1;
}

// ---- decoding packets ----

static status video_decoder_note_error(struct video_decoder *decoder, int code) {
    status result = ffmpeg_fail(code, "cannot be decoded");
    if (result != BAD_SAMPLE) return result;
    if (!decoder->error[0]) snprintf(decoder->error, sizeof decoder->error, "%s", fail_text());
    return OK;
}

// Sends one packet (NULL: the end) to the codec and keeps those of the frames that come out which are samples. The
// first sample decides the size of all. An error of the codec is noted and does not fail: only the samples count.
static status video_decoder_send(struct video_decoder *decoder, const AVPacket *packet) {
    struct video *video = decoder->video;
    AVFrame *frame = decoder->frame;
    ffmpeg_clear_error();
    int code = ffmpeg.avcodec_send_packet(decoder->codec, packet);
    if (code < 0 && code != AVERROR_EOF) TRY(video_decoder_note_error(decoder, code));
    status result = OK;
    for (; result == OK; ffmpeg.av_frame_unref(frame)) {
        code = ffmpeg.avcodec_receive_frame(decoder->codec, frame);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return OK;
        if (code < 0) return video_decoder_note_error(decoder, code);
        int64_t pts = frame->pts;
        if (video->by_index && !video->samples) {
            GROW(&video->decoded_times, (size_t)video->decoded_count);
            int64_t time = frame->best_effort_timestamp;
            double time_base = av_q2d(video->demuxer.stream->time_base);
            video->decoded_times[video->decoded_count] = time == AV_NOPTS_VALUE ? NAN : (double)time * time_base;
        }
        if (video->by_index) pts = video->decoded_count++;
        int i = video->samples ? video_find_sample(video, pts) : -1;
        if (i < 0) continue;
        struct frame_size size = frame_rotated_size(frame, video->rotation);
        if (!video->pixels)
            result = sampling_new_frames(video->sampling, size.height, size.width, &video->frames, &video->pixels,
                                         &video->timestamps);
        if (result != OK) continue;
        size = (struct frame_size){video->frames.height, video->frames.width};
        size_t bytes = (size_t)size.height * (size_t)size.width * 3;
        result = frame_convert(&decoder->converter, frame, video->rotation, size, video->pixels + (size_t)i * bytes);
        assert(!video->samples[i].done);
        video->samples[i].done = result == OK;
    }
    return result;
}

// Decodes the packets first..last and what the codec still holds then.
static status video_decode_packets(struct video_decoder *decoder, size_t first, size_t last) {
    struct video *video = decoder->video;
    AVCodecContext *codec = decoder->codec;
    AVPacket *scratch = mem_checked(ffmpeg.av_packet_alloc());
    // In these codecs, leaving out frames that no other refers to changes no other frame.
    bool skip = !video->options.sequential && !video->by_index &&
                (codec->codec_id == AV_CODEC_ID_H264 || codec->codec_id == AV_CODEC_ID_HEVC ||
                 codec->codec_id == AV_CODEC_ID_MPEG2VIDEO);
    status result = OK;
    assert(last < video->index.count);
    for (size_t i = first; i <= last; i++) {
        const AVPacket *packet = scratch;
        if (video->index.cached) {
            packet = video->index.cached[i];
        } else { // read the file again, once for a sequence of rising indices
            if (!video->second_demuxer.format || video->second_position > i) {
                demuxer_close(&video->second_demuxer);
                TRY_TO(result, done, demuxer_open(&video->second_demuxer, video->path, 1, DEMUX_VIDEO));
                video->second_position = 0;
            }
            for (; video->second_position <= i; video->second_position++) {
                ffmpeg.av_packet_unref(scratch);
                result = demuxer_read(&video->second_demuxer, scratch);
                if (result == END) result = fail(BAD_SAMPLE, "the file changed while it was read");
                if (result != OK) goto done;
            }
        }
        bool needed = !skip || video_find_sample(video, packet->pts) >= 0;
        codec->skip_frame = needed ? AVDISCARD_DEFAULT : AVDISCARD_NONREF;
        TRY_TO(result, done, video_decoder_send(decoder, packet));
    }
    result = video_decoder_send(decoder, NULL);
done:
    ffmpeg.avcodec_flush_buffers(codec);
    ffmpeg.av_packet_free(&scratch);
    return result;
}

// ---- ranges of packets ----

// Packets that are decoded independently of all others, and the outcome.
struct decode_range {
    size_t first, last;
    status result;
    char error[VIDEO_ERROR_SIZE]; // of result, or of the codec; empty: none
};

static_assert(sizeof((struct decode_range){0}.error) == sizeof((struct video_decoder){0}.error), "errors are copied");

struct decode_range_queue {
    struct video *video;
    struct decode_range *ranges;
    atomic_int next;
    int count;
};

// Returns the last packet up to the sample's from which decoding gives exactly that sample.
static size_t video_find_keyframe(const struct video *video, const struct video_sample *sample) {
    if (video->options.sequential) return 0;
    for (size_t i = sample->packet + 1; i-- > 0;) {
        const struct packet_info *packet = &video->index.packets[i];
        if (packet->keyframe && packet->pts != AV_NOPTS_VALUE && packet->pts <= sample->pts) return i;
    }
    return 0;
}

static void decode_range_run(struct decode_range *range, struct video_decoder *decoder) {
    assert(range->first <= range->last);
    decoder->error[0] = 0;
    range->result = video_decode_packets(decoder, range->first, range->last);
    snprintf(range->error, sizeof range->error, "%s", range->result == OK ? decoder->error : fail_text());
}

// A thread. It writes only to its own decoder, to the ranges it takes and to the samples and pixels in them.
static void *decode_range_thread(void *argument) {
    struct decode_range_queue *queue = argument;
    const struct demuxer *demuxer = &queue->video->demuxer;
    struct video_decoder decoder = {.video = queue->video, .frame = ffmpeg.av_frame_alloc()};
    if (decoder.frame && demuxer_new_decoder(&decoder.codec, demuxer, demuxer->decoder->codec, 1, DEMUX_VIDEO) == OK) {
        for (int i; (i = atomic_fetch_add(&queue->next, 1)) < queue->count;)
            decode_range_run(&queue->ranges[i], &decoder);
    }
    ffmpeg.avcodec_free_context(&decoder.codec);
    ffmpeg.av_frame_free(&decoder.frame);
    frame_converter_release(&decoder.converter);
    return NULL;
}

// ---- samples ----

// Returns the time of a frame in seconds from the first one.
static double video_frame_time(const void *context, int64_t index) {
    const struct video *video = context;
    const struct displayed_packet *displayed = video->index.displayed;
    const double *times = video->decoded_times;
    if (video->by_index) return video->times_rise ? times[index] - times[0] : (double)index / video->fps;
    return (double)(displayed[index].pts - displayed[0].pts) * av_q2d(video->demuxer.stream->time_base);
}

// Allocates the samples of a video of `count` frames, of which *range from *first on are sampled.
static status video_new_samples(struct video *video, int64_t count, int64_t *first, int64_t *range) {
    struct frames *frames = &video->frames;
    TRY(sampling_range(video->sampling, count, video_frame_time, video, first, range));
    TRY(sampling_frame_count(video->sampling, *range, video->fps, &frames->count));
    frames->seconds_per_grid = 2 / ((double)frames->count / (double)*range * video->fps);
    NEW(&video->samples, (size_t)frames->count);
    return OK;
}

static bool video_is_complete(const struct video *video) {
    for (int i = 0; i < video->frames.count; i++) {
        if (!video->samples[i].done) return false;
    }
    return true;
}

static status video_decode_by_pts(struct video *video) {
    const struct displayed_packet *displayed = video->index.displayed;
    int64_t start, range;
    TRY(video_new_samples(video, (int64_t)video->index.displayed_count, &start, &range));
    for (int i = 0; i < video->frames.count; i++) {
        int64_t at = start + sampling_frame_index(range, video->frames.count, i);
        video->samples[i] = (struct video_sample){
            .pts = displayed[at].pts, .packet = displayed[at].index, .time = video_frame_time(video, at)};
    }
    struct decode_range_queue queue = {.video = video, .next = 1};
    struct decode_range *ranges;
    NEW(&ranges, (size_t)video->frames.count);
    for (int i = 0; i < video->frames.count;) {
        size_t first = video_find_keyframe(video, &video->samples[i]), last = video->samples[i].packet;
        for (i++; i < video->frames.count && video_find_keyframe(video, &video->samples[i]) <= last; i++) {
            if (video->samples[i].packet > last) last = video->samples[i].packet;
        }
        ranges[queue.count++] = (struct decode_range){.first = first, .last = last};
    }
    queue.ranges = ranges;
    // The first range, which decides the frames' size, runs alone with all threads in the codec. The others run in
    // parallel, because one thread per range is faster than several threads in one range.
    const int threads = video->options.threads;
    assert(queue.count > 0 && threads <= MAX_VIDEO_THREADS);
    decode_range_run(&ranges[0], &video->decoder);
    if (ranges[0].result == OK && threads > 1 && queue.count > 2 && video->index.cached && video->pixels) {
        pthread_t others[MAX_VIDEO_THREADS];
        int started = 0;
        while (started < threads - 1 && started < queue.count - 1 &&
               !pthread_create(&others[started], NULL, decode_range_thread, &queue))
            started++;
        decode_range_thread(&queue);
        while (started) pthread_join(others[--started], NULL);
    }
    // The ranges that no thread took: without threads all of them.
    for (int i = atomic_load(&queue.next); ranges[0].result == OK && i < queue.count; i++)
        decode_range_run(&ranges[i], &video->decoder);
    status result = OK;
    video->decoder.error[0] = 0;
    for (int i = 0; result == OK && i < queue.count; i++) {
        if (ranges[i].result != OK)
            result = fail(ranges[i].result, "%s", ranges[i].error);
        else if (!video->decoder.error[0])
            memcpy(video->decoder.error, ranges[i].error, sizeof ranges[i].error);
    }
    free(ranges);
    return result;
}

static status video_decode_samples(struct video *video) {
    TRY(demuxer_open(&video->demuxer, video->path, video->options.threads, DEMUX_VIDEO));
    TRY(packet_index_build(&video->index, &video->demuxer));
    if (video->index.displayed_count == 0) return fail(BAD_SAMPLE, "has no frame");
    video->decoder.video = video;
    video->decoder.codec = video->demuxer.decoder;
    video->decoder.frame = mem_checked(ffmpeg.av_frame_alloc());
    const AVStream *stream = video->demuxer.stream;
    const struct packet_index *index = &video->index;
    video->fps = av_q2d(stream->avg_frame_rate);
    if (!(video->fps > 0 && isfinite(video->fps))) video->fps = av_q2d(stream->r_frame_rate);
    if (!(video->fps > 0 && isfinite(video->fps))) { // the container has no rate: the average of the timestamps
        video->fps = 25;
        if (index->unique_pts && index->displayed_count > 1) {
            int64_t span = index->displayed[index->displayed_count - 1].pts - index->displayed[0].pts;
            video->fps = (double)(index->displayed_count - 1) / ((double)span * av_q2d(stream->time_base));
        }
    }
    // By how many degrees a player rotates the frames clockwise.
    const uint8_t *data = NULL;
    size_t size = 0;
#if LIBAVFORMAT_VERSION_INT >= AV_VERSION_INT(60, 15, 100)
    const AVPacketSideData *entry = ffmpeg.av_packet_side_data_get(
        stream->codecpar->coded_side_data, stream->codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
    if (entry) data = entry->data, size = entry->size;
#else
    data = ffmpeg.av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, &size);
#endif
    // FFmpeg allocates side data with an alignment that suits every type.
    const int32_t *matrix = size >= 9 * sizeof *matrix ? (const int32_t *)(const void *)data : NULL;
    double angle = matrix ? -ffmpeg.av_display_rotation_get(matrix) : 0; // NaN: there is none
    angle -= 360 * floor(angle / 360 + 0.9 / 360);
    for (int rotation = 90; rotation < 360; rotation += 90)
        if (fabs(angle - rotation) < 1) video->rotation = rotation;

    const char *error = video->decoder.error;
    if (video->index.unique_pts) {
        TRY(video_decode_by_pts(video));
        if (video_is_complete(video)) return OK;
        if (error[0]) return fail(BAD_SAMPLE, "%s", error);
    }

    // The timestamps do not identify the frames: decodes the video once to count them and once more for the samples.
    free(video->samples);
    free(video->pixels);
    video->samples = NULL;
    video->pixels = NULL;
    video->by_index = true;
    video->decoded_count = 0;
    TRY(video_decode_packets(&video->decoder, 0, index->count - 1));
    int64_t count = video->decoded_count;
    if (count == 0) return fail(BAD_SAMPLE, "%s", error[0] ? error : "has no frame");
    const double *times = video->decoded_times;
    video->times_rise = !isnan(times[0]);
    for (int64_t i = 1; i < count; i++) video->times_rise &= times[i] > times[i - 1];
    int64_t first, range;
    TRY(video_new_samples(video, count, &first, &range));
    for (int i = 0; i < video->frames.count; i++) {
        int64_t at = first + sampling_frame_index(range, video->frames.count, i);
        video->samples[i] = (struct video_sample){.pts = at, .time = video_frame_time(video, at)};
    }
    video->decoded_count = 0;
    TRY(video_decode_packets(&video->decoder, 0, index->count - 1));
    return video_is_complete(video) ? OK : fail(BAD_SAMPLE, "%s", error[0] ? error : "frames are missing");
}

status video_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                    const struct media_options *options) {
    *view = (struct frames_view){0};
    struct video *video;
    NEW(&video, 1);
    video->path = path;
    video->sampling = sampling;
    video->frames.video = true;
    video->demuxer.fd = video->second_demuxer.fd = -1;
    if (options) video->options = *options;
    if (video->options.threads < 1) video->options.threads = 1;
    if (video->options.threads > MAX_VIDEO_THREADS) video->options.threads = MAX_VIDEO_THREADS;
    status result = video_decode_samples(video);
    if (result == OK) {
        for (int i = 0; i < video->frames.count; i++) video->timestamps[i] = video->samples[i].time;
        *view = (struct frames_view){.frames = video->frames, .owned = video->pixels};
        video->pixels = NULL;
    }
    free(video->samples);
    free(video->pixels);
    free(video->decoded_times);
    frame_converter_release(&video->decoder.converter);
    ffmpeg.av_frame_free(&video->decoder.frame);
    packet_index_drop_cache(&video->index);
    free(video->index.packets);
    free(video->index.displayed);
    demuxer_close(&video->second_demuxer);
    demuxer_close(&video->demuxer);
    free(video);
    return result;
}
