// The stored form of frames. It has no pointers, so a reader uses it where it lies in the map.
#include "shared/store/frames_record.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    frames_pixel_alignment = 64,
    frames_min_record_size = 4096, // LMDB aligns only values that are larger than half a page
};
static const char frames_magic[8] = "caravanF";
static const uint32_t frames_version = 1;

// A record is this header, the timestamps of a video, zeros up to pixels_offset, the pixels, zeros up to the minimum.
struct frames_record_header {
    char magic[8];
    uint32_t version;
    uint32_t video;
    uint32_t count, height, width;
    uint32_t pixels_offset;
    double seconds_per_grid;
};

// It is stored and sent as it is in memory.
static_assert(sizeof(struct frames_record_header) == 40, "the header of a record is a format on disk");
static_assert(sizeof(struct frames_record_header) % sizeof(double) == 0, "timestamps follow the header");
static_assert(sizeof frames_magic == sizeof((struct frames_record_header){0}.magic), "the magic has no NUL");

// ---- keys ----

status frame_key_parse(uint8_t out[frame_key_bytes], const char *key) {
    for (int i = 0; i < 2 * frame_key_bytes; i++) {
        char c = key[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return fail(DATAERR, "'%.40s' is not a frame key (32 hex digits)", key);
        out[i / 2] = (uint8_t)(i % 2 ? out[i / 2] | digit : digit << 4);
    }
    return key[2 * frame_key_bytes] ? fail(DATAERR, "'%.40s' is not a frame key (32 hex digits)", key) : OK;
}

void frame_key_print(char key[frame_key_size], const uint8_t hash[frame_key_bytes]) {
    for (int i = 0; i < frame_key_bytes; i++) {
        key[2 * i] = "0123456789abcdef"[hash[i] >> 4];
        key[2 * i + 1] = "0123456789abcdef"[hash[i] & 15];
    }
    key[2 * frame_key_bytes] = 0;
}

// ---- records ----

size_t frames_bytes(const struct frames *frames) {
    return (size_t)frames->count * (size_t)frames->height * (size_t)frames->width * 3;
}

static size_t frames_pixels_offset(const struct frames *frames) {
    size_t times = frames->video ? (size_t)frames->count * sizeof(double) : 0;
    size_t end = sizeof(struct frames_record_header) + times;
    return (end + frames_pixel_alignment - 1) / frames_pixel_alignment * frames_pixel_alignment;
}

size_t frames_record_size(const struct frames *frames) {
    size_t size = frames_pixels_offset(frames) + frames_bytes(frames);
    return size < frames_min_record_size ? frames_min_record_size : size;
}

void frames_record_write(const struct frames *frames, uint8_t *out) {
    size_t offset = frames_pixels_offset(frames), end = offset + frames_bytes(frames);
    struct frames_record_header header = {
        .version = frames_version,
        .video = frames->video,
        .count = (uint32_t)frames->count,
        .height = (uint32_t)frames->height,
        .width = (uint32_t)frames->width,
        .pixels_offset = (uint32_t)offset,
        .seconds_per_grid = frames->video ? frames->seconds_per_grid : 0,
    };
    memcpy(header.magic, frames_magic, sizeof frames_magic);
    memset(out, 0, offset);
    memcpy(out, &header, sizeof header);
    if (frames->video) memcpy(out + sizeof header, frames->timestamps, (size_t)frames->count * sizeof(double));
    memcpy(out + offset, frames->pixels, end - offset);
    memset(out + end, 0, frames_record_size(frames) - end);
}

status frames_to_record(const struct frames *frames, struct buf *out) {
    size_t size = frames_record_size(frames);
    TRY(buf_reserve_large(out, size));
    frames_record_write(frames, (uint8_t *)out->data + out->size);
    out->size += size;
    out->data[out->size] = 0;
    return OK;
}

status frames_from_record(struct frames *frames, const void *record, size_t size) {
    enum { max_side = 1 << 16, max_count = 1 << 20 };
    struct frames_record_header header;
    if (size < sizeof header) return fail(DATAERR, "the frames record of %zu bytes is too short", size);
    memcpy(&header, record, sizeof header);
    if (memcmp(header.magic, frames_magic, sizeof frames_magic) != 0) return fail(DATAERR, "not a frames record");
    if (header.version != frames_version)
        return fail(DATAERR, "the frames record has version %u, expected %u", header.version, frames_version);
    if (header.count < 1 || header.count > max_count || header.height < 1 || header.height > max_side ||
        header.width < 1 || header.width > max_side || header.video > 1 || (!header.video && header.count != 1)) {
        return fail(DATAERR, "the shape of the frames record is out of range");
    }
    *frames = (struct frames){
        .video = header.video,
        .count = (int)header.count,
        .height = (int)header.height,
        .width = (int)header.width,
        .seconds_per_grid = header.video ? header.seconds_per_grid : NAN,
    };
    if (header.pixels_offset != frames_pixels_offset(frames) || size != frames_record_size(frames))
        return fail(DATAERR, "the frames record has %zu bytes, expected %zu", size, frames_record_size(frames));
    const char *bytes = record;
    if (header.video) frames->timestamps = (const double *)(const void *)(bytes + sizeof header);
    frames->pixels = (const uint8_t *)bytes + header.pixels_offset;
    return OK;
}
