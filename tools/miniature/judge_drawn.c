// caravan judge-drawn: whether the facts that a reasoning states imply the answer, by the rule of the miniature's
// world: a filter of groups, for a pipeline's stage `judged: {program: ...}`.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/signals.h"
#include "shared/group/group.h"
#include "shared/reward/verdict.h"
#include "tools/miniature/world.h"
#include "tools/tools.h"

static const struct option judge_drawn_options[] = {{0}};
const struct option_table judge_drawn_table = {
    .program = "caravan judge-drawn",
    .operands = "",
    .help = "judges completions on clips of `caravan draw`: do the facts that they state imply the answer?",
    .details = "Reads groups as JSON lines and writes them with `consistency.verdict`. A\n"
               "reasoning that does not state both facts does not imply the answer.\n",
    .options = judge_drawn_options,
    .size = 1,
};

static status judge_drawn_group(struct group *group) {
    enum task task;
    enum tense tense;
    const struct prompt *prompt = &group->prompt;
    TRY(verdict_init(group, "drawn"));
    if (!prompt->question.data || !world_recognise(prompt->question, &task, &tense))
        return fail(DATAERR, "not a group: prompt.question: not a question of the miniature");
    for (size_t i = 0; i < group->completion_count; i++) {
        struct string thinking;
        char answer;
        const char *obstacle = verdict_obstacle(group, i, &thinking, &answer);
        if (obstacle) {
            verdict_set(group, i, NAN, "%s", obstacle);
            continue;
        }
        const struct reading reading = world_read(thinking, task, tense);
        if (reading.first < 0 || reading.then < 0) {
            verdict_set(group, i, 0, "the thinking does not state both facts");
            continue;
        }
        const char *implied = world_answer_name(task, tense, world_answer(tense, reading.first, reading.then));
        const size_t index = (size_t)(answer - 'A');
        const bool agrees = index < prompt->options.count && string_equals(prompt->options.data[index], implied);
        verdict_set(group, i, agrees, "the facts imply %s, the answer is %c", implied, answer);
    }
    return OK;
}

status judge_drawn_main(struct subcommand_call *call) {
    struct line_reader lines = {.fd = STDIN_FILENO};
    struct group *group = NULL;
    struct buf out = {0};
    status result = OK;
    (void)call;
    while (result == OK) {
        const char *line = NULL;
        size_t size;
        TRY_TO(result, done, line_reader_next(&lines, -1, &line, &size));
        result = group_from_json(&group, line, size);
        if (result == OK && !group->quarantine.present) result = judge_drawn_group(group);
        if (result != OK) {
            fail_prefix(result, "line %zu", lines.number);
            break;
        }
        buf_clear(&out);
        group_to_json(group, &out);
        buf_puts(&out, "\n");
        group_free(&group);
        if (fwrite(out.data, 1, out.size, stdout) != out.size || fflush(stdout))
            result = fail(UNAVAILABLE, "cannot write to standard output");
    }
done:
    group_free(&group);
    buf_release(&out);
    line_reader_release(&lines);
    return result == END ? OK : result;
}
