// The layout sft: prompts with the response that is to be learned, as SEED-Bench-R1 and Video-R1 publish them.
#include <string.h>

#include "shared/data/format.h"

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

status format_read_sft(const struct format_options *options, struct json *record, struct record_place place,
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
