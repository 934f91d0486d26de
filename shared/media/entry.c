// Where decoding may start. Containers flag "key frames" more freely than is exact (open groups of pictures, gradual
// refresh), so for H.264 and HEVC the NAL units themselves are asked.
#include <libavcodec/avcodec.h>

#include "shared/media/packets.h"

// The NAL units of a packet, one after the other.
struct nal_walk {
    const uint8_t *at, *end;
    int length_size; // 0: start codes
};

static int length_size(const AVCodecParameters *codec) {
    if (codec->extradata_size < 7 || codec->extradata[0] != 1) return 0;
    if (codec->codec_id == AV_CODEC_ID_H264) return (codec->extradata[4] & 3) + 1;
    return codec->extradata_size > 22 ? (codec->extradata[21] & 3) + 1 : 0;
}

// The first byte of the next unit, NULL at the end.
static const uint8_t *next_unit(struct nal_walk *walk) {
    if (walk->length_size == 0) {
        for (; walk->end - walk->at > 3; walk->at++) {
            if (walk->at[0] || walk->at[1] || walk->at[2] != 1) continue;
            walk->at += 3;
            return walk->at;
        }
        return NULL;
    }
    if (walk->end - walk->at <= walk->length_size) return NULL;
    size_t length = 0;
    for (int i = 0; i < walk->length_size; i++) length = length << 8 | *walk->at++;
    const uint8_t *unit = walk->at;
    if (length == 0 || length > (size_t)(walk->end - walk->at)) return NULL;
    walk->at += length;
    return unit;
}

enum { h264_slice = 1, h264_idr = 5, h264_sps = 7, h264_pps = 8 };
enum { hevc_bla = 16, hevc_cra = 21, hevc_last_slice = 31, hevc_vps = 32, hevc_sps = 33, hevc_pps = 34 };

static bool unit_entry(const AVPacket *packet, const AVCodecParameters *codec, bool *parameters) {
    struct nal_walk walk = {packet->data, packet->data + packet->size, length_size(codec)};
    bool hevc = codec->codec_id == AV_CODEC_ID_HEVC, sps = false, pps = false, other = false;
    for (const uint8_t *unit; (unit = next_unit(&walk));) {
        int type = hevc ? *unit >> 1 & 63 : *unit & 31;
        sps |= type == (hevc ? hevc_sps : h264_sps);
        pps |= type == (hevc ? hevc_pps : h264_pps);
        other |= hevc && type == hevc_vps;
        bool slice = hevc ? type <= hevc_last_slice : type >= h264_slice && type <= h264_idr;
        if (!slice) continue;
        bool known = !*parameters || (sps && pps); // nothing that a jump would miss
        *parameters |= sps || pps || other;
        return known && (hevc ? type >= hevc_bla && type <= hevc_cra : type == h264_idr);
    }
    *parameters |= sps || pps || other;
    return false;
}

bool packet_is_entry(const AVPacket *packet, const AVCodecParameters *codec, bool *parameters) {
    const AVCodecDescriptor *facts = avcodec_descriptor_get(codec->codec_id);
    switch (codec->codec_id) {
    case AV_CODEC_ID_H264:
    case AV_CODEC_ID_HEVC:
        return unit_entry(packet, codec, parameters);
    case AV_CODEC_ID_VP8:
    case AV_CODEC_ID_VP9:
    case AV_CODEC_ID_AV1:
        return packet->flags & AV_PKT_FLAG_KEY;
    default:
        return facts && facts->props & AV_CODEC_PROP_INTRA_ONLY && facts->id != AV_CODEC_ID_APNG;
    }
}
