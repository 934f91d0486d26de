// The keys of every stage, in one table: the command line, pipeline files, `caravan check`, --help and the reference
// page all come from it. A tool's verb may have a table of its own.
#ifndef SHARED_CONFIG_OPTIONS_H
#define SHARED_CONFIG_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

enum option_type {
    OPTION_STRING,
    OPTION_FILE,      // a file or folder that must exist, or one of `choices`; relative to the pipeline file there
    OPTION_PATH,      // a path that may not exist yet
    OPTION_INT,       // whole number in [low, high]
    OPTION_NUMBER,    // finite number in [low, high]
    OPTION_BOOL,      // true, false
    OPTION_CHOICE,    // one of `choices`, separated by '|'
    OPTION_NUMBER_OR, // a number in [low, high] or one of `choices`
    OPTION_RANGE,     // FROM..TO, either end may be left out, or one of `choices`
    OPTION_DEVICE,    // cpu, cuda or cuda:N
};

struct option {
    const char *name; // with underscores
    enum option_type type;
    const char *default_value; // as it would be typed; NULL: unset (or required)
    double low, high;          // OPTION_INT, OPTION_NUMBER, OPTION_NUMBER_OR
    const char *choices;       // words separated by '|'
    const char *not_above;     // the name of an option whose value may not be below this one's
    const char *below_run;     // in a pipeline, where unset: this directory in the run's
    bool from_source;          // in a pipeline, where unset: as the source has it
    bool same_as_source;       // in a pipeline: it must have the source's value
    bool command_line_only;    // not to be written in a pipeline file
    bool required;
    bool repeatable;  // may be given many times: settings_texts
    bool not_hashed;  // changes how, not what, the stage computes: not part of settings_hash
    bool hidden;      // set by the supervisor: not in --help, not to be written in a pipeline file
    const char *help; // one line
};

struct option_table {
    const char *stage;            // "frames", or NULL for a subcommand of `caravan`
    const char *program;          // as typed: "caravan-frames", "caravan tokenize"
    const char *operands;         // what follows the options: "FILE", or NULL
    const char *help;             // what the program does, one line
    const struct option *options; // ends with a NULL name; a stage also has options_common()
};

// Options that every stage has: stdio, config, device, threads, precision, store. Ends with a NULL name.
const struct option *options_common(void);

// The option of that name in the table or, for a stage, among the common ones; NULL if there is none. '-' and '_' are
// the same.
const struct option *option_find(const struct option_table *table, const char *name);

// "Did you mean": the known name that is nearest to a mistyped one.
struct nearest {
    const char *typed, *name; // name: NULL as long as none is near enough
    int distance;
    char question[128];
};

// An empty search.
struct nearest nearest_to(const char *typed);

// Keeps `name` if it is nearer than those before. It must outlive the search.
void nearest_offer(struct nearest *nearest, const char *name);

// "; did you mean NAME?", or "" when no name is near. Valid as long as *nearest.
const char *nearest_question(struct nearest *nearest);

// The nearest name of an option in a table, NULL when none is near.
const char *option_suggest(const struct option_table *table, const char *name);

// The index of `word` among `choices` ("a|b|c", or NULL), -1 if it is not one of them.
int choice_index(const char *choices, const char *word);

// What an option takes, as --help shows it: "N", "FILE", "a|b". NULL when memory is short.
const char *option_argument(const struct option *option, struct arena *arena);

// Checks a value against an option, not whether files exist. USAGE with "NAME: what is wrong".
status option_check(const struct option *option, const char *value);

// A stage's settings: a value for each key, checked against the table.
struct settings;

// All defaults of a stage. Free with settings_free.
status settings_new(struct settings **out, const char *stage);

// All defaults of a table, which must outlive the settings; options_common() belong to it if it is a stage's.
status settings_new_table(struct settings **out, const struct option_table *table);

// NULL is fine; sets *settings to NULL.
void settings_free(struct settings **settings);

// Sets one key from text. USAGE naming the key: unknown, out of range, not a number; DATAERR: missing file.
status settings_set(struct settings *settings, const char *name, const char *value);

// Whether the key was set by somebody, rather than being at its default.
bool settings_given(const struct settings *settings, const char *name);

// Reads a YAML map of keys; relative paths are relative to that file. DATAERR for a file
// that is no such map, USAGE for a wrong key or value, both with "FILE:LINE:COLUMN: ".
status settings_file(struct settings *settings, const char *path);

// Reads --key value, --key=value, --flag, --no-flag; '-' and '_' are one; `--` ends the options. *rest (NULL: operands
// are USAGE): index of the first operand, or argc; operands are moved behind the options. --help and --version print to
// standard output and answer END. Reads the file of --config first, so the command line wins. USAGE for what is
// wrong or missing.
status settings_arguments(struct settings *settings, int argc, char **argv, int *rest);

// USAGE, naming them, when required keys are unset or two keys contradict each other (min above max).
status settings_complete(const struct settings *settings);

// Values. Asking for a key that the table lacks or of another type is a bug and aborts.
// The value as text, NULL when unset. Any type but OPTION_BOOL. Valid until set again.
const char *settings_text(const struct settings *settings, const char *name);
// Every value of a key that may be given many times, in their order; NULL and 0 when unset.
const char *const *settings_texts(const struct settings *settings, const char *name, size_t *count);
// OPTION_INT; unset: INT64_MIN.
int64_t settings_int(const struct settings *settings, const char *name);
// OPTION_NUMBER, OPTION_NUMBER_OR, OPTION_INT; unset or one of the choices: NaN.
double settings_number(const struct settings *settings, const char *name);
// OPTION_BOOL; unset: false.
bool settings_bool(const struct settings *settings, const char *name);
// Whether the value is that choice; unset: false. The choice must be one of the key's.
bool settings_is(const struct settings *settings, const char *name, const char *choice);
// OPTION_RANGE; open ends: -/+INFINITY; unset or one of the choices: NaN both.
void settings_range(const struct settings *settings, const char *name, double *from, double *to);

// A hash of every key that changes what the stage computes (not threads, store ...), for the store.
uint64_t settings_hash(const struct settings *settings);

// Appends the --help text of a table.
status options_help(const struct option_table *table, struct buf *out);

// Appends the reference of all stages' keys as Markdown tables.
status options_markdown(struct buf *out);

#endif
