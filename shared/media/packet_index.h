// The packets of a video, known before anything is decoded: when each one is displayed and where decoding may start.
// Used inside shared/media only.
//
// The surprise: a container's key frame flags are not enough. They include open groups of pictures and gradual refresh,
// after which some frames differ. For H.264 and HEVC the NAL units themselves decide.
#ifndef SHARED_MEDIA_PACKET_INDEX_H
#define SHARED_MEDIA_PACKET_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/media/demux.h"

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

struct packet_index {
    struct packet_info *packets;
    size_t count;
    struct displayed_packet *displayed; // sorted by pts
    size_t displayed_count;
    bool unique_pts;   // every displayed packet has a pts of its own; if not, `displayed` is in the order of the file
    AVPacket **cached; // [count], the packets themselves while they need little memory; NULL: read the file again
};

// Reads the whole file through `demuxer`. BAD_SAMPLE when it is truncated. The caller releases the index with
// packet_index_release, also after a failure.
status packet_index_build(struct packet_index *index, struct demuxer *demuxer);

// Frees and zeroes; a zeroed index is fine.
void packet_index_release(struct packet_index *index);

#endif
