// Typed values from text: numbers are read wholly and the same in every locale.
#ifndef SHARED_CONFIG_OPTION_VALUE_H
#define SHARED_CONFIG_OPTION_VALUE_H

#include "shared/config/options.h"

struct value {
    char *text;     // as it was given; NULL: unset
    double from;    // number, or a range's lower end; NaN where it is a choice
    double to;      // a range's upper end
    int64_t whole;  // OPTION_INT
    bool truth;     // OPTION_BOOL
    bool given;     // by somebody: not the default
    char **texts;   // every one, of a key that may be given many times
    size_t count;   // of them
    bool is_choice; // the text is one of the key's choices
};

// Reads text as a value of the key, without looking for files; `text` itself is not kept. USAGE with "KEY: ...".
status value_read(struct value *value, const struct option *key, const char *text);

// A finite decimal number, the whole text. False if it is none.
bool parse_double(const char *text, double *number);

#endif
