// The command line of every program, the file of --config, and the texts that describe options: --help and the
// reference page. Operands may stand anywhere; the file is read before the other options, so the command line wins.
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/config/options.h"
#include "shared/config/pipeline_parse.h"
#include "shared/config/stage_kinds.h"

// ---- help ----

const char *option_argument(const struct option *option, struct arena *arena) {
    static const char *const types[] = {
        [OPTION_STRING] = "TEXT",     [OPTION_FILE] = "FILE",     [OPTION_PATH] = "PATH",
        [OPTION_NAME] = "",           [OPTION_DEVICE] = "DEVICE", [OPTION_CHOICE] = "",
        [OPTION_INT] = "N",           [OPTION_NUMBER] = "X",      [OPTION_RANGE] = "A..B",
        [OPTION_BOOL] = "true|false", [OPTION_SIZE] = "SIZE",     [OPTION_KEEP] = "N steps|SIZE"};
    assert((size_t)option->type < sizeof types / sizeof *types);
    const char *type = types[option->type];
    if (!option->choices) return type;
    return *type ? arena_printf(arena, "%s|%s", type, option->choices) : option->choices;
}

static void options_help_rows(const struct option *option, int columns, struct buf *out) {
    enum { COLUMN = 28, TEXT = COLUMN + 3 }; // widths of the option's column and of what stands before its text
    enum { INDENT = 6 };                     // of more lines with the option's choices
    struct arena arena = {0};
    for (; option && option->name; option++) {
        bool flag = option->type == OPTION_BOOL;
        const char *argument = flag ? "" : option_argument(option, &arena);
        char *left = arena_printf(&arena, "--%s%s%s", option->name, flag ? "" : " ", argument);
        for (char *at = left; *at && *at != ' '; at++) // --max-new-tokens N
            if (*at == '_') *at = '-';
        buf_puts(out, "  ");
        int column = 2;
        for (const char *at = left; *at;) { // choices that do not fit break behind a '|'
            const size_t word = strcspn(at, "|"), size = word + (at[word] != 0);
            if (column + (int)size > columns && column > INDENT) {
                buf_printf(out, "\n%*s", INDENT, "");
                column = INDENT;
            }
            buf_append(out, at, size);
            column += (int)size;
            at += size;
        }
        if (strlen(left) > COLUMN)
            buf_printf(out, "\n%*s", TEXT, "");
        else
            buf_printf(out, "%*s", TEXT - 2 - (int)strlen(left), "");
        bool said = option->default_value && strcmp(option->default_value, "false") != 0;
        const char *text = arena_printf(&arena, "%s%s%s%s%s", option->help, option->required ? " (required)" : "",
                                        said ? " (" : "", said ? option->default_value : "", said ? ")" : "");
        text_wrap(text, TEXT, TEXT, columns, out);
        buf_puts(out, "\n");
    }
    arena_release(&arena);
}

void options_help(const struct option_table *table, int columns, struct buf *out) {
    static const char usage[] = "usage: ";
    const bool keys = table->options || table->common;
    struct arena arena = {0};
    const char *line = arena_printf(&arena, "%s%s %s", table->program, keys ? " [--KEY VALUE]..." : "",
                                    table->operands ? table->operands : "");
    const char *help = arena_printf(&arena, "%c%s", toupper((unsigned char)table->help[0]), table->help + 1);
    buf_puts(out, usage);
    text_wrap(line, sizeof usage - 1, sizeof usage - 1, columns, out);
    buf_puts(out, "\n");
    text_wrap(help, 0, 0, columns, out);
    buf_puts(out, keys ? "\n\n" : "\n");
    arena_release(&arena);
    options_help_rows(table->options, columns, out);
    if (table->details) buf_printf(out, "\n%s", table->details);
    if (!table->common) return;
    buf_puts(out, "\nof every stage:\n");
    options_help_rows(table->common, columns, out);
    buf_puts(out, "\nA true-or-false option may stand alone (true) or as --no-NAME (false).\n"
                  "exit codes: 0 done, 64 wrong usage, 65 bad input, 69 a missing service or\n"
                  "device, 70 a bug\n");
}

void options_markdown(const char *title, const char *help, const struct option *option, struct buf *out) {
    struct arena arena = {0};
    buf_printf(out, "### %s\n\n%c%s.\n\n| key | value | default | meaning |\n|---|---|---|---|\n", title,
               toupper((unsigned char)*help), help + 1);
    for (; option->name; option++) {
        const char *argument = option_argument(option, &arena);
        const char *value = option->required ? "required" : option->default_value ? option->default_value : "";
        bool number = option->type == OPTION_INT || option->type == OPTION_NUMBER;
        buf_printf(out, "| `%s` | ", option->name);
        buf_escape(out, argument, "|"); // which would end the cell
        buf_printf(out, " | %s | ", value);
        buf_escape(out, option->help, "|");
        if (number && option->high < 1e15)
            buf_printf(out, " (%.10g to %.10g)", option->low, option->high);
        else if (number && option->low > -1e300)
            buf_printf(out, " (at least %.10g)", option->low);
        buf_puts(out, " |\n");
    }
    buf_puts(out, "\n");
    arena_release(&arena);
}

void stage_kinds_markdown(struct buf *out) {
    for (int i = 0; i < STAGE_COUNT; i++)
        options_markdown(stage_kinds[i].name, stage_kinds[i].options.help, stage_kinds[i].options.options, out);
    options_markdown("every stage", "keys that every stage has", common_options, out);
}

// ---- the file of --config ----

// Reads a YAML mapping of options; relative paths are relative to that file. DATAERR for a file that is not such a
// mapping, USAGE for a wrong name or value, both with "FILE:LINE:COLUMN: ".
static status options_read_file(struct options *options, const char *path) {
    struct buf content = {0};
    struct yaml_tree tree = {0};
    struct location at;
    const char *dir = path_parent(&options->arena, path);
    status result = file_read(path, &content);
    if (result != OK) goto done;
    result = yaml_tree_read(&tree, content.data, content.size, &at);
    if (result == OK && tree.root && tree.root->type != YAML_MAPPING_NODE)
        result = fail(DATAERR, "1:1: expected a mapping of keys, not %s", yaml_node_kind(tree.root));
    const yaml_node_pair_t *pair = result == OK && tree.root ? tree.root->data.mapping.pairs.start : NULL;
    for (; result == OK && pair && pair < tree.root->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name_node = yaml_document_get_node(&tree.yaml, pair->key),
                          *value_node = yaml_document_get_node(&tree.yaml, pair->value);
        const char *name = yaml_node_string(name_node), *value = yaml_node_string(value_node);
        const struct option *option = name ? option_find_any(options->table, name) : NULL;
        const yaml_node_pair_t *first = tree.root->data.mapping.pairs.start; // that has this option
        for (; option && first < pair; first++) {
            const char *before = yaml_node_string(yaml_document_get_node(&tree.yaml, first->key));
            if (option_find_any(options->table, before) == option) break;
        }
        const bool twice = option && first < pair;
        if (!name) {
            result = fail(USAGE, "a key must be a name, not %s", yaml_node_kind(name_node));
        } else if (twice) {
            result = fail(USAGE, "%s is given twice", name);
        } else if (!value) {
            result = fail(USAGE, "%s: expected a value, not %s", name, yaml_node_kind(value_node));
        } else if (option && (!strcmp(option->name, "config") || !option_find(options->table, name))) {
            result = fail(USAGE, "%s: not allowed in a configuration file", option->name);
        } else {
            const char *absolute = option ? option_absolute(option, dir, value, &options->arena) : value;
            result = options_set(options, name, absolute);
        }
        at = yaml_node_location(name && !twice && (option || !value) ? value_node : name_node);
        if (result != OK) fail_prefix(result, "%zu:%zu", at.line, at.column);
    }
    if (result != OK) fail(result, "%s:%s", path, fail_text());
done:
    yaml_tree_release(&tree);
    buf_release(&content);
    return result;
}

// ---- the command line ----

// Sets each option but --config, or --config alone. In the first case operands are counted and moved to the front.
static status options_parse_all(struct options *options, int argc, char **argv, bool config, int *operands) {
    bool ended = false;
    *operands = 0;
    for (int at = 1; at < argc; at++) {
        if (!ended && !strcmp(argv[at], "--")) {
            ended = true;
            continue;
        }
        if (ended || strncmp(argv[at], "--", 2) != 0) {
            if (!config) argv[1 + (*operands)++] = argv[at]; // the arguments up to `at` are read already
            continue;
        }
        char name[64];
        const bool more = at + 1 < argc;
        const char *argument = argv[at] + 2;
        size_t length = strcspn(argument, "=");
        const char *value = argument[length] ? argument + length + 1 : NULL;
        snprintf(name, sizeof name, "%.*s", (int)length, argument);
        const struct option *option = length < sizeof name ? option_find_any(options->table, name) : NULL;
        const bool negated = !option && (!strncmp(name, "no-", 3) || !strncmp(name, "no_", 3));
        if (negated) {
            option = option_find(options->table, name + 3);
            if (option && option->type != OPTION_BOOL)
                return fail(USAGE, "--%s: %s is not true or false", name, name + 3);
            if (option && value) return fail(USAGE, "--%s: takes no value", name);
            value = "false";
        }
        if (!option) {
            struct nearest nearest = nearest_to(negated ? name + 3 : name);
            nearest_offer_all(&nearest, options->table);
            const bool negates =
                negated && nearest.name && option_find(options->table, nearest.name)->type == OPTION_BOOL;
            if (!nearest.name || (negated && !negates)) return fail(USAGE, "--%s: no such option", name);
            return fail(USAGE, "--%s: no such option; did you mean --%s%s?", name, negates ? "no-" : "", nearest.name);
        }
        if (!value && option->type == OPTION_BOOL && (!more || option_check(option, argv[at + 1]) != OK))
            value = "true";
        if (!value && !more) return fail(USAGE, "--%s: a value is missing", name);
        if (!value) value = argv[++at];
        bool is_config = !strcmp(option->name, "config");
        if (config != is_config) continue;
        TRY(options_set(options, option->name, value));
        if (config) TRY(options_read_file(options, value));
    }
    return OK;
}

status options_parse(struct options *options, int argc, char **argv, int *rest) {
    const struct option_table *table = options->table;
    enum { MOST_COLUMNS = 100 };
    struct buf text = {0};
    status result = OK;
    int operands = 0, columns;
    terminal_size(STDOUT_FILENO, &columns, NULL);
    columns = columns > MOST_COLUMNS ? MOST_COLUMNS : columns < 80 ? 80 : columns;
    for (int at = 1; at < argc && !text.size && strcmp(argv[at], "--") != 0; at++) {
        if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h"))
            options_help(table, columns, &text);
        else if (!strcmp(argv[at], "--version"))
            buf_printf(&text, "%s %s\n", table->program, CARAVAN_VERSION);
    }
    if (text.size) {
        const bool written = fwrite(text.data, 1, text.size, stdout) == text.size && !fflush(stdout);
        buf_release(&text);
        return written ? fail(END, "help was printed") : fail(UNAVAILABLE, "cannot write to standard output");
    }
    TRY(options_parse_all(options, argc, argv, true, &operands));
    TRY(options_parse_all(options, argc, argv, false, &operands));
    assert(operands < argc);
    *rest = argc - operands;
    memmove(argv + *rest, argv + 1, (size_t)operands * sizeof *argv);
    if (operands && !table->operands) return fail(USAGE, "%s: not expected here", argv[*rest]);
    struct broken_rule rule = {0};
    struct buf missing = {0};
    for (const struct option *option = NULL; (option = options_next(table, option));)
        if (option->required && !key_list_find(&options->given, option->name))
            buf_printf(&missing, "%s%s", missing.size ? ", " : "", option->name);
    if (missing.size)
        result = fail(USAGE, "missing: %s", missing.data);
    else if (options_next_broken_rule(options, &rule))
        result = fail(USAGE, "%s", rule.text);
    buf_release(&missing);
    return result;
}
