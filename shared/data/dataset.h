// A data set as a run sees it: every group of every epoch by its place. A group is a function of the file, the settings
// and its place alone, so any can be made again at any time.
#ifndef SHARED_DATA_DATASET_H
#define SHARED_DATA_DATASET_H

#include "shared/base/status.h"
#include "shared/config/options.h"
#include "shared/group/group.h"

struct dataset;

// Opens what the settings of `source` name (data, format, media_root, template, epochs, limit, shuffle, seed) and reads
// every record once. DATAERR when any is wrong: one line "FILE:LINE: FIELD: what" for it; when several are, a line each
// (the first 20) is said and the failure counts them.
status dataset_open(struct dataset **out, const struct settings *settings);

// NULL is fine; sets *dataset to NULL.
void dataset_free(struct dataset **dataset);

// How many groups there are, all epochs together.
size_t dataset_count(const struct dataset *dataset);

// A hash of the samples in use and of what makes their order and their prompts. The number of epochs is not in it, so
// that a finished run can go on for another one.
uint64_t dataset_hash(const struct dataset *dataset);

// Makes the group at `place`, 0 to count-1: in order, or shuffled anew for each epoch. Its id is e0-000017: epoch, and
// place in the epoch. Not for several threads at once. The caller frees *out.
status dataset_group(struct dataset *dataset, size_t place, struct group **out);

#endif
