// What a clip is made of, known before anything is decoded: every packet's time, and where decoding may start.
// Inside shared/media only.
#ifndef SHARED_MEDIA_PACKETS_H
#define SHARED_MEDIA_PACKETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/media/container.h"

// One packet, in the order of the file.
struct packet_fact {
    int64_t time; // of presentation, in the stream's units
    bool shown;   // it stands for a frame that a player would show
    bool entry;   // decoding that starts here gives exactly the frames of this time and later
};

struct shown_packet {
    int64_t time;
    size_t ordinal; // its place in the file
};

struct packets {
    struct packet_fact *facts;
    size_t count;
    struct shown_packet *shown; // those shown, in order of presentation
    size_t shown_count;
    bool timed;      // every shown packet has a time of its own
    AVPacket **kept; // the packets themselves while they are few bytes; NULL: read the file again
};

// Reads the whole file through `container`. BAD_SAMPLE when it breaks off. Release also after a failure.
status packets_scan(struct packets *packets, struct container *container);

// Frees; a zeroed struct is fine.
void packets_release(struct packets *packets);

// Whether decoding can start at this packet: a picture that refers to nothing before it, nor anything after it in
// order of presentation. *parameters collects whether any packet so far carried the stream's parameters with it.
bool packet_is_entry(const AVPacket *packet, const AVCodecParameters *codec, bool *parameters);

#endif
