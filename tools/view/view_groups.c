// The groups of a source as a list of summaries, and the routes over all of them.
#include "tools/view/view.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "tools/tools.h"
#include "tools/view/view_search.h"

// Where the groups are of a source that has no numbers: by the index in the list.
struct view_file {
    struct file_map map; // of a file of groups: each is a line of it
    size_t *begins, *ends;
    char **ids; // of a store without summaries
    size_t count;
};

// ---- opening ----

// Takes the group at an index out, if it is there.
static void view_groups_remove(struct view_groups *groups, size_t index) {
    if (groups->list[index].number < 0) return;
    groups->list[index].number = -1;
    groups->total--;
    view_block_forget(groups, index);
    view_searches_forget(groups->search, index);
}

static void view_groups_add(struct view_groups *groups, int64_t number, const struct group_summary *summary) {
    GROW(&groups->list, groups->count);
    const int64_t seq = summary->seq;
    const size_t index = groups->count++;
    groups->list[index] = (struct numbered_summary){number, *summary};
    groups->total++;
    groups->trains |= summary->step >= 0;
    if (seq < 0 || seq > INT32_MAX) return;
    if ((size_t)seq >= groups->seq_capacity) {
        const size_t capacity = (size_t)seq + (size_t)seq / 2 + 64;
        RESIZE(&groups->by_seq, capacity);
        for (size_t i = groups->seq_capacity; i < capacity; i++) groups->by_seq[i] = -1;
        groups->seq_capacity = capacity;
    }
    // A group that was trained again, after optim had gone back, is further behind.
    if (groups->by_seq[seq] >= 0) view_groups_remove(groups, (size_t)groups->by_seq[seq]);
    groups->by_seq[seq] = (int64_t)index;
}

// Adds a group of a store without summaries.
static status view_groups_visit(void *context, const struct group *group) {
    struct view_groups *groups = context;
    struct group_summary summary;
    group_summary_make(group, &summary);
    GROW(&groups->file->ids, groups->file->count);
    groups->file->ids[groups->file->count] = mem_strdup(group->id.data);
    view_groups_add(groups, (int64_t)groups->file->count++, &summary);
    return OK;
}

// Opens the store of a source that has none yet. A run that has just begun may not have one, and on several machines
// there are several: that of the last stage's machine has the whole groups.
static status view_groups_open_store(struct view_groups *groups) {
    static const double pause = 2; // seconds between two tries
    struct arena arena = {0};
    struct string_list stores = {0};
    struct numbered_summary first;
    size_t count = 0;
    const double now = clock_monotonic();
    status result = OK;
    if (groups->opened_at > 0 && now - groups->opened_at < pause) return OK;
    groups->opened_at = now;
    if (subcommand_find_stores(groups->path, "groups.lmdb", &arena, &stores) != OK) {
        arena_release(&arena);
        return OK;
    }
    for (size_t i = 0; i < stores.count && !count && result == OK; i++) {
        struct stat info;
        group_store_close(&groups->store);
        result = group_store_open(&groups->store, stores.data[i], true);
        free(groups->store_file);
        groups->store_file = mem_strdup(path_join(&arena, stores.data[i], "groups.lmdb"));
        if (stat(groups->store_file, &info)) info = (struct stat){0};
        groups->device = (uint64_t)info.st_dev;
        groups->inode = (uint64_t)info.st_ino;
        if (result == OK && group_store_has_summaries(groups->store))
            result = group_store_summaries(groups->store, 0, &first, 1, &count);
        if (result != OK || group_store_has_summaries(groups->store)) continue;
        if (groups->count) { // one of an older program cannot follow another one
            group_store_close(&groups->store);
            continue;
        }
        NEW(&groups->file, 1);
        result = group_store_each(groups->store, view_groups_visit, groups);
        count = groups->count;
    }
    arena_release(&arena);
    return result;
}

status view_groups_open(struct view_source *source) {
    struct view_groups *groups = &source->groups;
    groups->path = source->path;
    if (source->kind != VIEW_FILE) {
        TRY(view_groups_open_store(groups));
        if (!groups->store && source->kind == VIEW_STORE)
            return fail(DATAERR, "%s: no groups.lmdb: this is neither a run nor a store", source->path);
        return view_groups_refresh(groups);
    }
    NEW(&groups->file, 1); // a line for each group
    struct view_file *file = groups->file;
    TRY(file_map_open(&file->map, source->path));
    const char *text = file->map.data;
    for (size_t at = 0, line = 1, end; at < file->map.size; at = end + 1, line++) {
        const char *newline = memchr(text + at, '\n', file->map.size - at);
        struct group_summary summary;
        struct group *group;
        end = newline ? (size_t)(newline - text) : file->map.size;
        if (end == at) continue;
        const status result = group_from_json(&group, text + at, end - at);
        if (result != OK) return fail_prefix(result, "%s: line %zu", source->path, line);
        group_summary_make(group, &summary);
        group_free(&group);
        const size_t index = file->count++;
        GROW(&file->begins, index);
        GROW(&file->ends, index);
        file->begins[index] = at;
        file->ends[index] = end;
        view_groups_add(groups, (int64_t)index, &summary);
    }
    return OK;
}

void view_groups_close(struct view_groups *groups) {
    group_store_close(&groups->store);
    free(groups->store_file);
    free(groups->list);
    free(groups->by_seq);
    view_searches_free(&groups->search);
    view_blocks_free(groups);
    if (groups->file) {
        for (size_t i = 0; groups->file->ids && i < groups->file->count; i++) free(groups->file->ids[i]);
        file_map_release(&groups->file->map);
        free(groups->file->begins);
        free(groups->file->ends);
        free(groups->file->ids);
        free(groups->file);
    }
    *groups = (struct view_groups){0};
}

// Takes all groups out if the store's file was removed or replaced, as by a run that begins anew in its directory.
// Their indexes stay, because a route that is unfinished may keep some.
static void view_groups_forget_replaced(struct view_groups *groups) {
    struct stat info;
    const int code = stat(groups->store_file, &info) ? errno : 0;
    if (code ? code != ENOENT && code != ENOTDIR
             : groups->device == (uint64_t)info.st_dev && groups->inode == (uint64_t)info.st_ino)
        return;
    for (; groups->alive < groups->count; groups->alive++) view_groups_remove(groups, groups->alive);
    group_store_close(&groups->store);
    groups->next = 0;
    groups->trains = false;
    groups->opened_at = 0;
}

status view_groups_refresh(struct view_groups *groups) {
    enum { AT_ONCE = 512 }; // summaries of one transaction
    struct numbered_summary list[AT_ONCE];
    size_t count;
    if (groups->file) return OK;
    if (groups->store) view_groups_forget_replaced(groups);
    if (!groups->store || !groups->total) TRY(view_groups_open_store(groups));
    if (!groups->store || groups->file) return OK;
    do {
        TRY(group_store_summaries(groups->store, groups->next, list, AT_ONCE, &count));
        for (size_t i = 0; i < count; i++) view_groups_add(groups, list[i].number, &list[i].summary);
        if (count) groups->next = list[count - 1].number + 1;
    } while (count == AT_ONCE);
    // The oldest ones may have been removed.
    TRY(group_store_summaries(groups->store, 0, list, 1, &count));
    const int64_t lowest = count ? list[0].number : groups->next;
    for (; groups->alive < groups->count && groups->list[groups->alive].number < lowest; groups->alive++)
        view_groups_remove(groups, groups->alive);
    return OK;
}

// ---- one group ----

status view_groups_get(struct view_groups *groups, size_t index, struct group **out) {
    const struct view_file *file = groups->file;
    *out = NULL;
    if (index >= groups->count || groups->list[index].number < 0) return OK;
    if (file && file->ids) return group_store_get(groups->store, file->ids[index], out);
    if (!file) return group_store_get_number(groups->store, groups->list[index].number, out);
    return group_from_json(out, (const char *)file->map.data + file->begins[index],
                           file->ends[index] - file->begins[index]);
}

status view_groups_row(struct view_groups *groups, size_t index, struct group_row *out, struct buf *bytes,
                       bool *found) {
    struct group *group;
    *found = false;
    if (index >= groups->count || groups->list[index].number < 0) return OK;
    if (!groups->file) return group_store_row(groups->store, groups->list[index].number, out, bytes, found);
    TRY(view_groups_get(groups, index, &group));
    if (!group) return OK;
    buf_clear(bytes);
    group_row_make(group, groups->list[index].summary.issued, bytes);
    group_free(&group);
    *found = true;
    return group_row_read(out, bytes->data, bytes->size);
}

// Returns the index of a number, SIZE_MAX if there is none.
static size_t view_groups_index(const struct view_groups *groups, int64_t number) {
    // A number that counts no more is -1, so the list is not sorted: those that count are.
    for (size_t low = 0, high = groups->count; low < high;) {
        size_t middle = low + (high - low) / 2, at = middle;
        while (at < high && groups->list[at].number < 0) at++;
        if (at < high && groups->list[at].number == number) return at;
        if (at < high && groups->list[at].number < number)
            low = at + 1;
        else
            high = middle;
    }
    return SIZE_MAX;
}

status view_groups_find(struct view_groups *groups, const char *id, size_t *index) {
    int64_t number;
    *index = SIZE_MAX;
    if (!groups->file) {
        if (!groups->store) return OK;
        TRY(group_store_number_of(groups->store, id, &number));
        if (number >= 0) *index = view_groups_index(groups, number);
        return OK;
    }
    for (size_t i = 0; i < groups->count && *index == SIZE_MAX; i++) {
        struct group *group = NULL;
        if (groups->file->ids) {
            if (!strcmp(groups->file->ids[i], id)) *index = i;
            continue;
        }
        // Most lines do not have it anywhere.
        const char *line = (const char *)groups->file->map.data + groups->file->begins[i];
        const size_t size = groups->file->ends[i] - groups->file->begins[i];
        bool plain = true;
        for (const char *at = id; *at; at++)
            plain &= *at >= ' ' && *at < 0x7f && *at != '"' && *at != '\\' && *at != '/';
        if (plain && !memmem(line, size, id, strlen(id))) continue;
        TRY(view_groups_get(groups, i, &group));
        if (group && string_equals(group->id, id)) *index = i;
        group_free(&group);
    }
    return OK;
}

bool view_groups_trains(const struct view_source *source) {
    return source->groups.trains;
}

int64_t view_groups_step(const struct view_source *source, size_t index) {
    const struct numbered_summary *at = &source->groups.list[index];
    return source->groups.trains ? at->summary.step : at->number + 1;
}

// ---- /api/groups ----

enum { MAX_ROWS = 200, SORT_ID = -2, SORT_SAMPLE = -3, MOST_STRINGS = 50000 };

// By what rows are sorted.
struct view_sort {
    int figure; // or SORT_ID, SORT_SAMPLE
    bool descending;
};

struct view_key {
    double value; // NaN comes last in both orders
    struct string text;
    int64_t number;
    size_t index;
};

// Returns below, at or above 0: whether a comes before b.
static int view_sort_compare(const void *one, const void *other, void *by) {
    const struct view_sort *sort = by;
    const struct view_key *a = one, *b = other;
    int order = 0;
    if (sort->figure < 0) {
        const size_t size = a->text.size < b->text.size ? a->text.size : b->text.size;
        if (!a->text.data || !b->text.data)
            return a->text.data ? -1 : b->text.data ? 1 : (a->number > b->number) - (a->number < b->number);
        order = memcmp(a->text.data, b->text.data, size);
        if (!order) order = (a->text.size > b->text.size) - (a->text.size < b->text.size);
    } else if (isnan(a->value) || isnan(b->value)) {
        order = isnan(a->value) - isnan(b->value);
        if (order) return order;
    } else {
        order = (a->value > b->value) - (a->value < b->value);
    }
    if (sort->descending) order = -order;
    return order ? order : (a->number > b->number) - (a->number < b->number);
}

// Keeps the `most` first keys in a heap, whose root is the last of them.
static void view_sort_keep(struct view_sort *sort, struct view_key *heap, size_t *count, size_t most,
                           const struct view_key *key) {
    size_t at = 0;
    if (*count == most) {
        if (!most || view_sort_compare(key, &heap[0], sort) >= 0) return;
        for (;;) { // it takes the root's place and sinks
            size_t child = 2 * at + 1;
            if (child >= most) break;
            if (child + 1 < most && view_sort_compare(&heap[child + 1], &heap[child], sort) > 0) child++;
            if (view_sort_compare(&heap[child], key, sort) <= 0) break;
            heap[at] = heap[child];
            at = child;
        }
    } else {
        for (at = (*count)++; at && view_sort_compare(key, &heap[(at - 1) / 2], sort) > 0; at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
    }
    heap[at] = *key;
}

// Reads which rows are wanted: limit, steps=FIRST-LAST and sort.
static status view_groups_read_order(struct view_call *call, int64_t *limit, int64_t steps[2], struct view_sort *out) {
    const char *range = view_argument(call, "steps"), *text = view_argument(call, "sort");
    long long first = INT64_MIN, last = INT64_MAX;
    int end = 0;
    TRY(view_int_argument(call, "limit", 0, MAX_ROWS, MAX_ROWS, limit));
    if (range && (sscanf(range, "%18lld-%18lld%n", &first, &last, &end) != 2 || range[end]))
        return fail(USAGE, "steps: not FIRST-LAST");
    steps[0] = first;
    steps[1] = last;
    *out = (struct view_sort){.figure = FIGURE_NUMBER};
    if (!text) return OK;
    out->descending = *text == '-';
    const char *name = text + out->descending;
    if (!strcmp(name, "id") || !strcmp(name, "sample")) {
        out->figure = *name == 'i' ? SORT_ID : SORT_SAMPLE;
        if (call->source->groups.total <= MOST_STRINGS) return OK;
        return fail(USAGE, "sort: more than %d groups cannot be sorted by texts", MOST_STRINGS);
    }
    for (out->figure = 0; out->figure < VIEW_FIGURES; out->figure++)
        if (!strcmp(view_figures[out->figure].name, name)) return OK;
    return fail(USAGE, "sort: no column has the name '%.40s'", name);
}

// Sets the key of the group at an index; *found says whether it is still there. Texts are in the arena.
static status view_sort_key(const struct view_sort *sort, struct view_source *source, size_t index, struct arena *arena,
                            struct view_key *out, bool *found) {
    struct group_row row;
    struct buf bytes = {0};
    *out = (struct view_key){.value = NAN, .number = source->groups.list[index].number, .index = index};
    *found = true;
    if (sort->figure >= 0) {
        out->value = view_figure_of(source, index, sort->figure);
        return OK;
    }
    const status result = view_groups_row(&source->groups, index, &row, &bytes, found);
    const struct string text = sort->figure == SORT_ID ? row.id : row.sample_id;
    if (result == OK && *found && text.data)
        out->text = (struct string){arena_strndup(arena, text.data, text.size), text.size};
    buf_release(&bytes);
    return result;
}

// Appends the rows at keys[0..count) as columns. A group that was removed meanwhile has a row without texts.
static status view_groups_print_rows(struct view_call *call, const struct view_key *keys, size_t count) {
    static const char *const texts[] = {"id", "sample", "question"};
    struct view_source *source = call->source;
    struct buf *out = &call->out, columns[3] = {0}, bytes = {0};
    status result = OK;
    for (size_t i = 0; i < count; i++) {
        struct group_row row = {0};
        bool found;
        TRY_TO(result, done, view_groups_row(&source->groups, keys[i].index, &row, &bytes, &found));
        if (!found) row = (struct group_row){0};
        const struct string strings[] = {row.id, row.sample_id, row.question};
        for (int k = 0; k < 3; k++) {
            if (i) buf_puts(&columns[k], ", ");
            view_print_string(&columns[k], strings[k]);
        }
    }
    buf_puts(out, "{");
    for (int k = 0; k < 3; k++) {
        buf_printf(out, "\"%s\": [", texts[k]);
        if (columns[k].size) buf_append(out, columns[k].data, columns[k].size);
        buf_puts(out, "], ");
    }
    buf_puts(out, "\"state\": [");
    for (size_t i = 0; i < count; i++)
        buf_printf(
            out, "%s\"%s\"", i ? ", " : "",
            group_state_name((enum group_state)(source->groups.list[keys[i].index].summary.state % GROUP_STATES)));
    buf_puts(out, "], \"marks\": [");
    for (size_t i = 0; i < count; i++) {
        if (i) buf_puts(out, ", ");
        view_print_marks(out, &source->groups.list[keys[i].index].summary);
    }
    buf_puts(out, "]");
    for (int figure = 0; figure < VIEW_FIGURES; figure++) {
        buf_printf(out, ", \"%s\": [", view_figures[figure].name);
        for (size_t i = 0; i < count; i++) {
            if (i) buf_puts(out, ", ");
            const double value = view_figure_of(source, keys[i].index, figure);
            if (view_figures[figure].type == FIGURE_FLOAT)
                view_print_float(out, (float)value);
            else
                view_print(out, value);
        }
        buf_puts(out, "]");
    }
    buf_puts(out, "}");
done:
    for (int k = 0; k < 3; k++) buf_release(&columns[k]);
    buf_release(&bytes);
    return result;
}

// Sets *key to that of the group behind which the rows begin; a cursor is the number of a group.
static status view_groups_read_cursor(struct view_call *call, const struct view_sort *sort, struct arena *arena,
                                      struct view_key *key, bool *given) {
    int64_t number;
    bool found;
    const char *text = view_argument(call, "after");
    *given = false;
    if (!text || !strcmp(text, "scan")) return OK;
    TRY(view_int_argument(call, "after", 0, INT64_C(1) << 53, 0, &number));
    const size_t index = view_groups_index(&call->source->groups, number);
    if (index == SIZE_MAX) return fail(USAGE, "after: the group was removed meanwhile: begin anew");
    *given = true;
    return view_sort_key(sort, call->source, index, arena, key, &found);
}

status view_groups_list(struct view_call *call) {
    struct view_source *source = call->source;
    struct view_groups *groups = &source->groups;
    struct view_search *search;
    struct view_sort sort;
    struct view_key *keys = NULL, last = {0};
    struct buf found = {0};
    struct arena arena = {0};
    int64_t steps[2], limit, matched = 0;
    size_t count = 0;
    bool cursor, there;
    const char *after = view_argument(call, "after");
    status result;
    TRY_TO(result, done, view_groups_read_order(call, &limit, steps, &sort));
    TRY_TO(result, done, view_search_of(call, &search, &found));
    const bool exact = !search || (search->low == 0 && search->high == groups->count);
    // While a search goes on, its rows come as they are found.
    const bool scanning = after && !strcmp(after, "scan");
    // For the page as one file: all of them, or evenly so many.
    const int64_t stride = call->whole ? (groups->total + VIEW_WHOLE_ROWS - 1) / VIEW_WHOLE_ROWS : 1;
    if (call->whole) limit = VIEW_WHOLE_ROWS;
    NEW(&keys, (size_t)limit + 1);
    TRY_TO(result, done, view_groups_read_cursor(call, &sort, &arena, &last, &cursor));
    // In the order of the numbers, which is that of the list, the first rows are enough where the count is known.
    const bool counted = steps[0] == INT64_MIN && steps[1] == INT64_MAX;
    const size_t most = counted && (scanning || !limit)                          ? 0
                        : counted && sort.figure == FIGURE_NUMBER && stride == 1 ? (size_t)limit + 1
                                                                                 : SIZE_MAX;
    for (size_t k = 0; k < groups->count && (count < most || most == SIZE_MAX); k++) {
        const size_t i = sort.descending ? groups->count - 1 - k : k;
        struct view_key key;
        if (!view_search_counts(source, search, i, steps)) continue;
        matched++;
        if (scanning || (stride > 1 && matched % stride)) continue;
        TRY_TO(result, done, view_sort_key(&sort, source, i, &arena, &key, &there));
        if (!there || (cursor && view_sort_compare(&key, &last, &sort) <= 0)) continue;
        view_sort_keep(&sort, keys, &count, (size_t)limit + 1, &key);
    }
    if (counted) matched = search ? search->matched : groups->total;
    const size_t *newly = (const void *)found.data;
    for (size_t i = 0; scanning && i < found.size / sizeof *newly && count < (size_t)limit; i++)
        if (view_search_counts(source, search, newly[i], steps))
            keys[count++] = (struct view_key){.number = groups->list[newly[i]].number, .index = newly[i]};
    if (count && !scanning) qsort_r(keys, count, sizeof *keys, view_sort_compare, &sort);
    const bool more = count > (size_t)limit;
    count = more ? (size_t)limit : count;
    buf_printf(&call->out, "{\"total\": %lld, \"matched\": %lld, \"exact\": %s, \"scanned\": %lld, \"cursor\": ",
               (long long)groups->total, (long long)matched, exact ? "true" : "false",
               (long long)(search ? search->scanned : groups->total));
    if (!exact)
        buf_puts(&call->out, "\"scan\"");
    else if (more && count)
        buf_printf(&call->out, "\"%lld\"", (long long)keys[count - 1].number);
    else
        buf_puts(&call->out, "null");
    buf_puts(&call->out, ", \"missing\": [");
    size_t listed = 0;
    if (search && exact && search->root) view_part_print_missing(search->root, &call->out, &listed);
    buf_puts(&call->out, "], \"rows\": ");
    TRY_TO(result, done, view_groups_print_rows(call, keys, count));
    buf_puts(&call->out, "}");
done:
    free(keys);
    buf_release(&found);
    arena_release(&arena);
    return result;
}

// ---- groups that tell something ----

status view_groups_telling(struct view_call *call, size_t most, size_t *indexes, size_t *count) {
    enum { KINDS = 8 };
    struct view_source *source = call->source;
    struct view_groups *groups = &source->groups;
    struct view_search *search = NULL;
    struct buf found = {0};
    bool *taken = NULL;
    const int64_t steps[2] = {INT64_MIN, INT64_MAX};
    size_t at[KINDS];
    status result;
    *count = 0;
    do TRY_TO(result, done, view_search_of(call, &search, &found));
    while (search && (search->low || search->high < groups->count));
    NEW(&taken, groups->count);
    for (int kind = 0; kind < KINDS; kind++) at[kind] = groups->count;
    // One of each kind in turn, the newest first.
    for (bool more = true; more;) {
        more = false;
        for (int kind = 0; kind < KINDS && *count < most; kind++) {
            bool fits = false;
            while (at[kind] && !fits) {
                const size_t i = --at[kind];
                const struct group_summary *summary = &groups->list[i].summary;
                const int all = summary->completions, right = summary->right;
                // What the overview asks to look at, in its order.
                const bool tells[KINDS] = {!right,
                                           right && right < all,
                                           !isnan(summary->bonus) && right > summary->with_bonus,
                                           summary->uncounted > 0,
                                           summary->well_formed<all, summary->contradicting> 0,
                                           summary->truncated > 0,
                                           true};
                fits = !taken[i] && view_search_counts(source, search, i, steps) && !isnan(summary->accuracy) && all &&
                       tells[kind];
            }
            if (!fits) continue;
            taken[at[kind]] = true;
            indexes[(*count)++] = at[kind];
            more = true;
        }
    }
done:
    free(taken);
    buf_release(&found);
    return result;
}

// ---- /api/map ----

status view_groups_map(struct view_call *call) {
    enum { MOST_SIZE = 64 }; // right completions that are told apart
    struct view_source *source = call->source;
    struct view_groups *groups = &source->groups;
    struct view_search *search;
    struct buf found = {0};
    int64_t *counts = NULL, columns, steps[2], first = INT64_MAX, last = INT64_MIN;
    int size = 0;
    status result;
    TRY_TO(result, done, view_int_argument(call, "from", 0, INT64_C(1) << 53, INT64_MIN, &steps[0]));
    TRY_TO(result, done, view_int_argument(call, "to", 0, INT64_C(1) << 53, INT64_MAX, &steps[1]));
    TRY_TO(result, done, view_int_argument(call, "columns", 1, 2000, 400, &columns));
    if (call->whole) columns = VIEW_WHOLE_ROWS;
    TRY_TO(result, done, view_search_of(call, &search, &found));
    for (size_t b = 0; b < view_block_count(groups); b++) {
        const struct view_block *block = view_block_at(groups, b);
        if (block->completions > size) size = block->completions;
        if (block->last_step < steps[0] || block->first_step > steps[1]) continue;
        const bool inside = block->first_step >= steps[0] && block->last_step <= steps[1];
        for (size_t i = b * VIEW_BLOCK; i < block->end && !inside; i++) {
            const int64_t step = view_groups_step(source, i);
            if (groups->list[i].number < 0 || step < steps[0] || step > steps[1] || step < 0) continue;
            if (step < first) first = step;
            if (step > last) last = step;
        }
        if (inside && block->first_step < first) first = block->first_step;
        if (inside && block->last_step > last) last = block->last_step;
    }
    if (size > MOST_SIZE) size = MOST_SIZE;
    const int64_t span = first <= last ? last - first + 1 : 0;
    const int64_t width = span ? (span + columns - 1) / columns : 1,
                  bins = (span + width - 1) / width; // steps of a bin
    const size_t cells = (size_t)size + 2;
    NEW(&counts, (size_t)bins * cells);
    for (size_t b = 0; b < view_block_count(groups) && bins; b++) {
        const struct view_block *block = view_block_at(groups, b);
        if (block->last_step < first || block->first_step > last) continue;
        for (size_t i = b * VIEW_BLOCK; i < block->end; i++) {
            if (!view_search_counts(source, search, i, steps)) continue;
            const struct group_summary *summary = &groups->list[i].summary;
            const int64_t step = view_groups_step(source, i);
            if (step < first || step > last) continue; // one that no step trained
            // Of a group with another number of completions the share counts; all and none of them stay so.
            const int all = summary->completions;
            int right = summary->right;
            if (all != size && right)
                right = right == all ? size : (int)fmin(fmax(round(right * (double)size / all), 1), size - 1);
            counts[(size_t)((step - first) / width) * cells + (isnan(summary->accuracy) ? cells - 1 : (size_t)right)]++;
        }
    }
    buf_printf(&call->out, "{\"size\": %d, \"first\": [", size);
    for (int64_t i = 0; i < bins; i++) buf_printf(&call->out, "%s%lld", i ? ", " : "", (long long)first + i * width);
    buf_puts(&call->out, "], \"step\": [");
    for (int64_t i = 0; i < bins; i++) {
        const long long end = (long long)first + (i + 1) * width - 1;
        buf_printf(&call->out, "%s%lld", i ? ", " : "", end < last ? end : last);
    }
    buf_puts(&call->out, "], \"counts\": [");
    for (int64_t i = 0; i < bins; i++) {
        for (size_t k = 0; k < cells; k++)
            buf_printf(&call->out, "%s%lld", k ? ", " : i ? ", [" : "[", (long long)counts[(size_t)i * cells + k]);
        buf_puts(&call->out, "]");
    }
    buf_puts(&call->out, "]}");
done:
    buf_release(&found);
    free(counts);
    return result;
}
