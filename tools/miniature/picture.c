// The pixels of a story. What a frame shows is drawn back to front: background, the story's things, noise. The camera
// moves everything but the noise.
#include <math.h>
#include <string.h>

#include "shared/base/rng.h"
#include "tools/miniature/world.h"

enum picture_stream {
    PICTURE_GAIN = 100,
    PICTURE_GROUND,
    PICTURE_SIZE,
    PICTURE_TIME,
    PICTURE_CAMERA,
    PICTURE_NOISE,
    PICTURE_NOISE_LEVEL
};

enum ground { GROUND_FLAT, GROUND_STRIPES, GROUND_SQUARES, GROUND_SLOPE, GROUNDS };

struct colour {
    double red, green, blue;
};

// All that the appearance of a clip depends on but its story.
struct appearance {
    struct colour gain; // of the things' colours
    struct colour near, far;
    enum ground ground;
    double size;               // of things, 1: as in the plain look
    double begin, duration;    // of the step from the first moment to the second, in frames
    double camera_x, camera_y; // pixels a frame
    double noise;              // largest change of a pixel
};

// A thing of one colour.
struct thing {
    int shape;         // circle, square, triangle, cross
    double x, y, half; // centre and half its width
    struct colour colour;
};

struct picture {
    struct appearance appearance;
    double shift_x, shift_y; // of the camera
    uint8_t *rgb;
};

static const struct colour value_colours[WORLD_VALUES] = {{215, 40, 40}, {40, 170, 60}, {50, 80, 225}, {230, 205, 50}};
static const struct colour ball = {245, 245, 245}, box = {35, 35, 35};

// Returns a uniform number from low to high.
static double picture_between(const struct story *story, enum picture_stream stream, uint64_t index, double low,
                              double high) {
    return low + (high - low) * rng_uniform(story->key, stream, index);
}

static uint8_t picture_byte(double value) {
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value + 0.5);
}

static void picture_set(uint8_t *pixel, struct colour colour) {
    pixel[0] = picture_byte(colour.red);
    pixel[1] = picture_byte(colour.green);
    pixel[2] = picture_byte(colour.blue);
}

// Returns the picture of a frame with its appearance and its ground.
static struct picture picture_begin(const struct story *story, int index, uint8_t *rgb) {
    struct picture picture = {
        .appearance =
            {.gain = {1, 1, 1}, .near = {128, 128, 128}, .far = {128, 128, 128}, .size = 1, .begin = 6, .duration = 3},
        .rgb = rgb};
    struct appearance *appearance = &picture.appearance;
    if (story->look != LOOK_PLAIN) {
        appearance->gain = (struct colour){picture_between(story, PICTURE_GAIN, 0, 0.7, 1.1),
                                           picture_between(story, PICTURE_GAIN, 1, 0.7, 1.1),
                                           picture_between(story, PICTURE_GAIN, 2, 0.7, 1.1)};
        const double gray = picture_between(story, PICTURE_GROUND, 0, 80, 170);
        const double contrast = picture_between(story, PICTURE_GROUND, 1, 15, 40);
        appearance->near = (struct colour){gray + contrast, gray + contrast / 2, gray};
        appearance->far = (struct colour){gray - contrast, gray - contrast, gray};
        appearance->ground = (enum ground)rng_below(story->key, PICTURE_GROUND, 2, GROUNDS);
        appearance->size = picture_between(story, PICTURE_SIZE, 0, 0.75, 1.15);
        appearance->begin = picture_between(story, PICTURE_TIME, 0, 5, 8);
        appearance->duration = picture_between(story, PICTURE_TIME, 1, 0.5, 10 - appearance->begin);
        appearance->camera_x = picture_between(story, PICTURE_CAMERA, 0, -0.5, 0.5);
        appearance->camera_y = picture_between(story, PICTURE_CAMERA, 1, -0.5, 0.5);
        appearance->noise = picture_between(story, PICTURE_NOISE_LEVEL, 0, 0, 24);
    }
    picture.shift_x = appearance->camera_x * (index - WORLD_FRAMES / 2.0);
    picture.shift_y = appearance->camera_y * (index - WORLD_FRAMES / 2.0);
    const struct colour *near = &appearance->near, *far = &appearance->far;
    for (int row = 0; row < WORLD_SIDE; row++)
        for (int column = 0; column < WORLD_SIDE; column++, rgb += 3) {
            const double x = column - picture.shift_x, y = row - picture.shift_y;
            double share = 0;
            if (appearance->ground == GROUND_STRIPES) share = sin(0.3 * x + 0.2 * y) > 0;
            if (appearance->ground == GROUND_SQUARES) share = (sin(0.25 * x) > 0) != (sin(0.25 * y) > 0);
            if (appearance->ground == GROUND_SLOPE) share = (x + y) / (2 * WORLD_SIDE);
            // It grows greener to the right and bluer downwards, so that a place can be told from what is around it.
            picture_set(rgb, (struct colour){near->red + share * (far->red - near->red),
                                             near->green + share * (far->green - near->green) + (0.4 * x - 22),
                                             near->blue + share * (far->blue - near->blue) + (0.4 * y - 22)});
        }
    return picture;
}

static void picture_thing(const struct picture *picture, const struct thing *thing) {
    const struct colour *gain = &picture->appearance.gain;
    const struct colour seen = {thing->colour.red * gain->red, thing->colour.green * gain->green,
                                thing->colour.blue * gain->blue};
    const double half = thing->half;
    for (int row = 0; row < WORLD_SIDE; row++)
        for (int column = 0; column < WORLD_SIDE; column++) {
            const double x = column - picture->shift_x - thing->x, y = row - picture->shift_y - thing->y;
            const bool covered = thing->shape == 0   ? x * x + y * y <= half * half
                                 : thing->shape == 1 ? fabs(x) <= 0.85 * half && fabs(y) <= 0.85 * half
                                 : thing->shape == 2 ? y <= 0.8 * half && y >= -half && fabs(x) <= (y + half) * 0.6
                                                     : (fabs(x) <= half / 3 && fabs(y) <= half) ||
                                                           (fabs(y) <= half / 3 && fabs(x) <= half);
            if (covered) picture_set(picture->rgb + 3 * (row * WORLD_SIDE + column), seen);
        }
}

// Sets *x, *y to the middle of a corner, 0 to 3 clockwise from the top left; `inset` moves it towards the centre.
static void picture_corner(int corner, double inset, double *x, double *y) {
    const double distance = WORLD_SIDE * (0.25 - inset);
    *x = WORLD_SIDE / 2.0 + (corner == 1 || corner == 2 ? distance : -distance);
    *y = WORLD_SIDE / 2.0 + (corner >= 2 ? distance : -distance);
}

// The same for the middle of a side: top, right, bottom, left.
static void picture_side(int side, double *x, double *y) {
    const double distance = WORLD_SIDE * 0.27;
    *x = WORLD_SIDE / 2.0 + (side == 1 ? distance : side == 3 ? -distance : 0);
    *y = WORLD_SIDE / 2.0 + (side == 0 ? -distance : side == 2 ? distance : 0);
}

static double picture_between_moments(double from, double to, double progress) {
    return progress < 1 ? from + progress * (to - from) : to;
}

void story_frame(const struct story *story, int index, uint8_t *rgb) {
    const struct picture picture = picture_begin(story, index, rgb);
    const struct appearance *appearance = &picture.appearance;
    const double unclamped = (index - appearance->begin) / appearance->duration;
    const double progress = unclamped < 0 ? 0 : unclamped > 1 ? 1 : unclamped;
    const int value = progress < 1 ? story->first : story->then; // of what does not move
    const double half = appearance->size * 0.17 * WORLD_SIDE;
    double from_x, from_y, to_x, to_y;
    struct thing thing = {.shape = story->shape, .half = half, .colour = value_colours[story->colour]};
    switch (story->task) {
    case TASK_CHANGE:
        picture_corner(story->places[0], 0, &thing.x, &thing.y);
        thing.colour = value_colours[value];
        picture_thing(&picture, &thing);
        break;
    case TASK_MOVE:
        picture_side(story->first, &from_x, &from_y);
        picture_side(story->then, &to_x, &to_y);
        thing.x = picture_between_moments(from_x, to_x, progress);
        thing.y = picture_between_moments(from_y, to_y, progress);
        picture_thing(&picture, &thing);
        break;
    case TASK_MEET:
        for (int i = 0; i < WORLD_VALUES; i++) {
            thing = (struct thing){.shape = 1, .half = half, .colour = value_colours[i]};
            picture_corner(story->places[i], 0, &thing.x, &thing.y);
            picture_thing(&picture, &thing);
        }
        thing = (struct thing){.half = 0.6 * half, .colour = ball};
        picture_corner(story->places[story->first], 0.1, &from_x, &from_y);
        picture_corner(story->places[story->then], 0.1, &to_x, &to_y);
        thing.x = picture_between_moments(from_x, to_x, progress);
        thing.y = picture_between_moments(from_y, to_y, progress);
        picture_thing(&picture, &thing);
        break;
    default: // the box covers the shape while one takes the other's place
        picture_corner(story->places[0], 0, &thing.x, &thing.y);
        thing.shape = value;
        thing.half = 1.3 * half;
        if (progress > 0 && progress < 1) thing = (struct thing){1, thing.x, thing.y, 1.4 * half, box};
        picture_thing(&picture, &thing);
    }
    if (appearance->noise <= 0) return;
    for (uint64_t i = 0; i < (uint64_t)WORLD_SIDE * WORLD_SIDE * 3; i += 8) {
        uint64_t bits = rng_bits(story->key, PICTURE_NOISE, (uint64_t)index * WORLD_SIDE * WORLD_SIDE * 3 + i);
        for (uint64_t k = 0; k < 8; k++, bits >>= 8) {
            const double change = ((double)(bits & 255) / 127.5 - 1) * appearance->noise;
            rgb[i + k] = picture_byte(rgb[i + k] + change);
        }
    }
}
