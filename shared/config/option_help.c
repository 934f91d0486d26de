// --help and the reference page, both from the tables.
#include "shared/config/stage_kinds.h"

#include <ctype.h>
#include <string.h>

const char *option_argument(const struct option *key, struct arena *arena) {
    const char *types[] = {
        [OPTION_STRING] = "TEXT", [OPTION_FILE] = "FILE",       [OPTION_PATH] = "PATH", [OPTION_INT] = "N",
        [OPTION_NUMBER] = "X",    [OPTION_BOOL] = "true|false", [OPTION_CHOICE] = "",   [OPTION_NUMBER_OR] = "X",
        [OPTION_RANGE] = "A..B",  [OPTION_DEVICE] = "DEVICE"};
    const char *type = types[key->type];
    if (!key->choices) return type;
    return *type ? arena_printf(arena, "%s|%s", type, key->choices) : key->choices;
}

// "--max-new-tokens N"
static const char *spelling(const struct option *key, struct arena *arena) {
    const char *argument = option_argument(key, arena);
    char *text = key->type == OPTION_BOOL ? arena_printf(arena, "--%s", key->name)
                                          : arena_printf(arena, "--%s %s", key->name, argument ? argument : "");
    for (char *at = text; at && *at && *at != ' '; at++)
        if (*at == '_') *at = '-';
    return text ? text : "";
}

static status help_row(const struct option *key, struct arena *arena, struct buf *out) {
    enum { COLUMN = 34 };
    const char *left = spelling(key, arena);
    TRY(strlen(left) > COLUMN ? buf_printf(out, "  %s\n  %-*s ", left, COLUMN, "")
                              : buf_printf(out, "  %-*s ", COLUMN, left));
    TRY(buf_puts(out, key->help));
    if (key->required) TRY(buf_puts(out, " (required)"));
    if (key->default_value && strcmp(key->default_value, "false") != 0)
        TRY(buf_printf(out, " (%s)", key->default_value));
    return buf_puts(out, "\n");
}

static status help_rows(const struct option *keys, struct arena *arena, struct buf *out) {
    for (; keys->name; keys++)
        if (!keys->hidden) TRY(help_row(keys, arena, out));
    return OK;
}

status options_help(const struct option_table *table, struct buf *out) {
    struct arena memory = {0};
    status result;
    TRY_TO(result, done,
           buf_printf(out, "usage: %s [--KEY VALUE]...%s%s\n%c%s\n\n", table->program, table->operands ? " " : "",
                      table->operands ? table->operands : "", toupper((unsigned char)table->help[0]), table->help + 1));
    TRY_TO(result, done, help_rows(table->options, &memory, out));
    if (table->stage) {
        TRY_TO(result, done, buf_puts(out, "\nof every stage:\n"));
        TRY_TO(result, done, help_rows(options_common(), &memory, out));
        TRY_TO(result, done,
               buf_puts(out, "\nA true-or-false option may stand alone (true) or as --no-NAME (false).\n"
                             "exit codes: 0 done, 64 wrong usage, 65 bad input, 69 a missing service or device, "
                             "70 a bug\n"));
    }
done:
    arena_release(&memory);
    return result;
}

// A '|' would end the cell.
static status cell(const char *text, struct buf *out) {
    for (; *text; text++) TRY(*text == '|' ? buf_puts(out, "\\|") : buf_append(out, text, 1));
    return OK;
}

static status markdown_row(const struct option *key, struct arena *arena, struct buf *out) {
    const char *argument = option_argument(key, arena);
    TRY(buf_printf(out, "| `%s` | ", key->name));
    TRY(cell(argument ? argument : "", out));
    TRY(buf_printf(out, " | %s | ", key->required ? "required" : key->default_value ? key->default_value : ""));
    TRY(cell(key->help, out));
    if (key->type == OPTION_INT || key->type == OPTION_NUMBER || key->type == OPTION_NUMBER_OR) {
        if (key->high < 1e15)
            TRY(buf_printf(out, " (%.10g to %.10g)", key->low, key->high));
        else if (key->low > -1e300)
            TRY(buf_printf(out, " (at least %.10g)", key->low));
    }
    return buf_puts(out, " |\n");
}

static status markdown_table(const char *title, const char *help, const struct option *keys, struct buf *out) {
    struct arena memory = {0};
    status result;
    TRY_TO(result, done, buf_printf(out, "### %s\n\n%s.\n\n", title, help));
    TRY_TO(result, done, buf_puts(out, "| key | value | default | |\n|---|---|---|---|\n"));
    for (; keys->name; keys++)
        if (!keys->hidden) TRY_TO(result, done, markdown_row(keys, &memory, out));
    TRY_TO(result, done, buf_puts(out, "\n"));
done:
    arena_release(&memory);
    return result;
}

status options_markdown(struct buf *out) {
    for (int i = 0; i < STAGE_COUNT; i++)
        TRY(markdown_table(stage_kinds[i].name, stage_kinds[i].options.help, stage_kinds[i].options.options, out));
    return markdown_table("every stage", "keys that every stage has", options_common(), out);
}
