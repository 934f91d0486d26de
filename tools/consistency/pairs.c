// caravan pairs: writes the premise, the hypothesis and the verdict of judged completions as JSON lines, from which a
// consistency model is trained.
#include <math.h>
#include <stdio.h>

#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/data/consistency_pair.h"
#include "shared/reward/verdict.h"
#include "tools/tools.h"

struct pairs_options {
    bool all;
    const char *hypothesis;
};

static const struct option pairs_options[] = {
    TOOL_OPTION(pairs_options, all, OPTION_BOOL, "also write completions that are not judged, with label null",
                .default_value = "false"),
    TOOL_OPTION(pairs_options, hypothesis, OPTION_FILE,
                "text with {answer} and {option} (default: The final answer is {answer})"),
    {0},
};

const struct option_table pairs_table = {
    .program = "caravan pairs",
    .operands = "FILE|STORE...",
    .help = "writes the judged completions of groups as pairs of premise and hypothesis, one JSON object a line",
    .details = "A FILE has groups as JSON lines; a STORE is a directory with groups.lmdb, or\n"
               "that of a run. The premise is the question and the thinking, `label` is the\n"
               "verdict of the judge. A completion without thinking or answer has no pair, and\n"
               "neither have those of a quarantined group.\n",
    .options = pairs_options,
    .size = sizeof(struct pairs_options),
};

struct pairs_writer {
    bool all;
    struct string template;
    struct buf line;
    long long groups, completions, pairs;
};

static void pairs_print_text(struct buf *out, const char *before, struct string text) {
    buf_puts(out, before);
    json_print_string(out, text.data, text.size);
}

// Writes the pairs of a group, a line each; `context` is the writer.
static status pairs_visit(void *context, const struct group *group) {
    struct pairs_writer *writer = context;
    const double *verdict = group->consistency.verdict.data;
    struct buf *out = &writer->line;
    struct arena memory = {0};
    status result;
    writer->groups++;
    if (group->quarantine.present) return OK;
    TRY_TO(result, done, group_check(group, NEED_COMPLETIONS));
    TRY_TO(result, done, verdict_check(group));
    buf_clear(out);
    for (size_t i = 0; i < group->completion_count; i++) {
        struct consistency_pair pair;
        writer->completions++;
        if (!writer->all && (!verdict || isnan(verdict[i]))) continue;
        TRY_TO(result, done, consistency_pair_make(&pair, &memory, group, i, writer->template));
        if (!pair.premise.data) continue;
        writer->pairs++;
        pairs_print_text(out, "{\"premise\":", pair.premise);
        pairs_print_text(out, ",\"hypothesis\":", pair.hypothesis);
        pairs_print_text(out, ",\"question\":", group->prompt.question);
        buf_puts(out, ",\"label\":");
        json_print_double(out, verdict ? verdict[i] : NAN);
        pairs_print_text(out, ",\"group\":", group->id);
        buf_printf(out, ",\"completion\":%zu,\"step\":", i);
        if (group->trained.present)
            buf_printf(out, "%lld}\n", (long long)group->trained.step);
        else
            buf_puts(out, "null}\n");
    }
    result = OK;
    if (out->size && fwrite(out->data, 1, out->size, stdout) != out->size)
        result = fail(UNAVAILABLE, "cannot write to standard output");
done:
    arena_release(&memory);
    return result == DATAERR ? fail_prefix(result, "group %s", group->id.data) : result;
}

status pairs_main(struct subcommand_call *call) {
    const struct pairs_options *given = call->given;
    struct pairs_writer writer = {0};
    status result;
    writer.all = given->all;
    TRY_TO(result, done, consistency_template_read(&call->arena, given->hypothesis, &writer.template));
    for (int i = 0; i < call->count; i++)
        TRY_TO(result, done, subcommand_each_group(call->list[i], pairs_visit, &writer));
    log_info("%lld pairs of %lld completions of %lld groups", writer.pairs, writer.completions, writer.groups);
done:
    buf_release(&writer.line);
    return result;
}
