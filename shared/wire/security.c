#include "shared/wire/security.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "shared/base/file.h"
#include "shared/base/memory.h"

static_assert(WIRE_KEY == 41, "Z85 writes 32 bytes as 40 characters");

bool wire_key_valid(const char *key) {
    uint8_t raw[32];
    return key && strlen(key) == WIRE_KEY - 1 && zmq_z85_decode(raw, key) != NULL;
}

status wire_key_make(struct wire_security *out) {
    if (zmq_curve_keypair(out->public, out->secret))
        return fail(UNAVAILABLE, "CURVE keys: %s", zmq_strerror(zmq_errno()));
    return OK;
}

status wire_key_write(const struct wire_security *keys, const char *path) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) return fail(USAGE, "%s: the file exists, and a key is never overwritten", path);
    if (fd < 0) return fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    struct buf text = {0};
    buf_printf(&text, "public %s\nsecret %s\n", keys->public, keys->secret);
    status result =
        fd_write_all(fd, text.data, text.size) && !fsync(fd) ? OK : fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
    close(fd);
    if (result != OK) unlink(path);
    explicit_bzero(text.data, text.size);
    buf_release(&text);
    return result;
}

static status security_read_key(const struct buf *text, const char *word, char key[WIRE_KEY], const char *path) {
    size_t length = strlen(word);
    for (const char *at = text->data; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL) {
        if (strncmp(at, word, length) != 0 || at[length] != ' ') continue;
        strncpy(key, at + length + 1, WIRE_KEY - 1);
        key[WIRE_KEY - 1] = 0;
        if (wire_key_valid(key)) return OK;
        return fail(DATAERR, "%s: the %s key is malformed", path, word);
    }
    return fail(DATAERR, "%s: not a key file: it has no %s key", path, word);
}

status wire_key_read(struct wire_security *keys, const char *path) {
    struct stat about;
    if (stat(path, &about)) return fail(DATAERR, "%s: %s", path, strerror(errno));
    if (about.st_mode & 077) return fail(DATAERR, "%s: other users may read this key; type: chmod 600 %s", path, path);
    struct buf text = {0};
    status result = file_read(path, &text);
    if (result == OK) result = security_read_key(&text, "public", keys->public, path);
    if (result == OK) result = security_read_key(&text, "secret", keys->secret, path);
    if (text.data) explicit_bzero(text.data, text.size);
    buf_release(&text);
    return result;
}

void wire_admit(struct wire_security *security, const char *key) {
    RESIZE(&security->admitted, security->count + 1);
    strncpy(security->admitted[security->count], key, WIRE_KEY - 1);
    security->admitted[security->count++][WIRE_KEY - 1] = 0;
}

void wire_security_release(struct wire_security *security) {
    free(security->admitted);
    explicit_bzero(security, sizeof *security);
}
