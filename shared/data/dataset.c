#include "shared/data/dataset.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/rng.h"
#include "shared/base/log.h"
#include "shared/data/format.h"
#include "shared/data/records.h"

struct dataset {
    struct arena arena;
    const char *path;
    struct records records;
    size_t count; // samples in use, those behind `limit` left out
    size_t epochs;
    bool shuffle;
    size_t *order; // of the samples in epoch `ordered`
    size_t ordered;
    struct buf template_text;
    struct prompt_template template;
    struct format_options rules;
    layout *layout;
};

static status read_template(struct dataset *dataset, const struct settings *settings) {
    const char *path = settings_text(settings, "template");
    struct buf *whole = &dataset->template_text;
    if (path && settings_is(settings, "template", "none")) return OK;
    dataset->rules.template = &dataset->template;
    if (path)
        TRY(file_read(path, whole));
    else
        TRY(buf_puts(whole, prompt_template_default));
    return prompt_template_parse(&dataset->template, path ? path : "the shipped template",
                                 (struct string){whole->data, whole->size});
}

static status read_media_root(struct dataset *dataset, const struct settings *settings) {
    const char *root = settings_text(settings, "media_root");
    char absolute[PATH_MAX];
    if (!root) return OK;
    if (!realpath(root, absolute)) return fail(DATAERR, "media_root: cannot find %s", root);
    dataset->rules.media_root = arena_strndup(&dataset->arena, absolute, strlen(absolute));
    return dataset->rules.media_root ? OK : fail_oom();
}

static status read_settings(struct dataset *dataset, const struct settings *settings) {
    const char *path = settings_text(settings, "data");
    dataset->path = arena_strndup(&dataset->arena, path, strlen(path));
    if (!dataset->path) return fail_oom();
    dataset->epochs = (size_t)settings_int(settings, "epochs");
    dataset->shuffle = settings_bool(settings, "shuffle");
    dataset->rules.seed = (uint64_t)settings_int(settings, "seed");
    dataset->layout = settings_is(settings, "format", "seed-bench-r1") ? format_seed_bench
                      : settings_is(settings, "format", "video-r1")    ? format_video_r1
                                                                       : format_caravan;
    TRY(read_media_root(dataset, settings));
    if (dataset->layout != format_caravan) return read_template(dataset, settings);
    const char *template = settings_text(settings, "template");
    if (template && !settings_is(settings, "template", "none"))
        return fail(USAGE, "template: the layout caravan has its messages written out; leave it out");
    return OK;
}

static status make_sample(const struct dataset *dataset, size_t sample, struct group **out) {
    const struct record *record = &dataset->records.list[sample];
    json_object *json = NULL;
    *out = NULL;
    status result = json_parse(&json, record->data, record->size);
    if (result == OK && !json_object_is_type(json, json_type_object)) result = fail(DATAERR, "not a JSON object");
    if (result == OK) result = dataset->layout(&dataset->rules, json, record->line, out);
    json_object_put(json);
    return result == DATAERR ? fail_prefix(DATAERR, "%s:%zu", dataset->path, record->line) : result;
}

// Makes every sample once. One mistake is the failure itself; of several each is said.
static status check_samples(const struct dataset *dataset) {
    enum { SAID = 20 };
    size_t mistakes = 0;
    struct arena arena = {0};
    const char *first = "";
    for (size_t i = 0; i < dataset->count; i++) {
        struct group *group = NULL;
        status result = make_sample(dataset, i, &group);
        group_free(&group);
        if (result == OK) continue;
        if (result != DATAERR) return result;
        mistakes++;
        if (mistakes == 1) first = arena_printf(&arena, "%s", fail_text());
        if (mistakes == 2) log_info("%s", first ? first : "out of memory");
        if (mistakes >= 2 && mistakes <= SAID) log_info("%s", fail_text());
    }
    status result = OK;
    if (mistakes == 1) result = fail(DATAERR, "%s", first ? first : "out of memory");
    if (mistakes > 1)
        result = fail(DATAERR, "%s: %zu mistakes in %zu samples", dataset->path, mistakes, dataset->count);
    arena_release(&arena);
    return result;
}

static status open_records(struct dataset *dataset, const struct settings *settings) {
    int64_t limit = settings_int(settings, "limit");
    TRY(records_open(&dataset->records, dataset->path));
    dataset->count = dataset->records.count;
    if (limit > 0 && (size_t)limit < dataset->count) dataset->count = (size_t)limit;
    if (!dataset->count) return fail(DATAERR, "%s: no samples", dataset->path);
    TRY(NEW(&dataset->order, dataset->count));
    dataset->ordered = SIZE_MAX;
    return check_samples(dataset);
}

status dataset_open(struct dataset **out, const struct settings *settings) {
    TRY(NEW(out, 1));
    status result = read_settings(*out, settings);
    if (result == OK) result = open_records(*out, settings);
    if (result != OK) dataset_free(out);
    return result;
}

void dataset_free(struct dataset **dataset) {
    if (!*dataset) return;
    records_release(&(*dataset)->records);
    buf_release(&(*dataset)->template_text);
    arena_release(&(*dataset)->arena);
    free((*dataset)->order);
    free(*dataset);
    *dataset = NULL;
}

size_t dataset_count(const struct dataset *dataset) {
    return dataset->count * dataset->epochs;
}

// Which sample stands at `place` of the epoch.
static size_t sample_at(struct dataset *dataset, size_t epoch, size_t place) {
    if (!dataset->shuffle) return place;
    if (dataset->ordered != epoch)
        rng_shuffle(rng_key(dataset->rules.seed, "order of samples"), epoch, dataset->count, dataset->order);
    dataset->ordered = epoch;
    return dataset->order[place];
}

status dataset_group(struct dataset *dataset, size_t place, struct group **out) {
    size_t epoch = place / dataset->count, within = place % dataset->count;
    char id[64];
    *out = NULL;
    if (epoch >= dataset->epochs) return fail(BUG, "group %zu of %zu", place, dataset_count(dataset));
    TRY(make_sample(dataset, sample_at(dataset, epoch, within), out));
    int length = snprintf(id, sizeof id, "e%zu-%06zu", epoch, within);
    status result = group_string(*out, &(*out)->id, id, (size_t)length);
    if (result != OK) group_free(out);
    return result;
}

uint64_t dataset_hash(const struct dataset *dataset) {
    uint64_t numbers[] = {dataset->rules.seed, dataset->shuffle, dataset->count};
    uint64_t hash = XXH3_64bits(numbers, sizeof numbers);
    if (dataset->template_text.size)
        hash = XXH3_64bits_withSeed(dataset->template_text.data, dataset->template_text.size, hash);
    for (size_t i = 0; i < dataset->count; i++)
        hash = XXH3_64bits_withSeed(dataset->records.list[i].data, dataset->records.list[i].size, hash);
    return hash;
}
