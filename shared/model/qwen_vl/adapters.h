// Adapters (LoRA) on the disk: a directory as PEFT writes it, with adapter_config.json and adapter_model.safetensors;
// and new ones.
#pragma once

#include "shared/base/memory.h"
#include "shared/base/status.h"
#include "shared/model/model.h"
#include "shared/model/parameters.h"

extern const char adapters_file[]; // "adapter_model.safetensors"

// What adapter_config.json says: the product of an adapter counts alpha / rank times.
struct adapters_config {
    int64_t rank; // 1..MAX_LORA
    double alpha; // above 0; alpha / rank is in the range of float32
};

// Reads adapter_config.json of a directory. DATAERR names the file and the key, also of adapters that compute otherwise
// (other kinds than LoRA, DoRA, rsLoRA, trained biases, several ranks).
status adapters_config_read(struct adapters_config *out, const char *dir);

// Opens adapter_model.safetensors of a directory. DATAERR as safetensors_open, and when it lacks a tensor of the table
// of adapters, of which all seven matrices of each layer must have some, unless one before it has another shape.
status adapters_open(struct safetensors **out, const struct parameter_table *table, const char *dir);

// Sets lora and lora_alpha of a model's options to those of its adapters. USAGE when they are out of range or not those
// of the directory `adapter`; DATAERR as adapters_config_read.
status adapters_settle(struct model_options *options);

// Writes that file; `base` is the model directory, whose absolute path it names. UNAVAILABLE when the file system
// refuses.
status adapters_config_write(const struct adapters_config *config, const char *base, const char *dir);

// *image = the image of a safetensors file with new adapters' values for a table of them, float32: as in PEFT, A is
// uniform in +-1 / sqrt(its columns), here by random numbers of the seed and the name, and B is zero. The caller
// releases it, also after a failure. UNAVAILABLE when memory is short.
status adapters_new(struct buf *image, const struct parameter_table *table, uint64_t seed);
