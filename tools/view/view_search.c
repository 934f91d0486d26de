// Conditions over the groups of a source, and what is found with them.
#include "tools/view/view_search.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/base/json.h"

#define VIEW_AT(member) offsetof(struct group_summary, member)

const struct view_figure view_figures[VIEW_FIGURES] = {
    [FIGURE_NUMBER] = {"number", "number", FIGURE_OTHER, 0},
    [FIGURE_STEP] = {"step", "step", FIGURE_OTHER, 0},
    [FIGURE_BONUS] = {"bonus", NULL, FIGURE_OTHER, 0},         // the share of the completions with one
    [FIGURE_IN_FLIGHT] = {"in_flight", NULL, FIGURE_OTHER, 0}, // seconds
    [FIGURE_FIRST_STORED] = {"count", "count", FIGURE_COUNT, VIEW_AT(completions)},
    {"right", "right", FIGURE_SCORED, VIEW_AT(right)},
    {"reward", "reward", FIGURE_FLOAT, VIEW_AT(reward)},
    {"std", "std", FIGURE_FLOAT, VIEW_AT(reward_std)},
    {"accuracy", NULL, FIGURE_FLOAT, VIEW_AT(accuracy)},
    {"format", NULL, FIGURE_FLOAT, VIEW_AT(format)},
    {"length", "length", FIGURE_FLOAT, VIEW_AT(length)},
    {"longest", NULL, FIGURE_COUNT32, VIEW_AT(longest)},
    {"surprise", "surprise", FIGURE_FLOAT, VIEW_AT(surprise)},
    {"lowest", "lowest", FIGURE_FLOAT, VIEW_AT(lowest)},
    {"likelihood", "likelihood", FIGURE_FLOAT, VIEW_AT(likelihood)},
    {"kl", NULL, FIGURE_FLOAT, VIEW_AT(kl)},
    {"consistency", NULL, FIGURE_FLOAT, VIEW_AT(consistency)},
    {"named", "named", FIGURE_SCORED, VIEW_AT(uncounted)},
    {"truncated", "truncated", FIGURE_COUNT, VIEW_AT(truncated)},
};

double view_figure_of(const struct view_source *source, size_t index, int figure) {
    const struct numbered_summary *at = &source->groups.list[index];
    const struct group_summary *summary = &at->summary;
    const char *member = (const char *)summary + view_figures[figure].offset;
    switch (view_figures[figure].type) {
    case FIGURE_FLOAT:
        return (double)*(const float *)(const void *)member;
    case FIGURE_COUNT:
    case FIGURE_SCORED:
        if (view_figures[figure].type == FIGURE_SCORED && isnan(summary->accuracy)) return NAN;
        return *(const uint16_t *)(const void *)member;
    case FIGURE_COUNT32:
        return *(const uint32_t *)(const void *)member;
    default:
        break;
    }
    switch (figure) {
    case FIGURE_NUMBER:
        return (double)at->number;
    case FIGURE_STEP:
        return source->groups.trains && summary->step >= 0 ? (double)summary->step : NAN;
    case FIGURE_BONUS:
        return isnan(summary->bonus) || !summary->completions ? NAN
                                                              : (double)summary->with_bonus / summary->completions;
    default:
        return summary->settled - summary->issued;
    }
}

// ---- search ----

enum { SIGNS = 6 };
static const char *const view_signs[SIGNS] = {"=", "!=", "<=", ">=", "<", ">"};

enum { SEARCHES = 32 }; // an overview counts eight, and again each time that it is looked at

static void view_search_release(struct view_search *search) {
    free(search->where);
    free(search->text);
    free(search->verdicts);
    arena_release(&search->arena);
    *search = (struct view_search){0};
}

void view_searches_free(struct view_search **searches) {
    for (int i = 0; i < SEARCHES && *searches; i++) view_search_release(&(*searches)[i]);
    free(*searches);
    *searches = NULL;
}

void view_searches_forget(struct view_search *searches, size_t index) {
    for (int i = 0; i < SEARCHES && searches; i++) {
        struct view_search *search = &searches[i];
        if (index < search->low || index >= search->high) continue;
        search->scanned--;
        search->matched -= search->verdicts[index];
        search->verdicts[index] = 0;
    }
}

// What is read of a `where`.
struct view_reader {
    struct view_search *search;
    const char *text, *at; // all of it, and what is left
    int depth;             // of parentheses
};

// Whether a word comes next.
static bool view_reader_sees(const char *at, const char *word) {
    return !strncmp(at, word, strlen(word));
}

static status view_reader_either(struct view_reader *in, struct view_part **out);

// Reads a condition, which ends before " and ", " or " and ")", or what is in parentheses.
static status view_reader_one(struct view_reader *in, struct view_part **out) {
    enum { MOST_DEPTH = 50 };
    struct view_part *part = *out = arena_alloc(&in->search->arena, sizeof *part);
    in->at += strspn(in->at, " ");
    if (*in->at == '(') {
        if (++in->depth > MOST_DEPTH) return fail(USAGE, "too many parentheses");
        in->at++;
        TRY(view_reader_either(in, out));
        in->at += strspn(in->at, " ");
        if (*in->at != ')') return fail(USAGE, "expected )");
        in->at++;
        in->depth--;
        return OK;
    }
    const char *end = in->at;
    while (*end && *end != ')' && !view_reader_sees(end, " and ") && !view_reader_sees(end, " or ")) end++;
    const char *text = arena_strndup(&in->search->arena, in->at, (size_t)(end - in->at));
    if (!view_reader_sees(text, "group.")) {
        part->kind = PART_FIELD;
        TRY(condition_parse(&part->field, text));
        in->search->fields++;
        in->at = end;
        return OK;
    }
    // group.NAME OP NUMBER
    const char *name = text + strlen("group."), *sign = name + strcspn(name, " =!<>");
    const int size = (int)(sign - name);
    *part = (struct view_part){.kind = PART_FIGURE, .figure = -1};
    for (int i = 0; i < VIEW_FIGURES && part->figure < 0; i++) {
        const char *where = view_figures[i].where;
        if (where && (int)strlen(where) == size && !memcmp(where, name, (size_t)size)) part->figure = i;
    }
    if (part->figure < 0) return fail(USAGE, "no figure of a group has the name '%.*s'", size < 40 ? size : 40, name);
    sign += strspn(sign, " ");
    while (part->sign < SIGNS && !view_reader_sees(sign, view_signs[part->sign])) part->sign++;
    if (part->sign == SIGNS) return fail(USAGE, "expected =, !=, <, <=, > or >= behind group.%.*s", size, name);
    sign += strlen(view_signs[part->sign]);
    struct json_reader reader = {.text = sign, .size = strlen(sign)};
    struct json_number number;
    if (json_reader_number(&reader, &number) != OK || json_reader_end(&reader) != OK ||
        !json_number_double(&number, &part->number))
        return fail(USAGE, "group.%.*s is compared with a number, not with '%.40s'", size, name,
                    sign + strspn(sign, " "));
    in->at = end;
    return OK;
}

// Reads parts with " and " between them.
static status view_reader_both(struct view_reader *in, struct view_part **out) {
    TRY(view_reader_one(in, out));
    while (view_reader_sees(in->at, " and ")) {
        struct view_part *both = arena_alloc(&in->search->arena, sizeof *both);
        in->at += strlen(" and ");
        *both = (struct view_part){.kind = PART_AND, .left = *out};
        *out = both;
        TRY(view_reader_one(in, &both->right));
    }
    return OK;
}

// Reads parts with " or " between them.
static status view_reader_either(struct view_reader *in, struct view_part **out) {
    TRY(view_reader_both(in, out));
    while (view_reader_sees(in->at, " or ")) {
        struct view_part *either = arena_alloc(&in->search->arena, sizeof *either);
        in->at += strlen(" or ");
        *either = (struct view_part){.kind = PART_OR, .left = *out};
        *out = either;
        TRY(view_reader_both(in, &either->right));
    }
    return OK;
}

// Whether a part holds for a completion of the group at an index; `group` may be NULL if no part is about a field.
static bool view_part_holds(struct view_part *part, const struct view_source *source, size_t index,
                            const struct group *group, size_t completion) {
    if (part->kind == PART_FIELD) return condition_holds(&part->field, group, completion);
    if (part->kind != PART_FIGURE) { // both are tried, because a field that is not looked at would be called missing
        const bool left = view_part_holds(part->left, source, index, group, completion),
                   right = view_part_holds(part->right, source, index, group, completion);
        return part->kind == PART_AND ? left && right : left || right;
    }
    const double value = view_figure_of(source, index, part->figure), number = part->number;
    if (isnan(value)) return false;
    switch (part->sign) {
    case 0:
        return value == number;
    case 1:
        return value != number;
    case 2:
        return value <= number;
    case 3:
        return value >= number;
    case 4:
        return value < number;
    default:
        return value > number;
    }
}

// Whether `part` is in the string; ASCII letters match in both cases.
static bool view_search_contains(struct string string, const char *part) {
    const size_t size = strlen(part);
    for (size_t at = 0; string.data && at + size <= string.size; at++)
        if (!strncasecmp(string.data + at, part, size)) return true;
    return false;
}

// Tries groups for a while: new ones, then older ones. `found` gets the indexes of those that were found now.
static status view_search_go_on(struct view_search *search, struct view_source *source, struct buf *found) {
    static const double slice = 0.04; // seconds, in which no other request is answered
    const double until = clock_monotonic() + slice;
    const size_t count = source->groups.count;
    if (search->low == search->high) search->low = search->high = count;
    if (count > search->capacity) {
        RESIZE(&search->verdicts, count);
        search->capacity = count;
    }
    for (size_t tries = 1; search->high < count || search->low > 0; tries++) {
        const size_t index = search->high < count ? search->high++ : --search->low;
        struct group *group = NULL;
        bool holds = source->groups.list[index].number >= 0;
        search->verdicts[index] = 0;
        search->scanned += holds;
        if (holds && search->root && !search->fields) holds = view_part_holds(search->root, source, index, NULL, 0);
        if (holds && (search->fields || *search->text)) {
            TRY(view_groups_get(&source->groups, index, &group));
            holds = group != NULL;
        }
        if (group && search->fields) {
            assert(search->root);
            holds = false;
            for (size_t i = 0; i < (group->completion_count ? group->completion_count : 1) && !holds; i++)
                holds = view_part_holds(search->root, source, index, group, i);
        }
        if (group && holds && *search->text) {
            holds = view_search_contains(group->id, search->text) ||
                    view_search_contains(group->sample_id, search->text) ||
                    view_search_contains(group->prompt.question, search->text);
            for (size_t m = 0; m < group->prompt.message_count && !holds; m++)
                for (size_t p = 0; p < group->prompt.messages[m].part_count && !holds; p++)
                    holds = view_search_contains(group->prompt.messages[m].parts[p].text, search->text);
            for (size_t i = 0; i < group->completion_count && !holds; i++)
                holds = view_search_contains(group->completions[i].text, search->text);
        }
        group_free(&group);
        search->verdicts[index] = holds;
        search->matched += holds;
        if (holds) buf_append(found, &index, sizeof index);
        if ((search->fields || *search->text || tries % 1024 == 0) && clock_monotonic() > until) break;
    }
    return OK;
}

status view_search_of(struct view_call *call, struct view_search **out, struct buf *found) {
    struct view_groups *groups = &call->source->groups;
    const char *where = view_argument(call, "where"), *text = view_argument(call, "text");
    struct view_search *search = NULL;
    where = where ? where : "";
    text = text ? text : "";
    *out = NULL;
    if (!*(where + strspn(where, " ")) && !*text) return OK;
    if (!groups->search) NEW(&groups->search, SEARCHES);
    for (int i = 0; i < SEARCHES; i++) {
        struct view_search *at = &groups->search[i];
        if (at->where && !strcmp(at->where, where) && !strcmp(at->text, text)) {
            search = at;
            break;
        }
        if (!search || at->used < search->used) search = at; // that which was not used for longest
    }
    if (!search->where || strcmp(search->where, where) != 0 || strcmp(search->text, text) != 0) {
        view_search_release(search);
        struct view_reader in = {.search = search, .text = where, .at = where};
        const bool given = where[strspn(where, " ")];
        status result = given ? view_reader_either(&in, &search->root) : OK;
        in.at += strspn(in.at, " ");
        if (result == OK && given && *in.at) result = fail(USAGE, "expected and, or or the end, not '%.40s'", in.at);
        if (result != OK) {
            call->column = in.at - where;
            view_search_release(search);
            return result;
        }
        search->where = mem_strdup(where);
        search->text = mem_strdup(text);
    }
    call->column = -1;
    search->used = clock_monotonic();
    *out = search;
    return view_search_go_on(search, call->source, found);
}

bool view_search_counts(const struct view_source *source, const struct view_search *search, size_t index,
                        const int64_t steps[2]) {
    // A group that was found is there: view_searches_forget.
    if (search ? index < search->low || index >= search->high || !search->verdicts[index]
               : source->groups.list[index].number < 0)
        return false;
    if (steps[0] == INT64_MIN && steps[1] == INT64_MAX) return true;
    const int64_t step = view_groups_step(source, index);
    return step >= steps[0] && step <= steps[1];
}

void view_part_print_missing(const struct view_part *part, struct buf *out, size_t *listed) {
    struct buf path = {0};
    if (part->left) view_part_print_missing(part->left, out, listed);
    if (part->right) view_part_print_missing(part->right, out, listed);
    if (part->kind != PART_FIELD || part->field.seen) return;
    condition_path(&part->field, &path);
    if ((*listed)++) buf_puts(out, ", ");
    view_print_string(out, (struct string){path.data, path.size});
    buf_release(&path);
}
