// caravan serve MODEL: answers requests of OpenAI's chat-completions interface.
//
// One thread does all but decoding: between two steps of the generator, which decodes all requests in one batch, it
// serves the connections. A request (a `job`) waits until one of the PREPARING threads has decoded its media and made
// its tokens, then until the generator takes another one. It is answered when the generator returns it, or, if it is a
// stream, piece by piece before that. Its tokens are those that caravan-rollout samples for a group whose id is
// CHAT_GROUP_ID, with the request's seed.
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "shared/base/clock.h"
#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/base/signals.h"
#include "shared/http/http.h"
#include "tools/serve/chat.h"
#include "tools/serve/openai.h"

// PREPARING is also how many jobs, with their frames in memory, are prepared before the generator takes them.
// A request is not read while a prompt is computed, so it has REQUEST_SECONDS to come. When the server is to end, what
// still comes or is not taken has END_SECONDS after the last answer.
enum { SPARE_CONNECTIONS = 32, LARGEST_BODY = 32 << 20, PREPARING = 4, REQUEST_SECONDS = 600, END_SECONDS = 30 };

struct serve_options {
    struct chat_options chat;
    const char *listen, *host, *name, *api_key_file, *media_root;
    int64_t rows, queue;
};

static const struct option serve_options[] = {
    TOOL_OPTION(serve_options, listen, OPTION_STRING, "address and port", .default_value = "127.0.0.1:8000"),
    TOOL_OPTION(serve_options, host, OPTION_STRING,
                "the name by which clients of other machines call this one, without a port"),
    TOOL_OPTION(serve_options, api_key_file, OPTION_FILE,
                "file with the key that requests must have (default: anybody may ask)"),
    TOOL_OPTION(serve_options, name, OPTION_STRING, "name of the model in requests (default: its directory's)"),
    TOOL_OPTION(serve_options, media_root, OPTION_FILE,
                "directory of the pictures and clips that requests may name (default: they may name none)",
                .directory = true),
    TOOL_OPTION(serve_options, rows, OPTION_INT, "the most answers that are decoded side by side",
                .default_value = "64", .low = 1, .high = MAX_GENERATOR_ROWS),
    TOOL_OPTION(serve_options, queue, OPTION_INT, "the most requests beyond --rows that may wait; others are refused",
                .default_value = "64", .low = 1, .high = 10000),
    CHAT_OPTIONS,
    {0},
};
const struct option_table serve_table = {
    .program = "caravan serve",
    .operands = "MODEL|RUN",
    .help = "answers OpenAI's chat completions with a model",
    .details = "RUN is the directory of a run: its last checkpoint answers, with the frames of\n"
               "the run. POST /v1/chat/completions takes texts, pictures and clips; /v1/models\n"
               "names the model. MODEL may be a directory of adapters, which names its own.\n"
               "SIGTERM: the answers under way are finished.\n",
    .options = serve_options,
    .size = sizeof(struct serve_options),
};

enum serve_state {
    SERVE_WAITING,
    SERVE_IN_WORK, // of a thread, which reads and writes `prompt`, `result` and `reason`
    SERVE_PREPARED,
    SERVE_RUNNING, // in the generator
};

struct serve_job {
    struct serve_job *next;
    enum serve_state state;    // under the lock
    struct serve *serve;       // to which it belongs
    struct http_request *http; // NULL: the client has gone away
    struct arena arena;        // of `request`, which has only its numbers and stops when the job runs
    struct openai_request request;
    struct openai_head head;
    struct chat_prompt prompt;
    status result; // of its preparation
    char reason[512];
    struct chat_text *texts; // [request.count]
    bool begun;              // the stream
};

struct serve {
    const struct serve_options *given;
    struct chat *chat;
    struct http_server *http;
    int64_t started; // seconds since 1970
    char name[256], key[256], fingerprint[32];
    bool stopping, failed; // the last step failed
    pthread_t threads[PREPARING];
    int thread_count;
    pthread_mutex_t lock;    // over what follows
    pthread_cond_t changed;  // what the threads wait for
    int prepared;            // an eventfd: a job is prepared
    struct serve_job *jobs;  // the oldest first; only the main thread changes the list
    size_t job_count, ahead; // jobs; those that are in work or prepared
    bool ending;             // the threads end
};

// ---- jobs ----

// Takes a job out of the list, if it is there: no thread works on it from then on. Under the lock.
static void serve_unlink(struct serve_job *job) {
    struct serve *serve = job->serve;
    struct serve_job **link = &serve->jobs;
    while (*link && *link != job) link = &(*link)->next;
    if (!*link) return;
    *link = job->next;
    serve->job_count--;
    serve->ahead -= job->state == SERVE_PREPARED;
    pthread_cond_signal(&serve->changed);
}

// Frees a job that no thread works on.
static void serve_free(struct serve_job *job) {
    pthread_mutex_lock(&job->serve->lock);
    serve_unlink(job);
    pthread_mutex_unlock(&job->serve->lock);
    if (job->http) job->http->tag = NULL;
    for (int64_t i = 0; job->texts && i < job->request.count; i++) chat_text_release(&job->texts[i]);
    free(job->texts);
    chat_prompt_release(&job->prompt);
    arena_release(&job->arena);
    free(job);
}

// Separates a job from its request, which is answered or over, and frees it; one that is in work or runs is freed when
// that has ended.
static void serve_leave(struct serve_job *job) {
    pthread_mutex_lock(&job->serve->lock);
    const bool used = job->state == SERVE_IN_WORK || job->state == SERVE_RUNNING;
    if (!used) serve_unlink(job); // before a thread takes it
    pthread_mutex_unlock(&job->serve->lock);
    if (job->http) job->http->tag = NULL;
    job->http = NULL;
    if (!used) serve_free(job);
}

// Returns the oldest prepared job that can be worked on: the generator takes it, or it is not for the generator. NULL:
// there is none.
static struct serve_job *serve_next(struct serve *serve) {
    const bool can_add = generator_can_add(serve->chat->generator);
    pthread_mutex_lock(&serve->lock);
    struct serve_job *job = serve->jobs;
    while (job && (job->state != SERVE_PREPARED || (!can_add && job->http && job->result == OK))) job = job->next;
    pthread_mutex_unlock(&serve->lock);
    return job;
}

// Prepares jobs: a thread.
static void *serve_prepare(void *argument) {
    struct serve *serve = argument;
    pthread_mutex_lock(&serve->lock);
    while (!serve->ending) {
        struct serve_job *job = serve->jobs;
        while (job && job->state != SERVE_WAITING) job = job->next;
        if (!job || serve->ahead >= PREPARING) {
            pthread_cond_wait(&serve->changed, &serve->lock);
            continue;
        }
        job->state = SERVE_IN_WORK;
        serve->ahead++;
        pthread_mutex_unlock(&serve->lock);
        job->result = chat_prepare(serve->chat, &job->prompt);
        if (job->result != OK) snprintf(job->reason, sizeof job->reason, "%s", fail_text());
        pthread_mutex_lock(&serve->lock);
        job->state = SERVE_PREPARED;
        eventfd_write(serve->prepared, 1);
    }
    pthread_mutex_unlock(&serve->lock);
    return NULL;
}

// ---- answers ----

static void serve_refuse(struct http_request *http, const struct openai_refusal *refusal, const char *message) {
    struct buf body = {0};
    if (refusal->code == 503) http_add_header(http, "Retry-After", "1");
    openai_print_error(&body, refusal->code, refusal->param, refusal->name, message);
    http_answer(http, refusal->code, "application/json", &body);
}

static const char *serve_describe(void *context, int code, const char *text, struct buf *body) {
    (void)context;
    openai_print_error(body, code, "", NULL, text);
    return "application/json";
}

// Answers a job that cannot be done. BAD_SAMPLE and DATAERR are the client's mistakes.
static void serve_fail(struct serve_job *job, status result, const char *message) {
    const bool theirs = result == BAD_SAMPLE || result == DATAERR;
    const struct openai_refusal refusal = {.code = theirs ? 400 : 503, .name = theirs ? "invalid_value" : NULL};
    if (job->http && job->begun) {
        struct buf event = {0};
        buf_puts(&event, "data: ");
        openai_print_error(&event, refusal.code, "", refusal.name, message);
        buf_puts(&event, "\n\n");
        http_send(job->http, event.data, event.size);
        http_finish(job->http);
        buf_release(&event);
    } else if (job->http) {
        serve_refuse(job->http, &refusal, message);
    }
}

static void serve_begin_stream(struct serve_job *job) {
    struct buf events = {0};
    if (job->begun) return;
    job->begun = true;
    http_add_header(job->http, "Cache-Control", "no-store");
    http_stream(job->http, 200, "text/event-stream");
    for (int i = 0; i < job->request.count; i++) openai_print_piece(&events, &job->head, i, true, string_of(""));
    http_send(job->http, events.data, events.size);
    buf_release(&events);
}

// The generator has a token. A client that has gone away wants no more.
static status serve_on_token(void *tag, int completion, int64_t token, bool *stop) {
    struct serve_job *job = tag;
    struct chat_text *text = &job->texts[completion];
    const struct openai_request *request = &job->request;
    *stop = !job->http;
    if (*stop) return OK;
    const struct string part =
        chat_text_add(text, job->serve->chat->model->input.tokenizer, token, request->stops, request->stop_count);
    *stop = text->stopped;
    if (!request->stream) return OK;
    serve_begin_stream(job);
    if (part.size) {
        struct buf event = {0};
        openai_print_piece(&event, &job->head, completion, false, part);
        http_send(job->http, event.data, event.size);
        buf_release(&event);
    }
    return OK;
}

// Answers a job with what the generator has returned, and frees it.
static void serve_finish(struct serve *serve, struct serve_job *job, const struct generated *generated) {
    const struct openai_request *request = &job->request;
    const struct tokenizer *tokenizer = serve->chat->model->input.tokenizer;
    const size_t prompt_tokens = job->prompt.group->prompt_tokens.count;
    struct openai_choice *choices = arena_alloc(&job->arena, (size_t)request->count * sizeof *choices);
    struct buf out = {0};
    size_t tokens = 0;
    bool finite = true;
    if (!job->http) {
        serve_free(job);
        return;
    }
    for (int i = 0; i < request->count; i++) {
        struct chat_text *text = &job->texts[i];
        const struct string rest = chat_text_end(text, tokenizer, request->stops, request->stop_count);
        choices[i].text = (struct string){text->text.data, text->text.size};
        choices[i].finish = generated[i].ended || text->stopped ? "stop" : "length";
        choices[i].tokens = request->logprobs ? &generated[i] : NULL;
        tokens += generated[i].count;
        for (size_t t = 0; t < generated[i].count; t++) finite = finite && isfinite(generated[i].logprobs[t]);
        if (!request->stream) continue;
        if (rest.size) openai_print_piece(&out, &job->head, i, false, rest);
        openai_print_finish(&out, &job->head, i, choices[i].finish);
    }
    if (!finite) {
        serve_fail(job, UNAVAILABLE, "the model computes log-probabilities that are not finite");
    } else if (request->stream) {
        serve_begin_stream(job);
        if (request->include_usage) openai_print_usage(&out, &job->head, prompt_tokens, tokens);
        buf_puts(&out, "data: [DONE]\n\n");
        http_send(job->http, out.data, out.size);
        http_finish(job->http);
    } else {
        openai_print_answer(&out, &job->head, choices, (size_t)request->count, prompt_tokens, tokens, tokenizer);
        http_answer(job->http, 200, "application/json", &out);
    }
    buf_release(&out);
    serve_free(job);
}

// ---- requests ----

static void serve_handle_chat(struct serve *serve, struct http_request *http) {
    const char *type = http_find_header(http, "Content-Type");
    const size_t length = type ? strcspn(type, "; ") : 0;
    struct openai_refusal refusal = {.code = 503};
    struct serve_job *job;
    if (!http_allows(http, "POST")) return;
    // A page of another site can send other types without asking.
    if (length != strlen("application/json") || strncasecmp(type, "application/json", length) != 0) {
        http_refuse(http, 415, "Content-Type must be application/json");
        return;
    }
    if (serve->stopping) {
        serve_refuse(http, &refusal, "the server is ending");
        return;
    }
    if (serve->job_count >= (size_t)(serve->given->rows + serve->given->queue)) {
        refusal.name = "overloaded";
        serve_refuse(http, &refusal, "too many requests wait already");
        return;
    }
    NEW(&job, 1);
    chat_prompt_init(&job->prompt);
    job->prompt.inside = true;
    job->serve = serve;
    job->http = http;
    http->tag = job;
    struct openai_request *request = &job->request;
    const struct openai_limits limits = {
        .model = serve->name, .count = serve->given->rows, .max_new_tokens = serve->chat->max_new_tokens};
    status result = openai_parse(request, &job->arena, http->body, &limits, &refusal);
    http_drop_body(http); // `request` has all of it
    if (result == OK) result = openai_fill_prompt(request, &job->prompt, serve->given->media_root, &refusal);
    if (result == OK && !request->seeded && getrandom(&request->seed, sizeof request->seed, 0) != sizeof request->seed)
        result = fail(UNAVAILABLE, "getrandom: %s", strerror(errno));
    if (result != OK) {
        if (result != DATAERR) refusal = (struct openai_refusal){.code = 503};
        serve_refuse(http, &refusal, fail_text());
        serve_free(job);
        return;
    }
    char token[HTTP_TOKEN_SIZE];
    http_make_token(token);
    snprintf(job->head.id, sizeof job->head.id, "chatcmpl-%s", token);
    job->head.model = serve->name;
    job->head.fingerprint = serve->fingerprint;
    job->head.created = (int64_t)clock_realtime();
    NEW(&job->texts, (size_t)request->count);
    pthread_mutex_lock(&serve->lock);
    struct serve_job **end = &serve->jobs;
    while (*end) end = &(*end)->next;
    *end = job;
    serve->job_count++;
    pthread_cond_signal(&serve->changed);
    pthread_mutex_unlock(&serve->lock);
}

static void serve_handle_models(struct serve *serve, struct http_request *http, const char *name) {
    struct buf body = {0};
    if (!http_allows(http, "GET")) return;
    if (*name && strcmp(name, serve->name) != 0) {
        serve_refuse(http, &(struct openai_refusal){.code = 404, .param = "model", .name = "model_not_found"},
                     "there is no such model here");
        return;
    }
    if (!*name) buf_puts(&body, "{\"object\":\"list\",\"data\":[");
    openai_print_model(&body, serve->name, serve->started);
    if (!*name) buf_puts(&body, "]}");
    http_answer(http, 200, "application/json", &body);
}

// Refuses a request that has not the key before its body takes memory.
static void serve_admit(void *context, struct http_request *http) {
    static const char scheme[] = "Bearer ";
    struct serve *serve = context;
    http_add_header(http, "Cross-Origin-Resource-Policy", "same-origin");
    const char *key = http_find_header(http, "Authorization");
    if (*serve->key && (!key || strncasecmp(key, scheme, sizeof scheme - 1) != 0 ||
                        !http_same_secret(key + sizeof scheme - 1, serve->key))) {
        http_add_header(http, "WWW-Authenticate", "Bearer");
        serve_refuse(http, &(struct openai_refusal){.code = 401, .name = "invalid_api_key"},
                     "the request has no key, or a wrong one: Authorization: Bearer KEY");
    }
}

static void serve_handle(void *context, struct http_request *http) {
    static const char models[] = "/v1/models/";
    struct serve *serve = context;
    if (!strcmp(http->path, "/v1/chat/completions"))
        serve_handle_chat(serve, http);
    else if (!strcmp(http->path, "/v1/models"))
        serve_handle_models(serve, http, "");
    else if (!strncmp(http->path, models, sizeof models - 1) && http->path[sizeof models - 1])
        serve_handle_models(serve, http, http->path + sizeof models - 1);
    else
        http_refuse(http, 404, "there is no %s here", http->path);
}

// A request is over. Its job, if it runs, ends with its next token.
static void serve_ended(void *context, struct http_request *http, bool sent) {
    (void)context;
    (void)sent;
    if (http->tag) serve_leave(http->tag);
}

// ---- the loop ----

// Gives a prepared job to the generator, or answers it if that is not possible. BUG, of which the server ends.
static status serve_start(struct serve *serve, struct serve_job *job) {
    struct openai_request *request = &job->request;
    const struct generate_request generate = {.count = (int)request->count,
                                              .temperature = (float)request->temperature,
                                              .top_p = (float)request->top_p,
                                              .top_k = (int)request->top_k,
                                              .max_new_tokens = (int)request->max_new_tokens,
                                              .key = rng_key((uint64_t)request->seed, CHAT_GROUP_ID),
                                              .tag = job,
                                              .stop = serve_on_token};
    status result = job->result == OK ? OK : fail(job->result, "%s", job->reason);
    if (result == OK && job->http) result = chat_add(serve->chat, &job->prompt, &generate);
    if (result == OK && job->http) { // its media and messages need no memory any more
        struct arena whole = job->arena;
        job->arena = (struct arena){0};
        for (size_t i = 0; i < request->stop_count; i++)
            arena_string(&job->arena, &request->stops[i], request->stops[i].data, request->stops[i].size);
        request->messages = NULL;
        chat_prompt_drop_media(&job->prompt);
        arena_release(&whole);
        pthread_mutex_lock(&serve->lock);
        job->state = SERVE_RUNNING;
        serve->ahead--;
        pthread_cond_signal(&serve->changed);
        pthread_mutex_unlock(&serve->lock);
        return OK;
    }
    if (result != OK && result != BAD_SAMPLE && result != DATAERR) log_info("a request failed: %s", fail_text());
    if (result != OK) serve_fail(job, result, fail_text());
    serve_free(job);
    return result == BUG ? BUG : OK;
}

// Whether a job is in the generator.
static bool serve_runs(struct serve_job *job) {
    pthread_mutex_lock(&job->serve->lock);
    const bool runs = job->state == SERVE_RUNNING;
    pthread_mutex_unlock(&job->serve->lock);
    return runs;
}

static status serve_loop(struct serve *serve) {
    enum { END_POLL_MS = 100 };
    struct generator **generator = &serve->chat->generator;
    double end = 0; // when what still comes is left, once the server is to end
    while (!serve->stopping || generator_busy(*generator) ||
           (http_open_requests(serve->http) && clock_monotonic() < end)) {
        struct pollfd fds[] = {{.fd = http_fd(serve->http), .events = POLLIN},
                               {.fd = serve->prepared, .events = POLLIN},
                               {.fd = serve->stopping ? -1 : signals_fd(), .events = POLLIN}};
        const bool waits = !generator_busy(*generator) && !serve_next(serve);
        int most = waits ? http_timeout_ms(serve->http) : 0;
        eventfd_t prepared;
        if (serve->stopping && (most < 0 || most > END_POLL_MS)) most = END_POLL_MS;
        if (poll(fds, sizeof fds / sizeof *fds, most) < 0 && errno != EINTR)
            return fail(UNAVAILABLE, "poll: %s", strerror(errno));
        (void)eventfd_read(serve->prepared, &prepared);
        TRY(http_step(serve->http));
        if (signals_stopping() && !serve->stopping) { // no more requests are taken, and those that wait are refused
            serve->stopping = true;
            end = clock_monotonic() + END_SECONDS;
            http_stop_listening(serve->http);
            for (struct serve_job *next, *job = serve->jobs; job; job = next) {
                next = job->next;
                if (serve_runs(job)) continue;
                if (job->http) serve_fail(job, UNAVAILABLE, "the server is ending");
                serve_leave(job);
            }
        }
        struct serve_job *ready = serve_next(serve);
        if (ready) TRY(serve_start(serve, ready));
        const bool busy = generator_busy(*generator);
        const status result = busy ? generator_step(*generator) : OK;
        if (result != OK) { // what runs has failed; the second time in a row, or a bug, is the end
            char reason[512];
            snprintf(reason, sizeof reason, "%s", fail_text());
            if (serve->failed || result == BUG) return result;
            serve->failed = true;
            log_info("the requests that were under way failed: %s", reason);
            generator_free(generator);
            for (struct serve_job *next, *job = serve->jobs; job; job = next) {
                next = job->next;
                if (!serve_runs(job)) continue;
                serve_fail(job, UNAVAILABLE, reason);
                serve_free(job);
            }
            TRY(chat_new_generator(serve->chat));
            continue;
        }
        if (busy) serve->failed = false;
        if (busy) end = clock_monotonic() + END_SECONDS;
        const struct generated *generated;
        void *tag;
        int count;
        while ((generated = generator_pop(*generator, &tag, &count))) serve_finish(serve, tag, generated);
    }
    return OK;
}

// ---- the program ----

status serve_main(struct subcommand_call *call) {
    struct serve serve = {.given = call->given, .started = (int64_t)clock_realtime(), .prepared = -1};
    const char *model = call->list[0];
    const struct string last = subcommand_last_part(model);
    const size_t length = serve.given->name ? strlen(serve.given->name) : 1;
    status result;
    if (!length || length >= sizeof serve.name)
        return fail(USAGE, "--name: must have from 1 to %zu bytes", sizeof serve.name - 1);
    snprintf(serve.name, sizeof serve.name, "%.*s", (int)last.size, last.data);
    if (serve.given->name) snprintf(serve.name, sizeof serve.name, "%s", serve.given->name);
    TRY(signals_open());
    (void)fd_raise_limit(); // each connection and each medium has one
    const char *key_file = serve.given->api_key_file;
    if (key_file) {
        struct buf text = {0};
        TRY(file_read(key_file, &text));
        const size_t size = text.data ? strcspn(text.data, "\r\n") : 0;
        const bool fits = size && size < sizeof serve.key && !memchr(text.data, 0, size);
        if (fits) memcpy(serve.key, text.data, size);
        buf_release(&text);
        if (!fits)
            return fail(DATAERR, "%s: no key of 1 to %zu bytes in its first line", key_file, sizeof serve.key - 1);
    }
    pthread_mutex_init(&serve.lock, NULL);
    pthread_cond_init(&serve.changed, NULL);
    const struct serve_options *given = serve.given; // its mistakes are told before the model is loaded
    const struct http_options options = {.listen = given->listen,
                                         .host = given->host,
                                         .connections = (int)(given->rows + given->queue) + SPARE_CONNECTIONS,
                                         .timeout = REQUEST_SECONDS,
                                         .largest_body = LARGEST_BODY,
                                         .context = &serve,
                                         .admit = serve_admit,
                                         .handle = serve_handle,
                                         .ended = serve_ended,
                                         .describe = serve_describe};
    TRY_TO(result, done, http_open(&serve.http, &options));
    const char *address = http_address(serve.http);
    if (!given->host && (!strncmp(address, "0.0.0.0:", 8) || !strncmp(address, "[::]:", 5)))
        TRY_TO(result, done,
               fail(USAGE, "listen: %s: say with --host by which name clients call this machine", given->listen));
    TRY_TO(result, done, chat_open(&serve.chat, model, NULL, &given->chat, (int)given->rows));
    serve.chat->given.media_root = given->media_root;
    snprintf(serve.fingerprint, sizeof serve.fingerprint, "fp_%016llx",
             (unsigned long long)stage_model_hash(serve.chat->model));
    serve.prepared = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (serve.prepared < 0) TRY_TO(result, done, fail(UNAVAILABLE, "eventfd: %s", strerror(errno)));
    for (; serve.thread_count < PREPARING; serve.thread_count++)
        if (pthread_create(&serve.threads[serve.thread_count], NULL, serve_prepare, &serve))
            TRY_TO(result, done, fail(UNAVAILABLE, "cannot start thread %d of %d", serve.thread_count + 1, PREPARING));
    if (!http_is_loopback(serve.http) && !*serve.key)
        log_info("warning: whoever reaches %s may ask the model; see --api-key-file", address);
    log_info("serving %s at http://%s/v1", serve.name, address);
    result = serve_loop(&serve);
done:
    http_close(&serve.http);
    pthread_mutex_lock(&serve.lock);
    serve.ending = true;
    pthread_cond_broadcast(&serve.changed);
    pthread_mutex_unlock(&serve.lock);
    for (int i = 0; i < serve.thread_count; i++) pthread_join(serve.threads[i], NULL); // ends what is in work
    for (struct serve_job *next, *job = serve.jobs; job; job = next) {
        next = job->next;
        serve_free(job);
    }
    if (serve.prepared >= 0) close(serve.prepared);
    chat_close(&serve.chat);
    pthread_cond_destroy(&serve.changed);
    pthread_mutex_destroy(&serve.lock);
    return result;
}
