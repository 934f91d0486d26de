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

#include "shared/base/memory.h"
#include "shared/media/color.h"
#include "shared/media/decode.h"
#include "shared/media/demux.h"
#include "shared/media/packet_index.h"

enum { video_max_threads = 8, video_error_size = 240 }; // more threads only need more memory

struct video_sample {
    int64_t pts;   // in the stream's time base; by_index: the frame's index
    size_t packet; // its packet's index
    bool done;
};

// What one thread needs to decode.
struct video_decoder {
    struct video *video;
    AVCodecContext *codec;
    AVFrame *frame;
    struct frame_converter converter;
    char error[video_error_size]; // the first error of the codec, empty: none
};

struct video {
    const char *path;
    const struct sampling_config *sampling;
    struct media_options options;
    struct demuxer demuxer;
    struct packet_index index;
    struct demuxer second_demuxer; // reads the file again when its packets were too large to keep
    size_t second_position;        // the index of its next packet
    double fps;
    int rotation;
    struct video_sample *samples; // [frames.count], sorted by pts
    struct frames frames;
    uint8_t *pixels;       // [frames.count, height, width, RGB]; NULL until the first sample is decoded
    double *timestamps;    // [frames.count]
    bool by_index;         // samples are known by their index among the decoded frames
    int64_t decoded_count; // frames decoded so far (by_index)
    double *decoded_times; // [decoded_count] in seconds, NaN: unknown (by_index, first pass)
    bool times_rise;       // the decoded times are known and rise (by_index)
    size_t times_capacity;
    struct video_decoder decoder; // of the calling thread
};

static int video_thread_count(const struct video *video) {
    int threads = video->options.threads;
    return threads < 1 ? 1 : threads > video_max_threads ? video_max_threads : threads;
}

// Returns the index of the sample with this pts that is still to be decoded, -1: none.
static int video_find_sample(const struct video *video, int64_t pts) {
    int low = 0, high = video->frames.count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (video->samples[middle].pts < pts)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < video->frames.count && video->samples[low].pts == pts && !video->samples[low].done;
    return found ? low : -1;
}

// ---- decoding packets ----

// Keeps the decoder's frame if it is a sample. The first sample decides the size of all.
static status video_decoder_take_frame(struct video_decoder *decoder) {
    struct video *video = decoder->video;
    const AVFrame *frame = decoder->frame;
    int64_t pts = frame->pts;
    if (video->by_index && !video->samples) {
        if ((size_t)video->decoded_count == video->times_capacity) {
            video->times_capacity = video->times_capacity ? video->times_capacity * 2 : 256;
            RESIZE(&video->decoded_times, video->times_capacity);
        }
        int64_t time = frame->best_effort_timestamp;
        double time_base = av_q2d(video->demuxer.stream->time_base);
        video->decoded_times[video->decoded_count] = time == AV_NOPTS_VALUE ? NAN : (double)time * time_base;
    }
    if (video->by_index) pts = video->decoded_count++;
    int i = video->samples ? video_find_sample(video, pts) : -1;
    if (i < 0) return OK;
    if (!video->pixels) {
        struct frame_size size = rotated_size(frame, video->rotation);
        double max_pixels = sampling_frame_max_pixels(video->sampling, video->frames.count);
        TRY(smart_resize(size.height, size.width, video->sampling->min_pixels, max_pixels, &video->frames.height,
                         &video->frames.width));
        TRY(NEW_LARGE(&video->pixels, frames_bytes(&video->frames)));
    }
    struct frame_size size = {video->frames.height, video->frames.width};
    size_t bytes = (size_t)size.height * (size_t)size.width * 3;
    TRY(frame_convert(&decoder->converter, frame, video->rotation, size, video->pixels + (size_t)i * bytes));
    assert(!video->samples[i].done);
    video->samples[i].done = true;
    return OK;
}

static status video_decoder_note_error(struct video_decoder *decoder, int code) {
    status result = ffmpeg_fail(code, "cannot be decoded");
    if (result != BAD_SAMPLE) return result;
    if (!decoder->error[0]) snprintf(decoder->error, sizeof decoder->error, "%s", fail_text());
    return OK;
}

// Sends one packet (NULL: the end) to the codec and takes the frames that come out. An error of the codec is noted and
// does not fail: only the samples count.
static status video_decoder_send(struct video_decoder *decoder, const AVPacket *packet) {
    ffmpeg_clear_error();
    int code = avcodec_send_packet(decoder->codec, packet);
    if (code < 0 && code != AVERROR_EOF) TRY(video_decoder_note_error(decoder, code));
    for (;;) {
        code = avcodec_receive_frame(decoder->codec, decoder->frame);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return OK;
        if (code < 0) return video_decoder_note_error(decoder, code);
        status result = video_decoder_take_frame(decoder);
        av_frame_unref(decoder->frame);
        if (result != OK) return result;
    }
}

// Decodes the packets first..last and what the codec still holds then.
static status video_decode_packets(struct video_decoder *decoder, size_t first, size_t last) {
    struct video *video = decoder->video;
    AVCodecContext *codec = decoder->codec;
    AVPacket *scratch = mem_checked(av_packet_alloc());
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
                av_packet_unref(scratch);
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
    avcodec_flush_buffers(codec);
    av_packet_free(&scratch);
    return result;
}

// ---- ranges of packets ----

// Packets that are decoded independently of all others, and the outcome.
struct decode_range {
    size_t first, last;
    status result;
    char error[video_error_size]; // of result, or of the codec; empty: none
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
    struct video_decoder decoder = {.video = queue->video, .frame = av_frame_alloc()};
    if (decoder.frame && demuxer_new_decoder(&decoder.codec, demuxer, demuxer->decoder->codec, 1, DEMUX_VIDEO) == OK) {
        for (int i; (i = atomic_fetch_add(&queue->next, 1)) < queue->count;)
            decode_range_run(&queue->ranges[i], &decoder);
    }
    avcodec_free_context(&decoder.codec);
    av_frame_free(&decoder.frame);
    frame_converter_release(&decoder.converter);
    return NULL;
}

// ---- samples ----

static void video_free_samples(struct video *video) {
    free(video->samples);
    free(video->timestamps);
    free(video->pixels);
    video->samples = NULL;
    video->timestamps = NULL;
    video->pixels = NULL;
}

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
    NEW(&video->timestamps, (size_t)frames->count);
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
        video->samples[i] = (struct video_sample){.pts = displayed[at].pts, .packet = displayed[at].index};
        video->timestamps[i] = video_frame_time(video, at);
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
    int threads = video_thread_count(video);
    assert(queue.count > 0 && threads <= video_max_threads);
    decode_range_run(&ranges[0], &video->decoder);
    if (ranges[0].result == OK && threads > 1 && queue.count > 2 && video->index.cached && video->pixels) {
        pthread_t others[video_max_threads];
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
    TRY(demuxer_open(&video->demuxer, video->path, video_thread_count(video), DEMUX_VIDEO));
    TRY(packet_index_build(&video->index, &video->demuxer));
    if (video->index.displayed_count == 0) return fail(BAD_SAMPLE, "has no frame");
    video->decoder.video = video;
    video->decoder.codec = video->demuxer.decoder;
    video->decoder.frame = mem_checked(av_frame_alloc());
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
    video->rotation = stream_rotation(stream);
    bool complete = false;
    const char *error = video->decoder.error;
    if (video->index.unique_pts) {
        TRY(video_decode_by_pts(video));
        complete = video_is_complete(video);
        if (!complete && error[0]) return fail(BAD_SAMPLE, "%s", error);
    }
    if (complete) return OK;

    // The timestamps do not identify the frames: decodes the video once to count them and once more for the samples.
    video_free_samples(video);
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
        video->samples[i] = (struct video_sample){.pts = at};
        video->timestamps[i] = video_frame_time(video, at);
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
    status result = video_decode_samples(video);
    if (result == OK) { // the view gets one block: pixels, then timestamps
        enum { alignment = 64 };
        static_assert(alignment % sizeof(double) == 0, "timestamps follow the pixels in one block");
        size_t bytes = (frames_bytes(&video->frames) + alignment - 1) / alignment * alignment;
        size_t times = (size_t)video->frames.count * sizeof(double);
        result = RESIZE_LARGE(&video->pixels, bytes + times);
        if (result == OK) {
            memcpy(video->pixels + bytes, video->timestamps, times);
            video->frames.pixels = video->pixels;
            video->frames.timestamps = (const double *)(const void *)(video->pixels + bytes);
            *view = (struct frames_view){.frames = video->frames, .owned = video->pixels};
            video->pixels = NULL;
        }
    }
    video_free_samples(video);
    free(video->decoded_times);
    frame_converter_release(&video->decoder.converter);
    av_frame_free(&video->decoder.frame);
    packet_index_release(&video->index);
    demuxer_close(&video->second_demuxer);
    demuxer_close(&video->demuxer);
    free(video);
    return result;
}
