// The formats of annotation files, the wording of prompts, and what the layouts share.
#include "shared/data/format.h"

#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// ---- templates ----

// pipelines/templates/default.txt has the same text, as a start for users' own templates.
const char prompt_template_default[] =
    "{question}\n"
    "Look closely at what is shown and reason step by step before you answer: say what you see, compare the "
    "possibilities, and check your conclusion. Write your reasoning between <think> and </think>, and after it your "
    "final answer between <answer> and </answer>.{how}\n"
    "\n"
    "[multiple choice]\n"
    " Between <answer> and </answer> write the letter of the right option and nothing else.\n"
    "\n"
    "[numerical]\n"
    " Between <answer> and </answer> write one number, such as 42 or 3.14, and nothing else.\n"
    "\n"
    "[OCR]\n"
    " Between <answer> and </answer> write the text exactly as it can be read, and nothing else.\n"
    "\n"
    "[free-form]\n"
    " Between <answer> and </answer> write your answer as a short text.\n"
    "\n"
    "[regression]\n"
    " Between <answer> and </answer> write your estimate as one number, and nothing else.\n";

static struct string format_template_strip(struct string text) {
    while (text.size && (text.data[text.size - 1] == '\n' || text.data[text.size - 1] == '\r')) text.size--;
    return text;
}

status prompt_template_parse(struct prompt_template *out, const char *name, struct string text) {
    *out = (struct prompt_template){.body = {text.data, 0}};
    struct string *part = &out->body;
    size_t number = 1;
    for (size_t at = 0; at < text.size; number++) {
        size_t end = string_find(text, "\n", at);
        end = end == SIZE_MAX ? text.size : end;
        size_t next = end + (end < text.size);
        struct string line = string_slice(text, at, end);
        if (line.size && line.data[line.size - 1] == '\r') line.size--;
        enum problem_type type;
        bool header = line.size >= 2 && line.data[0] == '[' && line.data[line.size - 1] == ']' &&
                      problem_type_parse(string_slice(line, 1, line.size - 1), &type);
        if (header) {
            part = &out->sections[type];
            if (part->data) return fail(DATAERR, "%s:%zu: a second [%s]", name, number, problem_type_name(type));
            *part = string_slice(text, next, next);
        } else {
            part->size += next - at;
        }
        at = next;
    }
    out->body = format_template_strip(out->body);
    for (int i = 0; i < PROBLEM_TYPES; i++) out->sections[i] = format_template_strip(out->sections[i]);
    if (string_find(out->body, "{question}", 0) == SIZE_MAX)
        return fail(DATAERR, "%s: no {question} before the sections", name);
    return OK;
}

void template_fill(struct buf *out, struct string template, const char *const names[2], const struct string values[2]) {
    size_t from = 0;
    for (;;) {
        const size_t first = string_find(template, names[0], from), second = string_find(template, names[1], from);
        const int which = second < first;
        const size_t at = which ? second : first;
        if (at == SIZE_MAX) break;
        buf_append(out, template.data + from, at - from);
        buf_append(out, values[which].data, values[which].size);
        from = at + strlen(names[which]);
    }
    buf_append(out, template.data + from, template.size - from);
}

status prompt_template_render(const struct prompt_template *template, enum problem_type type, struct string question,
                              struct buf *out) {
    assert(type < PROBLEM_TYPES);
    struct string section = template->sections[type], body = template->body;
    bool has_sections = false;
    for (int i = 0; i < PROBLEM_TYPES; i++) has_sections |= template->sections[i].data != NULL;
    if (has_sections && !section.data)
        return fail(DATAERR, "the template has no section [%s]", problem_type_name(type));
    template_fill(out, body, (const char *const[2]){"{question}", "{how}"},
                  (const struct string[2]){question, section});
    if (string_find(body, "{how}", 0) == SIZE_MAX) buf_append(out, section.data, section.size);
    return OK;
}

// ---- keys of a record ----

status format_string(struct json *record, const char *key, bool allow_empty, struct string *out) {
    struct json *value = json_at(record, key);
    if (!value) return fail(DATAERR, "%s: missing", key);
    if (!json_is(value, JSON_STRING)) return fail(DATAERR, "%s: not a string", key);
    *out = json_string(value);
    return out->size || allow_empty ? OK : fail(DATAERR, "%s: empty", key);
}

status format_strings(struct json *record, const char *key, struct json **out) {
    *out = json_at(record, key);
    if (!*out) return fail(DATAERR, "%s: missing", key);
    if (!json_is(*out, JSON_ARRAY)) return fail(DATAERR, "%s: not an array", key);
    for (size_t i = 0; i < json_count(*out); i++)
        if (!json_is(json_item(*out, i), JSON_STRING)) return fail(DATAERR, "%s[%zu]: not a string", key, i);
    return OK;
}

status format_number(struct json *record, const char *key, bool required, double *out) {
    struct json *value = json_at(record, key);
    if (!value) return required ? fail(DATAERR, "%s: missing", key) : OK;
    return json_double(value, out) ? OK : fail(DATAERR, "%s: not a number", key);
}

struct string format_take(struct group *group, struct buf *text) {
    struct string taken;
    group_string(group, &taken, text->data, text->size);
    buf_release(text);
    return taken;
}

status format_label(struct group *group, struct json *record, const char *key, struct string *out) {
    struct json *value = json_at(record, key);
    struct string text = json_string(value);
    if (!value || (text.data && !text.size)) return OK;
    if (text.data) {
        group_string(group, out, text.data, text.size);
        return OK;
    }
    if (!json_is(value, JSON_NUMBER)) return fail(DATAERR, "%s: neither a string nor a number", key);
    struct buf printed = {0};
    json_print(&printed, value);
    *out = format_take(group, &printed);
    return OK;
}

status format_sample_id(struct group *group, struct json *record, const char *key, size_t line) {
    char number[24];
    TRY(format_label(group, record, key, &group->sample_id));
    if (group->sample_id.data) return OK;
    int length = snprintf(number, sizeof number, "%zu", line);
    assert(length > 0 && (size_t)length < sizeof number);
    group_string(group, &group->sample_id, number, (size_t)length);
    return OK;
}

// Sets *out to the path, below media_root if the path is relative; file:// in front of it stays.
static void format_media_path(const struct format_options *options, struct group *group, struct string path,
                              struct string *out) {
    static const char scheme[] = "file://";
    bool has_scheme = path.size >= sizeof scheme - 1 && !memcmp(path.data, scheme, sizeof scheme - 1);
    struct string bare = has_scheme ? string_slice(path, sizeof scheme - 1, path.size) : path;
    if (!options->media_root || (bare.size && bare.data[0] == '/')) {
        group_string(group, out, path.data, path.size);
        return;
    }
    struct buf joined = {0};
    buf_printf(&joined, "%s%s/", has_scheme ? scheme : "", options->media_root);
    buf_append(&joined, bare.data, bare.size);
    *out = format_take(group, &joined);
}

void format_media_paths(const struct format_options *options, struct group *group) {
    for (size_t i = 0; i < group->prompt.message_count; i++)
        for (size_t k = 0; k < group->prompt.messages[i].part_count; k++) {
            struct part *part = &group->prompt.messages[i].parts[k];
            struct string *path = part->kind == PART_IMAGE ? &part->image : &part->video;
            if (part->kind != PART_TEXT) format_media_path(options, group, *path, path);
        }
}

void format_set_options(struct group *group, const struct string *options, size_t count) {
    struct string_array *copies = &group->prompt.options;
    copies->data = arena_alloc(&group->arena, count * sizeof *copies->data);
    copies->count = count;
    for (size_t i = 0; i < count; i++) group_string(group, &copies->data[i], options[i].data, options[i].size);
}

status format_prompt(const struct format_options *options, struct group *group, enum problem_type type,
                     const struct format_media *media, struct string question, struct string solution) {
    struct prompt *prompt = &group->prompt;
    const char *type_name = problem_type_name(type);
    status result = solution_check(type, solution);
    if (result != OK) return fail_prefix(result, "solution");
    assert(media->count <= MAX_FORMAT_MEDIA);
    prompt->present = true;
    prompt->message_count = 1;
    prompt->messages = arena_alloc(&group->arena, sizeof *prompt->messages);
    struct message *message = prompt->messages;
    message->part_count = media->count + 1;
    message->parts = arena_alloc(&group->arena, message->part_count * sizeof *message->parts);
    group_string(group, &message->role, "user", 4);
    for (size_t i = 0; i < media->count; i++) {
        struct part *part = &message->parts[i];
        bool video = media->kinds[i] == PART_VIDEO;
        part->kind = media->kinds[i];
        part->start = i == 0 ? media->start : NAN;
        part->end = i == 0 ? media->end : NAN;
        part->frame_rate = i == 0 ? media->frame_rate : NAN;
        group_string(group, &part->type, video ? "video" : "image", 5);
        format_media_path(options, group, media->paths[i], video ? &part->video : &part->image);
    }
    struct part *part = &message->parts[media->count];
    part->kind = PART_TEXT;
    part->start = part->end = part->frame_rate = NAN;
    group_string(group, &part->type, "text", 4);
    struct buf rendered = {0};
    if (options->template)
        result = prompt_template_render(options->template, type, question, &rendered);
    else
        buf_append(&rendered, question.data, question.size);
    if (result == OK) group_string(group, &part->text, rendered.data, rendered.size);
    buf_release(&rendered);
    TRY(result);
    group_string(group, &prompt->question, question.data, question.size);
    group_string(group, &prompt->problem_type, type_name, strlen(type_name));
    group_string(group, &prompt->solution, solution.data, solution.size);
    return OK;
}

// ---- the formats ----

// The layout caravan: a record is a group.
static status format_read_caravan(const struct format_options *options, struct json *record, struct record_place place,
                                  struct group **out) {
    const char *key = json_at(record, "sample_id") ? "sample_id" : "id";
    enum problem_type type;
    struct buf printed = {0};
    struct arena arena = {0};
    // group_from_json requires an id, which a record may lack, so a copy with another id is parsed.
    struct json *copy = json_new(&arena, JSON_OBJECT);
    json_merge(copy, &arena, record);
    json_set_string(copy, &arena, "id", "-");
    json_print(&printed, copy);
    status result = group_from_json(out, printed.data, printed.size);
    buf_release(&printed);
    arena_release(&arena);
    TRY(result);
    struct group *group = *out;
    const struct prompt *prompt = &group->prompt;
    group->requires = (struct requirement){0};
    group->trained = (struct trained){0};
    group->times = (struct stage_times){0};
    group->quarantine = (struct quarantine){0};
    TRY(format_sample_id(group, record, key, place.line));
    format_media_paths(options, group);
    if (!problem_type_parse(prompt->problem_type, &type))
        return fail(DATAERR, "prompt.problem_type: '%s' of sample %s is not one of " PROBLEM_TYPE_NAMES,
                    prompt->problem_type.data ? prompt->problem_type.data : "", group->sample_id.data);
    result = solution_check(type, prompt->solution);
    return result == OK ? OK : fail_prefix(result, "prompt.solution");
}

// Makes the group of a record of SEED-Bench-R1: its prompt is messages. The solution is the response's last answer.
static status format_sft_read_messages(const struct format_options *options, struct json *record,
                                       struct string response, struct record_place place, struct group **out) {
    struct json *messages = json_at(record, "prompt");
    struct buf text = {0};
    if (!messages) return fail(DATAERR, "prompt: missing");
    if (!json_is(messages, JSON_ARRAY)) return fail(DATAERR, "prompt: not an array of messages");
    if (!json_count(messages)) return fail(DATAERR, "prompt: empty");
    size_t first = SIZE_MAX, end = SIZE_MAX;
    for (size_t at = 0; (at = string_find(response, "<answer>", at)) != SIZE_MAX; at++) first = at;
    if (first != SIZE_MAX) end = string_find(response, "</answer>", first);
    const struct string solution =
        end == SIZE_MAX ? string_of("") : string_slice(response, first, end + sizeof "</answer>" - 1);
    buf_puts(&text, "{\"id\":\"-\",\"prompt\":{\"messages\":");
    json_print(&text, messages);
    buf_printf(&text, ",\"problem_type\":\"%s\",\"solution\":", problem_type_name(PROBLEM_CHOICE));
    json_print_string(&text, solution.data, solution.size);
    buf_puts(&text, "}}");
    const status result = group_from_json(out, text.data, text.size);
    buf_release(&text);
    TRY(result);
    TRY(format_sample_id(*out, record, "sample_id", place.line));
    format_media_paths(options, *out);
    return OK;
}

// The layout sft: prompts with the response that is to be learned, as SEED-Bench-R1 and Video-R1 publish them.
static status format_read_sft(const struct format_options *options, struct json *record, struct record_place place,
                              struct group **out) {
    struct string response, process, solution;
    struct token_list tokens = {0};
    struct buf target = {0}; // what is to be learned
    if (json_at(record, "process")) {
        TRY(format_string(record, "process", false, &process));
        TRY(format_read_video_r1(options, record, place, out));
        if ((*out)->quarantine.present) return OK;
        TRY(format_string(record, "solution", false, &solution));
        buf_append(&target, process.data, process.size);
        buf_puts(&target, "\n");
        buf_append(&target, solution.data, solution.size);
    } else if (json_at(record, "response")) {
        TRY(format_string(record, "response", false, &response));
        TRY(format_sft_read_messages(options, record, response, place, out));
        buf_append(&target, response.data, response.size);
    } else {
        return fail(DATAERR, "neither response nor process, so that nothing is to be learned");
    }
    struct group *group = *out;
    group_completions(group, 1);
    struct completion *completion = &group->completions[0];
    group_string(group, &completion->text, target.data, target.size);
    group_string(group, &completion->finish, "eos", 3);
    group_doubles(group, &group->advantages, 1);
    group->advantages.data[0] = 1;
    status result = OK;
    if (options->tokenizer) { // in the chat template the message ends with <|im_end|> and a newline; both are learned
        buf_puts(&target, "<|im_end|>\n");
        TRY_TO(result, done, tokenizer_encode(options->tokenizer, target.data, target.size, &tokens));
        group_ints(group, &completion->tokens, tokens.count);
        memcpy(completion->tokens.data, tokens.data, tokens.count * sizeof *tokens.data);
    }
done:
    token_list_release(&tokens);
    buf_release(&target);
    return result;
}

static const char format_example_caravan[] =
    "[\n"
    "{\"sample_id\": \"kitchen-1\",\n"
    " \"prompt\": {\"messages\": [{\"role\": \"user\", \"content\": [\n"
    "                {\"type\": \"video\", \"video\": \"videos/kitchen.mp4\"},\n"
    "                {\"type\": \"text\", \"text\": \"What is opened first? A. the fridge B. the drawer\"}]}],\n"
    "            \"problem_type\": \"multiple choice\",\n"
    "            \"solution\": \"<answer>B</answer>\"}}\n"
    "]\n";

static const char format_example_seed_bench_r1[] =
    "[\n"
    "{\"sample_id\": \"train-1\", \"video_source\": \"EpicKitchens\", \"video_basename\": \"P01_01.mp4\",\n"
    " \"current_observation_basename\": \"P01_01.jpg\", \"task_progress_metadata\": [{\"narration\": \"open the "
    "drawer\"}],\n"
    " \"question\": \"What should be done next?\\n\", \"answer\": \"take the knife\",\n"
    " \"negative_answers\": [\"close the drawer\", \"wash the cup\", \"open the fridge\"]},\n"
    "{\"sample_id\": \"validation-1\", \"video_source\": \"EpicKitchens\", \"video_basename\": \"P02_01.mp4\",\n"
    " \"current_observation_basename\": \"P02_01.jpg\", \"task_progress_metadata\": [],\n"
    " \"question\": \"What should be done next?\\n\", \"choice_a\": \"take the knife\", \"choice_b\": \"close the "
    "drawer\",\n"
    " \"choice_c\": \"wash the cup\", \"choice_d\": \"open the fridge\", \"golden_choice_idx\": \"A\",\n"
    " \"domain\": \"Daily life\", \"task_level\": \"L1\"}\n"
    "]\n";

static const char format_example_video_r1[] =
    "[\n"
    "{\"problem_id\": 1, \"problem_type\": \"multiple choice\", \"data_type\": \"video\", \"path\": "
    "\"videos/kitchen.mp4\",\n"
    " \"problem\": \"What is opened first?\\n\", \"options\": [\"A. the fridge\", \"B. the drawer\"],\n"
    " \"solution\": \"<answer>B</answer>\"},\n"
    "{\"problem_id\": 2, \"problem_type\": \"numerical\", \"data_type\": \"image\", \"path\": \"images/shelf.jpg\",\n"
    " \"problem\": \"How many cups are there?\", \"solution\": \"<answer>3</answer>\"}\n"
    "]\n";

static const char format_example_sft[] =
    "[\n"
    "{\"sample_id\": \"train-1\",\n"
    " \"prompt\": [{\"role\": \"user\", \"content\": [\n"
    "     {\"type\": \"video\", \"video\": \"videos/EpicKitchens/P01_01.mp4\"},\n"
    "     {\"type\": \"text\", \"text\": \"What should be done next? A. take the knife B. wash the cup\"}]}],\n"
    " \"response\": \"<think>The drawer with the knives is open.</think><answer>A</answer>\"},\n"
    "{\"problem_id\": 1, \"problem_type\": \"multiple choice\", \"data_type\": \"video\", \"path\": "
    "\"videos/kitchen.mp4\",\n"
    " \"problem\": \"What is opened first?\\n\", \"options\": [\"A. the fridge\", \"B. the drawer\"],\n"
    " \"process\": \"<think>A hand pulls the drawer.</think>\", \"solution\": \"<answer>B</answer>\"}\n"
    "]\n";

const struct format format_all[] = {
    {"caravan", true, false, format_example_caravan, format_read_caravan},
    {"seed-bench-r1", false, false, format_example_seed_bench_r1, format_read_seed_bench_r1},
    {"video-r1", false, false, format_example_video_r1, format_read_video_r1},
    {"sft", false, true, format_example_sft, format_read_sft},
};
const size_t format_count = sizeof format_all / sizeof *format_all;

const struct format *format_find(const char *name) {
    for (size_t i = 0; i < format_count; i++)
        if (!strcmp(format_all[i].name, name)) return &format_all[i];
    return NULL;
}

status format_read(const struct format *format, const struct format_options *options, struct json *record,
                   struct record_place place, struct group **out) {
    *out = NULL;
    const status result = format->read(options, record, place, out);
    if (result != OK) group_free(out);
    return result;
}
