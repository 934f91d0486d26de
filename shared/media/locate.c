#include "shared/media/locate.h"

#include <string.h>

#include "shared/base/file.h"

const struct part *media_part(const struct group *group, size_t index) {
    for (size_t m = 0; m < group->prompt.message_count; m++) {
        const struct message *message = &group->prompt.messages[m];
        for (size_t p = 0; p < message->part_count; p++) {
            if (message->parts[p].kind != PART_TEXT && index-- == 0) return &message->parts[p];
        }
    }
    return NULL;
}

size_t media_parts(const struct group *group) {
    size_t count = 0;
    while (media_part(group, count)) count++;
    return count;
}

struct string media_written(const struct part *part) {
    return part->kind == PART_VIDEO ? part->video : part->image;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// In place: %41 becomes A; a percent sign that no two digits follow stays. %00 stays too.
static void decode_percent(char *text) {
    char *out = text;
    for (const char *in = text; *in; out++) {
        int high = *in == '%' ? hex_digit(in[1]) : -1, low = high >= 0 ? hex_digit(in[2]) : -1;
        if (low >= 0 && (high || low)) {
            *out = (char)(high << 4 | low);
            in += 3;
        } else {
            *out = *in++;
        }
    }
    *out = 0;
}

// Whether the text starts like an address: letters, then "://".
static bool is_address(const char *text) {
    size_t letters = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+.-0123456789");
    return letters > 0 && strncmp(text + letters, "://", 3) == 0;
}

status media_locate(char **path, struct arena *arena, const char *media_root, struct string written) {
    *path = NULL;
    if (!written.data || written.size == 0) return fail(BAD_SAMPLE, "a medium without a path");
    if (strlen(written.data) != written.size) return fail(BAD_SAMPLE, "a path with a NUL inside");
    char *name = arena_strndup(arena, written.data, written.size);
    if (!name) return fail(UNAVAILABLE, "memory is short");
    bool address = strncmp(name, "file://", 7) == 0;
    if (address) {
        name += 7;
        if (strncmp(name, "localhost/", 10) == 0) name += 9;
    } else if (is_address(name)) {
        return fail(BAD_SAMPLE, "%s: only files can be opened", name);
    }
    *path = path_join(arena, media_root, name);
    if (*path && address && strchr(name, '%') && !path_exists(*path)) {
        decode_percent(name);
        *path = path_join(arena, media_root, name);
    }
    return *path ? OK : fail(UNAVAILABLE, "memory is short");
}
