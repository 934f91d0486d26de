// caravan program: a user's program as a stage of a run. Started by `caravan run`, not by a user: the program gets one
// group per line on its standard input and answers with the group on its standard output.
//
// A program that fails is started again and gets its group again. A group with which it fails MAX_TRIES times is
// quarantined, unless the program seems to be broken itself.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "shared/config/stage_kinds.h"
#include "shared/base/signals.h"
#include "shared/stage/stage.h"
#include "shared/wire/node_config.h"
#include "tools/run/filter.h"
#include "tools/tools.h"

enum { QUOTED_MAX = 60, MAX_TRIES = 4, MAX_FAILED_GROUPS = 3, PAUSE_MS = 100 };

struct program_options {
    struct common_options common;
    double timeout;
};

static const struct option program_options[] = {
    {.name = "timeout",
     .offset = offsetof(struct program_options, timeout),
     .type = OPTION_NUMBER,
     .default_value = "0",
     .low = 0,
     .high = 1e6,
     .help = "seconds that the program has for a group; 0: any time"},
    {0},
};

struct program {
    struct node_config config; // of this adapter, with the program's command
    double timeout;            // seconds
    struct arena arena;
    struct filter filter;
    struct buf line;
    int failed_groups; // in a row
};

static struct program user_program; // the only one of this process

// Gives the group to the program and replaces it by the answer. BAD_SAMPLE: the program has failed and does not run;
// fail_text() says how, and *read whether it had read any of the group. END when this process is asked to stop.
static status program_try(struct program *program, struct group *group, bool *read) {
    struct filter *filter = &program->filter;
    struct group *answer = NULL;
    size_t size;
    *read = false;
    if (!filter->pid) TRY(filter_start(filter));
    TRY(filter_exchange(filter, &program->line, program->timeout, &size, read));
    status result = group_from_json(&answer, filter->output.data, size);
    if (result == OK) result = group_restore(answer, group);
    if (result == OK) {
        const struct group before = *group;
        *group = *answer;
        *answer = before;
        filter_drop_answer(filter, size);
    } else if (result == DATAERR) {
        char line[QUOTED_MAX + 1];
        size_t length = size < QUOTED_MAX ? size : QUOTED_MAX;
        snprintf(line, sizeof line, "%.*s", (int)length, filter->output.data);
        for (char *at = line; *at; at++)
            if (*at < ' ' || *at > '~') *at = '?';
        if (*line == '{')
            result = fail_prefix(BAD_SAMPLE, "gave a wrong answer");
        else
            result = fail(BAD_SAMPLE,
                          "gave a wrong answer: '%s' is not a group: standard output is for groups alone; print to "
                          "standard error",
                          line);
        filter_stop(filter); // what it writes next may belong to any group
    }
    group_free(&answer);
    return result;
}

static status program_open(void **state, struct stage_context *context) {
    const struct program_options *options = stage_options(context);
    *state = &user_program;
    user_program.timeout = options->timeout;
    return OK;
}

static status program_work(void *state, struct group *group) {
    struct program *program = state;
    const char *name = program->filter.argv[0];
    bool blamed = false; // the program had begun to read the group when it failed
    char reason[800];
    buf_clear(&program->line);
    group_to_json(group, &program->line);
    buf_puts(&program->line, "\n");
    for (int failures = 0; failures < MAX_TRIES;) {
        bool read;
        status result = program_try(program, group, &read);
        if (result == OK) program->failed_groups = 0;
        if (result != BAD_SAMPLE) return result;
        snprintf(reason, sizeof reason, "%s", fail_text());
        blamed = blamed || read;
        failures++;
        log_info("%s failed with group %s: it %s%s", name, group->id.data, reason,
                 failures < MAX_TRIES ? "; starting it again" : "");
        // A pause before the next try, at most until this process is asked to stop.
        struct pollfd stop = {.fd = signals_fd(), .events = POLLIN};
        if (failures < MAX_TRIES && !signals_stopping()) (void)poll(&stop, 1, PAUSE_MS << failures);
    }
    // A program that ends before it reads anything, or fails with whatever it gets, would fail with every group. The
    // exit code tells the supervisor not to try again.
    if (!blamed) return fail(DATAERR, "%s cannot be used: it %s", name, reason);
    if (++program->failed_groups == MAX_FAILED_GROUPS)
        return fail(DATAERR, "%s failed with %d groups in a row, each %d times: it %s", name, MAX_FAILED_GROUPS,
                    MAX_TRIES, reason);
    return fail(BAD_SAMPLE, "%s failed %d times with group %s: it %s", name, MAX_TRIES, group->id.data, reason);
}

int program_main(int argc, char **argv) {
    static const char option[] = "--node=";
    bool given = argc >= 2 && !strncmp(argv[1], option, sizeof option - 1);
    const char *path = given ? argv[1] + sizeof option - 1 : "";
    struct program *program = &user_program;
    const struct node_config *config = &program->config;
    int code = 0;
    status result;
    log_timestamps(given);
    TRY_TO(result, done,
           given ? node_config_read(&program->config, path)
                 : fail(USAGE, "caravan run starts this program; it cannot be started by hand"));
    if (!config->command_count || !config->program_dir)
        TRY_TO(result, done, fail(DATAERR, "%s: the file does not name a program", path));
    NEW(&program->filter.argv, config->command_count + 1);
    for (size_t i = 0; i < config->command_count; i++) {
        program->filter.argv[i] = arena_strndup(&program->arena, config->command[i], strlen(config->command[i]));
    }
    program->filter.directory = config->program_dir;
    // stage_main reads the option and the file again.
    const struct option_table table = {.program = config->stage,
                                       .help = "a user's program",
                                       .options = program_options,
                                       .common = common_options,
                                       .internal = internal_options,
                                       .size = sizeof(struct program_options)};
    const struct stage stage = {
        .name = config->stage, .table = &table, .section = -1, .open = program_open, .work = program_work};
    code = stage_main(&stage, argc, argv);
    filter_stop(&program->filter);
done:
    if (result != OK) code = subcommand_exit(result);
    buf_release(&program->line);
    buf_release(&program->filter.output);
    arena_release(&program->arena);
    free(program->filter.argv);
    node_config_release(&program->config);
    return code;
}
