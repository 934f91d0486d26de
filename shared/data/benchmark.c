// How a benchmark is told from the path of a medium, and how each states the category of a record.
#include "shared/data/benchmark.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

#include "shared/data/format_internal.h"

enum benchmark { VSI_BENCH, VIDEO_MMMU, MMVU, MVBENCH, TEMPCOMPASS, VIDEO_MME, BENCHMARKS };

// In small letters, without - and _, in which spellings of a directory differ.
static const char *const benchmark_names[] = {"vsibench", "videommmu", "mmvu", "mvbench", "tempcompass", "videomme"};
static_assert(sizeof benchmark_names / sizeof *benchmark_names == BENCHMARKS, "one name for each benchmark");

// MVBench has no key for the task, but 200 records of each in this order.
enum { RECORDS_OF_TASK = 200 };
static const char *const mvbench_tasks[] = {
    "action_antonym",
    "action_count",
    "action_localization",
    "action_prediction",
    "action_sequence",
    "character_order",
    "counterfactual_inference",
    "egocentric_navigation",
    "episodic_reasoning",
    "fine_grained_action",
    "fine_grained_pose",
    "moving_attribute",
    "moving_count",
    "moving_direction",
    "object_existence",
    "object_interaction",
    "object_shuffle",
    "scene_transition",
    "state_change",
    "unexpected_action",
};

// Cuts the next part of a path up to a slash off *rest. Returns whether it is a directory, and not the file's name.
static bool benchmark_next_directory(struct string *rest, struct string *directory) {
    const char *slash = rest->size ? memchr(rest->data, '/', rest->size) : NULL;
    if (!slash) return false;
    *directory = (struct string){rest->data, (size_t)(slash - rest->data)};
    *rest = string_slice(*rest, directory->size + 1, rest->size);
    return true;
}

static bool benchmark_named(struct string directory, const char *name) {
    for (size_t i = 0; i < directory.size; i++) {
        char c = directory.data[i];
        if (c == '-' || c == '_') continue;
        if (!*name || tolower((unsigned char)c) != *name++) return false;
    }
    return !*name;
}

// Returns BENCHMARKS for a path of none of them.
static enum benchmark benchmark_of(struct string path) {
    struct string directory;
    while (benchmark_next_directory(&path, &directory))
        for (int i = 0; i < BENCHMARKS; i++)
            if (benchmark_named(directory, benchmark_names[i])) return (enum benchmark)i;
    return BENCHMARKS;
}

// Returns Art_Theory of DIR/validation_Art_Theory_12.mp4: without the first word and the last number. Empty if the name
// has another form.
static struct string benchmark_subject(struct string path) {
    struct string directory;
    while (benchmark_next_directory(&path, &directory)) {
    }
    const char *dot = memrchr(path.data, '.', path.size), *first = memchr(path.data, '_', path.size);
    size_t end = dot ? (size_t)(dot - path.data) : path.size, digits = 0;
    while (digits < end && isdigit((unsigned char)path.data[end - 1 - digits])) digits++;
    size_t begin = first ? (size_t)(first - path.data) + 1 : end;
    end -= digits;
    bool formed = digits && end > begin && path.data[end - 1] == '_';
    return formed ? string_slice(path, begin, end - 1) : (struct string){0};
}

// Returns the directory below videos; empty if there is none.
static struct string benchmark_folder(struct string path) {
    struct string directory;
    while (benchmark_next_directory(&path, &directory))
        if (directory.size == 6 && !memcmp(directory.data, "videos", 6))
            return benchmark_next_directory(&path, &directory) ? directory : (struct string){0};
    return (struct string){0};
}

status benchmark_set_category(struct group *group, struct json *record, struct string path, size_t index) {
    struct string *category = &group->prompt.category, found = {0};
    switch (benchmark_of(path)) {
    case VSI_BENCH:
    case TEMPCOMPASS:
        return format_label(group, record, "original_question_type", category);
    case VIDEO_MME:
        return format_label(group, record, "duration", category);
    case VIDEO_MMMU:
        found = benchmark_subject(path);
        break;
    case MMVU:
        found = benchmark_folder(path);
        break;
    case MVBENCH:
        index /= RECORDS_OF_TASK;
        if (index < sizeof mvbench_tasks / sizeof *mvbench_tasks) found = string_of(mvbench_tasks[index]);
        break;
    case BENCHMARKS:
        break;
    }
    if (found.size) group_string(group, category, found.data, found.size);
    return OK;
}
