// The clip's chain: packets in order of presentation, an even number of them picked, decoded, turned, resized.
//
// A pick is known by its packet's time. Where packets have no times of their own, or a packet gives no frame (fields,
// frames never shown), all frames are decoded once to be counted, and the picks are made among those that came out.
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <libavutil/display.h>
#include <libswscale/swscale.h>

#include "shared/base/memory.h"
#include "shared/media/colour.h"
#include "shared/media/decode.h"
#include "shared/media/packets.h"
#include "shared/media/resize.h"

struct pick {
    int64_t time;   // what the frame is known by, in the stream's units; counted clips: its place among the frames
    size_t ordinal; // of its packet
    bool done;
};

struct clip {
    const struct sampling_config *sampling;
    const char *path;
    struct media_options options;
    struct container container, second; // `second` reads the file again when its packets were too many to keep
    size_t second_at;
    struct packets packets;
    double fps;
    int turn; // degrees clockwise: 0, 90, 180, 270
    struct pick *picks;
    int count;
    struct colour colour;
    struct resizer *resizer;
    int in_height, in_width; // what the resizer is for
    uint8_t *turned;
    struct frames frames; // pixels and timestamps are on the heap, owned by the clip until it is done
    uint8_t *pixels;
    double *timestamps;
    AVFrame *frame;
    bool counted;  // picks are places among the frames that come out
    int64_t seen;  // frames that came out so far (counted)
    double *times; // their times in seconds, NaN if unknown (counted, first pass)
    size_t times_room;
    bool complained; // the decoder refused something
    char complaint[240];
};

static double frame_rate(const struct clip *clip) {
    const AVStream *stream = clip->container.stream;
    double fps = av_q2d(stream->avg_frame_rate);
    if (!(fps > 0 && isfinite(fps))) fps = av_q2d(stream->r_frame_rate);
    if (fps > 0 && isfinite(fps)) return fps;
    const struct packets *packets = &clip->packets;
    if (!packets->timed || packets->shown_count < 2) return 25;
    int64_t span = packets->shown[packets->shown_count - 1].time - packets->shown[0].time;
    return (double)(packets->shown_count - 1) / ((double)span * av_q2d(stream->time_base));
}

static int turn_of(const AVStream *stream) {
    const uint8_t *matrix = av_stream_get_side_data(stream, AV_PKT_DATA_DISPLAYMATRIX, NULL);
    if (!matrix) return 0;
    double angle = -av_display_rotation_get((const int32_t *)matrix);
    if (isnan(angle)) return 0;
    angle -= 360 * floor(angle / 360 + 0.9 / 360);
    for (int turn = 90; turn < 360; turn += 90) {
        if (fabs(angle - turn) < 1) return turn;
    }
    return 0;
}

// rgb[height, width] turned clockwise, rows without gaps.
static void turn_picture(uint8_t *out, const uint8_t *in, ptrdiff_t stride, int height, int width, int turn) {
    int out_width = turn == 180 ? width : height;
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            int to_y = turn == 90 ? x : turn == 180 ? height - 1 - y : width - 1 - x;
            int to_x = turn == 90 ? height - 1 - y : turn == 180 ? width - 1 - x : y;
            memcpy(out + ((size_t)to_y * (size_t)out_width + (size_t)to_x) * 3, in + y * stride + x * 3, 3);
        }
    }
}

// Sizes, once the first picked frame is there.
static status lay_out(struct clip *clip, int height, int width) {
    double most = sampling_frame_max_pixels(clip->sampling, clip->count);
    TRY(smart_resize(height, width, clip->sampling->min_pixels, most, &clip->frames.height, &clip->frames.width));
    return NEW(&clip->pixels, frames_bytes(&clip->frames));
}

static status keep_frame(struct clip *clip, int place) {
    const AVFrame *frame = clip->frame;
    if (frame->flags & AV_FRAME_FLAG_CORRUPT || frame->decode_error_flags) {
        return container_defect(0, "a frame that is needed is damaged");
    }
    const uint8_t *rgb;
    TRY(colour_convert(&clip->colour, frame, SWS_BILINEAR, &rgb));
    ptrdiff_t stride = clip->colour.stride;
    bool upright = clip->turn == 0 || clip->turn == 180;
    int height = upright ? frame->height : frame->width, width = upright ? frame->width : frame->height;
    if (!clip->pixels) TRY(lay_out(clip, height, width));
    if (!clip->resizer || clip->in_height != height || clip->in_width != width) {
        resizer_free(&clip->resizer);
        TRY(resizer_new(&clip->resizer, height, width, clip->frames.height, clip->frames.width));
        TRY(RESIZE(&clip->turned, clip->turn ? (size_t)height * (size_t)width * 3 : 1));
        clip->in_height = height;
        clip->in_width = width;
    }
    if (clip->turn) {
        turn_picture(clip->turned, rgb, stride, frame->height, frame->width, clip->turn);
        rgb = clip->turned;
        stride = (ptrdiff_t)width * 3;
    }
    size_t bytes = (size_t)clip->frames.height * (size_t)clip->frames.width * 3;
    resizer_run(clip->resizer, rgb, stride, clip->pixels + (size_t)place * bytes);
    clip->picks[place].done = true;
    return OK;
}

static int pick_at(const struct clip *clip, int64_t time) {
    int low = 0, high = clip->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (clip->picks[middle].time < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low < clip->count && clip->picks[low].time == time && !clip->picks[low].done ? low : -1;
}

static status note_time(struct clip *clip) {
    if ((size_t)clip->seen == clip->times_room) {
        clip->times_room = clip->times_room ? clip->times_room * 2 : 256;
        TRY(RESIZE(&clip->times, clip->times_room));
    }
    int64_t time = clip->frame->best_effort_timestamp;
    double unit = av_q2d(clip->container.stream->time_base);
    clip->times[clip->seen] = time == AV_NOPTS_VALUE ? NAN : (double)time * unit;
    return OK;
}

static status take_frame(struct clip *clip) {
    int64_t time = clip->frame->pts;
    if (clip->counted && !clip->picks) TRY(note_time(clip));
    if (clip->counted) time = clip->seen++;
    int place = clip->picks ? pick_at(clip, time) : -1;
    return place < 0 ? OK : keep_frame(clip, place);
}

static void note_complaint(struct clip *clip, int code) {
    if (clip->complained) return;
    clip->complained = true;
    container_defect(code, "cannot be decoded");
    snprintf(clip->complaint, sizeof clip->complaint, "%s", fail_text());
}

// More threads than this cost memory and gain nothing.
enum { most_threads = 8 };

static int decoder_threads(const struct clip *clip) {
    int threads = clip->options.threads;
    return threads < 1 ? 1 : threads > most_threads ? most_threads : threads;
}

// Hands one packet (NULL: the end) to the decoder and takes what comes out.
static status decode_packet(struct clip *clip, const AVPacket *packet) {
    AVCodecContext *decoder = clip->container.decoder;
    container_listen();
    int code = avcodec_send_packet(decoder, packet);
    if (code == AVERROR(ENOMEM)) return fail(UNAVAILABLE, "memory is short");
    if (code < 0 && code != AVERROR_EOF) note_complaint(clip, code);
    for (;;) {
        code = avcodec_receive_frame(decoder, clip->frame);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return OK;
        if (code < 0) {
            note_complaint(clip, code);
            return OK;
        }
        status result = take_frame(clip);
        av_frame_unref(clip->frame);
        if (result != OK) return result;
    }
}

// The packet at `ordinal`, from memory or by reading the file again; those asked for only go up.
static status packet_at(struct clip *clip, size_t ordinal, AVPacket *scratch, const AVPacket **packet) {
    if (clip->packets.kept) {
        *packet = clip->packets.kept[ordinal];
        return OK;
    }
    if (!clip->second.format || clip->second_at > ordinal) {
        container_release(&clip->second);
        TRY(container_open(&clip->second, clip->path, 1, false));
        clip->second_at = 0;
    }
    for (; clip->second_at <= ordinal; clip->second_at++) {
        av_packet_unref(scratch);
        status result = container_read(&clip->second, scratch);
        if (result == END) return fail(BAD_SAMPLE, "the file changed while it was read");
        if (result != OK) return result;
    }
    *packet = scratch;
    return OK;
}

// Whether pictures that nothing refers to can be left out without changing any other.
static bool may_leave_out(const struct clip *clip) {
    enum AVCodecID id = clip->container.decoder->codec_id;
    return !clip->options.sequential && !clip->counted &&
           (id == AV_CODEC_ID_H264 || id == AV_CODEC_ID_HEVC || id == AV_CODEC_ID_MPEG2VIDEO);
}

// Decodes the packets first..last, and what the decoder then still holds.
static status decode_range(struct clip *clip, size_t first, size_t last) {
    AVCodecContext *decoder = clip->container.decoder;
    AVPacket *scratch = av_packet_alloc();
    if (!scratch) return fail(UNAVAILABLE, "memory is short");
    bool leave_out = may_leave_out(clip);
    status result = OK;
    for (size_t i = first; result == OK && i <= last; i++) {
        const AVPacket *packet = NULL;
        result = packet_at(clip, i, scratch, &packet);
        if (result != OK || !packet) break;
        bool needed = !leave_out || pick_at(clip, packet->pts) >= 0;
        decoder->skip_frame = needed ? AVDISCARD_DEFAULT : AVDISCARD_NONREF;
        result = decode_packet(clip, packet);
    }
    if (result == OK) result = decode_packet(clip, NULL);
    avcodec_flush_buffers(decoder);
    av_packet_free(&scratch);
    return result;
}

static status decode_all(struct clip *clip) {
    clip->seen = 0;
    return decode_range(clip, 0, clip->packets.count - 1);
}

// The last place at or before a pick's packet where decoding may start for it.
static size_t entry_for(const struct clip *clip, const struct pick *pick) {
    if (clip->options.sequential) return 0;
    for (size_t i = pick->ordinal + 1; i-- > 0;) {
        const struct packet_fact *fact = &clip->packets.facts[i];
        if (fact->entry && fact->time != AV_NOPTS_VALUE && fact->time <= pick->time) return i;
    }
    return 0;
}

// ---- stretches ----

// Packets that are decoded by themselves, and what became of them.
struct stretch {
    size_t first, last;
    status result;
    bool complained;
    char complaint[sizeof(((struct clip *)0)->complaint)];
};

// Threads that take one stretch after the other.
struct crew {
    const struct clip *clip;
    struct stretch *stretches;
    atomic_int next;
    int count;
};

// What the picks need: stretches that start at an entry.
static int list_stretches(const struct clip *clip, struct stretch *out) {
    int count = 0;
    for (int i = 0; i < clip->count;) {
        size_t first = entry_for(clip, &clip->picks[i]), last = clip->picks[i].ordinal;
        for (i++; i < clip->count && entry_for(clip, &clip->picks[i]) <= last; i++) {
            if (clip->picks[i].ordinal > last) last = clip->picks[i].ordinal;
        }
        out[count++] = (struct stretch){.first = first, .last = last};
    }
    return count;
}

static void decode_stretch(struct clip *own, struct stretch *stretch) {
    own->complained = false;
    stretch->result = decode_range(own, stretch->first, stretch->last);
    stretch->complained = own->complained;
    const char *why = stretch->result == OK ? own->complaint : fail_text();
    snprintf(stretch->complaint, sizeof stretch->complaint, "%s", why);
}

// One thread of the crew: what it changes is its own, but for the pixels and marks of the picks that it decodes.
static void *join_crew(void *argument) {
    struct crew *crew = argument;
    struct clip own = *crew->clip;
    const AVCodec *codec = own.container.decoder->codec;
    own.container.decoder = NULL;
    own.colour = (struct colour){0};
    own.resizer = NULL;
    own.turned = NULL;
    own.frame = av_frame_alloc();
    if (own.frame && container_decoder(&own.container, codec, 1, false) == OK)
        for (int i; (i = atomic_fetch_add(&crew->next, 1)) < crew->count;) decode_stretch(&own, &crew->stretches[i]);
    avcodec_free_context(&own.container.decoder);
    av_frame_free(&own.frame);
    resizer_free(&own.resizer);
    colour_release(&own.colour);
    free(own.turned);
    return NULL;
}

static void run_crew(struct crew *crew, int threads) {
    pthread_t others[most_threads];
    int started = 0;
    while (started < threads - 1 && started < crew->count - 1 &&
           !pthread_create(&others[started], NULL, join_crew, crew))
        started++;
    join_crew(crew);
    while (started) pthread_join(others[--started], NULL);
}

// The first stretch, which settles the sizes, with all threads; then the others beside each other, where one thread a
// stretch is faster than several in it.
static status decode_stretches(struct clip *clip, struct stretch *stretches, int count) {
    int threads = decoder_threads(clip);
    decode_stretch(clip, &stretches[0]);
    struct crew crew = {.clip = clip, .stretches = stretches, .next = 1, .count = count};
    if (stretches[0].result == OK && threads > 1 && count > 2 && clip->packets.kept && clip->pixels)
        run_crew(&crew, threads);
    // What no thread has taken: all, or none.
    for (int i = atomic_load(&crew.next); stretches[0].result == OK && i < count; i++)
        decode_stretch(clip, &stretches[i]);
    clip->complained = false;
    for (int i = 0; i < count; i++) {
        const struct stretch *one = &stretches[i];
        if (one->result != OK) return fail(one->result, "%s", one->complaint);
        if (!one->complained || clip->complained) continue;
        clip->complained = true;
        memcpy(clip->complaint, one->complaint, sizeof clip->complaint);
    }
    return OK;
}

static status decode_picks(struct clip *clip) {
    struct stretch *stretches;
    TRY(NEW(&stretches, (size_t)clip->count));
    status result = decode_stretches(clip, stretches, list_stretches(clip, stretches));
    free(stretches);
    return result;
}

static status choose(struct clip *clip, int64_t frames) {
    TRY(sampling_frame_count(clip->sampling, frames, clip->fps, &clip->count));
    clip->frames.count = clip->count;
    clip->frames.seconds_per_grid = 2 / ((double)clip->count / (double)frames * clip->fps);
    TRY(NEW(&clip->timestamps, (size_t)clip->count));
    return NEW(&clip->picks, (size_t)clip->count);
}

static void forget_choice(struct clip *clip) {
    free(clip->picks);
    free(clip->timestamps);
    free(clip->pixels);
    clip->picks = NULL;
    clip->timestamps = NULL;
    clip->pixels = NULL;
}

static bool all_done(const struct clip *clip) {
    for (int i = 0; i < clip->count; i++) {
        if (!clip->picks[i].done) return false;
    }
    return true;
}

static status decode_by_time(struct clip *clip) {
    const struct packets *packets = &clip->packets;
    double unit = av_q2d(clip->container.stream->time_base);
    TRY(choose(clip, (int64_t)packets->shown_count));
    for (int i = 0; i < clip->count; i++) {
        const struct shown_packet *shown =
            &packets->shown[sampling_frame_index((int64_t)packets->shown_count, clip->count, i)];
        clip->picks[i] = (struct pick){.time = shown->time, .ordinal = shown->ordinal};
        clip->timestamps[i] = (double)(shown->time - packets->shown[0].time) * unit;
    }
    return decode_picks(clip);
}

static status decode_by_count(struct clip *clip) {
    forget_choice(clip);
    clip->counted = true;
    TRY(decode_all(clip));
    int64_t frames = clip->seen;
    if (frames == 0)
        return clip->complained ? fail(BAD_SAMPLE, "%s", clip->complaint) : fail(BAD_SAMPLE, "has no frame");
    TRY(choose(clip, frames));
    bool rising = true;
    for (int64_t i = 0; i < frames; i++) rising &= i ? clip->times[i] > clip->times[i - 1] : !isnan(clip->times[0]);
    for (int i = 0; i < clip->count; i++) {
        int64_t index = sampling_frame_index(frames, clip->count, i);
        clip->picks[i] = (struct pick){.time = index};
        clip->timestamps[i] = rising ? clip->times[index] - clip->times[0] : (double)index / clip->fps;
    }
    return decode_all(clip);
}

static status decode(struct clip *clip) {
    TRY(container_open(&clip->container, clip->path, decoder_threads(clip), false));
    TRY(packets_scan(&clip->packets, &clip->container));
    if (clip->packets.shown_count == 0) return fail(BAD_SAMPLE, "has no frame");
    clip->frame = av_frame_alloc();
    if (!clip->frame) return fail(UNAVAILABLE, "memory is short");
    clip->fps = frame_rate(clip);
    clip->turn = turn_of(clip->container.stream);
    if (clip->packets.timed) TRY(decode_by_time(clip));
    if (clip->packets.timed && !all_done(clip) && clip->complained) return fail(BAD_SAMPLE, "%s", clip->complaint);
    if (!clip->packets.timed || !all_done(clip)) TRY(decode_by_count(clip));
    if (!all_done(clip)) return fail(BAD_SAMPLE, "%s", clip->complained ? clip->complaint : "frames are missing");
    return OK;
}

static void release(struct clip *clip) {
    forget_choice(clip);
    free(clip->times);
    free(clip->turned);
    resizer_free(&clip->resizer);
    colour_release(&clip->colour);
    av_frame_free(&clip->frame);
    packets_release(&clip->packets);
    container_release(&clip->second);
    container_release(&clip->container);
}

// One block for the view: pixels, then timestamps.
static status hand_over(struct clip *clip, struct frames_view *view) {
    size_t bytes = (frames_bytes(&clip->frames) + 63) / 64 * 64, times = (size_t)clip->count * sizeof(double);
    TRY(RESIZE(&clip->pixels, bytes + times));
    memcpy(clip->pixels + bytes, clip->timestamps, times);
    clip->frames.pixels = clip->pixels;
    clip->frames.timestamps = (const double *)(clip->pixels + bytes);
    *view = (struct frames_view){.frames = clip->frames, .owned = clip->pixels};
    clip->pixels = NULL;
    return OK;
}

status clip_decode(struct frames_view *view, const char *path, const struct sampling_config *sampling,
                   const struct media_options *options) {
    *view = (struct frames_view){0};
    struct clip *clip;
    TRY(NEW(&clip, 1));
    clip->sampling = sampling;
    clip->path = path;
    clip->frames.video = true;
    if (options) clip->options = *options;
    status result = decode(clip);
    if (result == OK) result = hand_over(clip, view);
    release(clip);
    free(clip);
    return result;
}
