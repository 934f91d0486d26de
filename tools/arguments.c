// Options of the small verbs.
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

// Whether name[0..length) is the option's; both spellings of the separator work.
static bool is_name(const char *option, const char *name, size_t length) {
    if (strlen(option) != length) return false;
    for (size_t i = 0; i < length; i++)
        if (option[i] != (name[i] == '_' ? '-' : name[i])) return false;
    return true;
}

static status set_option(const struct tool_option *options, const char *name, size_t length, const char *value) {
    for (const struct tool_option *option = options; option->name; option++) {
        if (!is_name(option->name, name, length)) continue;
        if (!value) return fail(USAGE, "--%s: a value is missing", option->name);
        if (option->text) {
            *option->text = value;
            return OK;
        }
        char *end;
        double number = strtod(value, &end);
        if (end == value || *end || !(number >= option->low && number <= option->high))
            return fail(USAGE, "--%s: '%s' is not a number from %g to %g", option->name, value, option->low,
                        option->high);
        *option->value = number;
        return OK;
    }
    return fail(USAGE, "unknown option --%.*s", (int)length, name);
}

status tool_arguments(int argc, char **argv, const char *help, const struct tool_option *options,
                      const char **operand) {
    *operand = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help")) {
            fputs(help, stdout);
            return END;
        }
        if (!strncmp(argv[i], "--", 2)) {
            const char *name = argv[i] + 2, *equals = strchr(name, '=');
            size_t length = equals ? (size_t)(equals - name) : strlen(name);
            const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            TRY(set_option(options, name, length, value));
        } else if (*operand) {
            return fail(USAGE, "unexpected argument '%s'", argv[i]);
        } else {
            *operand = argv[i];
        }
    }
    return *operand ? OK : fail(USAGE, "an argument is missing: see --help");
}
