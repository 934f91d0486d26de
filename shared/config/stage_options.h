// The options of each stage as plain structs, filled from the tables in stage_kinds.c, which also say what each option
// means.
#ifndef SHARED_CONFIG_STAGE_OPTIONS_H
#define SHARED_CONFIG_STAGE_OPTIONS_H

#include "shared/config/options.h"

// Of every stage: the first member of its struct.
struct common_options {
    bool stdio;
    const char *config;
    const char *device;            // NULL: cuda when there is one
    int64_t threads;               // 0: all
    const char *precision;         // "float32", "bfloat16"; NULL: the device's default
    const char *node;              // NULL: not in a run
    const char *store;             // NULL: none
    struct option_keep store_keep; // of whole groups
    const char *frames_options;    // of the run's frames stage, KEY=VALUE and a newline each; NULL: the defaults
};

enum media_outside { MEDIA_OUTSIDE_ALLOW, MEDIA_OUTSIDE_REFUSE };

// Of the stages that compute with a model: the first member of their structs.
struct stage_model_options {
    struct common_options common;
    const char *dir;        // `model`
    const char *media_root; // NULL: the current directory
    int media_outside;      // enum media_outside
};

enum source_clip { SOURCE_CLIP_WHOLE, SOURCE_CLIP_CUT };
enum source_frame_records { SOURCE_FRAME_RECORDS_FOLDER, SOURCE_FRAME_RECORDS_RELEASED };

struct source_options {
    struct common_options common;
    const char *data;
    const char *format;
    const char *model; // NULL: no tokenizer is needed
    const char *media_root;
    int media_outside;    // enum media_outside
    const char *template; // a path or "none"; NULL: the default one
    int64_t group_size, groups_per_step, max_staleness, epochs;
    int64_t limit, max_steps; // 0: all
    bool shuffle;
    int clip;          // source_clip
    int frame_records; // source_frame_records
    int64_t seed;
};

struct frames_options {
    struct common_options common;
    const char *media_root;
    int media_outside; // enum media_outside
    double fps;
    int64_t min_frames, max_frames, min_pixels, max_pixels, image_min_pixels, image_max_pixels;
    int64_t total_pixels;    // 0: no bound
    double seconds_per_grid; // NaN: measured
    int64_t workers;         // 0: as many as threads
    int64_t store_limit;     // 0: no limit
};

struct rollout_options {
    struct stage_model_options model;
    int64_t group_size;
    double temperature, top_p;
    int64_t top_k, max_new_tokens, max_prompt_tokens, seed;
};

enum refscore_span { REFSCORE_SPAN_CONTENT, REFSCORE_SPAN_RELEASED };
enum refscore_logprobs { REFSCORE_LOGPROBS_ANSWER, REFSCORE_LOGPROBS_ALL };

enum refscore_generate { REFSCORE_GENERATE_OFF, REFSCORE_GENERATE_ANSWER };

struct refscore_options {
    struct stage_model_options model;
    int span;     // refscore_span
    int logprobs; // refscore_logprobs
    int generate; // refscore_generate
    int64_t generate_tokens;
    double generate_temperature, generate_top_p;
    int64_t seed;
};

struct consistency_options {
    struct stage_model_options model;
    const char *hypothesis; // NULL: the built-in wording
    int64_t max_tokens, batch_tokens;
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
    int method;                              // method_id
    double coefficient, margin, upper_bound; // NaN: none
    int likelihood;                          // reward_likelihood
    struct option_range length_reward;       // NaN: off
    double alpha, beta;
    int beta_schedule; // reward_beta_schedule
    double beta_warmup, beta_decay, consistency_floor;
    int consistency_on; // reward_consistency_on
    int advantages;     // reward_advantages
    int64_t groups_per_step;
    int64_t steps; // 0: not given
};

enum score_scoring { SCORE_SCORING_CARAVAN, SCORE_SCORING_RELEASED };

struct score_options {
    struct common_options common;
    int scoring; // score_scoring
};

enum judge_name { JUDGE_CONCLUDES, JUDGE_LIKELIHOOD };

struct judge_options {
    struct stage_model_options model; // of `likelihood`
    int judge;                        // judge_name
};

enum optim_schedule { OPTIM_SCHEDULE_COSINE, OPTIM_SCHEDULE_CONSTANT };

enum optim_publish { OPTIM_PUBLISH_FILES, OPTIM_PUBLISH_LEND, OPTIM_PUBLISH_COPY };

enum optim_kl_on { OPTIM_KL_ALL, OPTIM_KL_ACCURATE };

enum optim_kl_parts { OPTIM_KL_WHOLE, OPTIM_KL_SEPARATE };

enum optim_loss { OPTIM_LOSS_COMPLETIONS, OPTIM_LOSS_TOKENS };

struct optim_options {
    struct stage_model_options model;
    const char *out;
    int64_t groups_per_step;
    int64_t steps; // 0: not given
    double lr;
    int schedule; // optim_schedule
    int64_t warmup;
    double warmup_ratio;
    double weight_decay, beta1, beta2, epsilon, clip_norm, kl, clip_low, clip_high;
    int kl_on, kl_parts, loss; // optim_kl_on, optim_kl_parts, optim_loss
    bool train_vision;
    int64_t ema_every; // 0: never
    double ema_decay;
    int64_t save_every;                                // 0: the last step only
    int64_t keep, keep_every;                          // 0: all; none more
    int publish;                                       // optim_publish
    const char *gradients;                             // NULL: not asked for
    const char *gradient_precision, *moment_precision; // "float32", "bfloat16"; NULL: the device's default
};

#endif
