// caravan groups select: turns sampled groups into supervised data, a group with one completion for each completion for
// which the conditions hold.
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/log.h"
#include "shared/group/group.h"
#include "tools/groups/condition.h"
#include "tools/groups/groups.h"

struct selection {
    struct condition *conditions;
    size_t count;      // of conditions
    int64_t per_group; // 0: no limit
    long long groups, completions, selected;
    struct buf json;
};

// Prints a completion as a group of its own. Its sample_id and its id name the group and the completion it comes from.
static status groups_select_print(struct selection *selection, const struct group *from, size_t i) {
    const struct completion *completion = &from->completions[i];
    struct buf *json = &selection->json;
    struct group *group;
    struct arena *arena;
    status result = OK;
    group_new(&group);
    arena = &group->arena;
    const char *id = arena_printf(arena, "%s/%zu", from->id.data, i), *sample_id = id;
    if (from->sample_id.data) sample_id = arena_printf(arena, "%s/%s", from->sample_id.data, id);
    group->id = string_of(id);
    group->sample_id = string_of(sample_id);
    group->prompt = from->prompt;
    group_completions(group, 1);
    group->completions[0].text = completion->text;
    group->completions[0].finish = completion->finish;
    if (!completion->text.data) group->completions[0].tokens = completion->tokens;
    group_doubles(group, &group->advantages, 1);
    group->advantages.data[0] = 1;
    buf_clear(json);
    group_to_json(group, json);
    buf_puts(json, "\n");
    if (fwrite(json->data, 1, json->size, stdout) != json->size)
        result = fail(UNAVAILABLE, "cannot write to standard output");
    group_free(&group);
    return result;
}

// Prints what is selected of one group; `context` is the selection.
static status groups_select_visit(void *context, const struct group *group) {
    struct selection *selection = context;
    int64_t selected = 0;
    selection->groups++;
    if (group->quarantine.present) return OK;
    for (size_t i = 0; i < group->completion_count; i++) {
        selection->completions++;
        bool holds = true;
        for (size_t k = 0; k < selection->count; k++) holds &= condition_holds(&selection->conditions[k], group, i);
        if (!holds) continue;
        if (selection->per_group && selected == selection->per_group) continue;
        TRY(groups_select_print(selection, group, i));
        selected++;
    }
    selection->selected += selected;
    return OK;
}

status groups_select(const struct groups_options *options, const struct operands *operands) {
    struct selection selection = {.per_group = options->per_group};
    struct buf missing = {0};
    status result = OK;
    if (!options->where.count) return fail(USAGE, "--where is missing");
    if (!options->store && operands->count == 1) return fail(USAGE, "RUN, --store or a file of groups is missing");
    NEW(&selection.conditions, options->where.count);
    for (; selection.count < options->where.count; selection.count++) {
        result = condition_parse(&selection.conditions[selection.count], options->where.data[selection.count]);
        if (result != OK) TRY_TO(result, done, fail_prefix(result, "--where"));
    }
    if (options->store) TRY_TO(result, done, subcommand_each_group(options->store, groups_select_visit, &selection));
    for (int i = 1; i < operands->count; i++)
        TRY_TO(result, done, subcommand_each_group(operands->list[i], groups_select_visit, &selection));
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
