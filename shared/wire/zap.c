// A request has the frames version, request id, domain, address, identity, mechanism, credentials; the reply version,
// request id, status code, status text, user id, metadata.
#include "shared/wire/zap.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"

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

// Receives one frame and terminates it with NUL; a longer one is cut to fit. -1 when the context has ended. A signal
// does not end the handler: nobody could connect any more.
static int zap_receive_frame(void *socket, char *data, int capacity) {
    int size;
    do {
        size = zmq_recv(socket, data, (size_t)capacity - 1, 0);
    } while (size < 0 && zmq_errno() == EINTR);
    if (size >= capacity) size = capacity - 1;
    if (size >= 0) data[size] = 0;
    return size;
}

// False when the context ends. A request that is too long has more than ZAP_FRAMES frames.
static bool zap_receive(void *socket, struct zap_request *request) {
    int more = 1;
    request->count = 0;
    while (more) {
        char spare[ZAP_FRAME_MAX];
        const int at = request->count++;
        const bool fits = at < ZAP_FRAMES;
        int size = zap_receive_frame(socket, fits ? request->data[at] : spare, ZAP_FRAME_MAX);
        if (size < 0) return false;
        if (fits) request->size[at] = size;
        size_t length = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length)) return false;
    }
    return true;
}

static bool zap_admits(const struct wire_security *security, const struct zap_request *request) {
    char key[WIRE_KEY];
    if (request->count != ZAP_FRAMES || strcmp(request->data[ZAP_MECHANISM], "CURVE") != 0 ||
        request->size[ZAP_CREDENTIALS] != ZAP_KEY_BYTES)
        return false;
    if (!zmq_z85_encode(key, (const uint8_t *)request->data[ZAP_CREDENTIALS], ZAP_KEY_BYTES)) return false;
    for (size_t i = 0; i < security->count; i++)
        if (!strcmp(security->admitted[i], key)) return true;
    log_info("refused a peer at %s: its key %s belongs to no machine of this run", request->data[ZAP_ADDRESS], key);
    return false;
}

static void *zap_run(void *argument) {
    struct zap *zap = argument;
    struct zap_request request;
    while (zap_receive(zap->socket, &request)) {
        if (request.size[0] == 4 && !memcmp(request.data[0], "stop", 4)) break;
        bool admitted = zap_admits(zap->security, &request);
        const char *text = admitted ? "welcome" : "not of this run";
        size_t id_size = request.count > ZAP_REQUEST_ID ? (size_t)request.size[ZAP_REQUEST_ID] : 0;
        // A reply that cannot be sent leaves the client unconnected; it tries again.
        zmq_send(zap->socket, "1.0", 3, ZMQ_SNDMORE);
        zmq_send(zap->socket, request.data[ZAP_REQUEST_ID], id_size, ZMQ_SNDMORE);
        zmq_send(zap->socket, admitted ? "200" : "400", 3, ZMQ_SNDMORE);
        zmq_send(zap->socket, text, strlen(text), ZMQ_SNDMORE);
        zmq_send(zap->socket, "", 0, ZMQ_SNDMORE);
        zmq_send(zap->socket, "", 0, 0);
    }
    return NULL;
}

status zap_open(struct zap **out, void *zmq_context, const struct wire_security *security) {
    struct zap *zap;
    const int linger = 0;
    *out = NULL;
    TRY(NEW(&zap, 1));
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
