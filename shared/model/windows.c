// The tower's order: each frame pair is cut into windows, row by row; in a window the units (merge x merge patches that
// become one token) stand row by row, the patches of a unit together. Windows at the edges are smaller.
#include <math.h>
#include <string.h>

#include "shared/model/positions.h"

// What filling in one grid carries along.
struct filling {
    struct windows *out;
    int64_t units; // units placed so far
    int64_t patches_a_unit;
    int height, width; // of a frame, in units
};

// Appends the units [y, y_end) x [x, x_end) of a frame pair as one window.
static void add_window(struct filling *it, int time, int y, int y_end, int x, int x_end) {
    int64_t start = it->units;
    for (int row = y; row < y_end; row++) {
        for (int column = x; column < x_end; column++) {
            int64_t unit = ((int64_t)time * it->height + row) * it->width + column;
            it->out->units[it->units] = (int32_t)unit;
            for (int64_t p = 0; p < it->patches_a_unit; p++) {
                int64_t placed = it->units * it->patches_a_unit + p, patch = unit * it->patches_a_unit + p;
                it->out->order[placed] = (int32_t)patch;
                it->out->back[patch] = (int32_t)placed;
            }
            it->units++;
        }
    }
    int64_t first = start * it->patches_a_unit, rows = (it->units - start) * it->patches_a_unit;
    it->out->windows[it->out->window_count++] =
        (struct attention_span){.q_begin = first, .q_len = rows, .kv_begin = first, .visible = rows, .causal = false};
}

static int smaller(int a, int b) {
    return a < b ? a : b;
}

static void add_frame(struct filling *it, int time, int side) {
    int64_t first = it->units * it->patches_a_unit;
    for (int y = 0; y < it->height; y += side) {
        for (int x = 0; x < it->width; x += side)
            add_window(it, time, y, smaller(y + side, it->height), x, smaller(x + side, it->width));
    }
    int64_t rows = it->units * it->patches_a_unit - first;
    it->out->frames[it->out->frame_count++] =
        (struct attention_span){.q_begin = first, .q_len = rows, .kv_begin = first, .visible = rows, .causal = false};
}

// Row and column of a patch of the processor's order.
static void patch_place(int64_t patch, const struct filling *it, int merge, int *row, int *column) {
    int64_t unit = patch / it->patches_a_unit % ((int64_t)it->height * it->width);
    int inside = (int)(patch % it->patches_a_unit);
    *row = (int)(unit / it->width) * merge + inside / merge;
    *column = (int)(unit % it->width) * merge + inside % merge;
}

// Height turns the first quarter of a head's dimensions, width the second; theta is 10000 in every model. Every frame
// pair is like the first.
static void fill_angles(const struct filling *it, const struct vision_config *vision, int times) {
    int pairs = vision->head_dim / 2, quarter = pairs / 2;
    int64_t patches = (int64_t)it->height * it->width * it->patches_a_unit;
    float *cosines = it->out->cos, *sines = it->out->sin;
    for (int j = 0; j < pairs; j++) {
        int axis = j / quarter, pair = j % quarter;
        float inverse = 1.0f / (float)pow(10000.0, (double)((float)(2 * pair) / (float)pairs));
        for (int64_t i = 0; i < patches; i++) {
            int place[2];
            patch_place(it->out->order[i], it, vision->spatial_merge_size, &place[0], &place[1]);
            float angle = (float)place[axis] * inverse;
            cosines[i * pairs + j] = (float)cos((double)angle);
            sines[i * pairs + j] = (float)sin((double)angle);
        }
    }
    for (int time = 1; time < times; time++) {
        memcpy(cosines + time * patches * pairs, cosines, (size_t)(patches * pairs) * sizeof *cosines);
        memcpy(sines + time * patches * pairs, sines, (size_t)(patches * pairs) * sizeof *sines);
    }
}

status windows_make(struct windows *windows, struct arena *arena, const struct model_config *config, struct grid grid) {
    const struct vision_config *vision = &config->vision;
    int64_t patches = grid_patches(grid), units = grid_tokens(grid, config);
    size_t angles = (size_t)patches * (size_t)(vision->head_dim / 2) * sizeof(float);
    *windows = (struct windows){
        .order = arena_alloc(arena, (size_t)patches * sizeof(int32_t)),
        .back = arena_alloc(arena, (size_t)patches * sizeof(int32_t)),
        .units = arena_alloc(arena, (size_t)units * sizeof(int32_t)),
        .windows = arena_alloc(arena, (size_t)units * sizeof(struct attention_span)),
        .frames = arena_alloc(arena, (size_t)grid.time * sizeof(struct attention_span)),
        .cos = arena_alloc(arena, angles),
        .sin = arena_alloc(arena, angles),
    };
    if (!windows->order || !windows->back || !windows->units || !windows->windows || !windows->frames ||
        !windows->cos || !windows->sin)
        return fail_oom();
    struct filling it = {windows, 0, (int64_t)vision->spatial_merge_size * vision->spatial_merge_size,
                         grid.height / vision->spatial_merge_size, grid.width / vision->spatial_merge_size};
    int side = vision->window_size / vision->spatial_merge_size / vision->patch_size;
    for (int time = 0; time < grid.time; time++) add_frame(&it, time, side);
    fill_angles(&it, vision, grid.time);
    return OK;
}
