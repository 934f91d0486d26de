// caravan frames: what lies in a frames store.
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/log.h"
#include "shared/media/media.h"
#include "shared/store/frame_store.h"
#include "tools/tools.h"

static const char help[] =
    "usage: caravan frames ls --store DIR\n"
    "       caravan frames show --store DIR KEY\n"
    "       caravan frames export --store DIR KEY --raw | --png FILE\n\n"
    "ls      a line for each image and clip: key, kind, frames, height x width, bytes, last used\n"
    "show    one of them: facts, timestamps; a small picture when the output is a terminal\n"
    "export  --raw: uint8 [frames, height, width, RGB] to standard output;\n"
    "        --png FILE: a contact sheet\n\n"
    "KEY may be shortened to its first digits as long as they name one record.\n";

struct task {
    const char *verb, *store, *key, *png;
    bool raw;
};

static status take_value(int argc, char **argv, int *i, const char *name, const char **value) {
    size_t length = strlen(name);
    if (argv[*i][length] == '=') {
        *value = argv[*i] + length + 1;
        return OK;
    }
    if (++*i == argc) return fail(USAGE, "%s: a value is missing", name);
    *value = argv[*i];
    return OK;
}

static bool is_option(const char *argument, const char *name) {
    size_t length = strlen(name);
    return strncmp(argument, name, length) == 0 && (argument[length] == 0 || argument[length] == '=');
}

static status read_arguments(int argc, char **argv, struct task *task) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            fputs(help, stdout);
            return END;
        }
        if (is_option(argv[i], "--store"))
            TRY(take_value(argc, argv, &i, "--store", &task->store));
        else if (is_option(argv[i], "--png"))
            TRY(take_value(argc, argv, &i, "--png", &task->png));
        else if (!strcmp(argv[i], "--raw"))
            task->raw = true;
        else if (argv[i][0] == '-')
            return fail(USAGE, "unknown option %s", argv[i]);
        else if (!task->verb[0])
            task->verb = argv[i];
        else if (!task->key)
            task->key = argv[i];
        else
            return fail(USAGE, "unexpected argument '%s'", argv[i]);
    }
    if (!task->verb[0]) return fail(USAGE, "ls, show or export? See caravan frames --help");
    if (!task->store) return fail(USAGE, "--store is missing");
    bool list = !strcmp(task->verb, "ls"), export = !strcmp(task->verb, "export");
    if (!list && !export && strcmp(task->verb, "show") != 0)
        return fail(USAGE, "no verb '%s': ls, show, export", task->verb);
    if (!list && !task->key) return fail(USAGE, "%s: which KEY?", task->verb);
    if (export && task->raw == (task->png != NULL)) return fail(USAGE, "export: either --raw or --png FILE");
    return OK;
}

static status print_line(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    (void)context;
    char when[32] = "-";
    time_t seconds = (time_t)used;
    struct tm local;
    if (seconds > 0 && localtime_r(&seconds, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    printf("%s %s %3d %4dx%-4d %9llu %s\n", key, frames->video ? "video" : "image", frames->count, frames->height,
           frames->width, (unsigned long long)bytes, when);
    return OK;
}

// Two pixels a character: the upper half block in the upper one's colour on the lower one's.
static void draw_frame(const struct frames *frames, int index) {
    enum { columns = 64 };
    int step = (frames->width + columns - 1) / columns;
    const uint8_t *pixels = frames->pixels + frames_bytes(frames) / (size_t)frames->count * (size_t)index;
    for (int y = 0; y + step < frames->height; y += 2 * step) {
        for (int x = 0; x < frames->width; x += step) {
            const uint8_t *up = pixels + ((size_t)y * (size_t)frames->width + (size_t)x) * 3;
            const uint8_t *low = up + (size_t)step * (size_t)frames->width * 3;
            printf("\033[38;2;%d;%d;%d;48;2;%d;%d;%dm\xe2\x96\x80", up[0], up[1], up[2], low[0], low[1], low[2]);
        }
        puts("\033[0m");
    }
}

static void print_facts(const char *key, const struct frames *frames) {
    printf("key               %s\nkind              %s\nframes            %d\nheight            %d\nwidth             "
           "%d\n",
           key, frames->video ? "video" : "image", frames->count, frames->height, frames->width);
    if (frames->video) {
        printf("seconds_per_grid  %.6g (measured)\ntimestamps       ", frames->seconds_per_grid);
        for (int i = 0; i < frames->count; i++) printf(" %.3f", frames->timestamps[i]);
        putchar('\n');
    }
    if (isatty(STDOUT_FILENO)) draw_frame(frames, frames->count / 2);
}

// The one key that starts like this.
struct search {
    const char *start;
    char key[frame_key_size];
    int matches;
};

static status match_key(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    (void)frames, (void)bytes, (void)used;
    struct search *search = context;
    if (strncmp(key, search->start, strlen(search->start)) != 0) return OK;
    memcpy(search->key, key, frame_key_size);
    search->matches++;
    return OK;
}

static status find_frames(struct frame_store *store, const char *start, char key[frame_key_size],
                          struct frames_view *view) {
    struct search search = {.start = start};
    TRY(frame_store_each(store, match_key, &search));
    if (search.matches == 0) return fail(DATAERR, "no frames under key '%s'", start);
    if (search.matches > 1) return fail(DATAERR, "%d keys start with '%s'", search.matches, start);
    memcpy(key, search.key, frame_key_size);
    bool found;
    TRY(frame_store_get(store, key, view, &found));
    return found ? OK : fail(DATAERR, "no frames under key '%s'", key);
}

static status write_raw(const struct frames *frames) {
    size_t bytes = frames_bytes(frames);
    if (fwrite(frames->pixels, 1, bytes, stdout) != bytes || fflush(stdout))
        return fail(UNAVAILABLE, "cannot write to standard output");
    return OK;
}

static status run(const struct task *task, struct frame_store *store) {
    if (!strcmp(task->verb, "ls")) return frame_store_each(store, print_line, NULL);
    struct frames_view view = {0};
    char key[frame_key_size];
    status result = find_frames(store, task->key, key, &view);
    if (result == OK && view.frames.count && !strcmp(task->verb, "show")) print_facts(key, &view.frames);
    if (result == OK && task->raw) result = write_raw(&view.frames);
    if (result == OK && task->png) result = contact_sheet_write(&view.frames, task->png);
    frames_view_release(&view);
    return result;
}

int frames_main(int argc, char **argv) {
    struct task task = {.verb = ""};
    struct frame_store *store = NULL;
    status result = read_arguments(argc, argv, &task);
    if (result == END) return 0;
    if (result == OK) result = frame_store_open(&store, task.store, 0, true);
    if (result == OK) result = run(&task, store);
    frame_store_close(&store);
    if (result != OK) log_info("frames: %s", fail_text());
    return result;
}
