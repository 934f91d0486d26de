// The result file of the released evaluation, with the fields that its readers use.
#include <math.h>

#include "shared/base/json.h"
#include "shared/reward/accuracy.h"
#include "shared/reward/python_text.h"
#include "tools/eval/eval.h"

static void eval_released_string(struct buf *results, const char *key, struct string value) {
    buf_printf(results, ",\"%s\":", key);
    if (value.data)
        json_print_string(results, value.data, value.size);
    else
        buf_puts(results, "null");
}

// Appends the result of one output of the group.
static void eval_released_result(struct buf *results, const struct group *group, struct string output,
                                 double accuracy) {
    const struct string answer = answer_extract(output), thinking = thinking_extract(output);
    const struct string process = thinking.data ? python_strip(thinking) : thinking;
    buf_puts(results, results->size ? ",\n" : "{\"results\":[\n");
    buf_puts(results, "{\"problem_type\":");
    const struct string type = group->prompt.problem_type;
    if (type.data)
        json_print_string(results, type.data, type.size);
    else
        buf_puts(results, "null");
    eval_released_string(results, "solution", group->prompt.solution);
    eval_released_string(results, "output", output);
    eval_released_string(results, "prediction", answer.size ? answer : output);
    buf_puts(results, ",\"reward\":");
    json_print_double(results, accuracy);
    buf_puts(results, accuracy >= 1 ? ",\"correct\":true" : ",\"correct\":false");
    if (process.size) {
        buf_puts(results, ",\"process\":");
        struct buf tagged = {0};
        buf_puts(&tagged, "<think>");
        buf_append(&tagged, process.data, process.size);
        buf_puts(&tagged, "</think>");
        json_print_string(results, tagged.data, tagged.size);
        buf_release(&tagged);
    }
    buf_puts(results, "}");
}

void eval_released_add(struct buf *results, const struct group *group) {
    if (group->quarantine.present) {
        eval_released_result(results, group, (struct string){"", 0}, 0);
        return;
    }
    for (size_t i = 0; i < group->completion_count; i++)
        eval_released_result(results, group, group->completions[i].text, group->scores.accuracy.data[i]);
}

// The released code leaves the mean of no regressions at 0; other means of nothing are NaN there, null here.
void eval_released_finish(struct buf *results, const struct eval_column *column) {
    static const struct {
        const char *text;
        enum eval_total key;
    } means[] = {{"{\"mean_acc\":", EVAL_ACCURACY}, {",\"mean_mra\":", EVAL_MRA}, {",\"mean_rewards\":", EVAL_MEAN}};
    buf_puts(results, results->size ? "\n],\"final_acc\":[" : "{\"results\":[],\"final_acc\":[");
    for (int i = 0; i < 3; i++) {
        const double value = eval_value(column, EVAL_TOTALS, (struct string){"", 0}, (int)means[i].key);
        buf_puts(results, means[i].text);
        json_print_double(results, means[i].key == EVAL_MRA && isnan(value) ? 0 : value);
    }
    buf_puts(results, "}]}\n");
}
