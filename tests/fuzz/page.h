// What the fuzz targets of the page share: a run's directory that is removed at the end, and how the page is asked.
#pragma once

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/http/http_text.h"
#include "tests/fuzz/fuzz.h"
#include "tools/view/view.h"

static char page_directory[64];

static inline void page_remove_directory(void) {
    (void)dir_remove(page_directory);
}

// Makes page_directory, with a directory `logs` in it; in memory where that can be had.
static inline void page_make_directory(void) {
    char logs[sizeof page_directory + 8];
    snprintf(page_directory, sizeof page_directory, "%s/fuzz-page-XXXXXX",
             access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    fuzz_must(mkdtemp(page_directory) != NULL);
    snprintf(logs, sizeof logs, "%s/logs", page_directory);
    fuzz_must(dir_make(logs) == OK && !atexit(page_remove_directory));
}

// Appends bytes to a file of page_directory; if `anew`, to a new one: some file systems write one that was emptied to
// the disk at once.
static inline void page_write(const char *name, bool anew, const char *data, size_t size) {
    char path[sizeof page_directory + 32];
    snprintf(path, sizeof path, "%s/%s", page_directory, name);
    if (anew) (void)unlink(path);
    FILE *file = fopen(path, "a");
    fuzz_must(file && (!size || fwrite(data, size, 1, file) == 1) && !fclose(file));
}

// Returns the pipeline of a file's content with page_directory as its run, NULL if it is none.
static inline struct pipeline *page_parse_pipeline(const char *text, size_t size) {
    struct pipeline *pipeline = NULL;
    struct buf diagnostics = {0};
    char run[sizeof page_directory + 8];
    const char *const set[] = {run};
    snprintf(run, sizeof run, "run=%s", page_directory);
    const status result = pipeline_parse(&pipeline, "/p.yaml", true, text, size, set, 1, &diagnostics);
    fuzz_must((result == OK) == (pipeline != NULL));
    buf_release(&diagnostics);
    return pipeline;
}

// Returns a pipeline with two rollouts.
static inline struct pipeline *page_new_pipeline(void) {
    static const char text[] =
        "run: run\nmodel: model\nstages:\n"
        "  - source: {data: /dev/null, format: video-r1, groups_per_step: 2}\n"
        "  - rollout: {replicas: 2}\n  - refscore: {}\n  - reward: {method: grpo}\n  - optim: {}\n";
    struct pipeline *pipeline = page_parse_pipeline(text, sizeof text - 1);
    fuzz_must(pipeline != NULL);
    return pipeline;
}

// Asks the page for an address; USAGE if it is none. What it answers must have the form of its type; what it refuses
// needs a reason.
static inline status page_ask(struct view *view, const char *address) {
    struct http_request request = {0};
    struct arena arena = {0};
    struct json *answer = NULL;
    status result = http_parse_target(&arena, address, &request) == OK ? OK : USAGE;
    if (result == OK) {
        struct view_call call = {.view = view,
                                 .arguments = request.arguments,
                                 .argument_count = request.argument_count,
                                 .column = -1,
                                 .until = (double)INFINITY};
        const char *where = view_argument(&call, "where");
        result = view_ask(&call, request.path);
        fuzz_must(!call.unfinished);
        fuzz_must(call.column >= -1 && call.column <= (int64_t)(where ? strlen(where) : 0));
        if (result != OK) {
            fuzz_must(*fail_text() != 0);
        } else if (!strcmp(call.type, "application/json")) {
            fuzz_must(json_parse(&answer, &arena, call.out.data, call.out.size) == OK);
        } else if (!strcmp(call.type, "image/png")) {
            fuzz_must(call.out.size > 8 && !memcmp(call.out.data, "\x89PNG", 4));
        } else {
            fuzz_must(utf8_valid(call.out.data ? call.out.data : "", call.out.size));
        }
        if (call.file_name) fuzz_must(!strpbrk(call.file_name, "\"\\\r\n"));
        view_call_release(&call);
    }
    arena_release(&arena);
    return result;
}
