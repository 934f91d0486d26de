// caravan data FILE: what an annotation file has, and what is wrong with it, before a run: its samples are counted by
// their properties, every mistake is listed, every image and video is looked for, and those of a few samples are
// decoded.
#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/json.h"
#include "shared/config/stage_kinds.h"
#include "shared/data/dataset.h"
#include "shared/data/format.h"
#include "shared/media/media.h"
#include "shared/reward/accuracy.h"
#include "tools/tools.h"

struct data_options {
    const char *format, *media_root, *template, *clip, *frame_records, *example;
    int64_t open;
    bool media, json;
};

static const struct option data_options[] = {
    // The stage `source` has these, too; it says which values they may have.
    TOOL_OPTION(data_options, format, OPTION_STRING,
                "layout of the annotations, as of the stage source (default: caravan)"),
    TOOL_OPTION(data_options, media_root, OPTION_FILE, "directory that relative media paths start from",
                .directory = true),
    TOOL_OPTION(data_options, template, OPTION_STRING,
                "prompt template, or none; it needs a section for each problem type"),
    TOOL_OPTION(data_options, clip, OPTION_STRING, "whole or cut, as of the stage source"),
    TOOL_OPTION(data_options, frame_records, OPTION_STRING, "folder or released, as of the stage source"),
    TOOL_OPTION(data_options, media, OPTION_BOOL, "look for the images and videos; --no-media does not",
                .default_value = "true"),
    TOOL_OPTION(data_options, open, OPTION_INT,
                "samples, spread over the file, whose images and videos are decoded; 0 is none", .default_value = "8",
                .low = 0, .high = 1e9),
    TOOL_OPTION(data_options, example, OPTION_STRING,
                "print records of a layout, such as video-r1, instead of reading FILE"),
    TOOL_OPTION(data_options, json, OPTION_BOOL, "print JSON"),
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

// The parts of the report, in their order. Objects count by name; arrays list.
enum data_part {
    DATA_SAMPLES,
    DATA_MEDIA,
    DATA_TYPES,
    DATA_CATEGORIES,
    DATA_LEVELS,
    DATA_SOURCES,
    DATA_QUARANTINED,
    DATA_MISTAKES,
    DATA_MISSING,
    DATA_UNDECODABLE,
    DATA_PARTS
};
static const char *const data_parts[DATA_PARTS] = {"samples", "media",      "problem_types", "categories",
                                                   "levels",  "sources",    "quarantined",   "mistakes",
                                                   "missing", "undecodable"};

struct data_report {
    bool media;             // look for them
    const char *media_root; // NULL: none
    int64_t samples, opened;
    int64_t count, open; // samples of the file, and how many of them are to be opened
    struct arena arena;
    struct json *parts; // an object, which is what --json prints
    void *seen;         // paths that were looked for, as tsearch keeps them
};

// Counts a name, if there is one.
static void data_count(struct data_report *report, enum data_part part, struct string name) {
    struct json *counts = &report->parts->items[part];
    if (name.size) json_set_int(counts, &report->arena, name.data, json_int_or(json_at(counts, name.data), 0) + 1);
}

// Adds what is wrong with the sample at `line`. path NULL: it is not about a medium. `what` may be cut within a
// character.
static void data_list(struct data_report *report, enum data_part part, size_t line, const char *path,
                      const char *what) {
    struct buf clean = {0};
    struct json *item = json_push(&report->parts->items[part], &report->arena);
    item->type = JSON_OBJECT;
    json_set_int(item, &report->arena, "line", (int64_t)line);
    if (path) json_set_string(item, &report->arena, "path", path);
    utf8_replace(what, strlen(what), &clean);
    json_set_string(item, &report->arena, "what", clean.data ? clean.data : "");
    buf_release(&clean);
}

static int data_compare_paths(const void *a, const void *b) {
    return strcmp(a, b);
}

// Lists the file or the directory of pictures of a part unless it is there; each path is looked for once. If it is to
// be `opened`, decodes it as the frames stage does by default, and lists it if that cannot be done.
static status data_check_medium(struct data_report *report, const struct part *part, size_t line, bool opened) {
    const struct sampling_config published = sampling_config_default(), sampling = media_sampling(&published, part);
    const bool pictures = part->kind == PART_VIDEO && !isnan(part->frame_rate);
    struct arena arena = {0};
    struct frames_view view = {0};
    struct stat info;
    char *path;
    status result = media_path(&path, &arena, NULL, media_uri(part));
    if (result == BAD_SAMPLE) data_list(report, DATA_MISSING, line, media_uri(part).data, fail_text());
    if (result != OK) goto done;
    const bool missing = stat(path, &info);
    const char *wrong = missing ? strerror(errno) : NULL;
    if (!wrong && (pictures ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode)))
        wrong = pictures ? "not a directory" : "not a file";
    if (!tfind(path, &report->seen, data_compare_paths)) {
        mem_checked(tsearch(mem_strdup(path), &report->seen, data_compare_paths));
        if (wrong) data_list(report, DATA_MISSING, line, path, wrong);
        if (!missing && report->media_root && media_check_inside(report->media_root, path) == BAD_SAMPLE)
            data_count(report, DATA_MEDIA, string_of("outside media_root"));
    }
    if (!wrong && opened) {
        report->opened++;
        result = media_decode(&view, path, part->kind == PART_VIDEO, &sampling, NULL);
        frames_view_release(&view);
        if (result == BAD_SAMPLE) data_list(report, DATA_UNDECODABLE, line, path, fail_text());
    }
done:
    arena_release(&arena);
    return result == BAD_SAMPLE ? OK : result;
}

static status data_visit(void *context, const struct dataset_sample *sample) {
    struct data_report *report = context;
    const struct group *group = sample->group;
    const int64_t index = report->samples++;
    // Those that are opened are spread over the file.
    const bool opened = report->open >= report->count ||
                        (index + 1) * report->open / report->count > index * report->open / report->count;
    if (!group) {
        char mark[32]; // behind FILE:LINE: of the message
        snprintf(mark, sizeof mark, ":%zu: ", sample->line);
        const char *what = strstr(fail_text(), mark);
        data_list(report, DATA_MISTAKES, sample->line, NULL, what ? what + strlen(mark) : fail_text());
        return OK;
    }
    const struct prompt *prompt = &group->prompt;
    const struct string video_source = json_string(json_at(sample->record, "video_source")),
                        data_source = json_string(json_at(sample->record, "data_source"));
    data_count(report, DATA_TYPES, prompt->problem_type);
    data_count(report, DATA_CATEGORIES, prompt->category);
    data_count(report, DATA_LEVELS, prompt->level);
    data_count(report, DATA_SOURCES, video_source.data ? video_source : data_source);
    if (group->quarantine.present) {
        data_list(report, DATA_QUARANTINED, sample->line, NULL, group->quarantine.reason.data);
        return OK;
    }
    size_t count = 0;
    for (const struct part *part; (part = media_part(group, count)); count++) {
        const char *video = isnan(part->frame_rate) ? "video" : "pictures";
        data_count(report, DATA_MEDIA, string_of(part->kind == PART_VIDEO ? video : "image"));
        if (report->media) TRY(data_check_medium(report, part, sample->line, opened));
    }
    if (!count) data_count(report, DATA_MEDIA, string_of("none"));

    const struct string answer = answer_extract(prompt->solution);
    if (!answer.size && !group->completions) {
        data_list(report, DATA_MISTAKES, sample->line, NULL,
                  "solution: no answer in it: a completion without an answer would count as right");
        return OK;
    }
    // A sample whose answer is none of its options: no completion can be right.
    const size_t options = prompt->options.count;
    if (!options || strcmp(prompt->problem_type.data, "multiple choice") != 0) return OK;
    const char letter = option_of_answer(answer, &prompt->options);
    if (letter && (size_t)(letter - 'A') < options) return OK;
    char what[160];
    snprintf(what, sizeof what, "solution: the answer '%.*s' is none of the %zu options, A to %c",
             (int)(answer.size < 60 ? answer.size : 60), answer.data ? answer.data : "", options,
             (char)('A' + (options < 26 ? options - 1 : 25)));
    data_list(report, DATA_MISTAKES, sample->line, NULL, what);
    return OK;
}

status data_main(struct subcommand_call *call) {
    const struct data_options *given = call->given;
    struct source_options source;
    struct options source_options = {0};
    struct data_report report = {0};
    struct buf text = {0};
    status result;
    if (given->example) {
        const struct format *format = format_find(given->example);
        if (!format) return fail(USAGE, "--example: there is no layout %s", given->example);
        buf_puts(&call->out, format->example);
        return OK;
    }
    if (!call->count)
        return fail(USAGE, "an operand is missing; usage: %s %s", data_table.program, data_table.operands);
    options_init(&source_options, &stage_kinds[STAGE_SOURCE].options, &source);
    const char *const pairs[][2] = {{"data", call->list[0]},
                                    {"format", given->format},
                                    {"media_root", given->media_root},
                                    {"template", given->template ? given->template : "none"},
                                    {"clip", given->clip},
                                    {"frame_records", given->frame_records}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][1]) TRY_TO(result, done, options_set(&source_options, pairs[i][0], pairs[i][1]));
    report.media = given->media;
    report.open = given->open;
    report.media_root = given->media_root;
    report.parts = json_new(&report.arena, JSON_OBJECT);
    for (int k = 0; k < DATA_PARTS; k++)
        json_set(report.parts, &report.arena, data_parts[k])->type = k < DATA_QUARANTINED ? JSON_OBJECT : JSON_ARRAY;
    size_t groups;
    TRY_TO(result, done, dataset_count_groups(&source, &groups));
    report.count = (int64_t)groups;
    TRY_TO(result, done, dataset_each(&source, data_visit, &report));
    json_set_int(report.parts, &report.arena, data_parts[DATA_SAMPLES], report.samples);
    json_print(&text, report.parts);
    const struct json *parts = report.parts->items;
    if (given->json)
        puts(text.data);
    else
        printf("%-40s %9lld\n", "samples", (long long)report.samples);
    for (int k = DATA_MEDIA; k < DATA_PARTS && !given->json; k++) {
        const bool list = parts[k].type == JSON_ARRAY;
        char title[32];
        snprintf(title, sizeof title, "%s", data_parts[k]);
        for (char *c = title; *c; c++) *c = *c == '_' ? ' ' : *c;
        if (list) printf("%-40s %9zu\n", title, parts[k].count);
        if (!list && parts[k].count) printf("%s\n", title);
        for (size_t i = 0; i < parts[k].count; i++) {
            const struct json *item = &parts[k].items[i], *path = json_at(item, "path");
            if (list)
                printf("  line %s: %s%s%s\n", json_text(json_at(item, "line")), path ? path->text.data : "",
                       path ? ": " : "", json_text(json_at(item, "what")));
            else
                printf("  %-38s %9s\n", item->key.data, item->text.data);
        }
    }
    const size_t mistakes = parts[DATA_MISTAKES].count, missing = parts[DATA_MISSING].count,
                 unknown = parts[DATA_QUARANTINED].count, undecodable = parts[DATA_UNDECODABLE].count;
    if (mistakes + missing + unknown + undecodable)
        result = fail(
            DATAERR, "%s: %zu mistakes, %zu samples of an unknown kind, %zu media missing%s, %zu of %lld not decodable",
            call->list[0], mistakes, unknown, missing,
            missing && !given->media_root ? " (no --media-root is given)" : "", undecodable, (long long)report.opened);
done:
    buf_release(&text);
    tdestroy(report.seen, free);
    arena_release(&report.arena);
    options_release(&source_options);
    return result;
}
