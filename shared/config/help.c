// --help and the reference page, both from the tables.
#include "shared/config/keys.h"

#include <ctype.h>
#include <string.h>

const char *keys_argument(const struct key *key, struct arena *arena) {
    const char *types[] = {[KEY_TEXT] = "TEXT",  [KEY_FILE] = "FILE",       [KEY_PATH] = "PATH", [KEY_INT] = "N",
                           [KEY_NUMBER] = "X",   [KEY_BOOL] = "true|false", [KEY_CHOICE] = "",   [KEY_NUMBER_OR] = "X",
                           [KEY_RANGE] = "A..B", [KEY_DEVICE] = "DEVICE"};
    const char *type = types[key->type];
    if (!key->choices) return type;
    return *type ? arena_printf(arena, "%s|%s", type, key->choices) : key->choices;
}

// "--max-new-tokens N"
static const char *spelling(const struct key *key, struct arena *arena) {
    const char *argument = keys_argument(key, arena);
    char *text = key->type == KEY_BOOL ? arena_printf(arena, "--%s", key->name)
                                       : arena_printf(arena, "--%s %s", key->name, argument ? argument : "");
    for (char *at = text; at && *at && *at != ' '; at++)
        if (*at == '_') *at = '-';
    return text ? text : "";
}

static status help_row(const struct key *key, struct arena *arena, struct buf *out) {
    enum { COLUMN = 34 };
    const char *left = spelling(key, arena);
    TRY(strlen(left) > COLUMN ? buf_printf(out, "  %s\n  %-*s ", left, COLUMN, "")
                              : buf_printf(out, "  %-*s ", COLUMN, left));
    TRY(buf_puts(out, key->help));
    if (key->required) TRY(buf_puts(out, " (required)"));
    if (key->standard && strcmp(key->standard, "false") != 0) TRY(buf_printf(out, " (%s)", key->standard));
    return buf_puts(out, "\n");
}

static status help_rows(const struct key *keys, struct arena *arena, struct buf *out) {
    for (; keys->name; keys++)
        if (!keys->internal) TRY(help_row(keys, arena, out));
    return OK;
}

status keys_help(const struct key_table *table, struct buf *out) {
    struct arena memory = {0};
    status result;
    TRY_TO(result, done,
           buf_printf(out, "usage: %s [--KEY VALUE]...%s%s\n%c%s\n\n", table->program, table->operands ? " " : "",
                      table->operands ? table->operands : "", toupper((unsigned char)table->help[0]), table->help + 1));
    TRY_TO(result, done, help_rows(table->keys, &memory, out));
    if (table->stage) {
        TRY_TO(result, done, buf_puts(out, "\nof every stage:\n"));
        TRY_TO(result, done, help_rows(keys_common(), &memory, out));
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

static status markdown_row(const struct key *key, struct arena *arena, struct buf *out) {
    const char *argument = keys_argument(key, arena);
    TRY(buf_printf(out, "| `%s` | ", key->name));
    TRY(cell(argument ? argument : "", out));
    TRY(buf_printf(out, " | %s | ", key->required ? "required" : key->standard ? key->standard : ""));
    TRY(cell(key->help, out));
    if (key->type == KEY_INT || key->type == KEY_NUMBER || key->type == KEY_NUMBER_OR) {
        if (key->high < 1e15)
            TRY(buf_printf(out, " (%.10g to %.10g)", key->low, key->high));
        else if (key->low > -1e300)
            TRY(buf_printf(out, " (at least %.10g)", key->low));
    }
    return buf_puts(out, " |\n");
}

static status markdown_table(const char *title, const char *help, const struct key *keys, struct buf *out) {
    struct arena memory = {0};
    status result;
    TRY_TO(result, done, buf_printf(out, "### %s\n\n%s.\n\n", title, help));
    TRY_TO(result, done, buf_puts(out, "| key | value | default | |\n|---|---|---|---|\n"));
    for (; keys->name; keys++)
        if (!keys->internal) TRY_TO(result, done, markdown_row(keys, &memory, out));
    TRY_TO(result, done, buf_puts(out, "\n"));
done:
    arena_release(&memory);
    return result;
}

status keys_markdown(struct buf *out) {
    for (const char *const *stage = keys_stages(); *stage; stage++)
        TRY(markdown_table(*stage, keys_of(*stage)->help, keys_of(*stage)->keys, out));
    return markdown_table("every stage", "keys that every stage has", keys_common(), out);
}
