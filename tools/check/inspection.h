// What a pipeline file names, as far as this machine can look at it: models, data, media, devices and directories. What
// `caravan run` would refuse at once is a mistake; what it would accept and makes no sense is a warning. Each has the
// place of its key.
//
// Cheap: of weights only the headers are read, of the data the first samples, of their media one.
#pragma once

#include <stdbool.h>

#include "shared/config/pipeline.h"

struct inspection {
    const struct pipeline *pipeline;
    int here;     // this machine; -1: none of the file's, and nothing is looked at
    bool devices; // the machine has those that the run will have
    struct diagnostics *diagnostics;
};

// Looks whether the files, directories and programs that this machine's stages name are there. Where the file has one
// machine, pipeline_read has done it.
void inspect_files(struct inspection *inspection);

// Warns of values that make no sense. Reads no file.
void inspect_values(struct inspection *inspection);

// Warns of models whose own chat template is another one than that which is used. Reads a small file of each.
void inspect_chat_templates(struct inspection *inspection);

// Looks at the directories that the run writes.
void inspect_outputs(struct inspection *inspection);

// Looks at the devices: opens and closes each.
void inspect_devices(struct inspection *inspection);

// Looks at the configurations, tokenizers and weights' headers of all models.
void inspect_models(struct inspection *inspection);

// Looks at the first samples of the data, and at their media.
void inspect_data(struct inspection *inspection);
