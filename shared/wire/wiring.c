#include "shared/wire/wiring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"

// ---- writing ----

static status add_line(struct buf *out, const char *word, const char *value) {
    if (strchr(value, '\n')) return fail(USAGE, "a path with a line break: %s", value);
    return buf_printf(out, "%s %s\n", word, value);
}

status wiring_write(const struct wiring *wiring, struct buf *out) {
    TRY(buf_puts(out, "caravan-wiring 1\n"));
    TRY(add_line(out, "run", wiring->run));
    TRY(add_line(out, "folder", wiring->folder));
    TRY(buf_printf(out, "stage %s\nreplica %d\n", wiring->stage, wiring->replica));
    if (*wiring->machine) TRY(add_line(out, "machine", wiring->machine));
    if (*wiring->from) TRY(add_line(out, "from", wiring->from));
    if (wiring->last) TRY(buf_puts(out, "last yes\n"));
    if (wiring->secret) TRY(add_line(out, "secret", wiring->secret));
    if (wiring->home) TRY(add_line(out, "home", wiring->home));
    for (size_t i = 0; i < wiring->command_count; i++) TRY(add_line(out, "command", wiring->command[i]));
    for (size_t i = 0; i < wiring->listen_count; i++) TRY(add_line(out, "listen", wiring->listen[i]));
    for (size_t i = 0; i < wiring->reader_count; i++) TRY(add_line(out, "reader", wiring->readers[i]));
    for (size_t i = 0; i < wiring->desk_count; i++) {
        const struct wiring_desk *desk = &wiring->desks[i];
        if (strchr(desk->endpoint, '\n')) return fail(USAGE, "a path with a line break: %s", desk->endpoint);
        TRY(buf_printf(out, "desk %s %d %s %s %s\n", desk->stage, desk->replica, *desk->machine ? desk->machine : "-",
                       desk->key ? desk->key : "-", desk->endpoint));
    }
    return OK;
}

// ---- reading ----

static status keep_text(struct wiring *wiring, const char **place, const char *value) {
    *place = arena_strndup(&wiring->arena, value, strlen(value));
    return *place ? OK : fail(UNAVAILABLE, "out of memory");
}

static status add_text(struct wiring *wiring, const char ***list, size_t *count, const char *value) {
    TRY(RESIZE(list, *count + 1));
    return keep_text(wiring, &(*list)[(*count)++], value);
}

static status add_desk(struct wiring *wiring, char *value) {
    char *rest = NULL;
    const char *stage = strtok_r(value, " ", &rest), *replica = strtok_r(NULL, " ", &rest);
    const char *machine = strtok_r(NULL, " ", &rest), *key = strtok_r(NULL, " ", &rest);
    if (!stage || !replica || !machine || !key || !*rest) return fail(DATAERR, "a desk with too few words");
    TRY(RESIZE(&wiring->desks, wiring->desk_count + 1));
    struct wiring_desk *desk = &wiring->desks[wiring->desk_count++];
    *desk = (struct wiring_desk){.replica = (int)strtol(replica, NULL, 10)};
    TRY(keep_text(wiring, &desk->stage, stage));
    TRY(keep_text(wiring, &desk->machine, strcmp(machine, "-") != 0 ? machine : ""));
    TRY(keep_text(wiring, &desk->endpoint, rest));
    return strcmp(key, "-") != 0 ? keep_text(wiring, &desk->key, key) : OK;
}

static status read_line(struct wiring *wiring, char *line) {
    char *value = strchr(line, ' ');
    if (!value) return fail(DATAERR, "'%s' has no value", line);
    *value++ = 0;
    if (!strcmp(line, "run")) return keep_text(wiring, &wiring->run, value);
    if (!strcmp(line, "folder")) return keep_text(wiring, &wiring->folder, value);
    if (!strcmp(line, "stage")) return keep_text(wiring, &wiring->stage, value);
    if (!strcmp(line, "machine")) return keep_text(wiring, &wiring->machine, value);
    if (!strcmp(line, "from")) return keep_text(wiring, &wiring->from, value);
    if (!strcmp(line, "secret")) return keep_text(wiring, &wiring->secret, value);
    if (!strcmp(line, "home")) return keep_text(wiring, &wiring->home, value);
    if (!strcmp(line, "command")) return add_text(wiring, &wiring->command, &wiring->command_count, value);
    if (!strcmp(line, "listen")) return add_text(wiring, &wiring->listen, &wiring->listen_count, value);
    if (!strcmp(line, "reader")) return add_text(wiring, &wiring->readers, &wiring->reader_count, value);
    if (!strcmp(line, "desk")) return add_desk(wiring, value);
    if (!strcmp(line, "last")) {
        wiring->last = true;
        return OK;
    }
    if (!strcmp(line, "replica")) {
        wiring->replica = (int)strtol(value, NULL, 10);
        return OK;
    }
    return fail(DATAERR, "unknown word '%s'", line);
}

static status read_lines(struct wiring *wiring, char *text) {
    size_t number = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        if (number++ == 0) {
            if (strcmp(line, "caravan-wiring 1") != 0) return fail(DATAERR, "not a wiring file of this version");
            continue;
        }
        status result = read_line(wiring, line);
        if (result != OK) return fail_prefix(result, "line %zu", number);
    }
    if (!wiring->run || !wiring->folder || !wiring->stage || wiring->replica < 1 || !wiring->listen_count)
        return fail(DATAERR, "cut off");
    return OK;
}

static status read_keys(struct wiring *wiring) {
    if (!wiring->secret) return OK;
    TRY(wire_key_read(&wiring->security, wiring->secret));
    for (size_t i = 0; i < wiring->desk_count; i++)
        if (wiring->desks[i].key) TRY(wire_admit(&wiring->security, wiring->desks[i].key));
    return OK;
}

status wiring_read(struct wiring *wiring, const char *path) {
    struct buf text = {0};
    *wiring = (struct wiring){.machine = "", .from = ""};
    status result = file_read(path, &text);
    if (result == OK && text.size) {
        result = read_lines(wiring, text.data);
        if (result != OK) result = fail_prefix(result, "%s", path);
    } else if (result == OK) {
        result = fail(DATAERR, "%s: empty", path);
    }
    if (result == OK) result = read_keys(wiring);
    buf_release(&text);
    if (result != OK) wiring_release(wiring);
    return result;
}

const struct wire_security *wiring_security(const struct wiring *wiring) {
    return wiring->secret ? &wiring->security : NULL;
}

void wiring_release(struct wiring *wiring) {
    free(wiring->command);
    free(wiring->listen);
    free(wiring->readers);
    free(wiring->desks);
    wire_security_release(&wiring->security);
    arena_release(&wiring->arena);
    *wiring = (struct wiring){0};
}
