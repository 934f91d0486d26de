// One option's value from a string. Numbers are read to the end of the string, and the same in every locale.
#ifndef SHARED_CONFIG_OPTION_VALUE_H
#define SHARED_CONFIG_OPTION_VALUE_H

#include "shared/config/options.h"

// The fields that an option's type uses; the others are NaN or zero.
struct option_value {
    struct option_range range; // `from` is also the value of the other number types; NaN for one of the choices
    int64_t integer;
    int choice; // the index of the string among the choices, -1: not one of them
    bool boolean;
    struct option_keep keep;
};

// Parses a string as a value of the option, without looking for files. USAGE with "NAME: what is wrong".
status option_value_parse(struct option_value *value, const struct option *option, const char *text);

// Parses a finite decimal number. Returns false if the string is not one.
bool parse_double(const char *text, double *number);

// Parses a size: digits and B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024), or digits alone for
// bytes. Returns false if the text is no size.
bool parse_bytes(const char *text, int64_t *bytes);

#endif
