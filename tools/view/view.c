// caravan view RUN...: opens what is to be seen, listens, and finds the function of a route.
#include "tools/view/view.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "tools/deployment.h"
#include "tools/tools.h"

struct view_options {
    const char *listen, *host, *machine, *key, *html, *where;
    int64_t groups;
};

static const struct option view_options[] = {
    TOOL_OPTION(view_options, listen, OPTION_STRING,
                "ADDR:PORT where the page is; if the port is taken, the next free one",
                .default_value = "127.0.0.1:6141"),
    TOOL_OPTION(view_options, host, OPTION_STRING, "another name under which a browser may ask for the page"),
    RUN_MACHINE(view_options),
    TOOL_OPTION(view_options, html, OPTION_PATH, "instead: write the page with its data as one file, for a mail"),
    TOOL_OPTION(view_options, groups, OPTION_INT, "of --html: how many groups with texts and frames",
                .default_value = "200", .low = 0, .high = 1e5),
    TOOL_OPTION(view_options, where, OPTION_STRING, "of --html: only such groups, as the page's filter says it"),
    {0},
};

const struct option_table view_table = {
    .program = "caravan view",
    .operands = "[NAME=]RUN|STORE|FILE...",
    .help = "shows runs, stores and files of groups as a page in a browser",
    .details = "RUN is a run's directory, active or not, or its pipeline file; STORE a directory\n"
               "that holds groups.lmdb; FILE has groups as JSON lines. The page shows the first,\n"
               "and compares it with the others. NAME is what it is called there.\n\n"
               "The address has a token, without which nobody can see the page. To see it from\n"
               "another machine, use ssh -L, as the line that is printed says. Nothing of the\n"
               "run is changed.\n",
    .options = view_options,
    .size = sizeof(struct view_options),
};

// ---- routes ----

// `arguments`: what a route knows, separated by blanks. A prefix matches all paths that begin with it.
static const struct {
    const char *path;
    bool prefix;
    view_route *route;
    const char *arguments;
} view_routes[] = {
    {"/api/groups", false, view_groups_list, "of where text steps sort limit after"},
    {"/api/map", false, view_groups_map, "of from to columns where"},
    {"/api/group/", true, view_group_show, "of"},
    {"/frames/", true, view_group_frame, ""},
    {"/api/run", false, view_run_about, "of"},
    {"/api/live", false, view_run_live, "after"},
    {"/api/metrics", false, view_run_metrics, "of from to points"},
    {"/api/quarantine", false, view_run_quarantine, "of"},
    {"/api/log/", true, view_run_log, "of bytes"},
    {"/api/compare", false, view_compare_show, "a b cell limit after"},
    {"/api/trace", false, view_trace_show, "of from to"},
    {"/trace.json", false, view_trace_export, "of from to"},
};

// Returns the index of the route for a path, that of none: behind the last.
static size_t view_find_route(const char *path) {
    size_t at = 0;
    for (; at < sizeof view_routes / sizeof *view_routes; at++) {
        const size_t size = strlen(view_routes[at].path);
        if (!strncmp(path, view_routes[at].path, size) && (!path[size] || view_routes[at].prefix)) break;
    }
    return at;
}

status view_ask(struct view_call *call, const char *path) {
    const size_t at = view_find_route(path);
    const char *of = view_argument(call, "of");
    struct string_list stores = {0};
    if (at == sizeof view_routes / sizeof *view_routes) return fail(END, "there is no route %s", path);
    call->rest = path + strlen(view_routes[at].path);
    call->type = "application/json";
    call->column = -1;
    call->unfinished = false;
    call->source = &call->view->sources[0];
    for (size_t i = 0; i < call->argument_count; i++) {
        const char *name = call->arguments[i].name, *known = view_routes[at].arguments;
        while (*known && (strcspn(known, " ") != strlen(name) || strncmp(known, name, strlen(name)) != 0)) {
            known += strcspn(known, " ");
            known += strspn(known, " ");
        }
        if (!*known) return fail(USAGE, "unknown parameter '%.60s'", name);
    }
    for (size_t i = 0; of && i <= call->view->source_count; i++) {
        if (i == call->view->source_count) return fail(END, "there is nothing with the name '%.60s'", of);
        call->source = &call->view->sources[i];
        if (!strcmp(call->source->name, of)) break;
    }
    struct view_source *source = call->source;
    TRY(view_groups_refresh(&source->groups));
    // A run that has just begun has no frames yet: they are sought when it has groups.
    if (source->kind != VIEW_FILE && !source->frames_sought && source->groups.count) {
        source->frames_sought = true;
        if (subcommand_find_stores(source->path, "frames.lmdb", &call->view->arena, &stores) == OK)
            source->frames = stores;
    }
    return view_routes[at].route(call);
}

// ---- the page ----

#ifndef VIEW_DIR // where make puts the page's files, for tools that do not ask make
#define VIEW_DIR "build/tools/view"
#endif

// The page's files, which are part of the program.
#define VIEW_FILE_IN(name, path)                                                                                       \
    extern const char view_##name##_begin[], view_##name##_end[];                                                      \
    __asm__(".section .rodata\n.balign 16\n"                                                                           \
            "view_" #name "_begin:\n.incbin \"" path "\"\nview_" #name "_end:\n.byte 0\n.previous\n")

VIEW_FILE_IN(index, VIEW_DIR "/index.html");
VIEW_FILE_IN(style, VIEW_DIR "/view.css");
VIEW_FILE_IN(script, VIEW_DIR "/view.js");

static const struct {
    const char *name, *begin, *end;
} view_files[] = {
    {"index.html", view_index_begin, view_index_end},
    {"view.css", view_style_begin, view_style_end},
    {"view.js", view_script_begin, view_script_end},
};

struct string view_page_file(const char *name) {
    size_t i = 0;
    while (strcmp(view_files[i].name, name) != 0) i++;
    return (struct string){view_files[i].begin, (size_t)(view_files[i].end - view_files[i].begin)};
}

// Answers with one of the page's files, or with 304 where the browser has it.
static void view_answer_file(struct http_request *request, const char *name, const char *type) {
    const struct string file = view_page_file(name);
    struct buf body = {0};
    char etag[24];
    snprintf(etag, sizeof etag, "\"%016llx\"", (unsigned long long)XXH3_64bits(file.data, file.size));
    const char *known = http_find_header(request, "If-None-Match");
    http_add_page_headers(request);
    http_add_header(request, "ETag", etag);
    http_add_header(request, "Cache-Control", "no-cache");
    if (known && !strcmp(known, etag)) {
        http_answer(request, 304, NULL, &body);
        return;
    }
    buf_append(&body, file.data, file.size);
    http_answer(request, 200, type, &body);
}

static bool view_is_page(const char *path) {
    static const char *const pages[] = {"/", "/groups", "/compare", "/trace"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (!strcmp(path, pages[i])) return true;
    return !strncmp(path, "/group/", strlen("/group/"));
}

// Whether who asks has the token. With it in the address, answers with the cookie that has it from then on.
static bool view_admits(struct view *view, struct http_request *request) {
    const char *given = http_find_argument(request, "token");
    struct buf body = {0};
    if (http_same_secret(http_find_cookie(request, view->cookie), view->token)) return true;
    if (given && view_is_page(request->path) && http_same_secret(given, view->token)) {
        // The path is decoded: one with other characters is not repeated in a header.
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./";
        const bool repeated = !request->path[strspn(request->path, plain)];
        char cookie[128];
        snprintf(cookie, sizeof cookie, "%s=%s; HttpOnly; SameSite=Strict; Path=/", view->cookie, view->token);
        http_add_page_headers(request);
        http_add_header(request, "Set-Cookie", cookie);
        http_add_header(request, "Location", repeated ? request->path : "/");
        http_answer(request, 303, NULL, &body);
        return false;
    }
    http_add_page_headers(request);
    http_refuse(request, 401, "open the address that caravan view has printed: it has a token");
    return false;
}

// ---- unfinished requests ----

static const double view_slice = 0.04; // seconds that a route works before other requests are answered

// A request whose route is unfinished. They go on one after the other.
struct view_waiting {
    struct http_request *request; // its tag is this
    struct view_call call;
    struct view_waiting *next;
};

// Takes a request out of those that wait, and frees what it has.
static void view_forget(struct view *view, struct view_waiting *waiting) {
    struct view_waiting **at = &view->waiting;
    while (*at != waiting) at = &(*at)->next;
    *at = waiting->next;
    waiting->request->tag = NULL;
    view_call_release(&waiting->call);
    free(waiting);
}

// A request was answered, or its client has gone away.
static void view_ended(void *context, struct http_request *request, bool sent) {
    (void)sent;
    if (request->tag) view_forget(context, request->tag);
}

// Works on the first of the requests, and answers it or lets it wait behind the others.
static void view_go_on(struct view *view) {
    struct view_waiting *waiting = view->waiting, **at = &view->waiting;
    struct http_request *request = waiting->request;
    struct view_call *call = &waiting->call;
    call->until = clock_monotonic() + view_slice;
    const status result = view_ask(call, request->path);
    if (result == OK && call->unfinished) {
        view->waiting = waiting->next;
        while (*at) at = &(*at)->next;
        *at = waiting;
        waiting->next = NULL;
        return;
    }
    const int code = result == OK ? 200 : result == USAGE ? 400 : result == END ? 404 : 503;
    if (result != OK) {
        buf_clear(&call->out);
        buf_puts(&call->out, "{\"error\": ");
        view_print_text(&call->out, fail_text());
        buf_printf(&call->out, call->column < 0 ? ", \"column\": null}" : ", \"column\": %lld}",
                   (long long)call->column);
        call->type = "application/json";
    }
    http_add_page_headers(request);
    http_add_header(request, "Cache-Control",
                    call->immutable && code == 200 ? "max-age=31536000, immutable" : "no-store");
    if (call->file_name && code == 200) {
        struct buf disposition = {0};
        buf_printf(&disposition, "attachment; filename=\"%s\"", call->file_name);
        http_add_header(request, "Content-Disposition", disposition.data);
        buf_release(&disposition);
    }
    http_answer(request, code, call->type, &call->out);
    view_forget(view, waiting);
}

static void view_handle(void *context, struct http_request *request) {
    struct view *view = context;
    const char *site = http_find_header(request, "Sec-Fetch-Site"), *path = request->path;
    struct buf nothing = {0};
    if (!http_allows(request, "GET")) return;
    if (!strcmp(path, "/favicon.ico")) { // browsers ask for it, and say so where there is none
        http_answer(request, 204, NULL, &nothing);
        return;
    }
    if (!view_admits(view, request)) return;
    if (view_is_page(path)) {
        view_answer_file(request, "index.html", "text/html; charset=utf-8");
        return;
    }
    if (!strcmp(path, "/view.css")) {
        view_answer_file(request, "view.css", "text/css; charset=utf-8");
        return;
    }
    if (!strcmp(path, "/view.js")) {
        view_answer_file(request, "view.js", "text/javascript; charset=utf-8");
        return;
    }
    if (site && !strcmp(site, "cross-site")) {
        http_refuse(request, 403, "another site may not ask for this");
        return;
    }
    if (view_find_route(path) < sizeof view_routes / sizeof *view_routes) {
        struct view_waiting *waiting;
        NEW(&waiting, 1);
        *waiting = (struct view_waiting){
            .request = request,
            .call = {.view = view, .arguments = request->arguments, .argument_count = request->argument_count},
            .next = view->waiting};
        request->tag = view->waiting = waiting;
        view_go_on(view);
        return;
    }
    http_add_page_headers(request);
    http_refuse(request, 404, "there is no such page");
}

// ---- opening ----

// Opens what an operand names.
static status view_open_source(struct view *view, struct view_source *source, const char *operand) {
    struct arena *arena = &view->arena;
    struct stat info;
    struct buf diagnostics = {0};
    const char *sign = strchr(operand, '=');
    // A path may have a '=', too.
    const bool named =
        sign && sign > operand && memchr(operand, '/', (size_t)(sign - operand)) == NULL && stat(operand, &info);
    source->path = named ? sign + 1 : operand;
    source->name = named ? arena_strndup(arena, operand, (size_t)(sign - operand)) : NULL;
    if (stat(source->path, &info)) return fail(DATAERR, "%s: %s", source->path, strerror(errno));
    const char *file = path_join(arena, source->path, "pipeline.yaml");
    if (!S_ISDIR(info.st_mode) && subcommand_is_pipeline(source->path)) file = source->path;
    if (path_exists(file) && (S_ISDIR(info.st_mode) || file == source->path)) {
        const char *set[1] = {NULL};
        if (S_ISDIR(info.st_mode)) { // it may have been moved since
            char *directory = realpath(source->path, NULL);
            if (!directory) return fail(DATAERR, "%s: %s", source->path, strerror(errno));
            set[0] = arena_printf(arena, "run=%s", directory);
            free(directory);
        }
        const status result = pipeline_read(&source->pipeline, file, true, set, set[0] != NULL, &diagnostics);
        if (result != OK && diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
        buf_release(&diagnostics);
        TRY(result);
        source->kind = VIEW_RUN;
        source->run = source->pipeline->run;
    } else {
        source->kind = S_ISDIR(info.st_mode) ? VIEW_STORE : VIEW_FILE;
    }
    if (!source->name) {
        const char *path = source->run ? source->run : source->path; // a run may not exist yet
        char *whole = realpath(path, NULL);
        source->name = arena_printf(arena, "%s", path_base_name(whole ? whole : path));
        free(whole);
    }
    for (const struct view_source *other = view->sources; other < source; other++)
        if (!strcmp(other->name, source->name))
            return fail(USAGE, "two operands have the name %s: give them others, as in new=%s", source->name,
                        source->path);
    return view_groups_open(source);
}

status view_main(struct subcommand_call *call) {
    enum { WAIT_MS = 1000, HTML_WAIT_MS = 2500 };
    const struct view_options *given = call->given;
    struct view view = {.machine = given->machine, .key = given->key};
    status result = OK;
    int here;
    signal(SIGPIPE, SIG_IGN);
    view.sources = arena_alloc(&view.arena, (size_t)call->count * sizeof *view.sources);
    memset(view.sources, 0, (size_t)call->count * sizeof *view.sources);
    for (int i = 0; i < call->count; i++) {
        view.source_count++;
        TRY_TO(result, done, view_open_source(&view, &view.sources[i], call->list[i]));
    }
    if (view.machine)
        TRY_TO(result, done,
               view.sources[0].run ? deployment_find_here(view.sources[0].pipeline, view.machine, &here)
                                   : fail(USAGE, "--machine %s: %s is not a run", view.machine, view.sources[0].path));
    if (given->html) {
        // The supervisors of a run report once a second.
        TRY_TO(result, done, view_live_open(&view));
        if (view.live) TRY_TO(result, done, view_live_wait(&view, -1, HTML_WAIT_MS));
        result = view_html_write(&view, given->html, given->groups, given->where);
        goto done;
    }
    TRY_TO(result, done, signals_open()); // until here a signal ends the program
    const struct http_options options = {.listen = given->listen,
                                         .host = given->host,
                                         .next_port = true,
                                         .context = &view,
                                         .handle = view_handle,
                                         .ended = view_ended};
    http_make_token(view.token);
    TRY_TO(result, done, http_open(&view.server, &options));
    const char *address = http_address(view.server);
    const char *port = strrchr(address, ':') + 1;
    snprintf(view.cookie, sizeof view.cookie, "caravan-%s", port);
    TRY_TO(result, done, view_live_open(&view));
    log_info("http://%s/?token=%s", address, view.token);
    if (http_is_loopback(view.server))
        log_info("from another machine: ssh -L %s:localhost:%s THIS-MACHINE, then the same address", port, port);
    else
        log_info(
            "who can see what is sent on this network can see the token: better listen on 127.0.0.1 and use ssh -L");
    while (!signals_stopping()) {
        const int due = view.waiting ? 0 : http_timeout_ms(view.server);
        TRY_TO(result, done, view_live_wait(&view, http_fd(view.server), due >= 0 && due < WAIT_MS ? due : WAIT_MS));
        TRY_TO(result, done, http_step(view.server));
        if (view.waiting) view_go_on(&view); // with the one that waits longest
    }
done:
    http_close(&view.server);
    view_live_close(&view);
    view_group_close(&view);
    view_compare_close(&view);
    for (size_t i = 0; i < view.source_count; i++) {
        view_groups_close(&view.sources[i].groups);
        pipeline_free(&view.sources[i].pipeline);
    }
    arena_release(&view.arena);
    return result;
}
