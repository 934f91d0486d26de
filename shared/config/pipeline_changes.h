// What differs between two pipelines as pipeline_write wrote them: for a run that goes on with other settings.
#ifndef SHARED_CONFIG_PIPELINE_CHANGES_H
#define SHARED_CONFIG_PIPELINE_CHANGES_H

#include "shared/base/memory.h"

// Appends a line for each key of a stage or of the file whose value differs ("optim.lr 1e-4 -> 1e-3", with the default
// of a key that one of them leaves out), and for each stage that only one of them has. Two spellings of one number or
// one path are the same value, and so are two paths at the same place below the two runs. The machines, which may be
// others at each start, are not compared. DATAERR when one of them is not YAML of that form.
status pipeline_changes(const struct buf *before, const struct buf *after, struct buf *lines);

#endif
