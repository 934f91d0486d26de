// caravan reference: the texts that are made from the tables which the programs themselves read. The reference page is
// Markdown.
#include <stdio.h>

#include "shared/config/pipeline.h"
#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"
#include "tools/tools.h"

const struct option_table reference_table = {
    .program = "caravan reference",
    .help = "prints the keys of stages and pipeline files and the group's fields as Markdown",
};

int reference_main(int argc, char **argv) {
    struct options options = {0};
    struct operands none = {0};
    struct buf page = {0};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &reference_table, NULL, argc, argv, &none));
    TRY_TO(result, done,
           buf_puts(&page, "# Reference\n\nThis page is the output of `caravan reference`; `make reference` writes it "
                           "anew.\n\n## The stages' keys\n\n"));
    TRY_TO(result, done, stage_kinds_markdown(&page));
    TRY_TO(result, done, buf_puts(&page, "## The pipeline file\n\n"));
    TRY_TO(result, done, pipeline_keys_markdown(&page));
    TRY_TO(result, done, buf_puts(&page, "## The group\n\n"));
    TRY_TO(result, done, group_reference_page(&page));
    fwrite(page.data, 1, page.size, stdout);
done:
    buf_release(&page);
    options_release(&options);
    return subcommand_exit(result);
}
