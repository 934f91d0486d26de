// A request has the frames version, request id, domain, address, identity, mechanism, credentials; the reply version,
// request id, status code, status text, user id, metadata.
#include "shared/wire/zap.h"

#include <pthread.h>
#include <string.h>
#include <zmq.h>

#include <stdlib.h>

#include "shared/base/log.h"
#include "shared/base/memory.h"

enum { FRAMES = 7, FRAME_MOST = 256 };

struct zap {
    pthread_t thread;
    void *context;
    void *socket; // of the handler's thread
    const struct wire_security *security;
};

struct request {
    char data[FRAMES][FRAME_MOST];
    int size[FRAMES];
    int count;
};

// False when the context ends.
static bool receive(void *socket, struct request *request) {
    request->count = 0;
    int more = 1;
    while (more) {
        char spare[FRAME_MOST];
        bool fits = request->count < FRAMES;
        int size = zmq_recv(socket, fits ? request->data[request->count] : spare, FRAME_MOST, 0);
        if (size < 0) return false;
        if (fits) request->size[request->count] = size < FRAME_MOST ? size : FRAME_MOST - 1;
        if (fits) request->data[request->count][request->size[request->count]] = 0;
        request->count++;
        size_t length = sizeof more;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length)) return false;
    }
    return true;
}

static bool admitted(const struct wire_security *security, const struct request *request) {
    char key[WIRE_KEY];
    if (request->count != FRAMES || strcmp(request->data[5], "CURVE") != 0 || request->size[6] != 32) return false;
    if (!zmq_z85_encode(key, (const uint8_t *)request->data[6], 32)) return false;
    for (size_t i = 0; i < security->count; i++)
        if (!strcmp(security->admitted[i], key)) return true;
    log_info("refused a peer at %s: its key %s is none of this run's machines", request->data[3], key);
    return false;
}

static void answer(void *socket, const struct request *request, bool yes) {
    const char *code = yes ? "200" : "400";
    const char *text = yes ? "welcome" : "not of this run";
    zmq_send(socket, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(socket, request->data[1], request->count > 1 ? (size_t)request->size[1] : 0, ZMQ_SNDMORE);
    zmq_send(socket, code, 3, ZMQ_SNDMORE);
    zmq_send(socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(socket, "", 0, ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

static void *zap_run(void *argument) {
    struct zap *zap = argument;
    struct request request;
    while (receive(zap->socket, &request)) {
        if (request.size[0] == 4 && !memcmp(request.data[0], "stop", 4)) break;
        answer(zap->socket, &request, admitted(zap->security, &request));
    }
    return NULL;
}

status zap_open(struct zap **out, void *zmq_context, const struct wire_security *security) {
    struct zap *zap;
    *out = NULL;
    TRY(NEW(&zap, 1));
    zap->security = security;
    zap->context = zmq_context;
    zap->socket = zmq_socket(zmq_context, ZMQ_REP);
    int none = 0;
    if (!zap->socket || zmq_setsockopt(zap->socket, ZMQ_LINGER, &none, sizeof none) ||
        zmq_bind(zap->socket, "inproc://zeromq.zap.01") || pthread_create(&zap->thread, NULL, zap_run, zap)) {
        status result = fail(UNAVAILABLE, "cannot guard the sockets: %s", zmq_strerror(zmq_errno()));
        if (zap->socket) zmq_close(zap->socket);
        free(zap);
        return result;
    }
    *out = zap;
    return OK;
}

void zap_close(struct zap **zap) {
    if (!*zap) return;
    void *bell = zmq_socket((*zap)->context, ZMQ_REQ);
    int none = 0;
    if (bell && !zmq_setsockopt(bell, ZMQ_LINGER, &none, sizeof none) && !zmq_connect(bell, "inproc://zeromq.zap.01"))
        zmq_send(bell, "stop", 4, 0);
    pthread_join((*zap)->thread, NULL);
    if (bell) zmq_close(bell);
    zmq_close((*zap)->socket);
    free(*zap);
    *zap = NULL;
}
