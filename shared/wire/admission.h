// Which clients a server admits: those of the same protocol and the same run that run where the run's configuration
// says, with the key of that machine.
#ifndef SHARED_WIRE_ADMISSION_H
#define SHARED_WIRE_ADMISSION_H

#include <stdbool.h>

#include "shared/wire/wire.h"

enum { ADMISSION_REASON_MAX = 1024 }; // bytes

// Checks a HELLO; `key` is the client's public key, NULL without security. Returns false if the client is to be
// refused; *reason then says why.
bool admission_check(const struct wire_self *self, const struct wire_message *hello, const char *key,
                     char (*reason)[ADMISSION_REASON_MAX]);

#endif
