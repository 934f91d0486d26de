// The page with its data as one file, which can be mailed. ROUTES.md says what is in it.
#include "tools/view/view.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"

enum { MOST_BYTES = 20000000 };

// What is being written.
struct view_html {
    struct view *view;
    struct buf routes, frames, left_out; // the members of the objects and of the array
    uint64_t unreadable;                 // frames that are not there
};

static void view_html_base64(struct buf *out, const char *data, size_t size) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        uint32_t bits = (uint32_t)(unsigned char)data[i] << 16;
        if (left > 1) bits |= (uint32_t)(unsigned char)data[i + 1] << 8;
        if (left > 2) bits |= (unsigned char)data[i + 2];
        const char text[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                              left > 2 ? digits[bits & 63] : '='};
        buf_append(out, text, sizeof text);
    }
}

__attribute__((format(printf, 2, 3))) static void view_html_leave_out(struct view_html *html, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (html->left_out.size) buf_puts(&html->left_out, ",");
    json_print_string(&html->left_out, text, strlen(text));
}

// Adds a member to the routes or the frames.
static void view_html_add(struct buf *members, const char *name, struct string value) {
    if (members->size) buf_puts(members, ",\n");
    json_print_string(members, name, strlen(name));
    buf_puts(members, ":");
    buf_append(members, value.data, value.size);
}

// Adds the answer of a route under a name. One that the run has no data for is left out.
static status view_html_add_route(struct view_html *html, const char *path, const char *name,
                                  const struct http_argument *arguments, size_t count) {
    struct view_call call = {
        .view = html->view, .arguments = arguments, .argument_count = count, .whole = true, .until = (double)INFINITY};
    status result = view_ask(&call, path);
    if (result == OK) view_html_add(&html->routes, name, (struct string){call.out.data, call.out.size});
    view_call_release(&call);
    if (result == END || result == USAGE) {
        log_info("%s is left out: %s", name, fail_text());
        result = OK;
    }
    return result;
}

// Adds the frames of a medium, unless another group has brought them.
static status view_html_add_frames(struct view_html *html, const struct medium *medium) {
    status result = OK;
    struct buf first = {0};
    buf_printf(&first, "\"%s/0\":", medium->key.data);
    const bool added = html->frames.size && memmem(html->frames.data, html->frames.size, first.data, first.size);
    buf_release(&first);
    for (int64_t i = 0; i < medium->frames && result == OK && !added; i++) {
        struct view_call call = {.view = html->view, .whole = true, .until = (double)INFINITY};
        struct buf path = {0}, value = {0};
        buf_printf(&path, "/frames/%s/%lld.png", medium->key.data, (long long)i);
        result = view_ask(&call, path.data);
        if (result == OK) {
            buf_puts(&value, "\"data:image/png;base64,");
            view_html_base64(&value, call.out.data, call.out.size);
            buf_puts(&value, "\"");
            path.data[path.size - strlen(".png")] = 0;
            view_html_add(&html->frames, path.data + strlen("/frames/"), (struct string){value.data, value.size});
        } else if (result == END) { // then the later ones are not there, either: a group may claim very many
            html->unreadable += (uint64_t)(medium->frames - i);
            i = medium->frames - 1;
            result = OK;
        }
        view_call_release(&call);
        buf_release(&path);
        buf_release(&value);
    }
    return result;
}

// Adds the texts and the frames of the groups that tell most.
static status view_html_add_groups(struct view_html *html, int64_t most, const char *where) {
    const struct http_argument arguments[] = {{"where", where ? where : ""}};
    struct view_call call = {.view = html->view, .arguments = arguments, .argument_count = where ? 1 : 0};
    struct view_groups *groups = &html->view->sources[0].groups;
    size_t *indexes, count;
    call.source = &html->view->sources[0];
    NEW(&indexes, (size_t)most);
    status result = view_groups_telling(&call, (size_t)most, indexes, &count);
    for (size_t i = 0; i < count && result == OK; i++) {
        struct group *group;
        struct buf name = {0};
        result = view_groups_get(groups, indexes[i], &group);
        if (result != OK || !group) continue;
        buf_printf(&name, "/api/group/%s", group->id.data);
        result = view_html_add_route(html, name.data, name.data, NULL, 0);
        for (size_t m = 0; m < group->media_count && result == OK; m++)
            result = view_html_add_frames(html, &group->media[m]);
        if (html->routes.size + html->frames.size > MOST_BYTES)
            result = fail(USAGE, "the file would be larger than %d MB: let --groups or --where choose fewer groups",
                          MOST_BYTES / 1000000);
        buf_release(&name);
        group_free(&group);
    }
    if ((int64_t)count < groups->total)
        view_html_leave_out(html, "The texts and frames of %lld of %lld groups.",
                            (long long)(groups->total - (int64_t)count), (long long)groups->total);
    free(indexes);
    return result;
}

// Appends `page` with the style, the data and the script in the places of what loads them.
static void view_html_assemble(const struct view_html *html, struct buf *out) {
    static const char head[] = "<head>\n", style[] = "<link rel=\"stylesheet\" href=\"/view.css\">",
                      script[] = "<script src=\"/view.js\"></script>";
    const struct string page = view_page_file("index.html"), css = view_page_file("view.css"),
                        js = view_page_file("view.js");
    const size_t at_head = string_find(page, head, 0) + strlen(head), at_style = string_find(page, style, 0),
                 at_script = string_find(page, script, 0);
    char nonce[HTTP_TOKEN_SIZE]; // nothing of the data can know it
    assert(at_head < at_style && at_style < at_script && at_script < page.size);
    http_make_token(nonce);
    buf_append(out, page.data, at_head);
    buf_printf(out,
               "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-%s'; "
               "style-src 'nonce-%s'; img-src data:; base-uri 'none'; form-action 'none'\">\n",
               nonce, nonce);
    buf_append(out, page.data + at_head, at_style - at_head);
    buf_printf(out, "<style nonce=\"%s\">\n", nonce);
    buf_append(out, css.data, css.size);
    buf_puts(out, "</style>");
    const size_t behind_style = at_style + strlen(style);
    buf_append(out, page.data + behind_style, at_script - behind_style);
    buf_puts(out, "<script type=\"text/plain\" id=\"data\">");
    const struct buf *const parts[] = {&html->routes, &html->frames, &html->left_out};
    static const char *const before[] = {"{\"routes\":{", "},\n\"frames\":{", "},\n\"left_out\":["};
    for (int i = 0; i < 3; i++) {
        buf_puts(out, before[i]);
        for (size_t from = 0, to; from < parts[i]->size; from = to + 1) {
            const char *less = memchr(parts[i]->data + from, '<', parts[i]->size - from);
            to = less ? (size_t)(less - parts[i]->data) : parts[i]->size;
            buf_append(out, parts[i]->data + from, to - from);
            if (less) buf_puts(out, "\\u003c");
        }
    }
    buf_printf(out, "]}</script>\n<script nonce=\"%s\">\n", nonce);
    buf_append(out, js.data, js.size);
    buf_puts(out, "</script>");
    buf_append(out, page.data + at_script + strlen(script), page.size - at_script - strlen(script));
}

status view_html_write(struct view *view, const char *path, int64_t groups, const char *where) {
    static const char *const paths[] = {"/api/run",    "/api/live",       "/api/metrics", "/api/map",
                                        "/api/groups", "/api/quarantine", "/api/trace"};
    struct view_html html = {.view = view};
    struct buf out = {0};
    status result = OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && result == OK; i++)
        result = view_html_add_route(&html, paths[i], paths[i], NULL, 0);
    if (result == OK && view->source_count > 1) {
        const struct http_argument both[] = {{"a", view->sources[0].name}, {"b", view->sources[1].name}};
        result = view_html_add_route(&html, "/api/compare", "/api/compare", both, 2);
    }
    TRY_TO(result, done, result);
    if (view->sources[0].groups.total > VIEW_WHOLE_ROWS)
        view_html_leave_out(&html, "The figures of all but %d of %lld groups, evenly chosen.", VIEW_WHOLE_ROWS,
                            (long long)view->sources[0].groups.total);
    TRY_TO(result, done, view_html_add_groups(&html, groups, where));
    if (html.unreadable)
        view_html_leave_out(&html, "%llu frames that this machine does not have.", (unsigned long long)html.unreadable);
    view_html_assemble(&html, &out);
    if (out.size > MOST_BYTES)
        TRY_TO(result, done,
               fail(USAGE, "the file would have %zu MB, more than %d: let --groups or --where choose fewer groups",
                    out.size / 1000000, MOST_BYTES / 1000000));
    TRY_TO(result, done, file_write_atomic(path, out.data, out.size));
    log_info("%s: %.1f MB", path, (double)out.size / 1e6);
done:
    buf_release(&html.routes);
    buf_release(&html.frames);
    buf_release(&html.left_out);
    buf_release(&out);
    return result;
}
