// Every random choice is keyed by the seed, and the gradients of a step are added in one fixed order, so a training
// that was killed and goes on from its last state ends with the same bits.
#include "tools/consistency/consistency_trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/data/consistency_pair.h"
#include "shared/data/labelled_pairs.h"
#include "shared/model/classifier.h"
#include "shared/text/tokenizer.h"
#include "tools/consistency/consistency_state.h"

struct consistency_trainer {
    const struct consistency_trainer_options *given;
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
static status consistency_trainer_encode(const struct consistency_trainer *trainer,
                                         const struct labelled_pair *labelled, struct token_list *out, size_t *cut) {
    struct pair_record record;
    status result = labelled_pairs_read(&trainer->pairs, labelled, &record);
    if (result == OK) {
        const struct consistency_pair pair = {.premise = record.premise,
                                              .hypothesis = record.hypothesis,
                                              .thinking = consistency_thinking_begin(record.premise, record.question)};
        result = consistency_pair_encode(&pair, trainer->tokenizer, (size_t)trainer->given->max_tokens, out, cut);
    }
    pair_record_release(&record);
    return result;
}

// Drops the pairs that cannot be shortened to max_tokens, and says how many those are and how many are cut.
static status consistency_trainer_check_lengths(struct consistency_trainer *trainer) {
    struct labelled_pairs *pairs = &trainer->pairs;
    size_t kept = 0, shortened = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        struct token_list tokens = {0};
        size_t cut = 0;
        const status result = consistency_trainer_encode(trainer, &pairs->list[i], &tokens, &cut);
        token_list_release(&tokens);
        if (result != BAD_SAMPLE) TRY(result);
        if (result == OK) pairs->list[kept++] = pairs->list[i];
        shortened += result == OK && cut > 0;
    }
    if (pairs->unlabelled) log_info("%zu pairs have no label and are left out", pairs->unlabelled);
    if (shortened) log_info("%zu pairs are cut to %lld tokens", shortened, (long long)trainer->given->max_tokens);
    if (kept < pairs->count)
        log_info("%zu pairs whose question and hypothesis alone have more than %lld tokens are left out",
                 pairs->count - kept, (long long)trainer->given->max_tokens);
    pairs->count = kept;
    return OK;
}

// Makes a batch of the pairs indexes[order[i]], or indexes[i] without an order. Release it in any case.
static status consistency_trainer_batch(const struct consistency_trainer *trainer, const size_t *indexes,
                                        const size_t *order, size_t count, struct token_batch *batch) {
    *batch = (struct token_batch){0};
    NEW(&batch->lists, count);
    NEW(&batch->texts, count);
    NEW(&batch->labels, count);
    while (batch->count < count) {
        const size_t at = batch->count++;
        const struct labelled_pair *pair = &trainer->pairs.list[indexes[order ? order[at] : at]];
        size_t cut;
        TRY(consistency_trainer_encode(trainer, pair, &batch->lists[at], &cut));
        batch->texts[at] = (struct classifier_text){batch->lists[at].data, batch->lists[at].count};
        batch->labels[at] = pair->label;
    }
    return OK;
}

static status consistency_trainer_split(struct consistency_trainer *trainer) {
    const struct consistency_trainer_options *given = trainer->given;
    struct labelled_pairs *pairs = &trainer->pairs;
    size_t held_out;
    labelled_pairs_hold_out(pairs, given->held_out, (uint64_t)given->seed, &held_out);
    if (held_out == pairs->count)
        return fail(DATAERR, "%s: no pair is left to train on (%zu held out)", given->data, held_out);
    NEW(&trainer->trained, pairs->count);
    NEW(&trainer->held_out, pairs->count);
    for (size_t i = 0; i < pairs->count; i++) {
        if (pairs->list[i].held_out)
            trainer->held_out[trainer->held_out_count++] = i;
        else
            trainer->trained[trainer->trained_count++] = i;
    }
    trainer->schedule =
        linear_schedule_of((int64_t)trainer->trained_count, given->pairs_per_step, given->epochs, given->lr);
    return OK;
}

static status consistency_trainer_hash(struct consistency_trainer *trainer) {
    const struct consistency_trainer_options *given = trainer->given;
    const struct file_map *map = &trainer->pairs.records.map;
    const double numbers[] = {given->lr, given->held_out, given->threshold};
    uint64_t model;
    struct buf text = {0};
    TRY(classifier_hash(trainer->classifier, &model));
    buf_printf(&text, "%" PRIx64 " %" PRIx64 " %s %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " ", model,
               (uint64_t)XXH3_64bits(map->data, map->size), classifier_get_info(trainer->classifier)->precision,
               given->epochs, given->pairs_per_step, given->seed, given->max_tokens);
    buf_append(&text, numbers, sizeof numbers);
    trainer->settings = XXH3_64bits(text.data, text.size);
    buf_release(&text);
    return OK;
}

status consistency_trainer_new(struct consistency_trainer **out, const struct consistency_trainer_options *options) {
    const struct classifier_options classifier_options = {.device = options->device,
                                                          .threads = (int)options->threads,
                                                          .precision = options->precision,
                                                          .training = true,
                                                          .seed = (uint64_t)options->seed};
    struct consistency_trainer *trainer;
    status result;
    NEW(&trainer, 1);
    trainer->given = options;
    TRY_TO(result, failed, labelled_pairs_open(&trainer->pairs, options->data));
    TRY_TO(result, failed, tokenizer_open(&trainer->tokenizer, options->model));
    TRY_TO(result, failed, classifier_open(&trainer->classifier, options->model, &classifier_options));
    TRY_TO(result, failed,
           consistency_tokenizer_check(trainer->tokenizer, options->model,
                                       classifier_get_info(trainer->classifier)->vocab_size));
    TRY_TO(result, failed, consistency_trainer_hash(trainer));
    TRY_TO(result, failed, consistency_trainer_check_lengths(trainer));
    TRY_TO(result, failed, consistency_trainer_split(trainer));
    *out = trainer;
    return OK;
failed:
    consistency_trainer_free(&trainer);
    return result;
}

void consistency_trainer_free(struct consistency_trainer **pointer) {
    struct consistency_trainer *trainer = *pointer;
    if (!trainer) return;
    free(trainer->trained);
    free(trainer->held_out);
    classifier_free(&trainer->classifier);
    tokenizer_free(&trainer->tokenizer);
    labelled_pairs_release(&trainer->pairs);
    free(trainer);
    *pointer = NULL;
}

uint64_t consistency_trainer_settings(const struct consistency_trainer *trainer) {
    return trainer->settings;
}

// ---- the steps ----

// Adds the gradient of the mean loss over the pairs of a step. *loss = that mean.
static status consistency_trainer_accumulate(struct consistency_trainer *trainer, const size_t *order, size_t count,
                                             double *loss) {
    struct token_batch batch;
    *loss = 0;
    status result = consistency_trainer_batch(trainer, trainer->trained, order, count, &batch);
    if (result == OK)
        result = classifier_accumulate(trainer->classifier, batch.texts, batch.labels, count, 1 / (double)count, loss);
    *loss /= (double)count;
    token_batch_release(&batch);
    return result;
}

// Takes one step on the next pairs of the epoch's order.
static status consistency_trainer_step(struct consistency_trainer *trainer, const size_t *order) {
    const struct linear_schedule *schedule = &trainer->schedule;
    const size_t per_step = (size_t)trainer->given->pairs_per_step;
    const size_t first = (size_t)(trainer->step % schedule->steps_per_epoch) * per_step;
    const size_t left = trainer->trained_count - first, count = left < per_step ? left : per_step;
    const struct optimizer_options adamw = {.lr = linear_schedule_lr(schedule, trainer->step),
                                            .beta1 = 0.9,
                                            .beta2 = 0.98,
                                            .eps = 1e-6,
                                            .weight_decay = 0.01,
                                            .max_grad_norm = 1};
    const double started = clock_monotonic();
    double loss, norm;
    TRY(consistency_trainer_accumulate(trainer, order + first, count, &loss));
    TRY(classifier_step(trainer->classifier, &adamw, &norm));
    trainer->step++;
    log_info("step %lld of %lld: loss %.4g, gradient norm %.4g, lr %.3g, %zu pairs, %.2f s", (long long)trainer->step,
             (long long)schedule->steps, loss, norm, adamw.lr, count, clock_monotonic() - started);
    return OK;
}

// Takes the steps that are left. The state is saved at every epoch's end, and also when that costs little.
static status consistency_trainer_take_steps(struct consistency_trainer *trainer) {
    enum { STATE_INTERVAL = 50, STATE_SECONDS = 60 }; // times the seconds that the last save took; at least
    const struct linear_schedule *schedule = &trainer->schedule;
    const char *out = trainer->given->out;
    double saved_at = clock_monotonic(), save_seconds = 0;
    size_t *order;
    status result = OK;
    NEW(&order, trainer->trained_count);
    for (int64_t ordered = -1; trainer->step < schedule->steps;) {
        const int64_t epoch = trainer->step / schedule->steps_per_epoch;
        if (epoch != ordered) epoch_order((uint64_t)trainer->given->seed, epoch, trainer->trained_count, order);
        ordered = epoch;
        TRY_TO(result, done, consistency_trainer_step(trainer, order));
        const double now = clock_monotonic(), since = now - saved_at;
        if (trainer->step % schedule->steps_per_epoch &&
            (since < STATE_SECONDS || since < STATE_INTERVAL * save_seconds))
            continue;
        TRY_TO(result, done, consistency_state_save(trainer->classifier, out, trainer->settings, trainer->step));
        saved_at = clock_monotonic();
        save_seconds = saved_at - now;
    }
done:
    free(order);
    return result;
}

// ---- the figures ----

// Scores what was held out.
static status consistency_trainer_evaluate(struct consistency_trainer *trainer, struct classification *figures) {
    struct token_batch batch;
    double *probabilities = NULL;
    const size_t count = trainer->held_out_count;
    status result;
    TRY_TO(result, done, consistency_trainer_batch(trainer, trainer->held_out, NULL, count, &batch));
    NEW(&probabilities, count);
    TRY_TO(result, done, classifier_score(trainer->classifier, batch.texts, count, probabilities));
    classification_compute(figures, probabilities, batch.labels, count, trainer->given->threshold);
done:
    free(probabilities);
    token_batch_release(&batch);
    return result;
}

status consistency_trainer_run(struct consistency_trainer *trainer, size_t *trained, struct classification *figures) {
    const char *out = trainer->given->out;
    struct arena arena = {0};
    const char *config = path_join(&arena, out, "config.json");
    status result = OK;
    TRY_TO(result, done, dir_make(out));
    TRY_TO(result, done, consistency_state_load(trainer->classifier, out, trainer->settings, &trainer->step));
    if (!trainer->step && path_exists(config))
        TRY_TO(result, done, fail(USAGE, "%s: the directory already contains a model", out));
    if (trainer->step) log_info("resuming from step %lld in %s", (long long)trainer->step, out);
    TRY_TO(result, done, consistency_trainer_take_steps(trainer));
    TRY_TO(result, done, consistency_trainer_evaluate(trainer, figures));
    *trained = trainer->trained_count;
    result = classifier_save(trainer->classifier, out);
done:
    arena_release(&arena);
    return result;
}
