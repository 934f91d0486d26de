// Which clients a server admits: those of the same protocol and the same run.
#ifndef SHARED_WIRE_ADMISSION_H
#define SHARED_WIRE_ADMISSION_H

#include <stdbool.h>

#include "shared/wire/wire.h"

enum { ADMISSION_REASON_MAX = 1024 }; // bytes

// Checks a HELLO. Returns false if the client is to be refused; *reason then says why.
bool admission_check(const struct wire_self *self, const struct wire_message *hello,
                     char (*reason)[ADMISSION_REASON_MAX]);

#endif
