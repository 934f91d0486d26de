// caravan train-consistency: trains a consistency model, a ModernBERT classifier, on labelled pairs of premise and
// hypothesis.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/json.h"
#include "shared/base/log.h"
#include "shared/base/memory.h"
#include "shared/data/consistency_pair.h"
#include "shared/data/labelled_pairs.h"
#include "shared/model/classifier.h"
#include "shared/text/tokenizer.h"
#include "tools/consistency/consistency_training.h"
#include "tools/tools.h"

// ---- state ----

// What a training of a consistency model leaves in its output directory: the states from which it goes on,
// OUT/state-NNNNNN, and, when it is finished, the line of its result, OUT/.training. Both say with a hash which
// settings and data they belong to. A state is written under another name and renamed when it is complete.

static const char progress_name[] = "progress", result_name[] = ".training";

// The settings' hash, for printf; and for scanf. A result's line follows.
#define STATE_SETTINGS      "caravan-training 1\nsettings %016" PRIx64 "\n"
#define STATE_SETTINGS_READ "caravan-training 1 settings %" SCNx64 "%n"

// Reads a file and checks that it begins with these settings; *rest = where the next line begins. USAGE when they are
// others; DATAERR when the file cannot be read.
static status state_read(const char *path, const char *out, uint64_t settings, struct buf *text, const char **rest) {
    uint64_t saved;
    int end = 0;
    TRY(file_read(path, text));
    if (!text->data || sscanf(text->data, STATE_SETTINGS_READ, &saved, &end) != 1 || text->data[end] != '\n')
        return fail(DATAERR, "%s: not a caravan-training file of version 1", path);
    *rest = text->data + end + 1;
    if (saved == settings) return OK;
    return fail(USAGE,
                "%s: the directory is of a training with other data or options; remove it, or give another --out", out);
}

// Returns the step of a state by its name in the directory; -1 for any other name.
static int64_t state_step(const char *name) {
    int64_t step;
    int end = 0;
    return sscanf(name, "state-%" SCNd64 "%n", &step, &end) == 1 && !name[end] ? step : -1;
}

// Removes the states in `out` but the one of step `keep`, -1: all of them, and what a killed process has left of
// others. UNAVAILABLE.
static status state_remove(const char *out, int64_t keep) {
    struct arena arena = {0};
    status result = OK;
    DIR *entries = opendir(out);
    for (struct dirent *entry; entries && result == OK && (entry = readdir(entries));) {
        const bool state = strncmp(entry->d_name, "state-", strlen("state-")) == 0;
        if (!state || (keep >= 0 && state_step(entry->d_name) == keep)) continue;
        const char *path = path_join(&arena, out, entry->d_name);
        result = dir_remove(path);
    }
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}

// Replaces the states in `out` by that of a step. UNAVAILABLE; an older state is then still there.
static status state_save(struct classifier *classifier, const char *out, uint64_t settings, int64_t step) {
    struct arena arena = {0};
    struct buf progress = {0};
    status result = OK;
    const char *path = arena_printf(&arena, "%s/state-%06" PRId64, out, step);
    const char *temporary = arena_printf(&arena, "%s.tmp", path);
    TRY_TO(result, done, dir_remove(temporary));
    TRY_TO(result, done, dir_make(temporary));
    TRY_TO(result, done, classifier_save_state(classifier, temporary));
    buf_printf(&progress, STATE_SETTINGS, settings);
    TRY_TO(result, done, subcommand_write_file(temporary, progress_name, &progress));
    TRY_TO(result, done, dir_sync(temporary));
    if (rename(temporary, path)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
    TRY_TO(result, done, dir_sync(out));
    result = state_remove(out, step);
done:
    buf_release(&progress);
    arena_release(&arena);
    return result;
}

// ---- training ----

// The training of a consistency model on labelled pairs (CORA, arXiv 2606.14691): cross entropy, AdamW with betas 0.9
// and 0.98, epsilon 1e-6 and weight decay 0.01, gradients clipped to norm 1, a linear schedule.
//
// Every random choice is keyed by the seed, and the gradients of a step are added in one fixed order, so a training
// that was killed and goes on from its last state ends with the same bits.

struct train_options {
    const char *data, *model, *out; // the pairs, the model that it starts from, the directory of the trained one
    const char *device, *precision; // NULL: the default
    int64_t epochs, pairs_per_step, seed, max_tokens, threads;
    double lr, held_out, threshold;
};

struct training {
    const struct train_options *given;
    struct labelled_pairs pairs;
    size_t *trained, *held_out; // indexes of pairs
    size_t trained_count, held_out_count;
    struct tokenizer *tokenizer;
    struct classifier *classifier;
    struct linear_schedule schedule;
    uint64_t settings; // a hash of everything that the result depends on
    int64_t step;
};

// The tokens of some pairs.
struct token_batch {
    struct token_list *lists;
    struct classifier_text *texts;
    int *labels;
    size_t count;
};

static void token_batch_release(struct token_batch *batch) {
    for (size_t i = 0; i < batch->count; i++) token_list_release(&batch->lists[i]);
    free(batch->lists);
    free(batch->texts);
    free(batch->labels);
}

// ---- the pairs ----

// Appends the tokens of a pair. BAD_SAMPLE when its question and hypothesis alone have too many.
static status training_encode(const struct training *training, const struct labelled_pair *labelled,
                              struct token_list *out, size_t *cut) {
    struct pair_record record;
    status result = labelled_pairs_read(&training->pairs, labelled, &record);
    if (result == OK) {
        const struct consistency_pair pair = {.premise = record.premise,
                                              .hypothesis = record.hypothesis,
                                              .thinking = consistency_thinking_begin(record.premise, record.question)};
        result = consistency_pair_encode(&pair, training->tokenizer, (size_t)training->given->max_tokens, out, cut);
    }
    pair_record_release(&record);
    return result;
}

// Makes a batch of the pairs indexes[order[i]], or indexes[i] without an order. Release it in any case.
static status training_batch(const struct training *training, const size_t *indexes, const size_t *order, size_t count,
                             struct token_batch *batch) {
    *batch = (struct token_batch){0};
    NEW(&batch->lists, count);
    NEW(&batch->texts, count);
    NEW(&batch->labels, count);
    while (batch->count < count) {
        const size_t at = batch->count++;
        const struct labelled_pair *pair = &training->pairs.list[indexes[order ? order[at] : at]];
        size_t cut;
        TRY(training_encode(training, pair, &batch->lists[at], &cut));
        batch->texts[at] = (struct classifier_text){batch->lists[at].data, batch->lists[at].count};
        batch->labels[at] = pair->label;
    }
    return OK;
}

// Reads the pairs and opens the model; says on standard error which pairs are left out or cut. The options must outlive
// the training. DATAERR names the file and what is wrong, also when no pair is left to train on; USAGE, UNAVAILABLE.
static status training_open(struct training *training, const struct train_options *given) {
    const struct classifier_options classifier_options = {.device = given->device,
                                                          .threads = (int)given->threads,
                                                          .precision = given->precision,
                                                          .training = true,
                                                          .seed = (uint64_t)given->seed};
    struct labelled_pairs *pairs = &training->pairs;
    uint64_t model;
    size_t held_out;
    training->given = given;
    TRY(labelled_pairs_open(pairs, given->data));
    TRY(tokenizer_open(&training->tokenizer, given->model));
    TRY(classifier_open(&training->classifier, given->model, &classifier_options));
    const struct classifier_info *info = classifier_get_info(training->classifier);
    TRY(consistency_tokenizer_check(training->tokenizer, given->model, info->vocab_size));

    TRY(classifier_hash(training->classifier, &model));
    const struct file_map *map = &pairs->records.map;
    const double numbers[] = {given->lr, given->held_out, given->threshold};
    struct buf text = {0};
    buf_printf(&text, "%" PRIx64 " %" PRIx64 " %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " ", model,
               (uint64_t)XXH3_64bits(map->data, map->size), info->precision, given->epochs, given->pairs_per_step,
               given->seed, given->max_tokens);
    buf_append(&text, numbers, sizeof numbers);
    training->settings = XXH3_64bits(text.data, text.size);
    buf_release(&text);

    // Drops the pairs that cannot be shortened to max_tokens.
    size_t kept = 0, shortened = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        struct token_list tokens = {0};
        size_t cut = 0;
        const status result = training_encode(training, &pairs->list[i], &tokens, &cut);
        token_list_release(&tokens);
        if (result != BAD_SAMPLE) TRY(result);
        if (result == OK) pairs->list[kept++] = pairs->list[i];
        shortened += result == OK && cut > 0;
    }
    if (pairs->unlabelled) log_info("%zu pairs have no label and are left out", pairs->unlabelled);
    if (shortened) log_info("%zu pairs are cut to %lld tokens", shortened, (long long)given->max_tokens);
    if (kept < pairs->count)
        log_info("%zu pairs whose question and hypothesis alone have more than %lld tokens are left out",
                 pairs->count - kept, (long long)given->max_tokens);
    pairs->count = kept;

    labelled_pairs_hold_out(pairs, given->held_out, (uint64_t)given->seed, &held_out);
    if (held_out == pairs->count)
        return fail(DATAERR, "%s: no pair is left to train on (%zu held out)", given->data, held_out);
    NEW(&training->trained, pairs->count);
    NEW(&training->held_out, pairs->count);
    for (size_t i = 0; i < pairs->count; i++) {
        if (pairs->list[i].held_out)
            training->held_out[training->held_out_count++] = i;
        else
            training->trained[training->trained_count++] = i;
    }
    training->schedule =
        linear_schedule_of((int64_t)training->trained_count, given->pairs_per_step, given->epochs, given->lr);
    return OK;
}

// ---- the steps ----

// Takes the steps that are left. The state is saved at every epoch's end, and also when that costs little.
static status training_take_steps(struct training *training) {
    enum { STATE_INTERVAL = 50, STATE_SECONDS = 60 }; // times the seconds that the last save took; at least
    const struct linear_schedule *schedule = &training->schedule;
    const char *out = training->given->out;
    const size_t per_step = (size_t)training->given->pairs_per_step;
    double saved_at = clock_monotonic(), save_seconds = 0;
    size_t *order;
    status result = OK;
    NEW(&order, training->trained_count);
    for (int64_t ordered = -1; training->step < schedule->steps;) {
        const int64_t epoch = training->step / schedule->steps_per_epoch;
        if (epoch != ordered) epoch_order((uint64_t)training->given->seed, epoch, training->trained_count, order);
        ordered = epoch;

        const size_t first = (size_t)(training->step % schedule->steps_per_epoch) * per_step;
        const size_t left = training->trained_count - first, count = left < per_step ? left : per_step;
        const struct optimizer_options adamw = {.lr = linear_schedule_lr(schedule, training->step),
                                                .beta1 = 0.9,
                                                .beta2 = 0.98,
                                                .eps = 1e-6,
                                                .weight_decay = 0.01,
                                                .max_grad_norm = 1};
        const double started = clock_monotonic();
        struct token_batch batch;
        double loss = 0, norm;
        result = training_batch(training, training->trained, order + first, count, &batch);
        if (result == OK)
            result =
                classifier_accumulate(training->classifier, batch.texts, batch.labels, count, 1 / (double)count, &loss);
        token_batch_release(&batch);
        TRY_TO(result, done, result);
        TRY_TO(result, done, classifier_step(training->classifier, &adamw, &norm));
        training->step++;
        const double now = clock_monotonic(), since = now - saved_at;
        log_info("step %lld of %lld: loss %.4g, gradient norm %.4g, lr %.3g, %zu pairs, %.2f s",
                 (long long)training->step, (long long)schedule->steps, loss / (double)count, norm, adamw.lr, count,
                 now - started);
        if (training->step % schedule->steps_per_epoch &&
            (since < STATE_SECONDS || since < STATE_INTERVAL * save_seconds))
            continue;
        TRY_TO(result, done, state_save(training->classifier, out, training->settings, training->step));
        saved_at = clock_monotonic();
        save_seconds = saved_at - now;
    }
done:
    free(order);
    return result;
}

// ---- the figures ----

// Takes the steps that are left after the newest state in the options' `out`, scores what is held out, and writes the
// model there; the last state stays. Appends the line of the result. USAGE when `out` has another model or another
// training's state.
static status training_run(struct training *training, struct buf *line) {
    const char *out = training->given->out;
    const size_t held_out = training->held_out_count;
    struct classification figures;
    struct token_batch batch = {0};
    double *probabilities = NULL;
    struct buf progress = {0};
    struct arena arena = {0};
    status result = OK;
    TRY_TO(result, done, dir_make(out));
    DIR *entries = opendir(out);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const int64_t found = state_step(entry->d_name);
        if (found > training->step) training->step = found;
    }
    if (entries) closedir(entries);
    if (training->step) {
        const char *dir = arena_printf(&arena, "%s/state-%06" PRId64, out, training->step), *rest;
        TRY_TO(result, done,
               state_read(path_join(&arena, dir, progress_name), out, training->settings, &progress, &rest));
        TRY_TO(result, done, classifier_load_state(training->classifier, dir));
        log_info("resuming from step %lld in %s", (long long)training->step, out);
    } else if (path_exists(path_join(&arena, out, "config.json"))) {
        TRY_TO(result, done, fail(USAGE, "%s: the directory already contains a model", out));
    }
    TRY_TO(result, done, training_take_steps(training));
    TRY_TO(result, done, training_batch(training, training->held_out, NULL, held_out, &batch));
    NEW(&probabilities, held_out);
    TRY_TO(result, done, classifier_score(training->classifier, batch.texts, held_out, probabilities));
    classification_compute(&figures, probabilities, batch.labels, held_out, training->given->threshold);
    TRY_TO(result, done, classifier_save(training->classifier, out));
    static const char *const names[] = {"accuracy", "auc", "rate_consistent", "rate_inconsistent"};
    const double rates[] = {figures.accuracy, figures.auc, figures.rate_consistent, figures.rate_inconsistent};
    buf_printf(line, "{\"pairs\": %zu, \"held_out\": %zu", training->trained_count, figures.count);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        buf_printf(line, ", \"%s\": ", names[i]);
        json_print_double(line, rates[i]);
    }
    buf_puts(line, "}\n");
done:
    free(probabilities);
    buf_release(&progress);
    token_batch_release(&batch);
    arena_release(&arena);
    return result;
}

static const struct option train_options[] = {
    TOOL_OPTION(train_options, data, OPTION_FILE, "labelled pairs, as caravan pairs writes them", .required = true),
    TOOL_OPTION(train_options, model, OPTION_FILE,
                "directory of a ModernBERT: an encoder, a masked-LM checkpoint or a classifier", .required = true),
    TOOL_OPTION(train_options, out, OPTION_PATH, "directory of the trained model", .required = true),
    TOOL_OPTION(train_options, epochs, OPTION_INT, "passes over the pairs", .default_value = "2", .low = 1,
                .high = 1e6),
    TOOL_OPTION(train_options, lr, OPTION_NUMBER,
                "peak learning rate; it rises over the first 6 % of the steps and falls linearly to 0",
                .default_value = "3e-5", .high = 1e6),
    TOOL_OPTION(train_options, pairs_per_step, OPTION_INT, "pairs in one optimizer step", .default_value = "64",
                .low = 1, .high = 1 << 20),
    TOOL_OPTION(train_options, held_out, OPTION_NUMBER,
                "share of the questions whose pairs are not trained on but scored at the end; 0: none",
                .default_value = "0.05", .high = 1),
    TOOL_OPTION(train_options, threshold, OPTION_NUMBER,
                "probability from which on a pair counts as consistent in the figures", .default_value = "0.5",
                .high = 1),
    TOOL_OPTION(train_options, seed, OPTION_INT,
                "seed of what is held out, of the order of the pairs, and of a new classifier's weights",
                .default_value = "42", .high = 9007199254740992.0),
    TOOL_OPTION(train_options, max_tokens, OPTION_INT,
                "maximum tokens of a pair; the first tokens of a longer one's thinking are left out",
                .default_value = "8192", .low = 1, .high = 1 << 20),
    TOOL_OPTION(train_options, device, OPTION_DEVICE, "cpu, cuda or cuda:N (default: cuda if available)"),
    TOOL_OPTION(train_options, threads, OPTION_INT, "threads (default: all)", .low = 1, .high = 4096),
    TOOL_OPTION(train_options, precision, OPTION_NAME,
                "type of the computation (default: float32 on the CPU, bfloat16 on CUDA)",
                .choices = "float32|bfloat16"),
    {0},
};
const struct option_table train_consistency_table = {
    .program = "caravan train-consistency",
    .help = "trains a ModernBERT classifier that says whether thinking supports an answer",
    .details = "Prints one JSON object: how many pairs were trained on and held out, and of\n"
               "those held out the accuracy, the area under the ROC curve, and the share of the\n"
               "consistent and of the inconsistent ones that were recognised. A training that\n"
               "was killed goes on where its last state was saved when the same command is given\n"
               "again.\n",
    .options = train_options,
    .size = sizeof(struct train_options),
};

status train_consistency_main(struct subcommand_call *call) {
    const struct train_options *given = call->given;
    struct training training = {0};
    struct buf line = {0}, content = {0};
    status result;
    TRY_TO(result, done, training_open(&training, given));
    const char *path = path_join(&call->arena, given->out, result_name), *rest;
    if (path_exists(path)) { // it was finished
        TRY_TO(result, done, state_read(path, given->out, training.settings, &content, &rest));
        buf_puts(&line, rest);
    } else {
        TRY_TO(result, done, training_run(&training, &line));
        buf_printf(&content, STATE_SETTINGS "%s", training.settings, line.data);
        TRY_TO(result, done, subcommand_write_file(given->out, result_name, &content));
    }
    fwrite(line.data, 1, line.size, stdout);
    result = state_remove(given->out, -1);
done:
    buf_release(&line);
    buf_release(&content);
    free(training.trained);
    free(training.held_out);
    classifier_free(&training.classifier);
    tokenizer_free(&training.tokenizer);
    labelled_pairs_release(&training.pairs);
    return result;
}
