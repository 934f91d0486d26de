// caravan: the tool. Finds the verb and hands over.
#include <stdio.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "tools/tools.h"

static const struct verb {
    const char *name;
    verb_main *main;
    const char *help;
} verbs[] = {
    {"check", check_main, "every mistake in a pipeline file"},
    {"draw", draw_main, "make the demo's clips and questions"},
    {"frames", frames_main, "list, show and export the frames of a store"},
    {"graph", graph_main, "a pipeline file as a picture"},
    {"groups", groups_main, "what lies in a groups store"},
    {"init", init_main, "a model folder with random weights"},
    {"keygen", keygen_main, "a pair of keys for a machine"},
    {"reference", reference_main, "every key and field, as Markdown"},
    {"report", report_main, "files of groups side by side: accuracy, rewards, rates"},
    {"run", run_main, "start a pipeline, or go on with it"},
    {"tokenize", tokenize_main, "texts or messages to tokens, and back"},
    {"top", top_main, "a run as it goes: rates, queues, waits, the last steps"},
};
// Verbs that caravan itself calls.
static const struct verb hidden[] = {{"program", program_main, NULL}};
enum { verb_count = sizeof verbs / sizeof verbs[0] };

static int print_help(FILE *out, int code) {
    fputs("caravan: consistency-aware reinforcement learning for video-language models\n\n"
          "usage: caravan VERB [...], caravan VERB --help, caravan --version\n\n",
          out);
    for (int i = 0; i < verb_count; i++) fprintf(out, "  %-10s %s\n", verbs[i].name, verbs[i].help);
    return code;
}

int main(int argc, char **argv) {
    log_open("caravan");
    if (fd_reserve_standard() != OK) {
        log_info("%s", fail_text());
        return UNAVAILABLE;
    }
    if (argc < 2) return print_help(stderr, USAGE);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help")) return print_help(stdout, 0);
    if (!strcmp(argv[1], "--version")) {
        puts("caravan " CARAVAN_VERSION);
        return 0;
    }
    for (int i = 0; i < verb_count; i++) {
        if (!strcmp(argv[1], verbs[i].name)) return verbs[i].main(argc - 1, argv + 1);
    }
    if (!strcmp(argv[1], hidden[0].name)) return hidden[0].main(argc - 1, argv + 1);
    log_info("no verb '%s': see caravan --help", argv[1]);
    return USAGE;
}
