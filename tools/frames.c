// caravan frames: lists, shows and exports the decoded images and clips of a frames store.
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/media/media.h"
#include "shared/media/media_writer.h"
#include "shared/store/frame_store.h"
#include "tools/tools.h"

struct frames_tool_options {
    const char *store, *png;
    bool raw;
};

static const struct option frames_tool_options[] = {
    {.name = "store",
     .offset = offsetof(struct frames_tool_options, store),
     .type = OPTION_PATH,
     .required = true,
     .help = "directory that holds frames.lmdb"},
    {.name = "raw",
     .offset = offsetof(struct frames_tool_options, raw),
     .type = OPTION_BOOL,
     .help = "export: write uint8 [frames, height, width, RGB] to standard output"},
    {.name = "png",
     .offset = offsetof(struct frames_tool_options, png),
     .type = OPTION_PATH,
     .help = "export: write a contact sheet to this file"},
    {0},
};
const struct option_table frames_tool_table = {
    .program = "caravan frames",
    .operands = "ls|show|export [KEY]",
    .help = "lists, shows and exports the frames of a store",
    .details = "ls      prints one line for each image and clip: key, kind, frames, height x width, bytes, last used\n"
               "show    prints the properties and timestamps of one of them, on a terminal also a small picture\n"
               "export  writes the frames of one of them; needs either --raw or --png FILE\n\n"
               "KEY may be shortened to its first digits if only one key begins with them.\n",
    .options = frames_tool_options,
    .size = sizeof(struct frames_tool_options),
};

// A search for the one key with a prefix.
struct search {
    const char *prefix;
    char key[frame_key_size]; // the last match
    int matches;
};

// Called for each record of the store. Compares its key with the prefix of `context`, a struct search; without a
// search (NULL), it prints a line about the record.
static status frames_visit(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    struct search *search = context;
    if (search && !strncmp(key, search->prefix, strlen(search->prefix))) {
        memcpy(search->key, key, frame_key_size);
        search->matches++;
    }
    if (search) return OK;
    char when[32] = "-";
    time_t seconds = (time_t)used;
    struct tm local;
    if (seconds > 0 && localtime_r(&seconds, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    printf("%s %s %3d %4dx%-4d %9llu %s\n", key, frames->video ? "video" : "image", frames->count, frames->height,
           frames->width, (unsigned long long)bytes, when);
    return OK;
}

// Prints the properties and, on a terminal, the middle frame, two pixels per character: the upper one as the
// foreground of an upper half block, the lower one as its background.
static void frames_show(const char *key, const struct frames *frames) {
    enum { columns = 64 };
    assert(frames->count > 0);
    printf("key               %s\nkind              %s\nframes            %d\nheight            %d\nwidth             "
           "%d\n",
           key, frames->video ? "video" : "image", frames->count, frames->height, frames->width);
    if (frames->video) {
        printf("seconds_per_grid  %.6g (measured)\ntimestamps       ", frames->seconds_per_grid);
        for (int i = 0; i < frames->count; i++) printf(" %.3f", frames->timestamps[i]);
        putchar('\n');
    }
    if (!isatty(STDOUT_FILENO)) return;
    int step = (frames->width + columns - 1) / columns, index = frames->count / 2;
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

int frames_main(int argc, char **argv) {
    struct frames_tool_options given;
    struct options options = {0};
    struct operands operands = {.least = 1, .most = 2};
    struct frame_store *store = NULL;
    struct frames_view view = {0};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &frames_tool_table, &given, argc, argv, &operands));
    const char *action = operands.list[0];
    bool list = !strcmp(action, "ls"), show = !strcmp(action, "show"), export = !strcmp(action, "export");
    if (!list && !show && !export)
        TRY_TO(result, done, fail(USAGE, "'%s' is not an action: use ls, show or export", action));
    if (!list && operands.count < 2) TRY_TO(result, done, fail(USAGE, "%s needs a KEY", action));
    if (export && given.raw == (given.png != NULL))
        TRY_TO(result, done, fail(USAGE, "export needs either --raw or --png FILE"));
    TRY_TO(result, done, frame_store_open(&store, given.store, 0, true));
    if (list) {
        result = frame_store_each(store, frames_visit, NULL);
        goto done;
    }
    struct search search = {.prefix = operands.list[1]};
    bool found;
    TRY_TO(result, done, frame_store_each(store, frames_visit, &search));
    if (search.matches == 0)
        TRY_TO(result, done, fail(DATAERR, "the store has no frames under key '%s'", search.prefix));
    if (search.matches > 1)
        TRY_TO(result, done, fail(DATAERR, "%d keys start with '%s'", search.matches, search.prefix));
    TRY_TO(result, done, frame_store_get(store, search.key, &view, &found));
    if (!found) TRY_TO(result, done, fail(DATAERR, "the store has no frames under key '%s'", search.key));
    const struct frames *frames = &view.frames;
    if (show && frames->count) frames_show(search.key, frames);
    if (given.raw) fwrite(frames->pixels, 1, frames_bytes(frames), stdout);
    if (given.png) result = contact_sheet_write(frames, given.png);
done:
    frames_view_release(&view);
    frame_store_close(&store);
    options_release(&options);
    if (result != OK && result != END) fail_prefix(result, "frames");
    return subcommand_exit(result);
}
