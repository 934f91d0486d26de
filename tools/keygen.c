// caravan keygen: this machine's pair of keys, once.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/wire/security.h"
#include "tools/plan.h"
#include "tools/tools.h"

static const struct option_table keygen_table = {
    .program = "caravan keygen",
    .operands = "[FILE]",
    .help = "makes this machine's key file (~/.config/caravan/machine.key) and prints its public key",
};

static status make(const char *path) {
    struct wire_security keys = {0};
    char *folder = strdup(path);
    if (!folder) return fail_oom();
    char *slash = strrchr(folder, '/');
    if (slash) *slash = 0;
    status result = slash && *folder ? dir_make(folder) : OK;
    if (result == OK) result = wire_key_make(&keys);
    if (result == OK) result = wire_key_write(&keys, path);
    if (result == OK) printf("%s\n", keys.public);
    wire_security_release(&keys);
    free(folder);
    return result;
}

int keygen_main(int argc, char **argv) {
    struct options options;
    struct arena memory = {0};
    int rest = argc;
    status result = options_init(&options, &keygen_table, NULL);
    if (result == OK) result = options_parse(&options, argc, argv, &rest);
    if (result == OK && argc - rest > 1) result = fail(USAGE, "one file at most is wanted");
    if (result == OK) {
        const char *path = rest < argc ? argv[rest] : plan_key_file(&memory);
        result = path ? make(path) : fail_oom();
    }
    if (result != OK && result != END) log_info("%s", fail_text());
    options_release(&options);
    arena_release(&memory);
    return result == END ? 0 : (int)result;
}
