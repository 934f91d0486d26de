// One group: its JSON form with what the page needs beside it, and the frames of its clips.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/json.h"
#include "shared/media/media.h"
#include "shared/reward/accuracy.h"
#include "shared/store/frame_store.h"
#include "shared/text/tokenizer.h"
#include "tools/tools.h"
#include "tools/view/view.h"

// What stays open between requests.
struct view_opened {
    struct view_frames {
        const char *directory;
        struct frame_store *store;
    } * frames;
    size_t frames_count;
    double looked_at; // clock_monotonic() of the last search for stores of a run that had none
    struct view_texts {
        bool tried;
        struct tokenizer *tokenizer;
        const char *why; // there is none
    } * texts;           // of each source
};

static struct view_opened *view_group_opened(struct view *view) {
    if (!view->opened) {
        NEW(&view->opened, 1);
        NEW(&view->opened->texts, view->source_count);
    }
    return view->opened;
}

void view_group_close(struct view *view) {
    struct view_opened *opened = view->opened;
    if (!opened) return;
    for (size_t i = 0; i < opened->frames_count; i++) frame_store_close(&opened->frames[i].store);
    for (size_t i = 0; i < view->source_count; i++) tokenizer_free(&opened->texts[i].tokenizer);
    free(opened->frames);
    free(opened->texts);
    free(opened);
    view->opened = NULL;
}

// ---- view_frames ----

// Maps the frames of a key from the first store that has them. The stores stay open.
static status view_frames_find(struct view *view, const char *key, struct frames_view *frames, bool *found) {
    struct view_opened *opened = view_group_opened(view);
    const double now = clock_monotonic();
    // A run that has just begun has no frames yet: looks for those of such runs again, once a second.
    const bool looks = !(opened->looked_at > 0) || now >= opened->looked_at + 1;
    if (looks) opened->looked_at = now;
    for (size_t i = 0; i < view->source_count && looks; i++) {
        struct view_source *source = &view->sources[i];
        struct string_list stores = {0};
        if (source->kind != VIEW_RUN || source->frames.count) continue;
        if (subcommand_find_stores(source->path, "frames.lmdb", &view->arena, &stores) == OK) source->frames = stores;
    }
    *found = false;
    for (size_t i = 0; i < view->source_count; i++) {
        const struct string_list *directories = &view->sources[i].frames;
        for (size_t k = 0; k < directories->count && !*found; k++) {
            const char *directory = directories->data[k];
            size_t at = 0;
            while (at < opened->frames_count && strcmp(opened->frames[at].directory, directory) != 0) at++;
            if (at == opened->frames_count) {
                struct frame_store *store;
                TRY(frame_store_open(&store, directory, 0, true));
                GROW(&opened->frames, at);
                opened->frames[opened->frames_count++] = (struct view_frames){directory, store};
            }
            TRY(frame_store_get(opened->frames[at].store, key, frames, found));
        }
        if (*found) break;
    }
    return OK;
}

// Returns whether the string is how a key of frames is written.
static bool view_frames_is_key(struct string key) {
    return key.data && key.size == FRAME_KEY_SIZE - 1 && strspn(key.data, "0123456789abcdef") >= key.size;
}

// ---- view_texts ----

const struct tokenizer *view_group_tokenizer(struct view *view, const struct view_source *source, const char **why) {
    struct view_texts *texts = &view_group_opened(view)->texts[source - view->sources];
    const struct pipeline *pipeline = source->pipeline;
    const char *model = NULL, *wrong = "the model is not known, only that of a run is";
    if (!texts->tried && pipeline) { // the model that the run's rollout has
        const struct pipeline_stage *rollout = pipeline_find_stage(pipeline, "rollout");
        if (rollout) model = pipeline_value(rollout, "model");
        const struct key *key = model ? NULL : key_list_find(&pipeline->keys, "model");
        if (key) model = key->value;
        wrong = model ? NULL : "the pipeline names no model";
        if (model && tokenizer_open(&texts->tokenizer, model) != OK) wrong = fail_text();
    }
    if (!texts->tried && wrong)
        texts->why = arena_printf(&view->arena, "The texts of the tokens cannot be told: %s.", wrong);
    texts->tried = true;
    *why = texts->why;
    return texts->tokenizer;
}

// ---- the parts of the answer ----

// Appends the id of the group at an index, null if there is none any more.
static status view_group_print_id(struct view_groups *groups, size_t index, struct buf *out) {
    struct group_row row = {0};
    struct buf bytes = {0};
    bool found = false;
    const status result = index == SIZE_MAX ? OK : view_groups_row(groups, index, &row, &bytes, &found);
    if (result == OK) view_print_string(out, found ? row.id : (struct string){0});
    buf_release(&bytes);
    return result;
}

// Appends where the group is in the order of the numbers.
static status view_group_print_place(struct view_groups *groups, size_t index, struct buf *out) {
    int64_t position = 1;
    size_t before = SIZE_MAX, after = index + 1;
    for (size_t b = 0; b < index / VIEW_BLOCK; b++) position += (int64_t)view_block_at(groups, b)->alive;
    for (size_t i = index / VIEW_BLOCK * VIEW_BLOCK; i < index; i++) position += groups->list[i].number >= 0;
    for (size_t i = index; i-- > groups->alive && before == SIZE_MAX;)
        if (groups->list[i].number >= 0) before = i;
    while (after < groups->count && groups->list[after].number < 0) after++;
    buf_printf(out, "{\"number\": %lld, \"position\": %lld, \"previous\": ", (long long)groups->list[index].number,
               (long long)position);
    TRY(view_group_print_id(groups, before, out));
    buf_puts(out, ", \"next\": ");
    return view_group_print_id(groups, after < groups->count ? after : SIZE_MAX, out);
}

// Appends where the tokens' texts end, and which tokens have none.
static void view_group_print_cuts(struct view_call *call, const struct group *group, struct buf *out) {
    struct buf ids = {0};
    const char *why = NULL;
    bool any = false, tokens = false;
    const struct tokenizer *tokenizer = view_group_tokenizer(call->view, call->source, &why);
    buf_puts(out, ", \"cuts\": [");
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct completion *completion = &group->completions[i];
        int64_t *cuts, before = 0;
        bool first = true;
        NEW(&cuts, completion->tokens.count);
        const bool found = tokenizer && token_cuts_find(tokenizer, completion, cuts);
        any |= found;
        tokens |= completion->tokens.data != NULL;
        buf_puts(out, i ? ", " : "");
        buf_puts(out, found ? "[" : "null");
        buf_puts(&ids, i ? ", [" : "[");
        for (size_t k = 0; found && k < completion->tokens.count; k++) {
            buf_printf(out, k ? ", %lld" : "%lld", (long long)cuts[k]);
            if (cuts[k] == before) {
                buf_printf(&ids, first ? "[%zu, %lld]" : ", [%zu, %lld]", k, (long long)completion->tokens.data[k]);
                first = false;
            }
            before = cuts[k];
        }
        if (found) buf_puts(out, "]");
        buf_puts(&ids, "]");
        free(cuts);
    }
    if (tokenizer) why = tokens ? "The tokens do not give the texts of the completions." : "The group has no tokens.";
    buf_puts(out, "], \"ids\": [");
    if (ids.size) buf_append(out, ids.data, ids.size);
    buf_puts(out, "], \"why_no_cuts\": ");
    view_print_string(out, any || !group->completion_count ? (struct string){0} : string_of(why));
    buf_release(&ids);
}

// Appends whether the frames of each medium are here.
static void view_group_print_media(struct view *view, const struct view_source *source, const struct group *group,
                                   struct buf *out) {
    const size_t machines = source->pipeline ? source->pipeline->machine_count : 1;
    buf_puts(out, ", \"media\": [");
    for (size_t i = 0; i < group->media_count; i++) {
        const struct string key = group->media[i].key;
        struct frames_view frames = {0};
        bool found = false;
        const status result = view_frames_is_key(key) ? view_frames_find(view, key.data, &frames, &found) : OK;
        const char *why = result != OK            ? fail_text()
                          : !source->frames.count ? "no store of frames is here"
                          : machines > 1          ? "on another machine, or evicted"
                                                  : "evicted";
        frames_view_release(&frames);
        buf_puts(out, i ? ", " : "");
        buf_puts(out, found ? "{\"available\": true, \"why\": " : "{\"available\": false, \"why\": ");
        view_print_string(out, found ? (struct string){0} : string_of(why));
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
}

// Appends a letter as a string, 0 as null.
static void view_group_print_letter(struct buf *out, char letter) {
    buf_printf(out, letter ? "\"%c\"" : "null", letter);
}

// Appends the options that the answers choose, the right one, and the marks.
static void view_group_print_choices(const struct group *group, struct buf *out) {
    const struct prompt *prompt = &group->prompt;
    const bool options = prompt->options.count > 0;
    buf_puts(out, ", \"chosen\": [");
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct string text = group->completions[i].text;
        buf_puts(out, i ? ", " : "");
        view_group_print_letter(out,
                                options && text.data ? option_of_answer(answer_extract(text), &prompt->options) : 0);
    }
    buf_puts(out, "], \"solution\": ");
    view_group_print_letter(out, options ? option_of_answer(answer_extract(prompt->solution), &prompt->options) : 0);
    buf_puts(out, ", \"marks\": [");
    for (size_t i = 0; i < group->completion_count; i++) {
        unsigned marks;
        const bool scored = group_completion_marks(group, i, &marks);
        buf_printf(out, "%s", i ? ", " : "");
        buf_printf(out, scored ? "%u" : "null", marks);
    }
    buf_puts(out, "]");
}

// Appends the groups of the same sample, at most MOST around the one at `index`.
static status view_group_print_same(struct view_groups *groups, size_t index, struct buf *out) {
    enum { MOST = 50 };
    const uint64_t sample = groups->list[index].summary.sample;
    size_t *same = NULL, count = 0, own = 0;
    status result = OK;
    for (size_t i = groups->alive; i < groups->count; i++) {
        if (groups->list[i].summary.sample != sample || groups->list[i].number < 0) continue;
        if (i == index) own = count;
        GROW(&same, count);
        same[count++] = i;
    }
    const size_t wanted = own > MOST / 2 ? own - MOST / 2 : 0, latest = count > MOST ? count - MOST : 0,
                 first = wanted < latest ? wanted : latest, end = first + MOST < count ? first + MOST : count;
    buf_puts(out, ", \"same\": [");
    for (size_t i = first; i < end && result == OK; i++) {
        const struct group_summary *summary = &groups->list[same[i]].summary;
        buf_puts(out, i > first ? ", {\"id\": " : "{\"id\": ");
        result = view_group_print_id(groups, same[i], out);
        buf_puts(out, ", \"step\": ");
        view_print(out, summary->step < 0 ? NAN : (double)summary->step);
        buf_puts(out, ", \"marks\": ");
        view_print_marks(out, summary);
        buf_puts(out, ", \"reward\": ");
        view_print_float(out, summary->reward);
        buf_puts(out, "}");
    }
    buf_puts(out, "]");
    free(same);
    return result;
}

// ---- routes ----

status view_group_show(struct view_call *call) {
    struct view_groups *groups = &call->source->groups;
    struct buf *out = &call->out;
    struct group *group = NULL;
    size_t index;
    status result;
    TRY(view_groups_find(groups, call->rest, &index));
    if (index != SIZE_MAX) TRY(view_groups_get(groups, index, &group));
    if (!group) return fail(END, "no group has the id '%.60s'", call->rest);
    TRY_TO(result, done, view_group_print_place(groups, index, out));
    buf_puts(out, ", \"group\": ");
    // The JSON form without what is long and not shown.
    struct group shown = *group;
    struct completion *completions;
    NEW(&completions, group->completion_count);
    for (size_t i = 0; i < group->completion_count; i++) {
        completions[i] = group->completions[i];
        completions[i].tokens = completions[i].versions = (struct int_array){0};
    }
    shown.prompt_tokens = (struct int_array){0};
    if (group->completion_count) shown.completions = completions;
    group_to_json(&shown, out);
    free(completions);
    buf_puts(out, ", \"prompt_tokens\": ");
    view_print(out, group->prompt_tokens.data ? (double)group->prompt_tokens.count : NAN);
    buf_puts(out, ", \"lengths\": [");
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct int_array *tokens = &group->completions[i].tokens;
        if (i) buf_puts(out, ", ");
        view_print(out, tokens->data ? (double)tokens->count : NAN);
    }
    buf_puts(out, "]");
    view_group_print_cuts(call, group, out);
    view_group_print_media(call->view, call->source, group, out);
    view_group_print_choices(group, out);
    TRY_TO(result, done, view_group_print_same(groups, index, out));
    // How long the group waited before each stage, and how long that had it. The times are in the order of the flow;
    // the clocks of two machines may differ.
    buf_puts(out, ", \"waits\": {");
    for (size_t i = 0; i < group->times.count; i++) {
        const struct stage_time *time = &group->times.data[i];
        const double waited = i ? time->in - time[-1].out : 0;
        if (i) buf_puts(out, ", ");
        view_print_string(out, time->stage);
        buf_puts(out, ": [");
        view_print(out, waited < 0 ? 0 : round(waited * 1e6) / 1e6);
        buf_puts(out, ", ");
        view_print(out, round((time->out - time->in) * 1e6) / 1e6);
        buf_puts(out, "]");
    }
    buf_puts(out, "}}");
done:
    group_free(&group);
    return result;
}

status view_group_frame(struct view_call *call) {
    struct frames_view view = {0};
    char key[FRAME_KEY_SIZE];
    bool found;
    const char *slash = strchr(call->rest, '/'), *digits = slash ? slash + 1 : call->rest;
    const size_t size = strspn(digits, "0123456789");
    if (!slash || !view_frames_is_key((struct string){call->rest, (size_t)(slash - call->rest)}) || !size || size > 6 ||
        (size > 1 && *digits == '0') || strcmp(digits + size, ".png") != 0)
        return fail(END, "not KEY/N.png: '%.60s'", call->rest);
    snprintf(key, sizeof key, "%s", call->rest);
    const int number = atoi(digits);
    TRY(view_frames_find(call->view, key, &view, &found));
    if (!found) return fail(END, "the frames of %s are not here", key);
    struct frames frame = view.frames;
    status result = number < frame.count ? OK : fail(END, "%s has %d frames", key, frame.count);
    if (result == OK) {
        frame.pixels += frames_bytes(&view.frames) / (size_t)frame.count * (size_t)number;
        frame.count = 1;
        frame.timestamps = NULL;
        call->type = "image/png";
        call->immutable = true;
        result = contact_sheet_encode(&frame, &call->out);
    }
    frames_view_release(&view);
    return result;
}
