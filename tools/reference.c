// caravan reference: the reference page, Markdown, from the tables that the programs themselves read.
#include <stdio.h>

#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"
#include "tools/tools.h"

static const struct option_table reference_table = {
    .program = "caravan reference",
    .help = "prints every stage's keys and the group's fields as Markdown",
};

static status print_page(void) {
    struct buf page = {0};
    status result = buf_puts(&page, "# Reference\n\nMade by `caravan reference`.\n\n## The stages' keys\n\n");
    if (result == OK) result = stage_kinds_markdown(&page);
    if (result == OK) result = buf_puts(&page, "## The group\n\n");
    if (result == OK) result = group_reference_page(&page);
    if (result == OK) fwrite(page.data, 1, page.size, stdout);
    if (result == OK && fflush(stdout)) result = fail(UNAVAILABLE, "standard output cannot be written");
    buf_release(&page);
    return result;
}

int reference_main(int argc, char **argv) {
    struct options options = {0};
    struct operands none = {0};
    status result = subcommand_parse(&options, &reference_table, NULL, argc, argv, &none);
    if (result == OK) result = print_page();
    options_release(&options);
    return subcommand_exit(result);
}
