// caravan replay: runs a stage of a run again, as its program, on what the store holds of the groups, and says what
// differs from what the stage said then. The run's directory is only read.
//
// The program is a filter here: it gets each group as it got it then, that is, without what it adds itself and without
// what later stages add.
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/signals.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_options.h"
#include "shared/group/fields.h"
#include "shared/store/frame_store.h"
#include "shared/store/group_store.h"
#include "shared/wire/node_config.h"
#include "tools/groups/difference.h"
#include "tools/groups/replay_process.h"
#include "tools/groups/stored_weights.h"
#include "tools/tools.h"

struct replay_options {
    const char *stage;
    struct string_list set;
    bool json;
};

static const struct option replay_options[] = {
    TOOL_OPTION(replay_options, stage, OPTION_STRING, "the stage, as the pipeline file calls it", .required = true),
    TOOL_OPTION(replay_options, set, OPTION_STRING, "KEY=VALUE: a key of the stage, instead of the run's value",
                .repeatable = true),
    TOOL_OPTION(replay_options, json, OPTION_BOOL, "print a JSON object for each group, one a line"),
    {0},
};

const struct option_table replay_table = {
    .program = "caravan replay",
    .operands = "RUN [GROUP...]",
    .help = "runs a stage again on groups of a run, and says what differs from what it said then",
    .details = "RUN is a run's directory or its pipeline file. Without a GROUP, all groups of\n"
               "the run that can be replayed are. The settings are those of the run's last\n"
               "start (RUN/pipeline.yaml). Nothing is written into the run.\n\n"
               "  caravan replay RUN e0-000017 --stage reward\n"
               "  caravan replay RUN --stage reward --set margin=0.01\n\n"
               "Values are compared to the bit, and so are the frames' pixels. What is absent is\n"
               "printed as -, in JSON as null: {\"id\", \"equal\", \"differences\": [{\"path\",\n"
               "\"then\", \"now\"}]}.\n\n"
               "rollout and refscore need the weights with which the group was sampled or\n"
               "scored: the model directory is version 0, a checkpoint has that of its step,\n"
               "RUN/weights has the last ones. source and optim cannot be replayed.\n\n"
               "exit codes: 0 all groups are equal, 1 some differ, 64 and more: a failure\n",
    .options = replay_options,
    .size = sizeof(struct replay_options),
};

// What each stage adds to a group: keys, and keys of the object `consistency`, which two stages add to.
static const struct {
    enum stage_id kind;
    const char *fields[4]; // up to NULL
} replay_fields[] = {
    {STAGE_FRAMES, {"media"}},
    {STAGE_ROLLOUT, {"prompt_tokens", "completions"}},
    {STAGE_REFSCORE, {"reference"}},
    {STAGE_CONSISTENCY, {"consistency.probability", "consistency.model"}},
    {STAGE_REWARD, {"rewards", "advantages"}},
    {STAGE_SCORE, {"scores"}},
    {STAGE_JUDGE, {"consistency.verdict", "consistency.reason", "consistency.judge"}},
    {STAGE_OPTIM, {"trained"}},
};
enum { REPLAY_FIELDS = sizeof replay_fields / sizeof *replay_fields };
static_assert(REPLAY_FIELDS == STAGE_COUNT - 1, "each stage but source adds something");

// A group that is to be replayed.
struct replay_item {
    const char *id;
    size_t order;                         // in which they were added
    size_t store;                         // of the stores
    size_t frames;                        // of the frame stores: the one that has its frames
    int64_t version;                      // of the weights that it needs, 0: those of the model directory
    const struct stored_version *weights; // these, NULL for version 0
};

// A group that the stage's program has and has not answered with yet.
struct replay_pending {
    struct replay_pending *next;
    const char *id;
    struct arena arena; // of `then`
    struct json *then;  // what the store has, without what is not compared
    struct group *sent; // what the program was given
};

struct replay {
    const struct replay_options *given;
    struct arena *arena;
    struct pipeline *pipeline;
    struct pipeline_stage *stage;
    const char *run;         // its directory, which need not be where the file says
    const char *written_dir; // the directory of the pipeline file that the user has named, or NULL
    bool by_version;         // the stage computes with optim's weights
    bool reference;          // it takes those of the reference
    bool named;              // the groups were named
    struct string_list stores, frame_stores;
    struct group_store **groups; // open, of each of the stores
    struct frame_store **frames; // open, of each of the frame stores
    struct stored_weights weights;
    struct replay_item *items;
    size_t count;
    size_t quarantined, lacking, unknown; // groups that are left out, and why
    size_t store;                         // the one whose groups are listed now
    const char *temporary;                // a directory for decoded frames; NULL: there is none
    struct frame_store *decoded;          // frames.lmdb in it, once it is there
    size_t equal, differing, evicted;     // groups, groups, images and clips
};

// ---- the run ----

// Returns a path of the run as it is now: the directory may have been moved since the file was written.
static const char *replay_moved(const struct replay *replay, const char *path) {
    const char *before = replay->pipeline->run;
    const size_t length = strlen(before);
    const bool below = !strncmp(path, before, length) && path[length] == '/';
    return below ? path_join(replay->arena, replay->run, path + length + 1) : path;
}

// Reads RUN/pipeline.yaml, for a RUN that is the run's directory or a pipeline file, and finds the stage. USAGE when
// there is none of that name, or it cannot be replayed.
static status replay_open(struct replay *replay, const char *path) {
    struct arena *arena = replay->arena;
    struct buf diagnostics = {0};
    struct stat info;
    status result = OK;
    if (stat(path, &info)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) {
        char *real = realpath(path, NULL);
        if (!real) return fail(DATAERR, "%s: %s", path, strerror(errno));
        replay->run = arena_strndup(arena, real, strlen(real));
        free(real);
    } else if (subcommand_is_pipeline(path)) {
        TRY_TO(result, done, pipeline_read(&replay->pipeline, path, true, NULL, 0, &diagnostics));
        replay->run = arena_strndup(arena, replay->pipeline->run, strlen(replay->pipeline->run));
        replay->written_dir = arena_strndup(arena, replay->pipeline->dir, strlen(replay->pipeline->dir));
        pipeline_free(&replay->pipeline);
    } else {
        return fail(DATAERR, "%s: neither the directory of a run nor a pipeline file", path);
    }
    const char *file = path_join(arena, replay->run, "pipeline.yaml");
    if (!path_exists(file))
        TRY_TO(result, done, fail(DATAERR, "%s: there is none: %s is not the directory of a run", file, replay->run));
    TRY_TO(result, done, pipeline_read(&replay->pipeline, file, true, NULL, 0, &diagnostics));
    const char *name = replay->given->stage;
    const struct pipeline *pipeline = replay->pipeline;
    replay->stage = pipeline_find_stage(replay->pipeline, name);
    const struct stage_kind *kind = replay->stage ? replay->stage->kind : NULL;
    if (!replay->stage) {
        struct buf names = {0};
        for (size_t i = 0; i < pipeline->stage_count; i++)
            buf_printf(&names, "%s%s", i ? ", " : "", pipeline->stages[i].name);
        result = fail(USAGE, "--stage %s: the run has no such stage; it has %s", name, names.data);
        buf_release(&names);
    } else if (kind == &stage_kinds[STAGE_SOURCE]) {
        result = fail(USAGE, "--stage source: it makes the groups from the data; no group goes into it");
    } else if (kind == &stage_kinds[STAGE_OPTIM]) {
        result = fail(USAGE, "--stage optim: a step trains all its groups together, from the training state before it, "
                             "which is not kept for each step");
    }
    replay->by_version = kind && kind->follows_weights && pipeline_optim(pipeline);
    replay->reference = kind == &stage_kinds[STAGE_REFSCORE];
done:
    if (diagnostics.size) fwrite(diagnostics.data, 1, diagnostics.size, stderr);
    buf_release(&diagnostics);
    return result;
}

// Sets what --set says, by the table of the stage's options. USAGE; DATAERR for a missing file.
static status replay_set(struct replay *replay) {
    static const char *const of_process[] = {"store", "store_keep", "store_limit"};
    static const char *const of_placement[] = {"program", "timeout", "from", "on", "replicas"};
    struct pipeline_stage *stage = replay->stage;
    struct options *options = &stage->options;
    options->any_files = false;
    for (size_t i = 0; i < replay->given->set.count; i++) {
        const char *text = replay->given->set.data[i], *equals = strchr(text, '=');
        const size_t prefix = strlen(stage->name);
        if (!equals || equals == text) return fail(USAGE, "--set %s: this is not KEY=VALUE", text);
        if (!strncmp(text, stage->name, prefix) && text[prefix] == '.') text += prefix + 1; // as caravan run has it
        const char *key = arena_strndup(replay->arena, text, (size_t)(equals - text));
        if (!stage->kind) {
            for (size_t k = 0; k < sizeof of_placement / sizeof *of_placement; k++)
                if (!strcmp(key, of_placement[k]))
                    return fail(USAGE, "--set %s: it is no argument of the program", key);
            pipeline_set(stage, key, equals + 1);
            continue;
        }
        const struct option *option = option_find(options->table, key);
        if (!option) { // or it is one that only caravan sets
            struct nearest nearest = nearest_to(key);
            nearest_offer_all(&nearest, options->table);
            return fail(USAGE, "--set: %s: no such key%s", key, nearest_question(&nearest));
        }
        bool own = option->command_line_only;
        for (size_t k = 0; k < sizeof of_process / sizeof *of_process; k++)
            own = own || !strcmp(option->name, of_process[k]);
        if (own) return fail(USAGE, "--set %s: it does not change what the stage says", key);
        const status result = options_set(options, key, equals + 1);
        if (result != OK) return fail_prefix(result, "--set");
        if (option->type == OPTION_DEVICE && device_is_list(equals + 1))
            return fail(USAGE, "--set device: '%s': one process has one device", equals + 1);
        if (!strcmp(option->name, "model")) replay->by_version = false;
    }
    struct broken_rule broken = {0};
    if (stage->kind && replay->given->set.count && options_next_broken_rule(options, &broken))
        return fail(USAGE, "--set: %s", broken.text);
    return OK;
}

// ---- which groups ----

// Whether the stage itself has quarantined the group: that is then what it says.
static bool replay_quarantined_here(const struct replay *replay, const struct group *group) {
    return group->quarantine.present && string_equals(group->quarantine.stage, replay->stage->name);
}

// *version = that of the weights which the group was sampled or scored with. Returns false when it is not known.
static bool replay_version(const struct replay *replay, const struct group *group, int64_t *version) {
    *version = 0;
    if (!replay->by_version || replay_quarantined_here(replay, group)) {
        if (replay->by_version && group->requires.present)
            *version = replay->reference ? group->requires.reference : group->requires.policy;
        return true;
    }
    if (replay->reference) {
        *version = group->reference.version;
        return *version >= 0;
    }
    bool known = false;
    for (size_t i = 0; i < group->completion_count; i++) {
        const struct int_array *versions = &group->completions[i].versions;
        for (size_t t = 0; t < versions->count; t++) {
            if (known && versions->data[t] != *version) return false;
            *version = versions->data[t];
            known = true;
        }
    }
    return known && *version >= 0;
}

// Adds a group of a store to the items. One that cannot be replayed is counted, or, if it was named, DATAERR.
static status replay_add(void *context, const struct group *group) {
    struct replay *replay = context;
    const char *id = group->id.data, *stage = replay->stage->name;
    struct replay_item item = {.order = replay->count, .store = replay->store};
    // The frame store that has the group's first image or clip; the first one if none has it.
    for (size_t i = 0; replay->frame_stores.count > 1 && group->media_count && i < replay->frame_stores.count; i++) {
        struct frames_view view = {0};
        bool found = false;
        const char *key = group->media[0].key.data;
        const status result = key ? frame_store_get(replay->frames[i], key, &view, &found) : BAD_SAMPLE;
        frames_view_release(&view);
        if (result != OK || !found) continue;
        item.frames = i;
        break;
    }
    const struct pipeline_stage *by =
        group->quarantine.stage.data ? pipeline_find_stage(replay->pipeline, group->quarantine.stage.data) : NULL;
    if (group->quarantine.present && !replay_quarantined_here(replay, group) && (!by || by < replay->stage)) {
        replay->quarantined++;
        if (!replay->named) return OK;
        return fail(DATAERR, "group %s was quarantined by %s before it came to %s: %s", id,
                    group->quarantine.stage.data ? group->quarantine.stage.data : "?", stage,
                    group->quarantine.reason.data ? group->quarantine.reason.data : "no reason given");
    }
    // Whether the group has what the stage adds. Of a user's program it is not known.
    const bool has[STAGE_COUNT + 1] = {[STAGE_FRAMES] = group->media,
                                       [STAGE_ROLLOUT] = group->completions,
                                       [STAGE_REFSCORE] = group->reference.present,
                                       [STAGE_CONSISTENCY] = group->consistency.probability.data,
                                       [STAGE_REWARD] = group->rewards.present,
                                       [STAGE_SCORE] = group->scores.present,
                                       [STAGE_JUDGE] = group->consistency.verdict.data,
                                       [STAGE_COUNT] = true};
    const struct stage_kind *kind = replay->stage->kind;
    if (!has[kind ? kind - stage_kinds : STAGE_COUNT] && !replay_quarantined_here(replay, group)) {
        replay->lacking++;
        return replay->named ? fail(DATAERR, "group %s has nothing of %s: it did not come so far", id, stage) : OK;
    }
    if (!replay_version(replay, group, &item.version)) {
        replay->unknown++;
        if (!replay->named) return OK;
        return fail(DATAERR, "group %s does not say which one version of the weights was used by %s", id, stage);
    }
    item.weights = item.version ? stored_weights_find(&replay->weights, replay->reference, item.version) : NULL;
    item.id = arena_strndup(replay->arena, id, group->id.size);
    GROW(&replay->items, replay->count);
    replay->items[replay->count++] = item;
    return OK;
}

static int replay_compare_items(const void *left, const void *right) {
    const struct replay_item *a = left, *b = right;
    if (a->version != b->version) return a->version < b->version ? -1 : 1;
    if (a->frames != b->frames) return a->frames < b->frames ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

static void replay_say_left_out(size_t count, const char *why, const char *stage) {
    if (count) log_info("left out: %zu group%s %s %s", count, count == 1 ? "" : "s", why, stage);
}

// Lists the groups: those named ids[0..count), or with count 0 all of them.
static status replay_list(struct replay *replay, char **ids, int count) {
    const char *stage = replay->stage->name;
    status result = OK;
    replay->named = count > 0;
    for (int k = 0; k < count; k++) {
        struct group *group = NULL;
        for (size_t i = 0; result == OK && !group && i < replay->stores.count; i++) {
            replay->store = i;
            result = group_store_get(replay->groups[i], ids[k], &group);
            if (result != OK) fail_prefix(result, "%s", replay->stores.data[i]);
        }
        if (result == OK) result = group ? replay_add(replay, group) : fail(DATAERR, "the run has no group %s", ids[k]);
        group_free(&group);
        TRY(result);
    }
    for (size_t i = 0; !count && i < replay->stores.count; i++) {
        replay->store = i;
        result = group_store_each(replay->groups[i], replay_add, replay);
        if (result != OK) return fail_prefix(result, "%s", replay->stores.data[i]);
    }
    replay_say_left_out(replay->quarantined, "quarantined before", stage);
    replay_say_left_out(replay->lacking, "without anything of", stage);
    replay_say_left_out(replay->unknown, "that do not say which one version of the weights was used by", stage);
    // The groups whose weights are gone are left out, unless they were named.
    const char *kind = replay->reference ? "reference" : "policy", *done = replay->reference ? "scored" : "sampled";
    struct buf there = {0};
    size_t kept = 0, lost = 0;
    stored_weights_print(&replay->weights, replay->reference, &there);
    for (size_t i = 0; i < replay->count && result == OK; i++) {
        const struct replay_item *item = &replay->items[i];
        if (!item->version || item->weights)
            replay->items[kept++] = *item;
        else if (replay->named)
            result = fail(DATAERR, "group %s was %s with version %lld of the %s, which no longer exists: there are %s",
                          item->id, done, (long long)item->version, kind, there.data);
        else
            lost++;
    }
    replay->count = kept;
    if (lost)
        log_info("left out: %zu group%s %s with versions of the %s that no longer exist: there are %s", lost,
                 lost == 1 ? "" : "s", done, kind, there.data);
    buf_release(&there);
    TRY(result);
    if (!replay->count) return fail(DATAERR, "the run has no group on which %s can be replayed", stage);
    qsort(replay->items, replay->count, sizeof *replay->items, replay_compare_items);
    return OK;
}

// ---- a group without some of its keys ----

static void replay_remove_kind(struct json *tree, const struct stage_kind *kind) {
    for (size_t i = 0; i < REPLAY_FIELDS; i++)
        for (int k = 0; kind == &stage_kinds[replay_fields[i].kind] && k < 4 && replay_fields[i].fields[k]; k++) {
            const char *field = replay_fields[i].fields[k], *dot = strchr(field, '.');
            char key[32];
            snprintf(key, sizeof key, "%.*s", dot ? (int)(dot - field) : 0, field);
            struct json *inner = dot ? json_at(tree, key) : NULL;
            if (inner) json_remove(inner, dot + 1);
            if (!dot || (inner && !inner->count)) json_remove(tree, dot ? key : field);
        }
}

// Removes what is not compared: what later stages have added, and times.
static void replay_remove_later(const struct replay *replay, struct json *tree) {
    const struct pipeline *pipeline = replay->pipeline;
    for (size_t i = 0; i < pipeline->stage_count; i++)
        if (&pipeline->stages[i] > replay->stage && pipeline->stages[i].kind)
            replay_remove_kind(tree, pipeline->stages[i].kind);
    json_remove(tree, "trained");
    json_remove(tree, "times");
}

// ---- the program ----

// The arguments of the stage's program, as the run has them, but for what is read from elsewhere; ends with NULL, in
// the arena. *directory = where it starts, NULL: here.
static status replay_arguments(struct replay *replay, const struct replay_item *item, char ***out,
                               const char **directory) {
    struct arena *arena = replay->arena;
    const struct pipeline_stage *stage = replay->stage;
    const struct stage_kind *kind = stage->kind;
    enum { MORE = 10 };
    size_t count = 0;
    char **argv = arena_alloc(arena, (2 * key_list_count(&stage->options.given) + MORE) * sizeof *argv);
    *directory = NULL;
    *out = argv;
    if (!kind) {
        // It starts where the run has started it.
        struct node_config config = {0};
        const char *path = arena_printf(arena, "%s/nodes/%s", replay->run, stage->name);
        *directory = replay->written_dir ? replay->written_dir : replay->pipeline->dir;
        if (path_exists(path)) {
            const status result = node_config_read(&config, path);
            if (result == OK && config.program_dir)
                *directory = arena_strndup(arena, config.program_dir, strlen(config.program_dir));
            node_config_release(&config);
            TRY(result);
        }
        argv[count++] = arena_strndup(arena, stage->program, strlen(stage->program));
        for (const struct key *key = stage->options.given.first; key; key = key->next) {
            argv[count++] = arena_printf(arena, "--%s", key->name);
            argv[count++] = arena_strndup(arena, key->value, strlen(key->value));
        }
        return OK;
    }
    const char *dir;
    TRY(path_program_dir(arena, &dir));
    argv[count++] = arena_printf(arena, "%s/caravan-%s", dir, kind->name);
    argv[count++] = arena_printf(arena, "--stdio");
    for (const struct key *key = stage->options.given.first; key; key = key->next) {
        const char *value = replay_moved(replay, key->value);
        if (!strncmp(key->name, "store", 5)) continue; // store, store_keep, store_limit
        if (!strcmp(key->name, "device")) TRY(device_of_slot(key->value, 0, arena, &value));
        argv[count++] = arena_printf(arena, "--%s=%s", key->name, value);
    }
    if (replay->temporary) {
        argv[count++] = arena_printf(arena, "--store=%s", replay->temporary);
        argv[count++] = arena_printf(arena, "--store-limit=1GiB");
    } else if (replay->frame_stores.count) {
        argv[count++] = arena_printf(arena, "--frames_store=%s", replay->frame_stores.data[item->frames]);
    }
    if (item->weights) {
        argv[count++] = arena_printf(arena, "--weights=%s", item->weights->path);
        argv[count++] = arena_printf(arena, "--weights_prefix=%s", item->weights->prefix);
        argv[count++] = arena_printf(arena, "--weights_version=%lld", (long long)item->version);
    } else if (replay->by_version && replay->weights.knows_model) {
        argv[count++] = arena_printf(arena, "--files_hash=%016llx", replay->weights.hash);
    }
    assert(count < 2 * key_list_count(&stage->options.given) + MORE);
    return OK;
}

static void replay_pending_free(struct replay_pending *pending) {
    group_free(&pending->sent);
    arena_release(&pending->arena);
    free(pending);
}

// Makes *line, which the program gets for a group, and *out, which waits for the answer. DATAERR when the store's group
// is damaged or gone.
static status replay_make(struct replay *replay, const struct replay_item *item, struct buf *line,
                          struct replay_pending **out) {
    const struct pipeline *pipeline = replay->pipeline;
    struct group *group = NULL;
    struct json *tree;
    struct buf text = {0};
    size_t programs = 0;
    status result;
    TRY(group_store_get(replay->groups[item->store], item->id, &group));
    if (!group) return fail(DATAERR, "group %s is gone from the store", item->id);
    struct replay_pending *pending;
    NEW(&pending, 1);
    pending->id = item->id;
    if (!replay_quarantined_here(replay, group)) group->quarantine.present = false;
    group_to_json(group, &text);
    TRY_TO(result, done, json_parse_object(&pending->then, &pending->arena, text.data, text.size, "the stored group"));
    TRY_TO(result, done, json_parse_object(&tree, &pending->arena, text.data, text.size, "the stored group"));
    replay_remove_later(replay, pending->then);
    replay_remove_later(replay, tree);
    // Removes what the stage has added. What a user's program adds is not declared: it is what no stage of the run and
    // not the source makes, if it is the only program.
    json_remove(tree, "quarantine");
    for (size_t i = 0; i < pipeline->stage_count; i++) programs += !pipeline->stages[i].kind;
    if (replay->stage->kind) {
        replay_remove_kind(tree, replay->stage->kind);
    } else if (programs == 1) {
        for (enum stage_id kind = STAGE_REFSCORE; kind < STAGE_OPTIM; kind++) {
            bool made = false;
            for (size_t i = 0; i < pipeline->stage_count; i++) made |= pipeline->stages[i].kind == &stage_kinds[kind];
            if (!made) replay_remove_kind(tree, &stage_kinds[kind]);
        }
        for (size_t i = tree->count; i-- > 0;) {
            const struct string key = tree->items[i].key;
            if (!field_find(&group_table, key.data, key.size)) json_remove(tree, key.data);
        }
    }
    buf_clear(line);
    json_print(line, tree);
    result = group_from_json(&pending->sent, line->data, line->size);
done:
    group_free(&group);
    buf_release(&text);
    if (result == OK)
        *out = pending;
    else
        replay_pending_free(pending);
    return result;
}

// ---- pixels ----

// Returns a hash of the pixels as a JSON string in the arena.
static struct json *replay_hash_pixels(struct arena *arena, const struct frames *frames) {
    const XXH128_hash_t hash = XXH3_128bits(frames->pixels, frames_bytes(frames));
    struct json *value = json_new(arena, JSON_STRING);
    value->text = string_of(
        arena_printf(arena, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64));
    return value;
}

// Compares the frames that were decoded now with those in the run's store, where both have the key.
static status replay_compare_pixels(struct replay *replay, const char *key, size_t index,
                                    struct differences *differences) {
    struct arena *arena = &differences->arena;
    struct frames_view then = {0}, now = {0};
    bool then_found = false, now_found = false;
    status result = OK;
    if (!replay->decoded) TRY(frame_store_open(&replay->decoded, replay->temporary, 0, true));
    for (size_t i = 0; result == OK && !then_found && i < replay->frame_stores.count; i++)
        result = frame_store_get(replay->frames[i], key, &then, &then_found);
    if (result == OK) result = frame_store_get(replay->decoded, key, &now, &now_found);
    if (result == OK && (!then_found || !now_found)) replay->evicted++;
    const size_t size = then_found ? frames_bytes(&then.frames) : 0;
    if (result == OK && then_found && now_found && size == frames_bytes(&now.frames) &&
        memcmp(then.frames.pixels, now.frames.pixels, size) != 0) {
        size_t count = 0;
        int largest = 0;
        for (size_t i = 0; i < size; i++) {
            const int difference = abs(then.frames.pixels[i] - now.frames.pixels[i]);
            count += difference > 0;
            if (difference > largest) largest = difference;
        }
        differences_add(differences, arena_printf(arena, "media[%zu].pixels", index),
                        replay_hash_pixels(arena, &then.frames), replay_hash_pixels(arena, &now.frames),
                        arena_printf(arena, "%zu of %zu differ by up to %d", count, size, largest));
    }
    frames_view_release(&then);
    frames_view_release(&now);
    return result;
}

// ---- answers ----

// Compares the program's answer with what the store has. DATAERR when it is not the group.
static status replay_answer(struct replay *replay, struct replay_pending *pending, const char *line, size_t size) {
    struct differences differences = {0};
    struct arena arena = {0};
    struct group *answer = NULL;
    struct json *now;
    struct buf text = {0};
    status result;
    TRY_TO(result, done, group_from_json(&answer, line, size));
    TRY_TO(result, done, group_restore(answer, pending->sent)); // what a user's program need not repeat
    group_to_json(answer, &text);
    TRY_TO(result, done, json_parse_object(&now, &arena, text.data, text.size, "the answer"));
    replay_remove_later(replay, now);
    differences_find(&differences, pending->then, now);
    const struct json *media = json_at(pending->then, "media"), *again = json_at(now, "media");
    for (size_t i = 0; replay->temporary && i < json_count(media) && i < json_count(again); i++) {
        const struct string key = json_string(json_at(json_item(media, i), "key"));
        if (key.data && string_equals(json_string(json_at(json_item(again, i), "key")), key.data))
            TRY_TO(result, done, replay_compare_pixels(replay, key.data, i, &differences));
    }
    enum { COLUMNS = 80 };
    struct buf out = {0};
    if (replay->given->json) {
        buf_puts(&out, "{\"id\":");
        json_print_string(&out, pending->id, strlen(pending->id));
        buf_printf(&out, ",\"equal\":%s,\"differences\":", differences.count ? "false" : "true");
        differences_json(&differences, &out);
        buf_puts(&out, "}\n");
    } else {
        buf_printf(&out, "%-12s %s\n", pending->id, differences.count ? "differs" : "equal");
        differences_text(&differences, json_count(json_at(pending->then, "completions")), COLUMNS, &out);
    }
    const bool written = fwrite(out.data, 1, out.size, stdout) == out.size && !fflush(stdout);
    buf_release(&out);
    result = written ? OK : fail(UNAVAILABLE, "cannot write to standard output");
    replay->equal += !differences.count;
    replay->differing += differences.count > 0;
done:
    differences_release(&differences);
    group_free(&answer);
    buf_release(&text);
    arena_release(&arena);
    return result;
}

// Says which program has failed, and with which group if it was the group's fault.
static status replay_blame(const struct replay *replay, const struct replay_pending *pending, status result) {
    static const char line[] = "line ";
    const char *stage = replay->stage->name, *reason = fail_text();
    const char *colon = strncmp(reason, line, sizeof line - 1) ? NULL : strstr(reason, ": ");
    if (!pending || (replay->stage->kind && !colon)) return fail_prefix(result, "%s", stage);
    char *text = mem_strdup(colon ? colon + 2 : reason);
    result = fail(result, "%s: group %s: %s", stage, pending->id, text);
    free(text);
    return result;
}

// Gives items[0..count), which need the same weights, to one process of the stage's program.
static status replay_run(struct replay *replay, const struct replay_item *items, size_t count) {
    enum { WINDOW = 64 }; // groups that a stage may have at the same time; a user's program gets one after the other
    const struct pipeline_stage *stage = replay->stage;
    const size_t window = stage->kind ? WINDOW : 1;
    struct replay_process process = {0};
    struct replay_pending *first = NULL, **end = &first;
    struct buf line = {0};
    size_t given = 0, answered = 0, size;
    char **argv;
    const char *directory, *answer;
    status result;
    TRY_TO(result, done, replay_arguments(replay, items, &argv, &directory));
    TRY_TO(result, done, replay_process_start(&process, argv, directory));
    for (;;) {
        for (; given < count && given - answered < window; given++) {
            TRY_TO(result, done, replay_make(replay, &items[given], &line, end));
            end = &(*end)->next;
            replay_process_add(&process, &line);
        }
        if (given == count) replay_process_end_input(&process);
        result = replay_process_next(&process, first ? stage->timeout : 0, &answer, &size);
        if (result == BAD_SAMPLE) result = fail(DATAERR, "it did not answer within %g s", stage->timeout);
        if (result == DATAERR) result = replay_blame(replay, first, result);
        if (result != OK) goto done;
        if (!answer) break;
        if (!first) TRY_TO(result, done, fail(DATAERR, "%s: it has answered more than it was asked", stage->name));
        result = replay_answer(replay, first, answer, size);
        if (result == DATAERR) result = replay_blame(replay, first, result);
        if (result != OK) goto done;
        struct replay_pending *pending = first;
        first = pending->next;
        if (!first) end = &first;
        replay_pending_free(pending);
        answered++;
    }
    result = replay_process_wait(&process);
    if (result == OK && answered < count) result = fail(DATAERR, "it ended without an answer");
    if (result != OK && result != STOPPED) replay_blame(replay, first, result);
done:
    while (first) {
        struct replay_pending *pending = first;
        first = pending->next;
        replay_pending_free(pending);
    }
    replay_process_stop(&process);
    buf_release(&line);
    return result;
}

// ---- replay ----

status replay_main(struct subcommand_call *call) {
    struct replay replay = {.given = call->given, .arena = &call->arena};
    status result;
    TRY_TO(result, done, replay_open(&replay, call->list[0]));
    TRY_TO(result, done, replay_set(&replay));
    subcommand_set_frames(replay.pipeline);
    // The stores of the run are opened for reading, and its weights are listed.
    const struct stage_kind *kind = replay.stage->kind;
    TRY_TO(result, done, subcommand_find_stores(replay.run, "groups.lmdb", replay.arena, &replay.stores));
    NEW(&replay.groups, replay.stores.count);
    for (size_t i = 0; i < replay.stores.count; i++)
        TRY_TO(result, done, group_store_open(&replay.groups[i], replay.stores.data[i], true));
    if (kind && (kind->needs_frames || kind == &stage_kinds[STAGE_FRAMES]) &&
        subcommand_find_stores(replay.run, "frames.lmdb", replay.arena, &replay.frame_stores) ==
            OK) { // without: no media
        NEW(&replay.frames, replay.frame_stores.count);
        for (size_t i = 0; i < replay.frame_stores.count; i++)
            TRY_TO(result, done, frame_store_open(&replay.frames[i], replay.frame_stores.data[i], 0, true));
    }
    if (replay.by_version) {
        const char *out = pipeline_value(pipeline_optim(replay.pipeline), "out");
        assert(out); // it has a default
        TRY_TO(result, done, stored_weights_list(&replay.weights, replay.run, replay_moved(&replay, out)));
    }
    TRY_TO(result, done, replay_list(&replay, call->list + 1, call->count - 1));
    TRY_TO(result, done, signals_open());
    if (kind == &stage_kinds[STAGE_FRAMES]) { // a directory for what it decodes
        const char *parent = getenv("TMPDIR");
        char *path = arena_printf(replay.arena, "%s/caravan-replay-XXXXXX", parent && *parent ? parent : "/tmp");
        if (!mkdtemp(path)) TRY_TO(result, done, fail(UNAVAILABLE, "%s: %s", path, strerror(errno)));
        replay.temporary = path;
    }
    for (size_t from = 0, end; from < replay.count; from = end) {
        const struct replay_item *items = replay.items;
        for (end = from + 1; end < replay.count && items[end].version == items[from].version; end++)
            if (items[end].frames != items[from].frames) break;
        TRY_TO(result, done, replay_run(&replay, &items[from], end - from));
    }
    if (replay.evicted)
        log_info("the pixels of %zu images and clips were not compared: the store no longer has them", replay.evicted);
    if (!replay.given->json)
        printf("%zu group%s: %zu equal to the bit, %zu differ\n", replay.count, replay.count == 1 ? "" : "s",
               replay.equal, replay.differing);
    call->code = replay.differing > 0;
done:
    for (size_t i = 0; replay.groups && i < replay.stores.count; i++) group_store_close(&replay.groups[i]);
    for (size_t i = 0; replay.frames && i < replay.frame_stores.count; i++) frame_store_close(&replay.frames[i]);
    frame_store_close(&replay.decoded);
    if (replay.temporary && dir_remove(replay.temporary) != OK) log_info("%s", fail_text());
    free(replay.groups);
    free(replay.frames);
    free(replay.items);
    stored_weights_release(&replay.weights);
    pipeline_free(&replay.pipeline);
    return result;
}
