// caravan ask MODEL [QUESTION]: asks a model, about pictures and clips, and prints what it answers as it comes.
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "shared/base/file.h"
#include "shared/base/log.h"
#include "shared/base/rng.h"
#include "shared/base/signals.h"
#include "shared/reward/accuracy.h"
#include "shared/store/group_store.h"
#include "tools/serve/chat.h"

struct ask_options {
    struct chat_options chat;
    struct string_list media;
    const char *group, *template, *type, *system;
    double temperature, top_p;
    int64_t top_k, seed;
    bool json;
};

static const struct option ask_options[] = {
    TOOL_OPTION(ask_options, media, OPTION_FILE, "a picture or a clip that is asked about; may be repeated",
                .repeatable = true),
    TOOL_OPTION(ask_options, group, OPTION_STRING, "RUN/ID: ask what the prompt of this group of a run asks"),
    TOOL_OPTION(ask_options, template, OPTION_FILE,
                "prompt template; default: the built-in wording; none: the question alone (default: the run's)",
                .choices = "default|none"),
    TOOL_OPTION(ask_options, type, OPTION_NAME, "type of the question, for the template", .default_value = "free-form",
                .choices = "multiple choice|numerical|OCR|free-form|regression"),
    TOOL_OPTION(ask_options, system, OPTION_STRING, "text of a system message (default: the chat template's)"),
    TOOL_OPTION(ask_options, temperature, OPTION_NUMBER, "sampling temperature; 0 is greedy", .default_value = "0",
                .high = 1000),
    TOOL_OPTION(ask_options, top_p, OPTION_NUMBER, "probability mass that nucleus sampling keeps; 1 is off",
                .default_value = "0.95", .low = MIN_POSITIVE, .high = 1),
    TOOL_OPTION(ask_options, top_k, OPTION_INT, "number of most likely tokens that sampling keeps; 0 is off",
                .default_value = "0", .high = 1e9),
    TOOL_OPTION(ask_options, seed, OPTION_INT, "seed of the random numbers", .default_value = "42",
                .high = MAX_INTEGER),
    CHAT_OPTIONS,
    TOOL_OPTION(ask_options, json, OPTION_BOOL, "print each answer as a group, as caravan-rollout does"),
    {0},
};
const struct option_table ask_table = {
    .program = "caravan ask",
    .operands = "MODEL|RUN [QUESTION]",
    .help = "asks a model, and prints its answer as it comes",
    .details = "RUN is the directory of a run: its last checkpoint is asked, with the frames and\n"
               "the prompt template of the run. Without QUESTION it is read from standard input:\n"
               "all of it, or on a terminal a line at a time, until Ctrl-D. --media belongs to\n"
               "the first question. MODEL may be a directory of adapters, which names its model.\n",
    .options = ask_options,
    .size = sizeof(struct ask_options),
};

struct ask {
    const struct ask_options *given;
    struct chat *chat;
    struct chat_prompt prompt;
    struct chat_text text;
    struct prompt_template template;
    struct buf template_text; // empty: the question alone
    FILE *out;                // of the answer's text; NULL: --json
};

// ---- the question ----

// Adds a question to the prompt; the first one with the media, behind the system message. A picture is told from a clip
// by its name.
static status ask_add_question(struct ask *ask, struct string question) {
    static const char *const pictures[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"};
    const struct ask_options *given = ask->given;
    struct chat_prompt *prompt = &ask->prompt;
    const bool first = !prompt->group->prompt.message_count;
    const size_t media = first ? given->media.count : 0;
    struct buf text = {0};
    if (memchr(question.data, 0, question.size)) return fail(DATAERR, "the question contains a NUL");
    if (ask->template_text.size) {
        enum problem_type type;
        if (!problem_type_parse(string_of(given->type), &type)) return fail(BUG, "the type %s", given->type);
        TRY(prompt_template_render(&ask->template, type, question, &text));
    } else {
        buf_append(&text, question.data, question.size);
    }
    if (!utf8_valid(text.data, text.size)) {
        buf_release(&text);
        return fail(DATAERR, "the question is not UTF-8");
    }
    if (first && given->system)
        chat_set_text(prompt, chat_add_message(prompt, "system", 1), given->system, strlen(given->system));
    struct part *parts = chat_add_message(prompt, "user", media + 1);
    for (size_t i = 0; i < media; i++) {
        const char *dot = strrchr(path_base_name(given->media.data[i]), '.');
        bool video = true;
        for (size_t k = 0; dot && k < sizeof pictures / sizeof *pictures; k++)
            if (!strcasecmp(dot, pictures[k])) video = false;
        chat_set_medium(prompt, &parts[i], video, given->media.data[i]);
    }
    chat_set_text(prompt, &parts[media], text.data, text.size);
    buf_release(&text);
    return OK;
}

// Makes the prompt of a group of a run the one that is asked, and writes its texts to standard error.
static status ask_take_group(struct ask *ask, const char *run, const char *id, struct arena *arena) {
    struct string_list stores = {0};
    struct group *found = NULL;
    TRY(subcommand_find_stores(run, "groups.lmdb", arena, &stores));
    for (size_t i = 0; i < stores.count && !found; i++) {
        struct group_store *store = NULL;
        status result = group_store_open(&store, stores.data[i], true);
        if (result == OK) result = group_store_get(store, id, &found);
        group_store_close(&store);
        TRY(result);
    }
    if (!found) return fail(DATAERR, "%s: the store has no group %s", run, id);
    group_free(&ask->prompt.group);
    struct group *group = ask->prompt.group = found;
    group->completions = NULL;
    group->completion_count = 0;
    group->reference = (struct reference){0};
    group->consistency = (struct consistency){0};
    group->rewards = (struct rewards){0};
    group->advantages = (struct double_array){0};
    group->scores = (struct scores){0};
    group->trained = (struct trained){0};
    group->times = (struct stage_times){0};
    group->quarantine = (struct quarantine){0};
    if (chat_is_run(arena, run)) { // not the model's run, whose media may lie elsewhere
        struct pipeline *pipeline = NULL;
        TRY(chat_read_run(&pipeline, arena, run));
        const struct pipeline_stage *source = pipeline_find_stage(pipeline, "source");
        const char *root = source ? pipeline_value(source, "media_root") : NULL;
        ask->chat->given.media_root = root ? arena_strndup(arena, root, strlen(root)) : NULL;
        pipeline_free(&pipeline);
    }
    for (size_t i = 0; i < group->prompt.message_count; i++)
        for (size_t k = 0; k < group->prompt.messages[i].part_count; k++) {
            const struct part *part = &group->prompt.messages[i].parts[k];
            const struct string text = part->kind == PART_TEXT ? part->text : media_uri(part);
            fprintf(stderr, "%.*s> %.*s\n", (int)group->prompt.messages[i].role.size,
                    group->prompt.messages[i].role.data, (int)text.size, text.data);
        }
    return OK;
}

// ---- the answer ----

static void ask_print(const struct ask *ask, struct string part) {
    if (!ask->out || !part.size) return;
    fwrite(part.data, 1, part.size, ask->out);
    fflush(ask->out);
}

static status ask_on_token(void *tag, int completion, int64_t token, bool *stop) {
    struct ask *ask = tag;
    (void)completion;
    ask_print(ask, chat_text_add(&ask->text, ask->chat->model->input.tokenizer, token, NULL, 0));
    *stop = ask->out && ferror(ask->out);
    return OK;
}

// Has the prompt answered, and prints the answer.
static status ask_answer(struct ask *ask) {
    const struct ask_options *given = ask->given;
    struct chat *chat = ask->chat;
    struct group *group = ask->prompt.group;
    const struct generate_request request = {.count = 1,
                                             .temperature = (float)given->temperature,
                                             .top_p = (float)given->top_p,
                                             .top_k = (int)given->top_k,
                                             .max_new_tokens = (int)chat->max_new_tokens,
                                             .key = rng_key((uint64_t)given->seed, group->id.data),
                                             .tag = ask,
                                             .stop = ask_on_token};
    void *tag;
    int count = 0;
    const struct generated *generated;
    chat_text_release(&ask->text);
    ask->text = (struct chat_text){0};
    TRY(chat_prepare(chat, &ask->prompt));
    TRY(chat_add(chat, &ask->prompt, &request));
    while (!(generated = generator_pop(chat->generator, &tag, &count))) TRY(generator_step(chat->generator));
    for (size_t t = 0; t < generated->count; t++)
        if (!isfinite(generated->logprobs[t]))
            return fail(DATAERR, "the log-probability of token %zu is not finite", t);
    ask_print(ask, chat_text_end(&ask->text, chat->model->input.tokenizer, NULL, 0));
    ask_print(ask, string_of("\n"));
    stage_input_set_completions(&chat->model->input, group, generated, count);
    if (!ask->out) {
        struct buf line = {0};
        group_to_json(group, &line);
        buf_puts(&line, "\n");
        fwrite(line.data, 1, line.size, stdout);
        fflush(stdout);
        buf_release(&line);
    }
    if (ferror(stdout)) return fail(UNAVAILABLE, "cannot write to standard output");
    if (!generated->ended)
        log_info("the answer was cut after %lld tokens: see --max-new-tokens", (long long)chat->max_new_tokens);
    return OK;
}

// Asks what standard input, which is no terminal, has to its end, without the newlines there.
static status ask_read_question(struct ask *ask) {
    enum { READ_SIZE = 65536 };
    struct buf all = {0};
    status result;
    for (ssize_t got = 1; got > 0; all.size += (size_t)got) {
        TRY_TO(result, done, buf_reserve_large(&all, READ_SIZE));
        got = fd_read(STDIN_FILENO, all.data + all.size, READ_SIZE);
        if (got < 0) TRY_TO(result, done, fail(DATAERR, "standard input: %s", strerror(errno)));
    }
    while (all.size && (all.data[all.size - 1] == '\r' || all.data[all.size - 1] == '\n')) all.size--;
    all.data[all.size] = 0;
    if (strspn(all.data, " \t\r\n\v\f") == all.size) TRY_TO(result, done, fail(USAGE, "there is no question"));
    TRY_TO(result, done, ask_add_question(ask, (struct string){all.data, all.size}));
    result = ask_answer(ask);
done:
    buf_release(&all);
    return result;
}

// Asks the questions that are typed, one after the other.
static status ask_read_questions(struct ask *ask) {
    struct line_reader lines = {.fd = STDIN_FILENO};
    status result = OK;
    while (result == OK) {
        const char *line;
        size_t size;
        fputs("> ", stderr);
        result = line_reader_next(&lines, -1, &line, &size);
        if (result != OK || !line) continue;
        struct group *group = ask->prompt.group;
        if (group->completions) { // the answer before
            const struct string text = group->completions[0].text;
            chat_set_text(&ask->prompt, chat_add_message(&ask->prompt, "assistant", 1), text.data, text.size);
        }
        result = ask_add_question(ask, (struct string){line, size});
        if (result == OK) result = ask_answer(ask);
    }
    fputs("\n", stderr);
    line_reader_release(&lines);
    return result == END ? OK : result;
}

status ask_main(struct subcommand_call *call) {
    const struct ask_options *given = call->given;
    struct ask ask = {.given = given, .out = given->json ? NULL : stdout};
    const char *run = NULL, *id = NULL, *question = call->count > 1 ? call->list[1] : NULL;
    status result;
    if (given->group && (question || given->media.count || given->template || given->system))
        return fail(USAGE, "--group has its own question, media, template and system message");
    if (given->group) { // RUN/ID
        const char *slash = strrchr(given->group, '/');
        if (!slash || !slash[1]) return fail(USAGE, "group: '%s' is not RUN/ID", given->group);
        run = arena_strndup(&call->arena, given->group, (size_t)(slash - given->group));
        id = slash + 1;
    }
    chat_prompt_init(&ask.prompt);
    TRY_TO(result, done, chat_open(&ask.chat, call->list[0], run, &given->chat, 1));
    // The template is the one that was given, else the run's.
    const struct source_options *source = chat_stage_options(ask.chat, "source");
    const struct format *format = source ? format_find(source->format) : NULL;
    const char *template = given->template;
    if (!template && format && !format->has_messages) template = source->template ? source->template : "default";
    if (template && strcmp(template, "none") != 0) {
        struct buf *text = &ask.template_text;
        if (!strcmp(template, "default"))
            buf_puts(text, prompt_template_default);
        else
            TRY_TO(result, done, template_read(template, text));
        const struct string whole = {text->data, text->size};
        TRY_TO(result, done, prompt_template_parse(&ask.template, template, whole));
    }
    if (run) {
        TRY_TO(result, done, ask_take_group(&ask, run, id, &call->arena));
        result = ask_answer(&ask);
    } else if (question) {
        TRY_TO(result, done, ask_add_question(&ask, string_of(question)));
        result = ask_answer(&ask);
    } else {
        result = isatty(STDIN_FILENO) ? ask_read_questions(&ask) : ask_read_question(&ask);
    }
done:
    if (result == BAD_SAMPLE) result = DATAERR;
    chat_text_release(&ask.text);
    chat_prompt_release(&ask.prompt);
    buf_release(&ask.template_text);
    chat_close(&ask.chat);
    return result;
}
