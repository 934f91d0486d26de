// caravan agreement: how far judges of consistency agree on the same completions.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/memory.h"
#include "shared/group/group.h"
#include "shared/reward/verdict.h"
#include "tools/eval/figures.h"
#include "tools/tools.h"

struct agreement_options {
    double threshold;
    int output; // enum figure_output
};

static const struct option agreement_options[] = {
    TOOL_OPTION(agreement_options, threshold, OPTION_NUMBER,
                "the probability from which on a consistency model's completion is consistent", .default_value = "0.5",
                .high = 1),
    TOOL_OPTION(agreement_options, output, OPTION_CHOICE, "form of the table", .default_value = "text",
                .choices = "text|json|csv"),
    {0},
};

const struct option_table agreement_table = {
    .program = "caravan agreement",
    .operands = "RUN...",
    .help = "says how far judges of consistency agree with the first of them",
    .details = "A RUN is the directory of a run, its store, or a file of groups, with verdicts\n"
               "(caravan-judge), probabilities (caravan-consistency) or both, which count as two\n"
               "judges. All have the same groups and completions.\n"
               "\n"
               "agreement      share of the same verdicts, of the completions that this judge\n"
               "               and the first one judged\n"
               "kappa          Cohen's: 1 is the same verdicts, 0 no more than chance\n"
               "consistent_found, inconsistent_found\n"
               "               share of those that the first one finds consistent, or\n"
               "               inconsistent, that this judge finds so, too\n",
    .options = agreement_options,
    .size = sizeof(struct agreement_options),
};

// What a judge says of a group's completions: 1, 0 or NaN for each; nothing of one that it did not judge.
struct agreement_group {
    struct string id;
    uint64_t texts; // hash of the completions
    double *verdicts;
    size_t count;
};

struct agreement_judge {
    struct string name; // {0}: it has judged no group
    const char *path;
    struct agreement_group *groups; // sorted by id
    size_t count;
};

struct agreement_reading {
    struct agreement_judge judges[2]; // by verdicts, by probabilities
    struct arena *memory;
    double threshold;
};

// Adds a group to both judges of `context`.
static status agreement_add_group(void *context, const struct group *group) {
    struct agreement_reading *reading = context;
    struct agreement_group row = {0};
    arena_string(reading->memory, &row.id, group->id.data, group->id.size);
    for (size_t i = 0; i < group->completion_count; i++)
        row.texts = XXH3_64bits_withSeed(group->completions[i].text.data, group->completions[i].text.size, row.texts);
    for (int by_probability = 0; by_probability < 2; by_probability++) {
        struct agreement_judge *judge = &reading->judges[by_probability];
        const struct double_array *said =
            by_probability ? &group->consistency.probability : &group->consistency.verdict;
        GROW(&judge->groups, judge->count);
        struct agreement_group *of_judge = &judge->groups[judge->count++];
        *of_judge = row;
        if (group->quarantine.present || !said->data) continue;
        TRY(by_probability ? group_check_fractions(group, "consistency.probability", said, true)
                           : verdict_check(group));
        if (!judge->name.data) {
            const struct string name = by_probability                  ? string_of("probability")
                                       : group->consistency.judge.data ? group->consistency.judge
                                                                       : string_of("verdict");
            arena_string(reading->memory, &judge->name, name.data, name.size);
        }
        of_judge->count = said->count;
        of_judge->verdicts = arena_alloc(reading->memory, said->count * sizeof *of_judge->verdicts);
        for (size_t i = 0; i < said->count; i++)
            of_judge->verdicts[i] =
                isnan(said->data[i]) || !by_probability ? said->data[i] : said->data[i] >= reading->threshold;
    }
    return OK;
}

static int agreement_by_id(const void *a, const void *b) {
    return figure_compare_names(((const struct agreement_group *)a)->id, ((const struct agreement_group *)b)->id);
}

// Adds to the table, as a column, how far the judge agrees with the first one. DATAERR if they judged other
// completions.
static status agreement_add(struct figure_table *table, size_t column, const struct agreement_judge *judge,
                            const struct agreement_judge *first) {
    size_t counts[2][2] = {{0}}; // of those that both judged: [first][judge]
    size_t judged = 0, consistent = 0;
    for (size_t i = 0; i < judge->count || i < first->count; i++) {
        const int order = i == judge->count   ? 1
                          : i == first->count ? -1
                                              : agreement_by_id(&judge->groups[i], &first->groups[i]);
        if (order)
            return fail(DATAERR, "%s: group %s is not in %s", order < 0 ? judge->path : first->path,
                        order < 0 ? judge->groups[i].id.data : first->groups[i].id.data,
                        order < 0 ? first->path : judge->path);
        const struct agreement_group *mine = &judge->groups[i], *other = &first->groups[i];
        if (mine->texts != other->texts)
            return fail(DATAERR, "%s: group %s has other completions in %s", judge->path, mine->id.data, first->path);
        for (size_t k = 0; k < mine->count; k++) {
            if (isnan(mine->verdicts[k])) continue;
            judged++;
            consistent += mine->verdicts[k] == 1;
            if (k < other->count && !isnan(other->verdicts[k]))
                counts[other->verdicts[k] == 1][mine->verdicts[k] == 1]++;
        }
    }
    const size_t found[2] = {counts[0][0] + counts[0][1], counts[1][0] + counts[1][1]}, both = found[0] + found[1];
    const double agreement = figure_ratio((long double)(counts[0][0] + counts[1][1]), both);
    const double mine = figure_ratio((long double)(counts[0][1] + counts[1][1]), both); // its share of consistent ones
    const double others = figure_ratio((long double)found[1], both);
    const double chance = mine * others + (1 - mine) * (1 - others);
    const struct figure figures[] = {
        {"judged", FIGURE_COUNT, (double)judged},
        {"consistent", FIGURE_SHARE, figure_ratio((long double)consistent, judged)},
        {"agreement", FIGURE_SHARE, agreement},
        {"kappa", FIGURE_THOUSANDTHS, chance < 1 ? (agreement - chance) / (1 - chance) : NAN},
        {"consistent_found", FIGURE_SHARE, figure_ratio((long double)counts[1][1], found[1])},
        {"inconsistent_found", FIGURE_SHARE, figure_ratio((long double)counts[0][0], found[0])},
    };
    figure_table_add(table, column, 0, (struct string){"", 0}, figures, sizeof figures / sizeof *figures);
    return OK;
}

status agreement_main(struct subcommand_call *call) {
    const struct agreement_options *given = call->given;
    static const struct figure_section section = {NULL, NULL, false};
    struct arena memory = {0};
    struct agreement_judge *judges;
    size_t count = 0;
    struct string *names;
    status result = OK;
    NEW(&judges, 2 * (size_t)call->count);
    NEW(&names, 2 * (size_t)call->count);
    for (int i = 0; i < call->count; i++) { // a run is one or two judges; a name that another one has gets a number
        const char *path = call->list[i];
        struct agreement_reading reading = {.judges = {{.path = path}, {.path = path}}, &memory, given->threshold};
        const size_t before = count;
        result = subcommand_each_group(path, agreement_add_group, &reading);
        for (int k = 0; k < 2; k++) {
            struct agreement_judge *judge = &reading.judges[k];
            if (result != OK || !judge->name.data) {
                free(judge->groups);
                continue;
            }
            const struct string name = judge->name;
            size_t number = 1;
            for (size_t other = 0; other < count; other++)
                if (!figure_compare_names(judges[other].name, judge->name))
                    judge->name = string_of(arena_printf(&memory, "%s %zu", name.data, ++number));
            qsort(judge->groups, judge->count, sizeof *judge->groups, agreement_by_id);
            judges[count++] = *judge;
        }
        if (result == OK && count == before) result = fail(DATAERR, "%s: no verdicts and no probabilities", path);
        if (result != OK) goto done;
    }
    struct figure_table table = {.sections = &section,
                                 .section_count = 1,
                                 .names = names,
                                 .columns_key = "judges",
                                 .columns = count,
                                 .label_width = 20,
                                 .column_width = 14};
    for (size_t i = 0; result == OK && i < count; i++) {
        names[i] = judges[i].name;
        result = agreement_add(&table, i, &judges[i], &judges[0]);
    }
    if (result == OK) figure_table_print(&table, (enum figure_output)given->output, &call->out);
    figure_table_release(&table);
done:
    for (size_t i = 0; i < count; i++) free(judges[i].groups);
    free(judges);
    free(names);
    arena_release(&memory);
    return result;
}
