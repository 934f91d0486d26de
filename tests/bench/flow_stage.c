// The stages of tests/bench/flow.sh, one program under several names: they pass groups of 8 x 768 tokens on and do
// nothing else. `source` makes them without a data set (as many as its option `limit`), `optim` calls them trained, and
// any other stage hands them on as they are. With FLOW_STORE in the environment each stage stores its section, too;
// with FLOW_PAUSE rollout takes so many milliseconds for a group, without computing. At its end each writes a line with
// its processor seconds to its log, and optim one with its groups a second.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/clock.h"
#include "shared/stage/runner.h"
#include "shared/stage/stage.h"
#include "tests/bench/usage.h"

enum { COMPLETIONS = 8, TOKENS = 768, PROMPT = 1174 };

// The store is opened before the stage.
static status flow_open(void **state, struct stage_context *context) {
    *state = context;
    if (!getenv("FLOW_STORE")) group_store_close(&context->store);
    return OK;
}

static status flow_work(void *state, struct group *group) {
    const struct stage_context *context = state;
    const char *pause = getenv("FLOW_PAUSE");
    (void)group;
    if (pause && !strcmp(context->stage->name, "rollout")) (void)poll(NULL, 0, atoi(pause));
    return OK;
}

// ---- source ----

static status flow_describe(void *state, int64_t *count, uint64_t *hash, struct buf *data) {
    (void)data;
    const struct source_options *options = stage_options(state);
    *count = options->limit;
    *hash = 1;
    return OK;
}

static void flow_set(struct group *group, struct string *string, const char *text) {
    group_string(group, string, text, strlen(text));
}

static status flow_group_at(void *state, int64_t seq, struct group **out, size_t *line) {
    (void)state, (void)line;
    group_new(out);
    struct group *group = *out;
    char id[32];
    snprintf(id, sizeof id, "e0-%06lld", (long long)seq);
    flow_set(group, &group->id, id);
    flow_set(group, &group->sample_id, id);
    group->prompt.present = true;
    group->prompt.messages = arena_alloc(&group->arena, sizeof *group->prompt.messages);
    struct message *message = group->prompt.messages;
    group->prompt.message_count = 1;
    message->parts = arena_alloc(&group->arena, sizeof *message->parts);
    message->part_count = 1;
    message->plain = true;
    flow_set(group, &message->role, "user");
    flow_set(group, &message->parts->type, "text");
    flow_set(group, &message->parts->text, "Which?");
    flow_set(group, &group->prompt.solution, "<answer>B</answer>");
    GROUP_ARRAY(group, &group->prompt_tokens, PROMPT);
    for (int i = 0; i < PROMPT; i++) group->prompt_tokens.data[i] = i * 7919 % 151643;
    group_completions(group, COMPLETIONS);
    for (int c = 0; c < COMPLETIONS; c++) {
        struct completion *completion = &group->completions[c];
        GROUP_ARRAY(group, &completion->tokens, TOKENS);
        GROUP_ARRAY(group, &completion->versions, TOKENS);
        GROUP_ARRAY(group, &completion->logprobs, TOKENS);
        flow_set(group, &completion->text, "<think>a</think><answer>B</answer>");
        flow_set(group, &completion->finish, "length");
        for (int i = 0; i < TOKENS; i++) {
            completion->tokens.data[i] = (c * TOKENS + i) * 7919 % 151643;
            completion->logprobs.data[i] = -(float)(i * 31 % 97) / 13;
        }
    }
    return OK;
}

// ---- optim ----

static struct group *flow_last; // the group that it has
static int64_t flow_count;      // that it has had
static double flow_first;       // seconds: when it got the first one

static status flow_position(void *state, int64_t *step, int64_t *seq) {
    (void)state;
    *step = 0;
    *seq = -1;
    return OK;
}

static int flow_capacity(void *state) {
    (void)state;
    return flow_last ? 0 : 1;
}

static status flow_submit(void *state, struct group *group) {
    const struct optim_options *options = stage_options(state);
    flow_last = group;
    if (!flow_count) flow_first = clock_monotonic();
    group->trained.present = true;
    group->trained.step = flow_count++ / options->groups_per_step + 1;
    return OK;
}

static status flow_poll(void *state, bool draining, struct group **done) {
    (void)state;
    (void)draining;
    *done = flow_last;
    flow_last = NULL;
    return *done ? OK : END;
}

static status flow_on_idle(void *state, bool run_over) {
    (void)state;
    if (run_over) fprintf(stderr, "flow: %.4g groups/s\n", (double)flow_count / (clock_monotonic() - flow_first));
    return OK;
}

static status flow_close(void *state) {
    (void)state;
    fprintf(stderr, "flow: %.3f s\n", bench_processor_seconds());
    return OK;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int section;
    } sections[] = {{"frames", SECTION_MEDIA},
                    {"rollout", SECTION_ROLLOUT},
                    {"refscore", SECTION_REFERENCE},
                    {"reward", SECTION_REWARD}};
    const char *slash = strrchr(argv[0], '/'), *name = strrchr(slash ? slash : argv[0], '-');
    struct stage stage = {.name = name ? name + 1 : "source", .section = -1, .open = flow_open, .close = flow_close};
    if (!strcmp(stage.name, "source")) {
        stage.describe = flow_describe;
        stage.group_at = flow_group_at;
    } else if (!strcmp(stage.name, "optim")) {
        stage.position = flow_position;
        stage.capacity = flow_capacity;
        stage.submit = flow_submit;
        stage.poll = flow_poll;
        stage.on_idle = flow_on_idle;
    } else {
        stage.work = flow_work;
    }
    for (size_t i = 0; i < sizeof sections / sizeof *sections && getenv("FLOW_STORE"); i++)
        if (!strcmp(sections[i].name, stage.name)) stage.section = sections[i].section;
    return stage_main(&stage, argc, argv);
}
