// Two sources beside each other, on the samples that both have. Of a sample that a source has several times, the last
// group counts.
//
// A comparison of a million samples takes a second, so a request makes it in parts (struct view_call): `step` and `at`
// say how far it is. The view keeps the last one, for the cells and the pages of its rows.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/eval/figures.h"
#include "tools/view/view.h"

// A sample that both sources have.
struct view_pair {
    size_t index[2];      // of its group in each source
    double change;        // of the share of right completions; NaN: one of them has no accuracy
    struct string sample; // absent where there are too many to sort by
};

// The last group of each sample of a source: a hash table with open addresses.
struct view_samples {
    struct view_sample {
        uint64_t sample;
        int32_t index; // -1: free
        bool repeated;
    } * slots; // mask + 1, of which `count` are not free; NULL: none yet
    size_t mask, count;
};

// What is done for a comparison, in this order.
enum view_comparing {
    COMPARE_FIRST,
    COMPARE_SECOND,
    COMPARE_PAIRS,
    COMPARE_NAMES,
    COMPARE_SORT,
    COMPARE_PRINT,
    COMPARE_SCORES,
    COMPARE_MATRIX,
    COMPARE_DONE
};

// It holds while the sources have the same groups.
struct view_comparison {
    struct view_source *sources[2];
    size_t counts[2];
    int64_t totals[2];
    enum view_comparing step;
    size_t at;                      // the group, the pair or the score with which it goes on
    struct view_samples samples[2]; // while the pairs are sought
    double *values[3];              // while the scores are made: those of both sides, and the differences
    struct arena arena;
    struct view_pair *pairs; // in the order of the rows
    size_t count;
    int sizes[2];    // the largest numbers of completions
    bool repeated;   // some sample is there several times
    bool scored[2];  // an evaluation: its quarantined groups count as wrong, as in caravan eval
    struct buf head; // the answer up to the rows
};

// Frees it; NULL is fine.
static void view_comparison_free(void *work) {
    struct view_comparison *comparison = work;
    if (!comparison) return;
    for (int side = 0; side < 2; side++) free(comparison->samples[side].slots);
    for (int i = 0; i < 3; i++) free(comparison->values[i]);
    free(comparison->pairs);
    buf_release(&comparison->head);
    arena_release(&comparison->arena);
    free(comparison);
}

void view_compare_close(struct view *view) {
    view_comparison_free(view->comparison);
    view->comparison = NULL;
}

// Returns the summary of one side of a pair.
static const struct group_summary *view_comparison_at(const struct view_comparison *comparison,
                                                      const struct view_pair *pair, int side) {
    return &comparison->sources[side]->groups.list[pair->index[side]].summary;
}

// ---- scores ----

enum view_score {
    SCORE_ACCURACY,
    SCORE_ALL_RIGHT,
    SCORE_FORMAT,
    SCORE_BONUS,
    SCORE_REWARD, // the first one that is no share
    SCORE_LIKELIHOOD,
    SCORE_SURPRISE,
    SCORE_TOKENS,
    VIEW_SCORES,
};

static const char *const view_score_names[VIEW_SCORES] = {"accuracy", "all right",  "format",   "bonus",
                                                          "reward",   "likelihood", "surprise", "tokens"};

// Returns a score of a group, NaN if it has none.
static double view_score_of(const struct group_summary *summary, enum view_score score) {
    const bool wrong = summary->state == GROUP_QUARANTINED && score <= SCORE_FORMAT; // only those that count are asked
    const double completions = summary->completions;
    if (wrong) return 0;
    switch (score) {
    case SCORE_ACCURACY:
        return (double)summary->accuracy;
    case SCORE_ALL_RIGHT:
        return isnan(summary->accuracy) ? NAN : summary->right == summary->completions;
    case SCORE_FORMAT:
        return (double)summary->format;
    case SCORE_BONUS:
        return isnan(summary->bonus) ? NAN : summary->with_bonus / completions;
    case SCORE_REWARD:
        return (double)summary->reward;
    case SCORE_LIKELIHOOD:
        return (double)summary->likelihood;
    case SCORE_SURPRISE:
        return (double)summary->surprise;
    default:
        return (double)summary->length;
    }
}

// Appends [mean, low, high], null without values. wilson: the values are shares of one completion each.
static void view_score_print(struct buf *out, const double *values, size_t count, bool wilson) {
    long double sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += values[i];
        wilson = wilson && (values[i] == 0 || values[i] == 1);
    }
    if (!count) {
        buf_puts(out, "null");
        return;
    }
    const double mean = figure_ratio(sum, count), half = figure_half(values, count, 1.96);
    const double bounds[] = {mean, wilson ? figure_wilson(mean, count, -1) : mean - half,
                             wilson ? figure_wilson(mean, count, 1) : mean + half};
    buf_puts(out, "[");
    for (int i = 0; i < 3; i++) {
        if (i) buf_puts(out, ", ");
        view_print(out, i && count < 2 ? NAN : bounds[i]);
    }
    buf_puts(out, "]");
}

// Appends one score of both sides and the difference sample by sample, unless no sample has it.
static void view_score_add(struct view_comparison *comparison, enum view_score score) {
    struct buf *out = &comparison->head;
    double **values = comparison->values;
    size_t counts[3] = {0};
    bool single[2] = {score < SCORE_REWARD, score < SCORE_REWARD};
    for (size_t i = 0; i < comparison->count; i++) {
        double both[2];
        for (int side = 0; side < 2; side++) {
            const struct group_summary *summary = view_comparison_at(comparison, &comparison->pairs[i], side);
            both[side] = view_score_of(summary, score);
            if (isnan(both[side])) continue;
            values[side][counts[side]++] = both[side];
            single[side] = single[side] && summary->completions <= 1;
        }
        if (!isnan(both[0]) && !isnan(both[1])) values[2][counts[2]++] = both[1] - both[0];
    }
    if (!counts[0] && !counts[1]) return;
    const bool first = out->data[out->size - 1] == '[';
    buf_printf(out, "%s{\"name\": \"%s\", \"a\": ", first ? "" : ", ", view_score_names[score]);
    view_score_print(out, values[0], counts[0], single[0]);
    buf_puts(out, ", \"b\": ");
    view_score_print(out, values[1], counts[1], single[1]);
    buf_puts(out, ", \"difference\": ");
    view_score_print(out, values[2], counts[2], false);
    buf_puts(out, "}");
}

// ---- pairs ----

// Returns the slot of a sample, which is free if there is none yet.
static struct view_sample *view_samples_find(const struct view_samples *samples, uint64_t sample) {
    for (size_t at = sample & samples->mask;; at = (at + 1) & samples->mask) {
        struct view_sample *slot = &samples->slots[at];
        if (slot->index < 0 || slot->sample == sample) return slot;
    }
}

// Whether a group can be compared.
static bool view_samples_take(const struct numbered_summary *group, bool scored) {
    return group->number >= 0 && (group->summary.state == GROUP_QUARANTINED ? scored : group->summary.completions > 0);
}

// Adds the group at an index to the samples of one side.
static status view_samples_add(struct view_comparison *comparison, int side, size_t index) {
    enum { LEAST = 1024 };
    const struct numbered_summary *group = &comparison->sources[side]->groups.list[index];
    struct view_samples *samples = &comparison->samples[side];
    if (index > INT32_MAX) return fail(UNAVAILABLE, "these are too many groups to compare");
    if (!view_samples_take(group, comparison->scored[side])) return OK;
    if (!samples->slots || samples->count > samples->mask / 2) { // half of them stay free
        struct view_samples more = {.mask = samples->slots ? 2 * samples->mask + 1 : LEAST - 1,
                                    .count = samples->count};
        TRY(NEW_LARGE(&more.slots, more.mask + 1));
        for (size_t i = 0; i <= more.mask; i++) more.slots[i].index = -1;
        for (size_t i = 0; samples->slots && i <= samples->mask; i++)
            if (samples->slots[i].index >= 0) *view_samples_find(&more, samples->slots[i].sample) = samples->slots[i];
        free(samples->slots);
        *samples = more;
    }
    struct view_sample *slot = view_samples_find(samples, group->summary.sample);
    samples->count += slot->index < 0;
    *slot = (struct view_sample){group->summary.sample, (int32_t)index, slot->index >= 0};
    if (group->summary.completions > comparison->sizes[side]) comparison->sizes[side] = group->summary.completions;
    return OK;
}

// Adds the pair of the first side's group at an index, if it is the last one of its sample and both have that.
static void view_pairs_add(struct view_comparison *comparison, size_t index) {
    const struct numbered_summary *group = &comparison->sources[0]->groups.list[index];
    if (!view_samples_take(group, comparison->scored[0]) || !comparison->samples[1].slots) return;
    const struct view_sample *own = view_samples_find(&comparison->samples[0], group->summary.sample),
                             *other = view_samples_find(&comparison->samples[1], group->summary.sample);
    if (own->index != (int32_t)index || other->index < 0) return;
    comparison->repeated |= own->repeated || other->repeated;
    GROW(&comparison->pairs, comparison->count);
    struct view_pair *pair = &comparison->pairs[comparison->count++];
    *pair = (struct view_pair){.index = {index, (size_t)other->index}};
    double share[2];
    for (int side = 0; side < 2; side++) {
        const struct group_summary *summary = view_comparison_at(comparison, pair, side);
        share[side] = isnan(view_score_of(summary, SCORE_ACCURACY)) ? NAN
                      : summary->completions                        ? summary->right / (double)summary->completions
                                                                    : 0;
    }
    pair->change = share[1] - share[0];
}

// Reads the name of the pair at an index.
static status view_pairs_name(struct view_comparison *comparison, size_t index) {
    struct view_pair *pair = &comparison->pairs[index];
    // Of the side of which the rows are read faster.
    const int side = comparison->sources[0]->groups.file && !comparison->sources[1]->groups.file;
    struct group_row row;
    struct buf bytes = {0};
    bool found;
    const status result = view_groups_row(&comparison->sources[side]->groups, pair->index[side], &row, &bytes, &found);
    if (result == OK && found && row.sample_id.data)
        arena_string(&comparison->arena, &pair->sample, row.sample_id.data, row.sample_id.size);
    buf_release(&bytes);
    return result;
}

static int view_pair_compare(const void *a, const void *b) {
    const struct view_pair *one = a, *two = b;
    const double first = isnan(one->change) ? -1 : fabs(one->change),
                 second = isnan(two->change) ? -1 : fabs(two->change);
    if (first != second) return first > second ? -1 : 1;
    const int order = one->sample.data && two->sample.data ? figure_compare_names(one->sample, two->sample)
                                                           : (one->sample.data != NULL) - (two->sample.data != NULL);
    return order ? order : (one->index[0] > two->index[0]) - (one->index[0] < two->index[0]);
}

// Sorts very many pairs by their change alone, in two passes; equal ones stay in their order.
static status view_pairs_sort(struct view_comparison *comparison) {
    enum { STEPS = 1 << 14 }; // of the change, finer than what two numbers of completions up to 128 can differ by
    size_t places[STEPS + 3] = {0};
    struct view_pair *sorted;
    TRY(NEW_LARGE(&sorted, comparison->count));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < comparison->count; i++) {
            const double change = comparison->pairs[i].change;
            const size_t step = isnan(change) ? STEPS + 1 : (size_t)((1 - fmin(fabs(change), 1)) * STEPS + 0.5);
            if (pass)
                sorted[places[step]++] = comparison->pairs[i];
            else
                places[step + 1]++;
        }
        for (size_t i = 1; !pass && i < STEPS + 3; i++) places[i] += places[i - 1];
    }
    free(comparison->pairs);
    comparison->pairs = sorted;
    return OK;
}

// ---- view_comparison ----

// The pairs that `cell` names: I,J of the matrix, or the word for a change.
struct view_cell {
    int rights[2]; // -1: any
    int sign;      // of the change
    bool any;      // no cell was named
};

static status view_comparison_read_cell(const char *text, struct view_cell *cell) {
    int end = 0;
    *cell = (struct view_cell){.rights = {-1, -1}, .any = !text};
    if (!text) return OK;
    if (!strcmp(text, "better") || !strcmp(text, "worse") || !strcmp(text, "alike")) {
        cell->sign = *text == 'b' ? 1 : *text == 'w' ? -1 : 0;
        return OK;
    }
    if (sscanf(text, "%5d,%5d%n", &cell->rights[0], &cell->rights[1], &end) == 2 && !text[end] &&
        cell->rights[0] >= 0 && cell->rights[1] >= 0)
        return OK;
    return fail(USAGE, "cell: not I,J, better, worse or alike");
}

// Appends how many samples have how many right completions here and there; null where that has too many cells to show.
static void view_comparison_print_matrix(struct view_comparison *comparison) {
    enum { MOST_CELLS = 10000 };
    struct buf *out = &comparison->head;
    const size_t rows = (size_t)comparison->sizes[0] + 1, columns = (size_t)comparison->sizes[1] + 1;
    size_t *cells;
    if (rows * columns > MOST_CELLS) {
        buf_puts(out, "null");
        return;
    }
    NEW(&cells, rows * columns);
    for (size_t i = 0; i < comparison->count; i++) {
        const size_t right[2] = {view_comparison_at(comparison, &comparison->pairs[i], 0)->right,
                                 view_comparison_at(comparison, &comparison->pairs[i], 1)->right};
        if (isnan(comparison->pairs[i].change) || right[0] >= rows || right[1] >= columns) continue;
        cells[right[0] * columns + right[1]]++;
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t k = 0; k < columns; k++)
            buf_printf(out, "%s%zu%s", k ? ", " : i ? ", [" : "[[", cells[i * columns + k], k + 1 < columns ? "" : "]");
    buf_puts(out, "]");
    free(cells);
}

// Appends what the answer begins with, up to the scores.
static void view_comparison_print(struct view_comparison *comparison) {
    static const char *const kinds[] = {[VIEW_RUN] = "run", [VIEW_STORE] = "store", [VIEW_FILE] = "file"};
    struct buf *out = &comparison->head;
    size_t changes[3] = {0}; // worse, alike, better
    for (int side = 0; side < 2; side++) {
        const struct view_source *source = comparison->sources[side];
        buf_puts(out, side ? ", \"b\": {\"name\": " : "{\"a\": {\"name\": ");
        view_print_text(out, source->name);
        buf_printf(out, ", \"kind\": \"%s\", \"size\": %d, \"groups\": %lld}", kinds[source->kind],
                   comparison->sizes[side], (long long)comparison->totals[side]);
    }
    for (size_t i = 0; i < comparison->count; i++) {
        const double change = comparison->pairs[i].change;
        if (!isnan(change)) changes[1 + (change > 0) - (change < 0)]++;
    }
    buf_printf(out,
               ", \"samples\": %zu, \"repeated\": %s, \"better\": %zu, \"worse\": %zu, \"alike\": %zu, \"scores\": [",
               comparison->count, comparison->repeated ? "true" : "false", changes[2], changes[0], changes[1]);
}

// Does the next part of a comparison. Sorted by names only if the samples are few: the names are in the rows.
static status view_comparison_go_on(struct view_comparison *comparison) {
    enum { AT_ONCE = 4096, ROWS = 64, MOST_NAMES = 10000 };
    const bool few = comparison->count <= MOST_NAMES;
    const int side = comparison->step == COMPARE_SECOND;
    size_t end = comparison->at + (comparison->step == COMPARE_NAMES ? ROWS : AT_ONCE), of = 0; // of how many
    switch (comparison->step) {
    case COMPARE_FIRST:
    case COMPARE_SECOND:
        of = comparison->counts[side];
        for (; comparison->at < of && comparison->at < end; comparison->at++)
            TRY(view_samples_add(comparison, side, comparison->at));
        break;
    case COMPARE_PAIRS:
        of = comparison->counts[0];
        for (; comparison->at < of && comparison->at < end; comparison->at++)
            view_pairs_add(comparison, comparison->at);
        break;
    case COMPARE_NAMES:
        of = few ? comparison->count : 0;
        for (; comparison->at < of && comparison->at < end; comparison->at++)
            TRY(view_pairs_name(comparison, comparison->at));
        break;
    case COMPARE_SORT:
        if (!few) TRY(view_pairs_sort(comparison));
        if (few && comparison->count)
            qsort(comparison->pairs, comparison->count, sizeof *comparison->pairs, view_pair_compare);
        break;
    case COMPARE_PRINT:
        view_comparison_print(comparison);
        for (int i = 0; i < 3; i++) TRY(NEW_LARGE(&comparison->values[i], comparison->count));
        break;
    case COMPARE_SCORES:
        of = VIEW_SCORES;
        view_score_add(comparison, (enum view_score)comparison->at++);
        break;
    case COMPARE_MATRIX:
        buf_puts(&comparison->head, "], \"matrix\": ");
        view_comparison_print_matrix(comparison);
        break;
    case COMPARE_DONE:
        break;
    }
    if (comparison->at < of) return OK;
    comparison->step++;
    comparison->at = 0;
    return OK;
}

// *out = the comparison of two sources: that which was made last, if it still holds; else the call makes one, and is
// unfinished until then.
static status view_comparison_find(struct view_call *call, struct view_source *const sources[2],
                                   struct view_comparison **out) {
    struct view *view = call->view;
    struct view_comparison *comparison = call->work;
    *out = view->comparison;
    bool holds = *out && !comparison;
    for (int side = 0; side < 2 && holds; side++)
        holds = (*out)->sources[side] == sources[side] && (*out)->counts[side] == sources[side]->groups.count &&
                (*out)->totals[side] == sources[side]->groups.total;
    if (holds) return OK;
    if (!comparison) {
        NEW(&comparison, 1);
        call->work = comparison;
        call->free_work = view_comparison_free;
        for (int side = 0; side < 2; side++) {
            comparison->sources[side] = sources[side];
            comparison->counts[side] = sources[side]->groups.count;
            comparison->totals[side] = sources[side]->groups.total;
            for (size_t b = 0; b < view_block_count(&sources[side]->groups); b++)
                comparison->scored[side] |= view_block_at(&sources[side]->groups, b)->has & HAS_SCORES;
        }
    }
    do TRY(view_comparison_go_on(comparison));
    while (comparison->step < COMPARE_DONE && view_may_go_on(call));
    if (call->unfinished) return OK;
    for (int side = 0; side < 2; side++) free(comparison->samples[side].slots);
    for (int i = 0; i < 3; i++) free(comparison->values[i]);
    memset(comparison->samples, 0, sizeof comparison->samples);
    memset(comparison->values, 0, sizeof comparison->values);
    call->work = NULL;
    view_comparison_free(view->comparison);
    *out = view->comparison = comparison;
    return OK;
}

// ---- rows ----

enum {
    COLUMN_SAMPLE,
    COLUMN_QUESTION,
    COLUMN_KEY,
    COLUMN_FRAMES,
    COLUMN_A,
    COLUMN_B,
    COLUMN_MARKS_A,
    COLUMN_MARKS_B,
    COLUMN_RIGHT_A,
    COLUMN_RIGHT_B,
    COLUMN_CHANGE,
    COLUMN_LIKELIHOOD_A,
    COLUMN_LIKELIHOOD_B,
    VIEW_COLUMNS
};

static const char *const view_columns[VIEW_COLUMNS] = {"sample", "question",     "key",         "frames",  "a",
                                                       "b",      "marks_a",      "marks_b",     "right_a", "right_b",
                                                       "change", "likelihood_a", "likelihood_b"};

// Appends a pair to the columns.
static status view_compare_add_row(const struct view_comparison *comparison, const struct view_pair *pair,
                                   struct buf columns[VIEW_COLUMNS]) {
    struct group_row row[2];
    struct buf bytes[2] = {{0}};
    struct group *group = NULL;
    status result;
    for (int side = 0; side < 2; side++) {
        struct view_groups *groups = &comparison->sources[side]->groups;
        bool found;
        TRY_TO(result, done, view_groups_row(groups, pair->index[side], &row[side], &bytes[side], &found));
        if (!found) row[side] = (struct group_row){0};
        if (!group) TRY_TO(result, done, view_groups_get(groups, pair->index[side], &group));
        if (group && !group->media_count) group_free(&group);
    }
    for (int i = 0; i < VIEW_COLUMNS && columns[0].size; i++) buf_puts(&columns[i], ", ");
    view_print_string(&columns[COLUMN_SAMPLE], row[0].sample_id.data ? row[0].sample_id : row[1].sample_id);
    view_print_string(&columns[COLUMN_QUESTION], row[0].question.data ? row[0].question : row[1].question);
    view_print_string(&columns[COLUMN_KEY], group ? group->media[0].key : (struct string){0});
    view_print(&columns[COLUMN_FRAMES], group ? (double)group->media[0].frames : NAN);
    view_print(&columns[COLUMN_CHANGE], pair->change);
    for (int side = 0; side < 2; side++) {
        const struct group_summary *summary = view_comparison_at(comparison, pair, side);
        view_print_string(&columns[COLUMN_A + side], row[side].id);
        view_print_marks(&columns[COLUMN_MARKS_A + side], summary);
        view_print(&columns[COLUMN_RIGHT_A + side],
                   isnan(view_score_of(summary, SCORE_ACCURACY)) ? NAN : (double)summary->right);
        view_print_float(&columns[COLUMN_LIKELIHOOD_A + side], summary->likelihood);
    }
done:
    group_free(&group);
    for (int side = 0; side < 2; side++) buf_release(&bytes[side]);
    return result;
}

status view_compare_show(struct view_call *call) {
    enum { MOST_ROWS = 200 };
    static const char *const arguments[] = {"a", "b"};
    struct view *view = call->view;
    struct view_source *sources[2] = {NULL};
    struct view_comparison *comparison;
    struct view_cell cell;
    struct buf columns[VIEW_COLUMNS] = {{0}}, *out = &call->out;
    int64_t limit, after, matched = 0;
    status result = OK;
    for (int side = 0; side < 2; side++) {
        const char *name = view_argument(call, arguments[side]);
        if (!name) return fail(USAGE, "a and b are needed");
        for (size_t i = 0; i < view->source_count && !sources[side]; i++)
            if (!strcmp(view->sources[i].name, name)) sources[side] = &view->sources[i];
        if (!sources[side]) return fail(END, "there is nothing with the name '%.60s'", name);
        TRY(view_groups_refresh(&sources[side]->groups));
    }
    TRY(view_int_argument(call, "limit", 0, MOST_ROWS, call->whole ? VIEW_WHOLE_ROWS : MOST_ROWS, &limit));
    TRY(view_int_argument(call, "after", 0, INT64_C(1) << 53, 0, &after));
    TRY(view_comparison_read_cell(view_argument(call, "cell"), &cell));
    TRY(view_comparison_find(call, sources, &comparison));
    if (call->unfinished) return OK;
    for (size_t i = 0; i < comparison->count; i++) {
        const struct view_pair *pair = &comparison->pairs[i];
        const int right[2] = {view_comparison_at(comparison, pair, 0)->right,
                              view_comparison_at(comparison, pair, 1)->right};
        const bool named = cell.rights[0] < 0 ? (pair->change > 0) - (pair->change < 0) == cell.sign
                                              : right[0] == cell.rights[0] && right[1] == cell.rights[1];
        if (!cell.any && (isnan(pair->change) || !named)) continue;
        if (matched >= after && matched - after < limit)
            TRY_TO(result, done, view_compare_add_row(comparison, pair, columns));
        matched++;
    }
    buf_append(out, comparison->head.data, comparison->head.size);
    buf_printf(out, ", \"matched\": %lld, \"cursor\": ", (long long)matched);
    const long long next = after + limit;
    buf_printf(out, limit && next < matched ? "\"%lld\"" : "null", next);
    buf_puts(out, ", \"rows\": {");
    for (int i = 0; i < VIEW_COLUMNS; i++) {
        buf_printf(out, "%s\"%s\": [", i ? ", " : "", view_columns[i]);
        if (columns[i].size) buf_append(out, columns[i].data, columns[i].size);
        buf_puts(out, "]");
    }
    buf_puts(out, "}}");
done:
    for (int i = 0; i < VIEW_COLUMNS; i++) buf_release(&columns[i]);
    return result;
}
