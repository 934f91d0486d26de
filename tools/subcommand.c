// What all subcommands do alike: options, operands, exit codes.
#include "shared/base/log.h"
#include "tools/tools.h"

status subcommand_parse(struct options *options, const struct option_table *table, void *values, int argc, char **argv,
                        struct operands *operands) {
    int rest = argc;
    TRY(options_init(options, table, values));
    TRY(options_parse(options, argc, argv, &rest));
    operands->list = argv + rest;
    operands->count = argc - rest;
    if (operands->count < operands->least)
        return fail(USAGE, "an operand is missing: %s %s", table->program, table->operands);
    if (operands->count > operands->most)
        return fail(USAGE, "unexpected operand '%s': %s %s", operands->list[operands->most], table->program,
                    table->operands);
    return OK;
}

int subcommand_exit(status result) {
    if (result == OK || result == END) return 0;
    log_info("%s", fail_text());
    return status_exit_code(result);
}
