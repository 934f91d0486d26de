// What the store keeps of each whole group beside it, so that who looks at a run need not unpack the groups: figures of
// a fixed size, by which groups are found and drawn, and a row for a table of them. A group of 8 x 768 tokens has 83
// KB, its summary and its row about 350 bytes.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "shared/group/group.h"

enum { SUMMARY_VERSION = 1, SUMMARY_MARKED = 16, SUMMARY_LEVEL = 8 };

// What a completion is marked with: four bits of `marks`, those of completion 0 are the lowest.
enum summary_mark {
    MARK_RIGHT = 1, // its accuracy is 1
    MARK_WELL_FORMED = 2,
    MARK_BONUS = 4, // above 0
    MARK_CONTRADICTS =
        8, // the thinking does not support the answer, by a judge or, without one, by the consistency model
};

// The last stage that a group has passed.
enum group_state {
    GROUP_ISSUED,
    GROUP_DECODED,
    GROUP_SAMPLED,
    GROUP_REFERENCED,
    GROUP_REWARDED,
    GROUP_SCORED,
    GROUP_TRAINED,
    GROUP_QUARANTINED,
    GROUP_STATES,
};

// A format on disk, in the machine's order of bytes. What does not apply is NaN.
struct group_summary {
    double issued, settled; // seconds since 1970: when the first stage got the group, when the last one had finished it
    uint64_t sample;        // a hash of sample_id, without one of the id: the groups of one sample have the same
    uint64_t marks;         // of the first SUMMARY_MARKED completions
    int64_t seq;            // in the order of issue; -1: none
    int32_t step;           // that trained it; -1: none
    uint16_t completions;   // and of them:
    uint16_t right, well_formed, with_bonus, contradicting, truncated;
    uint16_t uncounted;                                // name the right option, and yet count as wrong
    uint8_t version;                                   // SUMMARY_VERSION
    uint8_t state;                                     // enum group_state
    uint32_t longest;                                  // completion, in tokens
    float reward, reward_std, accuracy, format, bonus; // means over completions; the unbiased standard deviation
    float length;                                      // mean number of tokens
    float surprise;                                    // mean over all tokens of minus the policy's log-probability
    float lowest;                                      // of these log-probabilities
    float likelihood;          // mean over the answers: the reference's probability of a token, as a geometric mean
    float kl;                  // mean over all tokens of the k3 estimate, policy against reference
    float consistency;         // mean probability, without a consistency model the mean verdict
    char level[SUMMARY_LEVEL]; // the first bytes of the prompt's; shorter: zeros behind it
    uint32_t tokens;           // of all completions
    uint16_t judged;           // completions, by a judge or a consistency model
    uint8_t problem_type;      // 1 + enum problem_type; 0: none of these
    uint8_t reserved[5];       // zeros
};

// Sets *out to the summary of a group.
void group_summary_make(const struct group *group, struct group_summary *out);

// Sets *marks to what completion i is marked with; returns whether it has an accuracy.
bool group_completion_marks(const struct group *group, size_t i, unsigned *marks);

// Returns the last stage that the group has passed.
enum group_state group_state_of(const struct group *group);

// Returns the word for a state: "trained".
const char *group_state_name(enum group_state state);

// Returns the hash by which the groups of a sample are found.
uint64_t group_summary_sample(const struct group *group);

enum { ROW_QUESTION = 120 }; // bytes at most

// A group's row in a table.
struct group_row {
    struct string question; // its beginning, whole characters
    struct string id, sample_id;
    struct row_time {
        struct string stage;
        float in, out;    // seconds since `issued` of the summary
        uint16_t replica; // 0: outside a run
    } times[MAX_STAGE_TIMES];
    size_t count; // of times
};

// Appends the group's row as bytes.
void group_row_make(const struct group *group, double issued, struct buf *out);

// Reads what group_row_make wrote; the strings are in `data`. DATAERR when it is damaged.
status group_row_read(struct group_row *out, const void *data, size_t size);
