// caravan reference: the reference page, Markdown, from the tables that the programs themselves read.
#include <stdio.h>

#include "shared/base/log.h"
#include "shared/config/options.h"
#include "shared/group/group.h"
#include "tools/tools.h"

static const struct option reference_keys[] = {{0}};
static const struct option_table reference_table = {
    NULL, "caravan reference", NULL, "prints every stage's keys and the group's fields as Markdown", reference_keys};

static status print_page(void) {
    struct buf page = {0};
    status result = buf_puts(&page, "# Reference\n\nMade by `caravan reference`.\n\n## The stages' keys\n\n");
    if (result == OK) result = options_markdown(&page);
    if (result == OK) result = buf_puts(&page, "## The group\n\n");
    if (result == OK) result = group_reference_page(&page);
    if (result == OK) fwrite(page.data, 1, page.size, stdout);
    if (result == OK && fflush(stdout)) result = fail(UNAVAILABLE, "standard output cannot be written");
    buf_release(&page);
    return result;
}

int reference_main(int argc, char **argv) {
    struct settings *settings = NULL;
    status result = settings_new_table(&settings, &reference_table);
    if (result == OK) result = settings_arguments(settings, argc, argv, NULL);
    if (result == OK) result = print_page();
    if (result != OK && result != END) log_info("%s", fail_text());
    settings_free(&settings);
    return result == END ? 0 : result;
}
