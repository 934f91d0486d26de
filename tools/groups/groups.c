// caravan groups: prints the groups of a groups store as text or as JSON lines, selects completions to train on, and
// removes old groups.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/config/options.h"
#include "shared/group/group.h"
#include "shared/store/group_store.h"
#include "tools/groups/condition.h"
#include "tools/tools.h"

struct groups_options {
    const char *store, *state;
    struct string_list where; // conditions, all of which must hold
    int64_t per_group;        // 0: all
    struct option_keep keep;
    bool sections;
};

// ---- select ----

// caravan groups select: turns sampled groups into supervised data, a group with one completion for each completion for
// which the conditions hold.

struct selection {
    struct condition *conditions;
    size_t count;      // of conditions
    int64_t per_group; // 0: no limit
    long long groups, completions, selected;
    struct buf json;
};

// Prints a group as a JSON line; `line` is to be used again. UNAVAILABLE.
static status groups_print_json(const struct group *group, struct buf *line) {
    buf_clear(line);
    group_to_json(group, line);
    buf_puts(line, "\n");
    if (fwrite(line->data, 1, line->size, stdout) == line->size) return OK;
    return fail(UNAVAILABLE, "cannot write to standard output");
}

// Prints what is selected of one group, each completion as a group of its own, whose sample_id and id name the group
// and the completion that it comes from; `context` is the selection.
static status groups_select_visit(void *context, const struct group *from) {
    struct selection *selection = context;
    int64_t selected = 0;
    selection->groups++;
    if (from->quarantine.present) return OK;
    for (size_t i = 0; i < from->completion_count; i++) {
        const struct completion *completion = &from->completions[i];
        struct group *group;
        selection->completions++;
        bool holds = true;
        for (size_t k = 0; k < selection->count; k++) holds &= condition_holds(&selection->conditions[k], from, i);
        if (!holds || (selection->per_group && selected == selection->per_group)) continue;
        group_new(&group);
        const char *id = arena_printf(&group->arena, "%s/%zu", from->id.data, i), *sample_id = id;
        if (from->sample_id.data) sample_id = arena_printf(&group->arena, "%s/%s", from->sample_id.data, id);
        group->id = string_of(id);
        group->sample_id = string_of(sample_id);
        group->prompt = from->prompt;
        group_completions(group, 1);
        group->completions[0].text = completion->text;
        group->completions[0].finish = completion->finish;
        if (!completion->text.data) group->completions[0].tokens = completion->tokens;
        GROUP_ARRAY(group, &group->advantages, 1);
        group->advantages.data[0] = 1;
        const status result = groups_print_json(group, &selection->json);
        group_free(&group);
        TRY(result);
        selected++;
    }
    selection->selected += selected;
    return OK;
}

static const struct option groups_options[] = {
    TOOL_OPTION(groups_options, store, OPTION_FILE,
                "instead of RUN: the same, a run or a directory that holds groups.lmdb"),
    TOOL_OPTION(groups_options, state, OPTION_NAME, "of ls, show and export: print only the groups in this state",
                .choices = "quarantined|trained|scored|rewarded|referenced|sampled|decoded|issued"),
    TOOL_OPTION(groups_options, where, OPTION_STRING,
                "of select: FIELD OP VALUE, a condition on a completion; of several, each must hold",
                .repeatable = true),
    TOOL_OPTION(groups_options, per_group, OPTION_INT,
                "of select: take the first N completions of a group (default: all)", .low = 1, .high = 1e6),
    TOOL_OPTION(
        groups_options, keep, OPTION_KEEP,
        "of prune: the groups that stay: those of the newest N steps, or the newest ones up to a size such as 20GiB",
        .choices = "all"),
    TOOL_OPTION(groups_options, sections, OPTION_BOOL,
                "of prune: remove the sections of all groups; the stages compute them again if a run needs them"),
    {0},
};

const struct option_table groups_table = {
    .program = "caravan groups",
    .operands = "ls|show|export RUN [ID...], fields, prune RUN, or select RUN|FILE...",
    .help = "lists, shows, exports, selects and removes the groups of a run",
    .details = "RUN is a run's directory, its pipeline file or its store.\n\n"
               "ls      prints one line for each group\n"
               "show    prints the groups as readable text\n"
               "export  prints the groups as JSON lines\n"
               "fields  prints a description of a group's keys, as Markdown\n"
               "prune   removes the oldest groups beyond --keep; the file does not become\n"
               "        smaller, but the space is used for new groups\n"
               "select  prints the completions for which --where holds, each as a group to\n"
               "        train on (the format caravan of caravan-source), of runs and of files\n"
               "        of groups as JSON lines\n\n"
               "Without an ID, all groups are printed.\n\n"
               "A condition compares (= != < <= > >=) a field with a number or a text:\n"
               "  caravan groups select RUN --where 'accuracy = 1' > chosen.jsonl\n"
               "  caravan groups select --where 'completions.tokens <= 512' groups.jsonl\n"
               "A field is a path that `fields` prints, without [], or the last word of it: then\n"
               "the first such field counts (accuracy is rewards.accuracy). Of an array that has\n"
               "no value for each completion, the number of elements is compared. A comparison\n"
               "with a value that is absent or null is false.\n",
    .options = groups_options,
    .size = sizeof(struct groups_options),
};

// printf with '?' for each control character, so that the line that is printed stays one and moves no cursor.
__attribute__((format(printf, 1, 2))) static void groups_printf(const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) text = NULL;
    va_end(arguments);
    log_clean(mem_checked(text));
    fputs(text, stdout);
    free(text);
}

// Prints each line of the text behind `indent`. Control characters, which could move a terminal's cursor, become '?'.
static void groups_print_text(struct string text, const char *indent) {
    fputs(indent, stdout);
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.data[i];
        putchar((c < 0x20 || c == 0x7f) && c != '\n' && c != '\t' ? '?' : c);
        if (c == '\n') fputs(indent, stdout);
    }
    putchar('\n');
}

static double groups_mean(const struct double_array *values) {
    double sum = 0;
    for (size_t i = 0; i < values->count; i++) sum += values->data[i];
    return values->count ? sum / (double)values->count : NAN;
}

static void groups_print_number(const char *name, double value) {
    if (!isnan(value)) printf("  %s %.4g", name, value);
}

// Returns the value of completion i, NaN if it has none.
static double groups_number_at(const struct double_array *values, size_t i) {
    return i < values->count ? values->data[i] : NAN;
}

// Returns the accuracies of the completions: an evaluation's scores, else a training's rewards.
static const struct double_array *groups_accuracy(const struct group *group) {
    return group->scores.present ? &group->scores.accuracy : &group->rewards.accuracy;
}

static void groups_show(const struct group *group) {
    groups_printf("%s: %s, sample %s, %s", group->id.data, group_state_name(group_state_of(group)),
                  group->sample_id.data ? group->sample_id.data : "-",
                  group->prompt.problem_type.data ? group->prompt.problem_type.data : "-");
    putchar('\n');
    if (group->quarantine.present) {
        groups_printf("  quarantined by %s: %s", group->quarantine.stage.data ? group->quarantine.stage.data : "?",
                      group->quarantine.reason.data ? group->quarantine.reason.data : "no reason given");
        putchar('\n');
    }
    size_t medium = 0;
    for (size_t m = 0; m < group->prompt.message_count; m++) {
        const struct message *message = &group->prompt.messages[m];
        groups_printf("  %s:", message->role.data);
        putchar('\n');
        for (size_t p = 0; p < message->part_count; p++) {
            const struct part *part = &message->parts[p];
            if (part->kind == PART_TEXT) {
                groups_print_text(part->text, "    ");
                continue;
            }
            groups_printf("    [%s %s", part->type.data,
                          part->kind == PART_VIDEO ? part->video.data : part->image.data);
            if (medium < group->media_count) {
                const struct medium *decoded = &group->media[medium];
                groups_printf(": %lld x %lldx%lld, key %s", (long long)decoded->frames, (long long)decoded->height,
                              (long long)decoded->width, decoded->key.data);
            }
            puts("]");
            medium++;
        }
    }
    groups_print_text(group->prompt.solution, "  solution ");
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct completion *c = &group->completions[i];
        putchar('\n');
        groups_printf("  completion %zu of %zu: %zu tokens, %s", i + 1, group->completion_count, c->tokens.count,
                      c->finish.data ? c->finish.data : "unfinished");
        fputs("\n   ", stdout);
        groups_print_number("accuracy", groups_number_at(groups_accuracy(group), i));
        groups_print_number("format", groups_number_at(&group->rewards.format, i));
        groups_print_number("length", groups_number_at(&group->rewards.length, i));
        groups_print_number("bonus", groups_number_at(&group->rewards.bonus, i));
        groups_print_number("reward", groups_number_at(&group->rewards.total, i));
        groups_print_number("advantage", groups_number_at(&group->advantages, i));
        groups_print_number("answer likelihood", exp(groups_number_at(&group->reference.answer_logprob, i)));
        putchar('\n');
        groups_print_text(c->text, "    ");
    }
    putchar('\n');
}

// What groups_print writes for a group.
enum groups_action { GROUPS_LS, GROUPS_SHOW, GROUPS_EXPORT };
static const char groups_actions[] = "ls|show|export"; // in the same order

struct groups_output {
    int action;        // enum groups_action
    const char *state; // NULL: print groups in every state
    struct buf json;
};

// Prints a group as the action of `context`, a struct groups_output, says.
static status groups_print(void *context, const struct group *group) {
    struct groups_output *output = context;
    if (output->state && strcmp(output->state, group_state_name(group_state_of(group))) != 0) return OK;
    if (output->action == GROUPS_EXPORT) return groups_print_json(group, &output->json);
    if (output->action == GROUPS_SHOW) {
        groups_show(group);
        return OK;
    }
    groups_printf("%-12s %-11s %-12s %-16s %2zu completions", group->id.data, group_state_name(group_state_of(group)),
                  group->sample_id.data ? group->sample_id.data : "-",
                  group->prompt.problem_type.data ? group->prompt.problem_type.data : "-", group->completion_count);
    groups_print_number("accuracy", groups_mean(groups_accuracy(group)));
    groups_print_number("reward", groups_mean(&group->rewards.total));
    if (group->trained.present) printf("  step %lld", (long long)group->trained.step);
    if (group->quarantine.reason.data) groups_printf("  %s", group->quarantine.reason.data);
    putchar('\n');
    return OK;
}

// The actions on the stores of a run: ls, show, export and prune.
static status groups_of_run(struct subcommand_call *call) {
    const struct groups_options *given = call->given;
    struct groups_output output = {.action = choice_index(groups_actions, call->list[0]), .state = given->state};
    const int first = given->store ? 1 : 2; // operand behind RUN
    const char *run = given->store ? given->store : call->count > 1 ? call->list[1] : NULL;
    char **ids = call->list + first;
    const int count = call->count > first ? call->count - first : 0;
    const bool prune = output.action < 0;
    const struct group_keep keep = {.steps = given->keep.steps, .bytes = given->keep.bytes};
    struct string_list stores;
    struct group_store *store = NULL;
    struct group *group = NULL;
    int64_t removed, freed;
    status result;
    if (!run) return fail(USAGE, "RUN or --store is missing: a run's directory, its file or its store");
    if (prune && count) return fail(USAGE, "prune takes no '%s'", *ids);
    if (prune && !given->keep.steps && !given->keep.bytes && !given->sections)
        return fail(USAGE, "prune needs --keep or --sections");
    TRY(subcommand_find_stores(run, "groups.lmdb", &call->arena, &stores));
    for (size_t i = 0; i < stores.count; i++) {
        TRY_TO(result, done, group_store_open(&store, stores.data[i], !prune));
        if (prune) {
            TRY_TO(result, done, group_store_prune(store, &keep, given->sections, &removed, &freed));
            log_info("removed %lld groups of %lld bytes", (long long)removed, (long long)freed);
        } else if (!count) {
            TRY_TO(result, done, group_store_each(store, groups_print, &output));
        }
        for (int k = 0; k < count; k++) { // those that this store has
            if (!ids[k]) continue;
            TRY_TO(result, done, group_store_get(store, ids[k], &group));
            if (!group) continue;
            TRY_TO(result, done, groups_print(&output, group));
            ids[k] = NULL;
            group_free(&group);
        }
        group_store_close(&store);
    }
    result = OK;
    for (int i = 0; i < count && result == OK; i++)
        if (ids[i]) result = fail(DATAERR, "the store has no group %s", ids[i]);
done:
    group_free(&group);
    group_store_close(&store);
    buf_release(&output.json);
    return result;
}

status groups_main(struct subcommand_call *call) {
    const struct groups_options *given = call->given;
    const char *name = call->list[0];
    const bool select = !strcmp(name, "select"), prune = !strcmp(name, "prune");
    if (!strcmp(name, "fields")) {
        group_reference_page(&call->out);
        return OK;
    }
    if (!select && !prune && choice_index(groups_actions, name) < 0)
        return fail(USAGE, "'%s' is not an action: use ls, show, export, fields, prune or select", name);
    if (!select && (given->where.count || given->per_group))
        return fail(USAGE, "--where and --per-group belong to select");
    if (!select && !prune && (given->keep.steps || given->keep.bytes || given->sections))
        return fail(USAGE, "--keep and --sections belong to prune");
    if ((select || prune) && given->state) return fail(USAGE, "--state belongs to ls, show and export");
    if (!select) return groups_of_run(call);

    // Writes the completions for which each `where` holds, in the groups of the store and of each operand behind the
    // first, as supervised data to standard output.
    struct selection selection = {.per_group = given->per_group};
    struct buf missing = {0};
    status result = OK;
    if (!given->where.count) return fail(USAGE, "--where is missing");
    if (!given->store && call->count == 1) return fail(USAGE, "RUN, --store or a file of groups is missing");
    NEW(&selection.conditions, given->where.count);
    for (; selection.count < given->where.count; selection.count++) {
        result = condition_parse(&selection.conditions[selection.count], given->where.data[selection.count]);
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "--where"));
    }
    if (given->store) TRY_TO(result, done, subcommand_each_group(given->store, groups_select_visit, &selection));
    for (int i = 1; i < call->count; i++)
        TRY_TO(result, done, subcommand_each_group(call->list[i], groups_select_visit, &selection));
    log_info("%lld of %lld completions of %lld groups", selection.selected, selection.completions, selection.groups);
    for (size_t k = 0; k < selection.count; k++) {
        if (selection.conditions[k].seen) continue;
        if (missing.size) buf_puts(&missing, ", ");
        condition_path(&selection.conditions[k], &missing);
    }
    if (missing.size) log_info("no completion has a value of %s", missing.data);
done:
    free(selection.conditions);
    buf_release(&selection.json);
    buf_release(&missing);
    return result;
}
