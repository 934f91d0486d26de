// --help and the reference page, both from the option tables.
#include <assert.h>
#include <ctype.h>
#include <string.h>

#include "shared/config/stage_kinds.h"

const char *option_argument(const struct option *option, struct arena *arena) {
    static const char *const types[] = {
        [OPTION_STRING] = "TEXT",   [OPTION_FILE] = "FILE",  [OPTION_PATH] = "PATH",      [OPTION_NAME] = "",
        [OPTION_DEVICE] = "DEVICE", [OPTION_CHOICE] = "",    [OPTION_INT] = "N",          [OPTION_NUMBER] = "X",
        [OPTION_NUMBER_OR] = "X",   [OPTION_RANGE] = "A..B", [OPTION_BOOL] = "true|false"};
    assert((size_t)option->type < sizeof types / sizeof *types);
    const char *type = types[option->type];
    if (!option->choices) return type;
    return *type ? arena_printf(arena, "%s|%s", type, option->choices) : option->choices;
}

static status help_rows(const struct option *option, struct buf *out) {
    enum { COLUMN = 34 };
    struct arena arena = {0};
    status result = OK;
    for (; option && option->name && result == OK; option++) {
        if (option->hidden) continue;
        bool flag = option->type == OPTION_BOOL;
        const char *argument = flag ? "" : option_argument(option, &arena);
        char *left = arena_printf(&arena, "--%s%s%s", option->name, flag ? "" : " ", argument ? argument : "");
        if (!left) TRY_TO(result, done, fail_oom());
        for (char *at = left; *at && *at != ' '; at++) // --max-new-tokens N
            if (*at == '_') *at = '-';
        bool wide = strlen(left) > COLUMN;
        TRY_TO(result, done, buf_printf(out, "  %-*s%s", COLUMN, left, wide ? "\n  " : " "));
        if (wide) TRY_TO(result, done, buf_printf(out, "%-*s ", COLUMN, ""));
        bool said = option->default_value && strcmp(option->default_value, "false") != 0;
        TRY_TO(result, done,
               buf_printf(out, "%s%s%s%s%s\n", option->help, option->required ? " (required)" : "", said ? " (" : "",
                          said ? option->default_value : "", said ? ")" : ""));
    }
done:
    arena_release(&arena);
    return result;
}

status options_help(const struct option_table *table, struct buf *out) {
    const char *operands = table->operands ? table->operands : "";
    bool keys = table->options || table->common;
    TRY(buf_printf(out, "usage: %s%s%s%s\n%c%s\n%s", table->program, keys ? " [--KEY VALUE]..." : "",
                   *operands ? " " : "", operands, toupper((unsigned char)table->help[0]), table->help + 1,
                   keys ? "\n" : ""));
    TRY(help_rows(table->options, out));
    if (table->details) TRY(buf_printf(out, "\n%s", table->details));
    if (!table->common) return OK;
    TRY(buf_puts(out, "\nof every stage:\n"));
    TRY(help_rows(table->common, out));
    return buf_puts(out, "\nA true-or-false option may stand alone (true) or as --no-NAME (false).\n"
                         "exit codes: 0 done, 64 wrong usage, 65 bad input, 69 a missing service or device, "
                         "70 a bug\n");
}

// A '|' would end the cell.
static status markdown_cell(const char *text, struct buf *out) {
    for (; *text; text++) TRY(*text == '|' ? buf_puts(out, "\\|") : buf_append(out, text, 1));
    return OK;
}

static status markdown_table(const char *title, const char *help, const struct option *option, struct buf *out) {
    struct arena arena = {0};
    status result = buf_printf(out, "### %s\n\n%s.\n\n| key | value | default | |\n|---|---|---|---|\n", title, help);
    for (; option->name && result == OK; option++) {
        if (option->hidden) continue;
        const char *argument = option_argument(option, &arena);
        const char *value = option->required ? "required" : option->default_value ? option->default_value : "";
        bool number = option->type == OPTION_INT || option->type == OPTION_NUMBER || option->type == OPTION_NUMBER_OR;
        TRY_TO(result, done, buf_printf(out, "| `%s` | ", option->name));
        TRY_TO(result, done, markdown_cell(argument ? argument : "", out));
        TRY_TO(result, done, buf_printf(out, " | %s | ", value));
        TRY_TO(result, done, markdown_cell(option->help, out));
        if (number && option->high < 1e15)
            TRY_TO(result, done, buf_printf(out, " (%.10g to %.10g)", option->low, option->high));
        else if (number && option->low > -1e300)
            TRY_TO(result, done, buf_printf(out, " (at least %.10g)", option->low));
        result = buf_puts(out, " |\n");
    }
    if (result == OK) result = buf_puts(out, "\n");
done:
    arena_release(&arena);
    return result;
}

status stage_kinds_markdown(struct buf *out) {
    for (int i = 0; i < STAGE_COUNT; i++)
        TRY(markdown_table(stage_kinds[i].name, stage_kinds[i].options.help, stage_kinds[i].options.options, out));
    return markdown_table("every stage", "keys that every stage has", common_options, out);
}
