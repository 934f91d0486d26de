// The tables: every key that a stage knows, with its default, range and one line of help. Nothing else lists keys.
#include "shared/config/keys.h"

#include <string.h>

#define WHOLE   9007199254740992.0 // 2^53: what a double still counts one by one
#define ENDLESS 1e300
#define TINY    1e-9

// What several stages share, spelled once.
#define MODEL                                                                                                          \
    { .name = "model", .type = KEY_FILE, .required = true, .help = "model folder in Hugging Face's layout" }
#define MEDIA_ROOT                                                                                                     \
    { .name = "media_root", .type = KEY_FILE, .aside = true, .help = "folder that relative media paths start from" }
#define SEED                                                                                                           \
    { .name = "seed", .type = KEY_INT, .standard = "42", .high = WHOLE, .help = "every random number is keyed by it" }
#define GROUP_SIZE                                                                                                     \
    { .name = "group_size", .type = KEY_INT, .standard = "8", .low = 1, .high = 4096, .help = "completions a prompt" }
#define GROUPS_PER_STEP                                                                                                \
    {                                                                                                                  \
        .name = "groups_per_step", .type = KEY_INT, .standard = "4", .low = 1, .high = 65536,                          \
        .help = "groups that make one optimizer step"                                                                  \
    }

static const struct key common[] = {
    {.name = "stdio", .type = KEY_BOOL, .standard = "false", .aside = true, .help = "filter: groups as JSON lines"},
    {.name = "config", .type = KEY_FILE, .aside = true, .help = "YAML map of these keys; the command line wins"},
    {.name = "device", .type = KEY_DEVICE, .help = "cpu, cuda or cuda:N (default: cuda when there is one)"},
    {.name = "threads", .type = KEY_INT, .high = 4096, .low = 1, .aside = true, .help = "threads (default: all)"},
    {.name = "precision",
     .type = KEY_CHOICE,
     .choices = "float32|bfloat16",
     .help = "of the computation (default: float32 on the CPU, bfloat16 on CUDA)"},
    {.name = "wiring", .type = KEY_FILE, .aside = true, .internal = true, .help = "its place in a run"},
    {.name = "store", .type = KEY_PATH, .aside = true, .help = "folder of the caches frames.lmdb and groups.lmdb"},
    {0},
};

static const struct key source_keys[] = {
    {.name = "data", .type = KEY_FILE, .required = true, .help = "annotations, JSON lines or one JSON list"},
    {.name = "format",
     .type = KEY_CHOICE,
     .standard = "caravan",
     .choices = "caravan|seed-bench-r1|video-r1",
     .help = "layout of the annotations"},
    MEDIA_ROOT,
    {.name = "template", .type = KEY_FILE, .choices = "none", .help = "prompt template (default: the shipped wording)"},
    GROUP_SIZE,
    GROUPS_PER_STEP,
    {.name = "max_staleness",
     .type = KEY_INT,
     .standard = "0",
     .high = 1000,
     .help = "steps a group may lag behind the policy; 0 is strictly on-policy"},
    {.name = "epochs", .type = KEY_INT, .standard = "1", .low = 1, .high = 1e6, .help = "passes over the data"},
    {.name = "limit", .type = KEY_INT, .low = 1, .high = WHOLE, .help = "use the first N samples (default: all)"},
    {.name = "shuffle", .type = KEY_BOOL, .standard = "true", .help = "another order each epoch, keyed by seed"},
    SEED,
    {0},
};

static const struct key frames_keys[] = {
    MEDIA_ROOT,
    {.name = "fps", .type = KEY_NUMBER, .standard = "2", .low = 1e-6, .high = 1000, .help = "frames a second sampled"},
    {.name = "min_frames",
     .type = KEY_INT,
     .standard = "4",
     .low = 1,
     .high = 65536,
     .at_most = "max_frames",
     .help = "a shorter clip is quarantined"},
    {.name = "max_frames", .type = KEY_INT, .standard = "16", .low = 2, .high = 65536, .help = "at most so many"},
    {.name = "min_pixels",
     .type = KEY_INT,
     .standard = "100352",
     .low = 784,
     .high = 1e9,
     .at_most = "max_pixels",
     .help = "of a video frame"},
    {.name = "max_pixels", .type = KEY_INT, .standard = "105369", .low = 784, .high = 1e9, .help = "of a video frame"},
    {.name = "image_min_pixels",
     .type = KEY_INT,
     .standard = "3136",
     .low = 784,
     .high = 1e9,
     .at_most = "image_max_pixels",
     .help = "of an image"},
    {.name = "image_max_pixels", .type = KEY_INT, .standard = "200704", .low = 784, .high = 1e9, .help = "of an image"},
    {.name = "total_pixels",
     .type = KEY_INT,
     .low = 784,
     .high = 1e12,
     .help = "of a whole clip: lowers max_pixels for long ones (default: no bound)"},
    {.name = "seconds_per_grid",
     .type = KEY_NUMBER_OR,
     .standard = "1.0",
     .low = TINY,
     .high = 1e6,
     .choices = "measured",
     .help = "seconds between two frame pairs; measured: from the sampled rate"},
    {.name = "workers",
     .type = KEY_INT,
     .low = 1,
     .high = 1024,
     .aside = true,
     .help = "decoders at once (default: threads)"},
    {.name = "store_limit",
     .type = KEY_INT,
     .low = 1,
     .high = WHOLE,
     .aside = true,
     .help = "bytes that the store's frames may take; those unused longest go first (default: no limit)"},
    {0},
};

static const struct key rollout_keys[] = {
    MODEL,
    MEDIA_ROOT,
    GROUP_SIZE,
    {.name = "temperature", .type = KEY_NUMBER, .standard = "1.0", .high = 1000, .help = "0 is greedy"},
    {.name = "top_p", .type = KEY_NUMBER, .standard = "0.95", .low = TINY, .high = 1, .help = "1 is off"},
    {.name = "top_k", .type = KEY_INT, .standard = "0", .high = 1e9, .help = "0 is off"},
    {.name = "max_new_tokens", .type = KEY_INT, .standard = "768", .low = 1, .high = 1 << 24, .help = "a completion's"},
    {.name = "max_prompt_tokens",
     .type = KEY_INT,
     .standard = "16384",
     .low = 1,
     .high = 1 << 24,
     .help = "a longer prompt is quarantined"},
    SEED,
    {0},
};

static const struct key refscore_keys[] = {
    MODEL,
    MEDIA_ROOT,
    {.name = "span",
     .type = KEY_CHOICE,
     .standard = "content",
     .choices = "content|released",
     .help = "which tokens are the answer: what stands between the tags, or the released code's rule"},
    {.name = "logprobs",
     .type = KEY_CHOICE,
     .standard = "answer",
     .choices = "answer|all",
     .help = "all: also write each token's log-probability"},
    {0},
};

static const struct key reward_keys[] = {
    {.name = "method",
     .type = KEY_CHOICE,
     .standard = "care",
     .choices = "care|grpo|nokl|densecons|kl-ema|kl-ema-ha|sepkl-ema-ha|refgen|cora",
     .help = "which rewards are added up"},
    {.name = "coefficient",
     .type = KEY_NUMBER,
     .standard = "0.5",
     .low = -ENDLESS,
     .high = ENDLESS,
     .help = "of the bonus"},
    {.name = "margin",
     .type = KEY_NUMBER_OR,
     .standard = "none",
     .low = -ENDLESS,
     .high = ENDLESS,
     .choices = "none",
     .help = "how far below the mean likelihood the bonus begins"},
    {.name = "upper_bound",
     .type = KEY_NUMBER_OR,
     .standard = "0.95",
     .high = 1,
     .choices = "none",
     .help = "likelihoods above it count as it"},
    {.name = "likelihood",
     .type = KEY_CHOICE,
     .standard = "geometric",
     .choices = "geometric|arithmetic",
     .help = "mean of the answer tokens' probabilities"},
    {.name = "length_reward",
     .type = KEY_RANGE,
     .standard = "off",
     .choices = "off",
     .help = "tokens that earn the length reward, 320..512 in the released code"},
    {0},
};

static const struct key optim_keys[] = {
    MODEL,
    MEDIA_ROOT,
    {.name = "out",
     .type = KEY_PATH,
     .required = true,
     .aside = true,
     .help = "folder of checkpoints and metrics.jsonl"},
    GROUPS_PER_STEP,
    {.name = "steps", .type = KEY_INT, .low = 1, .high = WHOLE, .help = "length of the schedule"},
    {.name = "lr", .type = KEY_NUMBER, .standard = "1e-6", .high = 1e6, .help = "highest learning rate"},
    {.name = "schedule",
     .type = KEY_CHOICE,
     .standard = "cosine",
     .choices = "cosine|constant",
     .help = "of the learning rate; cosine falls to 0 at `steps`"},
    {.name = "warmup", .type = KEY_INT, .standard = "0", .high = WHOLE, .help = "steps of linear warm-up"},
    {.name = "weight_decay", .type = KEY_NUMBER, .standard = "0.01", .high = 1e6, .help = "not on biases and norms"},
    {.name = "beta1", .type = KEY_NUMBER, .standard = "0.9", .high = 1 - TINY, .help = "AdamW's first moment"},
    {.name = "beta2", .type = KEY_NUMBER, .standard = "0.999", .high = 1 - TINY, .help = "AdamW's second moment"},
    {.name = "epsilon", .type = KEY_NUMBER, .standard = "1e-8", .high = 1, .help = "AdamW's, outside the root"},
    {.name = "clip_norm", .type = KEY_NUMBER, .standard = "5", .high = ENDLESS, .help = "of the gradient; 0 is off"},
    {.name = "kl", .type = KEY_NUMBER, .standard = "0", .high = ENDLESS, .help = "weight of the KL term; 0 is off"},
    {.name = "clip_low",
     .type = KEY_NUMBER,
     .standard = "0.2",
     .high = 1,
     .help = "ratio's lower clip, stale data only"},
    {.name = "clip_high",
     .type = KEY_NUMBER,
     .standard = "0.2",
     .high = ENDLESS,
     .help = "upper clip, stale data only"},
    {.name = "train_vision", .type = KEY_BOOL, .standard = "true", .help = "train the vision tower too"},
    {.name = "ema_every",
     .type = KEY_INT,
     .standard = "10",
     .high = WHOLE,
     .help = "steps between two updates of the reference; 0 keeps the first model"},
    {.name = "ema_decay", .type = KEY_NUMBER, .standard = "0.995", .high = 1, .help = "of the reference; 1 freezes it"},
    {.name = "save_every",
     .type = KEY_INT,
     .low = 1,
     .high = WHOLE,
     .aside = true,
     .help = "steps between two checkpoints (default: the last step only)"},
    {.name = "gradients",
     .type = KEY_PATH,
     .aside = true,
     .help = "write the last step's gradients before clipping to this safetensors file"},
    {0},
};

static const struct key_table tables[] = {
    {"source", "caravan-source", NULL, "reads a data set and writes its samples as groups", source_keys},
    {"frames", "caravan-frames", NULL, "decodes and resizes clips and images into the store", frames_keys},
    {"rollout", "caravan-rollout", NULL, "samples completions from the policy", rollout_keys},
    {"refscore", "caravan-refscore", NULL, "scores answers under the reference model", refscore_keys},
    {"reward", "caravan-reward", NULL, "computes rewards and advantages", reward_keys},
    {"optim", "caravan-optim", NULL, "trains the policy on finished groups", optim_keys},
};

static const char *const stage_names[] = {"source", "frames", "rollout", "refscore", "reward", "optim", NULL};

const struct key_table *keys_of(const char *stage) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].stage, stage)) return &tables[i];
    return NULL;
}

const struct key *keys_common(void) {
    return common;
}

const char *const *keys_stages(void) {
    return stage_names;
}
