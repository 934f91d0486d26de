#include "shared/data/dataset.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/data/format.h"
#include "shared/data/records.h"
#include "shared/text/chat_template.h"

struct dataset {
    struct arena arena;
    const char *path;
    struct records records;
    size_t count; // samples in use: all, or the first `limit`
    size_t epochs;
    bool shuffle;
    size_t *order; // of the samples in epoch `ordered_epoch`
    size_t ordered_epoch;
    struct buf template_text;
    struct prompt_template template;
    struct format_options options;
    const struct format *format;
    struct tokenizer *tokenizer; // of the format sft
};

// Makes the group of a sample, and parses its record into the arena.
static status dataset_read_record(const struct dataset *dataset, size_t index, struct arena *arena, struct json **json,
                                  struct group **out) {
    assert(index < dataset->count);
    const struct record *record = &dataset->records.items[index];
    *json = NULL;
    *out = NULL;
    status result = json_parse(json, arena, record->data, record->size);
    if (result == OK && !json_is(*json, JSON_OBJECT)) result = fail(DATAERR, "not a JSON object");
    if (result == OK) result = format_read(dataset->format, &dataset->options, *json, record->place, out);
    return result == DATAERR ? fail_prefix(DATAERR, "%s:%zu", dataset->path, record->place.line) : result;
}

static status dataset_read_sample(const struct dataset *dataset, size_t index, struct group **out) {
    struct arena arena = {0};
    struct json *json;
    status result = dataset_read_record(dataset, index, &arena, &json, out);
    arena_release(&arena);
    return result;
}

// Opens the file and the template. No record is read. Free *out also after a failure.
static status dataset_prepare(struct dataset **out, const struct source_options *options) {
    const char *path = options->data, *media_root = options->media_root, *template = options->template;
    int64_t limit = options->limit;
    char absolute[PATH_MAX];
    NEW(out, 1);
    struct dataset *dataset = *out;
    dataset->path = arena_strndup(&dataset->arena, path, strlen(path));
    dataset->epochs = (size_t)options->epochs;
    dataset->shuffle = options->shuffle;
    dataset->options.seed = (uint64_t)options->seed;
    dataset->options.cut = options->clip == SOURCE_CLIP_CUT;
    dataset->options.no_frames = options->frame_records == SOURCE_FRAME_RECORDS_RELEASED;
    dataset->format = format_find(options->format);
    assert(dataset->format); // the options allow no other name
    if (media_root) {
        if (!realpath(media_root, absolute))
            return fail(file_read_status(errno), "media_root: %s: %s", media_root, strerror(errno));
        dataset->options.media_root = arena_strndup(&dataset->arena, absolute, strlen(absolute));
    }
    bool has_messages = dataset->format->has_messages, no_template = template && !strcmp(template, "none");
    if (has_messages && template && !no_template)
        return fail(USAGE, "template: cannot be combined with format %s, whose records contain their messages",
                    dataset->format->name);
    if (!has_messages && !no_template) {
        struct buf *text = &dataset->template_text;
        if (template)
            TRY(template_read(template, text));
        else
            buf_puts(text, prompt_template_default);
        TRY(prompt_template_parse(&dataset->template, template ? template : "the default template",
                                  (struct string){text->data, text->size}));
        dataset->options.template = &dataset->template;
    }
    TRY(records_open(&dataset->records, dataset->path));
    dataset->count = dataset->records.count;
    if (limit > 0 && (size_t)limit < dataset->count) dataset->count = (size_t)limit;
    if (!dataset->count) return fail(DATAERR, "%s: no samples", dataset->path);
    NEW(&dataset->order, dataset->count);
    dataset->ordered_epoch = SIZE_MAX;
    return OK;
}

status dataset_open(struct dataset **out, const struct source_options *options) {
    enum { MAX_LOGGED = 20 };
    struct arena arena = {0};
    const char *first = NULL; // mistake
    size_t mistakes = 0;
    status result = dataset_prepare(out, options);
    struct dataset *dataset = *out;
    // Reads every sample once, without a tokenizer, because tokens take time. One mistake is the failure itself; of
    // several the first are logged.
    for (size_t i = 0; result == OK && i < dataset->count; i++) {
        struct group *group = NULL;
        result = dataset_read_sample(dataset, i, &group);
        group_free(&group);
        if (result != DATAERR) continue;
        result = OK;
        mistakes++;
        if (mistakes == 1) first = arena_printf(&arena, "%s", fail_text());
        if (mistakes == 2) log_info("%s", first);
        if (mistakes >= 2 && mistakes <= MAX_LOGGED) log_info("%s", fail_text());
    }
    if (result == OK && mistakes == 1) result = fail(DATAERR, "%s", first);
    if (result == OK && mistakes > 1)
        result = fail(DATAERR, "%s: %zu mistakes in %zu samples", dataset->path, mistakes, dataset->count);
    arena_release(&arena);
    if (result == OK && dataset->format->has_tokens) {
        assert(options->model); // required by the options
        result = tokenizer_open(&dataset->tokenizer, options->model);
        if (result == OK) result = chat_template_check(dataset->tokenizer, options->model);
    }
    dataset->options.tokenizer = dataset->tokenizer;
    if (result != OK) dataset_free(out);
    return result;
}

void dataset_free(struct dataset **dataset) {
    if (!*dataset) return;
    records_release(&(*dataset)->records);
    tokenizer_free(&(*dataset)->tokenizer);
    buf_release(&(*dataset)->template_text);
    arena_release(&(*dataset)->arena);
    free((*dataset)->order);
    free(*dataset);
    *dataset = NULL;
}

status dataset_count_groups(const struct source_options *options, size_t *count) {
    struct dataset *dataset = NULL;
    status result = dataset_prepare(&dataset, options);
    if (result == OK) *count = dataset_count(dataset);
    dataset_free(&dataset);
    return result;
}

status dataset_each(const struct source_options *options,
                    status (*visit)(void *context, const struct dataset_sample *sample), void *context) {
    struct dataset *dataset = NULL;
    status result = dataset_prepare(&dataset, options);
    for (size_t i = 0; result == OK && i < dataset->count; i++) {
        struct group *group;
        struct arena arena = {0};
        struct json *json;
        result = dataset_read_record(dataset, i, &arena, &json, &group);
        const struct dataset_sample sample = {dataset->records.items[i].place.line, json, group};
        if (result == OK || result == DATAERR) result = visit(context, &sample);
        group_free(&group);
        arena_release(&arena);
    }
    dataset_free(&dataset);
    return result;
}

size_t dataset_count(const struct dataset *dataset) {
    return dataset->count * dataset->epochs;
}

// Returns which sample of the file the group at `index` is made of.
static size_t dataset_sample_at(struct dataset *dataset, size_t index) {
    const size_t epoch = index / dataset->count, within = index % dataset->count;
    if (!dataset->shuffle) return within;
    if (dataset->ordered_epoch != epoch)
        rng_shuffle(rng_key(dataset->options.seed, "order of samples"), epoch, dataset->count, dataset->order);
    dataset->ordered_epoch = epoch;
    return dataset->order[within];
}

size_t dataset_line(struct dataset *dataset, size_t index) {
    return dataset->records.items[dataset_sample_at(dataset, index)].place.line;
}

status dataset_group(struct dataset *dataset, size_t index, struct group **out) {
    const size_t epoch = index / dataset->count, within = index % dataset->count;
    char id[64];
    *out = NULL;
    if (epoch >= dataset->epochs) return fail(BUG, "group %zu of %zu", index, dataset_count(dataset));
    TRY(dataset_read_sample(dataset, dataset_sample_at(dataset, index), out));
    int length = snprintf(id, sizeof id, "e%zu-%06zu", epoch, within);
    assert(length > 0 && (size_t)length < sizeof id);
    group_string(*out, &(*out)->id, id, (size_t)length);
    return OK;
}

uint64_t dataset_hash(const struct dataset *dataset) {
    uint64_t numbers[] = {dataset->options.seed, dataset->shuffle, dataset->count};
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    if (dataset->options.cut) hash = XXH3_64bits_withSeed("cut", 3, hash);
    if (dataset->options.no_frames) hash = XXH3_64bits_withSeed("no frames", 9, hash);
    if (dataset->template_text.size)
        hash = XXH3_64bits_withSeed(dataset->template_text.data, dataset->template_text.size, hash);
    for (size_t i = 0; i < dataset->count; i++)
        hash = XXH3_64bits_withSeed(dataset->records.items[i].data, dataset->records.items[i].size, hash);
    return hash;
}

void dataset_describe(const struct dataset *dataset, struct buf *out) {
    const struct buf *template = &dataset->template_text;
    uint64_t hash = 0; // of all records, so that it is the same with every limit
    for (size_t i = 0; i < dataset->records.count; i++)
        hash = XXH3_64bits_withSeed(dataset->records.items[i].data, dataset->records.items[i].size, hash);
    buf_printf(out, "data %s (hash %016llx)\nlimit %zu\n", dataset->path, (unsigned long long)hash, dataset->count);
    buf_printf(out, "shuffle %s\nseed %llu\n", dataset->shuffle ? "true" : "false",
               (unsigned long long)dataset->options.seed);
    buf_printf(out, "clip %s\nframe_records %s\n", dataset->options.cut ? "cut" : "whole",
               dataset->options.no_frames ? "released" : "folder");
    if (!template->size) {
        buf_puts(out, "template none\n");
        return;
    }
    buf_printf(out, "template (hash %016llx)\n", (unsigned long long)XXH3_64bits(template->data, template->size));
}
