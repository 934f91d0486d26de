// The bodies of OpenAI's chat-completions interface: what a request asks, and answers, pieces of a stream and errors as
// JSON. Neither connections nor a model here.
//
// A parameter that would change an answer and is not known here is refused, not ignored.
#pragma once

#include "shared/base/json.h"
#include "tools/serve/chat.h"

// ---- requests ----

enum { OPENAI_STOPS = 4 };

struct openai_request {
    const struct json *messages;
    bool stream, include_usage, logprobs;
    bool seeded; // `seed` was given
    int64_t seed, count, top_k;
    int64_t max_new_tokens;
    double temperature, top_p;
    struct string stops[OPENAI_STOPS]; // without NULs, NUL-terminated
    size_t stop_count;
};

// What a client is told beside fail_text().
struct openai_refusal {
    int code;         // of HTTP
    char param[64];   // which parameter; "": none
    const char *name; // the error's code; NULL: none
};

// What a request may ask for.
struct openai_limits {
    const char *model; // the name that it must state
    int64_t count, max_new_tokens;
};

// Parses a request's body, of which `out` then has values in the arena. DATAERR, with the refusal, for what is no
// request or cannot be done.
status openai_parse(struct openai_request *out, struct arena *arena, struct string body,
                    const struct openai_limits *limits, struct openai_refusal *refusal);

// Fills an empty prompt with the messages. `media_root`: below it lie the files that they may name; NULL: they may name
// none. DATAERR, with the refusal.
status openai_fill_prompt(const struct openai_request *request, struct chat_prompt *prompt, const char *media_root,
                          struct openai_refusal *refusal);

// ---- answers ----

// What all pieces of an answer begin with.
struct openai_head {
    char id[64];
    const char *model, *fingerprint;
    int64_t created; // seconds since 1970
};

// Appends the error: {"error": {...}}. `param` "" and `name` NULL: none.
void openai_print_error(struct buf *out, int code, const char *param, const char *name, const char *message);

// Appends a model of /v1/models.
void openai_print_model(struct buf *out, const char *name, int64_t created);

// Appends an event of a stream: a piece of a choice's text; the first one names the role.
void openai_print_piece(struct buf *out, const struct openai_head *head, int choice, bool first, struct string text);

// Appends the event that ends a choice of a stream: "stop" or "length".
void openai_print_finish(struct buf *out, const struct openai_head *head, int choice, const char *finish);

// Appends the event of the token counts.
void openai_print_usage(struct buf *out, const struct openai_head *head, size_t prompt, size_t completion);

// A choice of a whole answer.
struct openai_choice {
    struct string text; // UTF-8
    const char *finish;
    const struct generated *tokens; // NULL: no log-probabilities
};

// Appends a whole answer.
void openai_print_answer(struct buf *out, const struct openai_head *head, const struct openai_choice *choices,
                         size_t count, size_t prompt, size_t completion, const struct tokenizer *tokenizer);
