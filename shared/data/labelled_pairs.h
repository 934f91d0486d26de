// A file of labelled pairs, from which a consistency model learns: JSON lines, or one JSON array, of {"premise",
// "hypothesis", "question", "label"} as `caravan pairs` writes them. Other keys are ignored.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/data/records.h"

// One record. The strings live until pair_record_release.
struct pair_record {
    struct arena arena;
    struct string premise, hypothesis, question;
    int label; // 1: consistent, 0: inconsistent, -1: null
};

// Parses a record. DATAERR names the key that is missing or wrong. Release with pair_record_release in any case.
status pair_record_parse(struct pair_record *out, const char *data, size_t size);

// Frees the record. A zeroed struct is fine.
void pair_record_release(struct pair_record *record);

struct labelled_pair {
    size_t record;     // its index among the records of the file
    uint64_t question; // a hash of the question
    int label;         // 1 or 0
    bool held_out;
};

// The pairs with a label, in the order of the file, which stays mapped.
struct labelled_pairs {
    const char *path;
    struct records records;
    struct labelled_pair *list;
    size_t count;
    size_t unlabelled; // records whose label is null
};

// Opens `path`, which must outlive the struct, and checks every record. DATAERR "PATH:LINE: what is wrong", or if no
// record has a label. Release with labelled_pairs_release, also after a failure.
status labelled_pairs_open(struct labelled_pairs *pairs, const char *path);

// Parses the record of a pair. DATAERR as above. Release it with pair_record_release in any case.
status labelled_pairs_read(const struct labelled_pairs *pairs, const struct labelled_pair *pair,
                           struct pair_record *out);

// Holds out all pairs of round(share * questions) questions, of one at least if the share is above 0; the others are
// not held out. Which questions depends on the seed and their texts alone. Returns the number of pairs held out.
void labelled_pairs_hold_out(struct labelled_pairs *pairs, double share, uint64_t seed, size_t *held_out);

// Unmaps the file and frees the memory. A zeroed struct is fine.
void labelled_pairs_release(struct labelled_pairs *pairs);
