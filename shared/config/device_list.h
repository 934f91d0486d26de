// The devices that the option `device` names: one, or several for the replicas of a machine, "cuda:[0-3,6]".
#ifndef SHARED_CONFIG_DEVICE_LIST_H
#define SHARED_CONFIG_DEVICE_LIST_H

#include <stdbool.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// Whether the text names a list, with brackets. A process of its own has no place in one.
bool device_is_list(const char *text);

// Whether the text is a device or a list of GPUs.
bool device_is_valid(const char *text);

// *out = the device of a machine's replica with that slot, from 0: the one at that place of the list, which begins
// again at its end, or the device itself. In the arena. USAGE when the text is no device.
status device_of_slot(const char *text, int slot, struct arena *arena, const char **out);

#endif
