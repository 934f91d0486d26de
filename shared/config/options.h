// Options: one table describes those of a stage or of a subcommand of `caravan`; the command line, pipeline files,
// --config files, `caravan check`, --help and the reference page all come from it. A value is parsed once and stored
// by offset into a plain struct, which the table names; its text and its place are kept beside the struct.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shared/base/memory.h"
#include "shared/base/status.h"

// What an option takes, and the type of its field. The field of an unset option is zero.
enum option_type {
    OPTION_STRING, // const char *; any string. A repeatable one: struct string_list
    OPTION_FILE,   // const char *; an existing file or directory, or one of `choices`
    OPTION_PATH,   // const char *; a path that may not exist yet
    OPTION_NAME,   // const char *; one of `choices`, separated by '|'
    OPTION_DEVICE, // const char *; cpu, cuda, cuda:N or in a pipeline cuda:[0-3]
    OPTION_CHOICE, // int; the index of one of `choices`. Has a default
    OPTION_INT,    // int64_t; in [low, high]. Without a default, low is 1 or more
    OPTION_NUMBER, // double; finite, in [low, high], or NaN for one of `choices`. Has a default
    OPTION_RANGE,  // struct option_range; FROM..TO, or one of `choices`. Has a default
    OPTION_BOOL,   // bool; true or false
    OPTION_SIZE,   // int64_t; bytes, 1 or more: 1000000, 20GiB or 20GB. Without a default, 0. Not hashed
    OPTION_KEEP,   // struct option_keep; "all", "N steps", or a size such as 20GiB. Not hashed
};

// An end that is left out is infinite; for one of the choices both are NaN.
struct option_range {
    double from, to;
};

// How much of something that grows is kept: both 0: all.
struct option_keep {
    int64_t steps, bytes;
};

struct string_list {
    const char **data;
    size_t count;
};

// What an option asks of the option `other` of the same table.
enum option_rule {
    RULE_NONE,
    RULE_NEEDS,      // with `this_value`, the other must be given; a pipeline's stage inherits the other only then
    RULE_CONFLICTS,  // with `this_value`, the other may not have `other_value`
    RULE_NOT_ABOVE,  // of two numbers: the other's may not be below this one's
    RULE_INSTEAD_OF, // not both may be given
};

struct option {
    const char *name; // with underscores
    enum option_type type;
    size_t offset;             // of the field in the table's struct
    const char *default_value; // as it would be typed; NULL: unset
    double low, high;          // OPTION_INT, OPTION_NUMBER
    const char *choices;       // words separated by '|'
    enum option_rule rule;
    const char *other, *this_value, *other_value; // of the rule
    const char *below_run;                        // in a pipeline, where unset: this directory below the run's
    bool from_source;                             // in a pipeline, where unset: as the source has it
    bool from_optim;                              // the same, as optim has it
    bool own;                                     // in a pipeline, where unset: not as the file has it
    bool same_as_source;                          // in a pipeline: it must have the source's value
    bool command_line_only;                       // not to be written in a pipeline file
    bool required;                                // its field is a string
    bool repeatable;                              // may be given many times
    bool directory;                               // OPTION_FILE: it must be a directory
    bool not_hashed;                              // changes how, not what, a stage computes: not part of options_hash
    const char *help;                             // one line
};

struct option_table {
    const char *program;           // as typed: "caravan-frames", "caravan tokenize"
    const char *operands;          // what follows the options: "FILE"; NULL: nothing may
    const char *help;              // what the program does, one line
    const char *details;           // more lines of --help, behind the options; NULL: none
    const struct option *options;  // ends with a NULL name; NULL: none
    const struct option *common;   // more of them, those of every stage; NULL: none
    const struct option *internal; // those that only `caravan run` and `replay` set, no file and no help has
    size_t size;                   // of the struct
};

// Returns the option after `option`, NULL after the last: those of the table first, then the common ones. NULL starts.
const struct option *options_next(const struct option_table *table, const struct option *option);

// Returns the option of that name, NULL if there is none or it is internal. '-' and '_' are the same.
const struct option *option_find(const struct option_table *table, const char *name);

// The same for the command line, where options may be internal.
const struct option *option_find_any(const struct option_table *table, const char *name);

// "Did you mean": the known name that is nearest to a mistyped one.
struct nearest {
    const char *typed, *name; // name: NULL as long as none is near enough
    int distance;
    char question[128];
};

// Returns an empty search for a name like `typed`, which must outlive the search.
struct nearest nearest_to(const char *typed);

// Keeps `name` if it is nearer than those before. It must outlive the search.
void nearest_offer(struct nearest *nearest, const char *name);

// Returns "; did you mean NAME?", or "" when no name is near. Valid as long as *nearest.
const char *nearest_question(struct nearest *nearest);

// nearest_offer for the names of a table's options.
void nearest_offer_all(struct nearest *nearest, const struct option_table *table);

// Returns the index of `word` among `choices` ("a|b|c", or NULL), -1 if it is not one of them.
int choice_index(const char *choices, const char *word);

// Returns what an option takes, as --help shows it: "N", "FILE", "a|b".
const char *option_argument(const struct option *option, struct arena *arena);

// ---- values ----

// Checks a value against an option, not whether files exist. USAGE with "NAME: what is wrong".
status option_check(const struct option *option, const char *value);

// Whether `path`, a value of OPTION_FILE, is there and, where it must be, a directory; errno says why not.
bool option_file_exists(const struct option *option, const char *path);

// Returns whether two values of the option say the same: two spellings of one number do.
bool option_same_value(const struct option *option, const char *a, const char *b);

// Parses a size: digits and B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024), or digits alone for
// bytes. Returns false if the text is no size.
bool parse_bytes(const char *text, int64_t *bytes);

// Returns a value with `dir` before a relative path of OPTION_FILE or OPTION_PATH; other values are copied.
char *option_absolute(const struct option *option, const char *dir, const char *value, struct arena *arena);

// ---- keys: what was given, with its places ----

// A position in a file. Both count from 1; line 0 stands for the command line.
struct location {
    size_t line, column;
};

// One key with its value as it was written, or as it was inherited: then with the locations of where it stands.
struct key {
    struct key *next;
    const char *name;  // with underscores
    const char *value; // as it would be typed; while a file is read, NULL for a value of the wrong form
    struct location name_at, value_at;
    struct key *items; // of an array of strings: each with its value and where that stands; else NULL
    bool stored;       // the value is in the struct of the options; after a mistake it need not be
};

// The keys of one mapping in the order of the file, or of one command line.
struct key_list {
    struct key *first;
};

// Returns the key of that name, NULL if the list has none.
struct key *key_list_find(const struct key_list *keys, const char *name);

// Returns the number of keys in the list.
size_t key_list_count(const struct key_list *keys);

// Sets or replaces a key and returns it; `name` and `value`, which may be NULL, are copied into the arena.
struct key *key_list_set(struct key_list *keys, struct arena *arena, const char *name, const char *value,
                         struct location name_at, struct location value_at);

// ---- a table's struct ----

// A table's struct while it is filled. The strings in it live as long as this.
struct options {
    const struct option_table *table;
    void *values;          // the struct, owned by the caller
    bool any_files;        // files may be missing
    struct key_list given; // what was set after options_init, in this order
    struct arena arena;
};

// Fills the struct with the defaults. Release with options_release.
void options_init(struct options *options, const struct option_table *table, void *values);

// Frees the strings; a zeroed struct is fine.
void options_release(struct options *options);

// Sets one option; one that was given before keeps its place. USAGE naming it: unknown, out of range, not a number;
// DATAERR: missing file.
status options_set(struct options *options, const char *name, const char *value);

// Reads --name value, --name=value, --flag, --no-flag; '-' and '_' are the same; `--` ends the options. Operands are
// moved behind the options; *rest is the index of the first one, or argc. --help and --version print to standard output
// and return END, or UNAVAILABLE when that cannot be written. Reads the file of --config first, so the command line
// wins. USAGE for what is wrong, for required options that are missing, and for options that break a rule.
status options_parse(struct options *options, int argc, char **argv, int *rest);

// A rule of a table that the options break.
struct broken_rule {
    const struct option *option; // whose rule it is
    struct location at;          // of what was given
    char text[1024];             // "NAME: what is wrong"
};

// Finds the next broken rule, in the order of the table; a zeroed one starts. Returns false when there is no other.
bool options_next_broken_rule(const struct options *options, struct broken_rule *broken);

// Returns the value of a number's option, or the lower end of a range; NaN for one of the choices.
double options_number(const struct options *options, const struct option *option);

// Returns a hash of every option that changes what a stage computes (not threads, store ...). The store's keys use it:
// the same values always have the same hash. `portable`: without paths and devices, which differ from machine to
// machine.
uint64_t options_hash(const struct options *options, bool portable);

// ---- texts ----

// Appends a list of options, which ends with a NULL name, as a Markdown table under a title and a line of help.
void options_markdown(const char *title, const char *help, const struct option *option, struct buf *out);

// Appends the --help text of a table, on lines of at most `columns` but for its details.
void options_help(const struct option_table *table, int columns, struct buf *out);
