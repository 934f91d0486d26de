#include "shared/store/group_summary.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

#include "shared/reward/accuracy.h"

static_assert(sizeof(struct group_summary) == 128, "a summary is a format on disk");

static const char *const group_state_names[GROUP_STATES] = {"issued",   "decoded", "sampled", "referenced",
                                                            "rewarded", "scored",  "trained", "quarantined"};

enum group_state group_state_of(const struct group *group) {
    if (group->quarantine.present) return GROUP_QUARANTINED;
    if (group->trained.present) return GROUP_TRAINED;
    if (group->scores.present) return GROUP_SCORED;
    if (group->advantages.data) return GROUP_REWARDED;
    if (group->reference.present) return GROUP_REFERENCED;
    if (group->completions) return GROUP_SAMPLED;
    return group->media ? GROUP_DECODED : GROUP_ISSUED;
}

const char *group_state_name(enum group_state state) {
    return group_state_names[state];
}

uint64_t group_summary_sample(const struct group *group) {
    const struct string name = group->sample_id.data ? group->sample_id : group->id;
    return XXH3_64bits(name.data, name.size);
}

// A mean of what is a number.
struct summary_mean {
    double sum;
    size_t count;
};

static void group_summary_add(struct summary_mean *mean, double value) {
    if (!isfinite(value)) return;
    mean->sum += value;
    mean->count++;
}

static float group_summary_mean(struct summary_mean mean) {
    return mean.count ? (float)(mean.sum / (double)mean.count) : NAN;
}

static float group_summary_mean_of(const struct double_array *values) {
    struct summary_mean mean = {0};
    for (size_t i = 0; i < values->count; i++) group_summary_add(&mean, values->data[i]);
    return group_summary_mean(mean);
}

// Returns the value of completion i, NaN if it has none.
static double group_summary_at(const struct double_array *values, size_t i) {
    return i < values->count ? values->data[i] : NAN;
}

static const struct double_array *group_summary_accuracy(const struct group *group) {
    return group->scores.present ? &group->scores.accuracy : &group->rewards.accuracy;
}

bool group_completion_marks(const struct group *group, size_t i, unsigned *marks) {
    const struct rewards *rewards = &group->rewards;
    const struct consistency *consistency = &group->consistency;
    const struct double_array *format = group->scores.present ? &group->scores.formatted : &rewards->format;
    const double accuracy = group_summary_at(group_summary_accuracy(group), i),
                 verdict = group_summary_at(&consistency->verdict, i),
                 probability = group_summary_at(&consistency->probability, i);
    const bool formed = format->count ? group_summary_at(format, i) > 0 : format_matches(group->completions[i].text),
               contradicts = isnan(verdict) ? probability < 0.5 : verdict == 0;
    *marks = (accuracy == 1 ? MARK_RIGHT : 0) | (formed ? MARK_WELL_FORMED : 0) |
             (group_summary_at(&rewards->bonus, i) > 0 ? MARK_BONUS : 0) | (contradicts ? MARK_CONTRADICTS : 0);
    return !isnan(accuracy);
}

void group_summary_make(const struct group *group, struct group_summary *out) {
    const struct rewards *rewards = &group->rewards;
    const struct consistency *consistency = &group->consistency;
    const struct reference *reference = &group->reference;
    const struct double_array *accuracy = group_summary_accuracy(group),
                              *format = group->scores.present ? &group->scores.formatted : &rewards->format;
    const size_t count = group->completion_count;
    struct summary_mean length = {0}, surprise = {0}, likelihood = {0}, kl = {0};
    double lowest = NAN;
    enum problem_type type;
    *out = (struct group_summary){
        .issued = NAN,
        .settled = NAN,
        .sample = group_summary_sample(group),
        .seq = group->requires.present ? group->requires.order : -1,
        .step = group->trained.present ? (int32_t)group->trained.step : -1,
        .completions = (uint16_t)(count < UINT16_MAX ? count : UINT16_MAX),
        .version = SUMMARY_VERSION,
        .state = (uint8_t)group_state_of(group),
        .reward = group_summary_mean_of(&rewards->total),
        .accuracy = group_summary_mean_of(accuracy),
        .format = group_summary_mean_of(format),
        .bonus = group_summary_mean_of(&rewards->bonus),
        .consistency =
            group_summary_mean_of(consistency->probability.count ? &consistency->probability : &consistency->verdict),
    };
    for (size_t k = 0; k < group->times.count; k++) {
        out->issued = fmin(out->issued, group->times.data[k].in);
        out->settled = fmax(out->settled, group->times.data[k].out);
    }
    if (group->prompt.level.data)
        memcpy(out->level, group->prompt.level.data,
               group->prompt.level.size < SUMMARY_LEVEL ? group->prompt.level.size : SUMMARY_LEVEL);
    if (group->prompt.problem_type.data && problem_type_parse(group->prompt.problem_type, &type))
        out->problem_type = (uint8_t)(1 + type);
    struct summary_mean squares = {0};
    for (size_t i = 0; i < rewards->total.count; i++)
        group_summary_add(&squares, pow(rewards->total.data[i] - (double)out->reward, 2));
    out->reward_std = squares.count > 1 ? (float)sqrt(squares.sum / (double)(squares.count - 1)) : NAN;
    for (size_t i = 0; i < out->completions; i++) {
        const struct completion *completion = &group->completions[i];
        const double verdict = group_summary_at(&consistency->verdict, i),
                     probability = group_summary_at(&consistency->probability, i);
        unsigned marks;
        (void)group_completion_marks(group, i, &marks);
        const bool right = marks & MARK_RIGHT, formed = marks & MARK_WELL_FORMED, bonus = marks & MARK_BONUS,
                   contradicts = marks & MARK_CONTRADICTS;
        if (i < SUMMARY_MARKED) out->marks |= (uint64_t)marks << 4 * i;
        out->right += right;
        out->well_formed += formed;
        out->with_bonus += bonus;
        out->contradicting += contradicts;
        out->truncated += string_equals(completion->finish, "length");
        const bool judged = !isnan(verdict) || !isnan(probability);
        const bool uncounted = answer_is_uncounted(group, i, group_summary_at(accuracy, i));
        out->uncounted += uncounted;
        out->judged += judged;
        out->tokens += (uint32_t)completion->tokens.count;
        group_summary_add(&likelihood, exp(group_summary_at(&reference->answer_logprob, i)));
        if (completion->tokens.data) group_summary_add(&length, (double)completion->tokens.count);
        if (completion->tokens.count > out->longest) out->longest = (uint32_t)completion->tokens.count;
        const struct float_array *under = i < reference->logprob_count ? &reference->logprobs[i] : NULL;
        for (size_t t = 0; t < completion->logprobs.count; t++) {
            const double logprob = (double)completion->logprobs.data[t];
            group_summary_add(&surprise, -logprob);
            lowest = fmin(lowest, logprob);
            if (!under || t >= under->count) continue;
            const double d = (double)under->data[t] - logprob;
            group_summary_add(&kl, exp(d) - d - 1);
        }
    }
    out->length = group_summary_mean(length);
    out->surprise = group_summary_mean(surprise);
    out->lowest = (float)lowest;
    out->likelihood = group_summary_mean(likelihood);
    out->kl = group_summary_mean(kl);
}

// ---- rows ----

// Bytes: question, id and sample_id, each with its size in two bytes before it; the number of times in one byte, and of
// each the stage's name with its size, in, out, replica.

enum { ROW_ABSENT = UINT16_MAX }; // the size of a string that is absent

// Appends the size in two bytes and the beginning of the string, without half a character at its end.
static void group_row_add_string(struct buf *out, struct string text, size_t most) {
    size_t size = text.size < most ? text.size : most;
    while (text.data && size && size < text.size && ((unsigned char)text.data[size] & 0xC0) == 0x80) size--;
    const uint16_t stored = text.data ? (uint16_t)size : ROW_ABSENT;
    buf_append(out, &stored, sizeof stored);
    if (size) buf_append(out, text.data, size);
}

void group_row_make(const struct group *group, double issued, struct buf *out) {
    const struct prompt *prompt = &group->prompt;
    struct string question = prompt->question; // or the last text that a user says
    for (size_t m = 0; m < prompt->message_count && !prompt->question.data; m++)
        for (size_t p = 0; p < prompt->messages[m].part_count; p++)
            if (string_equals(prompt->messages[m].role, "user") && prompt->messages[m].parts[p].kind == PART_TEXT)
                question = prompt->messages[m].parts[p].text;
    group_row_add_string(out, question, ROW_QUESTION);
    group_row_add_string(out, group->id, ROW_ABSENT - 1);
    group_row_add_string(out, group->sample_id, ROW_ABSENT - 1);
    buf_append(out, &(uint8_t){(uint8_t)group->times.count}, 1);
    for (size_t k = 0; k < group->times.count; k++) {
        const struct stage_time *time = &group->times.data[k];
        const float seconds[2] = {(float)(time->in - issued), (float)(time->out - issued)};
        const uint16_t replica = (uint16_t)(time->replica < UINT16_MAX ? time->replica : UINT16_MAX);
        group_row_add_string(out, time->stage, UINT8_MAX);
        buf_append(out, seconds, sizeof seconds);
        buf_append(out, &replica, sizeof replica);
    }
}

// Takes a string that group_row_add_string wrote; false: the bytes end before.
static bool group_row_take_string(const char **at, const char *end, struct string *out) {
    uint16_t size;
    *out = (struct string){0};
    if ((size_t)(end - *at) < sizeof size) return false;
    memcpy(&size, *at, sizeof size);
    *at += sizeof size;
    if (size == ROW_ABSENT) return true;
    if ((size_t)(end - *at) < size) return false;
    *out = (struct string){*at, size};
    *at += size;
    return true;
}

status group_row_read(struct group_row *out, const void *data, size_t size) {
    const char *at = data, *end = at + size;
    *out = (struct group_row){0};
    bool whole = group_row_take_string(&at, end, &out->question) && group_row_take_string(&at, end, &out->id) &&
                 group_row_take_string(&at, end, &out->sample_id) && at < end;
    const size_t count = whole ? *(const unsigned char *)at++ : 0;
    whole &= count <= MAX_STAGE_TIMES;
    for (; whole && out->count < count; out->count++) {
        struct row_time *time = &out->times[out->count];
        float seconds[2];
        whole = group_row_take_string(&at, end, &time->stage) &&
                (size_t)(end - at) >= sizeof seconds + sizeof time->replica;
        if (!whole) break;
        memcpy(seconds, at, sizeof seconds);
        memcpy(&time->replica, at + sizeof seconds, sizeof time->replica);
        at += sizeof seconds + sizeof time->replica;
        time->in = seconds[0];
        time->out = seconds[1];
    }
    return whole && at == end ? OK : fail(DATAERR, "the row of a group");
}
