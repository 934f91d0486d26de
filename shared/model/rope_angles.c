// Angles are computed in float32, as in Hugging Face, and their cosines and sines in double.
#include "shared/model/rope_angles.h"

#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"

enum { MIN_POSITIONS = 1024 };

static float rope_angles_round(float value) {
    union {
        float number;
        uint32_t bits;
    } it = {value};
    it.bits = (it.bits + 0x7fffu + (it.bits >> 16 & 1)) & 0xffff0000u;
    return it.number;
}

static void rope_angles_fill(const struct rope_angles *angles, float *cosines, float *sines, int64_t positions) {
    for (int j = 0; j < angles->pairs; j++) {
        float exponent = (float)(2 * (j % angles->period)) / (float)(2 * angles->period);
        float frequency = 1.0f / (float)pow(angles->theta, (double)exponent);
        for (int64_t position = 0; position < positions; position++) {
            float angle = (float)position * frequency;
            float c = (float)cos((double)angle), s = (float)sin((double)angle);
            cosines[position * angles->pairs + j] = angles->rounded ? rope_angles_round(c) : c;
            sines[position * angles->pairs + j] = angles->rounded ? rope_angles_round(s) : s;
        }
    }
}

// The rows of a table that has at least `positions`.
static int64_t rope_angles_rows(int64_t positions) {
    int64_t rows = MIN_POSITIONS;
    while (rows < positions) rows *= 2;
    return rows;
}

size_t rope_angles_bytes(int pairs, int64_t positions) {
    return 2 * (size_t)rope_angles_rows(positions) * (size_t)pairs * sizeof(float);
}

status rope_angles_reserve(struct rope_angles *angles, struct backend *backend, int64_t positions) {
    struct rope_table *table = &angles->table;
    if (table->cos.rows >= positions) return OK;
    int64_t rows = rope_angles_rows(positions);
    size_t count = (size_t)rows * (size_t)angles->pairs, bytes = count * sizeof(float);
    struct buffer *buffer = NULL;
    float *values = NULL;
    status result = OK;
    TRY_TO(result, done, NEW_LARGE(&values, 2 * count));
    rope_angles_fill(angles, values, values + count, rows);
    TRY_TO(result, done, backend->ops->buffer_new(backend, 2 * bytes, &buffer));
    struct tensor cosines = {buffer, 0, ELEMENT_F32, rows, angles->pairs, angles->pairs}, sines = cosines;
    sines.offset = bytes;
    TRY_TO(result, done, backend->ops->upload(backend, cosines, values, ELEMENT_F32));
    TRY_TO(result, done, backend->ops->upload(backend, sines, values + count, ELEMENT_F32));
    backend->ops->buffer_free(backend, &angles->values);
    angles->values = buffer;
    table->cos = cosines;
    table->sin = sines;
    buffer = NULL;
done:
    backend->ops->buffer_free(backend, &buffer);
    free(values);
    return result;
}

void rope_angles_release(struct rope_angles *angles, struct backend *backend) {
    backend->ops->buffer_free(backend, &angles->values);
    angles->table.cos = angles->table.sin = (struct tensor){0};
}
