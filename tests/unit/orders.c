// Optim with ranks: a leader that trains as optim does, and followers, threads of this process. What they write and say
// is compared with that of one process. Then what goes wrong: numbers, ranks, orders and disks.
#include "tests/unit/model_case.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include "shared/config/stage_kinds.h"
#include "shared/stage/runner.h"
#include "shared/store/frame_store.h"
#include "stages/optim/optim.h"
#include "tests/support/ranks_memory.h"

enum { MOST_RANKS = 8, GROUPS = 5, STEPS = 3, NOWHERE = -1 };

// What is trained, and how.
struct training {
    const char *name, *precision; // a golden case
    int parts;                    // of a group
    bool kl;                      // and its parts; otherwise the loss is a mean over tokens
    const char *frames;           // the store of its frames
    char dir[300];                // the model's
};

// What a step said.
struct said {
    double loss, nll, kl, grad_norm, entropy, diff_mean, diff_max;
    int64_t tokens, prompt_tokens;
};

struct job {
    const struct training *training;
    int ranks; // 0: one process without any
    int until; // so many steps are trained
    const char *out;
    int bad_step, bad_group; // the loss of this group is not finite
    bool fails_once;         // there is no room for the first checkpoint
    // What rank 1 does instead of following; NULL: it follows.
    status (*instead)(const struct optim_options *options, struct ranks *ranks);
};

struct rank {
    const struct job *job;
    pthread_t thread;
    struct ranks *ranks;
    int own;
    struct optim_options values;
    struct options options;
    status result;
    char text[600];
    bool unsound, failed; // the leader's numbers; the ranks
    struct said said[STEPS];
};

// ---- groups ----

static void print_tokens(struct buf *out, const int64_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) buf_printf(out, "%s%lld", i ? "," : "[", (long long)tokens[i]);
    buf_puts(out, "]");
}

static void print_each(struct buf *out, size_t count, double first, double step) {
    for (size_t i = 0; i < count; i++) buf_printf(out, "%s%.9g", i ? "," : "[", first + step * (double)i);
    buf_puts(out, "]");
}

static void medium_key(char *key, size_t index) {
    snprintf(key, FRAME_KEY_SIZE, "%032zx", index + 1);
}

// Group 1 has no media, group 2 no gradient unless there is a KL term, group 3 is stale; lengths differ.
static struct group *make_group(const struct model_case *it, int step, int number) {
    struct buf json = {0};
    struct group *group;
    const bool media = number != 1;
    buf_printf(&json,
               "{\"v\":1,\"id\":\"g%d\",\"sample_id\":\"s\",\"prompt\":{\"messages\":[{\"role\":\"user\",\"content\":[",
               number);
    for (size_t i = 0; i < it->prompt.media_count && media; i++) {
        const char *kind = it->prompt.media[i].video ? "video" : "image";
        buf_printf(&json, "{\"type\":\"%s\",\"%s\":\"none\"},", kind, kind);
    }
    buf_puts(&json, "{\"type\":\"text\",\"text\":\"t\"}]}],\"problem_type\":\"x\",\"solution\":\"A\"},\"media\":[");
    for (size_t i = 0; i < it->prompt.media_count && media; i++) {
        const struct model_medium *medium = &it->prompt.media[i];
        char key[FRAME_KEY_SIZE];
        medium_key(key, i);
        buf_printf(&json, "%s{\"kind\":\"%s\",\"key\":\"%s\",\"frames\":%d,\"height\":%d,\"width\":%d", i ? "," : "",
                   medium->video ? "video" : "image", key, medium->frames, medium->height, medium->width);
        if (medium->video) {
            buf_printf(&json, ",\"seconds_per_grid\":%.17g,\"timestamps\":", medium->seconds_per_grid);
            print_each(&json, (size_t)medium->frames, 0, 0.5);
        }
        buf_puts(&json, "}");
    }
    buf_puts(&json, "],\"prompt_tokens\":");
    print_tokens(&json, media ? it->prompt.tokens : (const int64_t[]){3, 4, 5, 6, 7}, media ? it->prompt.count : 5);
    buf_puts(&json, ",\"completions\":[");
    for (size_t i = 0; i < COMPLETIONS; i++) {
        const struct model_completion *completion = &it->completions[(i + (size_t)number) % COMPLETIONS];
        const size_t count = completion->count > (size_t)number ? completion->count - (size_t)number : 1;
        buf_printf(&json, "%s{\"text\":\"x\",\"finish\":\"eos\",\"tokens\":", i ? "," : "");
        print_tokens(&json, completion->tokens, count);
        buf_puts(&json, ",\"logprobs\":");
        print_each(&json, count, -4, 0.03);
        buf_puts(&json, ",\"versions\":");
        print_each(&json, count, number == 3 ? -1 : step, 0);
        buf_puts(&json, "}");
    }
    buf_puts(&json, "],\"reference\":{\"version\":0,\"answer_span\":[[0,1],null,[0,1],[0,1]],"
                    "\"answer_logprob\":[-1,null,-1,-1],\"logprobs\":[");
    for (size_t i = 0; i < COMPLETIONS; i++) {
        const struct model_completion *completion = &it->completions[(i + (size_t)number) % COMPLETIONS];
        const size_t count = completion->count > (size_t)number ? completion->count - (size_t)number : 1;
        if (i) buf_puts(&json, ",");
        print_each(&json, count, -4.5, 0.02);
    }
    buf_printf(&json,
               "]},\"rewards\":{\"accuracy\":[1,0,1,1],\"format\":[1,1,1,0],\"length\":[0,0,0,0],\"bonus\":[0,0,0,0],"
               "\"total\":[2,1,2,1]},\"advantages\":[%.9g,%.9g,%.9g,%.9g]}",
               number == 2 ? 0 : sin(step + number + 1), number == 2 ? 0 : sin(step + number + 3),
               number == 2 ? 0 : -0.5, number == 2 ? 0 : 0.25);
    MUST(group_from_json(&group, json.data, json.size));
    buf_release(&json);
    return group;
}

// ---- a rank ----

// The options that all ranks have.
static void rank_set_options(struct rank *rank) {
    const struct training *training = rank->job->training;
    struct optim_options *values = &rank->values;
    options_init(&rank->options, &stage_kinds[STAGE_OPTIM].options, values);
    values->model.dir = training->dir;
    values->model.common.device = "cpu";
    values->model.common.threads = 1;
    values->model.common.precision = training->precision;
    values->model.frames_store = training->frames;
    values->out = rank->job->out;
    values->groups_per_step = GROUPS;
    values->parts = training->parts;
    values->lr = 2e-3;
    values->schedule = OPTIM_SCHEDULE_CONSTANT;
    values->ema_every = 2;
    values->ema_decay = 0.75;
    values->loss = training->kl ? OPTIM_LOSS_COMPLETIONS : OPTIM_LOSS_TOKENS;
    values->kl = training->kl ? 0.04 : 0;
    values->kl_on = training->kl ? OPTIM_KL_ACCURATE : OPTIM_KL_ALL;
    values->kl_parts = training->kl ? OPTIM_KL_SEPARATE : OPTIM_KL_WHOLE;
    values->gradient_precision = values->moment_precision = training->precision;
}

// One step, on groups that are freed afterwards.
static status leader_step(struct rank *rank, struct optim *optim, const struct model_case *it) {
    const int step = (int)model_version(optim->model);
    struct step_metrics metrics = {0};
    struct group *groups[GROUPS];
    status result = OK;
    for (int i = 0; i < GROUPS; i++) groups[i] = make_group(it, step, i);
    if (step == rank->job->bad_step && rank->job->bad_group >= 0)
        groups[rank->job->bad_group]->advantages.data[1] = NAN;
    for (int i = 0; i < GROUPS && result == OK; i++) result = step_add(optim, groups[i]);
    if (result == OK) result = step_train(optim, &metrics);
    if (result == OK)
        rank->said[step] = (struct said){metrics.loss,
                                         metrics.nll,
                                         metrics.kl,
                                         metrics.grad_norm,
                                         metrics_mean(&metrics.entropy),
                                         metrics.logprob_diff_mean,
                                         metrics.logprob_diff_max,
                                         metrics.tokens,
                                         metrics.prompt_tokens};
    metrics_release(&metrics);
    for (int i = 0; i < GROUPS; i++) group_free(&groups[i]);
    optim->batch_count = optim->leaf_count = 0;
    optim->batch_tokens = 0;
    return result;
}

// There is room for less than a checkpoint, then for it.
static status leader_save(struct rank *rank, struct optim *optim) {
    if (rank->job->fails_once) {
        const struct rlimit none = {100, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &none);
        const status result = checkpoint_write(optim, true);
        setrlimit(RLIMIT_FSIZE, &any);
        if (result != UNAVAILABLE || !strstr(fail_text(), "checkpoint of step "))
            return fail(BAD_SAMPLE, "a full disk: %s", fail_text());
        if (optim->ranks && optim->ranks->failed) return fail(BAD_SAMPLE, "a full disk ends the ranks");
    }
    return checkpoint_write(optim, true);
}

// As main.c.
static status leader_train(struct rank *rank, struct optim *optim, const struct model_case *it) {
    const struct optim_options *options = &rank->values;
    NEW(&optim->batch, (size_t)options->groups_per_step);
    NEW(&optim->leaves, (size_t)(options->groups_per_step * options->parts));
    TRY(dir_make(options->out));
    TRY(stage_media_open(&optim->input.media, optim->context));
    TRY(orders_open_model(&optim->model, options, optim->ranks));
    optim->input.info = model_get_info(optim->model);
    TRY(model_hash(optim->model, &optim->initial_hash));
    TRY(model_hash_files(optim->model, &optim->files_hash));
    TRY(orders_join(optim->model, optim->ranks));
    optim->joined = optim->ranks != NULL;
    optim->model_path = mem_strdup(options->model.dir);
    TRY(checkpoint_resume(optim));
    while (model_version(optim->model) < rank->job->until) TRY(leader_step(rank, optim, it));
    return leader_save(rank, optim);
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    rank_set_options(rank);
    if (rank->own == 0) {
        SCOPED(struct model_case, case_close) it = case_open(rank->job->training->name);
        struct stage_context context = {.options = rank->options, .ranks = rank->ranks};
        struct optim optim = {.context = &context,
                              .options = &rank->values,
                              .ranks = stage_ranks(&context),
                              .parts = (int)rank->values.parts};
        rank->result = leader_train(rank, &optim, &it);
        if (rank->result != OK) snprintf(rank->text, sizeof rank->text, "%s", fail_text());
        rank->unsound = optim.unsound;
        orders_end(&optim);
        input_builder_close(&optim.input);
        model_free(&optim.model);
        free(optim.batch);
        free(optim.leaves);
        free(optim.model_path);
        (void)append_queue_release(&optim.metrics);
    } else {
        rank->result = rank->own == 1 && rank->job->instead ? rank->job->instead(&rank->values, rank->ranks)
                                                            : orders_follow(&rank->values, rank->ranks);
        if (rank->result != OK) snprintf(rank->text, sizeof rank->text, "%s", fail_text());
    }
    rank->failed = rank->ranks && rank->ranks->failed;
    ranks_free(&rank->ranks);
    options_release(&rank->options);
    return NULL;
}

static void job_run(const struct job *job, struct rank *out) {
    struct ranks *ranks[MOST_RANKS] = {NULL};
    const int count = job->ranks ? job->ranks : 1;
    if (job->ranks) ranks_memory_open(count, ranks);
    for (int r = 0; r < count; r++) {
        out[r] = (struct rank){.job = job, .own = r, .ranks = ranks[r]};
        assert_int_equal(pthread_create(&out[r].thread, NULL, rank_run, &out[r]), 0);
    }
    for (int r = 0; r < count; r++) pthread_join(out[r].thread, NULL);
}

static void job_run_well(const struct job *job, struct rank *out) {
    job_run(job, out);
    for (int r = 0; r < (job->ranks ? job->ranks : 1); r++)
        if (out[r].result != OK) print_error("rank %d of %d: %s\n", r, job->ranks, out[r].text);
    for (int r = 0; r < (job->ranks ? job->ranks : 1); r++) assert_int_equal(out[r].result, OK);
}

// The frames of a case, in a store of their own.
static struct training training_make(const char *name, const char *precision, int parts, bool kl) {
    SCOPED(struct model_case, case_close) it = case_open(name);
    struct training training = {
        .name = name, .precision = precision, .parts = parts, .kl = kl, .frames = unit_new_directory()};
    snprintf(training.dir, sizeof training.dir, "%s", it.dir);
    struct frame_store *store;
    MUST(frame_store_open(&store, training.frames, 0, false));
    for (size_t i = 0; i < it.prompt.media_count; i++) {
        const struct model_medium *medium = &it.prompt.media[i];
        double timestamps[64];
        char key[FRAME_KEY_SIZE];
        medium_key(key, i);
        for (int f = 0; f < medium->frames; f++) timestamps[f] = 0.5 * f;
        const struct frames frames = {.video = medium->video,
                                      .count = medium->frames,
                                      .height = medium->height,
                                      .width = medium->width,
                                      .seconds_per_grid = medium->video ? medium->seconds_per_grid : NAN,
                                      .timestamps = medium->video ? timestamps : NULL,
                                      .pixels = medium->pixels};
        MUST(frame_store_put(store, key, &frames));
    }
    frame_store_close(&store);
    return training;
}

// ---- bits ----

static void expect_same_files(const char *one, const char *other, const char *step) {
    SCOPED(struct arena, arena_release) arena = {0};
    one = path_join(&arena, one, step);
    other = path_join(&arena, other, step);
    DIR *files = opendir(one);
    int count = 0;
    assert_non_null(files);
    for (const struct dirent *file; (file = readdir(files)); count++) {
        if (file->d_name[0] == '.') continue;
        SCOPED(struct buf, buf_release) a = {0}, b = {0};
        MUST(file_read(path_join(&arena, one, file->d_name), &a));
        MUST(file_read(path_join(&arena, other, file->d_name), &b));
        if (a.size != b.size || memcmp(a.data, b.data, a.size) != 0)
            print_error("%s differs: %s, %s\n", file->d_name, one, other);
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.data, b.data, a.size);
    }
    closedir(files);
    assert_in_range(count, 6, 100); // weights, state, counters, progress, configuration
}

// One process; then 1, 2 and 3 ranks; then 3 that go on with what 2 have begun.
static void expect_same_training(const struct training *training) {
    struct rank one[1], many[MOST_RANKS];
    const struct job alone = {training, 0, STEPS, unit_new_directory(), NOWHERE, NOWHERE, false, NULL};
    job_run_well(&alone, one);
    for (int step = 0; step < STEPS; step++)
        assert_true(one->said[step].grad_norm > 0 && isfinite(one->said[step].loss) && one->said[step].entropy > 0);
    for (int ranks = 1; ranks <= 3; ranks++) {
        const struct job job = {training, ranks, STEPS, unit_new_directory(), NOWHERE, NOWHERE, ranks == 2, NULL};
        job_run_well(&job, many);
        assert_memory_equal(many[0].said, one->said, sizeof one->said);
        expect_same_files(alone.out, job.out, "step-000003");
    }
    struct job job = {training, 2, 2, unit_new_directory(), NOWHERE, NOWHERE, false, NULL};
    job_run_well(&job, many);
    job.ranks = 3;
    job.until = STEPS;
    job_run_well(&job, many);
    expect_same_files(alone.out, job.out, "step-000003");
}

TEST(any_number_of_ranks_writes_the_checkpoint_of_one_process) {
    const struct training trainings[] = {
        training_make("even", "float32", 1, true),
        training_make("even", "float32", 2, false),
        training_make("pairs", "bfloat16", 2, true),
        training_make("pairs", "bfloat16", 1, false),
    };
    for (size_t i = 0; i < sizeof trainings / sizeof *trainings; i++) {
        if (strcmp(trainings[i].precision, "bfloat16") == 0) {
            SCOPED(struct model_case, case_close) it = case_open(trainings[i].name);
            if (!case_computes(&it, "cpu", "bfloat16")) continue;
        }
        expect_same_training(&trainings[i]);
    }
}

// ---- failures ----

// Whichever rank computes it: the leaves of groups 0 to 4 go to ranks 0 to 2 in two turns.
TEST(a_loss_that_is_not_finite_names_its_group_and_the_step) {
    const struct training training = training_make("even", "float32", 1, false);
    for (int ranks = 0; ranks <= 3; ranks += 3) {
        int elsewhere = 0;
        for (int bad = 0; bad < GROUPS; bad++) {
            struct rank out[MOST_RANKS];
            char text[100];
            const struct job job = {&training, ranks, 2, unit_new_directory(), bad % 2, bad, false, NULL};
            job_run(&job, out);
            snprintf(text, sizeof text, "group g%d: the loss is not finite", bad);
            if (out[0].result != DATAERR || !strstr(out[0].text, text)) print_error("%s\n", out[0].text);
            assert_int_equal(out[0].result, DATAERR);
            assert_non_null(strstr(out[0].text, text));
            assert_non_null(strstr(out[0].text, bad % 2 ? "step 2: " : "step 1: "));
            assert_non_null(strstr(out[0].text, bad % 2 ? "Nothing is saved of the steps after 0, from which the run"
                                                        : "It has the weights of tests/data/model/even"));
            assert_true(out[0].unsound);
            const char *named = strstr(out[0].text, "group g");
            assert_null(strstr(named + 1, "group g")); // the leader's own leaf is not to blame
            elsewhere += strstr(out[0].text, " has failed: group ") != NULL;
            for (int r = 1; r < ranks; r++) {
                assert_int_equal(out[r].result, DATAERR);
                assert_non_null(strstr(out[r].text, text));
            }
        }
        assert_int_equal(elsewhere, ranks ? 3 : 0); // of five leaves two are the leader's
    }
}

static status leave_after_joining(const struct optim_options *options, struct ranks *ranks) {
    SCOPED(struct model *, model_free) model = NULL;
    TRY(orders_open_model(&model, options, ranks));
    return orders_join(model, ranks);
}

static status fail_after_joining(const struct optim_options *options, struct ranks *ranks) {
    TRY(leave_after_joining(options, ranks));
    return ranks_fail(ranks, fail(UNAVAILABLE, "out of memory"));
}

static status join_with_another_precision(const struct optim_options *options, struct ranks *ranks) {
    struct optim_options other = *options;
    other.model.common.precision = "bfloat16";
    return orders_follow(&other, ranks);
}

static status join_with_another_model(const struct optim_options *options, struct ranks *ranks) {
    struct optim_options other = *options;
    other.model.dir = "tests/data/model/pairs";
    return orders_follow(&other, ranks);
}

static status join_with_no_model(const struct optim_options *options, struct ranks *ranks) {
    struct optim_options other = *options;
    other.model.dir = "/nowhere";
    return orders_follow(&other, ranks);
}

// The same weights in a file of another name.
static status join_with_another_file(const struct optim_options *options, struct ranks *ranks) {
    static const char index[] = "{\"weight_map\": {\"model.embed_tokens.weight\": \"weights.safetensors\"}}";
    SCOPED(struct arena, arena_release) arena = {0};
    struct optim_options other = *options;
    other.model.dir = unit_new_directory();
    static const char *const names[][2] = {{"config.json", "config.json"},
                                           {"model.safetensors", "weights.safetensors"}};
    for (int i = 0; i < 2; i++) {
        SCOPED(struct buf, buf_release) file = {0};
        TRY(file_read(path_join(&arena, options->model.dir, names[i][0]), &file));
        TRY(file_write_atomic(path_join(&arena, other.model.dir, names[i][1]), file.data, file.size));
    }
    TRY(file_write_atomic(path_join(&arena, other.model.dir, "model.safetensors.index.json"), index, strlen(index)));
    return orders_follow(&other, ranks);
}

TEST(the_failure_of_a_rank_ends_the_leader_with_a_line_that_names_it) {
    const struct training training = training_make("even", "float32", 1, false);
    static const struct {
        status (*instead)(const struct optim_options *, struct ranks *);
        status result;
        const char *text;
    } cases[] = {
        {leave_after_joining, UNAVAILABLE, "rank 1 has left"},
        {fail_after_joining, UNAVAILABLE, "rank 1 has failed: out of memory"},
        {join_with_another_precision, USAGE,
         "rank 1 computes in bfloat16, rank 0 computes in float32: their bits differ"},
        {join_with_another_model, DATAERR, "rank 1 has a model with other weights (hash "},
        {join_with_another_file, DATAERR, "rank 1 has a model with the same weights in other files than rank 0"},
        {join_with_no_model, DATAERR, "rank 1 has failed: /nowhere"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED(struct model_case, case_close) it = case_open("even");
        struct rank out[MOST_RANKS];
        const struct job job = {&training, 3, 2, unit_new_directory(), NOWHERE, NOWHERE, false, cases[i].instead};
        if (cases[i].instead == join_with_another_precision && !case_computes(&it, "cpu", "bfloat16")) continue;
        job_run(&job, out);
        if (out[0].result != cases[i].result || !strstr(out[0].text, cases[i].text))
            print_error("case %zu: %s\n", i, out[0].text);
        assert_int_equal(out[0].result, cases[i].result);
        assert_non_null(strstr(out[0].text, cases[i].text));
        assert_false(out[0].unsound);
        assert_int_not_equal(out[2].result, OK);
    }
}

static _Thread_local int hashes_before_lie; // that model_hash returns in this thread; 0: it does not lie

status __real_model_hash(struct model *model, uint64_t *hash);
status __wrap_model_hash(struct model *model, uint64_t *hash);

status __wrap_model_hash(struct model *model, uint64_t *hash) {
    const status result = __real_model_hash(model, hash);
    if (hashes_before_lie && !--hashes_before_lie) ++*hash;
    return result;
}

static status differ_after_the_first_step(const struct optim_options *options, struct ranks *ranks) {
    hashes_before_lie = 2; // the first one is that of the join
    return orders_follow(options, ranks);
}

static status differ_at_the_checkpoint(const struct optim_options *options, struct ranks *ranks) {
    hashes_before_lie = 3;
    return orders_follow(options, ranks);
}

TEST(ranks_whose_weights_differ_end_and_write_no_checkpoint) {
    const struct training training = training_make("even", "float32", 1, false);
    for (int i = 0; i < 2; i++) {
        struct rank out[MOST_RANKS];
        SCOPED(struct arena, arena_release) arena = {0};
        const struct job job = {&training, 3,       2,     unit_new_directory(),
                                NOWHERE,   NOWHERE, false, i ? differ_at_the_checkpoint : differ_after_the_first_step};
        job_run(&job, out);
        for (int r = 0; r < 3; r++) {
            assert_int_equal(out[r].result, BUG);
            assert_non_null(strstr(out[r].text, "rank 1 has other weights than rank 0: hash "));
            assert_non_null(strstr(out[r].text, i ? "of the steps 2 and 2" : "of the steps 1 and 1"));
        }
        assert_false(path_exists(path_join(&arena, job.out, "step-000002")));
        assert_false(path_exists(path_join(&arena, job.out, "latest")));
    }
}

// ---- orders ----

enum { TURN = 1, STEP, EMA, SAVE, SAVE_STATE, LOAD, LEND, END_ORDER };

struct wrong_order {
    uint64_t kind, bytes, sources;
    size_t left_out; // of the bytes of a whole leaf, which are the body
    const char *says;
};

static const struct wrong_order *wrong; // what the leader of the next test sends

// A leader that sends one order, as the bytes that it is.
static status send_wrong_order(const struct optim_options *options, struct ranks *ranks) {
    SCOPED(struct model *, model_free) model = NULL;
    SCOPED(struct model_case, case_close) it = case_open("even");
    SCOPED(struct buf, buf_release) body = {0};
    struct train_completion completions[COMPLETIONS];
    uint64_t words[13] = {wrong->kind, wrong->bytes, wrong->sources};
    char both[2] = {0};
    struct rank_exchange *exchange;
    TRY(orders_open_model(&model, options, ranks));
    TRY(orders_join(model, ranks));
    case_step(&it, json_item(key_of(it.golden, "steps"), 0), completions);
    const struct leaf_input leaf = {
        .group = "g0", .prompt = it.prompt, .completions = completions, .count = COMPLETIONS, .weight = 1};
    TRY(leaf_write(&leaf, &body));
    if (wrong->left_out) words[1] = body.size - wrong->left_out;
    const struct rank_piece head = {1, words, sizeof words}, piece = {1, body.data, (size_t)words[1]};
    TRY(ranks_begin(ranks, &head, 1, NULL, 0, &exchange));
    TRY(ranks_end(ranks, &exchange));
    if (wrong->left_out) {
        TRY(ranks_begin(ranks, &piece, 1, NULL, 0, &exchange));
        TRY(ranks_end(ranks, &exchange));
    }
    return ranks_gather(ranks, both, 1);
}

static void *send_run(void *argument) {
    struct rank *rank = argument;
    rank_set_options(rank);
    rank->result = send_wrong_order(&rank->values, rank->ranks);
    snprintf(rank->text, sizeof rank->text, "%s", fail_text());
    ranks_free(&rank->ranks);
    options_release(&rank->options);
    return NULL;
}

TEST(a_damaged_order_is_refused_in_one_line) {
    static const struct wrong_order cases[] = {
        {0, 0, 0, 0, "an unknown order, 0"},
        {9, 0, 0, 0, "an unknown order, 9"},
        {1ULL << 40, 0, 0, 0, "an unknown order, 1099511627776"},
        {TURN, 0, 0, 0, "an order for 0 ranks, but there are 2"},
        {TURN, 8, 3, 0, "an order for 3 ranks, but there are 2"},
        {TURN, 0, 2, 0, "an order, 1, with 0 bytes"},
        {TURN, 8, 1, 0, "an order, 1, with 8 bytes"},
        {TURN, 1ULL << 50, 2, 0, "an order, 1, with 1125899906842624 bytes"},
        {STEP, 8, 0, 0, "an order, 2, with 8 bytes"},
        {EMA, 8, 0, 0, "an order, 3, with 8 bytes"},
        {SAVE, 0, 0, 0, "an order, 4, with 0 bytes"},
        {SAVE_STATE, 0, 0, 0, "an order, 5, with 0 bytes"},
        {LOAD, 0, 0, 0, "an order, 6, with 0 bytes"},
        {LEND, 0, 0, 0, "an order, 7, with 0 bytes"},
        {END_ORDER, 8, 0, 0, "an order, 8, with 8 bytes"},
        {TURN, 0, 2, 1, "is cut short"},
        {TURN, 0, 2, 200, "is cut short"},
    };
    const struct training training = training_make("even", "float32", 1, false);
    const struct job job = {&training, 2, 1, unit_new_directory(), NOWHERE, NOWHERE, false, NULL};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ranks *ranks[2];
        struct rank out[2];
        wrong = &cases[i];
        ranks_memory_open(2, ranks);
        for (int r = 0; r < 2; r++) {
            out[r] = (struct rank){.job = &job, .own = r, .ranks = ranks[r]};
            assert_int_equal(pthread_create(&out[r].thread, NULL, r ? rank_run : send_run, &out[r]), 0);
        }
        for (int r = 0; r < 2; r++) pthread_join(out[r].thread, NULL);
        for (int r = 0; r < 2; r++) {
            if (out[r].result != BUG || !strstr(out[r].text, cases[i].says))
                print_error("case %zu, rank %d: %s\n", i, r, out[r].text);
            assert_int_equal(out[r].result, BUG);
            assert_non_null(strstr(out[r].text, cases[i].says));
        }
    }
}
