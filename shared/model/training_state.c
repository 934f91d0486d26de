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
                      int ranges, struct gradient_types grads, enum element moments, struct ranks *rank_list) {
    *optimizer = (struct optimizer){.backend = backend};
    TRY(step_sums_init(&optimizer->grads, backend, table, ranges, grads, rank_list));
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
    result = shard_gather(backend, weights, buckets, optimizer->grads.ranks);
done:
    free(pieces);
    return result;
}

// ---- checkpoint ----

// Shows what each rank shows, 8 bytes.
static status rank_share_meet(struct file_ranks *file, uint64_t *all) {
    struct rank_share *own = (struct rank_share *)(void *)((char *)file - offsetof(struct rank_share, file));
    return ranks_gather(own->ranks, all, sizeof *all);
}

void rank_share_init(struct rank_share *out, struct arena *arena, const struct parameter_table *table,
                     struct ranks *ranks) {
    *out = (struct rank_share){.share = {.pieces = &param_whole, .count = 1}, .ranks = ranks};
    if (!ranks) return;
    struct param_piece *pieces = arena_alloc(arena, table->bucket_count * sizeof *pieces);
    for (size_t i = 0; i < table->bucket_count; i++) pieces[i] = shard_own(&table->buckets[i], ranks);
    out->file = (struct file_ranks){.own = ranks->own, .count = ranks->count, .meet = rank_share_meet};
    out->share = (struct param_share){&out->file, pieces, table->bucket_count};
}

status rank_share_agree(const struct rank_share *share, status result) {
    struct ranks *ranks = share->ranks;
    char reason[1000];
    unsigned char *all;
    if (!ranks) return result;
    snprintf(reason, sizeof reason, "%s", fail_text());
    NEW(&all, (size_t)ranks->count);
    all[ranks->own] = (unsigned char)result;
    const status met = ranks_gather(ranks, all, sizeof *all);
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

status tensor_list_write(const struct tensor_list *list, struct backend *backend, const char *path, bool durable) {
    struct safetensors_writer *writer = NULL;
    status result = safetensors_create(&writer, path, list->tensors, list->count, durable, list->share.ranks);
    for (size_t i = 0; result == OK && i < list->count; i++)
        for (size_t p = 0; result == OK && p < list->share.count; p++)
            result = parameter_download(backend, list->sources[i].array, list->sources[i].parameter,
                                        list->share.pieces[p], list->tensors[i].type, writer, i);
    if (result == OK) return safetensors_finish(&writer);
    safetensors_abort(&writer);
    return result;
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
        bool skipped = name[0] == '.' || strcmp(name, state_tensors) == 0 || strcmp(name, state_counters) == 0;
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

status training_state_load(const struct training_state *state, const char *dir) {
    struct arena arena = {0};
    struct safetensors *store = NULL;
    int64_t values[MAX_STATE_COUNTERS];
    const char *path = path_join(&arena, dir, state_tensors);
    const struct tensor_list list = training_state_list(state, &arena);
    const char *counters_path = path_join(&arena, dir, state_counters);
    struct json *counters;
    status result = json_parse_file(&counters, &arena, counters_path);
    for (size_t i = 0; result == OK && state->counters[i].name; i++) {
        const char *name = state->counters[i].name;
        if (!json_int(json_at(counters, name), &values[i]) || values[i] < 0)
            result = fail(DATAERR, "%s: %s is not a non-negative integer", counters_path, name);
    }
    if (result == OK) result = safetensors_open(&store, path);
    for (size_t i = 0; result == OK && i < list.count; i++) { // every tensor is found before one is read
        const struct stored_tensor *wanted = &list.tensors[i], *stored = safetensors_find(store, wanted->name);
        const int64_t count = list.sources[i].parameter->count;
        if (!stored)
            result = fail(DATAERR, "%s: tensor %s is missing", path, wanted->name);
        else if (stored->type != wanted->type || stored_tensor_count(stored) != count)
            result = fail(DATAERR, "%s: tensor %s is not %lld %s numbers", path, wanted->name, (long long)count,
                          wanted->type == ELEMENT_F32 ? "float32" : "bfloat16");
    }
    for (size_t i = 0; result == OK && i < list.count; i++) {
        const struct stored_tensor *stored = safetensors_find(store, list.tensors[i].name);
        for (size_t p = 0; result == OK && p < list.share.count; p++)
            result = parameter_upload(state->backend, list.sources[i].array, list.sources[i].parameter,
                                      list.share.pieces[p], stored->data, stored->type);
        safetensors_release_pages(stored);
    }
    for (size_t i = 0; result == OK && state->counters[i].name; i++) *state->counters[i].value = values[i];
    safetensors_close(&store);
    arena_release(&arena);
    return result;
}
