// Weights that one process trains and lends, and another one borrows or copies, on the emulator or on MODEL_DEVICE. An
// argument selects tests by a pattern: a process can start the lender only before it has opened a GPU itself.
#include "tests/unit/model_case.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// A short prompt without media: the emulator is slow.
static const int64_t tokens[] = {5, 6, 7, 8, 9};
static const struct model_prompt prompt = {.tokens = tokens, .count = 3};
static const struct model_completion answers[] = {{&tokens[1], 2}, {&tokens[2], 3}};
enum { ANSWERS = 2, LONGEST = 3 };

static int64_t lora; // of the models of the present test; 0: they have no adapters

static char memory_dir[] = "/tmp/caravan-memory-XXXXXX"; // where the emulator counts what processes have

static const char *shared_device(void) {
    const char *device = getenv("MODEL_DEVICE");
    return device ? device : "emulated";
}

// ---- the process that trains: does what the other one asks ----

enum request {
    STEP = 's',      // changes policy and reference; nothing is lent again
    LEND = 'l',      // policy and reference
    PUBLISH = 'p',   // the policy, to a file
    REFERENCE = 'r', // the reference, to a file
    OPEN = 'o',      // only opens the model, on a device with so much memory; a lender without one may be asked again
};

struct lender {
    pid_t process;
    int to, from;
    bool copied, waits; // waits: opens the model when asked to
    char memory[256];   // CARAVAN_EMULATED_MEMORY of the process that waits
    struct model_case it;
    char *dir, *policy, *reference, *file;
};

// The hashes of policy and reference, as far as the request makes them.
struct answer {
    uint64_t policy, reference;
    bool no_memory; // OPEN has failed
};

static status lender_step(struct model *model) {
    const struct optimizer_options rates = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    const struct loss_options loss = {.clip_low = 0.2, .clip_high = 0.2};
    const struct train_completion completions[ANSWERS] = {{.completion = answers[0], .advantage = 1},
                                                          {.completion = answers[1], .advantage = -1}};
    struct train_result result;
    double norm;
    TRY(model_accumulate(model, &prompt, completions, ANSWERS, &loss, 1, &result));
    TRY(model_step(model, &rates, &norm));
    return model_update_ema(model, 0.5);
}

static void lender_run(struct lender *lender, int from, int to) {
    struct model *model = NULL;
    const struct model_options options = {.device = shared_device(),
                                          .precision = "bfloat16",
                                          .training = true,
                                          .train_vision = !lora,
                                          .ema = true,
                                          .lora = lora,
                                          .lora_alpha = 16};
    status result = lender->waits ? OK : model_open(&model, lender->it.dir, &options);
    for (char request; result == OK && read(from, &request, 1) == 1;) {
        struct answer answer = {0};
        if (request == OPEN) {
            char memory[sizeof lender->memory];
            if (read(from, memory, sizeof memory) != sizeof memory) break;
            setenv("CARAVAN_EMULATED_MEMORY", memory, 1);
            result = model_open(&model, lender->it.dir, &options);
            answer.no_memory = result == UNAVAILABLE && strstr(fail_text(), "out of memory");
            if (answer.no_memory) result = OK;
        } else if (request == STEP) {
            result = lender_step(model);
        } else if (request == LEND) {
            result = model_lend(model, false, lender->copied, lender->policy, &answer.policy);
            if (result == OK) result = model_lend(model, true, lender->copied, lender->reference, &answer.reference);
        } else {
            bool reference = request == REFERENCE;
            result = model_publish(model, reference, lender->file, reference ? &answer.reference : &answer.policy);
        }
        if (result == OK && write(to, &answer, sizeof answer) != sizeof answer) result = BUG;
    }
    if (result != OK) fprintf(stderr, "lender: %s\n", fail_text());
    model_free(&model);
    _exit(result != OK);
}

static void lender_start(struct lender *lender, bool copied, bool waits) {
    int there[2], back[2];
    *lender = (struct lender){.copied = copied, .waits = waits};
    lender->it = case_open("even");
    lender->dir = unit_new_directory();
    lender->policy = path_join(&lender->it.arena, lender->dir, "policy");
    lender->reference = path_join(&lender->it.arena, lender->dir, "reference");
    lender->file = path_join(&lender->it.arena, lender->dir, "file");
    assert_int_equal(pipe(there), 0);
    assert_int_equal(pipe(back), 0);
    lender->process = fork();
    if (lender->process == 0) {
        close(there[1]);
        close(back[0]);
        lender_run(lender, there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    lender->to = there[1];
    lender->from = back[0];
}

static struct answer ask(const struct lender *lender, char request) {
    struct answer answer;
    assert_int_equal(write(lender->to, &request, 1), 1);
    assert_int_equal(read(lender->from, &answer, sizeof answer), sizeof answer);
    return answer;
}

// Lets a lender that waits open its model; false: there is not enough memory.
static bool open_with_memory(const struct lender *lender, size_t bytes) {
    char memory[sizeof lender->memory] = "";
    const char request = OPEN;
    struct answer answer;
    snprintf(memory, sizeof memory, "%zu:%s", bytes, memory_dir);
    assert_int_equal(write(lender->to, &request, 1), 1);
    assert_int_equal(write(lender->to, memory, sizeof memory), sizeof memory);
    assert_int_equal(read(lender->from, &answer, sizeof answer), sizeof answer);
    return !answer.no_memory;
}

// Ends the process, by SIGKILL if `killed`; one that could not open the device has ended.
static void lender_end(struct lender *lender, bool killed) {
    int how = -1;
    if (killed) kill(lender->process, SIGKILL);
    close(lender->to);
    assert_int_equal(waitpid(lender->process, &how, 0), lender->process);
    assert_true(killed || how == 0);
    close(lender->from);
}

static void lender_release(struct lender *lender) {
    MUST(dir_remove(lender->dir));
    case_close(&lender->it);
}

// ---- the process that borrows ----

struct scores {
    float logprobs[ANSWERS][LONGEST];
};

static struct scores score(struct model *model) {
    struct scores scores = {0};
    float *const rows[ANSWERS] = {scores.logprobs[0], scores.logprobs[1]};
    MUST(model_score(model, &prompt, answers, ANSWERS, NULL, rows));
    return scores;
}

static bool same(const struct scores *a, const struct scores *b) {
    bool equal = true;
    for (int i = 0; i < ANSWERS; i++)
        for (int t = 0; t < LONGEST; t++) equal &= a->logprobs[i][t] == b->logprobs[i][t];
    return equal;
}

// NULL where there is no emulator; then the lender has ended. MODEL_DEVICE must be there.
static struct model *borrower_open(struct lender *lender, const char *precision) {
    struct model *model = NULL;
    status result = model_open(
        &model, lender->it.dir,
        &(struct model_options){.device = shared_device(), .precision = precision, .lora = lora, .lora_alpha = 16});
    if (result == OK) return model;
    print_message("%s: %s\n", getenv("MODEL_DEVICE") ? "failed" : "left out", fail_text());
    lender_end(lender, true);
    assert_true(result == UNAVAILABLE && !getenv("MODEL_DEVICE"));
    return NULL;
}

// The scores with the weights in a file, by a model that had none before.
static struct scores score_file(const struct lender *lender, uint64_t hash) {
    struct model *model = case_model(
        &lender->it,
        &(struct model_options){
            .device = shared_device(), .precision = "bfloat16", .no_weights = true, .lora = lora, .lora_alpha = 16});
    MUST(model_swap(model, lender->file, 1, hash));
    assert_true(model_weights_intact(model));
    struct scores scores = score(model);
    model_free(&model);
    return scores;
}

// Borrowed weights give the bits of published ones; a step of the lender is seen at once, and a new version is the same
// memory.
static void borrow(void) {
    SCOPED(struct lender, lender_release) lender = {0};
    lender_start(&lender, false, false);
    SCOPED(struct model *, model_free) model = borrower_open(&lender, "bfloat16");
    if (!model) return;
    uint64_t initial, found;
    struct scores first = score(model);
    struct answer lent = ask(&lender, LEND);
    MUST(model_hash(model, &initial));
    assert_true(lent.policy == initial && lent.reference == initial);
    MUST(model_swap(model, lender.policy, 0, initial));
    struct scores borrowed = score(model);
    assert_true(same(&borrowed, &first) && model_weights_intact(model));

    ask(&lender, STEP);
    assert_false(model_weights_intact(model));
    assert_int_equal(model_swap(model, lender.policy, 0, initial), BAD_SAMPLE);
    lent = ask(&lender, LEND);
    assert_true(lent.policy != initial && lent.reference != initial && lent.policy != lent.reference);
    assert_false(model_weights_intact(model)); // until they are taken over
    assert_int_equal(model_swap(model, lender.policy, 0, initial), BAD_SAMPLE);
    assert_false(model_weights_intact(model));
    MUST(model_swap(model, lender.policy, 1, lent.policy));
    assert_true(model_weights_intact(model) && model_version(model) == 1);
    MUST(model_hash(model, &found));
    assert_true(found == lent.policy);
    borrowed = score(model);
    ask(&lender, PUBLISH);
    struct scores published = score_file(&lender, lent.policy);
    assert_true(same(&borrowed, &published) && !same(&borrowed, &first));
    MUST(model_swap(model, lender.reference, 1, lent.reference));
    borrowed = score(model);
    ask(&lender, REFERENCE);
    published = score_file(&lender, lent.reference);
    assert_true(same(&borrowed, &published) && !same(&borrowed, &first));

    // The lender's death leaves what was borrowed until it is returned. Nobody can borrow it any more then; before, a
    // GPU may still open what lies in the same block of memory.
    lender_end(&lender, true);
    borrowed = score(model);
    assert_true(same(&borrowed, &published) && model_weights_intact(model));
    MUST(model_hash(model, &found));
    assert_true(found == lent.reference && model_weights_intact(model));
    model_return_weights(model);
    assert_int_equal(model_swap(model, lender.policy, 1, lent.policy), DATAERR);
    MUST(model_reset(model, initial));
    borrowed = score(model);
    assert_true(same(&borrowed, &first) && model_weights_intact(model));
    model_free(&model);
    model = case_model(
        &lender.it,
        &(struct model_options){
            .device = shared_device(), .precision = "bfloat16", .no_weights = true, .lora = lora, .lora_alpha = 16});
    assert_int_equal(model_reset(model, lent.policy), DATAERR);
    MUST(model_reset(model, initial));
    borrowed = score(model);
    assert_true(same(&borrowed, &first));
}

TEST(weights_are_borrowed) {
    borrow();
}

// And their base with them.
TEST(adapters_are_borrowed) {
    lora = 4;
    borrow();
    lora = 0;
}

// Copied weights stay as they are while the lender takes a step.
static void copy(void) {
    SCOPED(struct lender, lender_release) lender = {0};
    lender_start(&lender, true, false);
    SCOPED(struct model *, model_free) model = borrower_open(&lender, "bfloat16");
    if (!model) return;
    struct answer lent = ask(&lender, LEND);
    const uint64_t initial = lent.policy;
    MUST(model_swap(model, lender.policy, 0, initial));
    struct scores first = score(model);
    ask(&lender, STEP);
    struct scores again = score(model);
    assert_true(model_weights_intact(model) && same(&first, &again));
    assert_int_equal(model_swap(model, lender.policy, 0, lent.policy), BAD_SAMPLE);
    lent = ask(&lender, LEND);
    MUST(model_swap(model, lender.policy, 1, lent.policy));
    again = score(model);
    ask(&lender, PUBLISH);
    struct scores published = score_file(&lender, lent.policy);
    assert_true(same(&again, &published) && !same(&again, &first));
    MUST(model_swap(model, lender.file, 2, lent.policy));
    lender_end(&lender, false); // nothing is borrowed any more but the base of adapters
    again = score(model);
    assert_true(same(&again, &published));
    model_return_weights(model);
    MUST(model_reset(model, initial));
    again = score(model);
    assert_true(same(&again, &first));
}

TEST(weights_are_copied) {
    copy();
}

TEST(adapters_are_copied) {
    lora = 4;
    copy();
    lora = 0;
}

// A model in another precision, and a file that is no page, are refused; the old weights stay.
TEST(other_weights_are_refused) {
    SCOPED(struct lender, lender_release) lender = {0};
    lender_start(&lender, false, false);
    struct model *model = borrower_open(&lender, "float32");
    if (!model) return;
    uint64_t before, after;
    MUST(model_hash(model, &before));
    struct answer lent = ask(&lender, LEND);
    assert_int_equal(model_swap(model, lender.policy, 1, lent.policy), DATAERR);
    assert_non_null(strstr(fail_text(), "another precision"));
    MUST(file_write_atomic(lender.file, "caravlnt", 8));
    assert_int_equal(model_swap(model, lender.file, 1, lent.policy), DATAERR);
    assert_int_equal(model_swap(model, "/nonexistent", 1, lent.policy), DATAERR);
    MUST(model_hash(model, &after));
    assert_true(before == after && model_version(model) == 0);
    struct model *cpu = case_model(&lender.it, &(struct model_options){.device = "cpu", .precision = "float32"});
    bool has_means;
    assert_int_equal(model_can_lend(cpu, &has_means), UNAVAILABLE);
    assert_false(has_means);
    model_free(&cpu);
    model_free(&model);
    lender_end(&lender, false);
}

// The lender is killed where the device has room for it, for its borrowers, and for one copy of the weights more, as
// 141 GB have for a model of 7B. The next lender finds room when the borrowers have given back what they had borrowed.
// With adapters there is no room for a second base at any time.
static void kill_lender(void) {
    struct lender lender, next;
    struct stat taken;
    char peak[sizeof memory_dir + 8], own[sizeof memory_dir + 24];
    if (getenv("MODEL_DEVICE")) return; // a GPU's memory is not this test's to fill
    snprintf(peak, sizeof peak, "%s/peak", memory_dir);
    lender_start(&lender, false, false);
    lender_start(&next, false, true);
    struct model *policy = borrower_open(&lender, "bfloat16"), *reference;
    if (!policy) {
        lender_end(&next, true);
        lender_release(&next);
        lender_release(&lender);
        return;
    }
    uint64_t initial;
    MUST(model_hash(policy, &initial));
    struct scores first = score(policy);
    model_free(&policy);
    struct answer lent = ask(&lender, LEND);
    assert_true(!truncate(peak, 0) || errno == ENOENT); // from here on no process has weights of its own
    const struct model_options options = {
        .device = shared_device(), .precision = "bfloat16", .no_weights = true, .lora = lora, .lora_alpha = 16};
    policy = case_model(&lender.it, &options);
    reference = case_model(&lender.it, &options);
    MUST(model_swap(policy, lender.policy, 0, lent.policy));
    MUST(model_swap(reference, lender.reference, 0, lent.reference));
    assert_int_equal(stat(peak, &taken), 0);
    const size_t all = (size_t)model_get_info(policy)->parameter_count * 2;
    const size_t capacity = (size_t)taken.st_size + (lora ? 0 : all);
    snprintf(own, sizeof own, "%s/process-%d", memory_dir, (int)getpid());
    assert_int_equal(stat(own, &taken), 0);
    assert_true((size_t)taken.st_size < all / 4); // they have neither weights nor a base
    lender_end(&lender, true);
    assert_false(open_with_memory(&next, capacity)); // two copies of the weights are still mapped
    model_return_weights(policy);
    model_return_weights(reference);
    assert_true(model_weights_intact(policy));
    assert_true(open_with_memory(&next, capacity));
    assert_int_equal(stat(peak, &taken), 0);
    assert_true((size_t)taken.st_size <= capacity);
    lent = ask(&next, LEND);
    MUST(model_swap(policy, next.policy, 0, lent.policy));
    struct scores again = score(policy);
    assert_true(same(&first, &again));
    model_return_weights(policy);
    MUST(model_reset(policy, initial)); // its own: nothing to return
    model_return_weights(policy);
    again = score(policy);
    assert_true(same(&first, &again));
    model_free(&policy);
    model_free(&reference);
    lender_end(&next, false);
    lender_release(&lender);
    lender_release(&next);
}

TEST(a_killed_lenders_memory_is_returned) {
    kill_lender();
}

TEST(a_killed_lenders_base_is_returned) {
    lora = 4;
    kill_lender();
    lora = 0;
}

int main(int count, char **arguments) {
    char memory[64];
    if (count > 1) cmocka_set_test_filter(arguments[1]);
    if (!mkdtemp(memory_dir)) return 1;
    snprintf(memory, sizeof memory, "%llu:%s", 1ull << 40, memory_dir); // enough, and counted
    setenv("CARAVAN_EMULATED_MEMORY", memory, 1);
    const int failed = unit_run(NULL, NULL);
    MUST(dir_remove(memory_dir));
    return failed;
}
