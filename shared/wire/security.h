// CURVE between machines: key files, and the keys that are admitted.
//
// A key file has two lines, `public KEY` and `secret KEY`, each 40 characters of Z85, and only its owner may read it.
#ifndef SHARED_WIRE_SECURITY_H
#define SHARED_WIRE_SECURITY_H

#include <stdbool.h>
#include <stddef.h>

#include "shared/base/status.h"

enum { WIRE_KEY = 41 }; // characters of a key with its NUL

// A machine's own keys and those that it admits. Zeroed: no security.
struct wire_security {
    char public[WIRE_KEY];
    char secret[WIRE_KEY];
    char (*admitted)[WIRE_KEY];
    size_t count;
};

// Whether `key` looks like a key: 40 characters of Z85.
bool wire_key_valid(const char *key);

// Makes a new pair of keys. UNAVAILABLE when libzmq has no CURVE.
status wire_key_make(struct wire_security *out);

// Writes a new key file, mode 0600; USAGE when the file exists, UNAVAILABLE when the disk refuses.
status wire_key_write(const struct wire_security *keys, const char *path);

// Reads a key file; `admitted` stays as it is. DATAERR when it cannot be read, is malformed, or other users may read
// it.
status wire_key_read(struct wire_security *keys, const char *path);

// Admits one more machine.
void wire_admit(struct wire_security *security, const char *key);

// Frees what it holds, wipes the secret, and leaves no security.
void wire_security_release(struct wire_security *security);

#endif
