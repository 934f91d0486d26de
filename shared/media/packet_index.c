#include "shared/media/packet_index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum { packet_index_max_cached_bytes = 64 << 20, vp8_show_frame = 0x10 };

// ---- key frames ----

enum { h264_slice = 1, h264_idr = 5, h264_sps = 7, h264_pps = 8 };
enum { hevc_bla = 16, hevc_cra = 21, hevc_last_slice = 31, hevc_vps = 32, hevc_sps = 33, hevc_pps = 34 };

// Whether the packet refers to none before it and to none that is displayed after it. In H.264 and HEVC those are IDR
// and CRA pictures and the like; *parameter_sets collects whether any packet so far carried SPS or PPS: then a jump is
// only possible to packets that carry both.
static bool packet_index_is_keyframe(const AVPacket *packet, const AVCodecParameters *codec, bool *parameter_sets) {
    enum AVCodecID id = codec->codec_id;
    if (id == AV_CODEC_ID_VP8 || id == AV_CODEC_ID_VP9 || id == AV_CODEC_ID_AV1) return packet->flags & AV_PKT_FLAG_KEY;
    if (id != AV_CODEC_ID_H264 && id != AV_CODEC_ID_HEVC) {
        const AVCodecDescriptor *descriptor = avcodec_descriptor_get(id);
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
        sps |= type == (hevc ? hevc_sps : h264_sps);
        pps |= type == (hevc ? hevc_pps : h264_pps);
        vps |= hevc && type == hevc_vps;
        bool slice = hevc ? type <= hevc_last_slice : type >= h264_slice && type <= h264_idr;
        if (!slice) continue;
        bool complete = !*parameter_sets || (sps && pps);
        *parameter_sets |= sps || pps || vps;
        return complete && (hevc ? type >= hevc_bla && type <= hevc_cra : type == h264_idr);
    }
    *parameter_sets |= sps || pps || vps;
    return false;
}

// ---- the index ----

static void packet_index_drop_cache(struct packet_index *index) {
    for (size_t i = 0; index->cached && i < index->count; i++) av_packet_free(&index->cached[i]);
    free(index->cached);
    index->cached = NULL;
}

static int packet_index_compare(const void *a, const void *b) {
    const struct displayed_packet *x = a, *y = b;
    if (x->pts != y->pts) return x->pts < y->pts ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

status packet_index_build(struct packet_index *index, struct demuxer *demuxer) {
    *index = (struct packet_index){0};
    // The header of an MP4 file lists its samples; those of a truncated file lie beyond its end.
    bool mp4 = strstr(demuxer->format->iformat->name, "mp4") != NULL;
    int count = mp4 ? avformat_index_get_entries_count(demuxer->stream) : 0, missing = 0;
    for (int i = 0; i < count; i++) {
        const AVIndexEntry *entry = avformat_index_get_entry(demuxer->stream, i);
        missing += entry->pos + entry->size > demuxer->size;
    }
    if (missing) return fail(BAD_SAMPLE, "the file is truncated: %d of its %d frames are missing", missing, count);
    const AVCodecParameters *codec = demuxer->stream->codecpar;
    size_t capacity = 0, cached_bytes = 0;
    bool started = false;            // a key frame was read; packets before the first one cannot be decoded
    bool parameter_sets = false;     // see packet_index_is_keyframe
    bool parameters_changed = false; // in the middle of the stream, so no packet may be jumped over
    AVPacket *packet = mem_checked(av_packet_alloc());
    status result;
    for (; (result = demuxer_read(demuxer, packet)) == OK; index->count++, av_packet_unref(packet)) {
        if (index->count == capacity) {
            capacity = capacity ? capacity * 2 : 256;
            RESIZE(&index->packets, capacity);
            if (cached_bytes <= packet_index_max_cached_bytes) RESIZE(&index->cached, capacity);
        }
        started |= packet->flags & AV_PKT_FLAG_KEY;
        parameters_changed |= index->count && (av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL) ||
                                               av_packet_get_side_data(packet, AV_PKT_DATA_PARAM_CHANGE, NULL));
        bool hidden = codec->codec_id == AV_CODEC_ID_VP8 && packet->size > 0 && !(packet->data[0] & vp8_show_frame);
        index->packets[index->count] = (struct packet_info){
            .pts = packet->pts,
            .displayed = started && !(packet->flags & AV_PKT_FLAG_DISCARD) && !hidden,
            .keyframe = packet_index_is_keyframe(packet, codec, &parameter_sets),
        };
        cached_bytes += (size_t)packet->size + sizeof *packet;
        if (cached_bytes > packet_index_max_cached_bytes) packet_index_drop_cache(index);
        if (!index->cached) continue;
        index->cached[index->count] = mem_checked(av_packet_clone(packet));
    }
    av_packet_free(&packet);
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

void packet_index_release(struct packet_index *index) {
    packet_index_drop_cache(index);
    free(index->packets);
    free(index->displayed);
    *index = (struct packet_index){0};
}
