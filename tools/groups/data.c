// caravan data FILE: what an annotation file has, and what is wrong with it, before a run: its samples are counted by
// their properties, every mistake is listed, every image and video is looked for, and those of a few samples are
// decoded.
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/config/stage_kinds.h"
#include "shared/data/dataset.h"
#include "shared/data/format.h"
#include "shared/media/media.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/option_letter.h"
#include "tools/tools.h"

struct data_options {
    const char *format, *media_root, *template, *clip, *frame_records, *example;
    int64_t open;
    bool media, json;
};

// The options that the stage `source` has, too; it says which values they may have.
#define SOURCE_OPTION(field, type_, help_)                                                                             \
    { .name = #field, .offset = offsetof(struct data_options, field), .type = type_, .help = help_ }

static const struct option data_options[] = {
    SOURCE_OPTION(format, OPTION_STRING, "layout of the annotations, as of the stage source (default: caravan)"),
    SOURCE_OPTION(media_root, OPTION_FILE, "directory that relative media paths start from"),
    SOURCE_OPTION(template, OPTION_STRING, "prompt template, or none; it needs a section for each problem type"),
    SOURCE_OPTION(clip, OPTION_STRING, "whole or cut, as of the stage source"),
    SOURCE_OPTION(frame_records, OPTION_STRING, "folder or released, as of the stage source"),
    {.name = "media",
     .offset = offsetof(struct data_options, media),
     .type = OPTION_BOOL,
     .default_value = "true",
     .help = "look for the images and videos; --no-media does not"},
    {.name = "open",
     .offset = offsetof(struct data_options, open),
     .type = OPTION_INT,
     .default_value = "8",
     .low = 0,
     .high = 1e9,
     .help = "samples, spread over the file, whose images and videos are decoded; 0 is none"},
    {.name = "example",
     .offset = offsetof(struct data_options, example),
     .type = OPTION_STRING,
     .help = "print records of a layout, such as video-r1, instead of reading FILE"},
    {.name = "json", .offset = offsetof(struct data_options, json), .type = OPTION_BOOL, .help = "print JSON"},
    {0},
};
const struct option_table data_table = {
    .program = "caravan data",
    .operands = "FILE",
    .help = "counts the samples of an annotation file, and lists its mistakes and the media that are missing",
    .details = "Exit code 65 if a record is wrong or its kind of medium unknown, if its answer\n"
               "is none of its options, or if a medium is missing or cannot be decoded.\n",
    .options = data_options,
    .size = sizeof(struct data_options),
};

// The report, which is what --json prints. Objects count by name; arrays list.
struct data_report {
    bool media;             // look for them
    const char *media_root; // NULL: none
    int64_t samples, opened;
    int64_t count, open; // samples of the file, and how many of them are to be opened
    json_object *whole, *kinds, *types, *categories, *levels, *sources, *quarantined, *mistakes, *missing, *undecodable;
    json_object *seen; // paths that were looked for; not part of the report
};

static status data_count(json_object *counts, const char *name) {
    json_object *count = json_object_object_get(counts, name);
    if (count) return json_object_int_inc(count, 1) ? OK : fail_oom();
    count = json_object_new_int64(1);
    if (count && json_object_object_add(counts, name, count) == 0) return OK;
    json_object_put(count);
    return fail_oom();
}

// Adds what is wrong with the sample at `line`. path NULL: it is not about a medium.
static status data_list(json_object *array, size_t line, const char *path, const char *what) {
    json_object *item = json_object_new_object();
    if (!item || json_object_object_add(item, "line", json_object_new_uint64(line)) ||
        (path && json_object_object_add(item, "path", json_object_new_string(path))) ||
        json_object_object_add(item, "what", json_object_new_string(what)) || json_object_array_add(array, item)) {
        json_object_put(item);
        return fail_oom();
    }
    return OK;
}

// Lists the file or the directory of pictures of a part unless it is there. Each path is looked for once.
static status data_look_for(struct data_report *report, const struct part *part, size_t line) {
    const bool pictures = part->kind == PART_VIDEO && !isnan(part->frame_rate);
    struct arena arena = {0};
    struct stat info;
    char *path;
    status result = media_path(&path, &arena, NULL, media_uri(part));
    if (result == BAD_SAMPLE) {
        result = data_list(report->missing, line, media_uri(part).data, fail_text());
    } else if (result == OK && !json_object_object_get(report->seen, path)) {
        const char *wrong = NULL;
        if (stat(path, &info))
            wrong = strerror(errno);
        else if (pictures ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode))
            wrong = pictures ? "not a directory" : "not a file";
        result = data_count(report->seen, path);
        if (result == OK && report->media_root && media_check_inside(report->media_root, path) == BAD_SAMPLE)
            result = data_count(report->kinds, "outside media_root");
        if (result == OK && wrong) result = data_list(report->missing, line, path, wrong);
    }
    arena_release(&arena);
    return result;
}

// Decodes a medium as the frames stage does by default, and lists it if that cannot be done. A missing one is listed
// already.
static status data_open(struct data_report *report, const struct part *part, size_t line) {
    const struct sampling_config published = sampling_config_default(), sampling = media_sampling(&published, part);
    struct arena arena = {0};
    struct frames_view view = {0};
    struct stat info;
    char *path;
    status result = media_path(&path, &arena, NULL, media_uri(part));
    if (result == OK && !stat(path, &info) &&
        (isnan(part->frame_rate) ? S_ISREG(info.st_mode) : S_ISDIR(info.st_mode))) {
        report->opened++;
        result = media_decode(&view, path, part->kind == PART_VIDEO, &sampling, NULL);
        frames_view_release(&view);
        if (result == BAD_SAMPLE) result = data_list(report->undecodable, line, path, fail_text());
    }
    arena_release(&arena);
    return result == BAD_SAMPLE ? OK : result;
}

// Whether the sample is one of those that are opened, which are spread over the file.
static bool data_is_opened(const struct data_report *report) {
    const int64_t index = report->samples - 1;
    return report->open >= report->count ||
           (index + 1) * report->open / report->count > index * report->open / report->count;
}

// Lists a sample whose answer is none of its options: no completion can be right.
static status data_check_answer(struct data_report *report, const struct prompt *prompt, size_t line) {
    const struct string answer = answer_extract(prompt->solution);
    const size_t count = prompt->options.count;
    char what[160];
    if (!count || strcmp(prompt->problem_type.data, "multiple choice") != 0) return OK;
    const char letter = option_of_answer(answer, &prompt->options);
    if (letter && (size_t)(letter - 'A') < count) return OK;
    snprintf(what, sizeof what, "solution: the answer '%.*s' is none of the %zu options, A to %c",
             (int)(answer.size < 60 ? answer.size : 60), answer.data ? answer.data : "", count,
             (char)('A' + (count < 26 ? count - 1 : 25)));
    return data_list(report->mistakes, line, NULL, what);
}

// Returns fail_text() without FILE:LINE: in front of it.
static const char *data_text_after_line(size_t line) {
    char mark[32];
    snprintf(mark, sizeof mark, ":%zu: ", line);
    const char *at = strstr(fail_text(), mark);
    return at ? at + strlen(mark) : fail_text();
}

static status data_visit(void *context, const struct dataset_sample *sample) {
    struct data_report *report = context;
    const struct group *group = sample->group;
    report->samples++;
    if (!group) return data_list(report->mistakes, sample->line, NULL, data_text_after_line(sample->line));
    const struct prompt *prompt = &group->prompt;
    const struct string video_source = json_string(json_object_object_get(sample->record, "video_source")),
                        data_source = json_string(json_object_object_get(sample->record, "data_source"));
    const struct {
        json_object *counts;
        struct string name;
    } properties[] = {{report->types, prompt->problem_type},
                      {report->categories, prompt->category},
                      {report->levels, prompt->level},
                      {report->sources, video_source.data ? video_source : data_source}};
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (properties[i].name.size) TRY(data_count(properties[i].counts, properties[i].name.data));
    if (group->quarantine.present)
        return data_list(report->quarantined, sample->line, NULL, group->quarantine.reason.data);
    size_t count = 0;
    for (const struct part *part; (part = media_part(group, count)); count++) {
        const char *video = isnan(part->frame_rate) ? "video" : "pictures";
        TRY(data_count(report->kinds, part->kind == PART_VIDEO ? video : "image"));
        if (report->media) TRY(data_look_for(report, part, sample->line));
        if (report->media && data_is_opened(report)) TRY(data_open(report, part, sample->line));
    }
    TRY(data_check_answer(report, prompt, sample->line));
    return count ? OK : data_count(report->kinds, "none");
}

// ---- the report ----

static status data_report_new(struct data_report *report) {
    const struct {
        const char *name;
        json_object **part;
        bool list;
    } parts[] = {{"media", &report->kinds, false},           {"problem_types", &report->types, false},
                 {"categories", &report->categories, false}, {"levels", &report->levels, false},
                 {"sources", &report->sources, false},       {"quarantined", &report->quarantined, true},
                 {"mistakes", &report->mistakes, true},      {"missing", &report->missing, true},
                 {"undecodable", &report->undecodable, true}};
    report->whole = json_object_new_object();
    report->seen = json_object_new_object();
    if (!report->whole || !report->seen) return fail_oom();
    // Comes first; the number is known at the end.
    if (json_object_object_add(report->whole, "samples", json_object_new_int64(0))) return fail_oom();
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *parts[i].part = parts[i].list ? json_object_new_array() : json_object_new_object();
        if (!*parts[i].part || json_object_object_add(report->whole, parts[i].name, *parts[i].part)) return fail_oom();
    }
    return OK;
}

static void data_print(json_object *whole) {
    json_object_object_foreach(whole, name, part) {
        char title[32];
        snprintf(title, sizeof title, "%s", name);
        for (char *c = title; *c; c++) *c = *c == '_' ? ' ' : *c;
        if (json_object_is_type(part, json_type_object)) {
            if (json_object_object_length(part)) printf("%s\n", title);
            json_object_object_foreach(part, key, count)
                printf("  %-38s %9lld\n", key, (long long)json_object_get_int64(count));
            continue;
        }
        const bool list = json_object_is_type(part, json_type_array);
        const size_t items = list ? json_object_array_length(part) : 0;
        printf("%-40s %9lld\n", title, list ? (long long)items : (long long)json_object_get_int64(part));
        for (size_t i = 0; i < items; i++) {
            json_object *item = json_object_array_get_idx(part, i), *path = json_object_object_get(item, "path");
            printf("  line %s: %s%s%s\n", json_object_get_string(json_object_object_get(item, "line")),
                   path ? json_object_get_string(path) : "", path ? ": " : "",
                   json_object_get_string(json_object_object_get(item, "what")));
        }
    }
}

static void data_print_report(const struct data_report *report, bool json) {
    struct buf text = {0};
    json_object_set_int64(json_object_object_get(report->whole, "samples"), report->samples);
    if (json) {
        json_print(&text, report->whole);
        puts(text.data);
    } else {
        data_print(report->whole);
    }
    buf_release(&text);
}

int data_main(int argc, char **argv) {
    struct data_options given;
    struct source_options source;
    struct options options = {0}, source_options = {0};
    struct data_report report = {0};
    struct operands operands = {.least = 0, .most = 1};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &data_table, &given, argc, argv, &operands));
    if (given.example) {
        const struct format *format = format_find(given.example);
        result = format ? OK : fail(USAGE, "--example: there is no layout %s", given.example);
        if (format) fputs(format->example, stdout);
        goto done;
    }
    if (!operands.count)
        TRY_TO(result, done,
               fail(USAGE, "an operand is missing; usage: %s %s", data_table.program, data_table.operands));
    TRY_TO(result, done, options_init(&source_options, &stage_kinds[STAGE_SOURCE].options, &source));
    const char *const pairs[][2] = {{"data", operands.list[0]},
                                    {"format", given.format},
                                    {"media_root", given.media_root},
                                    {"template", given.template ? given.template : "none"},
                                    {"clip", given.clip},
                                    {"frame_records", given.frame_records}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][1]) TRY_TO(result, done, options_set(&source_options, pairs[i][0], pairs[i][1]));
    report.media = given.media;
    report.open = given.open;
    report.media_root = given.media_root;
    TRY_TO(result, done, data_report_new(&report));
    size_t groups;
    TRY_TO(result, done, dataset_count_groups(&source, &groups));
    report.count = (int64_t)groups;
    TRY_TO(result, done, dataset_each(&source, data_visit, &report));
    data_print_report(&report, given.json);
    const size_t mistakes = json_object_array_length(report.mistakes),
                 missing = json_object_array_length(report.missing),
                 unknown = json_object_array_length(report.quarantined),
                 undecodable = json_object_array_length(report.undecodable);
    if (mistakes + missing + unknown + undecodable)
        result = fail(DATAERR,
                      "%s: %zu mistakes, %zu samples of an unknown kind, %zu media missing, %zu of %lld not decodable",
                      operands.list[0], mistakes, unknown, missing, undecodable, (long long)report.opened);
done:
    json_object_put(report.whole);
    json_object_put(report.seen);
    options_release(&source_options);
    options_release(&options);
    return subcommand_exit(result);
}
