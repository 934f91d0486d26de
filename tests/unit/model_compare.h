// Tensors of a golden file against those that the model has written.
#pragma once

#include "tests/unit/model_case.h"

// Relative distances between two sets of tensors.
struct distance {
    double maximum;          // of any one tensor
    double difference, size; // sums of squares over all
    size_t tensors;
};

static inline double distance_of_all(const struct distance *distance) {
    return sqrt(distance->difference / distance->size);
}

// The tensor of that flat name, behind a prefix, or of the nested name.
static inline const struct stored_tensor *find_tensor(const struct safetensors *store, const char *prefix,
                                                      const char *name) {
    char other[200];
    snprintf(other, sizeof other, "%s%s", prefix, name);
    const struct stored_tensor *tensor = safetensors_find(store, other);
    bool inner = strncmp(name, "model.", 6) == 0;
    snprintf(other, sizeof other, "model.%s%s", inner ? "language_model." : "", inner ? name + 6 : name);
    if (!tensor) tensor = safetensors_find(store, other);
    if (!tensor) {
        print_error("no tensor %s\n", name);
        abort();
    }
    return tensor;
}

// Compares every tensor PREFIX + name of a golden file, which has every `every`th row of matrices, with `name` of the
// file at `path` (less that of `base`).
static inline struct distance compare_some_tensors(const struct safetensors *golden, size_t every, const char *prefix,
                                                   const char *path, const char *base) {
    struct safetensors *got = NULL, *from = NULL;
    MUST(safetensors_open(&got, path));
    if (base) MUST(safetensors_open(&from, base));
    struct distance all = {0};
    for (size_t i = 0; i < safetensors_count(golden); i++) {
        const struct stored_tensor *want = safetensors_at(golden, i);
        if (strncmp(want->name, prefix, strlen(prefix)) != 0) continue;
        const char *name = want->name + strlen(prefix);
        const struct stored_tensor *tensor = find_tensor(got, base ? "master." : "", name);
        const struct stored_tensor *start = from ? safetensors_find(from, tensor->name) : NULL;
        size_t count = want->size / 4, columns = want->rank > 1 ? count / (size_t)want->shape[0] : count;
        assert_int_equal(want->rank > 1 ? ((size_t)tensor->shape[0] + every - 1) / every * columns : tensor->size / 4,
                         count);
        float *values = malloc(want->size);
        for (size_t j = 0; j < count; j++) {
            size_t at = j / columns * every * columns + j % columns;
            values[j] = ((const float *)tensor->data)[at] - (start ? ((const float *)start->data)[at] : 0);
        }
        double difference = relative_distance(values, want->data, count);
        if (!(difference <= all.maximum)) all.maximum = difference;
        for (size_t j = 0; j < count; j++) {
            double right = ((const float *)want->data)[j];
            all.difference += (values[j] - right) * (values[j] - right);
            all.size += right * right;
        }
        free(values);
        all.tensors++;
    }
    safetensors_close(&got);
    safetensors_close(&from);
    return all;
}

// The same for a model's files, which have more than 20 tensors.
static inline struct distance compare_tensors(const struct safetensors *golden, size_t every, const char *prefix,
                                              const char *path, const char *base) {
    struct distance all = compare_some_tensors(golden, every, prefix, path, base);
    assert_true(all.tensors > 20);
    return all;
}
