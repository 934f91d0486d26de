// caravan keygen: this machine's pair of keys, once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/wire/security.h"
#include "tools/deployment.h"
#include "tools/tools.h"

static const struct option_table keygen_table = {
    .program = "caravan keygen",
    .operands = "[FILE]",
    .help = "makes this machine's key file (~/.config/caravan/machine.key) and prints its public key",
};

static status keygen_write(const char *path) {
    struct wire_security keys = {0};
    char *dir = strdup(path);
    if (!dir) return fail_oom();
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    status result = slash && *dir ? dir_make(dir) : OK;
    if (result == OK) result = wire_key_make(&keys);
    if (result == OK) result = wire_key_write(&keys, path);
    if (result == OK) printf("%s\n", keys.public);
    wire_security_release(&keys);
    free(dir);
    return result;
}

int keygen_main(int argc, char **argv) {
    struct options options = {0};
    struct arena arena = {0};
    struct operands operands = {.least = 0, .most = 1};
    status result = subcommand_parse(&options, &keygen_table, NULL, argc, argv, &operands);
    if (result == OK) {
        const char *path = operands.count ? operands.list[0] : deployment_key_file(&arena);
        result = path ? keygen_write(path) : fail_oom();
    }
    options_release(&options);
    arena_release(&arena);
    return subcommand_exit(result);
}
