// What the files of this folder need of settings and nobody else.
#ifndef SHARED_CONFIG_TABLE_H
#define SHARED_CONFIG_TABLE_H

#include "shared/config/options.h"

// The table that the settings were made from.
const struct option_table *settings_table(const struct settings *settings);

// Puts `folder` before a relative path of OPTION_FILE or OPTION_PATH; other values are copied. NULL when memory is
// short.
char *option_absolute(const struct option *key, const char *folder, const char *value, struct arena *arena);

#endif
