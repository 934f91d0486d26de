// caravan frames: lists, shows and exports the decoded images and clips of a frames store.
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/media/media.h"
#include "shared/store/frame_store.h"
#include "shared/store/group_store.h"
#include "tools/tools.h"

struct frames_tool_options {
    const char *store, *png;
    bool raw;
};

static const struct option frames_tool_options[] = {
    TOOL_OPTION(frames_tool_options, store, OPTION_FILE,
                "instead of RUN: the same, a run or a directory that holds frames.lmdb"),
    TOOL_OPTION(frames_tool_options, raw, OPTION_BOOL,
                "export: write uint8 [frames, height, width, RGB] to standard output"),
    TOOL_OPTION(frames_tool_options, png, OPTION_PATH, "export: write a contact sheet to this file"),
    {0},
};
const struct option_table frames_tool_table = {
    .program = "caravan frames",
    .operands = "ls|show|export RUN [KEY]",
    .help = "lists, shows and exports the frames of a run",
    .details = "RUN is a run's directory, its pipeline file or its store.\n\n"
               "ls      prints one line for each image and clip: key, kind, frames,\n"
               "        height x width, bytes, last used, and the file where a group has it\n"
               "show    prints the properties and timestamps of one of them, on a terminal\n"
               "        also a small picture\n"
               "export  writes the frames of one of them; needs either --raw or --png FILE\n\n"
               "KEY may be shortened to its first digits if only one key begins with them.\n",
    .options = frames_tool_options,
    .size = sizeof(struct frames_tool_options),
};

// ---- the names of the clips, which only the groups have ----

struct frame_name {
    char key[FRAME_KEY_SIZE];
    char *path;
};

struct frame_names {
    struct arena arena;
    struct frame_name *list;
    size_t count;
};

// Adds the media of a group to `context`, the names.
static status frames_add_names(void *context, const struct group *group) {
    struct frame_names *names = context;
    const struct part *part;
    for (size_t i = 0; i < group->media_count && (part = media_part(group, i)); i++) {
        const struct string path = media_uri(part), key = group->media[i].key;
        if (!path.data || !key.data || key.size >= FRAME_KEY_SIZE) continue;
        GROW(&names->list, names->count);
        struct frame_name *name = &names->list[names->count++];
        snprintf(name->key, sizeof name->key, "%s", key.data);
        name->path = arena_strndup(&names->arena, path.data, path.size);
        log_clean(name->path); // a line for each key
    }
    return OK;
}

static int frames_compare_names(const void *a, const void *b) {
    return strcmp(((const struct frame_name *)a)->key, ((const struct frame_name *)b)->key);
}

// ---- ls, show, export ----

// A search for the one key with a prefix.
struct search {
    const char *prefix;
    char key[FRAME_KEY_SIZE]; // the last match
    const char *store;        // where it is
    const char *directory;    // the store that is searched
    int matches;              // each key counts once
};

// Called for each record of the store. Compares its key with the prefix of `context`, a struct search.
static status frames_match(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    struct search *search = context;
    (void)frames;
    (void)bytes;
    (void)used;
    if (strncmp(key, search->prefix, strlen(search->prefix)) != 0) return OK;
    if (search->matches && !strcmp(key, search->key)) return OK; // another machine has it, too
    memcpy(search->key, key, FRAME_KEY_SIZE);
    search->store = search->directory;
    search->matches++;
    return OK;
}

// Called for each record of the store. Prints a line about it; `context` has the names.
static status frames_list(void *context, const char *key, const struct frames *frames, uint64_t bytes, double used) {
    const struct frame_names *names = context;
    struct frame_name wanted = {0};
    char when[32] = "-";
    time_t seconds = (time_t)used;
    struct tm local;
    if (seconds > 0 && localtime_r(&seconds, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    snprintf(wanted.key, sizeof wanted.key, "%s", key);
    const struct frame_name *name =
        names->count ? bsearch(&wanted, names->list, names->count, sizeof wanted, frames_compare_names) : NULL;
    printf("%s %s %3d %4dx%-4d %9llu %s %s\n", key, frames->video ? "video" : "image", frames->count, frames->height,
           frames->width, (unsigned long long)bytes, when, name ? name->path : "-");
    return OK;
}

// Prints the properties and, on a terminal, the middle frame, two pixels per character: the upper one as the
// foreground of an upper half block, the lower one as its background.
static void frames_show(const char *key, const struct frames *frames) {
    enum { COLUMNS = 64 };
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
    int step = (frames->width + COLUMNS - 1) / COLUMNS, index = frames->count / 2;
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

status frames_main(struct subcommand_call *call) {
    const struct frames_tool_options *given = call->given;
    struct string_list stores;
    struct frame_store *store = NULL;
    struct group_store *groups = NULL;
    struct frame_names names = {0};
    struct frames_view view = {0};
    status result;
    const char *action = call->list[0];
    bool list = !strcmp(action, "ls"), show = !strcmp(action, "show"), export = !strcmp(action, "export");
    if (!list && !show && !export) return fail(USAGE, "'%s' is not an action: use ls, show or export", action);
    const int first = given->store ? 1 : 2; // operand behind RUN
    const char *run = given->store ? given->store : call->count > 1 ? call->list[1] : NULL;
    if (!run) return fail(USAGE, "RUN or --store is missing: a run's directory, its file or its store");
    if (call->count > first + !list) return fail(USAGE, "unexpected operand '%s'", call->list[first + !list]);
    if (!list && call->count == first) return fail(USAGE, "%s needs a KEY", action);
    if (export && given->raw == (given->png != NULL)) return fail(USAGE, "export needs either --raw or --png FILE");
    struct search search = {.prefix = list ? "" : call->list[first]};
    bool found;
    TRY_TO(result, done, subcommand_find_stores(run, "frames.lmdb", &call->arena, &stores));
    for (size_t i = 0; list && i < stores.count; i++) { // the groups beside the frames, if there are any
        if (!path_exists(path_join(&names.arena, stores.data[i], "groups.lmdb"))) continue;
        TRY_TO(result, done, group_store_open(&groups, stores.data[i], true));
        TRY_TO(result, done, group_store_each(groups, frames_add_names, &names));
        group_store_close(&groups);
    }
    if (names.count) qsort(names.list, names.count, sizeof *names.list, frames_compare_names);
    for (size_t i = 0; i < stores.count; i++) {
        search.directory = stores.data[i];
        TRY_TO(result, done, frame_store_open(&store, stores.data[i], 0, true));
        TRY_TO(result, done,
               frame_store_each(store, list ? frames_list : frames_match, list ? (void *)&names : &search));
        frame_store_close(&store);
    }
    if (list) goto done;
    if (search.matches == 0)
        TRY_TO(result, done, fail(DATAERR, "the store has no frames under key '%s'", search.prefix));
    if (search.matches > 1)
        TRY_TO(result, done, fail(DATAERR, "%d keys start with '%s'", search.matches, search.prefix));
    TRY_TO(result, done, frame_store_open(&store, search.store, 0, true));
    TRY_TO(result, done, frame_store_get(store, search.key, &view, &found));
    if (!found) TRY_TO(result, done, fail(DATAERR, "the store has no frames under key '%s'", search.key));
    const struct frames *frames = &view.frames;
    if (show && frames->count) frames_show(search.key, frames);
    if (given->raw) fwrite(frames->pixels, 1, frames_bytes(frames), stdout);
    if (given->png) result = contact_sheet_write(frames, given->png);
done:
    frames_view_release(&view);
    frame_store_close(&store);
    group_store_close(&groups);
    free(names.list);
    arena_release(&names.arena);
    return result;
}
