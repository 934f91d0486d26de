// The tables: every key that a stage knows, with its default, range and one line of help. Nothing else lists keys.
#include "shared/config/options.h"

#include <string.h>

#define WHOLE   9007199254740992.0 // 2^53: what a double still counts one by one
#define ENDLESS 1e300
#define TINY    1e-9

// What several stages share, spelled once.
#define MODEL                                                                                                          \
    { .name = "model", .type = OPTION_FILE, .required = true, .help = "model folder in Hugging Face's layout" }
#define MEDIA_ROOT                                                                                                     \
    {                                                                                                                  \
        .name = "media_root", .type = OPTION_FILE, .not_hashed = true,                                                 \
        .help = "folder that relative media paths start from"                                                          \
    }
#define SEED                                                                                                           \
    {                                                                                                                  \
        .name = "seed", .type = OPTION_INT, .default_value = "42", .high = WHOLE,                                      \
        .help = "every random number is keyed by it"                                                                   \
    }
#define GROUP_SIZE                                                                                                     \
    {                                                                                                                  \
        .name = "group_size", .type = OPTION_INT, .default_value = "8", .low = 1, .high = 4096,                        \
        .help = "completions a prompt"                                                                                 \
    }
#define GROUPS_PER_STEP                                                                                                \
    {                                                                                                                  \
        .name = "groups_per_step", .type = OPTION_INT, .default_value = "4", .low = 1, .high = 65536,                  \
        .help = "groups that make one optimizer step"                                                                  \
    }

static const struct option common[] = {
    {.name = "stdio",
     .type = OPTION_BOOL,
     .default_value = "false",
     .not_hashed = true,
     .help = "filter: groups as JSON lines"},
    {.name = "config",
     .type = OPTION_FILE,
     .not_hashed = true,
     .help = "YAML map of these keys; the command line wins"},
    {.name = "device", .type = OPTION_DEVICE, .help = "cpu, cuda or cuda:N (default: cuda when there is one)"},
    {.name = "threads",
     .type = OPTION_INT,
     .high = 4096,
     .low = 1,
     .not_hashed = true,
     .help = "threads (default: all)"},
    {.name = "precision",
     .type = OPTION_CHOICE,
     .choices = "float32|bfloat16",
     .help = "of the computation (default: float32 on the CPU, bfloat16 on CUDA)"},
    {.name = "wiring", .type = OPTION_FILE, .not_hashed = true, .hidden = true, .help = "its place in a run"},
    {.name = "store",
     .type = OPTION_PATH,
     .not_hashed = true,
     .help = "folder of the caches frames.lmdb and groups.lmdb"},
    {0},
};

static const struct option source_keys[] = {
    {.name = "data", .type = OPTION_FILE, .required = true, .help = "annotations, JSON lines or one JSON list"},
    {.name = "format",
     .type = OPTION_CHOICE,
     .default_value = "caravan",
     .choices = "caravan|seed-bench-r1|video-r1",
     .help = "layout of the annotations"},
    MEDIA_ROOT,
    {.name = "template",
     .type = OPTION_FILE,
     .choices = "none",
     .help = "prompt template (default: the shipped wording)"},
    GROUP_SIZE,
    GROUPS_PER_STEP,
    {.name = "max_staleness",
     .type = OPTION_INT,
     .default_value = "0",
     .high = 1000,
     .help = "steps a group may lag behind the policy; 0 is strictly on-policy"},
    {.name = "epochs", .type = OPTION_INT, .default_value = "1", .low = 1, .high = 1e6, .help = "passes over the data"},
    {.name = "limit", .type = OPTION_INT, .low = 1, .high = WHOLE, .help = "use the first N samples (default: all)"},
    {.name = "shuffle",
     .type = OPTION_BOOL,
     .default_value = "true",
     .help = "another order each epoch, keyed by seed"},
    SEED,
    {0},
};

static const struct option frames_keys[] = {
    MEDIA_ROOT,
    {.name = "fps",
     .type = OPTION_NUMBER,
     .default_value = "2",
     .low = 1e-6,
     .high = 1000,
     .help = "frames a second sampled"},
    {.name = "min_frames",
     .type = OPTION_INT,
     .default_value = "4",
     .low = 1,
     .high = 65536,
     .not_above = "max_frames",
     .help = "a shorter clip is quarantined"},
    {.name = "max_frames",
     .type = OPTION_INT,
     .default_value = "16",
     .low = 2,
     .high = 65536,
     .help = "at most so many"},
    {.name = "min_pixels",
     .type = OPTION_INT,
     .default_value = "100352",
     .low = 784,
     .high = 1e9,
     .not_above = "max_pixels",
     .help = "of a video frame"},
    {.name = "max_pixels",
     .type = OPTION_INT,
     .default_value = "105369",
     .low = 784,
     .high = 1e9,
     .help = "of a video frame"},
    {.name = "image_min_pixels",
     .type = OPTION_INT,
     .default_value = "3136",
     .low = 784,
     .high = 1e9,
     .not_above = "image_max_pixels",
     .help = "of an image"},
    {.name = "image_max_pixels",
     .type = OPTION_INT,
     .default_value = "200704",
     .low = 784,
     .high = 1e9,
     .help = "of an image"},
    {.name = "total_pixels",
     .type = OPTION_INT,
     .low = 784,
     .high = 1e12,
     .help = "of a whole clip: lowers max_pixels for long ones (default: no bound)"},
    {.name = "seconds_per_grid",
     .type = OPTION_NUMBER_OR,
     .default_value = "1.0",
     .low = TINY,
     .high = 1e6,
     .choices = "measured",
     .help = "seconds between two frame pairs; measured: from the sampled rate"},
    {.name = "workers",
     .type = OPTION_INT,
     .low = 1,
     .high = 1024,
     .not_hashed = true,
     .help = "decoders at once (default: threads)"},
    {.name = "store_limit",
     .type = OPTION_INT,
     .low = 1,
     .high = WHOLE,
     .not_hashed = true,
     .help = "bytes that the store's frames may take; those unused longest go first (default: no limit)"},
    {0},
};

static const struct option rollout_keys[] = {
    MODEL,
    MEDIA_ROOT,
    GROUP_SIZE,
    {.name = "temperature", .type = OPTION_NUMBER, .default_value = "1.0", .high = 1000, .help = "0 is greedy"},
    {.name = "top_p", .type = OPTION_NUMBER, .default_value = "0.95", .low = TINY, .high = 1, .help = "1 is off"},
    {.name = "top_k", .type = OPTION_INT, .default_value = "0", .high = 1e9, .help = "0 is off"},
    {.name = "max_new_tokens",
     .type = OPTION_INT,
     .default_value = "768",
     .low = 1,
     .high = 1 << 24,
     .help = "a completion's"},
    {.name = "max_prompt_tokens",
     .type = OPTION_INT,
     .default_value = "16384",
     .low = 1,
     .high = 1 << 24,
     .help = "a longer prompt is quarantined"},
    SEED,
    {0},
};

static const struct option refscore_keys[] = {
    MODEL,
    MEDIA_ROOT,
    {.name = "span",
     .type = OPTION_CHOICE,
     .default_value = "content",
     .choices = "content|released",
     .help = "which tokens are the answer: what stands between the tags, or the released code's rule"},
    {.name = "logprobs",
     .type = OPTION_CHOICE,
     .default_value = "answer",
     .choices = "answer|all",
     .help = "all: also write each token's log-probability"},
    {0},
};

static const struct option reward_keys[] = {
    {.name = "method",
     .type = OPTION_CHOICE,
     .default_value = "care",
     .choices = "care|grpo|nokl|densecons|kl-ema|kl-ema-ha|sepkl-ema-ha|refgen|cora",
     .help = "which rewards are added up"},
    {.name = "coefficient",
     .type = OPTION_NUMBER,
     .default_value = "0.5",
     .low = -ENDLESS,
     .high = ENDLESS,
     .help = "of the bonus"},
    {.name = "margin",
     .type = OPTION_NUMBER_OR,
     .default_value = "none",
     .low = -ENDLESS,
     .high = ENDLESS,
     .choices = "none",
     .help = "how far below the mean likelihood the bonus begins"},
    {.name = "upper_bound",
     .type = OPTION_NUMBER_OR,
     .default_value = "0.95",
     .high = 1,
     .choices = "none",
     .help = "likelihoods above it count as it"},
    {.name = "likelihood",
     .type = OPTION_CHOICE,
     .default_value = "geometric",
     .choices = "geometric|arithmetic",
     .help = "mean of the answer tokens' probabilities"},
    {.name = "length_reward",
     .type = OPTION_RANGE,
     .default_value = "off",
     .choices = "off",
     .help = "tokens that earn the length reward, 320..512 in the released code"},
    {0},
};

static const struct option optim_keys[] = {
    MODEL,
    MEDIA_ROOT,
    {.name = "out",
     .type = OPTION_PATH,
     .required = true,
     .not_hashed = true,
     .help = "folder of checkpoints and metrics.jsonl"},
    GROUPS_PER_STEP,
    {.name = "steps", .type = OPTION_INT, .low = 1, .high = WHOLE, .help = "length of the schedule"},
    {.name = "lr", .type = OPTION_NUMBER, .default_value = "1e-6", .high = 1e6, .help = "highest learning rate"},
    {.name = "schedule",
     .type = OPTION_CHOICE,
     .default_value = "cosine",
     .choices = "cosine|constant",
     .help = "of the learning rate; cosine falls to 0 at `steps`"},
    {.name = "warmup", .type = OPTION_INT, .default_value = "0", .high = WHOLE, .help = "steps of linear warm-up"},
    {.name = "weight_decay",
     .type = OPTION_NUMBER,
     .default_value = "0.01",
     .high = 1e6,
     .help = "not on biases and norms"},
    {.name = "beta1", .type = OPTION_NUMBER, .default_value = "0.9", .high = 1 - TINY, .help = "AdamW's first moment"},
    {.name = "beta2",
     .type = OPTION_NUMBER,
     .default_value = "0.999",
     .high = 1 - TINY,
     .help = "AdamW's second moment"},
    {.name = "epsilon", .type = OPTION_NUMBER, .default_value = "1e-8", .high = 1, .help = "AdamW's, outside the root"},
    {.name = "clip_norm",
     .type = OPTION_NUMBER,
     .default_value = "5",
     .high = ENDLESS,
     .help = "of the gradient; 0 is off"},
    {.name = "kl",
     .type = OPTION_NUMBER,
     .default_value = "0",
     .high = ENDLESS,
     .help = "weight of the KL term; 0 is off"},
    {.name = "clip_low",
     .type = OPTION_NUMBER,
     .default_value = "0.2",
     .high = 1,
     .help = "ratio's lower clip, stale data only"},
    {.name = "clip_high",
     .type = OPTION_NUMBER,
     .default_value = "0.2",
     .high = ENDLESS,
     .help = "upper clip, stale data only"},
    {.name = "train_vision", .type = OPTION_BOOL, .default_value = "true", .help = "train the vision tower too"},
    {.name = "ema_every",
     .type = OPTION_INT,
     .default_value = "10",
     .high = WHOLE,
     .help = "steps between two updates of the reference; 0 keeps the first model"},
    {.name = "ema_decay",
     .type = OPTION_NUMBER,
     .default_value = "0.995",
     .high = 1,
     .help = "of the reference; 1 freezes it"},
    {.name = "save_every",
     .type = OPTION_INT,
     .low = 1,
     .high = WHOLE,
     .not_hashed = true,
     .help = "steps between two checkpoints (default: the last step only)"},
    {.name = "gradients",
     .type = OPTION_PATH,
     .not_hashed = true,
     .help = "write the last step's gradients before clipping to this safetensors file"},
    {0},
};

static const struct option_table tables[] = {
    {"source", "caravan-source", NULL, "reads a data set and writes its samples as groups", source_keys},
    {"frames", "caravan-frames", NULL, "decodes and resizes clips and images into the store", frames_keys},
    {"rollout", "caravan-rollout", NULL, "samples completions from the policy", rollout_keys},
    {"refscore", "caravan-refscore", NULL, "scores answers under the reference model", refscore_keys},
    {"reward", "caravan-reward", NULL, "computes rewards and advantages", reward_keys},
    {"optim", "caravan-optim", NULL, "trains the policy on finished groups", optim_keys},
};

static const char *const flow_names[] = {"source", "frames", "rollout", "refscore", "reward", "optim", NULL};

const struct option_table *options_of(const char *stage) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].stage, stage)) return &tables[i];
    return NULL;
}

const struct option *options_common(void) {
    return common;
}

const char *const *stage_names(void) {
    return flow_names;
}
