// What the reading and the printing of numbers share. Both need only arithmetic where a double holds a power of ten
// exactly.
#ifndef SHARED_BASE_JSON_NUMBER_H
#define SHARED_BASE_JSON_NUMBER_H

enum { JSON_POWERS = 23 };

// The powers of ten from 1 to 1e22, which are exact.
extern const double json_powers[JSON_POWERS];

#endif
