// The options of each stage: a line an option, with its name, default, range or choices, one line of help, and what it
// needs or conflicts with. The lists make the plain structs below and, in stage_kinds.c, the tables from which they are
// filled. Nothing else lists them.
#pragma once

#include "shared/config/methods.h"
#include "shared/config/options.h"

#define MAX_INTEGER  9007199254740992.0 // 2^53: the largest range in which a double holds every integer
#define UNBOUNDED    1e300
#define MIN_POSITIVE 1e-9
#define NONE         NULL // no default: the field is then zero

// What else an option may say.
#define REQUIRED     .required = true
#define NOT_HASHED   .not_hashed = true
#define COMMAND_LINE .command_line_only = true
#define DIRECTORY    .directory = true
#define OWN          .own = true
#define FROM_SOURCE  .from_source = true
#define FROM_OPTIM   .from_optim = true
#define AS_SOURCE    .from_source = true, .same_as_source = true
// With this value, the other option must be given; with this value, the other option may not have that value.
#define NEEDS(value, name) .rule = RULE_NEEDS, .this_value = (value), .other = (name)
#define CONFLICTS(value, name, its_own)                                                                                \
    .rule = RULE_CONFLICTS, .this_value = (value), .other = (name), .other_value = (its_own)
// The other option's value may not be below this one's; not both may be given.
#define NOT_ABOVE(name)  .rule = RULE_NOT_ABOVE, .other = (name)
#define INSTEAD_OF(name) .rule = RULE_INSTEAD_OF, .other = (name)

// An option of each type. OPTION_ENTRY makes a field of it below, and in stage_kinds.c a row of a table; MODEL_ENTRY is
// for options that lie in the struct of all stages with a model, under another name.
#define OPT_STRING(field, text, ...) OPTION_ENTRY(const char *, OPTION_STRING, field, .help = (text), ##__VA_ARGS__)
#define OPT_FILE(field, text, ...)   OPTION_ENTRY(const char *, OPTION_FILE, field, .help = (text), ##__VA_ARGS__)
#define OPT_PATH(field, text, ...)   OPTION_ENTRY(const char *, OPTION_PATH, field, .help = (text), ##__VA_ARGS__)
#define OPT_DEVICE(field, text, ...) OPTION_ENTRY(const char *, OPTION_DEVICE, field, .help = (text), ##__VA_ARGS__)
#define OPT_SIZE(field, text, ...)   OPTION_ENTRY(int64_t, OPTION_SIZE, field, .help = (text), ##__VA_ARGS__)
#define OPT_BOOL(field, first, text, ...)                                                                              \
    OPTION_ENTRY(bool, OPTION_BOOL, field, .default_value = (first), .help = (text), ##__VA_ARGS__)
#define OPT_WORDS(of_field, of_option, field, first, words, text, ...)                                                 \
    OPTION_ENTRY(of_field, of_option, field, .default_value = (first), .choices = (words), .help = (text),             \
                 ##__VA_ARGS__)
#define OPT_NAME(...)   OPT_WORDS(const char *, OPTION_NAME, __VA_ARGS__)
#define OPT_CHOICE(...) OPT_WORDS(int, OPTION_CHOICE, __VA_ARGS__)
#define OPT_RANGE(...)  OPT_WORDS(struct option_range, OPTION_RANGE, __VA_ARGS__)
#define OPT_KEEP(...)   OPT_WORDS(struct option_keep, OPTION_KEEP, __VA_ARGS__)
#define OPT_BOUNDED(of_field, of_option, field, first, least, most, text, ...)                                         \
    OPTION_ENTRY(of_field, of_option, field, .default_value = (first), .low = (least), .high = (most), .help = (text), \
                 ##__VA_ARGS__)
#define OPT_INT(...)    OPT_BOUNDED(int64_t, OPTION_INT, __VA_ARGS__)
#define OPT_NUMBER(...) OPT_BOUNDED(double, OPTION_NUMBER, __VA_ARGS__)
#define OPT_NUMBER_OR(field, first, least, most, words, ...)                                                           \
    OPT_BOUNDED(double, OPTION_NUMBER, field, first, least, most, __VA_ARGS__, .choices = (words))
#define OPT_MODEL(text, ...) MODEL_ENTRY(OPTION_FILE, dir, "model", .help = (text), ##__VA_ARGS__)
#define OPT_MODEL_MEDIA                                                                                                \
    MODEL_ENTRY(OPTION_FILE, media_root, "media_root", .help = MEDIA_ROOT_HELP, DIRECTORY, FROM_SOURCE, NOT_HASHED)    \
    MODEL_ENTRY(OPTION_CHOICE, media_outside, "media_outside", .default_value = "allow", .choices = "allow|refuse",    \
                .help = MEDIA_OUTSIDE_HELP, FROM_SOURCE, NOT_HASHED)

// clang-format off
// Of several stages.
#define OPT_ADAPTER \
    MODEL_ENTRY(OPTION_INT, lora, "lora", .low = 0, .high = 4096, .default_value = "0", FROM_OPTIM, NOT_HASHED, .help = \
            "rank of the adapters (LoRA) of the language model, which alone are trained then; 0: none, all is trained") \
    MODEL_ENTRY(OPTION_NUMBER, lora_alpha, "lora_alpha", .low = 0, .high = UNBOUNDED, .default_value = "0", FROM_OPTIM, NOT_HASHED, .help = \
            "an adapter's product counts lora_alpha / lora times; 0: once") \
    MODEL_ENTRY(OPTION_INT, lora_seed, "lora_seed", .low = 0, .high = MAX_INTEGER, .default_value = "42", FROM_OPTIM, NOT_HASHED, .help = \
            "seed of the random numbers with which adapters begin") \
    MODEL_ENTRY(OPTION_FILE, adapter, "adapter", FROM_OPTIM, NOT_HASHED, .help = \
            "directory of PEFT's with adapters to begin with, which has their rank and alpha")

#define MEDIA_ROOT_HELP    "directory that relative media paths start from"
#define MEDIA_OUTSIDE_HELP "refuse: a sample whose media lie outside media_root, all links followed, is quarantined"
#define OPT_MEDIA \
    OPT_FILE(media_root, MEDIA_ROOT_HELP, DIRECTORY, FROM_SOURCE, NOT_HASHED) \
    OPT_CHOICE(media_outside, "allow", "allow|refuse", MEDIA_OUTSIDE_HELP, FROM_SOURCE, NOT_HASHED)

#define OPT_SEED \
    OPT_INT(seed, "42", 0, MAX_INTEGER, "seed of all random numbers", FROM_SOURCE)

#define OPT_GROUP_SIZE \
    OPT_INT(group_size, "8", 1, 4096, "completions per prompt", AS_SOURCE)

#define OPT_GROUPS_PER_STEP \
    OPT_INT(groups_per_step, "4", 1, 65536, "groups in one optimizer step", AS_SOURCE)

#define COMMON_OPTIONS \
    OPT_BOOL(stdio, "false", "run as a filter of groups as JSON lines", COMMAND_LINE, NOT_HASHED) \
    OPT_FILE(config, "YAML mapping of these keys; the command line overrides it", COMMAND_LINE, NOT_HASHED) \
    OPT_DEVICE(device, \
            "cpu, cuda or cuda:N (default: cuda if available); in a pipeline also cuda:[0-3]: the first replica " \
            "on a machine takes cuda:0, the next one cuda:1, the fifth one cuda:0 again") \
    OPT_INT(threads, NONE, 1, 4096, "threads (default: all)", NOT_HASHED) \
    OPT_NAME(precision, NONE, "float32|bfloat16", \
            "type of the computation (default: float32 on the CPU, bfloat16 on CUDA)") \
    OPT_PATH(store, "directory of the caches frames.lmdb and groups.lmdb", .below_run = "store", NOT_HASHED) \
    OPT_KEEP(store_keep, "all", "all", \
            "whole groups that stay in the store: all, those of the newest N steps, or the newest ones up to a " \
            "size such as 20GiB. In a run, a key of the last stage", NOT_HASHED)

// What only the supervisor sets.
#define INTERNAL_OPTIONS \
    OPT_FILE(node, "its node configuration in a run")

// What only `caravan replay` sets, in stages that compute with optim's weights.
#define REPLAY_OPTIONS \
    OPT_FILE(frames_store, "store whose frames are read, and to which nothing is written", NOT_HASHED) \
    OPT_FILE(weights, "file with the weights, instead of those of the model directory", NOT_HASHED) \
    OPT_STRING(weights_prefix, "what stands before the names of the tensors in that file", NOT_HASHED) \
    OPT_INT(weights_version, NONE, 1, MAX_INTEGER, "version of these weights", NOT_HASHED) \
    OPT_STRING(files_hash, "hash that the weights in the model directory's files must have", NOT_HASHED)

#define SOURCE_OPTIONS \
    OPT_FILE(data, "annotations: JSON lines or one JSON array", REQUIRED) \
    OPT_NAME(format, "caravan", "caravan|seed-bench-r1|video-r1|sft", \
            "layout of the annotations", NEEDS("sft", "model")) \
    OPT_FILE(model, "of format sft: model directory whose tokenizer makes the tokens that are learned") \
    OPT_MEDIA \
    OPT_FILE(template, "prompt template (default: the built-in wording)", .choices = "none") \
    OPT_GROUP_SIZE \
    OPT_GROUPS_PER_STEP \
    OPT_INT(max_staleness, "0", 0, 1000, "steps that a group may lag behind the policy; 0 is strictly on-policy") \
    OPT_INT(epochs, "1", 1, 1e6, "passes over the data") \
    OPT_INT(limit, NONE, 1, MAX_INTEGER, "use the first N samples (default: all)") \
    OPT_INT(max_steps, NONE, 1, MAX_INTEGER, \
            "end the run after step N, even if data are left; the next sample replaces a quarantined one. Without" \
            " optim: after N * groups_per_step samples (default: all data)") \
    OPT_CHOICE(clip, "whole", "whole|cut", \
            "cut: frames only from the part of a clip between the record's `start` and `end`") \
    OPT_CHOICE(frame_records, "folder", "folder|released", \
            "records of data_type frame: a directory of pictures, or, as in the released evaluation, no picture") \
    OPT_BOOL(shuffle, "true", "new order in each epoch, keyed by seed") \
    OPT_SEED

#define FRAMES_OPTIONS \
    OPT_MEDIA \
    OPT_NUMBER(fps, "2", 1e-6, 1000, "sampled frames per second") \
    OPT_INT(min_frames, "4", 1, 65536, \
            "minimum frames sampled from a clip; one with fewer gives an even number of those it has", \
            NOT_ABOVE("max_frames")) \
    OPT_INT(max_frames, "16", 2, 65536, "maximum frames sampled from a clip") \
    OPT_INT(min_pixels, "100352", 784, 1e9, "minimum pixels of a video frame", NOT_ABOVE("max_pixels")) \
    OPT_INT(max_pixels, "105369", 784, 1e9, "maximum pixels of a video frame") \
    OPT_INT(image_min_pixels, "3136", 784, 1e9, "minimum pixels of an image", NOT_ABOVE("image_max_pixels")) \
    OPT_INT(image_max_pixels, "200704", 784, 1e9, "maximum pixels of an image") \
    OPT_INT(total_pixels, NONE, 784, 1e12, \
            "maximum pixels of a whole clip; lowers max_pixels for long clips (default: no limit)") \
    OPT_NUMBER_OR(seconds_per_grid, "1.0", MIN_POSITIVE, 1e6, "measured", \
            "seconds between two frame pairs; measured: from the sampled rate") \
    OPT_INT(workers, NONE, 1, 1024, "clips decoded at the same time (default: threads)", NOT_HASHED) \
    OPT_SIZE(store_limit, \
            "maximum size of the store's frames, in bytes or such as 20GiB; the least recently used are evicted " \
            "(default: no limit)", NOT_HASHED)

#define ROLLOUT_OPTIONS \
    OPT_MODEL("model directory in Hugging Face's layout", REQUIRED) \
    OPT_MODEL_MEDIA \
    OPT_ADAPTER \
    OPT_GROUP_SIZE \
    OPT_NUMBER(temperature, "1.0", 0, 1000, "sampling temperature; 0 is greedy") \
    OPT_NUMBER(top_p, "0.95", MIN_POSITIVE, 1, "probability mass that nucleus sampling keeps; 1 is off") \
    OPT_INT(top_k, "0", 0, 1e9, "number of most likely tokens that sampling keeps; 0 is off") \
    OPT_INT(max_new_tokens, "768", 1, 1 << 24, "maximum tokens of a completion") \
    OPT_INT(max_prompt_tokens, "16384", 1, 1 << 24, "maximum tokens of a prompt; a longer one is quarantined") \
    OPT_SEED

#define REFSCORE_OPTIONS \
    OPT_MODEL("model directory in Hugging Face's layout", REQUIRED) \
    OPT_MODEL_MEDIA \
    OPT_ADAPTER \
    OPT_CHOICE(span, "content", "content|released", \
            "which tokens are the answer: those between the tags, or the released code's rule") \
    OPT_CHOICE(logprobs, "answer", "answer|all", "all: also write the log-probability of each token") \
    OPT_CHOICE(generate, "off", "off|answer", \
            "answer: also write the answer that the reference itself gives after each completion's last <answer>") \
    OPT_INT(generate_tokens, "32", 1, 65536, "maximum tokens of such an answer, its closing tag included") \
    OPT_NUMBER(generate_temperature, "1", 0, 1000, "sampling temperature of such an answer; 0 is greedy") \
    OPT_NUMBER(generate_top_p, "0.95", MIN_POSITIVE, 1, \
            "probability mass that sampling such an answer keeps; 1 is off") \
    OPT_SEED

#define CONSISTENCY_OPTIONS \
    OPT_MODEL( \
            "directory of a ModernBERT classifier in Hugging Face's layout; never the file's `model`", \
            REQUIRED, OWN) \
    OPT_FILE(hypothesis, \
            "UTF-8 text of the hypothesis with {answer} and {option} (default: The final answer is {answer})", \
            NOT_HASHED) \
    OPT_INT(max_tokens, "8192", 1, 1 << 20, \
            "maximum tokens of a pair; the first tokens of a longer one's thinking are left out") \
    OPT_INT(batch_tokens, "8192", 1, 1 << 24, \
            "tokens of the pairs that are scored at the same time, of one group at least", NOT_HASHED)

#define REWARD_OPTIONS \
    OPT_CHOICE(method, "care", METHOD_NAMES, \
            "the training method; in a pipeline it also sets keys of refscore and optim") \
    OPT_NUMBER(coefficient, "0.5", -UNBOUNDED, UNBOUNDED, "factor of the bonus") \
    OPT_NUMBER_OR(margin, "none", -UNBOUNDED, UNBOUNDED, "none", \
            "how far below the mean likelihood the bonus begins") \
    OPT_NUMBER_OR(upper_bound, "0.95", MIN_POSITIVE, 1, "none", "likelihoods above this bound are lowered to it") \
    OPT_CHOICE(likelihood, "geometric", "geometric|arithmetic", "mean of the answer tokens' probabilities") \
    OPT_RANGE(length_reward, "off", "off", \
            "range of tokens that earns the length reward; 320..512 in the released code") \
    OPT_NUMBER(alpha, "1", -UNBOUNDED, UNBOUNDED, "cora: weight of the task's normalised rewards") \
    OPT_NUMBER(beta, "0.5", -UNBOUNDED, UNBOUNDED, "cora: weight of the normalised consistency") \
    OPT_CHOICE(beta_schedule, "constant", "constant|warmup|decay|warmup-decay", \
            "cora: beta rises from 0 in the first steps, falls to 0 in the last ones, or both") \
    OPT_NUMBER(beta_warmup, "0.1", 0, 1, "cora: share of the steps in which beta rises") \
    OPT_NUMBER(beta_decay, "0.3", 0, 1, "cora: share of the steps in which beta falls") \
    OPT_NUMBER(consistency_floor, "0.01", 0, UNBOUNDED, \
            "cora: added to the deviation of the consistency; the 1e-4 of the other rewards at least") \
    OPT_CHOICE(consistency_on, "all", "all|correct", \
            "cora: correct: consistency counts among the accurate completions only") \
    OPT_CHOICE(advantages, "split", "split|summed", \
            "cora: summed: the rewards are added first and normalised together") \
    OPT_GROUPS_PER_STEP \
    OPT_INT(steps, NONE, 1, MAX_INTEGER, \
            "steps of beta_schedule (default: optim's `steps`, else those of the run; constant outside a run)")

#define SCORE_OPTIONS \
    OPT_CHOICE(scoring, "caravan", "caravan|released", \
            "released: OCR and free-form answers score 0, as in the released evaluation")

#define JUDGE_OPTIONS \
    OPT_CHOICE(judge, "concludes", "concludes|likelihood", \
            "which option must be the answer's: the last one that the thinking names, or the one that a model " \
            "finds most likely after it", NEEDS("likelihood", "model")) \
    OPT_MODEL("model directory in Hugging Face's layout, for likelihood")

#define OPTIM_OPTIONS \
    OPT_MODEL("model directory in Hugging Face's layout", REQUIRED) \
    OPT_MODEL_MEDIA \
    OPT_ADAPTER \
    OPT_PATH(out, \
            "directory of checkpoints, metrics.jsonl and TensorBoard's event files", \
            REQUIRED, .below_run = "checkpoints", NOT_HASHED) \
    OPT_GROUPS_PER_STEP \
    OPT_INT(steps, NONE, 1, MAX_INTEGER, "steps of the learning rate schedule") \
    OPT_NUMBER(lr, "1e-6", 0, 1e6, "peak learning rate") \
    OPT_CHOICE(schedule, "cosine", "cosine|constant", "learning rate schedule; cosine falls to 0 at `steps`") \
    OPT_INT(warmup, "0", 0, MAX_INTEGER, "steps of linear warm-up") \
    OPT_NUMBER(warmup_ratio, "0", 0, 1, \
            "the same as a share of `steps`, rounded up to whole steps; instead of warmup", INSTEAD_OF("warmup")) \
    OPT_NUMBER(weight_decay, "0.01", 0, 1e6, "AdamW's weight decay; not on biases and norms") \
    OPT_NUMBER(beta1, "0.9", 0, 1 - MIN_POSITIVE, "AdamW's decay of the first moment") \
    OPT_NUMBER(beta2, "0.999", 0, 1 - MIN_POSITIVE, "AdamW's decay of the second moment") \
    OPT_NUMBER(epsilon, "1e-8", 0, 1, "AdamW's epsilon, outside the root") \
    OPT_NUMBER(clip_norm, "5", 0, UNBOUNDED, "maximum norm of the gradient; 0 is off") \
    OPT_NUMBER(kl, "0", 0, UNBOUNDED, "weight of the KL term; 0 is off") \
    OPT_CHOICE(kl_on, "all", "all|accurate", \
            "completions that have a KL term; accurate: not below the group's mean accuracy, and above 0.1") \
    OPT_CHOICE(kl_parts, "whole", "whole|separate", \
            "a completion's KL term: its mean over all tokens, or its mean over the tokens before the answer and " \
            "its mean over the answer's", CONFLICTS("separate", "loss", "tokens")) \
    OPT_CHOICE(loss, "completions", "completions|tokens", \
            "mean over completions of the mean over their tokens, or mean over all tokens of the step") \
    OPT_NUMBER(clip_low, "0.2", 0, 1, "lower clip of the ratio, on stale data only") \
    OPT_NUMBER(clip_high, "0.2", 0, UNBOUNDED, "upper clip of the ratio, on stale data only") \
    OPT_BOOL(train_vision, "true", "train the vision tower too; not with adapters, which are trained alone") \
    OPT_INT(ema_every, "10", 0, MAX_INTEGER, "steps between two updates of the reference; 0 keeps the first model") \
    OPT_NUMBER(ema_decay, "0.995", 0, 1, "EMA decay of the reference; 1 freezes it") \
    OPT_INT(save_every, NONE, 1, MAX_INTEGER, \
            "steps between two checkpoints (default: the last step only)", NOT_HASHED) \
    OPT_INT(keep, "0", 0, MAX_INTEGER, \
            "how many of the newest checkpoints stay; 0 is all. One that a symbolic link beside it names stays, " \
            "too", NOT_HASHED) \
    OPT_INT(keep_every, "0", 0, MAX_INTEGER, \
            "with keep: checkpoints whose step is a multiple of this stay, too; 0 is none", NOT_HASHED) \
    OPT_INT(ranks, "1", 1, 64, \
            "processes that train the model together, on each of optim's machines. Their number changes no bit of " \
            "it. They need `device`: cpu, or a GPU for each such as cuda:[0-3]", NOT_HASHED) \
    OPT_NUMBER(rank_timeout, "600", 1, 1e6, \
            "seconds after which a rank that does nothing while others wait for it is given up, and all start again", \
            NOT_HASHED) \
    OPT_CHOICE(publish, "files", "files|lend|copy", \
            "how rollout and refscore get weights: files; lend: they use those in optim's memory on the GPU; " \
            "copy: they copy them there. caravan run chooses lend or copy if each of them is on a device of optim", \
            NOT_HASHED) \
    OPT_PATH(gradients, "write the last step's gradients before clipping to this safetensors file", NOT_HASHED) \
    OPT_INT(parts, NONE, 1, 64, \
            "a group is trained in so many parts, one after another: runs of its completions, each with the prompt. " \
            "That takes less memory and more time; the gradient is the same but for rounding (default: 1)") \
    OPT_NAME(gradient_precision, NONE, "float32|bfloat16", \
            "type of the matrices' gradients (default: float32 on the CPU, bfloat16 on CUDA)") \
    OPT_NAME(sum_precision, NONE, "float32|bfloat16", \
            "type of the sums of these gradients over the groups of a step (default: gradient_precision)") \
    OPT_NAME(moment_precision, NONE, "float32|bfloat16", \
            "type of AdamW's moments of matrices (default: float32 on the CPU, bfloat16 on CUDA)")
// clang-format on

// ---- the structs ----

#define OPTION_ENTRY(of_field, of_option, field, ...) of_field field;
#define MODEL_ENTRY(...)

// Of every stage: the first member of its struct.
struct common_options {
    COMMON_OPTIONS
    INTERNAL_OPTIONS
};

enum media_outside { MEDIA_OUTSIDE_ALLOW, MEDIA_OUTSIDE_REFUSE };

struct frames_options {
    struct common_options common;
    FRAMES_OPTIONS
};

// Of the stages that compute with a model: the first member of their structs.
struct stage_model_options {
    struct common_options common;
    const char *dir; // `model`
    int64_t lora, lora_seed;
    double lora_alpha;
    const char *adapter;
    OPT_MEDIA
    struct frames_options frames; // of the run's frames stage, without those of every stage: options `frames.NAME`
    REPLAY_OPTIONS
};

enum source_clip { SOURCE_CLIP_WHOLE, SOURCE_CLIP_CUT };
enum source_frame_records { SOURCE_FRAME_RECORDS_FOLDER, SOURCE_FRAME_RECORDS_RELEASED };

struct source_options {
    struct common_options common;
    SOURCE_OPTIONS
};

struct rollout_options {
    struct stage_model_options model;
    ROLLOUT_OPTIONS
};

enum refscore_span { REFSCORE_SPAN_CONTENT, REFSCORE_SPAN_RELEASED };
enum refscore_logprobs { REFSCORE_LOGPROBS_ANSWER, REFSCORE_LOGPROBS_ALL };
enum refscore_generate { REFSCORE_GENERATE_OFF, REFSCORE_GENERATE_ANSWER };

struct refscore_options {
    struct stage_model_options model;
    REFSCORE_OPTIONS
};

struct consistency_options {
    struct stage_model_options model;
    CONSISTENCY_OPTIONS
};

enum reward_likelihood { REWARD_LIKELIHOOD_GEOMETRIC, REWARD_LIKELIHOOD_ARITHMETIC };
enum reward_beta_schedule {
    REWARD_BETA_SCHEDULE_CONSTANT,
    REWARD_BETA_SCHEDULE_WARMUP,
    REWARD_BETA_SCHEDULE_DECAY,
    REWARD_BETA_SCHEDULE_WARMUP_DECAY,
};
enum reward_consistency_on { REWARD_CONSISTENCY_ON_ALL, REWARD_CONSISTENCY_ON_CORRECT };
enum reward_advantages { REWARD_ADVANTAGES_SPLIT, REWARD_ADVANTAGES_SUMMED };

struct reward_options {
    struct common_options common;
    REWARD_OPTIONS
};

enum score_scoring { SCORE_SCORING_CARAVAN, SCORE_SCORING_RELEASED };

struct score_options {
    struct common_options common;
    SCORE_OPTIONS
};

enum judge_name { JUDGE_CONCLUDES, JUDGE_LIKELIHOOD };

struct judge_options {
    struct stage_model_options model;
    JUDGE_OPTIONS
};

enum optim_schedule { OPTIM_SCHEDULE_COSINE, OPTIM_SCHEDULE_CONSTANT };
enum optim_publish { OPTIM_PUBLISH_FILES, OPTIM_PUBLISH_LEND, OPTIM_PUBLISH_COPY };
enum optim_kl_on { OPTIM_KL_ALL, OPTIM_KL_ACCURATE };
enum optim_kl_parts { OPTIM_KL_WHOLE, OPTIM_KL_SEPARATE };
enum optim_loss { OPTIM_LOSS_COMPLETIONS, OPTIM_LOSS_TOKENS };

struct optim_options {
    struct stage_model_options model;
    OPTIM_OPTIONS
};
