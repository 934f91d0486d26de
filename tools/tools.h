// The verbs of `caravan`, and what they share. A verb is a file tools/VERB.c and a row in main.c's table.
#ifndef TOOLS_TOOLS_H
#define TOOLS_TOOLS_H

#include "shared/base/status.h"

// An option of a small verb: --NAME VALUE, a number within [low, high], or a text. A NULL name ends the list.
struct tool_option {
    const char *name;
    double low, high;
    double *value;     // holds the default, and the value afterwards
    const char **text; // the same for a text; NULL for a number
};

// Reads options and one argument (into *operand). --help prints `help` and answers END; USAGE otherwise
// names what is wrong.
status tool_arguments(int argc, char **argv, const char *help, const struct tool_option *options, const char **operand);

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
