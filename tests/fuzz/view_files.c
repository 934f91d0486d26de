// Takes any bytes as each of the files of a run that its page reads, and as a file of groups: whatever they are, the
// page of the run is answered. What was read in two pieces is the same as what was read at once.
#include "tests/fuzz/page.h"

#include "tools/view/view_run.h"

// Writes the bytes to the files that grow.
static void files_grow(bool anew, const char *data, size_t size) {
    page_write("metrics.jsonl", anew, data, size);
    page_write("events.jsonl", anew, data, size);
}

static void files_ask(struct view *view, const char *const *addresses) {
    for (; *addresses; addresses++) fuzz_must(page_ask(view, *addresses) == OK);
}

// The bytes as files of a run, of which the page has seen the first half before.
static void files_try_run(const char *data, size_t size) {
    static const char *const halves[] = {"/api/live", NULL};
    static const char *const addresses[] = {"/api/run",        "/api/live",  "/api/metrics?points=3",
                                            "/api/quarantine", "/api/trace", NULL};
    static struct pipeline *usual;
    if (!usual) usual = page_new_pipeline();
    struct pipeline *own = *data != '{' ? page_parse_pipeline(data, size) : NULL; // lines of JSON are none
    struct view_source source = {
        .name = "run", .kind = VIEW_RUN, .path = page_directory, .run = page_directory, .pipeline = own ? own : usual};
    struct view view = {.sources = &source, .source_count = 1};
    struct metric_table whole = {0};
    struct buf pieces = {0}, once = {0};
    files_grow(true, data, size / 2);
    page_write("metrics.prom", true, data, size);
    page_write("logs/rollout.log", true, data, size);
    fuzz_must(view_groups_open(&source) == OK);
    files_ask(&view, halves);
    files_grow(false, data + size / 2, size - size / 2);
    files_ask(&view, addresses);
    const status result = page_ask(&view, "/api/log/rollout?bytes=40");
    fuzz_must(result == OK || result == END); // another pipeline may have no rollout
    const struct metric_table *table = &view_live_get(&view)->facts[0].metrics;
    size_t lines = size;
    while (lines && data[lines - 1] != '\n') lines--;
    metric_table_add(&whole, data, lines);
    metric_table_print(table, 0, INT64_MAX, 400, NULL, 0, &pieces);
    metric_table_print(&whole, 0, INT64_MAX, 400, NULL, 0, &once);
    fuzz_must(pieces.size == once.size && !memcmp(pieces.data, once.data, once.size));
    buf_release(&pieces);
    buf_release(&once);
    metric_table_release(&whole);
    view_live_close(&view);
    view_group_close(&view);
    view_groups_close(&source.groups);
    arena_release(&view.arena);
    pipeline_free(&own);
}

// The bytes as a file of groups, as which metrics.jsonl does.
static void files_try_groups(void) {
    static const char *const addresses[] = {"/api/run",
                                            "/api/groups?sort=sample&where=group.std+%3E+0+or+accuracy+%3D+0",
                                            "/api/groups?text=a&sort=-in_flight",
                                            "/api/map?columns=7",
                                            "/api/trace",
                                            "/trace.json",
                                            "/api/quarantine",
                                            "/api/compare?a=f&b=f&cell=alike",
                                            NULL};
    char path[sizeof page_directory + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", page_directory);
    struct view_source source = {.name = "f", .kind = VIEW_FILE, .path = path};
    struct view view = {.sources = &source, .source_count = 1};
    struct group *group = NULL;
    if (view_groups_open(&source) == OK) {
        files_ask(&view, addresses);
        for (size_t i = 0; i < source.groups.count && i < 3; i++) {
            struct buf address = {0};
            if (view_groups_get(&source.groups, i, &group) != OK || !group) continue;
            buf_puts(&address, "/api/group/");
            for (size_t k = 0; k < group->id.size; k++)
                buf_printf(&address, "%%%02x", (unsigned char)group->id.data[k]);
            if (strlen(group->id.data) == group->id.size) fuzz_must(page_ask(&view, address.data) == OK);
            buf_release(&address);
            group_free(&group);
        }
    }
    view_live_close(&view);
    view_group_close(&view);
    view_compare_close(&view);
    view_groups_close(&source.groups);
    arena_release(&view.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct arena arena = {0};
    struct buf reason = {0};
    const char *text = arena_strndup(&arena, (const char *)data, size);
    if (!*page_directory) page_make_directory();
    files_try_run(text, size);
    files_try_groups();
    quarantine_reason(text, &reason);
    if (utf8_valid(text, strlen(text))) fuzz_must(utf8_valid(reason.data ? reason.data : "", reason.size));
    buf_release(&reason);
    arena_release(&arena);
    return 0;
}
