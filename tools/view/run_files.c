#include "tools/view/run_files.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "tools/view/view.h"

// ---- line_file ----

status line_file_read(struct line_file *file, const char *path, struct buf *lines, bool *anew) {
    enum { PIECE = 1 << 16 };
    struct stat info;
    status result = OK;
    *anew = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
        return fail(file_read_status(errno), "%s: %s", path, strerror(errno));
    if (fd < 0 || fstat(fd, &info)) {
        *anew = file->inode != 0;
        *file = (struct line_file){0};
        if (fd >= 0) close(fd);
        return OK;
    }
    const bool same = file->inode == (uint64_t)info.st_ino && file->device == (uint64_t)info.st_dev;
    *anew = file->inode != 0 && (!same || info.st_size < file->at);
    if (!same || *anew) *file = (struct line_file){.device = (uint64_t)info.st_dev, .inode = (uint64_t)info.st_ino};
    const size_t before = lines->size;
    int64_t at = file->at;
    for (bool whole = false; at < info.st_size && (!whole || at - file->at < LINE_FILE_PIECE);) {
        const int64_t left = info.st_size - at;
        char piece[PIECE];
        const ssize_t size = fd_pread(fd, piece, left < PIECE ? (size_t)left : PIECE, at);
        if (size < 0) result = fail(file_read_status(errno), "%s: %s", path, strerror(errno));
        if (size <= 0) break;
        if ((result = buf_reserve_large(lines, (size_t)size)) != OK) break;
        whole |= memchr(piece, '\n', (size_t)size) != NULL;
        buf_append(lines, piece, (size_t)size);
        at += size;
    }
    file->more = result == OK && at < info.st_size;
    close(fd);
    while (lines->size > before && lines->data[lines->size - 1] != '\n') lines->size--;
    if (lines->data) lines->data[lines->size] = 0;
    file->at += (int64_t)(lines->size - before);
    return result;
}

// ---- run_events ----

static void run_events_clear(struct run_events *events) {
    for (size_t i = 0; i < events->count; i++) free(events->list[i].kind);
    memset(events->files, 0, events->file_count * sizeof *events->files);
    events->count = events->noted = events->start_count = 0;
    events->last = 0;
    events->found = events->done = false;
}

void run_events_release(struct run_events *events) {
    if (events->files) run_events_clear(events);
    free(events->list);
    free(events->starts);
    free(events->files);
    *events = (struct run_events){0};
}

static int run_events_compare(const void *a, const void *b) {
    const struct run_event *first = a, *second = b;
    if (first->order != second->order) return first->order < second->order ? -1 : 1;
    return first->seq < second->seq ? -1 : first->seq > second->seq;
}

// Numbers the events that are new, in the order of their times, and notes what they say about the whole run.
static void run_events_note(struct run_events *events, int64_t *seq) {
    const size_t first = events->noted;
    for (size_t i = first; i < events->count; i++) events->list[i].seq = (int64_t)i;
    if (events->count > first)
        qsort(events->list + first, events->count - first, sizeof *events->list, run_events_compare);
    for (size_t i = first; i < events->count; i++) {
        struct run_event *event = &events->list[i];
        event->seq = ++*seq;
        if (!strcmp(event->kind, "started")) {
            GROW(&events->starts, events->start_count);
            events->starts[events->start_count++] = event->time;
        }
        events->done = !strcmp(event->kind, "done") || (events->done && strcmp(event->kind, "started") != 0);
        events->last = fmax(events->last, event->time);
    }
    if (events->count >= (size_t)2 * RUN_EVENTS) {
        const size_t excess = events->count - RUN_EVENTS;
        for (size_t i = 0; i < excess; i++) free(events->list[i].kind);
        memmove(events->list, events->list + excess, RUN_EVENTS * sizeof *events->list);
        events->count = RUN_EVENTS;
    }
    events->noted = events->count;
}

status run_events_read(struct run_events *events, const struct pipeline *pipeline, int64_t *seq, bool *more) {
    const size_t machines = pipeline->machine_count > 1 ? pipeline->machine_count : 1;
    struct buf path = {0}, lines = {0};
    status result = OK;
    bool anew = false;
    *more = false;
    if (machines != events->file_count) {
        run_events_release(events);
        NEW(&events->files, machines);
        events->file_count = machines;
    }
    for (size_t i = 0; i < machines && result == OK; i++) {
        buf_clear(&path);
        buf_clear(&lines);
        buf_printf(&path, "%s/events%s%s.jsonl", pipeline->run, machines > 1 ? "-" : "",
                   machines > 1 ? pipeline->machines[i].name : "");
        result = line_file_read(&events->files[i], path.data, &lines, &anew);
        if (anew) { // all of them, from their beginnings
            run_events_clear(events);
            events->cut_count++;
            *more = false;
            i = (size_t)-1;
            continue;
        }
        double order = 0;
        events->found |= events->files[i].inode != 0;
        *more |= events->files[i].more;
        for (size_t at = 0; at < lines.size;) {
            const size_t size = (size_t)((char *)memchr(lines.data + at, '\n', lines.size - at) - lines.data) + 1 - at;
            struct arena arena = {0};
            struct json *object, *kind, *name, *text;
            double time;
            // What is no event is left out, as a line that a power failure has cut.
            if (json_parse_object(&object, &arena, lines.data + at, size, "event") == OK &&
                json_double(json_at(object, "time"), &time) && json_get(object, "kind", JSON_STRING, &kind) == OK &&
                json_get(object, "name", JSON_STRING, &name) == OK &&
                json_get(object, "text", JSON_STRING, &text) == OK && kind && text) {
                const char *const parts[] = {kind->text.data, text->text.data, name ? name->text.data : ""};
                struct buf strings = {0};
                for (int k = 0; k < 3; k++) buf_append(&strings, parts[k], strlen(parts[k]) + 1);
                char *first = strings.data, *second = first + strlen(first) + 1, *third = second + strlen(second) + 1;
                GROW(&events->list, events->count);
                order = fmax(order, time);
                events->list[events->count++] =
                    (struct run_event){time, first, second, *third ? third : NULL, 0, order};
            }
            arena_release(&arena);
            at += size;
        }
    }
    if (!*more) run_events_note(events, seq);
    buf_release(&path);
    buf_release(&lines);
    return result;
}

// ---- run_counters ----

// The samples of a replica, by the names of their families.
static const struct {
    const char *name;
    size_t offset;
} run_samples[] = {
    {"caravan_replica_uptime_seconds", offsetof(struct replica_counters, up)},
    {"caravan_replica_restarts_total", offsetof(struct replica_counters, restarts)},
    {"caravan_replica_done_groups_total", offsetof(struct replica_counters, done)},
    {"caravan_replica_tokens_total", offsetof(struct replica_counters, tokens)},
    {"caravan_replica_worked_groups_total", offsetof(struct replica_counters, worked)},
    {"caravan_replica_work_seconds_total", offsetof(struct replica_counters, work_seconds)},
    {"caravan_replica_busy_seconds_total", offsetof(struct replica_counters, busy)},
    {"caravan_replica_held_groups", offsetof(struct replica_counters, held)},
    {"caravan_replica_waiting_groups", offsetof(struct replica_counters, waiting)},
};

// The labels of a sample that matter here.
struct run_labels {
    char state[32], stage[64], replica[16];
};

// Reads {NAME="VALUE",...}; returns what follows, NULL for what is none. A value that does not fit is cut.
static const char *run_labels_read(const char *at, struct run_labels *labels) {
    *labels = (struct run_labels){0};
    if (*at++ != '{') return NULL;
    while (*at != '}') {
        const char *name = at;
        at += strcspn(at, "=\n");
        const size_t size = (size_t)(at - name);
        if (strncmp(at, "=\"", 2) != 0) return NULL;
        const bool state = size == 5 && !memcmp(name, "state", size), stage = size == 5 && !memcmp(name, "stage", size);
        char *out = state ? labels->state : stage ? labels->stage : labels->replica;
        const size_t room = state ? sizeof labels->state : stage ? sizeof labels->stage : sizeof labels->replica;
        const bool kept = state || stage || (size == 7 && !memcmp(name, "replica", size));
        size_t length = 0;
        for (at += 2; *at && *at != '"' && *at != '\n'; at++) {
            if (*at == '\\' && at[1]) at++;
            if (kept && length + 1 < room) out[length++] = *at;
        }
        if (*at++ != '"') return NULL;
        if (*at == ',') at++;
    }
    return at + 1;
}

struct replica_counters *run_counters_find(const struct run_counters *counters, const char *stage, int number) {
    for (size_t i = 0; i < counters->count; i++)
        if (counters->replicas[i].number == number && !strcmp(counters->replicas[i].stage, stage))
            return &counters->replicas[i];
    return NULL;
}

void run_counters_parse(struct run_counters *counters, const char *text) {
    const struct {
        const char *state;
        double *count;
    } states[] = {
        {"trained", &counters->done},  {"done", &counters->done},           {"quarantined", &counters->quarantined},
        {"unused", &counters->unused}, {"in_flight", &counters->in_flight}, {"unissued", &counters->unissued}};
    const size_t families = sizeof run_samples / sizeof *run_samples;
    *counters = (struct run_counters){.step = NAN,
                                      .reissued = NAN,
                                      .done = NAN,
                                      .quarantined = NAN,
                                      .unused = NAN,
                                      .in_flight = NAN,
                                      .unissued = NAN};
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        struct run_labels labels;
        const size_t size = strcspn(line, "{\n");
        const char *end = *line == '#' || line[size] != '{' ? NULL : run_labels_read(line + size, &labels);
        if (!end || *end != ' ') continue;
        const double value = strtod(end, NULL);
        if (size == strlen("caravan_trained_steps") && !memcmp(line, "caravan_trained_steps", size))
            counters->step = value;
        if (size == strlen("caravan_reissued_groups_total") && !memcmp(line, "caravan_reissued_groups_total", size))
            counters->reissued = value;
        if (size == strlen("caravan_groups") && !memcmp(line, "caravan_groups", size))
            for (size_t i = 0; i < sizeof states / sizeof *states; i++)
                if (!strcmp(labels.state, states[i].state)) *states[i].count = value;
        size_t family = 0;
        while (family < families &&
               (strlen(run_samples[family].name) != size || memcmp(run_samples[family].name, line, size) != 0))
            family++;
        if (family == families || !*labels.stage) continue;
        const int number = (int)strtol(labels.replica, NULL, 10);
        struct replica_counters *replica = run_counters_find(counters, labels.stage, number);
        if (!replica) {
            GROW(&counters->replicas, counters->count);
            replica = &counters->replicas[counters->count++];
            *replica = (struct replica_counters){"", number, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
            snprintf(replica->stage, sizeof replica->stage, "%s", labels.stage);
        }
        memcpy((char *)replica + run_samples[family].offset, &value, sizeof value);
    }
}

status run_counters_read(struct run_counters *counters, const struct pipeline *pipeline) {
    const size_t machines = pipeline->machine_count > 1 ? pipeline->machine_count : 1;
    struct buf path = {0}, newest = {0}, text = {0};
    double time = 0;
    status result = OK;
    for (size_t i = 0; i < machines; i++) {
        struct stat info;
        buf_clear(&path);
        buf_printf(&path, "%s/metrics%s%s.prom", pipeline->run, machines > 1 ? "-" : "",
                   machines > 1 ? pipeline->machines[i].name : "");
        if (stat(path.data, &info)) continue;
        const double written = (double)info.st_mtim.tv_sec + 1e-9 * (double)info.st_mtim.tv_nsec;
        if (newest.size && written <= time) continue;
        time = written;
        buf_clear(&newest);
        buf_puts(&newest, path.data);
    }
    if (newest.size) result = file_read(newest.data, &text);
    run_counters_parse(counters, result == OK && text.data ? text.data : "");
    counters->known = newest.size && result == OK;
    counters->time = time;
    buf_release(&path);
    buf_release(&newest);
    buf_release(&text);
    return result;
}

void run_counters_release(struct run_counters *counters) {
    free(counters->replicas);
    *counters = (struct run_counters){0};
}

// ---- texts ----

bool setting_is_secret(const char *name, const char *value) {
    const char *token = strcasestr(name, "token");
    if (strcasestr(name, "key") || strcasestr(name, "secret") || strcasestr(name, "password")) return true;
    // max_new_tokens: 768 counts tokens; tokens: abc does not.
    return token && (tolower(token[strlen("token")]) != 's' || !*value || value[strspn(value, "0123456789")]);
}

// The value as it would be typed: a string, or an array of strings.
static void run_setting_value(const struct key *key, struct buf *out) {
    if (!key->items) buf_puts(out, key->value);
    for (const struct key *item = key->items; item; item = item->next)
        buf_printf(out, "%s%s%s", item == key->items ? "[" : ", ", item->value, item->next ? "" : "]");
}

static void run_setting_print(const char *name, const char *value, bool standard, bool *first, struct buf *out) {
    buf_puts(out, *first ? "" : ", ");
    *first = false;
    view_print_text(out, name);
    buf_puts(out, ": [");
    view_print_text(out, setting_is_secret(name, value) ? "(hidden)" : value);
    buf_printf(out, ", %s]", standard ? "true" : "false");
}

void run_print_settings(const struct pipeline *pipeline, struct buf *out) {
    struct buf value = {0};
    buf_puts(out, "{");
    for (size_t i = 0; i < pipeline->stage_count; i++) {
        const struct pipeline_stage *stage = &pipeline->stages[i];
        const struct key_list *given = &stage->options.given;
        bool first = true;
        buf_puts(out, i ? ", " : "");
        view_print_text(out, stage->name);
        buf_puts(out, ": {");
        // A user's program has no table of keys: it shows what it was given.
        if (stage->program) run_setting_print("program", stage->program, false, &first, out);
        for (const struct key *key = given->first; key && !stage->kind; key = key->next) {
            buf_clear(&value);
            run_setting_value(key, &value);
            run_setting_print(key->name, value.data ? value.data : "", false, &first, out);
        }
        const struct option *option = NULL;
        while (stage->kind && (option = options_next(&stage->kind->options, option))) {
            const struct key *key = key_list_find(given, option->name);
            struct arena arena = {0};
            if (option->command_line_only || (!key && !option->default_value)) continue;
            buf_clear(&value);
            if (key)
                run_setting_value(key, &value);
            else
                buf_puts(&value, option->default_value);
            const char *below = option->below_run ? path_join(&arena, pipeline->run, option->below_run) : NULL;
            const bool standard =
                !key || (below && string_equals((struct string){value.data, value.size}, below)) ||
                (option->default_value && !key->items && option_same_value(option, key->value, option->default_value));
            run_setting_print(option->name, value.data ? value.data : "", standard, &first, out);
            arena_release(&arena);
        }
        buf_puts(out, "}");
    }
    buf_puts(out, "}");
    buf_release(&value);
}

// ---- quarantine ----

void quarantine_reason(const char *reason, struct buf *out) {
    // PATH: what is wrong with it. A path has a slash, or ends in a dot and some letters.
    for (const char *colon; (colon = strstr(reason, ": ")); reason = colon + 2) {
        const char *dot = colon;
        while (dot > reason && colon - dot < 5 && isalnum((unsigned char)dot[-1])) dot--;
        const bool ending = dot < colon && dot > reason && dot[-1] == '.' && !isdigit((unsigned char)colon[-1]);
        if (!ending && !memchr(reason, '/', (size_t)(colon - reason))) break;
    }
    while (*reason) {
        const size_t blanks = strspn(reason, " "), size = strcspn(reason + blanks, " ");
        const char *word = reason + blanks, *end = word + size;
        buf_append(out, reason, blanks);
        reason = end;
        if (memchr(word, '/', size)) {
            while (end > word && strchr(",;:.)'\"", end[-1])) end--;
            buf_printf(out, "…%.*s", (int)(reason - end), end);
            continue;
        }
        for (const char *at = word; at < end; at++) {
            const bool in_name = at > word && (isalnum((unsigned char)at[-1]) || at[-1] == '_');
            const bool sign = *at == '-' && at == word && at + 1 < end && isdigit((unsigned char)at[1]);
            if (in_name || (!sign && !isdigit((unsigned char)*at))) {
                buf_append(out, at, 1);
                continue;
            }
            while (at + 1 < end &&
                   (isdigit((unsigned char)at[1]) || (at[1] == '.' && at + 2 < end && isdigit((unsigned char)at[2]))))
                at++;
            buf_puts(out, "N");
        }
    }
}
