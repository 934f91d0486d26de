// caravan: the command-line tool. Finds the subcommand and calls it.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

static const struct subcommand {
    const char *name;
    subcommand_main *main;
    const char *help;
} subcommands[] = {
    {"check", check_main, "find every mistake in a pipeline file"},
    {"data", data_main, "count what an annotation file has, and find what is missing"},
    {"eval", eval_main, "print the figures of scored groups, files side by side"},
    {"frames", frames_main, "list, show and export the frames of a store"},
    {"graph", graph_main, "draw a pipeline file"},
    {"groups", groups_main, "list, show and export the groups of a store"},
    {"init", init_main, "write a model directory with random weights"},
    {"keygen", keygen_main, "make a pair of keys for a machine"},
    {"make-demo-data", make_demo_data_main, "make the clips and questions of the demo"},
    {"pairs", pairs_main, "make training data of the consistency model from judged groups"},
    {"plan", plan_main, "say what each stage takes of a GPU's memory"},
    {"reference", reference_main, "print every key and field as Markdown"},
    {"report", report_main, "compare files of groups: accuracy, rewards, speed"},
    {"run", run_main, "start or resume a pipeline"},
    {"stop", stop_main, "stop a run on all its machines"},
    {"tokenize", tokenize_main, "convert text or messages to tokens, and back"},
    {"top", top_main, "show a run while it works: rates, queues, states, last steps"},
    {"train-consistency", train_consistency_main, "train a model that says whether thinking supports an answer"},
};
// Called by caravan itself.
static const struct subcommand hidden[] = {{"program", program_main, NULL}};
enum { subcommand_count = sizeof subcommands / sizeof subcommands[0] };

static int tools_print_help(FILE *out, int code) {
    fputs("caravan: consistency-aware reinforcement learning for video-language models\n\n"
          "usage: caravan SUBCOMMAND [...], caravan SUBCOMMAND --help, caravan --version\n\n",
          out);
    for (int i = 0; i < subcommand_count; i++) fprintf(out, "  %-17s %s\n", subcommands[i].name, subcommands[i].help);
    return code;
}

int main(int argc, char **argv) {
    log_open("caravan");
    if (fd_reserve_standard() != OK) {
        log_info("%s", fail_text());
        return UNAVAILABLE;
    }
    if (argc < 2) return tools_print_help(stderr, USAGE);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) return tools_print_help(stdout, 0);
    if (!strcmp(argv[1], "--version")) {
        puts("caravan " CARAVAN_VERSION);
        return 0;
    }
    for (int i = 0; i < subcommand_count; i++) {
        if (!strcmp(argv[1], subcommands[i].name)) return subcommands[i].main(argc - 1, argv + 1);
    }
    if (!strcmp(argv[1], hidden[0].name)) return hidden[0].main(argc - 1, argv + 1);
    log_info("there is no subcommand '%s'; see caravan --help", argv[1]);
    return USAGE;
}
