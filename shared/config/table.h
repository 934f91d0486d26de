// What the files of this folder need of settings and nobody else.
#ifndef SHARED_CONFIG_TABLE_H
#define SHARED_CONFIG_TABLE_H

#include "shared/config/keys.h"

// The table that the settings were made from.
const struct key_table *settings_table(const struct settings *settings);

// Puts `folder` before a relative path of KEY_FILE or KEY_PATH; other values are copied. NULL when memory is short.
char *key_resolve(const struct key *key, const char *folder, const char *value, struct arena *arena);

#endif
