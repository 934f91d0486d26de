// caravan: the command-line tool. Finds the subcommand and calls it.
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

const struct subcommand subcommands[] = {
    {"agreement", agreement_main, &agreement_table, "say how far judges of consistency agree", .least = 1,
     .most = INT_MAX},
    {"ask", ask_main, &ask_table, "ask a model, also about pictures and clips", .least = 1, .most = 2, .named = true},
    {"check", check_main, &check_table, "find every mistake in a pipeline file and what it names",
     .pipeline = PIPELINE_OR_RUN},
    {"compare", compare_main, &compare_table, "compare evaluations of methods over seeds", .least = 1, .most = INT_MAX},
    {"curves", curves_main, &curves_table, "draw learning curves", .least = 1, .most = INT_MAX},
    {"data", data_main, &data_table, "count what an annotation file has, and find what is missing", .most = 1},
    {"draw", draw_main, &draw_table, "make a miniature of SEED-Bench-R1", .least = 1, .most = 1},
    {"eval", eval_main, &eval_table, "print the figures of scored groups, files side by side", .least = 1,
     .most = INT_MAX},
    {"frames", frames_main, &frames_tool_table, "list, show and export the frames of a store", .least = 1, .most = 3,
     .named = true},
    {"graph", graph_main, &graph_table, "draw a pipeline file", .pipeline = PIPELINE_ALONE},
    {"groups", groups_main, &groups_table, "list, show and export the groups of a store", .least = 1, .most = INT_MAX,
     .named = true},
    {"init", init_main, &init_table, "write a model directory with random weights", .least = 1, .most = 1},
    {"judge-drawn", judge_drawn_main, &judge_drawn_table, "judge completions on the miniature by its rule", .most = 0},
    {"keygen", keygen_main, &keygen_table, "make a pair of keys for a machine", .most = 1},
    {"ls", ls_main, &ls_table, "list the active runs of this machine", .most = 0},
    {"make-demo-data", make_demo_data_main, &make_demo_data_table, "make clips and questions to try a training with",
     .least = 1, .most = 1},
    {"merge", merge_main, &merge_table, "add an adapter (LoRA) to the weights of a model", .least = 3, .most = 3},
    {"pairs", pairs_main, &pairs_table, "make training data of the consistency model", .least = 1, .most = INT_MAX},
    {"plan", plan_main, &plan_table, "say what each stage takes of a GPU's memory", .pipeline = PIPELINE_ALONE},
    {"reference", reference_main, &reference_table, "print every key and field as Markdown", .most = 0},
    {"replay", replay_main, &replay_table, "run a stage again on stored groups, and say what differs", .least = 1,
     .most = INT_MAX, .named = true},
    {"report", report_main, &report_table, "compare files of groups: accuracy, rewards, speed", .least = 1,
     .most = MAX_REPORT_FILES},
    {"run", run_main, &run_table, "start or resume a pipeline", .pipeline = PIPELINE_FILE},
    {"serve", serve_main, &serve_table, "answer OpenAI's chat completions with a model", .least = 1, .most = 1,
     .named = true},
    {"stop", stop_main, &stop_table, "stop a run on all its machines", .pipeline = PIPELINE_ALONE},
    {"tokenize", tokenize_main, &tokenize_table, "convert text or messages to tokens, and back", .most = 0},
    {"top", top_main, &top_table, "show a run while it works: rates, queues, states, last steps",
     .pipeline = PIPELINE_ALONE},
    {"train-consistency", train_consistency_main, &train_consistency_table,
     "train a model that says whether thinking supports an answer", .most = 0},
    {"view", view_main, &view_table, "show a run as a page in a browser", .least = 1, .most = INT_MAX},
    {0},
};

static void tools_print_help(FILE *out) {
    fputs("caravan: consistency-aware reinforcement learning for video-language models\n\n"
          "usage: caravan SUBCOMMAND [...], caravan SUBCOMMAND --help, caravan --version\n\n",
          out);
    for (const struct subcommand *at = subcommands; at->name; at++) fprintf(out, "  %-17s %s\n", at->name, at->help);
}

int main(int argc, char **argv) {
    log_open("caravan");
    if (fd_reserve_standard() != OK) {
        log_info("%s", fail_text());
        return UNAVAILABLE;
    }
    if (argc < 2) {
        tools_print_help(stderr);
        return USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        tools_print_help(stdout);
        return subcommand_exit(OK);
    }
    if (!strcmp(argv[1], "--version")) {
        puts("caravan " CARAVAN_VERSION);
        return subcommand_exit(OK);
    }
    struct nearest nearest = nearest_to(argv[1]);
    for (const struct subcommand *at = subcommands; at->name; at++) {
        if (!strcmp(argv[1], at->name)) return subcommand_run(at, argc - 1, argv + 1);
        nearest_offer(&nearest, at->name);
    }
    if (!strcmp(argv[1], "program")) return program_main(argc - 1, argv + 1); // caravan run calls it
    log_info("there is no subcommand '%s'%s; see caravan --help", argv[1], nearest_question(&nearest));
    return USAGE;
}
