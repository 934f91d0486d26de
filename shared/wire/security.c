// Keys and their files, then ZAP: libzmq asks the thread of a struct zap about each client that connects with CURVE.
#include "shared/wire/security.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/memory.h"
#include "shared/base/log.h"

static_assert(WIRE_KEY == 41, "Z85 writes 32 bytes as 40 characters");

// ---- keys ----

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
    status result = OK;
    if (result == OK && (!fd_write_all(fd, text.data, text.size) || fsync(fd)))
        result = fail(UNAVAILABLE, "%s: %s", path, strerror(errno));
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

// ---- ZAP ----

// A request has the frames version, request id, domain, address, identity, mechanism, credentials; the reply version,
// request id, status code, status text, user id, metadata.
#define ZAP_ENDPOINT "inproc://zeromq.zap.01"

enum { ZAP_VERSION, ZAP_REQUEST_ID, ZAP_DOMAIN, ZAP_ADDRESS, ZAP_IDENTITY, ZAP_MECHANISM, ZAP_CREDENTIALS, ZAP_FRAMES };
enum { ZAP_FRAME_MAX = 256, ZAP_KEY_BYTES = 32 };
static_assert(ZAP_KEY_BYTES / 4 * 5 + 1 == WIRE_KEY, "Z85 writes 4 bytes as 5 characters");

struct zap {
    pthread_t thread;
    void *context;
    void *socket; // of the handler's thread
    const struct wire_security *security;
};

struct zap_request {
    char data[ZAP_FRAMES][ZAP_FRAME_MAX];
    int size[ZAP_FRAMES];
    int count;
};

// Receives all frames of a request, each terminated with NUL; a longer one is cut to fit. False when the context ends.
// A request that is too long has more than ZAP_FRAMES frames. A signal does not end the handler: nobody could connect
// any more.
static bool zap_receive(void *socket, struct zap_request *request) {
    int more = 1;
    request->count = 0;
    while (more) {
        char spare[ZAP_FRAME_MAX];
        const int at = request->count++;
        const bool fits = at < ZAP_FRAMES;
        char *data = fits ? request->data[at] : spare;
        int size;
        do {
            size = zmq_recv(socket, data, ZAP_FRAME_MAX - 1, 0);
        } while (size < 0 && zmq_errno() == EINTR);
        if (size < 0) return false;
        if (size >= ZAP_FRAME_MAX) size = ZAP_FRAME_MAX - 1;
        data[size] = 0;
        if (fits) request->size[at] = size;
        size_t length = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length)) return false;
    }
    return true;
}

static void *zap_run(void *argument) {
    struct zap *zap = argument;
    const struct wire_security *security = zap->security;
    struct zap_request request;
    struct log_limit limit = {0};
    while (zap_receive(zap->socket, &request)) {
        if (request.size[0] == 4 && !memcmp(request.data[0], "stop", 4)) break;
        char key[WIRE_KEY] = "";
        bool valid = request.count == ZAP_FRAMES && !strcmp(request.data[ZAP_MECHANISM], "CURVE") &&
                     request.size[ZAP_CREDENTIALS] == ZAP_KEY_BYTES &&
                     zmq_z85_encode(key, (const uint8_t *)request.data[ZAP_CREDENTIALS], ZAP_KEY_BYTES);
        bool admitted = false;
        for (size_t i = 0; valid && !admitted && i < security->count; i++)
            admitted = !strcmp(security->admitted[i], key);
        if (valid && !admitted)
            log_limited(&limit, clock_monotonic_ms(),
                        "refused a peer at %s: its key %s belongs to no machine of this run", request.data[ZAP_ADDRESS],
                        key);
        const char *text = admitted ? "welcome" : "not of this run";
        size_t id_size = request.count > ZAP_REQUEST_ID ? (size_t)request.size[ZAP_REQUEST_ID] : 0;
        // A reply that cannot be sent leaves the client unconnected; it tries again.
        zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(zap->socket, request.data[ZAP_REQUEST_ID], id_size, ZMQ_SNDMORE);
        zmq_send(zap->socket, admitted ? "200" : "400", 3, ZMQ_SNDMORE);
        zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
        zmq_send(zap->socket, key, admitted ? WIRE_KEY - 1 : 0, ZMQ_SNDMORE);
        zmq_send(zap->socket, "", 0, 0);
    }
    return NULL;
}

status zap_open(struct zap **out, void *zmq_context, const struct wire_security *security) {
    struct zap *zap;
    const int linger = 0;
    *out = NULL;
    NEW(&zap, 1);
    zap->security = security;
    zap->context = zmq_context;
    zap->socket = zmq_socket(zmq_context, ZMQ_REP);
    if (!zap->socket || zmq_setsockopt(zap->socket, ZMQ_LINGER, &linger, sizeof linger) ||
        zmq_bind(zap->socket, ZAP_ENDPOINT) || pthread_create(&zap->thread, NULL, zap_run, zap)) {
        status result = fail(UNAVAILABLE, "cannot authenticate clients: %s", zmq_strerror(zmq_errno()));
        if (zap->socket) zmq_close(zap->socket);
        free(zap);
        return result;
    }
    *out = zap;
    return OK;
}

void zap_close(struct zap **zap) {
    if (!*zap) return;
    void *stop = zmq_socket((*zap)->context, ZMQ_REQ);
    const int linger = 0;
    if (stop && !zmq_setsockopt(stop, ZMQ_LINGER, &linger, sizeof linger) && !zmq_connect(stop, ZAP_ENDPOINT))
        zmq_send(stop, "stop", 4, 0);
    pthread_join((*zap)->thread, NULL);
    if (stop) zmq_close(stop);
    zmq_close((*zap)->socket);
    free(*zap);
    *zap = NULL;
}
