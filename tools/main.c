// caravan: the command-line tool. Finds the subcommand and calls it.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

const struct subcommand subcommands[] = {
    {"check", check_main, &check_table, "find every mistake in a pipeline file and what it names"},
    {"data", data_main, &data_table, "count what an annotation file has, and find what is missing"},
    {"eval", eval_main, &eval_table, "print the figures of scored groups, files side by side"},
    {"frames", frames_main, &frames_tool_table, "list, show and export the frames of a store"},
    {"graph", graph_main, &graph_table, "draw a pipeline file"},
    {"groups", groups_main, &groups_table, "list, show and export the groups of a store"},
    {"init", init_main, &init_table, "write a model directory with random weights"},
    {"keygen", keygen_main, &keygen_table, "make a pair of keys for a machine"},
    {"ls", ls_main, &ls_table, "list the active runs of this machine"},
    {"make-demo-data", make_demo_data_main, &make_demo_data_table, "make the clips and questions of the demo"},
    {"pairs", pairs_main, &pairs_table, "make training data of the consistency model"},
    {"plan", plan_main, &plan_table, "say what each stage takes of a GPU's memory"},
    {"reference", reference_main, &reference_table, "print every key and field as Markdown"},
    {"report", report_main, &report_table, "compare files of groups: accuracy, rewards, speed"},
    {"run", run_main, &run_table, "start or resume a pipeline"},
    {"stop", stop_main, &stop_table, "stop a run on all its machines"},
    {"tokenize", tokenize_main, &tokenize_table, "convert text or messages to tokens, and back"},
    {"top", top_main, &top_table, "show a run while it works: rates, queues, states, last steps"},
    {"train-consistency", train_consistency_main, &train_consistency_table,
     "train a model that says whether thinking supports an answer"},
    {0},
};
// Called by caravan itself.
static const struct subcommand hidden = {.name = "program", .main = program_main};

static int tools_print_help(FILE *out, int code) {
    fputs("caravan: consistency-aware reinforcement learning for video-language models\n\n"
          "usage: caravan SUBCOMMAND [...], caravan SUBCOMMAND --help, caravan --version\n\n",
          out);
    for (const struct subcommand *at = subcommands; at->name; at++) fprintf(out, "  %-17s %s\n", at->name, at->help);
    return code;
}

int main(int argc, char **argv) {
    log_open("caravan");
    if (fd_reserve_standard() != OK) {
        log_info("%s", fail_text());
        return UNAVAILABLE;
    }
    if (argc < 2) return tools_print_help(stderr, USAGE);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help"))
        return tools_print_help(stdout, 0);
    if (!strcmp(argv[1], "--version")) {
        puts("caravan " CARAVAN_VERSION);
        return 0;
    }
    struct nearest nearest = nearest_to(argv[1]);
    for (const struct subcommand *at = subcommands; at->name; at++) {
        if (!strcmp(argv[1], at->name)) return at->main(argc - 1, argv + 1);
        nearest_offer(&nearest, at->name);
    }
    if (!strcmp(argv[1], hidden.name)) return hidden.main(argc - 1, argv + 1);
    log_info("there is no subcommand '%s'%s; see caravan --help", argv[1], nearest_question(&nearest));
    return USAGE;
}
