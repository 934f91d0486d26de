// The verbs of `caravan`, and what they share. A verb is a file tools/VERB.c and a row in main.c's table.
#ifndef TOOLS_TOOLS_H
#define TOOLS_TOOLS_H

#include "shared/config/options.h"

// What stands behind the options.
struct operands {
    int least, most; // how many there may be
    int count;
    char **list;
};

// Parses the command line of a subcommand: fills `values`, the table's struct, and the operands. END after --help and
// --version; USAGE or DATAERR for what is wrong. Release with options_release.
status subcommand_parse(struct options *options, const struct option_table *table, void *values, int argc, char **argv,
                        struct operands *operands);

// Logs a failure and returns the exit code: 0 for OK and END.
int subcommand_exit(status result);

// A verb: argv[0] is its name; it returns the exit code.
typedef int verb_main(int argc, char **argv);

verb_main check_main;
verb_main draw_main;
verb_main frames_main;
verb_main graph_main;
verb_main groups_main;
verb_main init_main;
verb_main keygen_main;
verb_main program_main;
verb_main reference_main;
verb_main report_main;
verb_main run_main;
verb_main tokenize_main;
verb_main top_main;

#endif
