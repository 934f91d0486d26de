#include "tools/eval/report_steps.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/json.h"
#include "shared/reward/verdict.h"

// What stands for the judge where the consistency model's probabilities decide.
static const char report_model[] = "probability";

void report_steps_release(struct report_series *series) {
    free(series->rows);
    arena_release(&series->memory);
}

// ---- counting ----

// Whether completion i is consistent: 1, 0, or NaN if nobody says.
static double report_consistent(const struct group *group, size_t i, double threshold) {
    const struct consistency *consistency = &group->consistency;
    if (consistency->verdict.data) return consistency->verdict.data[i];
    const double probability = consistency->probability.data[i];
    return isnan(probability) ? NAN : probability >= threshold;
}

status report_steps_add(void *context, const struct group *group) {
    struct report_series *series = context;
    const struct consistency *consistency = &group->consistency;
    const bool judged = consistency->verdict.data != NULL;
    const bool scored = group->scores.correct.data != NULL;
    const struct double_array *correct = scored ? &group->scores.correct : &group->rewards.accuracy;
    const bool trained = !group->quarantine.present && group->trained.present;
    if (!trained || (!judged && !consistency->probability.data)) {
        series->untrained += !trained;
        series->unjudged += trained;
        return OK;
    }
    if (group->trained.step < 0) return fail(DATAERR, "not a group: trained.step: negative");
    TRY(verdict_check(group));
    if (judged && !consistency->judge.data) return fail(DATAERR, "not a group: consistency.judge: missing");
    if (!judged) TRY(group_check_fractions(group, "consistency.probability", &consistency->probability, true));
    TRY(group_check_fractions(group, scored ? "scores.correct" : "rewards.accuracy", correct, false));
    if (series->count == series->capacity) {
        const size_t capacity = series->capacity ? 2 * series->capacity : 256;
        RESIZE(&series->rows, capacity);
        series->capacity = capacity;
    }
    struct report_row *row = &series->rows[series->count];
    const struct string name = judged ? consistency->judge : string_of(report_model);
    *row = (struct report_row){.first = group->trained.step, .last = group->trained.step};
    if (series->count && string_equals(name, row[-1].judge.name.data))
        row->judge.name = row[-1].judge.name;
    else
        arena_string(&series->memory, &row->judge.name, name.data, name.size);
    series->count++;
    for (size_t i = 0; i < group->completion_count; i++) {
        const double consistent = report_consistent(group, i, series->threshold);
        if (isnan(consistent))
            row->judge.not_judged++;
        else
            row->judge.judged[consistent >= 1][correct->data[i] >= 1]++;
    }
    return OK;
}

static int report_compare(const void *a, const void *b) {
    const struct report_row *one = a, *other = b;
    const int order = strcmp(one->judge.name.data, other->judge.name.data);
    return order ? order : (one->first > other->first) - (one->first < other->first);
}

void report_steps_bin(struct report_series *series, size_t count, int64_t bins) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < series[s].count; i++) {
            const int64_t step = series[s].rows[i].first;
            if (step < first) first = step;
            if (step > last) last = step;
        }
    if (first > last) return; // no rows
    const int64_t width = (last - first) / bins + 1;
    for (size_t s = 0; s < count; s++) {
        struct report_row *rows = series[s].rows;
        size_t kept = 0;
        if (series[s].count) qsort(rows, series[s].count, sizeof *rows, report_compare);
        for (size_t i = 0; i < series[s].count; i++) {
            struct report_row row = rows[i];
            row.first -= (row.first - first) % width;
            row.last = last - row.first < width ? last : row.first + width - 1;
            struct report_row *before = kept ? &rows[kept - 1] : NULL;
            if (!before || report_compare(before, &row)) {
                rows[kept++] = row;
                continue;
            }
            for (int k = 0; k < 4; k++) before->judge.judged[k / 2][k % 2] += row.judge.judged[k / 2][k % 2];
            before->judge.not_judged += row.judge.not_judged;
        }
        series[s].count = kept;
    }
}

// ---- printing ----

status report_steps_text(const struct report_series *series, size_t count, struct buf *out) {
    for (size_t s = 0; s < count; s++) {
        buf_printf(out, "%s%s\n", s ? "\n" : "", series[s].name);
        const char *judge = NULL;
        for (size_t i = 0; i < series[s].count; i++) {
            const struct report_row *row = &series[s].rows[i];
            double values[EVAL_JUDGE_COUNT];
            char steps[64], rate[32];
            eval_judge_figures(&row->judge, values);
            if (!judge || strcmp(judge, row->judge.name.data) != 0) {
                judge = row->judge.name.data;
                buf_puts(out, "consistency by ");
                eval_print_cell(out, row->judge.name, 0, false);
                buf_puts(out, "\n                                         -- consistent --   - inconsistent -\n"
                              "  steps            judged  inconsistent  correct    wrong   correct    wrong\n");
            }
            snprintf(steps, sizeof steps, row->first < row->last ? "%lld..%lld" : "%lld", (long long)row->first,
                     (long long)row->last);
            snprintf(rate, sizeof rate, isnan(values[EVAL_RATE]) ? "-" : "%.1f %%", 100 * (1 - values[EVAL_RATE]));
            buf_printf(out, "  %-14s %8.0f %13s %8.0f %8.0f  %8.0f %8.0f\n", steps, values[EVAL_JUDGED], rate,
                       values[EVAL_CONSISTENT_CORRECT], values[EVAL_CONSISTENT_WRONG],
                       values[EVAL_INCONSISTENT_CORRECT], values[EVAL_INCONSISTENT_WRONG]);
        }
    }
    return OK;
}

status report_steps_json(const struct report_series *series, size_t count, struct buf *out) {
    const char *const *keys = eval_keys(EVAL_CONSISTENCY);
    buf_puts(out, "{\"files\":[");
    for (size_t s = 0; s < count; s++) {
        buf_puts(out, s ? ",\n{\"name\":" : "{\"name\":");
        json_print_string(out, series[s].name, strlen(series[s].name));
        buf_puts(out, ",\"steps\":[");
        for (size_t i = 0; i < series[s].count; i++) {
            const struct report_row *row = &series[s].rows[i];
            double values[EVAL_JUDGE_COUNT];
            eval_judge_figures(&row->judge, values);
            buf_printf(out, "%s\n{\"first_step\":%lld,\"last_step\":%lld,\"judge\":", i ? "," : "",
                       (long long)row->first, (long long)row->last);
            json_print_string(out, row->judge.name.data, row->judge.name.size);
            buf_puts(out, ",\"inconsistency_rate\":");
            json_print_double(out, 1 - values[EVAL_RATE]);
            for (int key = 0; key < EVAL_NOT_JUDGED; key++) {
                buf_printf(out, ",\"%s\":", keys[key]);
                json_print_double(out, values[key]);
            }
            buf_puts(out, "}");
        }
        buf_puts(out, "]}");
    }
    buf_puts(out, "]}\n");
    return OK;
}

status report_steps_csv(const struct report_series *series, size_t count, struct buf *out) {
    const char *const *keys = eval_keys(EVAL_CONSISTENCY);
    buf_puts(out, "name,first_step,last_step,judge,inconsistency_rate");
    for (int key = 0; key < EVAL_NOT_JUDGED; key++) buf_printf(out, ",%s", keys[key]);
    buf_puts(out, "\n");
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < series[s].count; i++) {
            const struct report_row *row = &series[s].rows[i];
            double values[EVAL_JUDGE_COUNT];
            eval_judge_figures(&row->judge, values);
            eval_print_field(out, string_of(series[s].name));
            buf_printf(out, ",%lld,%lld,", (long long)row->first, (long long)row->last);
            eval_print_field(out, row->judge.name);
            buf_puts(out, ",");
            if (!isnan(values[EVAL_RATE])) json_print_double(out, 1 - values[EVAL_RATE]);
            for (int key = 0; key < EVAL_NOT_JUDGED; key++) {
                buf_puts(out, ",");
                if (!isnan(values[key])) json_print_double(out, values[key]);
            }
            buf_puts(out, "\n");
        }
    return OK;
}
