// Several ranks train one model: rank 0, the leader, is optim as the pipeline knows it; the others follow its orders.
//
// An order is two exchanges, in which the leader sends to each rank an order and what belongs to it. Then all ranks
// carry it out together, the leader too, and meet: each says how it went, and the leader judges. Without other ranks an
// order is carried out alone.
//
// A rank that cannot go on says why, and all end (ranks_fail). But when files cannot be written or read, the ranks find
// that out together (safetensors.h), and the leader decides what follows.
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/log.h"
#include "stages/optim/optim.h"

enum order_kind {
    ORDER_TURN = 1,   // compute leaves
    ORDER_STEP,       // update the weights
    ORDER_EMA,        // update the reference
    ORDER_SAVE,       // write a model directory
    ORDER_SAVE_STATE, // write the training state
    ORDER_LOAD,       // read the training state
    ORDER_LEND,       // lend the weights to processes on the device
    ORDER_END,        // the training is over
};

// As the processors have it; members of 8 bytes.
struct order {
    uint64_t kind;
    uint64_t bytes;     // of what follows for this rank: its leaf, or a path
    uint64_t sources;   // TURN: the ranks below have a leaf
    uint64_t compares;  // all ranks must have the same weights afterwards
    uint64_t reference; // LEND: not the policy
    uint64_t copied;    // LEND: the weights may only be copied
    double decay;       // EMA
    struct optimizer_options adamw;
};

// An order with what a rank needs to carry it out.
struct order_work {
    struct order order;
    struct leaf_input leaf;
    const char *path; // of a directory; LEND: of a file
    double norm;      // STEP: the result
    uint64_t hash;    // LEND: the result
};

// What a rank says at the meeting after an order.
struct order_report {
    uint64_t result; // a status
    uint64_t hash;   // of the weights, if they are compared
    int64_t version;
    struct train_result trained;
    char text[400]; // of a failure
};
static_assert(sizeof(struct order) == 13 * 8 && sizeof(struct order_report) == 12 * 8 + 400, "there is no padding");

static bool order_is_about_files(const struct order *order) {
    return order->kind == ORDER_SAVE || order->kind == ORDER_SAVE_STATE || order->kind == ORDER_LOAD;
}

static bool order_has_path(const struct order *order) {
    return order_is_about_files(order) || order->kind == ORDER_LEND;
}

// ---- on every rank ----

status orders_open_model(struct model **model, const struct optim_options *options, struct ranks *ranks) {
    const struct model_options model_options = {
        .device = options->model.common.device,
        .threads = (int)options->model.common.threads,
        .precision = options->model.common.precision,
        .gradient_precision = options->gradient_precision,
        .sum_precision = options->sum_precision,
        .moment_precision = options->moment_precision,
        .training = true,
        .train_vision = options->train_vision && !options->model.lora && !options->model.adapter,
        .kept_activations = -1,
        .ema = options->ema_every > 0,
        .ranks = ranks,
        .lora = options->model.lora,
        .lora_alpha = options->model.lora_alpha,
        .lora_seed = (uint64_t)options->model.lora_seed,
        .adapter = options->model.adapter,
    };
    return model_open(model, options->model.dir, &model_options);
}

status orders_join(struct model *model, struct ranks *ranks) {
    enum { NAMES = 3, MOST = 80 };
    static const char *const does[NAMES] = {"computes on", "computes in", "multiplies with"};
    struct order_identity {
        uint64_t hash, layout; // of the weights; of their files
        char names[NAMES][MOST];
    } * all;
    const struct model_info *info = model_get_info(model);
    const char *library = info->product_library ? info->product_library : "its own kernels";
    const char *const names[NAMES] = {info->device_kind, info->precision, library};
    status result;
    if (!ranks) return OK;
    NEW(&all, (size_t)ranks->count);
    struct order_identity *own = &all[ranks->own];
    for (int i = 0; i < NAMES; i++) snprintf(own->names[i], MOST, "%s", names[i]);
    own->layout = model_files_layout(model);
    TRY_TO(result, done, model_hash(model, &own->hash));
    TRY_TO(result, done, ranks_await_all(ranks, all, sizeof *all)); // each has read all files
    for (int rank = 1; rank < ranks->count && ranks->own == 0 && result == OK; rank++) {
        for (int i = 0; i < NAMES && result == OK; i++)
            if (memcmp(all[rank].names[i], own->names[i], MOST) != 0)
                result = fail(USAGE, "rank %d %s %.*s, rank 0 %s %s: their bits differ", rank, does[i], MOST,
                              all[rank].names[i], does[i], own->names[i]);
        if (result == OK && all[rank].hash != own->hash)
            result = fail(DATAERR, "rank %d has a model with other weights (hash %016llx) than rank 0 (hash %016llx)",
                          rank, (unsigned long long)all[rank].hash, (unsigned long long)own->hash);
        if (result == OK && all[rank].layout != own->layout)
            result = fail(DATAERR, "rank %d has a model with the same weights in other files than rank 0", rank);
    }
done:
    free(all);
    return result == OK ? OK : ranks_fail(ranks, result);
}

static status order_execute(struct model *model, const struct ranks *ranks, struct order_work *work,
                            struct train_result *trained) {
    const struct order *order = &work->order;
    const struct leaf_input *leaf = &work->leaf;
    status result = OK;
    switch ((enum order_kind)order->kind) {
    case ORDER_TURN:
        TRY(model_turn(model, (int)order->sources));
        if (!leaf->count) return OK;
        result =
            model_accumulate(model, &leaf->prompt, leaf->completions, leaf->count, &leaf->loss, leaf->weight, trained);
        if (result == OK && !isfinite(trained->entropy))
            result = fail(DATAERR, "the log-probabilities of the sampler are not finite");
        const bool others = ranks && ranks->failed; // it is not this leaf's failure
        return result == OK || others ? result : fail_prefix(result, "group %s", leaf->group);
    case ORDER_STEP:
        return model_step(model, &order->adamw, &work->norm);
    case ORDER_EMA:
        return model_update_ema(model, order->decay);
    case ORDER_SAVE:
        return model_save(model, work->path);
    case ORDER_SAVE_STATE:
        return model_save_state(model, work->path);
    case ORDER_LOAD:
        return model_load_state(model, work->path);
    case ORDER_LEND:
        if (ranks && ranks->partner && ranks->partner[ranks->own] != ranks->own) return OK; // on another machine
        result = model_lend(model, order->reference, order->copied, work->path, &work->hash);
        if (result != UNAVAILABLE || !ranks || !ranks->own) return result;
        log_info("%s: rank %d does not lend its weights", fail_text(), ranks->own); // who needs them asks for files
        return OK;
    case ORDER_END:
        return OK;
    }
    return fail(BUG, "an unknown order, %llu", (unsigned long long)order->kind);
}

// Carries an order out and meets the other ranks; reports[r] is what rank r says, on which rank 0 judges. After a
// failure the ranks have failed, too, except by files that cannot be written or read.
static status order_carry_out(struct model *model, struct ranks *ranks, struct order_work *work,
                              struct order_report *reports) {
    struct order_report *own = &reports[ranks ? ranks->own : 0];
    *own = (struct order_report){0};
    status result = order_execute(model, ranks, work, &own->trained);
    if (!ranks || (result != OK && ranks->failed)) return result;
    if (result != OK && (result == BUG || !order_is_about_files(&work->order))) return ranks_fail(ranks, result);
    own->result = (uint64_t)result;
    own->version = model_version(model);
    snprintf(own->text, sizeof own->text, "%s", result == OK ? "" : fail_text());
    if (result == OK && work->order.compares) result = model_hash(model, &own->hash);
    if (result != OK && !own->result) return ranks_fail(ranks, result);
    TRY((order_is_about_files(&work->order) ? ranks_await_all : ranks_gather)(ranks, reports, sizeof *reports));
    if (own->result) return fail((status)own->result, "%s", own->text);
    if (ranks->own) return OK;
    for (int rank = 1; rank < ranks->count; rank++)
        if (reports[rank].result)
            return fail(rank_failure(reports[rank].result), "rank %d: %.*s", rank, (int)sizeof own->text,
                        reports[rank].text);
    for (int rank = 1; rank < ranks->count; rank++) {
        if (reports[rank].version == reports->version && reports[rank].hash == reports->hash) continue;
        return ranks_fail(ranks, fail(BUG,
                                      "rank %d has other weights than rank 0: hash %016llx and %016llx of the steps "
                                      "%lld and %lld",
                                      rank, (unsigned long long)reports[rank].hash, (unsigned long long)reports->hash,
                                      (long long)reports[rank].version, (long long)reports->version));
    }
    return OK;
}

// ---- on the leader ----

// Sends each other rank the order and its pieces of `pieces`.
static status order_send(struct ranks *ranks, const struct order *order, const struct rank_piece *pieces,
                         size_t count) {
    struct rank_exchange *exchanges[2] = {NULL};
    struct rank_piece *sends;
    struct order *orders;
    NEW(&sends, (size_t)ranks->count);
    NEW(&orders, (size_t)ranks->count);
    for (int rank = 0; rank < ranks->count; rank++) {
        orders[rank] = *order;
        sends[rank] = (struct rank_piece){rank, &orders[rank], sizeof *orders};
    }
    for (size_t i = 0; i < count; i++) orders[pieces[i].rank].bytes += pieces[i].bytes;
    status result = ranks_begin(ranks, sends, (size_t)ranks->count, NULL, 0, &exchanges[0]);
    if (result == OK) result = ranks_begin(ranks, pieces, count, NULL, 0, &exchanges[1]);
    for (int i = 0; i < 2; i++) {
        const status ended = ranks_end(ranks, &exchanges[i]);
        if (result == OK) result = ended;
    }
    free(orders);
    free(sends);
    return result;
}

// Sends an order and carries it out. reports: one a rank.
static status order_give(struct optim *optim, struct order_work *work, const struct rank_piece *pieces, size_t count,
                         struct order_report *reports) {
    if (optim->ranks) TRY(order_send(optim->ranks, &work->order, pieces, count));
    return order_carry_out(optim->model, optim->ranks, work, reports);
}

// As order_give, for an order that has at most a path.
static status order_give_all(struct optim *optim, struct order_work *work) {
    const int count = optim->ranks ? optim->ranks->count : 1;
    char *path = work->path ? mem_strdup(work->path) : NULL;
    struct order_report *reports;
    struct rank_piece *pieces;
    NEW(&reports, (size_t)count);
    NEW(&pieces, (size_t)count);
    for (int rank = 0; rank < count && path; rank++) pieces[rank] = (struct rank_piece){rank, path, strlen(path)};
    const status result = order_give(optim, work, pieces, path ? (size_t)count : 0, reports);
    free(pieces);
    free(reports);
    free(path);
    return result;
}

status order_turn(struct optim *optim, const struct leaf_input *leaves, int sources, struct train_result *results) {
    const int count = optim->ranks ? optim->ranks->count : 1;
    struct order_work work = {.order = {.kind = ORDER_TURN, .sources = (uint64_t)sources}, .leaf = leaves[0]};
    struct order_report *reports;
    struct rank_piece *pieces;
    struct buf *bytes;
    status result = OK;
    assert(sources >= 1 && sources <= count);
    NEW(&reports, (size_t)count);
    NEW(&pieces, (size_t)count);
    NEW(&bytes, (size_t)count);
    for (int rank = 1; rank < sources; rank++) {
        TRY_TO(result, done, leaf_write(&leaves[rank], &bytes[rank]));
        pieces[rank - 1] = (struct rank_piece){rank, bytes[rank].data, bytes[rank].size};
    }
    result = order_give(optim, &work, pieces, (size_t)sources - 1, reports);
    for (int rank = 0; rank < sources && result == OK; rank++) results[rank] = reports[rank].trained;
done:
    for (int rank = 1; rank < sources; rank++) buf_release(&bytes[rank]);
    free(bytes);
    free(pieces);
    free(reports);
    return result;
}

status order_step(struct optim *optim, const struct optimizer_options *adamw, double *norm) {
    struct order_work work = {.order = {.kind = ORDER_STEP, .compares = !optim->compared, .adamw = *adamw}};
    TRY(order_give_all(optim, &work));
    optim->compared = true;
    *norm = work.norm;
    return OK;
}

status order_update_ema(struct optim *optim, double decay) {
    return order_give_all(optim, &(struct order_work){.order = {.kind = ORDER_EMA, .decay = decay}});
}

status order_save(struct optim *optim, const char *dir, bool whole) {
    struct order_work model = {.order = {.kind = ORDER_SAVE}, .path = dir},
                      state = {.order = {.kind = ORDER_SAVE_STATE, .compares = 1}, .path = dir};
    if (whole) TRY(order_give_all(optim, &model));
    return order_give_all(optim, &state);
}

status order_load(struct optim *optim, const char *dir) {
    return order_give_all(optim, &(struct order_work){.order = {.kind = ORDER_LOAD, .compares = 1}, .path = dir});
}

status order_lend(struct optim *optim, bool reference, bool copied, const char *path, uint64_t *hash) {
    struct order_work work = {.order = {.kind = ORDER_LEND, .reference = reference, .copied = copied}, .path = path};
    TRY(order_give_all(optim, &work));
    *hash = work.hash;
    return OK;
}

void orders_end(struct optim *optim) {
    if (!optim->joined || optim->ranks->failed) return;
    if (order_send(optim->ranks, &(struct order){.kind = ORDER_END}, NULL, 0) != OK) log_info("%s", fail_text());
}

// ---- on a follower ----

// Waits for an order, however long, and receives what belongs to it. BUG when it is damaged.
static status order_receive(struct ranks *ranks, struct arena *arena, struct order_work *work) {
    struct order *order = &work->order;
    struct rank_piece piece = {0, order, sizeof *order};
    struct rank_exchange *exchange;
    *work = (struct order_work){0};
    TRY(ranks_begin(ranks, NULL, 0, &piece, 1, &exchange));
    TRY(ranks_await(ranks, &exchange));
    const bool turn = order->kind == ORDER_TURN, source = turn && (uint64_t)ranks->own < order->sources;
    if (order->kind < ORDER_TURN || order->kind > ORDER_END)
        return fail(BUG, "an unknown order, %llu", (unsigned long long)order->kind);
    if (turn && (!order->sources || order->sources > (uint64_t)ranks->count))
        return fail(BUG, "an order for %llu ranks, but there are %d", (unsigned long long)order->sources, ranks->count);
    if ((source || order_has_path(order)) != (order->bytes > 0) || order->bytes > (uint64_t)1 << 40)
        return fail(BUG, "an order, %llu, with %llu bytes", (unsigned long long)order->kind,
                    (unsigned long long)order->bytes);
    piece.bytes = (size_t)order->bytes;
    TRY(arena_alloc_large(arena, &piece.data, piece.bytes));
    TRY(ranks_begin(ranks, NULL, 0, &piece, 1, &exchange));
    TRY(ranks_end(ranks, &exchange));
    if (order_has_path(order)) work->path = arena_strndup(arena, piece.data, piece.bytes);
    return source ? leaf_read(&work->leaf, arena, piece.data, piece.bytes) : OK;
}

static status order_follow(struct model *model, struct ranks *ranks) {
    struct order_report *reports;
    struct order_work work;
    status result;
    NEW(&reports, (size_t)ranks->count);
    do {
        struct arena arena = {0};
        result = order_receive(ranks, &arena, &work);
        if (result == OK && work.order.kind != ORDER_END) {
            result = order_carry_out(model, ranks, &work, reports);
            if (result != OK && !ranks->failed) { // the leader knows what to do about it
                log_debug("%s", fail_text());
                result = OK;
            }
        }
        arena_release(&arena);
    } while (result == OK && work.order.kind != ORDER_END);
    free(reports);
    return result;
}

status orders_follow(const void *options, struct ranks *ranks) {
    struct model *model = NULL;
    status result = orders_open_model(&model, options, ranks);
    if (result == OK) result = orders_join(model, ranks);
    if (result == OK) result = order_follow(model, ranks);
    model_free(&model);
    return result == OK ? OK : ranks_fail(ranks, result);
}
