// A data set as a run sees it: every group of every epoch by its index. A group is a function of the file, the settings
// and its index alone, so it can be made again at any time.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shared/base/json.h"
#include "shared/base/status.h"
#include "shared/config/stage_options.h"
#include "shared/group/group.h"

struct dataset;

// Opens what the options of `source` name (data, format, model, media_root, template, epochs, limit, shuffle, seed) and
// checks every record. DATAERR "FILE:LINE: FIELD: what is wrong" when one is invalid. When several are, the first 20
// messages are logged and the failure is their number. USAGE when a template is given for a format whose records
// contain their messages. Free with dataset_free.
status dataset_open(struct dataset **out, const struct source_options *options);

// *count = what dataset_count returns for these options. The records are counted but not read, so it takes a tenth of
// the time. Failures as dataset_open, but for invalid records.
status dataset_count_groups(const struct source_options *options, size_t *count);

// A sample as the file has it.
struct dataset_sample {
    size_t line;               // of its record, from 1
    struct json *record;       // NULL: it is not JSON
    const struct group *group; // NULL: fail_text() says what is wrong with the record, FILE:LINE first
};

// Calls visit for every sample of the file that the options name, in its order, also for invalid ones; it is valid
// during the call. Stops when visit fails, and returns its failure. Failures as dataset_open, but for invalid records.
status dataset_each(const struct source_options *options,
                    status (*visit)(void *context, const struct dataset_sample *sample), void *context);

// Frees the data set and sets *dataset to NULL; NULL is fine.
void dataset_free(struct dataset **dataset);

// Returns the number of groups in all epochs together.
size_t dataset_count(const struct dataset *dataset);

// Returns a hash of the samples in use and of what determines their order and their prompts. It does not cover the
// number of epochs, so that a finished run can be continued for another one.
uint64_t dataset_hash(const struct dataset *dataset);

// Appends a line "NAME VALUE" for each thing that the hash covers, named as in the options of `source`, so that a
// person can be told what differs.
void dataset_describe(const struct dataset *dataset, struct buf *out);

// Makes the group at `index`, 0 to count - 1: in the order of the file, or shuffled differently in each epoch. Its id
// is e0-000017, the epoch and the index in the epoch. Free *out with group_free. Not for several threads at once.
status dataset_group(struct dataset *dataset, size_t index, struct group **out);

// Returns the line of the file, from 1, at which the record of that group begins. Not for several threads at once.
size_t dataset_line(struct dataset *dataset, size_t index);
