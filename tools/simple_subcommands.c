// The subcommands of a few lines each: graph and keygen. They start no process and read at most a pipeline file.
#include <stdio.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/config/pipeline.h"
#include "shared/wire/security.h"
#include "tools/deployment.h"
#include "tools/tools.h"

// ---- caravan graph FILE: prints text on a terminal, Graphviz's dot otherwise ----

struct graph_options {
    struct pipeline_file_options file;
    bool dot, text;
};

static const struct option graph_options[] = {
    {.name = "dot",
     .offset = offsetof(struct graph_options, dot),
     .type = OPTION_BOOL,
     .help = "print the graph in Graphviz's dot (default if standard output is not a terminal)"},
    {.name = "text",
     .offset = offsetof(struct graph_options, text),
     .type = OPTION_BOOL,
     .help = "print the graph as lines of text (default on a terminal)"},
    PIPELINE_SET,
    {0},
};
const struct option_table graph_table = {.program = "caravan graph",
                                         .operands = "FILE|RUN",
                                         .help = "draws a pipeline file",
                                         .options = graph_options,
                                         .size = sizeof(struct graph_options)};

int graph_main(int argc, char **argv) {
    struct graph_options given;
    struct options options = {0};
    struct pipeline *pipeline = NULL;
    struct buf picture = {0};
    const char *path;
    status result = subcommand_open_pipeline(&pipeline, &options, &graph_table, &given, argc, argv, &path);
    if (result == OK) {
        bool text = given.text || (isatty(STDOUT_FILENO) && !given.dot);
        if (text)
            pipeline_text(pipeline, &picture);
        else
            pipeline_dot(pipeline, &picture);
    }
    if (result == OK) fwrite(picture.data, 1, picture.size, stdout);
    buf_release(&picture);
    pipeline_free(&pipeline);
    options_release(&options);
    return subcommand_exit(result);
}

// ---- caravan keygen: this machine's pair of keys ----

const struct option_table keygen_table = {
    .program = "caravan keygen",
    .operands = "[FILE]",
    .details = "FILE is the key file to write (default: ~/.config/caravan/machine.key).\n",
    .help = "makes a key file for this machine and prints its public key",
};

int keygen_main(int argc, char **argv) {
    struct options options = {0};
    struct arena arena = {0};
    struct wire_security keys = {0};
    struct operands operands = {.least = 0, .most = 1};
    status result;
    TRY_TO(result, done, subcommand_parse(&options, &keygen_table, NULL, argc, argv, &operands));
    const char *path = operands.count ? operands.list[0] : deployment_key_file(&arena);
    if (!*path) TRY_TO(result, done, fail(USAGE, "HOME is not set: say where to write it: caravan keygen FILE"));
    const char *dir = path_parent(&arena, path);
    TRY_TO(result, done, dir_make(dir));
    TRY_TO(result, done, wire_key_make(&keys));
    TRY_TO(result, done, wire_key_write(&keys, path));
    printf("%s\n", keys.public); // alone, for scripts
    log_info("the secret key is in %s; write the public key into the pipeline file, in quotes:", path);
    fprintf(stderr, "    key: \"%s\"\n", keys.public);
done:
    wire_security_release(&keys);
    options_release(&options);
    arena_release(&arena);
    return subcommand_exit(result);
}
