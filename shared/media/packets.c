#include "shared/media/packets.h"

#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

enum { most_kept_bytes = 64 << 20 };

// Whether the samples that the header of an MP4 promises lie inside the file.
static status check_promised(const struct container *container) {
    if (!strstr(container->format->iformat->name, "mp4")) return OK;
    int count = avformat_index_get_entries_count(container->stream), missing = 0;
    for (int i = 0; i < count; i++) {
        const AVIndexEntry *entry = avformat_index_get_entry(container->stream, i);
        missing += entry->pos + entry->size > container->size;
    }
    if (missing == 0) return OK;
    return fail(BAD_SAMPLE, "the file breaks off: %d of its %d frames are missing", missing, count);
}

static bool vp8_hidden(const AVPacket *packet, const AVCodecParameters *codec) {
    return codec->codec_id == AV_CODEC_ID_VP8 && packet->size > 0 && !(packet->data[0] & 0x10);
}

static void drop_kept(struct packets *packets) {
    for (size_t i = 0; packets->kept && i < packets->count; i++) av_packet_free(&packets->kept[i]);
    free(packets->kept);
    packets->kept = NULL;
}

// The list being built.
struct scan {
    struct packets *packets;
    size_t room, bytes;
    bool begun;      // a key frame has been seen: what comes before the first one cannot be decoded
    bool parameters; // see packet_is_entry
    bool changes;    // the stream changes on its way, so nothing may be jumped over
};

static status make_space(struct scan *scan) {
    struct packets *packets = scan->packets;
    if (packets->count < scan->room) return OK;
    scan->room = scan->room ? scan->room * 2 : 256;
    TRY(RESIZE(&packets->facts, scan->room));
    if (scan->bytes <= most_kept_bytes) TRY(RESIZE(&packets->kept, scan->room));
    return OK;
}

static status add(struct scan *scan, AVPacket *packet, const AVCodecParameters *codec) {
    struct packets *packets = scan->packets;
    TRY(make_space(scan));
    scan->begun |= packet->flags & AV_PKT_FLAG_KEY;
    scan->changes |= packets->count && (av_packet_get_side_data(packet, AV_PKT_DATA_NEW_EXTRADATA, NULL) ||
                                        av_packet_get_side_data(packet, AV_PKT_DATA_PARAM_CHANGE, NULL));
    packets->facts[packets->count] = (struct packet_fact){
        .time = packet->pts,
        .shown = scan->begun && !(packet->flags & AV_PKT_FLAG_DISCARD) && !vp8_hidden(packet, codec),
        .entry = packet_is_entry(packet, codec, &scan->parameters),
    };
    scan->bytes += (size_t)packet->size + sizeof *packet;
    if (scan->bytes > most_kept_bytes) drop_kept(packets);
    if (packets->kept) {
        AVPacket *own = av_packet_clone(packet);
        if (!own) return fail(UNAVAILABLE, "memory is short");
        packets->kept[packets->count] = own;
    }
    packets->count++;
    return OK;
}

static int by_time(const void *a, const void *b) {
    const struct shown_packet *one = a, *other = b;
    if (one->time != other->time) return one->time < other->time ? -1 : 1;
    return one->ordinal < other->ordinal ? -1 : one->ordinal > other->ordinal;
}

static status put_in_order(struct packets *packets, bool changes) {
    TRY(NEW(&packets->shown, packets->count));
    packets->timed = true;
    for (size_t i = 0; i < packets->count; i++) {
        if (changes) packets->facts[i].entry = false;
        if (!packets->facts[i].shown) continue;
        packets->shown[packets->shown_count++] = (struct shown_packet){packets->facts[i].time, i};
        packets->timed &= packets->facts[i].time != AV_NOPTS_VALUE;
    }
    if (!packets->timed) return OK;
    qsort(packets->shown, packets->shown_count, sizeof *packets->shown, by_time);
    for (size_t i = 1; i < packets->shown_count; i++) {
        packets->timed &= packets->shown[i].time != packets->shown[i - 1].time;
    }
    return OK;
}

status packets_scan(struct packets *packets, struct container *container) {
    *packets = (struct packets){0};
    TRY(check_promised(container));
    struct scan scan = {.packets = packets};
    AVPacket *packet = av_packet_alloc();
    if (!packet) return fail(UNAVAILABLE, "memory is short");
    status result;
    while ((result = container_read(container, packet)) == OK) {
        result = add(&scan, packet, container->stream->codecpar);
        av_packet_unref(packet);
        if (result != OK) break;
    }
    av_packet_free(&packet);
    if (result != END) return result;
    return put_in_order(packets, scan.changes);
}

void packets_release(struct packets *packets) {
    drop_kept(packets);
    free(packets->facts);
    free(packets->shown);
    *packets = (struct packets){0};
}
