// caravan reference: the texts that are made from the tables which the programs themselves read: the reference page in
// Markdown, manual pages, completion.
#include <stdio.h>

#include "shared/config/pipeline.h"
#include "shared/config/stage_kinds.h"
#include "shared/group/group.h"
#include "tools/reference/completion.h"
#include "tools/reference/man_page.h"
#include "tools/tools.h"

struct reference_options {
    const char *man, *completion;
};

static const char reference_shells[] = "bash|zsh|fish";

static const struct option reference_options[] = {
    {.name = "man",
     .offset = offsetof(struct reference_options, man),
     .type = OPTION_STRING,
     .help = "print the manual page of this program, caravan or caravan-STAGE"},
    {.name = "completion",
     .offset = offsetof(struct reference_options, completion),
     .type = OPTION_NAME,
     .choices = reference_shells,
     .instead_of = "man",
     .help = "print the completion script of this shell"},
    {0},
};
const struct option_table reference_table = {
    .program = "caravan reference",
    .help = "prints the keys of stages and pipeline files and the group's fields as Markdown",
    .options = reference_options,
    .size = sizeof(struct reference_options),
};

int reference_main(int argc, char **argv) {
    struct reference_options given;
    struct options options = {0};
    struct operands none = {0};
    struct buf page = {0};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &reference_table, &given, argc, argv, &none));
    if (given.man) {
        TRY_TO(result, done, man_page(given.man, &page));
    } else if (given.completion) {
        static status (*const scripts[])(struct buf *) = {completion_bash, completion_zsh, completion_fish};
        TRY_TO(result, done, scripts[choice_index(reference_shells, given.completion)](&page));
    } else {
        buf_puts(&page, "# Reference\n\nThis page is the output of `caravan reference`; `make reference` writes "
                        "it anew.\n\n## The stages' keys\n\n");
        stage_kinds_markdown(&page);
        buf_puts(&page, "## The pipeline file\n\n");
        pipeline_keys_markdown(&page);
        buf_puts(&page, "## The group\n\n");
        group_reference_page(&page);
    }
    fwrite(page.data, 1, page.size, stdout);
done:
    buf_release(&page);
    options_release(&options);
    return subcommand_exit(result);
}
