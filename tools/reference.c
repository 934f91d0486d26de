// caravan reference: the reference page, Markdown, from the tables that the programs themselves read.
#include <stdio.h>

#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"
#include "tools/tools.h"

static const struct option_table reference_table = {
    .program = "caravan reference",
    .help = "prints every stage's keys and the group's fields as Markdown",
};

int reference_main(int argc, char **argv) {
    struct options options = {0};
    struct operands none = {0};
    struct buf page = {0};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &reference_table, NULL, argc, argv, &none));
    TRY_TO(result, done, buf_puts(&page, "# Reference\n\nMade by `caravan reference`.\n\n## The stages' keys\n\n"));
    TRY_TO(result, done, stage_kinds_markdown(&page));
    TRY_TO(result, done, buf_puts(&page, "## The group\n\n"));
    TRY_TO(result, done, group_reference_page(&page));
    fwrite(page.data, 1, page.size, stdout);
    if (fflush(stdout)) result = fail(UNAVAILABLE, "standard output cannot be written");
done:
    buf_release(&page);
    options_release(&options);
    return subcommand_exit(result);
}
