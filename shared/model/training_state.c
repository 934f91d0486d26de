#include "shared/model/training_state.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "shared/base/file.h"
#include "shared/base/json.h"

static const char state_tensors[] = "training.safetensors", state_counters[] = "training.json";

// ---- optimizer ----

status optimizer_init(struct optimizer *optimizer, struct backend *backend, const struct parameter_table *table,
                      int ranges, struct gradient_types grads, enum element moments, struct ranks *rank_list,
                      struct rank_devices *devices) {
    *optimizer = (struct optimizer){.backend = backend};
    TRY(step_sums_init(&optimizer->grads, backend, table, ranges, grads, rank_list, devices));
    TRY(param_array_init(&optimizer->exp_avg, backend, table, ranges, moments, ELEMENT_F32, rank_list));
    return param_array_init(&optimizer->exp_avg_sq, backend, table, ranges, moments, ELEMENT_F32, rank_list);
}

void optimizer_release(struct optimizer *optimizer) {
    if (!optimizer->backend) return;
    step_sums_release(&optimizer->grads);
    param_array_release(&optimizer->exp_avg, optimizer->backend);
    param_array_release(&optimizer->exp_avg_sq, optimizer->backend);
    *optimizer = (struct optimizer){0};
}

status optimizer_step(struct optimizer *optimizer, const struct param_array *weights, int groups,
                      const struct optimizer_options *options, double norm) {
    struct backend *backend = optimizer->backend;
    const struct param_array *grads = &optimizer->grads.sums;
    double scale = options->max_grad_norm > 0 ? options->max_grad_norm / (norm + 1e-6) : 1;
    const struct parameter_table *table = grads->table;
    const size_t buckets = parameter_table_buckets(table, grads->ranges);
    struct adamw_range *pieces;
    status result = OK;
    assert(groups > 0 && groups <= MAX_PARAM_GROUPS);
    NEW(&pieces, buckets);
    for (int group = 0; group < groups; group++) {
        const struct adamw_options adamw = {.lr = options->lr,
                                            .beta1 = options->beta1,
                                            .beta2 = options->beta2,
                                            .eps = options->eps,
                                            .weight_decay = options->weight_decay,
                                            .grad_scale = scale < 1 ? scale : 1,
                                            .step = ++optimizer->steps[group]};
        size_t count = 0;
        for (size_t i = 0; i < buckets; i++) {
            const struct parameter_range *range = &table->ranges[table->buckets[i].range];
            const struct param_piece own = shard_own(&table->buckets[i], optimizer->grads.ranks);
            if (range->group != group || own.first == own.end) continue;
            pieces[count++] = (struct adamw_range){
                .param = param_slice(weights, own),
                .remainder = param_remainders(weights, param_slice(weights, own)),
                .grad = param_slice(grads, own),
                .exp_avg = param_slice(&optimizer->exp_avg, own),
                .exp_avg_sq = param_slice(&optimizer->exp_avg_sq, own),
                .offset = own.first,
                .decay = range->decay,
            };
        }
        TRY_TO(result, done, backend->ops->adamw(backend, pieces, count, &adamw));
    }
    TRY_TO(result, done, step_sums_clear(&optimizer->grads));
    result = shard_gather(backend, weights, buckets, optimizer->grads.ranks, optimizer->grads.devices);
done:
    free(pieces);
    return result;
}

// ---- checkpoint ----

enum { WINDOW = 1 << 22 }; // the most numbers of a tensor that are exchanged at a time

// Shows what each rank shows, 8 bytes.
static status rank_share_meet(struct file_ranks *file, uint64_t *all) {
    struct rank_share *own = (struct rank_share *)(void *)((char *)file - offsetof(struct rank_share, file));
    return ranks_await_all(own->ranks, all, sizeof *all);
}

void rank_share_init(struct rank_share *out, struct arena *arena, const struct parameter_table *table,
                     struct ranks *ranks) {
    *out = (struct rank_share){.share = {.pieces = &param_whole, .count = 1}, .ranks = ranks};
    if (!ranks) return;
    struct param_piece *pieces = arena_alloc(arena, table->bucket_count * sizeof *pieces);
    for (size_t i = 0; i < table->bucket_count; i++) pieces[i] = shard_own(&table->buckets[i], ranks);
    out->file = (struct file_ranks){.own = ranks->own, .count = ranks->count, .meet = rank_share_meet};
    out->file.away = ranks->partner && ranks->partner[ranks->own] != ranks->own;
    out->share = (struct param_share){&out->file, pieces, table->bucket_count, ranks->partner ? ranks : NULL};
}

status rank_share_agree(const struct rank_share *share, status result) {
    struct ranks *ranks = share->ranks;
    char reason[1000];
    unsigned char *all;
    if (!ranks) return result;
    snprintf(reason, sizeof reason, "%s", fail_text());
    NEW(&all, (size_t)ranks->count);
    all[ranks->own] = (unsigned char)result;
    const status met = ranks_await_all(ranks, all, sizeof *all);
    if (result != OK)
        (void)fail(result, "%s", reason);
    else
        result = met;
    for (int rank = 0; rank < ranks->count && result == OK; rank++)
        if (all[rank] != OK) result = fail((status)all[rank], "rank %d has failed; it says why", rank);
    free(all);
    return result;
}

struct tensor_list tensor_list_make(struct arena *arena, size_t capacity) {
    return (struct tensor_list){.tensors = arena_alloc(arena, capacity * sizeof(struct stored_tensor)),
                                .sources = arena_alloc(arena, capacity * sizeof(struct tensor_source)),
                                .share = {.pieces = &param_whole, .count = 1}};
}

void tensor_list_add(struct tensor_list *list, const struct param_array *array, const struct parameter *parameter,
                     const char *name, enum element type) {
    list->tensors[list->count] = parameter_stored(parameter, name, type);
    list->sources[list->count++] = (struct tensor_source){array, parameter};
}

// Makes room for a window of the tensors, if the ranks have partners. A failure is one of all ranks.
static status tensor_list_new_window(const struct tensor_list *list, char **out) {
    *out = NULL;
    if (!list->share.partners) return OK;
    const status result = mem_new_large(out, WINDOW, sizeof(float));
    return result == OK ? OK : ranks_fail(list->share.partners, result);
}

// Returns what a rank owns of a parameter's numbers in the window that begins with number `first`; may be empty.
static struct param_piece tensor_list_piece(const struct tensor_list *list, size_t i, int64_t first, int rank) {
    const struct parameter *parameter = list->sources[i].parameter;
    const struct parameter_bucket *bucket = list->sources[i].array->table->buckets; // that of the parameter
    const int64_t left = parameter->count - first, start = parameter->offset + first,
                  end = start + (left < WINDOW ? left : WINDOW);
    while (start >= bucket->offset + bucket->count) bucket++;
    const struct param_piece piece = shard_piece(bucket, rank, list->share.partners->count);
    return (struct param_piece){piece.first > start ? piece.first : start, piece.end < end ? piece.end : end};
}

// Exchanges the window of tensor `i` that begins with its number `first`, which is at `window`: each rank that has a
// partner gives the partner what it owns, or gets that from there.
static status tensor_list_exchange(const struct tensor_list *list, size_t i, int64_t first, bool gets, char *window) {
    struct ranks *ranks = list->share.partners;
    const size_t size = element_size(list->tensors[i].type);
    const int64_t start = list->sources[i].parameter->offset + first;
    struct rank_exchange *exchange;
    struct rank_piece own = {0}, *others;
    size_t count = 0;
    NEW(&others, (size_t)ranks->count);
    for (int rank = 0; rank < ranks->count; rank++) {
        const int partner = ranks->partner[rank];
        const struct param_piece piece = tensor_list_piece(list, i, first, rank);
        if (piece.first >= piece.end || partner == rank) continue;
        const struct rank_piece bytes = {rank, window + (size_t)(piece.first - start) * size,
                                         (size_t)(piece.end - piece.first) * size};
        if (rank == ranks->own) own = bytes;
        if (rank == ranks->own) own.rank = partner;
        if (partner == ranks->own) others[count++] = bytes;
    }
    status result =
        ranks_begin(ranks, gets ? others : &own, gets ? count : 1, gets ? &own : others, gets ? 1 : count, &exchange);
    if (result == OK) result = ranks_await(ranks, &exchange);
    free(others);
    return result;
}

// Waits for all after the windows of a tensor, so that no rank is many exchanges ahead: one that has nothing to give or
// to get waits for nobody in tensor_list_exchange.
static status tensor_list_meet(const struct tensor_list *list) {
    char *all;
    NEW(&all, (size_t)list->share.partners->count);
    const status result = ranks_await_all(list->share.partners, all, sizeof *all);
    free(all);
    return result;
}

// Writes what the ranks own of tensor `i` whose partner this one is. All ranks call it, and exchange what is not whole
// on each of them, also after a failure of this one, `result`, which it returns.
static status tensor_list_write_partners(const struct tensor_list *list, struct backend *backend, size_t i,
                                         struct safetensors_writer *writer, char *window, status result) {
    const struct param_array *array = list->sources[i].array;
    const struct parameter *parameter = list->sources[i].parameter;
    const struct ranks *ranks = list->share.partners;
    const enum element type = list->tensors[i].type;
    const size_t size = element_size(type);
    const bool away = ranks->partner[ranks->own] != ranks->own;
    const bool divided = array->divided || (array->remainders_divided && type != ELEMENT_BF16);
    for (int64_t first = 0; first < parameter->count; first += WINDOW) {
        const int64_t start = parameter->offset + first;
        const struct param_piece own = tensor_list_piece(list, i, first, ranks->own);
        if (result == OK && away && divided && own.first < own.end)
            result = parameter_download(backend, array, parameter, own, type, NULL, 0,
                                        window + (size_t)(own.first - start) * size);
        const status exchanged = divided ? tensor_list_exchange(list, i, first, false, window) : OK;
        if (exchanged != OK) return exchanged;
        for (int rank = 0; rank < ranks->count && result == OK; rank++) {
            const struct param_piece piece = tensor_list_piece(list, i, first, rank);
            if (rank == ranks->own || ranks->partner[rank] != ranks->own || piece.first >= piece.end) continue;
            result = divided ? safetensors_write(writer, i, (size_t)(piece.first - parameter->offset) * size,
                                                 window + (size_t)(piece.first - start) * size,
                                                 (size_t)(piece.end - piece.first) * size)
                             : parameter_download(backend, array, parameter, piece, type, writer, i, NULL);
        }
    }
    const status met = divided ? tensor_list_meet(list) : OK;
    return met != OK ? met : result;
}

status tensor_list_write(const struct tensor_list *list, struct backend *backend, const char *path, bool durable) {
    const struct param_share *share = &list->share;
    const bool away = share->ranks && share->ranks->away;
    struct safetensors_writer *writer = NULL;
    char *window;
    TRY(tensor_list_new_window(list, &window));
    status result = safetensors_create(&writer, path, list->tensors, list->count, durable, share->ranks);
    for (size_t i = 0; writer && i < list->count; i++) {
        for (size_t p = 0; result == OK && p < share->count && !away; p++)
            result = parameter_download(backend, list->sources[i].array, list->sources[i].parameter, share->pieces[p],
                                        list->tensors[i].type, writer, i, NULL);
        if (share->partners && !share->partners->failed)
            result = tensor_list_write_partners(list, backend, i, writer, window, result);
    }
    free(window);
    if (result == OK) return safetensors_finish(&writer);
    safetensors_abort(&writer);
    return result;
}

// Whether a file does not belong beside other weights: it has weights itself, or is of an adapter, which transformers
// would add to them, of the training state or of optim's checkpoint (shared/stage/progress.h).
static bool checkpoint_leaves(const char *name) {
    static const char *const names[] = {"adapter_config.json", state_counters, "progress"};
    const char *end = strrchr(name, '.');
    if (end && strcmp(end, ".safetensors") == 0) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

status checkpoint_copy_files(const char *from, const char *to, const struct safetensors *store,
                             const char *const *except) {
    struct arena arena = {0};
    status result = OK;
    DIR *entries = opendir(from);
    if (!entries) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(entries);
        if (!entry && errno) TRY_TO(result, done, fail(DATAERR, "%s: %s", from, strerror(errno)));
        if (!entry) break;
        const char *name = entry->d_name;
        bool skipped = name[0] == '.' || checkpoint_leaves(name);
        for (size_t i = 0; except && except[i]; i++) skipped |= strcmp(except[i], name) == 0;
        for (size_t i = 0; i < safetensors_count(store); i++)
            skipped |= strcmp(path_base_name(safetensors_at(store, i)->file), name) == 0;
        if (skipped) continue;
        char *source = path_join(&arena, from, name), *target = path_join(&arena, to, name);
        struct stat info;
        if (stat(source, &info)) TRY_TO(result, done, fail(DATAERR, "%s: %s", source, strerror(errno)));
        if (!S_ISREG(info.st_mode)) continue;
        struct file_map map;
        TRY_TO(result, done, file_map_open(&map, source));
        result = file_write_atomic(target, map.data, map.size);
        file_map_release(&map);
        if (result != OK) goto done;
    }
done:
    if (entries) closedir(entries);
    arena_release(&arena);
    return result;
}

// ---- training state ----

// All arrays, one after the other.
static struct tensor_list training_state_list(const struct training_state *state, struct arena *arena) {
    const struct parameter_table *table = state->arrays[0].array->table;
    struct tensor_list list = tensor_list_make(arena, MAX_STATE_ARRAYS * table->count);
    if (state->share) list.share = *state->share;
    for (const struct state_array *array = state->arrays; array->prefix; array++) {
        for (size_t i = 0; i < table->count; i++) {
            const struct parameter *parameter = &table->list[i];
            if (param_array_has(array->array, parameter))
                tensor_list_add(&list, array->array, parameter,
                                arena_printf(arena, "%s.%s", array->prefix, parameter->name),
                                param_type(array->array, parameter));
        }
    }
    return list;
}

status training_state_save(const struct training_state *state, const char *dir) {
    struct arena arena = {0};
    struct buf counters = {0};
    const struct tensor_list list = training_state_list(state, &arena);
    status result = tensor_list_write(&list, state->backend, path_join(&arena, dir, state_tensors), true);
    for (const struct state_counter *counter = state->counters; counter->name; counter++)
        buf_printf(&counters, "%s\"%s\": %lld", counters.size ? ", " : "{", counter->name, (long long)*counter->value);
    buf_puts(&counters, "}\n");
    const bool leader = !list.share.ranks || list.share.ranks->own == 0;
    if (result == OK && leader)
        result = file_write_atomic(path_join(&arena, dir, state_counters), counters.data, counters.size);
    buf_release(&counters);
    arena_release(&arena);
    return result;
}

uint64_t training_state_bytes(const struct training_state *state) {
    struct arena arena = {0};
    const struct tensor_list list = training_state_list(state, &arena);
    uint64_t bytes = 0;
    for (size_t i = 0; i < list.count; i++)
        bytes += (uint64_t)list.sources[i].parameter->count * element_size(list.tensors[i].type);
    arena_release(&arena);
    return bytes;
}

// Whether all ranks could open the files, as tensor_list_write_partners; gives those of other machines the counters.
static status training_state_meet(const struct training_state *state, const struct tensor_list *list, const char *path,
                                  int64_t values[MAX_STATE_COUNTERS], status result) {
    struct ranks *ranks = list->share.partners;
    struct opened {
        uint64_t result;
        int64_t values[MAX_STATE_COUNTERS];
    } * all;
    NEW(&all, (size_t)ranks->count);
    all[ranks->own].result = (uint64_t)result;
    memcpy(all[ranks->own].values, values, sizeof all->values);
    const status met = ranks->failed ? result : ranks_await_all(ranks, all, sizeof *all);
    if (result == OK) result = met;
    for (int rank = 0; rank < ranks->count && result == OK; rank++)
        if (all[rank].result)
            result = fail((status)all[rank].result, "%s: rank %d cannot read it, and says why", path, rank);
    for (int i = 0; result == OK && state->counters[i].name; i++) values[i] = all->values[i];
    free(all);
    return result;
}

// Gives the ranks whose partner this one is what they own of tensor `i`, of which `data` has the numbers in the file;
// or gets it, without `data`. As tensor_list_write_partners.
static status tensor_list_read_partners(const struct tensor_list *list, struct backend *backend, size_t i,
                                        const void *data, char *window, status result) {
    const struct parameter *parameter = list->sources[i].parameter;
    const enum element type = list->tensors[i].type;
    for (int64_t first = 0; first < parameter->count; first += WINDOW) {
        char *there = data ? (char *)(uintptr_t)data + (size_t)first * element_size(type) : window; // only read
        const status exchanged = tensor_list_exchange(list, i, first, true, there);
        if (exchanged != OK) return exchanged;
        if (!data && result == OK)
            result =
                parameter_upload(backend, list->sources[i].array, parameter,
                                 tensor_list_piece(list, i, first, list->share.partners->own), window, first, type);
    }
    const status met = tensor_list_meet(list);
    return met != OK ? met : result;
}

status training_state_load(const struct training_state *state, const char *dir) {
    struct arena arena = {0};
    struct safetensors *store = NULL;
    int64_t values[MAX_STATE_COUNTERS] = {0};
    char *window;
    const char *path = path_join(&arena, dir, state_tensors);
    const struct tensor_list list = training_state_list(state, &arena);
    const char *counters_path = path_join(&arena, dir, state_counters);
    const bool away = list.share.ranks && list.share.ranks->away;
    struct json *counters;
    status result = tensor_list_new_window(&list, &window);
    if (result == OK && !away) result = json_parse_file(&counters, &arena, counters_path);
    for (size_t i = 0; result == OK && !away && state->counters[i].name; i++) {
        const char *name = state->counters[i].name;
        if (!json_int(json_at(counters, name), &values[i]) || values[i] < 0)
            result = fail(DATAERR, "%s: %s is not a non-negative integer", counters_path, name);
    }
    if (result == OK && !away) result = safetensors_open(&store, path);
    for (size_t i = 0; result == OK && !away && i < list.count; i++) { // every tensor is found before one is read
        const struct stored_tensor *wanted = &list.tensors[i], *stored = safetensors_find(store, wanted->name);
        const int64_t count = list.sources[i].parameter->count;
        if (!stored)
            result = fail(USAGE, "%s: tensor %s is missing", path, wanted->name);
        else if (stored->type != wanted->type || stored_tensor_count(stored) != count)
            result =
                fail(stored_tensor_count(stored) == count ? USAGE : DATAERR, "%s: tensor %s is not %lld %s numbers",
                     path, wanted->name, (long long)count, wanted->type == ELEMENT_F32 ? "float32" : "bfloat16");
    }
    if (list.share.partners) result = training_state_meet(state, &list, path, values, result);
    const bool met = result == OK; // so the ranks exchange the same, whatever fails from now on
    for (size_t i = 0; met && i < list.count; i++) {
        const struct stored_tensor *stored = away ? NULL : safetensors_find(store, list.tensors[i].name);
        for (size_t p = 0; result == OK && p < list.share.count && !away; p++)
            result = parameter_upload(state->backend, list.sources[i].array, list.sources[i].parameter,
                                      list.share.pieces[p], stored->data, 0, stored->type);
        if (list.share.partners && !list.share.partners->failed)
            result = tensor_list_read_partners(&list, state->backend, i, stored ? stored->data : NULL, window, result);
        if (stored) safetensors_release_pages(stored);
    }
    free(window);
    for (size_t i = 0; result == OK && state->counters[i].name; i++) *state->counters[i].value = values[i];
    safetensors_close(&store);
    arena_release(&arena);
    return result;
}
