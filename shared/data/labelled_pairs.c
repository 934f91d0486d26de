#include "shared/data/labelled_pairs.h"

#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "shared/base/json.h"
#include "shared/base/memory.h"
#include "shared/base/rng.h"

static status pair_record_string(struct json *json, const char *key, struct string *out) {
    struct json *value;
    TRY(json_require(json, key, JSON_STRING, &value));
    *out = json_string(value);
    return OK;
}

status pair_record_parse(struct pair_record *out, const char *data, size_t size) {
    struct json *json, *label;
    int64_t value;
    *out = (struct pair_record){.label = -1};
    TRY(json_parse(&json, &out->arena, data, size));
    if (!json_is(json, JSON_OBJECT)) return fail(DATAERR, "not a JSON object");
    TRY(pair_record_string(json, "premise", &out->premise));
    TRY(pair_record_string(json, "hypothesis", &out->hypothesis));
    TRY(pair_record_string(json, "question", &out->question));
    if (!json_find(json, "label", &label)) return fail(DATAERR, "label: missing");
    if (!label) return OK;
    if (!json_int(label, &value) || value < 0 || value > 1) return fail(DATAERR, "label: neither 0, 1 nor null");
    out->label = (int)value;
    return OK;
}

void pair_record_release(struct pair_record *record) {
    arena_release(&record->arena);
    *record = (struct pair_record){.label = -1};
}

status labelled_pairs_read(const struct labelled_pairs *pairs, const struct labelled_pair *pair,
                           struct pair_record *out) {
    const struct record *record = &pairs->records.items[pair->record];
    status result = pair_record_parse(out, record->data, record->size);
    return result == DATAERR ? fail_prefix(DATAERR, "%s:%zu", pairs->path, record->place.line) : result;
}

status labelled_pairs_open(struct labelled_pairs *pairs, const char *path) {
    *pairs = (struct labelled_pairs){.path = path};
    TRY(records_open(&pairs->records, path));
    NEW(&pairs->list, pairs->records.count);
    for (size_t i = 0; i < pairs->records.count; i++) {
        struct labelled_pair pair = {.record = i};
        struct pair_record record;
        status result = labelled_pairs_read(pairs, &pair, &record);
        if (result == OK && record.label < 0) {
            pairs->unlabelled++;
        } else if (result == OK) {
            pair.label = record.label;
            pair.question = XXH3_64bits(record.question.data, record.question.size);
            pairs->list[pairs->count++] = pair;
        }
        pair_record_release(&record);
        TRY(result);
    }
    return pairs->count ? OK : fail(DATAERR, "%s: no pair has a label", path);
}

// The place of a question in the order in which questions are held out.
struct question_rank {
    uint64_t rank, question;
};

static int question_rank_compare(const void *left, const void *right) {
    const struct question_rank *a = left, *b = right;
    if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
    return (a->question > b->question) - (a->question < b->question);
}

void labelled_pairs_hold_out(struct labelled_pairs *pairs, double share, uint64_t seed, size_t *held_out) {
    const uint64_t key = rng_key(seed, "held out");
    struct question_rank *ranks, last = {0};
    size_t questions = 0;
    NEW(&ranks, pairs->count);
    for (size_t i = 0; i < pairs->count; i++) {
        const uint64_t question = pairs->list[i].question;
        ranks[i] = (struct question_rank){rng_bits(key, question, 0), question};
    }
    qsort(ranks, pairs->count, sizeof *ranks, question_rank_compare);
    for (size_t i = 0; i < pairs->count; i++)
        if (!questions || question_rank_compare(&ranks[questions - 1], &ranks[i]) != 0) ranks[questions++] = ranks[i];
    const size_t rounded = (size_t)floor(share * (double)questions + 0.5);
    const size_t wanted = share > 0 && !rounded ? 1 : rounded;
    if (wanted) last = ranks[wanted - 1];
    *held_out = 0;
    for (size_t i = 0; i < pairs->count; i++) {
        struct labelled_pair *pair = &pairs->list[i];
        const struct question_rank own = {rng_bits(key, pair->question, 0), pair->question};
        pair->held_out = wanted && question_rank_compare(&own, &last) <= 0;
        *held_out += pair->held_out;
    }
    free(ranks);
}

void labelled_pairs_release(struct labelled_pairs *pairs) {
    records_release(&pairs->records);
    free(pairs->list);
    *pairs = (struct labelled_pairs){0};
}
