#include "shared/media/chroma.h"

#include <libavutil/pixdesc.h>

static int clamp_level(int level) {
    return level < 0 ? 0 : level > 255 ? 255 : level;
}

// Chroma samples are 2^x by 2^y pixels.
struct halving {
    int x, y;
};

static struct halving halving_of(const AVFrame *frame) {
    const AVPixFmtDescriptor *facts = av_pix_fmt_desc_get(frame->format);
    return (struct halving){facts->log2_chroma_w, facts->log2_chroma_h};
}

bool chroma_jpeg_fits(const AVFrame *frame) {
    switch (frame->format) {
    case AV_PIX_FMT_YUVJ420P:
    case AV_PIX_FMT_YUVJ422P:
    case AV_PIX_FMT_YUVJ440P:
    case AV_PIX_FMT_YUVJ444P:
        return true;
    default:
        return false;
    }
}

bool chroma_webp_fits(const AVFrame *frame) {
    return frame->format == AV_PIX_FMT_YUV420P || frame->format == AV_PIX_FMT_YUVA420P;
}

static const uint8_t *plane_row(const AVFrame *frame, int plane, int y) {
    return frame->data[plane] + (ptrdiff_t)y * frame->linesize[plane];
}

// Spreads `count` samples to twice as many: three parts of the nearer sample and one of the other neighbour. What comes
// in is 2^more times too large; `round` and `round_odd` are added before the division. The ends stand alone.
static void spread(int *out, const int *in, int count, int more, int round, int round_odd) {
    for (int i = 0; i < count; i++) {
        int before = i ? in[i - 1] : in[i], after = i + 1 < count ? in[i + 1] : in[i];
        out[2 * i] = (3 * in[i] + before + round) >> (2 + more);
        out[2 * i + 1] = (3 * in[i] + after + round_odd) >> (2 + more);
    }
}

// One plane's samples for every pixel of row y. `rows` of chroma there are; a row's neighbour is the one that lies
// nearer, at the edges itself.
static void jpeg_samples(const AVFrame *frame, int plane, int y, struct halving halving, int *work, int *out) {
    int count = (frame->width + (1 << halving.x) - 1) >> halving.x;
    int rows = (frame->height + (1 << halving.y) - 1) >> halving.y;
    int own = y >> halving.y, other = own + (y & 1 ? 1 : -1);
    other = other < 0 ? 0 : other >= rows ? rows - 1 : other;
    const uint8_t *near = plane_row(frame, plane, own), *far = plane_row(frame, plane, other);
    bool simple = halving.x && count <= 2; // so narrow a picture is not smoothed
    int *sums = halving.x ? work : out;
    bool blend = halving.y && !simple;
    for (int i = 0; i < count; i++) sums[i] = blend ? 3 * near[i] + far[i] : near[i];
    if (simple) {
        for (int x = 0; x < frame->width; x++) out[x] = near[x >> 1];
    } else if (halving.x && blend) {
        spread(out, sums, count, 2, 8, 7);
    } else if (halving.x) {
        spread(out, sums, count, 0, 1, 2);
    } else if (blend) {
        for (int i = 0; i < count; i++) out[i] = (out[i] + (y & 1 ? 2 : 1)) >> 2;
    }
}

void chroma_jpeg_row(const AVFrame *frame, int y, int *scratch, uint8_t *out) {
    enum { bits = 16, half = 1 << (bits - 1) };
    const int to_red = 91881, to_blue = 116130, green_red = 46802, green_blue = 22554; // x 2^16, rounded
    struct halving halving = halving_of(frame);
    int room = frame->width + 2;
    int *blue = scratch, *red = scratch + room, *work = scratch + 2 * (ptrdiff_t)room;
    jpeg_samples(frame, 1, y, halving, work, blue);
    jpeg_samples(frame, 2, y, halving, work, red);
    const uint8_t *luma = plane_row(frame, 0, y);
    for (int x = 0; x < frame->width; x++, out += 3) {
        int b = blue[x] - 128, r = red[x] - 128;
        out[0] = (uint8_t)clamp_level(luma[x] + ((to_red * r + half) >> bits));
        out[1] = (uint8_t)clamp_level(luma[x] + ((-green_blue * b + half - green_red * r) >> bits));
        out[2] = (uint8_t)clamp_level(luma[x] + ((to_blue * b + half) >> bits));
    }
}

// Each pixel takes 9, 3, 3 and 1 parts of the four samples around it, rounded in two steps; at the sides of the two
// samples of the first or last column 3 and 1 parts.
static void webp_samples(const AVFrame *frame, int plane, int y, int *out) {
    int count = (frame->width + 1) / 2, rows = (frame->height + 1) / 2;
    int own = y / 2, other = own + (y & 1 ? 1 : -1);
    other = other < 0 ? 0 : other >= rows ? rows - 1 : other;
    const uint8_t *near = plane_row(frame, plane, own), *far = plane_row(frame, plane, other);
    for (int x = 0; x < frame->width; x++) {
        int i = x / 2, next = i + (x & 1 ? 1 : -1);
        if (x == 0 || next >= count) {
            out[x] = (3 * near[i] + far[i] + 2) >> 2;
            continue;
        }
        int sum = near[i] + near[next] + far[i] + far[next] + 8;
        int diagonal = (sum + 2 * (far[i] + near[next])) >> 3;
        out[x] = (diagonal + near[i]) >> 1;
    }
}

static uint8_t webp_level(int sum) {
    return (uint8_t)clamp_level(sum >> 6);
}

void chroma_webp_row(const AVFrame *frame, int y, int *scratch, uint8_t *out) {
    int *blue = scratch, *red = scratch + frame->width + 2;
    webp_samples(frame, 1, y, blue);
    webp_samples(frame, 2, y, red);
    const uint8_t *luma = plane_row(frame, 0, y);
    for (int x = 0; x < frame->width; x++, out += 3) {
        int bright = luma[x] * 19077 >> 8, b = blue[x], r = red[x];
        out[0] = webp_level(bright + (r * 26149 >> 8) - 14234);
        out[1] = webp_level(bright - (b * 6419 >> 8) - (r * 13320 >> 8) + 8708);
        out[2] = webp_level(bright + (b * 33050 >> 8) - 17685);
    }
}
