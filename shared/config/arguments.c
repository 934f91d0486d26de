// The command line of every program. Operands may stand anywhere; the file of --config is read before the other
// options.
#include "shared/config/options.h"

#include <stdio.h>
#include <string.h>

#include "shared/config/yaml_tree.h"
#include "shared/config/table.h"

// One option as it stands on the command line.
struct argument {
    char name[64];
    const char *value; // behind '=', or NULL
    const struct option *key;
    bool negated; // --no-flag
};

static status read_argument(struct argument *option, const struct option_table *table, const char *argument) {
    const char *name = argument + 2;
    size_t length = strcspn(name, "=");
    *option = (struct argument){.value = name[length] ? name + length + 1 : NULL};
    snprintf(option->name, sizeof option->name, "%.*s", (int)length, name);
    option->key = length < sizeof option->name ? option_find(table, option->name) : NULL;
    if (!option->key && (!strncmp(name, "no-", 3) || !strncmp(name, "no_", 3)) && !option->value) {
        option->key = option_find(table, option->name + 3);
        option->negated = true;
        if (option->key && option->key->type != OPTION_BOOL) option->key = NULL;
    }
    if (option->key) return OK;
    const char *near = option_suggest(table, option->name);
    if (near) return fail(USAGE, "--%s: no such option; did you mean --%s?", option->name, near);
    return fail(USAGE, "--%s: no such option", option->name);
}

// Finds the value of argv[*at] and moves *at to the last argument that it took.
static status option_value(struct argument *option, int argc, char **argv, int *at) {
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    if (option->value) return OK;
    if (option->key->type == OPTION_BOOL) {
        option->value = option->negated ? "false" : "true";
        if (next && !option->negated && option_check(option->key, next) == OK) option->value = argv[++*at];
        return OK;
    }
    if (!next) return fail(USAGE, "--%s: a value is missing", option->name);
    option->value = argv[++*at];
    return OK;
}

// Calls settings_set for each option but --config, or for --config alone. Operands are counted and moved to the front.
static status read_arguments(struct settings *settings, const struct option_table *table, int argc, char **argv,
                             bool config, int *operands) {
    int moved = 0;
    bool ended = false;
    for (int at = 1; at < argc; at++) {
        if (!ended && !strcmp(argv[at], "--")) {
            ended = true;
        } else if (ended || strncmp(argv[at], "--", 2) != 0) {
            if (!config) argv[1 + moved] = argv[at]; // places up to `at` are read already
            moved++;
        } else {
            struct argument option;
            TRY(read_argument(&option, table, argv[at]));
            TRY(option_value(&option, argc, argv, &at));
            bool is_config = !strcmp(option.key->name, "config");
            if (config && is_config) {
                TRY(settings_set(settings, "config", option.value));
                TRY(settings_file(settings, option.value));
            } else if (!config && !is_config) {
                TRY(settings_set(settings, option.key->name, option.value));
            }
        }
    }
    *operands = moved;
    return OK;
}

static status print_and_stop(struct buf *text) {
    fwrite(text->data, 1, text->size, stdout);
    fflush(stdout);
    return fail(END, "help was asked for");
}

static status answer_questions(const struct option_table *table, int argc, char **argv) {
    struct buf text = {0};
    status result = OK;
    for (int at = 1; at < argc && result == OK; at++) {
        if (!strcmp(argv[at], "--")) break;
        if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h")) {
            result = options_help(table, &text);
            if (result == OK) result = print_and_stop(&text);
        } else if (!strcmp(argv[at], "--version")) {
            result = buf_printf(&text, "%s %s\n", table->program, CARAVAN_VERSION);
            if (result == OK) result = print_and_stop(&text);
        }
    }
    buf_release(&text);
    return result;
}

static status check_operands(const struct option_table *table, int argc, char **argv, const int *rest) {
    if (*rest < argc && !table->operands) return fail(USAGE, "%s: not expected here", argv[*rest]);
    return OK;
}

status settings_arguments(struct settings *settings, int argc, char **argv, int *rest) {
    const struct option_table *table = settings_table(settings);
    int operands;
    TRY(answer_questions(table, argc, argv));
    TRY(read_arguments(settings, table, argc, argv, true, &operands));
    TRY(read_arguments(settings, table, argc, argv, false, &operands));
    // Operands now stand at 1..operands: behind the options they go.
    int first = argc - operands;
    memmove(argv + first, argv + 1, (size_t)operands * sizeof *argv);
    TRY(check_operands(table, argc, argv, &first));
    if (rest) *rest = first;
    return settings_complete(settings);
}
