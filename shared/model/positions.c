// The prompt's positions: text counts on by one; a medium spans its own grid from there; text after it goes on after
// the largest of the three axes.
#include "shared/model/positions.h"

#include <math.h>

status grid_of(struct grid *grid, const struct model_config *config, const struct model_medium *medium) {
    const struct vision_config *vision = &config->vision;
    int unit = vision->patch_size * vision->spatial_merge_size;
    if (medium->frames < 1 || medium->height < unit || medium->width < unit || medium->height % unit ||
        medium->width % unit)
        return fail(BAD_SAMPLE, "a medium of %d frames of %d x %d does not divide into units of %d", medium->frames,
                    medium->height, medium->width, unit);
    if (!medium->video && medium->frames != 1) return fail(BAD_SAMPLE, "an image of %d frames", medium->frames);
    grid->time = (medium->frames + vision->temporal_patch_size - 1) / vision->temporal_patch_size;
    grid->height = medium->height / vision->patch_size;
    grid->width = medium->width / vision->patch_size;
    return OK;
}

int64_t grid_patches(struct grid grid) {
    return (int64_t)grid.time * grid.height * grid.width;
}

int64_t grid_tokens(struct grid grid, const struct model_config *config) {
    return grid_patches(grid) / (config->vision.spatial_merge_size * config->vision.spatial_merge_size);
}

status tokens_check(const struct model_config *config, const int64_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= config->text.vocab_size)
            return fail(BAD_SAMPLE, "token %lld is outside the vocabulary of %lld", (long long)tokens[i],
                        (long long)config->text.vocab_size);
    }
    return OK;
}

// The positions of one medium's tokens, from `start` on; returns the largest.
static int32_t medium_positions(struct position_id *out, const struct model_config *config, struct grid grid,
                                bool video, double seconds, int32_t start) {
    int height = grid.height / config->vision.spatial_merge_size,
        width = grid.width / config->vision.spatial_merge_size;
    int32_t largest = start;
    for (int t = 0; t < grid.time; t++) {
        float scaled = (float)t * (float)seconds;
        scaled = scaled * config->vision.tokens_per_second;
        int32_t time = video ? start + (int32_t)scaled : start;
        for (int h = 0; h < height; h++) {
            for (int w = 0; w < width; w++) *out++ = (struct position_id){{time, start + h, start + w}};
        }
        if (time > largest) largest = time;
    }
    if (start + height - 1 > largest) largest = start + height - 1;
    if (start + width - 1 > largest) largest = start + width - 1;
    return largest;
}

// The medium whose first placeholder is token `at`: its positions; *count tokens are its own.
static status place_medium(struct position_id *position_ids, int32_t *next, int64_t *count,
                           const struct model_config *config, const struct model_prompt *prompt, size_t at,
                           const struct model_medium *medium) {
    struct grid grid = {0};
    TRY(grid_of(&grid, config, medium));
    if (!(medium->seconds_per_grid >= 0 && medium->seconds_per_grid < 1e4) && medium->video)
        return fail(BAD_SAMPLE, "seconds_per_grid is %g", medium->seconds_per_grid);
    int64_t token = medium->video ? config->video_token_id : config->image_token_id;
    *count = grid_tokens(grid, config);
    for (int64_t i = 0; i < *count; i++) {
        if (at + (size_t)i >= prompt->count || prompt->tokens[at + (size_t)i] != token)
            return fail(BAD_SAMPLE, "%s of %lld tokens has %lld placeholders", medium->video ? "a clip" : "an image",
                        (long long)*count, (long long)i);
    }
    *next = medium_positions(position_ids + at, config, grid, medium->video, medium->seconds_per_grid, *next) + 1;
    return OK;
}

status prompt_positions(struct position_id *position_ids, int32_t *next, int64_t *first,
                        const struct model_config *config, const struct model_prompt *prompt) {
    if (prompt->count == 0) return fail(BAD_SAMPLE, "the prompt is empty");
    if (prompt->count > INT32_MAX / 4) return fail(BAD_SAMPLE, "the prompt has %zu tokens", prompt->count);
    TRY(tokens_check(config, prompt->tokens, prompt->count));
    size_t media = 0;
    *next = 0;
    for (size_t i = 0; i < prompt->count;) {
        int64_t token = prompt->tokens[i];
        if (token != config->image_token_id && token != config->video_token_id) {
            position_ids[i++] = (struct position_id){{*next, *next, *next}};
            ++*next;
            continue;
        }
        if (media == prompt->media_count || prompt->media[media].video != (token == config->video_token_id))
            return fail(BAD_SAMPLE, "placeholder %lld of the prompt belongs to no medium", (long long)token);
        int64_t count = 0;
        TRY(place_medium(position_ids, next, &count, config, prompt, i, &prompt->media[media]));
        first[media++] = (int64_t)i;
        i += (size_t)count;
    }
    if (media < prompt->media_count)
        return fail(BAD_SAMPLE, "the prompt has placeholders for %zu of %zu media", media, prompt->media_count);
    return OK;
}

static float text_frequency(const struct text_config *text, int pair) {
    return 1.0f / (float)pow((double)text->rope_theta, (double)((float)(2 * pair) / (float)text->head_dim));
}

static float round_bfloat16(float value) {
    union {
        float number;
        uint32_t bits;
    } it = {value};
    it.bits = (it.bits + 0x7fffu + (it.bits >> 16 & 1)) & 0xffff0000u;
    return it.number;
}

void rope_angles(float *cosines, float *sines, const struct position_id *position_ids, int64_t count,
                 const struct text_config *text, bool rounded) {
    int pairs = text->head_dim / 2;
    for (int j = 0; j < pairs; j++) {
        float inverse = text_frequency(text, j);
        int axis = j < text->mrope_section[0] ? 0 : j < text->mrope_section[0] + text->mrope_section[1] ? 1 : 2;
        for (int64_t i = 0; i < count; i++) {
            float angle = (float)position_ids[i].axis[axis] * inverse;
            float c = (float)cos((double)angle), s = (float)sin((double)angle);
            cosines[i * pairs + j] = rounded ? round_bfloat16(c) : c;
            sines[i * pairs + j] = rounded ? round_bfloat16(s) : s;
        }
    }
}
