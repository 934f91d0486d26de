#include "shared/resources/resource_plan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/file.h"
#include "shared/base/pool.h"
#include "shared/config/name_list.h"
#include "shared/config/stage_options.h"
#include "shared/model/classifier.h"
#include "shared/model/model_shapes.h"

// A token of a medium: so many pixels and frames, and patches of the tower in a pair of frames.
enum { TOKEN_PIXELS = 28 * 28, TOKEN_FRAMES = 2, TOKEN_PATCHES = 4, PIXEL_BYTES = 3 };

// The text of a prompt, and a completion, of groups that are given.
enum { GIVEN_TEXT_TOKENS = 1024, GIVEN_COMPLETION_TOKENS = 1024 };

// The options of a stage, by its kind.
union planned_options {
    struct common_options common; // of all
    struct stage_model_options model;
    struct frames_options frames;
    struct refscore_options refscore;
    struct consistency_options consistency;
    struct optim_options optim;
};

// "float32", or NULL for bfloat16.
static const char *resource_precision(const char *given, bool on_cpu) {
    const bool wide = given ? !strcmp(given, "float32") : on_cpu;
    return wide ? "float32" : NULL;
}

// ---- what a process takes beside its model, in MiB ----

// The measured size of a process on the CPU, with its libraries. A stage with a model also has the tokenizer, the store
// and the threads; a decoder's worker has a clip, and its frames of 1920 x 1080 pixels before they are resized. Files
// that are mapped, the store's and the weights', do not count: the kernel drops them first. A user's program is not
// known. On a GPU: the allowance for the driver's context of one process, for copies and for small buffers; and for the
// buffers of NCCL, which is not measured.
enum {
    PROCESS_PLAIN = 10,
    PROCESS_DECODER = 32,
    PROCESS_WORKER = 64,
    PROCESS_MODEL = 48,
    PROCESS_DRIVER = 640,
    PROCESS_NCCL = 768
};

// ---- the stages ----

// Adds a stage. `group` has the sizes of the largest group.
static status resource_add_stage(struct resource_plan *plan, const struct pipeline_stage *stage,
                                 const struct memory_request *group) {
    struct planned_stage *planned = &plan->stages[plan->count++];
    struct memory_request *request = &planned->request;
    static const union planned_options unknown = {0};
    const union planned_options *values = stage->kind ? pipeline_options(stage) : &unknown;
    const struct common_options *common = &values->common;
    const int threads = common->threads ? (int)common->threads : pool_processors();
    const bool refscore = stage->kind == &stage_kinds[STAGE_REFSCORE], optim = stage->kind == &stage_kinds[STAGE_OPTIM],
               consistency = stage->kind == &stage_kinds[STAGE_CONSISTENCY];
    // The judge's question has no media and its answers are letters: a group of rollout's has room for both.
    const char *judge = stage->kind == &stage_kinds[STAGE_JUDGE] ? pipeline_value(stage, "judge") : NULL;
    const bool has_model = optim || consistency || (stage->kind && stage->kind->follows_weights) ||
                           (judge && !strcmp(judge, "likelihood"));
    *planned = (struct planned_stage){.stage = stage, .on_cpu = true, .request = *group};
    planned->devices = arena_alloc(&plan->arena, (size_t)stage->replicas * sizeof(char *));
    for (int slot = 0; slot < stage->replicas; slot++) planned->devices[slot] = "cpu";
    const char *device = common->device ? common->device : plan->options.gpu ? "cuda" : "cpu";
    uint64_t mebibytes = has_model ? PROCESS_MODEL : stage->kind ? PROCESS_PLAIN : 0;
    if (has_model) {
        const char *shape = path_base_name(values->model.dir);
        const bool named = !path_exists(values->model.dir) && named_shape_exists(shape);
        planned->model = named ? shape : values->model.dir;
        planned->on_cpu = !strcmp(device, "cpu");
        for (int slot = 0; slot < stage->replicas; slot++) {
            const char **own = &planned->devices[slot];
            TRY(device_of_slot(device, slot, &plan->arena, own));
            if (!strcmp(*own, "cuda:0")) *own = "cuda";
        }
        if (!planned->on_cpu) mebibytes = PROCESS_DRIVER;
        request->on_cpu = planned->on_cpu;
        request->threads = threads;
        if (optim || stage->kind->follows_weights) {
            const struct model_options adapters = {
                .lora = values->model.lora, .lora_alpha = values->model.lora_alpha, .adapter = values->model.adapter};
            TRY(model_check_adapter(planned->model, &adapters, &request->lora));
        }
        request->precision = resource_precision(common->precision, planned->on_cpu);
        request->generates = stage->kind == &stage_kinds[STAGE_ROLLOUT];
        request->training = optim;
        // A reference that stands still is not lent: refscore loads the model directory.
        const bool shares = !planned->on_cpu && stage->kind->follows_weights && (!refscore || group->ema);
        request->borrows = group->borrows && shares;
        request->borrows_base = group->borrows_base && shares;
        if (refscore && values->refscore.generate == REFSCORE_GENERATE_ANSWER)
            request->continued_tokens = values->refscore.generate_tokens;
        if (consistency) {
            planned->text_tokens = values->consistency.max_tokens;
            planned->batch_tokens = values->consistency.batch_tokens;
        }
        if (optim) {
            request->train_vision = values->optim.train_vision && !request->lora;
            request->ema = values->optim.ema_every > 0;
            request->parts = values->optim.parts;
            request->ranks = pipeline_stage_ranks(stage);
            if (!planned->on_cpu && request->ranks > 1) mebibytes += PROCESS_NCCL;
            request->gradient_precision = resource_precision(values->optim.gradient_precision, planned->on_cpu);
            request->sum_precision = values->optim.sum_precision;
            request->moment_precision = resource_precision(values->optim.moment_precision, planned->on_cpu);
        }
    }
    planned->program_bytes = mebibytes << 20;
    if (stage->kind == &stage_kinds[STAGE_FRAMES]) {
        const int64_t workers = values->frames.workers ? values->frames.workers : threads;
        const uint64_t worker = ((uint64_t)PROCESS_WORKER << 20) + 2 * plan->medium;
        planned->program_bytes = ((uint64_t)PROCESS_DECODER << 20) + (uint64_t)workers * worker;
    }
    plan->on_gpu += !planned->on_cpu;
    if (common->store_keep.bytes > (int64_t)plan->groups) plan->groups = (uint64_t)common->store_keep.bytes;
    return OK;
}

status resource_plan_make(struct resource_plan *plan, const struct pipeline *pipeline,
                          const struct resource_options *options) {
    const struct pipeline_stage *rollout = pipeline_find_stage(pipeline, "rollout"),
                                *frames = pipeline_find_stage(pipeline, "frames"), *optim = pipeline_optim(pipeline);
    struct resource_options *given = &plan->options;
    struct memory_request group = {0};
    int64_t tokens = 0;
    *plan = (struct resource_plan){.pipeline = pipeline, .options = *options};
    plan->stages = arena_alloc(&plan->arena, pipeline->stage_count * sizeof *plan->stages);
    // The sizes of the largest group. Without a rollout they are those of the options.
    if (frames && frames->kind == &stage_kinds[STAGE_FRAMES]) { // what a clip or an image takes at most
        const struct frames_options *values = pipeline_options(frames);
        const int64_t image = values->image_max_pixels, frame = values->max_pixels > image ? values->max_pixels : image;
        int64_t clip = values->max_frames * values->max_pixels;
        if (values->total_pixels && values->total_pixels < clip) clip = values->total_pixels;
        const int64_t of_clip = clip / TOKEN_PIXELS / TOKEN_FRAMES, of_image = image / TOKEN_PIXELS;
        tokens = of_clip > of_image ? of_clip : of_image;
        group.medium_patches = frame / TOKEN_PIXELS * TOKEN_PATCHES;
        plan->medium = (uint64_t)(clip > image ? clip : image) * PIXEL_BYTES;
        plan->frames = (uint64_t)values->store_limit;
    }
    if (rollout && rollout->kind == &stage_kinds[STAGE_ROLLOUT]) {
        if (given->prompt_tokens || given->group_size || given->completion_tokens)
            return fail(USAGE, "rollout says how long a group may be: max_prompt_tokens, group_size, max_new_tokens");
        const struct rollout_options *values = pipeline_options(rollout);
        given->prompt_tokens = values->max_prompt_tokens;
        if (given->expected && tokens + GIVEN_TEXT_TOKENS < values->max_prompt_tokens)
            given->prompt_tokens = tokens + GIVEN_TEXT_TOKENS;
        given->group_size = values->group_size;
        given->completion_tokens = values->max_new_tokens;
    }
    if (!given->prompt_tokens) given->prompt_tokens = tokens + GIVEN_TEXT_TOKENS;
    if (!given->group_size) given->group_size = 1;
    if (!given->completion_tokens) given->completion_tokens = GIVEN_COMPLETION_TOKENS;
    group.prompt_tokens = given->prompt_tokens;
    group.group_size = given->group_size;
    group.new_tokens = given->completion_tokens;
    const struct optim_options *training = optim ? pipeline_options(optim) : NULL;
    group.ema = training && training->ema_every > 0;
    group.borrows = training && training->publish == OPTIM_PUBLISH_LEND;
    group.borrows_base = training && training->publish != OPTIM_PUBLISH_FILES;
    for (size_t i = 0; i < pipeline->stage_count; i++) TRY(resource_add_stage(plan, &pipeline->stages[i], &group));
    return OK;
}

void resource_plan_release(struct resource_plan *plan) {
    arena_release(&plan->arena);
    *plan = (struct resource_plan){0};
}

// ---- sums ----

int planned_stage_replicas_on(const struct planned_stage *stage, const char *device, int machine, int end) {
    int count = 0;
    for (int slot = 0; slot < end && pipeline_stage_runs_on(stage->stage, machine); slot++)
        count += strcmp(stage->devices[slot], device) == 0;
    return count;
}

// A classifier's batch ends with the group that fills it.
status planned_stage_needs(const struct planned_stage *stage, struct memory_item *items, size_t *count) {
    const struct memory_request *request = &stage->request;
    *count = 0;
    if (stage->text_tokens) {
        const int64_t tokens = stage->batch_tokens - 1 + request->group_size * stage->text_tokens;
        TRY(classifier_memory_needs(stage->model, request->precision, stage->on_cpu, stage->text_tokens, tokens, items,
                                    count));
    } else if (stage->model) {
        TRY(model_memory_needs(stage->model, request, items, count));
    }
    assert(*count < MEMORY_ITEMS);
    const char *program = stage->on_cpu ? "the program" : request->ranks > 1 ? "the driver and NCCL" : "the driver";
    if (stage->program_bytes) items[(*count)++] = (struct memory_item){program, stage->program_bytes};
    return OK;
}

status planned_stage_bytes(const struct planned_stage *stage, uint64_t *bytes) {
    struct memory_item items[MEMORY_ITEMS];
    size_t count;
    *bytes = 0;
    TRY(planned_stage_needs(stage, items, &count));
    for (size_t i = 0; i < count; i++) *bytes += items[i].bytes;
    return OK;
}

status resource_plan_memory(const struct resource_plan *plan, const char *device, int machine, uint64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int replicas = planned_stage_replicas_on(stage, device, machine, stage->stage->replicas);
        uint64_t own = 0;
        if (replicas) TRY(planned_stage_bytes(stage, &own));
        *bytes += own * (uint64_t)replicas;
    }
    return OK;
}

status resource_plan_disk(const struct resource_plan *plan, int machine, struct disk_needs *needs) {
    enum { VERSIONS = 3 }; // of the policy, and of the reference
    const struct pipeline_stage *first = plan->pipeline->stages;
    const struct planned_stage *planned = &plan->stages[plan->count - 1]; // optim, if the pipeline trains
    bool read = false;                                                    // its weights, on this machine
    *needs = (struct disk_needs){.groups = plan->groups};
    for (size_t i = 0; i < plan->count; i++) {
        const struct pipeline_stage *stage = plan->stages[i].stage;
        const bool here = pipeline_stage_runs_on(stage, machine);
        if (stage->kind == &stage_kinds[STAGE_FRAMES] && here) needs->frames = plan->frames;
        if (stage->kind && stage->kind->trains) // only rank 0 publishes
            read |= pipeline_stage_machine(stage, 0) == machine;
        read |= here && stage->kind && stage->kind->follows_weights;
    }
    if (planned->stage->kind != &stage_kinds[STAGE_OPTIM]) return OK;
    static const struct source_options no_source = {.groups_per_step = 1};
    const struct source_options *source =
        first->kind == &stage_kinds[STAGE_SOURCE] ? pipeline_options(first) : &no_source;
    const struct optim_options *optim = pipeline_options(planned->stage);
    struct model_file_bytes files;
    TRY(model_disk_needs(planned->model, &planned->request, &files));
    const bool lent = optim->publish != OPTIM_PUBLISH_FILES && !planned->on_cpu;
    needs->published = files.published;
    needs->copies = lent || !read ? 0 : optim->ema_every ? 2 * VERSIONS : VERSIONS;
    if (pipeline_stage_machine(planned->stage, 0) != machine) return OK;
    needs->checkpoint = files.model + files.state;
    needs->state = files.state;
    int64_t steps = source->max_steps; // at most; 0: the pipeline does not say it
    if (!steps) steps = source->limit * source->epochs / source->groups_per_step;
    // The newest checkpoint is complete before an older one goes.
    const int64_t all = optim->save_every ? (steps + optim->save_every - 1) / optim->save_every : 1;
    const int64_t most = optim->keep + 1 + (optim->keep_every ? steps / optim->keep_every : 0);
    if (!optim->save_every || !optim->keep || (steps && all < most))
        needs->checkpoints = all;
    else if (steps || !optim->keep_every)
        needs->checkpoints = most;
    return OK;
}

uint64_t disk_needs_sum(const struct disk_needs *needs) {
    const uint64_t checkpoints = (uint64_t)(needs->checkpoints ? needs->checkpoints : 1);
    return checkpoints * needs->checkpoint + needs->state + (uint64_t)needs->copies * needs->published + needs->frames +
           needs->groups;
}

// ---- where the processes go ----

// The replicas are placed from the largest to the smallest, each on the GPU with the smallest sum: Graham's rule.
struct resource_spread {
    const struct resource_plan *plan;
    int gpus, machines;
    uint64_t *loads;     // [machines, gpus] bytes
    uint64_t *bytes;     // of one replica of each stage; 0: it computes on no GPU
    int *placed;         // replicas of each stage
    struct buf *devices; // of each stage, "1,2,1"
};

// Returns the sum of a GPU on the fullest of the stage's machines.
static uint64_t resource_spread_load(const struct resource_spread *spread, size_t stage, int gpu) {
    uint64_t most = 0;
    for (int m = 0; m < spread->machines; m++) {
        const uint64_t load = spread->loads[m * spread->gpus + gpu];
        if (pipeline_stage_runs_on(spread->plan->stages[stage].stage, m) && load > most) most = load;
    }
    return most;
}

// Returns how many processes of a stage have a GPU. Only a rank needs one that no other rank has.
static int resource_spread_shared(const struct resource_spread *spread, size_t stage, int gpu) {
    const char *at = spread->devices[stage].data;
    int count = 0;
    if (!pipeline_stage_ranks(spread->plan->stages[stage].stage)) return 0;
    for (; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) count += atoi(at) == gpu; // NOLINT: written here
    return count;
}

static void resource_spread_place(struct resource_spread *spread, size_t stage) {
    int best = 0;
    for (int gpu = 1; gpu < spread->gpus; gpu++) {
        const int shared = resource_spread_shared(spread, stage, gpu),
                  most = resource_spread_shared(spread, stage, best);
        if (shared > most) continue;
        if (shared < most || resource_spread_load(spread, stage, gpu) < resource_spread_load(spread, stage, best))
            best = gpu;
    }
    for (int m = 0; m < spread->machines; m++)
        if (pipeline_stage_runs_on(spread->plan->stages[stage].stage, m))
            spread->loads[m * spread->gpus + best] += spread->bytes[stage];
    buf_printf(&spread->devices[stage], spread->placed[stage]++ ? ",%d" : "%d", best);
}

status resource_spread(const struct resource_plan *plan, struct pipeline *pipeline, int gpus, bool *placed) {
    struct arena arena = {0};
    struct resource_spread spread = {
        .plan = plan, .gpus = gpus, .machines = pipeline->machine_count ? (int)pipeline->machine_count : 1};
    status result = OK;
    bool named = false; // a stage names another GPU than the first one
    *placed = false;
    for (size_t i = 0; i < plan->count; i++) {
        const struct planned_stage *stage = &plan->stages[i];
        const int ranks = pipeline_stage_ranks(stage->stage) ? stage->stage->replicas : 0; // on a machine
        if (ranks > gpus && !stage->on_cpu)
            return fail(USAGE, "%s.ranks: %d ranks need so many GPUs, but --gpus is %d", stage->stage->name, ranks,
                        gpus);
        for (int slot = 0; slot < stage->stage->replicas && !stage->on_cpu; slot++) {
            const char *colon = strchr(stage->devices[slot], ':');
            named |= colon != NULL;
            if (colon && atoi(colon + 1) >= gpus) // NOLINT: a valid device
                return fail(USAGE, "%s.device: %s, but --gpus is %d", stage->stage->name, stage->devices[slot], gpus);
        }
    }
    if (named || gpus == 1 || !plan->on_gpu) return OK;
    spread.loads = arena_alloc(&arena, (size_t)(spread.machines * gpus) * sizeof *spread.loads);
    spread.bytes = arena_alloc(&arena, plan->count * sizeof *spread.bytes);
    spread.placed = arena_alloc(&arena, plan->count * sizeof *spread.placed);
    spread.devices = arena_alloc(&arena, plan->count * sizeof *spread.devices);
    for (size_t i = 0; result == OK && i < plan->count; i++)
        if (!plan->stages[i].on_cpu) result = planned_stage_bytes(&plan->stages[i], &spread.bytes[i]);
    for (size_t next = 0; result == OK && next < plan->count;) { // the largest of the replicas that have no place
        next = plan->count;
        for (size_t i = 0; i < plan->count; i++)
            if (spread.placed[i] < plan->stages[i].stage->replicas && spread.bytes[i] &&
                (next == plan->count || spread.bytes[i] > spread.bytes[next]))
                next = i;
        if (next < plan->count) resource_spread_place(&spread, next);
    }
    for (size_t i = 0; result == OK && i < plan->count; i++) { // more of rollout on the GPUs that are left
        const bool rollout = plan->stages[i].stage->kind == &stage_kinds[STAGE_ROLLOUT] && spread.bytes[i];
        for (int gpu = 0; rollout && gpu < gpus; gpu++)
            if (!resource_spread_load(&spread, i, gpu)) resource_spread_place(&spread, i);
    }
    for (size_t i = 0; result == OK && i < plan->count; i++) {
        struct pipeline_stage *stage = &pipeline->stages[i];
        const char *gpus_of_it = spread.devices[i].data;
        if (!spread.placed[i]) continue;
        stage->replicas = spread.placed[i];
        pipeline_set(stage, "device", arena_printf(&arena, stage->replicas > 1 ? "cuda:[%s]" : "cuda:%s", gpus_of_it));
    }
    *placed = result == OK;
    for (size_t i = 0; i < plan->count; i++) buf_release(&spread.devices[i]);
    arena_release(&arena);
    return result;
}
