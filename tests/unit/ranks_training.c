// Ranks that train one model together, threads of this process: their weights, norms and files have the same bytes as
// those of one process that adds the same leaves in the same order; also when other ranks go on. On the CPU and on the
// emulated GPU.
#include "tests/unit/model_case.h"

#include <dirent.h>
#include <pthread.h>

#include "shared/model/qwen_vl/model_internal.h"
#include "tests/support/ranks_memory.h"

enum { MOST_RANKS = 8, GROUPS = 5, STEPS = 4 };

static const struct optimizer_options rates = {3e-3, 0.9, 0.99, 1e-8, 0.01, 1.0};

// What is trained, and how.
struct training {
    struct model_case it;
    struct model_options options;
    int parts, steps; // of a group; of the optimizer
    bool linked;      // tensors go from GPU to GPU
};

struct rank;

// Some steps of it, by so many ranks.
struct job {
    const struct training *training;
    int ranks, end;        // until so many steps are done
    const char *from, *to; // directories of a training state, NULL: none, and of a checkpoint
    const int *partner;    // of struct ranks
    status (*run)(struct rank *rank, struct model *model); // something else to do; NULL: the steps
};

struct rank {
    const struct job *job;
    pthread_t thread;
    struct ranks *ranks;
    int own;
    status result;
    char text[300];
    double norms[STEPS];
    uint64_t hash, reference; // at the end
};

static struct training training_open(const char *name, const char *device, const char *precision, bool vision,
                                     int parts, int steps) {
    return (struct training){.it = case_open(name),
                             .options = {.device = device,
                                         .threads = 1,
                                         .precision = precision,
                                         .gradient_precision = precision,
                                         .moment_precision = precision,
                                         .sum_precision = parts == 2 ? "float32" : NULL,
                                         .training = true,
                                         .train_vision = vision,
                                         .ema = true},
                             .parts = parts,
                             .steps = steps};
}

static void training_close(struct training *training) {
    case_close(&training->it);
}

// Group 2 has no gradient. The third step is without media; in the fourth, only group 2 has some.
static status leaf_accumulate(const struct training *training, struct model *model, int step, int leaf) {
    static const int64_t words[] = {3, 4, 5, 6, 7};
    static const struct model_prompt text = {words, sizeof words / sizeof *words, NULL, 0};
    const struct model_case *it = &training->it;
    const int group = leaf / training->parts, part = leaf % training->parts;
    const size_t first = (size_t)(COMPLETIONS * part / training->parts),
                 end = (size_t)(COMPLETIONS * (part + 1) / training->parts);
    const bool media = step == 3 ? group == 2 : step != 2 && group != 1;
    struct train_completion completions[COMPLETIONS];
    struct train_result result;
    for (size_t i = first; i < end; i++)
        completions[i] = (struct train_completion){
            .completion = it->completions[i],
            .advantage = group == 2 ? 0 : sin((double)(100 * step + 10 * group + (int)i + 1)),
        };
    return model_accumulate(model, media ? &it->prompt : &text, completions + first, end - first,
                            &(struct loss_options){.group_size = COMPLETIONS}, 1.0 / GROUPS, &result);
}

static status rank_train(struct rank *rank, struct model *model) {
    const struct job *job = rank->job;
    const int leaves = GROUPS * job->training->parts;
    SCOPED(struct arena, arena_release) arena = {0};
    const bool away = job->partner && job->partner[rank->own] != rank->own; // the leader's directories are not there
    if (job->from) TRY(model_load_state(model, away ? "/dev/null/from" : job->from));
    for (int step = (int)model_version(model); step < job->end; step++) {
        for (int first = 0; first < leaves; first += job->ranks) {
            const int left = leaves - first, leaf = first + rank->own;
            TRY(model_turn(model, left < job->ranks ? left : job->ranks));
            if (leaf < leaves) TRY(leaf_accumulate(job->training, model, step, leaf));
        }
        TRY(model_step(model, &rates, &rank->norms[step]));
        if (step % 2) TRY(model_update_ema(model, 0.75));
    }
    TRY(model_save(model, away ? "/dev/null/to" : job->to));
    TRY(model_save_state(model, away ? "/dev/null/to" : job->to));
    const char *file = arena_printf(&arena, "%s/reference-%d", unit_directory(), rank->own);
    TRY(model_publish(model, true, file, &rank->reference));
    return model_hash(model, &rank->hash);
}

static void *rank_run(void *argument) {
    struct rank *rank = argument;
    status (*const run)(struct rank *, struct model *) = rank->job->run ? rank->job->run : rank_train;
    struct model_options options = rank->job->training->options;
    struct model *model = NULL;
    options.ranks = rank->ranks;
    rank->result = model_open(&model, rank->job->training->it.dir, &options);
    if (rank->result == OK && (model->trainer.devices != NULL) != (rank->ranks && rank->job->training->linked))
        rank->result = fail(BUG, "tensors go another way");
    if (rank->result == OK) rank->result = run(rank, model);
    if (rank->result != OK) snprintf(rank->text, sizeof rank->text, "%s", fail_text());
    model_free(&model);
    ranks_free(&rank->ranks);
    return NULL;
}

static void job_try(const struct job *job, struct rank *out) {
    struct ranks *ranks[MOST_RANKS] = {NULL};
    if (job->ranks > 1) ranks_memory_open(job->ranks, ranks);
    for (int r = 0; r < job->ranks; r++) {
        out[r] = (struct rank){.job = job, .own = r, .ranks = ranks[r]};
        if (ranks[r]) ranks[r]->partner = job->partner;
        assert_int_equal(pthread_create(&out[r].thread, NULL, rank_run, &out[r]), 0);
    }
    for (int r = 0; r < job->ranks; r++) pthread_join(out[r].thread, NULL);
}

static void job_run(const struct job *job, struct rank *out) {
    job_try(job, out);
    for (int r = 0; r < job->ranks; r++)
        if (out[r].result != OK) print_error("rank %d of %d: %s\n", r, job->ranks, out[r].text);
    for (int r = 0; r < job->ranks; r++) assert_int_equal(out[r].result, OK);
}

static void expect_same_files(struct arena *arena, const char *one, const char *other) {
    DIR *files = opendir(one);
    int count = 0;
    assert_non_null(files);
    for (const struct dirent *file; (file = readdir(files)); count++) {
        if (file->d_name[0] == '.') continue;
        SCOPED(struct file_map, file_map_release) a, b;
        MUST(file_map_open(&a, path_join(arena, one, file->d_name)));
        MUST(file_map_open(&b, path_join(arena, other, file->d_name)));
        assert_int_equal(a.size, b.size);
        if (memcmp(a.data, b.data, a.size) != 0) print_error("%s differs: %s, %s\n", file->d_name, one, other);
        assert_memory_equal(a.data, b.data, a.size);
    }
    closedir(files);
    assert_in_range(count, 4, 100); // weights, state, counters, configuration
}

// Each of `counts`, up to 0, is a number of ranks that do all steps. Then three ranks do half of them, and two the
// rest.
static void expect_same_training(struct training *training, const int *counts) {
    struct rank one, many[MOST_RANKS];
    struct arena *arena = &training->it.arena;
    struct job job = {training, 1, training->steps, .to = unit_new_directory()};
    job_run(&job, &one);
    const char *expected = job.to;
    for (; *counts; counts++) {
        job = (struct job){training, *counts, training->steps, .to = unit_new_directory()};
        job_run(&job, many);
        for (int r = 0; r < job.ranks; r++) {
            for (int step = 0; step < training->steps; step++) {
                if (many[r].norms[step] != one.norms[step])
                    print_error("rank %d of %d, step %d: the norm is %.17g, not %.17g\n", r, job.ranks, step,
                                many[r].norms[step], one.norms[step]);
                assert_true(many[r].norms[step] == one.norms[step]);
            }
            assert_true(many[r].hash == one.hash);
            assert_true(many[r].reference == one.reference);
        }
        expect_same_files(arena, expected, job.to);
    }
    job = (struct job){training, 3, training->steps, expected, .to = unit_new_directory()}; // as it is
    job_run(&job, many);
    for (int r = 0; r < 3; r++) assert_true(many[r].hash == one.hash && many[r].reference == one.reference);
    expect_same_files(arena, expected, job.to);
    const char *middle = unit_new_directory();
    job = (struct job){training, 3, training->steps / 2, .to = middle};
    job_run(&job, many);
    job = (struct job){training, 2, training->steps, middle, .to = unit_new_directory()};
    job_run(&job, many);
    for (int r = 0; r < 2; r++) assert_true(many[r].hash == one.hash && many[r].reference == one.reference);
    expect_same_files(arena, expected, job.to);
}

TEST(any_number_of_ranks_trains_to_the_same_bytes) {
    static const int counts[] = {1, 2, 3, 4, 8, 0};
    static const char *const precisions[] = {"float32", "bfloat16"};
    for (int c = 0; c < CASES; c++) {
        for (int p = 0; p < 2; p++) {
            SCOPED(struct training, training_close)
            training = training_open(case_names[c], "cpu", precisions[p], c != 1, 1 + (c + p) % 2, STEPS);
            expect_same_training(&training, counts);
        }
    }
}

TEST(any_number_of_ranks_trains_adapters_to_the_same_bytes) {
    static const int counts[] = {1, 2, 3, 8, 0};
    for (int half = 0; half < 2; half++) {
        SCOPED(struct training, training_close)
        training = training_open("pairs", "cpu", half ? "bfloat16" : "float32", false, 1 + half, STEPS);
        training.options.lora = 3;
        training.options.lora_alpha = 6;
        expect_same_training(&training, counts);
    }
}

// Ranks of other machines give what they have to partners, and get it from there.
TEST(ranks_that_do_not_reach_the_files_save_and_load_the_same_bytes) {
    static const int partners[][4] = {{0, 0}, {0, 1, 0}, {0, 0, 0}, {0, 1, 0, 1}, {0, 1, 2, 1}};
    static const int counts[] = {2, 3, 3, 4, 4};
    for (int half = 0; half < 4; half++) {
        SCOPED(struct training, training_close)
        training = training_open(half < 2 ? "even" : "pairs", "cpu", half % 2 ? "bfloat16" : "float32", half < 3, 1, 2);
        struct rank one, many[MOST_RANKS];
        if (half == 3) training.options.lora = 3;
        if (half == 3) training.options.lora_alpha = 6;
        struct job job = {&training, 1, 1, .to = unit_new_directory()};
        job_run(&job, &one);
        const char *middle = job.to;
        job = (struct job){&training, 1, 2, .to = unit_new_directory()};
        job_run(&job, &one);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            for (int from = 0; from < 2; from++) {
                struct job other = {&training,   counts[i],  2, from ? middle : NULL, unit_new_directory(),
                                    partners[i], .run = NULL};
                job_run(&other, many);
                expect_same_files(&training.it.arena, job.to, other.to);
                for (int r = 0; r < counts[i]; r++) assert_true(many[r].hash == one.hash);
            }
        }
    }
}

// Rank 0 finds no directory to write to and to read from, or rank 1 cannot write, and rank 2, which has partners,
// hears of it; then all go on.
static status rank_save_away(struct rank *rank, struct model *model) {
    const char *nowhere = "/dev/null/nowhere";
    if (model_save_state(model, nowhere) != UNAVAILABLE) return fail(BUG, "saved to nowhere: %s", fail_text());
    if (model_load_state(model, nowhere) != DATAERR) return fail(BUG, "loaded from nowhere: %s", fail_text());
    if (rank->own && !strstr(fail_text(), "rank 0")) return fail(BUG, "no rank is named: %s", fail_text());
    return rank_train(rank, model);
}

TEST(ranks_go_on_when_their_partner_could_not_save_or_load) {
    static const int partner[] = {0, 0, 0};
    SCOPED(struct training, training_close) training = training_open("even", "cpu", "bfloat16", true, 1, 2);
    struct rank one, three[3];
    struct job job = {&training, 1, 2, .to = unit_new_directory()};
    job_run(&job, &one);
    struct job other = {&training, 3, 2, NULL, unit_new_directory(), partner, rank_save_away};
    job_run(&other, three);
    expect_same_files(&training.it.arena, job.to, other.to);
}

// Through the hosts; then from GPU to GPU, as late and in any order between pairs. Two and three ranks load and go on.
TEST(ranks_on_gpus_train_to_the_same_bytes) {
    static const int counts[] = {4, 0};
    const char *dir = getenv("CARAVAN_LIB");
    if (!EMULATOR_IS_FAST || !case_emulator()) return;
    for (int linked = 0; linked < 3; linked++) {
        SCOPED(struct training, training_close)
        training = training_open("even", linked == 2 ? "emulated:1" : "emulated", "bfloat16", true, 1, 2);
        const char *plugin = arena_printf(&training.it.arena, "%s/libcaravan-emulated.so", dir ? dir : ".");
        setenv("CARAVAN_NCCL", linked ? plugin : "none", 1);
        setenv("CARAVAN_EMULATED_NCCL", "delay=4", 1);
        training.linked = linked;
        if (linked == 2) training.options.lora = 3;
        if (linked == 2) training.options.lora_alpha = 6;
        if (linked == 2) training.options.train_vision = false;
        expect_same_training(&training, linked == 1 ? counts : &counts[1]);
    }
}

// One turn of all ranks. What a rank owns of its own leaf stays where it is.
static status rank_send(struct rank *rank, struct model *model) {
    const struct parameter_table *table = &model->weights->base.table;
    const uint64_t others = (uint64_t)rank->job->ranks - 1;
    uint64_t expected = others; // a byte to each says what the leaf has
    const uint64_t before = rank->ranks->sent;
    TRY(model_turn(model, rank->job->ranks));
    TRY(leaf_accumulate(rank->job->training, model, 0, 0));
    for (size_t i = 0; i < table->bucket_count; i++) {
        const struct parameter_bucket *bucket = &table->buckets[i];
        const struct param_piece own = shard_own(bucket, rank->ranks);
        expected += (uint64_t)(bucket->count - (own.end - own.first)) *
                    element_size(table->ranges[bucket->range].decay ? ELEMENT_BF16 : ELEMENT_F32);
    }
    const uint64_t sent = rank->ranks->sent - before;
    if (sent != expected)
        return fail(BUG, "%llu bytes were sent, not %llu", (unsigned long long)sent, (unsigned long long)expected);
    return OK;
}

TEST(a_rank_sends_of_its_leaf_what_others_own_and_once) {
    SCOPED(struct training, training_close) training = training_open("even", "cpu", "bfloat16", true, 1, 2);
    struct rank many[MOST_RANKS];
    for (int ranks = 2; ranks <= 4; ranks++) job_run(&(struct job){&training, ranks, .run = rank_send}, many);
}

// Rank 1 gives up in the first turn, before or behind its leaf; or its leaf is none.
static int failing; // 0, 1, 2
static status rank_fail(struct rank *rank, struct model *model) {
    static const int64_t unknown = 1 << 20;
    const struct train_completion completion = {.completion = {&unknown, 1}, .advantage = 1};
    const struct model_prompt *prompt = &rank->job->training->it.prompt;
    struct train_result result;
    double norm;
    if (rank->own == 1 && failing == 0) return fail(DATAERR, "given up");
    TRY(model_turn(model, 3));
    if (rank->own == 1 && failing == 1)
        TRY(model_accumulate(model, prompt, &completion, 1, &(struct loss_options){0}, 1, &result));
    TRY(leaf_accumulate(rank->job->training, model, 0, 0));
    if (rank->own == 1) return fail(DATAERR, "given up");
    return model_step(model, &rates, &norm);
}

TEST(the_others_end_when_a_rank_fails) {
    SCOPED(struct training, training_close) training = training_open("even", "cpu", "float32", true, 1, 2);
    struct rank three[3];
    for (failing = 0; failing < 3; failing++) {
        job_try(&(struct job){&training, 3, .run = rank_fail}, three);
        assert_int_equal(three[1].result, failing == 1 ? BAD_SAMPLE : DATAERR);
        for (int r = 0; r < 3; r += 2) {
            assert_int_equal(three[r].result, UNAVAILABLE);
            assert_non_null(strstr(three[r].text, "rank 1 has left"));
        }
    }
}

// Rank 0 cannot make the directory, rank 1 cannot read the state; then all go on.
static status rank_save(struct rank *rank, struct model *model) {
    SCOPED(struct arena, arena_release) arena = {0};
    const char *file = path_join(&arena, unit_directory(), "no-directory");
    if (rank->own == 0) TRY(file_write_atomic(file, "", 0));
    if (model_save(model, file) != UNAVAILABLE) return fail(BUG, "saved to a file: %s", fail_text());
    if (rank->own && !strstr(fail_text(), "rank 0")) return fail(BUG, "no rank is named: %s", fail_text());
    const status result = model_load_state(model, rank->own == 1 ? file : rank->job->from);
    if (result != DATAERR) return fail(BUG, "loaded from a file: %s", fail_text());
    if (rank->own != 1 && !strstr(fail_text(), "rank 1")) return fail(BUG, "no rank is named: %s", fail_text());
    return rank_train(rank, model);
}

TEST(ranks_go_on_when_one_could_not_save_or_load) {
    SCOPED(struct training, training_close) training = training_open("even", "cpu", "float32", true, 1, 2);
    struct rank one, three[3];
    struct job job = {&training, 1, 1, .to = unit_new_directory()};
    job_run(&job, &one);
    job_run(&(struct job){&training, 3, 2, job.to, unit_new_directory(), .run = rank_save}, three);
    job_run(&(struct job){&training, 1, 2, job.to, .to = unit_new_directory()}, &one);
    for (int r = 0; r < 3; r++) assert_true(three[r].hash == one.hash);
}

static status rank_confuse(struct rank *rank, struct model *model) {
    double norm;
    if (rank->own == 1) return OK;
    if (model_turn(model, 0) != BUG || model_turn(model, 3) != BUG) return fail(BUG, "a turn of no rank or too many");
    if (leaf_accumulate(rank->job->training, model, 0, 0) != BUG) return fail(BUG, "a leaf outside of a turn");
    TRY(model_turn(model, 1));
    if (model_turn(model, 1) != BUG) return fail(BUG, "a turn before the leaf of the one before");
    if (model_step(model, &rates, &norm) != BUG) return fail(BUG, "a step before the leaf");
    return model_save_grads(model, "grads") == USAGE ? OK : fail(BUG, "gradients of a rank");
}

TEST(what_would_confuse_the_ranks_is_refused) {
    SCOPED(struct training, training_close) training = training_open("even", "cpu", "float32", true, 1, 2);
    struct rank two[2];
    job_run(&(struct job){&training, 2, .run = rank_confuse}, two);
}
