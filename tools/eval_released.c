// The result file of the released evaluation, with the fields that its readers use.
#include <math.h>

#include "shared/base/json.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"
#include "tools/eval.h"

static status eval_released_string(struct buf *results, const char *key, struct string value) {
    TRY(buf_printf(results, ",\"%s\":", key));
    return value.data ? json_print_string(results, value.data, value.size) : buf_puts(results, "null");
}

// Appends the result of one output of the group.
static status eval_released_result(struct buf *results, const struct group *group, struct string output,
                                   double accuracy) {
    const struct string answer = answer_extract(output), thinking = thinking_extract(output);
    const struct string process = thinking.data ? python_strip(thinking) : thinking;
    TRY(buf_puts(results, results->size ? ",\n" : "{\"results\":[\n"));
    TRY(buf_puts(results, "{\"problem_type\":"));
    const struct string type = group->prompt.problem_type;
    TRY(type.data ? json_print_string(results, type.data, type.size) : buf_puts(results, "null"));
    TRY(eval_released_string(results, "solution", group->prompt.solution));
    TRY(eval_released_string(results, "output", output));
    TRY(eval_released_string(results, "prediction", answer.size ? answer : output));
    TRY(buf_puts(results, ",\"reward\":"));
    TRY(json_print_double(results, accuracy));
    TRY(buf_puts(results, accuracy >= 1 ? ",\"correct\":true" : ",\"correct\":false"));
    if (process.size) {
        TRY(buf_puts(results, ",\"process\":"));
        struct buf tagged = {0};
        status result = buf_puts(&tagged, "<think>");
        if (result == OK) result = buf_append(&tagged, process.data, process.size);
        if (result == OK) result = buf_puts(&tagged, "</think>");
        if (result == OK) result = json_print_string(results, tagged.data, tagged.size);
        buf_release(&tagged);
        if (result != OK) return result;
    }
    return buf_puts(results, "}");
}

status eval_released_add(struct buf *results, const struct group *group) {
    if (group->quarantine.present) return eval_released_result(results, group, (struct string){"", 0}, 0);
    for (size_t i = 0; i < group->completion_count; i++)
        TRY(eval_released_result(results, group, group->completions[i].text, group->scores.accuracy.data[i]));
    return OK;
}

// The released code leaves the mean of no regressions at 0; other means of nothing are NaN there, null here.
status eval_released_finish(struct buf *results, const struct eval_column *column) {
    static const struct {
        const char *text;
        enum eval_total key;
    } means[] = {{"{\"mean_acc\":", EVAL_ACCURACY}, {",\"mean_mra\":", EVAL_MRA}, {",\"mean_rewards\":", EVAL_MEAN}};
    TRY(buf_puts(results, results->size ? "\n],\"final_acc\":[" : "{\"results\":[],\"final_acc\":["));
    for (int i = 0; i < 3; i++) {
        const double value = eval_value(column, EVAL_TOTALS, (struct string){"", 0}, (int)means[i].key);
        TRY(buf_puts(results, means[i].text));
        TRY(json_print_double(results, means[i].key == EVAL_MRA && isnan(value) ? 0 : value));
    }
    return buf_puts(results, "}]}\n");
}
