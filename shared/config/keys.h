// The keys of every stage, in one table: the command line, pipeline files, `caravan check`, --help and the reference
// page all come from it.
#ifndef SHARED_CONFIG_KEYS_H
#define SHARED_CONFIG_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

typedef enum key_type {
    KEY_TEXT,
    KEY_FILE,   // a path that must exist; relative to the pipeline file there
    KEY_PATH,   // a path that may not exist yet
    KEY_INT,    // whole number in [low, high]
    KEY_NUMBER, // finite number in [low, high]
    KEY_BOOL,   // true, false
    KEY_CHOICE, // one of `choices`, separated by '|'
    KEY_NUMBER_OR, // a number in [low, high] or one of `choices`
    KEY_RANGE,  // FROM..TO, either end may be left out, or one of `choices`
} key_type;

typedef struct key {
    const char *name;     // with underscores
    key_type type;
    const char *standard; // the default as it would be typed; NULL: unset (or required)
    double low, high;     // KEY_INT, KEY_NUMBER, KEY_NUMBER_OR
    const char *choices;
    bool required;
    const char *help;     // one line
} key;

typedef struct key_table {
    const char *stage;
    const char *help; // what the stage does, one line
    const key *keys;  // ends with a NULL name; the keys of every stage (device, threads ...) are apart: keys_common
} key_table;

// The table of a stage, NULL if there is no such stage.
const key_table *keys_of(const char *stage);

// Keys that every stage has: stdio, config, device, threads, precision, store, seed, media_root ... Ends with NULL.
const key *keys_common(void);

// The names of all stages in the order of the flow, ends with NULL.
const char *const *keys_stages(void);

// A stage's settings: a value for each key, checked against the table.
typedef struct settings settings;

// All defaults. Free with settings_free.
status settings_new(settings **out, const char *stage);

// NULL is fine; sets *settings to NULL.
void settings_free(settings **settings);

// Sets one key from text. USAGE naming the key: unknown, out of range, not a number, missing file.
status settings_set(settings *settings, const char *name, const char *value);

// Reads --key value, --key=value, --flag; '-' and '_' are one. *rest: index of the first argument that is no option,
// or argc. --help and --version print and answer STOPPED. USAGE otherwise; required keys are checked too.
status settings_arguments(settings *settings, int argc, char **argv);

// Values. Asking for a key that the table lacks or of another type is a bug and aborts.
const char *settings_text(const settings *settings, const char *name);   // NULL when unset
int64_t settings_int(const settings *settings, const char *name);        // unset: INT64_MIN
double settings_number(const settings *settings, const char *name);      // unset or a choice: NaN
bool settings_bool(const settings *settings, const char *name);
bool settings_is(const settings *settings, const char *name, const char *choice);
void settings_range(const settings *settings, const char *name, double *from, double *to); // open ends: -/+INFINITY; off: NaN both

// A hash of every key that changes what the stage computes (not threads, store, device ...), for the store.
uint64_t settings_hash(const settings *settings);

#endif
